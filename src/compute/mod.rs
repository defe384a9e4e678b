//! Arithmetic and rearrangement of elements on the host: what `DistCollective`, `Cast` and `Shuffle` do to bytes. The
//! results are the library's definition of right; nothing here knows of ranks or networks.

mod cast;
mod float;
mod float_env;
mod reduce;
mod transpose;

pub(crate) use cast::cast;
pub(crate) use reduce::reduce;
pub(crate) use transpose::transpose;

/// Elements that are handled at a time: enough for vector instructions, few enough for the stack and the first cache.
const BLOCK_ELEMENTS: usize = 512;

/// Copies bytes, where source and target may be the same.
///
/// # Safety
///
/// The source is valid for reads and the target for writes of `byte_len` bytes, while nobody else writes them; without bytes
/// both may be null.
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, byte_len: usize) {
    if byte_len > 0 && source != target.cast_const() {
        // SAFETY: the caller's promise.
        unsafe { target.copy_from(source, byte_len) };
    }
}
