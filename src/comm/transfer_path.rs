//! The ways in which the host backend moves elements.

use std::fmt;

/// How the elements of a collective moved between ranks on the host. All ranks take the same path.
/// It depends on the operation, the size, the number of ranks, and where the buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransferPath {
    /// Each input was in the header of the call.
    Inline,
    /// Each rank copied its input to shared memory before it posted its header.
    Eager,
    /// Ranks read and wrote each other's buffers: those of threads, or symmetric memory.
    Direct,
    /// The elements moved through staging memory, in pieces.
    Staged,
}

impl TransferPath {
    /// The name in text: `inline`, `eager`, `direct`, `staged`.
    pub fn name(self) -> &'static str {
        match self {
            TransferPath::Inline => "inline",
            TransferPath::Eager => "eager",
            TransferPath::Direct => "direct",
            TransferPath::Staged => "staged",
        }
    }
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
