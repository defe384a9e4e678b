//! aarch64: NEON, which every processor has.

use std::arch::aarch64::{float32x4_t, uint16x8_t, vld1q_f32, vld1q_u16, vst1q_f32, vst1q_u16};
use std::arch::asm;

use super::{Baseline, Instructions, LANES, with_quiet_nan};
use crate::element::f16;

// The functions of these instructions are not stable in Rust 1.89.
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
