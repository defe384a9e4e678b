//! Tensors in `.npy` files. Types that numpy does not have are stored as integers: bfloat16 as
//! uint16, float8 as uint8.

mod header;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use distcollective::system::NewFile;
use distcollective::tensor::Shape;
use distcollective::{Buffer, DataType};
use indicatif::ProgressBar;

use crate::progress::Counted;
use header::{Descriptor, Header};

/// Reads a file as the wanted type, or without one as the type that the file has. The bar counts
/// the file's bytes.
///
/// Nothing is allocated for the data before the header fits the file's length. The data go into
/// the buffer directly, so that a file takes as much memory as it is long.
pub fn read(path: &Path, wanted: Option<DataType>, bar: &ProgressBar) -> Result<Buffer, String> {
    read_file(path, wanted, bar).map_err(|error| format!("{}: {error}", path.display()))
}

fn read_file(path: &Path, wanted: Option<DataType>, bar: &ProgressBar) -> Result<Buffer, String> {
    let metadata = path.metadata().map_err(|e| e.to_string())?;
    // To open a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err("it is not a regular file, whose length is known; write the array into one".to_owned());
    }
    let file = File::open(path).map_err(|e| e.to_string())?;
    read_from(&mut Counted { file, bar }, metadata.len(), wanted)
}

/// Reads a file of `file_len` bytes.
fn read_from(reader: &mut impl Read, file_len: u64, wanted: Option<DataType>) -> Result<Buffer, String> {
    let (header, header_len) = Header::read(reader)?;
    let data_type = header.descriptor.data_type(wanted)?;
    let shape = header.shape;
    let (promised, follow) = (shape.byte_len(data_type) as u64, file_len.saturating_sub(header_len));
    if promised != follow {
        return Err(format!(
            "its header promises {data_type} {shape}, {promised} bytes of data, and {follow} follow; the file was cut or changed"
        ));
    }
    let mut buffer = Buffer::zeroed(data_type, shape).map_err(|e| e.to_string())?;
    let elements = buffer.as_mut_bytes().map_err(|e| e.to_string())?;
    let size = data_type.byte_len();
    let read = if header.fortran_order && shape.dim_count() > 1 && !elements.is_empty() {
        read_columns(reader, &shape, size, elements)
    } else {
        reader.read_exact(elements)
    };
    read.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => "it became shorter while it was read".to_owned(),
        _ => error.to_string(),
    })?;
    if header.descriptor.big_endian && size > 1 {
        elements.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    Ok(buffer)
}

/// Reads elements in Fortran's order, in which the first index changes fastest, and puts each to
/// its place in row-major order. There is at least one element.
fn read_columns(reader: &mut impl Read, shape: &Shape, size: usize, elements: &mut [u8]) -> std::io::Result<()> {
    let dims = shape.as_slice();
    // In bytes: how far apart neighbours along each dimension are.
    let strides: Vec<usize> = (0..dims.len()).map(|i| dims[i + 1..].iter().product::<usize>() * size).collect();
    let (mut index, mut at) = (vec![0; dims.len()], 0);
    // A multiple of each element's size.
    let mut piece = [0; 64 << 10];
    let mut left = elements.len();
    while left > 0 {
        let read = left.min(piece.len());
        reader.read_exact(&mut piece[..read])?;
        left -= read;
        for element in piece[..read].chunks_exact(size) {
            elements[at..at + size].copy_from_slice(element);
            for ((index, dim), stride) in index.iter_mut().zip(dims).zip(&strides) {
                *index += 1;
                at += stride;
                if *index < *dim {
                    break;
                }
                *index = 0;
                at -= dim * stride;
            }
        }
    }
    Ok(())
}

/// Writes a file, which takes the place of an old one when it is whole. The bar counts the bytes.
pub fn write(path: &Path, buffer: &Buffer, bar: &ProgressBar) -> Result<(), String> {
    write_file(path, buffer, bar).map_err(|error| format!("{}: {error}", path.display()))
}

fn write_file(path: &Path, buffer: &Buffer, bar: &ProgressBar) -> Result<(), String> {
    let data_type = buffer.data_type();
    let Some(descriptor) = Descriptor::of(data_type) else {
        return Err(format!("{data_type} is kept in no .npy file"));
    };
    let header = Header { descriptor, fortran_order: false, shape: buffer.shape() };
    let data = buffer.as_bytes().map_err(|e| e.to_string())?;
    let write = || {
        let mut writer = Counted { file: NewFile::create(path)?, bar };
        writer.write_all(&header.to_bytes())?;
        writer.write_all(data)?;
        writer.file.finish()
    };
    write().map_err(|e: std::io::Error| e.to_string())
}
