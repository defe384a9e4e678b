//! Memory of the host, and memory of GPUs.

use std::fmt;

/// Where memory is: on the host, or on a GPU, whose memory the processor cannot touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemorySpace {
    /// Memory of the host.
    Host,
    /// Memory of the GPU with this number among those that the process sees.
    Cuda(u32),
}

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemorySpace::Host => f.write_str("host memory"),
            MemorySpace::Cuda(ordinal) => write!(f, "the memory of GPU {ordinal}"),
        }
    }
}

/// An address and the memory that it is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) pointer: *mut u8,
    pub(crate) space: MemorySpace,
}

impl Address {
    pub(crate) fn host(pointer: *const u8) -> Self {
        Address { pointer: pointer.cast_mut(), space: MemorySpace::Host }
    }

    pub(crate) fn addr(&self) -> usize {
        self.pointer.addr()
    }
}
