//! Where the layers of a run compute: on the caller's thread, or on a CUDA stream.

use std::sync::Arc;
use std::time::Instant;

use crate::compute;
use crate::cuda::{CudaStream, Device};
use crate::data_type::DataType;
use crate::element::ElementWiseOperation;
use crate::error::{Result, bail};
use crate::layout::Layout;
use crate::memory::{Address, MemorySpace};
use crate::util::interrupt;

/// Where work is computed: on the GPU of a stream, where a call enqueues it, or without a stream on
/// the caller's thread, where it is done when the call returns.
#[derive(Clone, Copy)]
pub(crate) struct Executor<'a>(pub(crate) Option<&'a Arc<CudaStream>>);

/// Calls that `compute` has for the caller's thread, and a CUDA stream for its GPU.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $call:ident($($argument:ident: $type:ty),* $(,)?);)*) => { $(
        $(#[$doc])*
        pub(crate) unsafe fn $call(self, $($argument: $type),*) -> Result<()> {
            // SAFETY: the caller promises what this call asks for, as the impl block says.
            unsafe {
                match self.0 {
                    None => compute::$call($($argument),*),
                    Some(stream) => return stream.$call($($argument),*),
                }
            }
            Ok(())
        }
    )* };
}

/// The arithmetic and the copies that backends do not do.
///
/// # Safety
///
/// For each of these calls: until the work is done, inputs are valid for reads and outputs for
/// writes of the lengths that the arguments give. They are in the executor's memory and aligned to
/// the size of their elements. Nothing else writes inputs or uses outputs. They overlap only where
/// the call allows it.
impl Executor<'_> {
    /// Copies `byte_len` bytes between memories of any kind. Both addresses may be the same.
    pub(crate) unsafe fn copy(self, from: Address, to: Address, byte_len: usize, deadline: Instant) -> Result<()> {
        let (source, target) = (from.pointer, to.pointer);
        if byte_len == 0 {
            return Ok(());
        }
        // SAFETY: the caller promises both ranges, and each address is in the memory that it names.
        unsafe {
            match (self.0, from.space, to.space) {
                (None, MemorySpace::Host, MemorySpace::Host) => {
                    compute::copy(source, target, byte_len);
                    Ok(())
                }
                (None, MemorySpace::Host, MemorySpace::Cuda(to)) => {
                    Device::open(to)?.write(std::slice::from_raw_parts(source, byte_len), target)
                }
                (None, MemorySpace::Cuda(from), MemorySpace::Host) => {
                    Device::open(from)?.read(source, std::slice::from_raw_parts_mut(target, byte_len))
                }
                (None, MemorySpace::Cuda(from), MemorySpace::Cuda(to)) if from == to => {
                    // After an error the GPU might still use the memory.
                    let _mask = interrupt::mask();
                    let stream = CudaStream::new(&Device::open(from)?)?;
                    stream.copy(source, target, byte_len)?;
                    stream.synchronize(deadline, || Ok(()))
                }
                (Some(stream), MemorySpace::Cuda(from), MemorySpace::Cuda(to)) if from == to => {
                    stream.copy(source, target, byte_len)
                }
                (_, from, to) => bail!(InvalidBuffer, "nothing copies from {from} to {to} here"),
            }
        }
    }

    /// Fills with zeros.
    pub(crate) unsafe fn zero(self, to: *mut u8, byte_len: usize) -> Result<()> {
        // SAFETY: the caller promises what this call asks for, as the impl block says.
        unsafe {
            match self.0 {
                None => to.write_bytes(0, byte_len),
                Some(stream) => return stream.zero(to, byte_len),
            }
        }
        Ok(())
    }

    calls! {
        /// Casts `count` elements. It may be in place if both types have one size.
        fn cast(from: DataType, input: *const u8, to: DataType, output: *mut u8, count: usize);

        /// Writes the elements that a layout reaches from `input` on, one after the other.
        fn gather(input: *const u8, output: *mut u8, layout: &Layout<1>, element_bytes: usize);

        /// Copies rows that lie one after the other to rows that begin `pitch_bytes` apart.
        fn copy_rows(input: *const u8, output: *mut u8, row_count: usize, row_bytes: usize, pitch_bytes: usize);

        /// Combines the elements of two inputs, as the layout broadcasts them.
        fn element_wise(
            operation: ElementWiseOperation,
            data_type: DataType,
            layout: &Layout<2>,
            inputs: [*const u8; 2],
            output: *mut u8,
        );
    }
}
