//! Cache lines that this rank will write soon, and that its peers have read.
//!
//! The first store to such a line takes the line away from the peers' caches, and peers see the
//! store only then. A rank that asks for the line before that has it when it writes.

/// The bytes of a cache line.
const LINE: usize = 64;

/// Asks for the lines of this memory for writing. It changes nothing that a program can see, and
/// does not wait.
#[inline]
pub(super) fn prefetch_to_write(address: *const u8, byte_len: usize) {
    for offset in (0..byte_len).step_by(LINE) {
        prefetch_line_to_write(address.wrapping_add(offset));
    }
}

#[inline(always)]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn prefetch_line_to_write(address: *const u8) {
    // SAFETY: PREFETCHW accesses no memory as a program sees it, and never faults. A processor of
    // this architecture that does not have it does nothing.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

#[inline(always)]
#[cfg(all(target_arch = "aarch64", not(miri)))]
fn prefetch_line_to_write(address: *const u8) {
    // SAFETY: PRFM accesses no memory as a program sees it, and never faults.
    unsafe { std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

#[inline(always)]
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
fn prefetch_line_to_write(_address: *const u8) {}
