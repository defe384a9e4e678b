//! Frames: a message on a connection is the number of its bytes (4 bytes, little endian) and the
//! message in [postcard's format](https://postcard.jamesmunns.com/wire-format).

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, error};

/// How many bytes say how long a message is.
pub(crate) const LENGTH_BYTES: usize = size_of::<u32>();

/// A message's bytes. No message of a type is the beginning of another message of that type.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|e| error!(System, "a message cannot be encoded").with_source(e))
}

/// A message with its length before it.
pub(crate) fn encode_frame(value: &impl Serialize) -> Result<Vec<u8>> {
    let body = encode(value)?;
    let mut bytes = Vec::with_capacity(LENGTH_BYTES + body.len());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    Ok(bytes)
}

/// The length of a message, which the other end wrote. It is checked before memory is allocated.
pub(crate) fn body_len(length: [u8; LENGTH_BYTES], longest: usize) -> io::Result<usize> {
    match u32::from_le_bytes(length) as usize {
        len if (1..=longest).contains(&len) => Ok(len),
        len => Err(malformed(format!("a message of {len} bytes came, and 1 to {longest} are allowed"))),
    }
}

/// Decodes a message. All of its bytes have to belong to it.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(malformed("a message came that cannot be understood")),
    }
}

/// The error of bytes that are no message: the other end is of another version, or is no process
/// of this library.
fn malformed(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text.into())
}
