//! Files of safetensors: eight bytes with the length of the header, the header in JSON, the
//! elements. Nothing in a file is trusted.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::ptr::{NonNull, null_mut, slice_from_raw_parts_mut};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::element_type::{ElementType, OpaqueType};
use super::schema::{Schema, TensorSchema};
use super::{Tensor, TensorDict, of_tensor};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail, error};
use crate::memory::{MemorySpace, ReadOnlyMemory};
use crate::shape::Shape;
use crate::util::free_memory;
use crate::util::new_file::NewFile;

/// The length of the header's length, in bytes.
const LENGTH_BYTES: usize = 8;

/// The longest header, in bytes, that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// How many bytes are copied at once from a tensor that is not in memory as the file has it.
const COPY_BYTES: usize = 8 << 20;

/// The library's types in the format.
const KNOWN: [(Dtype, DataType); 13] = [
    (Dtype::F32, DataType::Float32),
    (Dtype::F16, DataType::Float16),
    (Dtype::BF16, DataType::Bfloat16),
    (Dtype::F8_E4M3, DataType::Float8E4M3),
    (Dtype::F8_E5M2, DataType::Float8E5M2),
    (Dtype::I64, DataType::Int64),
    (Dtype::I32, DataType::Int32),
    (Dtype::I8, DataType::Int8),
    (Dtype::U8, DataType::Uint8),
    (Dtype::BOOL, DataType::Bool),
    (Dtype::F64, DataType::Float64),
    (Dtype::U32, DataType::Uint32),
    (Dtype::U64, DataType::Uint64),
];

/// # Files
///
/// Tensors of safetensors files have the types of [`DataType`], or opaque ones with the format's
/// names.
impl TensorDict {
    /// Reads a safetensors file into memory. The tensors are in the order in which the file has
    /// their elements.
    ///
    /// # Errors
    ///
    /// Each names the file.
    /// - `InvalidArgument`: the file is not a safetensors file, or was cut or changed; a tensor has
    ///   more than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
    /// - `System`: the file cannot be read, or memory cannot hold its tensors.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        load(path).map_err(|e| about(path, e))
    }

    /// Maps a safetensors file. Elements are read from the file when they are used, and take no
    /// memory of this process: for the source of a broadcast. As a receiver's, such tensors are
    /// replaced.
    ///
    /// # Safety
    ///
    /// Until all tensors of the dictionary are dropped, no program changes the file or makes it
    /// shorter. Replacing it by another file of its name, as [`save`](Self::save) does, is no
    /// change.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub unsafe fn map(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // SAFETY: the caller's promise.
        unsafe { map(path) }.map_err(|e| about(path, e))
    }

    /// Writes a safetensors file, which takes the place of one of that name when it is complete.
    /// The elements are in the order of the tensors, larger types first, so that each is aligned.
    ///
    /// # Errors
    ///
    /// Each names the file, which stays as it was.
    /// - `InvalidArgument`: an opaque type is none of the format's; a tensor has the name
    ///   `__metadata__`.
    /// - `System`: the file cannot be written, or a GPU fails.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        save(self, path).map_err(|e| about(path, e))
    }
}

fn about(path: &Path, error: Error) -> Error {
    error.about(|| path.display().to_string())
}

fn unreadable(error: std::io::Error) -> Error {
    error!(System, "it cannot be read: {error}").with_source(error)
}

/// What a header says, checked against the length of the file.
struct Header {
    /// In the order of the elements. The format's own check has found that they leave no gap.
    schema: Schema,
    /// The number of bytes before the elements.
    byte_len: usize,
}

impl Header {
    /// Reads a header from the beginning of a file of `file_len` bytes.
    fn read(reader: &mut impl Read, file_len: u64) -> Result<Self> {
        let Some(left) = file_len.checked_sub(LENGTH_BYTES as u64) else {
            bail!(
                InvalidArgument,
                "it has {file_len} bytes; a safetensors file begins with the 8 of its header's length"
            );
        };
        let mut length = [0; LENGTH_BYTES];
        reader.read_exact(&mut length).map_err(unreadable)?;
        let header_len = u64::from_le_bytes(length);
        if header_len > MAX_HEADER_BYTES.min(left) {
            bail!(
                InvalidArgument,
                "its first 8 bytes promise a header of {header_len} bytes, and {left} follow (a header has at most \
                 {MAX_HEADER_BYTES}); it is no safetensors file, or was cut"
            );
        }
        let mut json = vec![0; header_len as usize];
        reader.read_exact(&mut json).map_err(unreadable)?;
        let metadata: Metadata = serde_json::from_slice(&json)
            .map_err(|e| error!(InvalidArgument, "its header cannot be read: {e}").with_source(e))?;
        let (promised, follow) = (metadata.data_len() as u64, left - header_len);
        if promised != follow {
            bail!(
                InvalidArgument,
                "its header promises {promised} bytes of elements, and {follow} follow; the file was cut or changed"
            );
        }
        Self::of(&metadata, LENGTH_BYTES + json.len())
    }

    fn of(metadata: &Metadata, byte_len: usize) -> Result<Self> {
        let mut infos: Vec<(String, &TensorInfo)> = metadata.tensors().into_iter().collect();
        // Tensors without elements may share a place; then their names decide.
        infos.sort_by(|(a, of_a), (b, of_b)| (of_a.data_offsets, a).cmp(&(of_b.data_offsets, b)));
        let tensor = |(name, info): (String, &TensorInfo)| {
            let tensor = element_type_of(info.dtype).and_then(|t| TensorSchema::new(name.clone(), t, &info.shape));
            tensor.map_err(|e| of_tensor(&name, e))
        };
        let tensors = infos.into_iter().map(tensor).collect::<Result<_>>()?;
        let metadata = metadata.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Header { schema: Schema { tensors, metadata }, byte_len })
    }

    /// The dictionary, whose tensors `make` makes of type, shape and place in the file.
    fn into_dict(self, mut make: impl FnMut(ElementType, Shape, usize) -> Result<Tensor>) -> Result<TensorDict> {
        let mut dict = TensorDict { metadata: self.schema.metadata, ..TensorDict::new() };
        let mut start = self.byte_len;
        for TensorSchema { name, element_type, shape, byte_len } in self.schema.tensors {
            dict.insert(name, make(element_type, shape, start)?);
            start += byte_len;
        }
        Ok(dict)
    }
}

fn element_type_of(dtype: Dtype) -> Result<ElementType> {
    match KNOWN.iter().find(|(known, _)| *known == dtype) {
        Some((_, data_type)) => Ok((*data_type).into()),
        None => Ok(OpaqueType::new(dtype.to_string(), dtype.bitsize() as u32)?.into()),
    }
}

/// Opens a regular file, and gives its length. To open a pipe would wait for its writer.
fn open(path: &Path) -> Result<(File, u64)> {
    let metadata = path.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        bail!(InvalidArgument, "it is not a regular file");
    }
    Ok((File::open(path).map_err(unreadable)?, metadata.len()))
}

fn load(path: &Path) -> Result<TensorDict> {
    let (file, file_len) = open(path)?;
    let mut reader = BufReader::new(file);
    let header = Header::read(&mut reader, file_len)?;
    free_memory::check("memory for its tensors", file_len - header.byte_len as u64)?;
    header.into_dict(|element_type, shape, _| {
        let mut tensor = Tensor::zeroed(element_type, shape, MemorySpace::Host, None)?;
        if let Some(buffer) = tensor.as_mut_buffer() {
            reader.read_exact(buffer.as_mut_bytes()?).map_err(unreadable)?;
        }
        Ok(tensor)
    })
}

/// # Safety
///
/// As [`TensorDict::map`].
unsafe fn map(path: &Path) -> Result<TensorDict> {
    let (file, file_len) = open(path)?;
    let header = Header::read(&mut BufReader::new(&file), file_len)?;
    if file.metadata().map_err(unreadable)?.len() < file_len {
        bail!(InvalidArgument, "it became shorter while it was read");
    }
    let len = file_len as usize;
    // SAFETY: a new mapping changes no existing one.
    let base = unsafe { rustix::mm::mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    let unmapped = |e| error!(System, "it cannot be mapped: {e}").with_source(std::io::Error::from(e));
    let base = base.map_err(unmapped)?;
    let bytes = NonNull::new(slice_from_raw_parts_mut(base.cast(), len));
    let mapped = MappedFile(bytes.expect("the kernel maps nothing at address 0 by itself"));
    // What is read soon can come from the disk early; without the hint it only comes later.
    // SAFETY: the range is this mapping, whose bytes stay.
    let _ = unsafe { rustix::mm::madvise(base, len, Advice::Sequential) };
    let file: ReadOnlyMemory = Arc::new(mapped);
    header.into_dict(|element_type, shape, start| Tensor::read_only(element_type, shape, &file, start))
}

/// The bytes of a file, which is mapped until this is dropped. No program changes them meanwhile.
struct MappedFile(NonNull<[u8]>);

// SAFETY: nothing writes the bytes.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped as long as `self` lives, and do not change.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no reference outlives `self`. An error would leak
        // it.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.0.len()) };
    }
}

/// The format's type of a tensor.
fn dtype_of(element_type: &ElementType) -> Result<Dtype> {
    let dtype = match element_type {
        ElementType::Known(data_type) => KNOWN.iter().find(|(_, known)| known == data_type).map(|(dtype, _)| *dtype),
        ElementType::Opaque(opaque) => serde_json::from_value(opaque.name().into()).ok(),
    };
    match dtype.filter(|dtype| dtype.bitsize() == element_type.bit_len() as usize) {
        Some(dtype) => Ok(dtype),
        None => bail!(
            InvalidArgument,
            "element type {element_type} of {} bits is none of the format's",
            element_type.bit_len()
        ),
    }
}

fn save(dict: &TensorDict, path: &Path) -> Result<()> {
    let mut tensors: Vec<(&str, &Tensor)> = dict.iter().collect();
    tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.element_type().bit_len()));
    let (mut infos, mut end) = (Vec::new(), 0);
    for (name, tensor) in &tensors {
        if *name == "__metadata__" {
            bail!(InvalidArgument, "a tensor has the name {name:?}, which the format keeps for texts");
        }
        let dtype = dtype_of(tensor.element_type()).map_err(|e| of_tensor(name, e))?;
        let start = end;
        end += tensor.byte_len();
        let info = TensorInfo { dtype, shape: tensor.shape().as_slice().to_vec(), data_offsets: (start, end) };
        infos.push(((*name).to_owned(), info));
    }
    let texts = dict.metadata();
    let texts = (!texts.is_empty()).then(|| texts.iter().map(|(key, text)| (key.clone(), text.clone())).collect());
    let no_header = |e: &dyn std::fmt::Display| error!(InvalidArgument, "its header cannot be written: {e}");
    let metadata = Metadata::new(texts, infos).map_err(|e| no_header(&e))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| no_header(&e))?;
    // The elements begin at a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
    if header.len() as u64 > MAX_HEADER_BYTES {
        bail!(InvalidArgument, "its header would have {} bytes; the most are {MAX_HEADER_BYTES}", header.len());
    }
    let mut file = NewFile::create(path).map_err(unwritable)?;
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(unwritable)?;
    file.write_all(&header).map_err(unwritable)?;
    tensors.iter().try_for_each(|(_, tensor)| write_tensor(tensor, &mut file))?;
    file.finish().map_err(unwritable)
}

fn write_tensor(tensor: &Tensor, file: &mut NewFile) -> Result<()> {
    if let Ok(bytes) = tensor.as_bytes() {
        return file.write_all(bytes).map_err(unwritable);
    }
    let mut copy = vec![0; COPY_BYTES.min(tensor.byte_len())];
    for offset in (0..tensor.byte_len()).step_by(COPY_BYTES) {
        let bytes = &mut copy[..COPY_BYTES.min(tensor.byte_len() - offset)];
        tensor.read(offset, bytes)?;
        file.write_all(bytes).map_err(unwritable)?;
    }
    Ok(())
}

fn unwritable(error: std::io::Error) -> Error {
    error!(System, "it cannot be written: {error}").with_source(error)
}
