//! Dictionaries of tensors: `dcl_tensor_dict_*`.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use dcl::tensor::{Dims, MemorySpace, Shape};
use dcl::tensor_dict::{ElementType, OpaqueType, Tensor};
use dcl::{Buffer, DataType, TensorDict, Work};

use super::arguments::{
    CDims, ConstVoidPointer, InPointer, OutPointer, SizedStruct, TextPointer, VoidPointer, count, data_type, unsigned,
};
use super::copy_out::{TextBuffer, TextDestination};
use super::handle::{Handle, Object, TryRwLock};
use super::owned_work::BroadcastWork;
use super::status::{CallError, Result, Status, call, lock};

/// The `device` of host memory.
const DEVICE_HOST: i32 = -1;

/// The `data_type` of elements of a type that only dictionaries carry.
const OPAQUE_TYPE: i32 = -1;

/// `dcl_tensor_dict_t`.
pub(super) struct CTensorDict {
    /// `None` while a stream has it.
    dict: TryRwLock<Option<TensorDict>, CTensorDict>,
    /// The broadcast that has the dictionary, until a call after its end.
    broadcast: Mutex<Option<Arc<BroadcastWork>>>,
    /// The names of types that the caller has asked for.
    type_names: Mutex<BTreeSet<CString>>,
}

impl Object for CTensorDict {
    const TYPE: &'static str = "dcl_tensor_dict_t";
}

impl CTensorDict {
    fn handle(dict: TensorDict) -> Handle<Self> {
        let dict = TryRwLock::new(Some(dict));
        Handle::new(CTensorDict { dict, broadcast: Mutex::default(), type_names: Mutex::default() })
    }

    /// The name of a type, which stays where it is as long as the dictionary.
    fn type_name(&self, element_type: &ElementType) -> TextPointer {
        let name = CString::new(element_type.to_string().replace('\0', " ")).unwrap_or_default();
        let mut names = lock(&self.type_names);
        names.insert(name.clone());
        names.get(&name).map_or(TextPointer::NULL, |name| TextPointer::to(name))
    }

    /// For a [shared] call.
    fn read<R>(&self, act: impl FnOnce(&TensorDict) -> Result<R>) -> Result<R> {
        self.settle()?;
        self.dict.read()?.as_ref().ok_or_else(away).and_then(act)
    }

    /// For an [exclusive] call.
    pub(super) fn write<R>(&self, act: impl FnOnce(&mut TensorDict) -> Result<R>) -> Result<R> {
        self.settle()?;
        self.dict.write()?.as_mut().ok_or_else(away).and_then(act)
    }

    /// Lends the dictionary to a broadcast, which hands it back when it has ended.
    pub(super) fn lend(
        &self,
        submit: impl FnOnce(TensorDict) -> Result<Work<TensorDict>, (TensorDict, CallError)>,
    ) -> Result<Arc<BroadcastWork>> {
        self.settle()?;
        let mut dict = self.dict.write()?;
        match submit(dict.take().ok_or_else(away)?) {
            Ok(work) => {
                let work = Arc::new(BroadcastWork::new(work));
                *lock(&self.broadcast) = Some(Arc::clone(&work));
                Ok(work)
            }
            Err((refused, error)) => {
                *dict = Some(refused);
                Err(error)
            }
        }
    }

    /// Takes the dictionary back from a broadcast that has ended.
    fn settle(&self) -> Result<()> {
        let mut broadcast = lock(&self.broadcast);
        if let Some(work) = &*broadcast {
            let mut dict = self.dict.write()?;
            *dict = Some(work.take_back()?.ok_or_else(away)?);
            *broadcast = None;
        }
        Ok(())
    }
}

fn away() -> CallError {
    let message = "a stream broadcasts the dictionary; call dcl_work_wait or dcl_stream_synchronize";
    CallError::new(Status::BUSY, message)
}

fn find<'a>(dict: &'a TensorDict, name: &TextPointer) -> Result<&'a Tensor> {
    let name = name.get("name")?;
    dict.get(name).ok_or_else(|| no_tensor(name))
}

fn find_mut<'a>(dict: &'a mut TensorDict, name: &TextPointer) -> Result<&'a mut Tensor> {
    let name = name.get("name")?;
    dict.get_mut(name).ok_or_else(|| no_tensor(name))
}

fn no_tensor(name: &str) -> CallError {
    CallError::invalid_argument(format!("the dictionary has no tensor {name:?}"))
}

/// Parses the `device` of memory.
pub(super) fn space(device: i32) -> Result<MemorySpace> {
    match device {
        DEVICE_HOST => Ok(MemorySpace::Host),
        _ => Ok(MemorySpace::Cuda(unsigned("device (-1 is the host)", device)?)),
    }
}

/// `dcl_dict_tensor_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CDictTensor {
    struct_size: usize,
    data_type: i32,
    device: i32,
    dims: CDims,
    type_name: TextPointer,
    bit_len: i32,
    is_read_only: i32,
    address: VoidPointer,
    strides: InPointer<i64>,
    byte_len: usize,
}

const _: () = assert!(size_of::<CDictTensor>() == CDictTensor::FIRST_BYTE_LEN);

// SAFETY: the fields are numbers and pointers; the size comes first.
unsafe impl SizedStruct for CDictTensor {
    const FIRST_BYTE_LEN: usize = 128;
    const INITIAL: Self = CDictTensor {
        struct_size: size_of::<Self>(),
        data_type: DataType::Float32.number(),
        device: DEVICE_HOST,
        dims: CDims::SCALAR,
        type_name: TextPointer::NULL,
        bit_len: 0,
        is_read_only: 0,
        address: VoidPointer::NULL,
        strides: InPointer::NULL,
        byte_len: 0,
    };
}

impl CDictTensor {
    /// The tensor that the caller describes.
    fn make(&self) -> Result<Tensor> {
        let has_no_address = self.address.address().is_null() && self.byte_len != 0;
        if self.is_read_only != 0 || has_no_address {
            let what = if has_no_address { "strided" } else { "read-only" };
            let message = format!("it describes a {what} tensor; copy the elements by dcl_tensor_dict_read");
            return Err(CallError::invalid_argument(message));
        }
        let shape = self.dims.to_shape()?;
        match (self.data_type, self.strides.is_null()) {
            (OPAQUE_TYPE, true) => self.opaque(&shape),
            (OPAQUE_TYPE, false) => Err(CallError::invalid_argument("a tensor of an opaque type has no strides")),
            (_, true) => Ok(self.buffer(data_type(self.data_type)?, shape.to_dims())?.into()),
            (_, false) => self.strided(&shape),
        }
    }

    /// A buffer in the caller's memory, or of zeros.
    fn buffer(&self, data_type: DataType, dims: Dims) -> Result<Buffer> {
        let space = space(self.device)?;
        if self.address.address().is_null() {
            return Ok(Buffer::zeroed_in(space, data_type, dims)?);
        }
        // SAFETY: the header requires memory that is long enough, and that nothing else writes
        // while the tensor exists.
        Ok(unsafe { Buffer::from_raw_borrowed(space, self.address.address().cast(), data_type, dims)? })
    }

    fn opaque(&self, shape: &Shape) -> Result<Tensor> {
        let (type_name, bit_len) = (self.type_name.get("type_name")?, unsigned("bit_len", self.bit_len)?);
        let opaque = OpaqueType::new(type_name, bit_len)?;
        let bits = shape.element_count() as u128 * u128::from(bit_len);
        let Ok(byte_len) = i64::try_from(bits / 8) else {
            return Err(CallError::invalid_argument(format!("{bits} bits are more than memory can hold")));
        };
        Ok(Tensor::opaque(opaque, shape.to_dims(), self.buffer(DataType::Uint8, Dims::new(&[byte_len])?)?)?)
    }

    fn strided(&self, shape: &Shape) -> Result<Tensor> {
        let data_type = data_type(self.data_type)?;
        let strides = self.strides.array("strides", shape.as_slice().len())?;
        let (before, elements) = extent(shape, &strides)?;
        let start = self.address.for_bytes("address", elements)?;
        let first = start.wrapping_sub(before * data_type.byte_len());
        let dims = Shape::new(&[elements])?.to_dims();
        // SAFETY: as in `buffer`: the elements that the strides reach are in the caller's memory.
        let buffer = unsafe { Buffer::from_raw_borrowed(space(self.device)?, first, data_type, dims)? };
        let strides: Vec<isize> = strides.iter().map(|stride| *stride as isize).collect();
        Ok(Tensor::strided(buffer, before, shape.to_dims(), &strides)?)
    }

    /// Describes a tensor of a dictionary.
    fn of(tensor: &Tensor, type_name: TextPointer) -> Self {
        let element_type = tensor.element_type();
        let (address, is_read_only) = match (tensor.as_buffer(), tensor.as_bytes()) {
            (Some(buffer), _) => (buffer.as_ptr(), 0),
            (None, Ok(bytes)) => (bytes.as_ptr(), 1),
            (None, Err(_)) => (std::ptr::null(), 0),
        };
        CDictTensor {
            data_type: element_type.data_type().map_or(OPAQUE_TYPE, DataType::number),
            device: match tensor.space() {
                MemorySpace::Cuda(ordinal) => count(ordinal as usize),
                _ => DEVICE_HOST,
            },
            dims: tensor.shape().into(),
            type_name,
            bit_len: count(element_type.bit_len() as usize),
            is_read_only,
            address: VoidPointer::to(address),
            byte_len: tensor.byte_len(),
            ..Self::INITIAL
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_new(dict: OutPointer<Handle<CTensorDict>>) -> Status {
    call(|| {
        dict.check("dict")?.set(CTensorDict::handle(TensorDict::new()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_free(dict: Handle<CTensorDict>) -> Status {
    call(|| dict.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_load(path: TextPointer, dict: OutPointer<Handle<CTensorDict>>) -> Status {
    call(|| {
        let (path, dict) = (path.get("path")?, dict.check("dict")?);
        dict.set(CTensorDict::handle(TensorDict::load(path)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_map(path: TextPointer, dict: OutPointer<Handle<CTensorDict>>) -> Status {
    call(|| {
        let (path, dict) = (path.get("path")?, dict.check("dict")?);
        // SAFETY: the header requires that no program changes the file.
        dict.set(CTensorDict::handle(unsafe { TensorDict::map(path)? }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_save(dict: Handle<CTensorDict>, path: TextPointer) -> Status {
    call(|| {
        let (dict, path) = (dict.get()?, path.get("path")?);
        dict.read(|dict| Ok(dict.save(path)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dict_tensor_init(tensor: OutPointer<CDictTensor>, struct_size: usize) -> Status {
    call(|| tensor.initialize("tensor", struct_size))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_insert(
    dict: Handle<CTensorDict>,
    name: TextPointer,
    tensor: InPointer<CDictTensor>,
) -> Status {
    call(|| {
        let (dict, name) = (dict.get()?, name.get("name")?);
        let tensor = tensor.required("tensor")?.make()?;
        // The old tensor is dropped after the dictionary is free for other calls.
        dict.write(|dict| Ok(dict.insert(name, tensor))).map(drop)
    })
}

/// How many elements before the one with the indices 0 the strides reach, and how many in all.
fn extent(shape: &Shape, strides: &[i64]) -> Result<(usize, usize)> {
    if shape.element_count() == 0 {
        return Ok((0, 0));
    }
    let (mut before, mut after) = (0i128, 0i128);
    for (dim, stride) in shape.as_slice().iter().zip(strides) {
        let reach = (*dim as i128 - 1) * i128::from(*stride);
        (before, after) = (before - reach.min(0), after + reach.max(0));
    }
    match (usize::try_from(before), usize::try_from(before + after + 1)) {
        (Ok(before), Ok(elements)) if isize::try_from(elements).is_ok() => Ok((before, elements)),
        _ => Err(CallError::invalid_argument("the strides reach more than memory can hold")),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_remove(dict: Handle<CTensorDict>, name: TextPointer) -> Status {
    call(|| {
        let (dict, name) = (dict.get()?, name.get("name")?);
        dict.write(|dict| dict.remove(name).ok_or_else(|| no_tensor(name))).map(drop)
    })
}

/// Writes one value of a dictionary.
fn value<T>(
    dict: Handle<CTensorDict>,
    output: OutPointer<T>,
    name: &str,
    get: impl FnOnce(&TensorDict) -> Result<T>,
) -> Result<()> {
    let (dict, output) = (dict.get()?, output.check(name)?);
    output.set(dict.read(get)?);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_get_nb_tensors(dict: Handle<CTensorDict>, nb_tensors: OutPointer<i32>) -> Status {
    call(|| value(dict, nb_tensors, "nb_tensors", |dict| Ok(count(dict.len()))))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_get_name(
    dict: Handle<CTensorDict>,
    index: i32,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let to = TextDestination { buffer, capacity, length };
        dict.get()?.read(|dict| to.write_nth("tensor", index, dict.iter().map(|(name, _)| name)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_get_tensor(
    dict: Handle<CTensorDict>,
    name: TextPointer,
    tensor: OutPointer<CDictTensor>,
) -> Status {
    call(|| {
        let (object, tensor) = (dict.get()?, tensor.structure("tensor")?);
        tensor.set(object.read(|dict| {
            let found = find(dict, &name)?;
            Ok(CDictTensor::of(found, object.type_name(found.element_type())))
        })?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_read(
    dict: Handle<CTensorDict>,
    name: TextPointer,
    byte_offset: usize,
    bytes: VoidPointer,
    byte_len: usize,
) -> Status {
    call(|| {
        let dict = dict.get()?;
        dict.read(|dict| {
            let tensor = find(dict, &name)?;
            bytes.fill("bytes", byte_len, |bytes| Ok(tensor.read(byte_offset, bytes)?))
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_write(
    dict: Handle<CTensorDict>,
    name: TextPointer,
    byte_offset: usize,
    bytes: ConstVoidPointer,
    byte_len: usize,
) -> Status {
    call(|| {
        let (dict, bytes) = (dict.get()?, bytes.get("bytes", byte_len)?);
        dict.write(|dict| match find_mut(dict, &name)?.as_mut_buffer() {
            Some(buffer) => Ok(buffer.write(byte_offset, bytes)?),
            None => Err(CallError::new(Status::INVALID_BUFFER, "the tensor is strided or read-only")),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_get_nb_metadata(dict: Handle<CTensorDict>, nb_metadata: OutPointer<i32>) -> Status {
    call(|| value(dict, nb_metadata, "nb_metadata", |dict| Ok(count(dict.metadata().len()))))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_get_metadata_key(
    dict: Handle<CTensorDict>,
    index: i32,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let to = TextDestination { buffer, capacity, length };
        dict.get()?.read(|dict| to.write_nth("text", index, dict.metadata().keys().map(String::as_str)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_get_metadata(
    dict: Handle<CTensorDict>,
    key: TextPointer,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let (dict, key) = (dict.get()?, key.get("key")?);
        dict.read(|dict| match dict.metadata().get(key) {
            Some(text) => TextDestination { buffer, capacity, length }.write(text),
            None => Err(CallError::invalid_argument(format!("the dictionary has no text {key:?}"))),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_dict_set_metadata(dict: Handle<CTensorDict>, key: TextPointer, text: TextPointer) -> Status {
    call(|| {
        let (dict, key, text) = (dict.get()?, key.get("key")?, text.optional("text")?);
        dict.write(|dict| {
            match text {
                Some(text) => dict.metadata_mut().insert(key.to_owned(), text.to_owned()),
                None => dict.metadata_mut().remove(key),
            };
            Ok(())
        })
    })
}
