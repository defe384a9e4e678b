//! Runs a kernel with the widest vector instructions of this processor.
//!
//! A kernel is one generic function. It is compiled once for each set of instructions, and the
//! compiler makes vector instructions of its loops. Every set gives the same bits.

/// How many elements a kernel takes at once: enough for vector instructions, few enough for the
/// registers.
pub(super) const LANES: usize = 64;

/// A set of instructions that a kernel is compiled for.
pub(super) trait Instructions {
    /// Whether it has those of F16C, which convert float16.
    const HAS_F16C: bool;
}

/// A loop over elements.
pub(super) trait Kernel {
    /// Runs the loop. `#[inline(always)]`, so that it is compiled as part of a function that has
    /// these instructions.
    fn run<I: Instructions>(self);
}

/// What every processor of the architecture has.
struct Baseline;

impl Instructions for Baseline {
    const HAS_F16C: bool = false;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Instructions, Kernel};

    struct WithF16c;

    impl Instructions for WithF16c {
        const HAS_F16C: bool = true;
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
