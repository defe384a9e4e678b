//! Shared memory that all ranks only read.

use std::sync::Arc;

use super::SharedMemory;
use crate::error::Result;

/// Bytes that one rank has written and none changes any more. A process unmaps them with its last
/// reference; they are freed when no rank has them mapped.
pub(crate) struct ReadOnlyBytes {
    memory: Arc<SharedMemory>,
    byte_len: usize,
}

impl ReadOnlyBytes {
    /// The first bytes of shared memory that no rank writes any more. The kernel refuses writes
    /// from now on.
    pub(crate) fn new(memory: Arc<SharedMemory>, byte_len: usize) -> Result<Self> {
        memory.protect()?;
        Ok(ReadOnlyBytes { memory, byte_len })
    }
}

impl AsRef<[u8]> for ReadOnlyBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the memory has these bytes (`bytes` checks it), is mapped as long as `self`
        // lives, and by the contract of `new` no rank writes it.
        unsafe { std::slice::from_raw_parts(self.memory.bytes(0, self.byte_len), self.byte_len) }
    }
}
