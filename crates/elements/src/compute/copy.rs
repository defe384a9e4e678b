//! Copies of bytes.

/// Copies `byte_len` bytes. Source and target may be the same.
///
/// # Safety
///
/// The source is valid for reads and the target for writes of `byte_len` bytes, and nothing else
/// writes them during the call. If `byte_len` is 0, both may be null.
#[inline]
pub unsafe fn copy(source: *const u8, target: *mut u8, byte_len: usize) {
    if byte_len > 0 && source != target.cast_const() {
        // SAFETY: the caller promises both ranges; `copy_from` allows them to overlap.
        unsafe { target.copy_from(source, byte_len) };
    }
}

/// Copies bytes past the processor's cache, for a target that the cache cannot hold anyway: the
/// processor then need not read the target's memory before it writes it.
///
/// # Safety
///
/// As [`copy`]; source and target do not overlap.
pub unsafe fn copy_past_cache(source: *const u8, target: *mut u8, byte_len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        const LINE: usize = 64;
        let head = target.align_offset(LINE).min(byte_len);
        let in_lines = (byte_len - head) / LINE * LINE;
        // SAFETY: the caller promises both ranges. Each line of the target is aligned, and every
        // processor of the architecture has these instructions. The fence orders the stores before
        // those that publish them.
        unsafe {
            copy(source, target, head);
            for start in (head..head + in_lines).step_by(LINE) {
                let (from, to) = (source.add(start).cast::<__m128i>(), target.add(start).cast::<__m128i>());
                let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
                line.into_iter().enumerate().for_each(|(i, part)| _mm_stream_si128(to.add(i), part));
            }
            _mm_sfence();
            let tail = head + in_lines;
            copy(source.wrapping_add(tail), target.wrapping_add(tail), byte_len - tail);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        copy(source, target, byte_len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_past_the_cache_writes_its_bytes_and_no_others() {
        let source: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in [0, 1, 15, 63, 64, 65, 127, 128, 200, 640] {
            for (from, to) in (0..70).flat_map(|from| [0, 1, 16, 33, 63, 64].map(|to| (from, to))) {
                let mut target = vec![0xa5u8; 1000];
                // SAFETY: both ranges are in the vectors.
                unsafe { copy_past_cache(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xa5), "{len} {from} {to}");
            }
        }
    }
}
