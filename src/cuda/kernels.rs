//! The kernels of `cuda/`. They are compiled for the GPU before their first launch.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fmt::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::driver::check;
use super::gather::{GatherPlan, MAX_TILED_BYTES};
use super::sys::{self, CUdeviceptr, CUfunction, CUmodule};
use super::{CudaStream, Device, nvrtc};
use crate::collective::ReduceOperation;
use crate::data_type::DataType;
use crate::element::ElementWiseOperation;
use crate::error::{Result, error};
use crate::layout::Layout;
use crate::shape::MAX_DIMS;
use crate::util::lock;

/// The threads of a block: `DCL_BLOCK` of `cuda/launch.h`.
const BLOCK: u32 = 256;

/// The most blocks for each multiprocessor. The threads of a kernel loop over the rest.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 16;

/// How long the work may take that runs when kernels are loaded.
const LOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes that a thread handles in one step: a packet of `cuda/packet.h`.
const BYTES_PER_THREAD: u64 = 16;

/// The headers of `cuda/`, which define kernels, as one text. The build script makes it.
const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cu"));

/// All kernels, which `cuda/kernels.list` names: the line of the list, the name of the function,
/// and the line of source that defines it after [`TEXT`].
const KERNELS: &[(&str, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// A kernel that the library launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Cast(DataType, DataType),
    Divide(DataType),
    Reduce(DataType, ReduceOperation),
    NormalizeBool,
    /// By the bytes of an element.
    Transpose(usize),
    TransposeTiled(usize),
    /// Of bytes, as words.
    TransposeWords,
    /// By the bytes of an element.
    CopyRows(usize),
    ElementWise(DataType, ElementWiseOperation),
}

impl Kernel {
    /// The kernel of a cast; `None` if a copy does the cast.
    pub(crate) fn of_cast(from: DataType, to: DataType) -> Option<Self> {
        match (from, to) {
            (DataType::Bool, DataType::Bool) => Some(Kernel::NormalizeBool),
            _ => (from != to).then_some(Kernel::Cast(from, to)),
        }
    }

    /// The kernels that gather elements of `element_bytes`, in all layouts.
    pub(crate) fn of_gather(element_bytes: usize) -> impl Iterator<Item = Self> {
        let widths = [1, 2, 4, 8, 16].into_iter().filter(move |width| *width >= element_bytes);
        let all = widths.flat_map(|width| {
            let tiled = (width <= MAX_TILED_BYTES).then_some(Kernel::TransposeTiled(width));
            std::iter::once(Kernel::Transpose(width)).chain(tiled)
        });
        all.chain((element_bytes == 1).then_some(Kernel::TransposeWords))
    }

    /// The kernels that copy rows of elements of `element_bytes`, at all addresses.
    pub(crate) fn of_copy_rows(element_bytes: usize) -> impl Iterator<Item = Self> {
        [1, 2, 4, 8, 16].into_iter().filter(move |width| *width >= element_bytes).map(Kernel::CopyRows)
    }

    /// The name of the function, and the line of source that defines it.
    fn source(self) -> Result<(&'static str, &'static str)> {
        let line = self.to_string();
        let found = KERNELS.iter().find(|(entry, ..)| *entry == line);
        found.map(|(_, name, definition)| (*name, *definition)).ok_or_else(|| error!(System, "no kernel does {line}"))
    }
}

/// The line of `cuda/kernels.list`.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Cast(from, to) => write!(f, "cast {from} {to}"),
            Kernel::Divide(to) => write!(f, "divide {to}"),
            Kernel::Reduce(data_type, reduce_op) => write!(f, "reduce {data_type} {reduce_op}"),
            Kernel::NormalizeBool => f.write_str("normalize_bool"),
            Kernel::Transpose(bytes) => write!(f, "transpose {bytes}"),
            Kernel::TransposeTiled(bytes) => write!(f, "transpose_tiled {bytes}"),
            Kernel::TransposeWords => f.write_str("transpose_words"),
            Kernel::CopyRows(bytes) => write!(f, "copy_rows {bytes}"),
            Kernel::ElementWise(data_type, operation) => write!(f, "elementwise {data_type} {operation}"),
        }
    }
}

/// The compiled kernels of one GPU.
#[derive(Default)]
pub(super) struct Kernels {
    loaded: Mutex<HashMap<Kernel, Function>>,
    /// Held while kernels are compiled.
    compiling: Mutex<()>,
}

#[derive(Clone, Copy)]
struct Function(CUfunction);

// SAFETY: CUDA allows any thread to launch a function, and its module is never unloaded.
unsafe impl Send for Function {}

impl Device {
    /// Compiles those kernels that are not compiled yet, so that enqueueing does not.
    pub(crate) fn prepare(&self, kernels: impl IntoIterator<Item = Kernel>) -> Result<()> {
        // A set, because NVRTC refuses a second definition of a kernel.
        let mut missing: HashSet<Kernel> = kernels.into_iter().filter(|kernel| !self.has(*kernel)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // Launches do not take this lock.
        let _compiling = lock(&self.kernels.compiling);
        missing.retain(|kernel| !self.has(*kernel));
        if missing.is_empty() {
            return Ok(());
        }
        let mut text = TEXT.to_owned();
        for kernel in &missing {
            // Writing to a `String` does not fail.
            let _ = writeln!(text, "{}", kernel.source()?.1);
        }
        let image = nvrtc::compile(&text, self.capability)?;
        // Loading would wait for the work itself, and hold back the other ranks meanwhile.
        if self.ranks.are_several() {
            self.drain(Instant::now() + LOAD_TIMEOUT)?;
        }
        let _current = self.enter_relaxed()?;
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: the image is a whole cubin, or PTX that ends with a zero. The module is never
        // unloaded: enqueued work may use it.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
        for kernel in missing {
            let name = CString::new(kernel.source()?.0).unwrap_or_default();
            let mut function: CUfunction = std::ptr::null_mut();
            // SAFETY: writes one pointer; the name ends with a zero.
            let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            check("cuModuleGetFunction", result).map_err(|e| e.about(|| kernel.to_string()))?;
            lock(&self.kernels.loaded).insert(kernel, Function(function));
        }
        Ok(())
    }

    /// Whether a kernel is compiled.
    pub(crate) fn has(&self, kernel: Kernel) -> bool {
        lock(&self.kernels.loaded).contains_key(&kernel)
    }

    fn function(&self, kernel: Kernel) -> Result<CUfunction> {
        if let Some(function) = lock(&self.kernels.loaded).get(&kernel) {
            return Ok(function.0);
        }
        self.prepare([kernel])?;
        self.function(kernel)
    }
}

/// The arguments of a kernel: one of the structures of `cuda/arguments.h`.
#[repr(C)]
struct Arguments<const INPUTS: usize, const NUMBERS: usize, L = ()> {
    inputs: [*const u8; INPUTS],
    output: *mut u8,
    numbers: [u64; NUMBERS],
    layout: L,
}

impl<const NUMBERS: usize> Arguments<1, NUMBERS> {
    fn new(input: *const u8, output: *mut u8, numbers: [u64; NUMBERS]) -> Self {
        Arguments { inputs: [input], output, numbers, layout: () }
    }
}

/// The end of a structure of a kernel that takes a layout.
#[repr(C)]
struct LayoutArguments<const INPUTS: usize> {
    dim_count: u64,
    dims: [u64; MAX_DIMS],
    strides: [[i64; MAX_DIMS]; INPUTS],
}

impl<const INPUTS: usize> LayoutArguments<INPUTS> {
    fn of(layout: &Layout<INPUTS>) -> Self {
        let dim_count = layout.dims().len() as u64;
        let mut arguments = LayoutArguments { dim_count, dims: [1; MAX_DIMS], strides: [[0; MAX_DIMS]; INPUTS] };
        for (dim, &len) in layout.dims().iter().enumerate() {
            arguments.dims[dim] = len as u64;
            arguments.strides.iter_mut().enumerate().for_each(|(i, to)| to[dim] = layout.strides(i)[dim] as i64);
        }
        arguments
    }
}

/// The largest power of two, up to that of a packet, of which all these are multiples.
fn alignment(numbers: &[usize]) -> usize {
    1 << numbers.iter().fold(BYTES_PER_THREAD as usize, |all, number| all | number).trailing_zeros()
}

/// Work on tensors of the stream's GPU. These calls only enqueue, and allocate nothing if the
/// kernel is compiled.
///
/// # Safety
///
/// For each of them: until the stream has done the work, inputs are valid for reads and outputs for
/// writes of the lengths that the arguments give, are aligned to the size of their elements, and
/// nothing else writes inputs or uses outputs. They overlap only where the call allows it.
impl CudaStream {
    /// Enqueues a copy. Both addresses may be the same.
    pub(crate) unsafe fn copy(&self, from: *const u8, to: *mut u8, byte_len: usize) -> Result<()> {
        if byte_len == 0 || from == to.cast_const() {
            return Ok(());
        }
        let _current = self.device().enter()?;
        // SAFETY: the caller promises both ranges.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to as CUdeviceptr, from as CUdeviceptr, byte_len, self.raw()) };
        check("cuMemcpyDtoDAsync", result)
    }

    /// Enqueues a fill with zeros.
    pub(crate) unsafe fn zero(&self, to: *mut u8, byte_len: usize) -> Result<()> {
        if byte_len == 0 {
            return Ok(());
        }
        let _current = self.device().enter()?;
        // SAFETY: the caller promises the range.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to as CUdeviceptr, 0, byte_len, self.raw()) })
    }

    /// Enqueues a cast. It may be in place if both types have one size.
    pub(crate) unsafe fn cast(
        &self,
        from: DataType,
        input: *const u8,
        to: DataType,
        output: *mut u8,
        count: usize,
    ) -> Result<()> {
        let arguments = Arguments::new(input, output, [count as u64]);
        let byte_len = count * from.byte_len().max(to.byte_len());
        // SAFETY: the caller promises both ranges; the structure is the one that the kernel takes.
        unsafe {
            match Kernel::of_cast(from, to) {
                Some(kernel) => self.launch(kernel, &arguments, byte_len),
                None => self.copy(input, output, byte_len),
            }
        }
    }

    /// Enqueues the division of float32 elements by a number. Each result is rounded once to the
    /// type `to`. It may be in place if that is float32.
    pub(crate) unsafe fn divide(
        &self,
        input: *const u8,
        divisor: f32,
        to: DataType,
        output: *mut u8,
        count: usize,
    ) -> Result<()> {
        // A float in the place of a number, whose upper half the kernel does not read.
        let arguments = Arguments::new(input, output, [count as u64, divisor.to_bits().into()]);
        // SAFETY: as above.
        unsafe { self.launch(Kernel::Divide(to), &arguments, count * DataType::Float32.byte_len()) }
    }

    /// Enqueues the reduction of `ranks` consecutive blocks of `count` elements, in their order.
    /// The output may be the first block.
    pub(crate) unsafe fn reduce(
        &self,
        (data_type, reduce_op): (DataType, ReduceOperation),
        input: *const u8,
        output: *mut u8,
        count: usize,
        ranks: usize,
    ) -> Result<()> {
        let byte_len = count * data_type.byte_len();
        // The elements of a rank begin as many apart as a rank has.
        let arguments = Arguments::new(input, output, [count, count, ranks].map(|number| number as u64));
        // SAFETY: as above.
        unsafe { self.launch(Kernel::Reduce(data_type, reduce_op), &arguments, byte_len) }
    }

    /// Enqueues the conversion of each bool to 0 or 1. It may be in place.
    pub(crate) unsafe fn normalize_bool(&self, input: *const u8, output: *mut u8, count: usize) -> Result<()> {
        let arguments = Arguments::new(input, output, [count as u64]);
        // SAFETY: as above.
        unsafe { self.launch(Kernel::NormalizeBool, &arguments, count) }
    }

    /// Enqueues the gathering of the elements that a layout reaches.
    pub(crate) unsafe fn gather(
        &self,
        input: *const u8,
        output: *mut u8,
        layout: &Layout<1>,
        element_bytes: usize,
    ) -> Result<()> {
        let plan = GatherPlan::new(layout, element_bytes, alignment(&[input.addr(), output.addr()]));
        let count = plan.layout.element_count();
        let byte_len = count * plan.element_bytes;
        // SAFETY: as above; the addresses are aligned to the element of the plan.
        unsafe {
            match plan.tiles {
                Some(tiles) => {
                    let kernel = match plan.moves_words {
                        true => Kernel::TransposeWords,
                        false => Kernel::TransposeTiled(plan.element_bytes),
                    };
                    self.launch(kernel, &Arguments::new(input, output, tiles.map(|len| len as u64)), byte_len)
                }
                None => {
                    let (numbers, layout) = ([count as u64], LayoutArguments::of(&plan.layout));
                    let arguments = Arguments { inputs: [input], output, numbers, layout };
                    self.launch(Kernel::Transpose(plan.element_bytes), &arguments, byte_len)
                }
            }
        }
    }

    /// Enqueues the copy of rows that lie one after the other to rows that begin `pitch_bytes`
    /// apart.
    pub(crate) unsafe fn copy_rows(
        &self,
        input: *const u8,
        output: *mut u8,
        row_count: usize,
        row_bytes: usize,
        pitch_bytes: usize,
    ) -> Result<()> {
        let byte_len = row_count * row_bytes;
        if row_count == 1 {
            // SAFETY: as above.
            return unsafe { self.copy(input, output, byte_len) };
        }
        let width = alignment(&[input.addr(), output.addr(), row_bytes, pitch_bytes]);
        let numbers = [byte_len, row_bytes, pitch_bytes].map(|bytes| (bytes / width) as u64);
        let arguments = Arguments::new(input, output, numbers);
        // SAFETY: as above; the addresses are aligned to the width.
        unsafe { self.launch(Kernel::CopyRows(width), &arguments, byte_len) }
    }

    /// Enqueues an element-wise operation on two inputs, as the layout broadcasts them.
    pub(crate) unsafe fn element_wise(
        &self,
        operation: ElementWiseOperation,
        data_type: DataType,
        layout: &Layout<2>,
        inputs: [*const u8; 2],
        output: *mut u8,
    ) -> Result<()> {
        let (count, packet) = (layout.element_count(), BYTES_PER_THREAD as usize / data_type.byte_len());
        let (row_len, steps) = layout.row();
        // No packet begins in one row and ends in the next. Where a row of an input repeats one
        // element, that is read alone.
        let is_whole = layout.dims().len() <= 1 || row_len.is_multiple_of(packet);
        let read = inputs.iter().zip(steps).filter(|(_, step)| *step != 0).map(|(input, _)| input.addr());
        let is_aligned = read.chain([output.addr()]).all(|address| address.is_multiple_of(BYTES_PER_THREAD as usize));
        let packets = if is_whole && is_aligned { count / packet } else { 0 };
        let (numbers, layout) = ([count, packets].map(|number| number as u64), LayoutArguments::of(layout));
        let arguments = Arguments { inputs, output, numbers, layout };
        // SAFETY: as above.
        unsafe { self.launch(Kernel::ElementWise(data_type, operation), &arguments, count * data_type.byte_len()) }
    }

    /// # Safety
    ///
    /// `A` is the structure that the kernel takes. The addresses in it are valid as the impl block
    /// says.
    unsafe fn launch<A>(&self, kernel: Kernel, arguments: &A, byte_len: usize) -> Result<()> {
        if byte_len == 0 {
            return Ok(());
        }
        let function = self.device().function(kernel)?;
        let threads = (byte_len as u64).div_ceil(BYTES_PER_THREAD);
        let most = u64::from(self.device().multiprocessors) * BLOCKS_PER_MULTIPROCESSOR;
        let grid = threads.div_ceil(u64::from(BLOCK)).clamp(1, most) as u32;
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast()];
        let _current = self.device().enter()?;
        // SAFETY: the caller promises the arguments; CUDA copies them before the call returns.
        let result = unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(function, grid, 1, 1, BLOCK, 1, 1, 0, self.raw(), parameters, std::ptr::null_mut())
        };
        check("cuLaunchKernel", result).map_err(|e| e.about(|| kernel.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every kernel that this module may ask for is in the list, and the list has no other.
    #[test]
    fn the_list_has_the_kernels_that_are_launched() {
        let types = DataType::LAYER_TYPES;
        let casts = types.iter().flat_map(|&from| types.map(move |to| (from, to)));
        let floats = types.iter().copied().filter(|data_type| data_type.is_float());
        let reductions =
            DataType::ALL.iter().flat_map(|&data_type| ReduceOperation::LAYER_OPERATIONS.map(|op| (data_type, op)));
        let reductions = reductions.filter(|(data_type, reduce_op)| reduce_op.applies_to(*data_type));
        let operations = types.iter().flat_map(|&data_type| ElementWiseOperation::ALL.map(|op| (data_type, op)));
        let operations = operations.filter(|(data_type, operation)| operation.applies_to(*data_type));
        let launched: BTreeSet<String> = casts
            .filter_map(|(from, to)| Kernel::of_cast(from, to))
            .chain(floats.map(Kernel::Divide))
            .chain(reductions.map(|(data_type, reduce_op)| Kernel::Reduce(data_type, reduce_op)))
            .chain(Kernel::of_gather(1))
            .chain(Kernel::of_copy_rows(1))
            .chain(operations.map(|(data_type, operation)| Kernel::ElementWise(data_type, operation)))
            .map(|kernel| kernel.to_string())
            .collect();
        let listed: BTreeSet<String> = KERNELS.iter().map(|(entry, ..)| (*entry).to_owned()).collect();
        assert_eq!(launched, listed);
    }
}
