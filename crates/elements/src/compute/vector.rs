//! Runs a kernel with the widest vector instructions of this processor.
//!
//! A kernel is one generic function. It is compiled once for each set of instructions, and the
//! compiler makes vector instructions of its loops. Every set gives the same bits. A set for which
//! a kernel would not become faster is left out: each copy takes time to compile, and space.
//!
//! On aarch64 there is one set: every processor has NEON, and the compiler uses it everywhere.

#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::float::{Float, Lanes};
use crate::element::{Float8, bf16, f16};

/// How many elements a kernel takes at once: enough for vector instructions, few enough for the
/// registers.
pub(super) const LANES: usize = 64;

/// A set of instructions that a kernel is compiled for. Some sets have instructions that convert
/// narrow floats, which the compiler does not find.
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

    /// [`Float::narrow`] of a block.
    #[inline(always)]
    fn narrow_bfloat16(from: &[f32; LANES]) -> [bf16; LANES] {
        from.map_lanes(bf16::narrow)
    }

    /// [`Float::widen`] of a block. A NaN may become any NaN.
    #[inline(always)]
    fn widen_float8<T: Float8>(from: &[T; LANES]) -> [f32; LANES] {
        let scaled = Self::widen_float16(&from.map_lanes(T::scaled_float16));
        scaled.map_lanes(|x| x * T::SCALE)
    }

    /// [`Float::narrow`] of a block.
    #[inline(always)]
    fn narrow_float8<T: Float8>(from: &[f32; LANES]) -> [T; LANES] {
        from.map_lanes(T::narrow)
    }
}

/// A loop over elements.
pub(super) trait VectorKernel {
    /// Whether it widens float8: only that is faster with VBMI than with other AVX-512.
    #[cfg(target_arch = "x86_64")]
    const WIDENS_FLOAT8: bool = false;

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

/// Runs a kernel with the widest instructions that this processor has.
pub(super) fn run<K: VectorKernel>(kernel: K) {
    #[cfg(target_arch = "x86_64")]
    {
        if K::WIDENS_FLOAT8 && x86::has_avx512_vbmi() {
            // SAFETY: the processor has these instructions.
            return unsafe { x86::run_avx512_vbmi(kernel) };
        }
        if x86::has_avx512() {
            // SAFETY: as above.
            return unsafe { x86::run_avx512(kernel) };
        }
    }
    run_compact(kernel);
}

/// Runs a kernel with AVX2 if the processor has it, and with no wider instructions: for kernels
/// that are rarely a program's slowest part.
pub(super) fn run_compact(kernel: impl VectorKernel) {
    #[cfg(target_arch = "x86_64")]
    if x86::has_avx2() {
        // SAFETY: the processor has these instructions.
        return unsafe { x86::run_avx2(kernel) };
    }
    run_baseline(kernel);
}

/// Runs a kernel with the instructions that every processor has: for fewer elements than a block.
pub(super) fn run_baseline(kernel: impl VectorKernel) {
    kernel.run::<Baseline>();
}

/// Runs a kernel once with each set of instructions that this processor has, with the set's name.
/// The first one is what every processor has.
#[cfg(test)]
pub(super) fn run_with_each<K: VectorKernel>(mut kernel: impl FnMut(&'static str) -> K) {
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
        if x86::has_avx512_vbmi() {
            // SAFETY: as above.
            unsafe { x86::run_avx512_vbmi(kernel("AVX-512 with VBMI")) };
        }
    }
}
