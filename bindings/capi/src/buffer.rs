//! `dcl_buffer_*`, and symmetric memory of a communicator.

use std::ffi::c_void;

use dcl::tensor::Dims;
use dcl::{Buffer, DataType};

use super::arguments::{ConstVoidPointer, OutPointer, VoidPointer};
use super::communicator::CCommunicator;
use super::handle::{Handle, Object, TryRwLock};
use super::status::{CallError, Result, Status, call};
use super::tensor_dict::space;

/// `dcl_buffer_t`.
pub(super) struct CBuffer {
    buffer: TryRwLock<Buffer, CBuffer>,
    byte_len: usize,
}

impl Object for CBuffer {
    const TYPE: &'static str = "dcl_buffer_t";
}

impl CBuffer {
    pub(super) fn handle(buffer: impl Into<Buffer>) -> Handle<Self> {
        let buffer = buffer.into();
        Handle::new(CBuffer { byte_len: buffer.byte_len(), buffer: TryRwLock::new(buffer) })
    }
}

fn dims(byte_len: usize) -> Result<Dims> {
    match i64::try_from(byte_len) {
        Ok(byte_len) => Ok(Dims::new(&[byte_len])?),
        Err(_) => Err(CallError::invalid_argument(format!("{byte_len} bytes are more than memory can hold"))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_communicator_allocate(
    communicator: Handle<CCommunicator>,
    byte_len: usize,
    buffer: OutPointer<Handle<CBuffer>>,
) -> Status {
    call(|| {
        let (communicator, buffer) = (communicator.get()?, buffer.check("buffer")?);
        let made = communicator.communicator.allocate(DataType::Uint8, dims(byte_len)?)?;
        buffer.set(CBuffer::handle(made));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_buffer_new(device: i32, byte_len: usize, buffer: OutPointer<Handle<CBuffer>>) -> Status {
    call(|| {
        let buffer = buffer.check("buffer")?;
        let made = Buffer::zeroed_in(space(device)?, DataType::Uint8, dims(byte_len)?)?;
        buffer.set(CBuffer::handle(made));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_buffer_free(buffer: Handle<CBuffer>) -> Status {
    call(|| buffer.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_buffer_get_address(buffer: Handle<CBuffer>, address: OutPointer<*mut c_void>) -> Status {
    call(|| {
        let (buffer, address) = (buffer.get()?, address.check("address")?);
        address.set(buffer.buffer.write()?.as_mut_ptr().cast());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_buffer_get_byte_len(buffer: Handle<CBuffer>, byte_len: OutPointer<usize>) -> Status {
    call(|| {
        let (buffer, byte_len) = (buffer.get()?, byte_len.check("byte_len")?);
        byte_len.set(buffer.byte_len);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_buffer_read(
    buffer: Handle<CBuffer>,
    byte_offset: usize,
    bytes: VoidPointer,
    byte_len: usize,
) -> Status {
    call(|| {
        let buffer = buffer.get()?;
        let bytes = bytes.for_bytes("bytes", byte_len)?;
        // SAFETY: C's promise (see `arguments`): `byte_len` bytes are valid for writing. The
        // address is not NULL unless `byte_len` is 0.
        unsafe { buffer.buffer.read()?.copy_to(byte_offset, bytes, byte_len)? };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_buffer_write(
    buffer: Handle<CBuffer>,
    byte_offset: usize,
    bytes: ConstVoidPointer,
    byte_len: usize,
) -> Status {
    call(|| {
        let buffer = buffer.get()?;
        let bytes = bytes.get("bytes", byte_len)?.as_ptr();
        // SAFETY: the slice has `byte_len` bytes, and no other thread writes them.
        unsafe { buffer.buffer.write()?.copy_from(byte_offset, bytes, byte_len)? };
        Ok(())
    })
}
