//! What differs between MPIs: the type of handles, the numbers of constants, and where a status has
//! the sender. `tests/c_header/` includes this file, and compares it with the headers that are
//! installed.

use std::ffi::{c_int, c_void};

/// A handle of MPI's, as a number.
pub(super) type HandleNumber = usize;

/// The type of all handles of an MPI.
pub(super) trait MpiHandle: Copy + 'static {
    fn from_number(number: HandleNumber) -> Self;
    fn number(self) -> HandleNumber;
}

impl MpiHandle for c_int {
    fn from_number(number: HandleNumber) -> Self {
        number as u32 as c_int
    }

    fn number(self) -> HandleNumber {
        self as u32 as HandleNumber
    }
}

impl MpiHandle for *mut c_void {
    fn from_number(number: HandleNumber) -> Self {
        number as *mut c_void
    }

    fn number(self) -> HandleNumber {
        self as HandleNumber
    }
}

/// The handles that every program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constants {
    /// `MPI_COMM_WORLD`.
    pub(super) world: HandleNumber,
    /// `MPI_COMM_SELF`.
    pub(super) own: HandleNumber,
    /// `MPI_UINT64_T`.
    pub(super) uint64: HandleNumber,
    /// `MPI_ERRORS_RETURN`.
    pub(super) errors_return: HandleNumber,
    /// `MPI_COMM_NULL`.
    pub(super) null: HandleNumber,
}

/// The most `int`s of a status.
pub(super) const STATUS_INTS: usize = 8;

/// One MPI's binary interface. `MPI_SUCCESS` is 0 in all.
pub(super) trait Abi: 'static {
    type Handle: MpiHandle;
    const ANY_SOURCE: c_int;
    const ANY_TAG: c_int;
    const THREAD_MULTIPLE: c_int;
    /// How many `int`s of a status come before `MPI_SOURCE`.
    const SOURCE_AT: usize;

    /// The constants, of which some may be addresses of the library's symbols.
    fn constants(symbol: &dyn Fn(&str) -> Option<HandleNumber>) -> Option<Constants>;
}

/// Open MPI 2 to 5: `libmpi.so.40`.
pub(super) struct OpenMpi;

impl Abi for OpenMpi {
    type Handle = *mut c_void;
    const ANY_SOURCE: c_int = -1;
    const ANY_TAG: c_int = -1;
    const THREAD_MULTIPLE: c_int = 3;
    const SOURCE_AT: usize = 0;

    fn constants(symbol: &dyn Fn(&str) -> Option<HandleNumber>) -> Option<Constants> {
        Some(Constants {
            world: symbol("ompi_mpi_comm_world")?,
            own: symbol("ompi_mpi_comm_self")?,
            uint64: symbol("ompi_mpi_uint64_t")?,
            errors_return: symbol("ompi_mpi_errors_return")?,
            null: symbol("ompi_mpi_comm_null")?,
        })
    }
}

/// MPICH 3 and 4, and what has its interface, such as Intel MPI: `libmpich.so.12`, `libmpi.so.12`.
pub(super) struct Mpich;

impl Abi for Mpich {
    type Handle = c_int;
    const ANY_SOURCE: c_int = -2;
    const ANY_TAG: c_int = -1;
    const THREAD_MULTIPLE: c_int = 3;
    const SOURCE_AT: usize = 2;

    fn constants(_symbol: &dyn Fn(&str) -> Option<HandleNumber>) -> Option<Constants> {
        let (world, own, null) = (0x4400_0000, 0x4400_0001, 0x0400_0000);
        Some(Constants { world, own, uint64: 0x4c00_083e, errors_return: 0x5400_0001, null })
    }
}

/// The interface of the MPI 5 standard: `libmpi_abi.so`.
pub(super) struct Standard;

impl Abi for Standard {
    type Handle = *mut c_void;
    const ANY_SOURCE: c_int = -1;
    const ANY_TAG: c_int = -2;
    const THREAD_MULTIPLE: c_int = 4096;
    const SOURCE_AT: usize = 0;

    fn constants(_symbol: &dyn Fn(&str) -> Option<HandleNumber>) -> Option<Constants> {
        Some(Constants { world: 0x101, own: 0x102, uint64: 0x259, errors_return: 0x143, null: 0x100 })
    }
}
