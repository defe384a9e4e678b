//! Tensors in `.npy` files. Types that numpy does not have are stored as integers: bfloat16 as
//! uint16, float8 as uint8.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use distcollective::tensor::Dims;
use distcollective::{Buffer, DataType};
use indicatif::ProgressBar;
use ndarray::{ArrayD, IxDyn};
use ndarray_npy::{
    ReadDataError, ReadNpyError, ReadNpyExt, ReadableElement, WritableElement, WriteDataError, WriteNpyExt,
};
use py_literal::Value;

use crate::progress::Counted;

/// An element of a file, as little-endian bytes.
trait Stored: ReadableElement + WritableElement + Copy {
    /// Numpy's name of the type.
    const NAME: &'static str;
    fn bytes(self) -> impl IntoIterator<Item = u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! stored {
    ($($type:ty: $name:literal),*) => { $(
        impl Stored for $type {
            const NAME: &'static str = $name;

            fn bytes(self) -> impl IntoIterator<Item = u8> {
                self.to_le_bytes()
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(0 as $type, <$type>::from_le_bytes)
            }
        }
    )* };
}

stored!(f32: "float32", i64: "int64", i32: "int32", i8: "int8", u8: "uint8", u16: "uint16");

impl Stored for bool {
    const NAME: &'static str = "bool";

    fn bytes(self) -> impl IntoIterator<Item = u8> {
        [u8::from(self)]
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.iter().any(|byte| *byte != 0)
    }
}

/// A float16, which the crate ndarray-npy does not have.
#[derive(Clone, Copy)]
struct Half(u16);

impl Stored for Half {
    const NAME: &'static str = "float16";

    fn bytes(self) -> impl IntoIterator<Item = u8> {
        self.0.to_le_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Half(u16::from_bytes(bytes))
    }
}

impl ReadableElement for Half {
    fn read_to_end_exact_vec<R: Read>(
        mut reader: R,
        descriptor: &Value,
        len: usize,
    ) -> Result<Vec<Self>, ReadDataError> {
        if !matches!(descriptor, Value::String(text) if text == "<f2") {
            return Err(ReadDataError::WrongDescriptor(descriptor.clone()));
        }
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        match bytes.len().checked_sub(2 * len) {
            None => Err(ReadDataError::MissingData),
            Some(0) => Ok(bytes.chunks(2).map(Half::from_bytes).collect()),
            Some(extra) => Err(ReadDataError::ExtraBytes(extra)),
        }
    }
}

impl WritableElement for Half {
    fn type_descriptor() -> Value {
        Value::String("<f2".to_owned())
    }

    fn write<W: Write>(&self, mut writer: W) -> Result<(), WriteDataError> {
        Ok(writer.write_all(&self.0.to_le_bytes())?)
    }

    fn write_slice<W: Write>(slice: &[Self], mut writer: W) -> Result<(), WriteDataError> {
        let bytes: Vec<u8> = slice.iter().flat_map(|half| half.0.to_le_bytes()).collect();
        Ok(writer.write_all(&bytes)?)
    }
}

/// Reads a file as the wanted type, or without one as the type that the file has. The bar counts
/// the file's bytes.
pub fn read(path: &Path, wanted: Option<DataType>, bar: &ProgressBar) -> Result<Buffer, String> {
    let types: Vec<DataType> = match wanted {
        Some(data_type) => vec![data_type],
        // Without a wanted type, a file of integers holds integers.
        None => DataType::ALL.into_iter().filter(|t| !is_kept_as_integer(*t)).collect(),
    };
    for data_type in &types {
        let found = match data_type {
            DataType::Float32 => read_as::<f32>(path, *data_type, bar),
            DataType::Float16 => read_as::<Half>(path, *data_type, bar),
            DataType::Bfloat16 => read_as::<u16>(path, *data_type, bar),
            DataType::Int64 => read_as::<i64>(path, *data_type, bar),
            DataType::Int32 => read_as::<i32>(path, *data_type, bar),
            DataType::Int8 => read_as::<i8>(path, *data_type, bar),
            DataType::Uint8 | DataType::Float8E4M3 | DataType::Float8E5M2 => read_as::<u8>(path, *data_type, bar),
            DataType::Bool => read_as::<bool>(path, *data_type, bar),
            other => Err(format!("{other} is kept in no .npy file")),
        };
        if let Some(buffer) = found.map_err(|e| format!("{}: {e}", path.display()))? {
            return Ok(buffer);
        }
    }
    Err(match wanted {
        Some(data_type) => {
            format!("{}: it does not hold {}, as --dtype {data_type} wants", path.display(), kept_as(data_type))
        }
        None => format!(
            "{}: its type is not one of float32, float16, int64, int32, int8, uint8, bool (little endian); bfloat16 is kept as \
             uint16 and float8 as uint8, with --dtype",
            path.display()
        ),
    })
}

fn is_kept_as_integer(data_type: DataType) -> bool {
    matches!(data_type, DataType::Bfloat16 | DataType::Float8E4M3 | DataType::Float8E5M2)
}

/// Numpy's name of the type in which files store a type.
fn kept_as(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Bfloat16 => u16::NAME,
        DataType::Float8E4M3 | DataType::Float8E5M2 => u8::NAME,
        other => other.name(),
    }
}

/// `None` if the file has another type.
fn read_as<T: Stored>(path: &Path, data_type: DataType, bar: &ProgressBar) -> Result<Option<Buffer>, String> {
    let file = File::open(path).map_err(|e| e.to_string())?;
    let before = bar.position();
    let array = match ArrayD::<T>::read_npy(BufReader::new(Counted { file, bar })) {
        Ok(array) => array,
        Err(ReadNpyError::WrongDescriptor(_)) => {
            bar.set_position(before);
            return Ok(None);
        }
        Err(error) => return Err(error.to_string()),
    };
    let dims: Vec<i64> = array.shape().iter().map(|&d| d as i64).collect();
    let dims = Dims::new(&dims).map_err(|e| e.to_string())?;
    let mut buffer = Buffer::zeroed(data_type, dims).map_err(|e| e.to_string())?;
    // `iter` goes in row-major order, whatever order the file has.
    let bytes = buffer.as_mut_bytes().map_err(|e| e.to_string())?;
    for (to, byte) in bytes.iter_mut().zip(array.iter().flat_map(|element| element.bytes())) {
        *to = byte;
    }
    Ok(Some(buffer))
}

/// Writes a file. The bar counts the file's bytes.
pub fn write(path: &Path, buffer: &Buffer, bar: &ProgressBar) -> Result<(), String> {
    let written = match buffer.data_type() {
        DataType::Float32 => write_as::<f32>(path, buffer, bar),
        DataType::Float16 => write_as::<Half>(path, buffer, bar),
        DataType::Bfloat16 => write_as::<u16>(path, buffer, bar),
        DataType::Int64 => write_as::<i64>(path, buffer, bar),
        DataType::Int32 => write_as::<i32>(path, buffer, bar),
        DataType::Int8 => write_as::<i8>(path, buffer, bar),
        DataType::Uint8 | DataType::Float8E4M3 | DataType::Float8E5M2 => write_as::<u8>(path, buffer, bar),
        DataType::Bool => write_as::<bool>(path, buffer, bar),
        other => Err(format!("{other} is kept in no .npy file")),
    };
    written.map_err(|e| format!("{}: {e}", path.display()))
}

fn write_as<T: Stored>(path: &Path, buffer: &Buffer, bar: &ProgressBar) -> Result<(), String> {
    let bytes = buffer.as_bytes().map_err(|e| e.to_string())?;
    let elements = bytes.chunks(buffer.data_type().byte_len()).map(T::from_bytes).collect();
    let array = ArrayD::from_shape_vec(IxDyn(buffer.shape().as_slice()), elements).map_err(|e| e.to_string())?;
    let file = File::create(path).map_err(|e| e.to_string())?;
    let mut writer = BufWriter::new(Counted { file, bar });
    array.write_npy(&mut writer).map_err(|e| e.to_string())?;
    writer.flush().map_err(|e| e.to_string())
}
