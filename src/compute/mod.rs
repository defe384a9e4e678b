//! Arithmetic and rearrangement of elements on the host, for `DistCollective`, `Cast` and
//! `Shuffle`. These results define what is right: other backends are compared with them. This
//! module knows nothing of ranks or networks.

mod cast;
mod float;
mod float_env;
mod reduce;
mod transpose;
mod vector;

pub(crate) use cast::cast;
pub(crate) use reduce::{Stored, narrow, reduce, reduce_rounded, round};
pub(crate) use transpose::transpose;

/// Copies `byte_len` bytes. Source and target may be the same.
///
/// # Safety
///
/// The source is valid for reads and the target for writes of `byte_len` bytes, and nothing else
/// writes them during the call. If `byte_len` is 0, both may be null.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, byte_len: usize) {
    if byte_len > 0 && source != target.cast_const() {
        // SAFETY: the caller promises both ranges; `copy_from` allows them to overlap.
        unsafe { target.copy_from(source, byte_len) };
    }
}
