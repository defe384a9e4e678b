//! The id by which ranks on GPUs find each other.

use std::fmt;

use crate::error::{Result, error};

/// The id by which the ranks of a communicator on GPUs find each other: an `ncclUniqueId`. One rank
/// makes it and sends it to the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NcclId(pub(super) [u8; Self::BYTE_LEN]);

impl NcclId {
    /// Its length in bytes.
    pub const BYTE_LEN: usize = 128;

    /// The bytes, to be sent to the other ranks.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// An id that another rank made, from its bytes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: another number of bytes than [`BYTE_LEN`](Self::BYTE_LEN).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = || error!(InvalidArgument, "an id has {} bytes, not {}", Self::BYTE_LEN, bytes.len());
        Ok(NcclId(bytes.try_into().map_err(|_| wrong())?))
    }
}

impl fmt::Debug for NcclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NcclId(..)")
    }
}
