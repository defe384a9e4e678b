//! The format of bytes that are stored and read back: plans and serialized layers. Nothing is
//! trusted when they are read. Layout, little endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic |
//! | 4 | format version |
//! | 1 + n | the version of the crate that wrote them: length and text |
//! | 8 | length of the body |
//! | 32 | SHA-256 of everything else |
//! | … | body: a value in [postcard](https://postcard.jamesmunns.com/wire-format) |

use std::fs::File;
use std::io::{self, Read};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result, bail, error};
use crate::util::free_memory;

const CHECKSUM_BYTES: usize = 32;

/// The most bytes before the body.
const LONGEST_HEADER: u64 = 8 + 4 + 1 + 255 + 8 + CHECKSUM_BYTES as u64;

/// What a header says, and what follows it.
struct StoredHeader<'a> {
    body_len: u64,
    stored: &'a [u8],
    rest: &'a [u8],
}

/// A kind of stored bytes.
pub(crate) struct StoredFormat {
    pub(crate) magic: [u8; 8],
    /// Incremented whenever the layout of the body changes.
    pub(crate) version: u32,
    /// The noun by which errors call them: `plan`.
    pub(crate) noun: &'static str,
}

impl StoredFormat {
    /// Encodes a value, with its header.
    pub(crate) fn write(&self, value: &impl Serialize) -> Result<Vec<u8>> {
        let noun = self.noun;
        let body =
            postcard::to_stdvec(value).map_err(|e| error!(System, "the {noun} cannot be written").with_source(e))?;
        Ok(self.seal(&body))
    }

    /// A body with its header before it.
    pub(crate) fn seal(&self, body: &[u8]) -> Vec<u8> {
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        let mut bytes = Vec::with_capacity(body.len() + 128);
        bytes.extend(self.magic);
        bytes.extend(self.version.to_le_bytes());
        bytes.push(version.len() as u8);
        bytes.extend(version);
        bytes.extend((body.len() as u64).to_le_bytes());
        let checksum = checksum(&bytes, body);
        bytes.extend(checksum);
        bytes.extend(body);
        bytes
    }

    /// Decodes a value. All bytes have to belong to it.
    pub(crate) fn read<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T> {
        let noun = self.noun;
        let (value, left) = postcard::take_from_bytes(self.open(bytes)?)
            .map_err(|e| error!(InvalidPlan, "the {noun}'s body cannot be read").with_source(e))?;
        if !left.is_empty() {
            bail!(InvalidPlan, "the {noun}'s body has {} bytes too many", left.len());
        }
        Ok(value)
    }

    /// Reads such bytes, and not much more than their header promises, from what may have no end.
    /// [`read`](Self::read) says whether they are right.
    pub(crate) fn bytes_of(&self, mut file: File, unreadable: impl Fn(io::Error) -> Error) -> Result<Vec<u8>> {
        let ends = file.metadata().is_ok_and(|file| file.is_file());
        let mut bytes = Vec::new();
        file.by_ref().take(LONGEST_HEADER).read_to_end(&mut bytes).map_err(&unreadable)?;
        let Ok(StoredHeader { body_len, rest, .. }) = self.header(&bytes) else { return Ok(bytes) };
        let missing = body_len.saturating_sub(rest.len() as u64);
        // A file says by its end that it is damaged.
        if !ends {
            free_memory::check(&format!("memory for the {}", self.noun), missing)?;
        }
        // With a byte too many, the bytes are wrong.
        file.take(missing.saturating_add(1)).read_to_end(&mut bytes).map_err(&unreadable)?;
        Ok(bytes)
    }

    /// The body, after its header and checksum have been checked.
    pub(crate) fn open<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let noun = self.noun;
        let StoredHeader { body_len, stored, rest } = self.header(bytes)?;
        if rest.len() as u64 != body_len {
            bail!(
                InvalidPlan,
                "the {noun} is damaged: its header promises {body_len} bytes after it, and {} follow",
                rest.len()
            );
        }
        let header = &bytes[..bytes.len() - rest.len() - CHECKSUM_BYTES];
        if checksum(header, rest) != stored {
            bail!(InvalidPlan, "the {noun} is damaged: its checksum does not fit its {} bytes", bytes.len());
        }
        Ok(rest)
    }

    fn header<'a>(&self, bytes: &'a [u8]) -> Result<StoredHeader<'a>> {
        let noun = self.noun;
        if bytes.is_empty() {
            bail!(InvalidPlan, "the {noun} is empty: there are no bytes");
        }
        let beginning = &bytes[..bytes.len().min(self.magic.len())];
        // Bytes that were cut may have a part of the magic only.
        if !self.magic.starts_with(beginning) {
            bail!(InvalidPlan, "these bytes are no distcollective {noun}: they begin with {beginning:02x?}");
        }
        let mut rest = bytes;
        let mut take = |len: usize, what: &str| -> Result<&[u8]> {
            match rest.split_at_checked(len) {
                Some((taken, left)) => {
                    rest = left;
                    Ok(taken)
                }
                None => bail!(InvalidPlan, "the {noun} ends after {} bytes, within its {what}", bytes.len()),
            }
        };
        take(self.magic.len(), "magic")?;
        let format = take(4, "format version")?.try_into().map_or(0, u32::from_le_bytes);
        let version_len = take(1, "crate version")?[0];
        let version = String::from_utf8_lossy(take(version_len.into(), "crate version")?).into_owned();
        if format != self.version {
            bail!(
                InvalidPlan,
                "the {noun} has format {format}, written by distcollective {version:?}; this is {}, which reads format {}",
                env!("CARGO_PKG_VERSION"),
                self.version
            );
        }
        let body_len = take(8, "length")?.try_into().map_or(0, u64::from_le_bytes);
        let stored = take(CHECKSUM_BYTES, "checksum")?;
        Ok(StoredHeader { body_len, stored, rest })
    }
}

fn checksum(header: &[u8], body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    Sha256::new().chain_update(header).chain_update(body).finalize().into()
}
