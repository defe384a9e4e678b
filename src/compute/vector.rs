//! Runs a kernel with the widest vector instructions of this processor.
//!
//! A kernel is one generic function. It is compiled once for each set of instructions, and the
//! compiler makes vector instructions of its loops. Every set gives the same bits.
//!
//! On aarch64 there is one set: every processor has NEON, and the compiler uses it everywhere.

use super::float::{Float, Lanes};
use crate::element::f16;

/// How many elements a kernel takes at once: enough for vector instructions, few enough for the
/// registers.
pub(super) const LANES: usize = 64;

/// A set of instructions that a kernel is compiled for. Some sets have instructions that convert
/// float16, which the compiler does not find.
pub(super) trait Instructions {
    /// [`Float::widen`] of a block. A NaN may become any NaN.
    #[inline(always)]
    fn widen_float16(from: &[f16; LANES]) -> [f32; LANES] {
        from.map_lanes(f16::widen)
    }

    /// [`Float::narrow`] of a block.
    #[inline(always)]
    fn narrow_float16(from: &[f32; LANES]) -> [f16; LANES] {
        from.map_lanes(f16::narrow)
    }
}

/// A loop over elements.
pub(super) trait Kernel {
    /// Runs the loop. `#[inline(always)]`, so that it is compiled as part of a function that has
    /// these instructions.
    fn run<I: Instructions>(self);
}

/// What every processor of the architecture has.
struct Baseline;

#[cfg(not(target_arch = "aarch64"))]
impl Instructions for Baseline {}

/// Makes every NaN the one that is written; an instruction keeps a NaN's sign and payload.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn with_quiet_nan(from: [f16; LANES]) -> [f16; LANES] {
    from.map_lanes(|x| if x.to_bits() & 0x7fff > 0x7c00 { f16::from_bits(0x7e00) } else { x })
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::{float32x4_t, uint16x8_t, vld1q_f32, vld1q_u16, vst1q_f32, vst1q_u16};
    use std::arch::asm;

    use super::{Baseline, Instructions, LANES, with_quiet_nan};
    use crate::element::f16;

    // The functions of these instructions are not stable in Rust 1.88.
    impl Instructions for Baseline {
        #[inline(always)]
        fn widen_float16(from: &[f16; LANES]) -> [f32; LANES] {
            let mut to = [0f32; LANES];
            for (to, from) in to.chunks_exact_mut(8).zip(from.chunks_exact(8)) {
                let (low, high): (float32x4_t, float32x4_t);
                // SAFETY: every processor of the architecture has these instructions. Both chunks
                // have 8 elements.
                unsafe {
                    let halves: uint16x8_t = vld1q_u16(from.as_ptr().cast());
                    asm!(
                        "fcvtl {low:v}.4s, {halves:v}.4h",
                        "fcvtl2 {high:v}.4s, {halves:v}.8h",
                        halves = in(vreg) halves,
                        low = out(vreg) low,
                        high = lateout(vreg) high,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                    vst1q_f32(to.as_mut_ptr(), low);
                    vst1q_f32(to.as_mut_ptr().add(4), high);
                }
            }
            to
        }

        #[inline(always)]
        fn narrow_float16(from: &[f32; LANES]) -> [f16; LANES] {
            let mut to = [f16::ZERO; LANES];
            for (to, from) in to.chunks_exact_mut(8).zip(from.chunks_exact(8)) {
                let halves: uint16x8_t;
                // SAFETY: as in `widen_float16`.
                unsafe {
                    let low = vld1q_f32(from.as_ptr());
                    let high = vld1q_f32(from.as_ptr().add(4));
                    asm!(
                        "fcvtn {halves:v}.4h, {low:v}.4s",
                        "fcvtn2 {halves:v}.8h, {high:v}.4s",
                        low = in(vreg) low,
                        high = in(vreg) high,
                        halves = out(vreg) halves,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                    vst1q_u16(to.as_mut_ptr().cast(), halves);
                }
            }
            with_quiet_nan(to)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm256_loadu_ps, _mm256_storeu_ps,
    };

    use super::{Instructions, Kernel, LANES, with_quiet_nan};
    use crate::element::f16;

    struct WithF16c;

    impl Instructions for WithF16c {
        #[inline(always)]
        fn widen_float16(from: &[f16; LANES]) -> [f32; LANES] {
            let mut to = [0f32; LANES];
            for (to, from) in to.chunks_exact_mut(8).zip(from.chunks_exact(8)) {
                // SAFETY: the processor has F16C. Both chunks have 8 elements.
                unsafe {
                    let halves = _mm_loadu_si128(from.as_ptr().cast());
                    _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(halves));
                }
            }
            to
        }

        #[inline(always)]
        fn narrow_float16(from: &[f32; LANES]) -> [f16; LANES] {
            let mut to = [f16::ZERO; LANES];
            for (to, from) in to.chunks_exact_mut(8).zip(from.chunks_exact(8)) {
                // SAFETY: as in `widen_float16`.
                unsafe {
                    let floats = _mm256_loadu_ps(from.as_ptr());
                    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats);
                    _mm_storeu_si128(to.as_mut_ptr().cast(), halves);
                }
            }
            with_quiet_nan(to)
        }
    }

    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }

    pub(super) fn has_avx512() -> bool {
        has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn run_avx2(kernel: impl Kernel) {
        kernel.run::<WithF16c>();
    }

    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn run_avx512(kernel: impl Kernel) {
        kernel.run::<WithF16c>();
    }
}

/// Runs a kernel with the widest instructions that this processor has.
pub(super) fn run(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: the processor has these instructions.
            return unsafe { x86::run_avx512(kernel) };
        }
        if x86::has_avx2() {
            // SAFETY: as above.
            return unsafe { x86::run_avx2(kernel) };
        }
    }
    kernel.run::<Baseline>();
}

/// Runs a kernel once with each set of instructions that this processor has, with the set's name.
/// The first one is what every processor has.
#[cfg(test)]
pub(super) fn run_with_each<K: Kernel>(mut kernel: impl FnMut(&'static str) -> K) {
    kernel("baseline").run::<Baseline>();
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx2() {
            // SAFETY: the processor has these instructions.
            unsafe { x86::run_avx2(kernel("AVX2")) };
        }
        if x86::has_avx512() {
            // SAFETY: as above.
            unsafe { x86::run_avx512(kernel("AVX-512")) };
        }
    }
}
