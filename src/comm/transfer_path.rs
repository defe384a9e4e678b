//! The ways in which elements move between ranks on the host, and between machines.

use std::fmt;

/// How the elements of a collective moved between ranks that are on no GPU. All ranks take the same
/// path. It depends on the operation, the size, the number of ranks, where the buffers are, and
/// which ranks are on one machine. The last five are between machines.
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
    /// Each rank got the inputs of all, and made its output of them.
    Exchanged,
    /// A partial result went from machine to machine in rank order, and the result back.
    Chained,
    /// Two machines sent each other what their ranks give.
    Swapped,
    /// Each block went to one rank of each machine, and from there to the others.
    Relayed,
    /// Each block went from the rank that gives it to the one that takes it.
    Pairwise,
}

impl TransferPath {
    /// The name in text: that of the variant, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            TransferPath::Inline => "inline",
            TransferPath::Eager => "eager",
            TransferPath::Direct => "direct",
            TransferPath::Staged => "staged",
            TransferPath::Exchanged => "exchanged",
            TransferPath::Chained => "chained",
            TransferPath::Swapped => "swapped",
            TransferPath::Relayed => "relayed",
            TransferPath::Pairwise => "pairwise",
        }
    }
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
