//! x86-64: AVX2 with F16C, AVX-512, and AVX-512 with VBMI, which looks up bytes in tables.

use std::arch::x86_64::*;

use super::{Instructions, LANES, VectorKernel, with_quiet_nan};
use crate::element::{Float8, FloatFormat, bf16, f16};

struct Avx2;

impl Instructions for Avx2 {
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

struct Avx512;

impl Instructions for Avx512 {
    #[inline(always)]
    fn widen_float16(from: &[f16; LANES]) -> [f32; LANES] {
        let mut to = [0f32; LANES];
        for (to, from) in to.chunks_exact_mut(16).zip(from.chunks_exact(16)) {
            // SAFETY: the processor has AVX-512. Both chunks have 16 elements.
            unsafe {
                let halves = _mm256_loadu_si256(from.as_ptr().cast());
                _mm512_storeu_ps(to.as_mut_ptr(), _mm512_cvtph_ps(halves));
            }
        }
        to
    }

    #[inline(always)]
    fn narrow_float16(from: &[f32; LANES]) -> [f16; LANES] {
        let mut to = [f16::ZERO; LANES];
        for (to, from) in to.chunks_exact_mut(16).zip(from.chunks_exact(16)) {
            // SAFETY: as in `widen_float16`.
            unsafe {
                let floats = _mm512_loadu_ps(from.as_ptr());
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats);
                _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
            }
        }
        with_quiet_nan(to)
    }

    /// As the portable conversion, except that it takes the upper words of 32 numbers at once.
    #[inline(always)]
    fn narrow_bfloat16(from: &[f32; LANES]) -> [bf16; LANES] {
        let mut to = [bf16::ZERO; LANES];
        for (to, from) in to.chunks_exact_mut(32).zip(from.chunks_exact(32)) {
            // SAFETY: as in `widen_float16`; both chunks have 32 elements.
            unsafe {
                let [a, b] = [load(&from[..16]), load(&from[16..])];
                let mut words = _mm512_permutex2var_epi16(add_half(a), load(&WORDS[1]), add_half(b));
                // Most blocks have no NaN.
                if unordered(a, b) != 0 {
                    let are_nan = _mm512_kunpackw(unordered(b, b).into(), unordered(a, a).into());
                    words = _mm512_mask_mov_epi16(words, are_nan, _mm512_set1_epi16(0x7fc0));
                }
                _mm512_storeu_si512(to.as_mut_ptr().cast(), words);
            }
        }
        to
    }

    /// Rounds each number by one addition. The other summand is 1.5 times a power of two, which is
    /// so large that the sum's last place is the last one of the result. That power of two is a
    /// fixed multiple of the number's own, or of the smallest normal number's where the result is
    /// subnormal. So the sum's low bits are an integer: the result in units of its last place, with
    /// the sign. Its magnitude includes the leading one, which counts as 1 in the exponent.
    /// Therefore this magnitude, and the exponent counted from the smallest one, add up to the bits
    /// of the result. If the other summand is infinite, so is the sum, or it is a NaN; the low word
    /// of either is 0, and the exponent alone is more than the largest result. A number that is a
    /// NaN is replaced at the end.
    #[inline(always)]
    fn narrow_float8<T: Float8>(from: &[f32; LANES]) -> [T; LANES] {
        let format = const { &T::FORMAT };
        let mut to = [T::default(); LANES];
        // SAFETY: the processor has AVX-512. The blocks have 64 elements.
        unsafe {
            let [a, b] = [load(&from[..16]), load(&from[16..32])];
            let [c, d] = [load(&from[32..48]), load(&from[48..])];
            let (low, low_uppers) = round_32(format, a, b);
            let (high, high_uppers) = round_32(format, c, d);
            let largest = _mm512_set1_epi8(format.largest as i8);
            let magnitudes = _mm512_min_epu8(_mm512_packus_epi16(low, high), largest);
            let signs = _mm512_and_si512(_mm512_packs_epi16(low_uppers, high_uppers), _mm512_set1_epi8(SIGN));
            // The packing interleaves eighths of a vector.
            let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            let mut bits = _mm512_permutexvar_epi64(order, _mm512_or_si512(magnitudes, signs));
            // Most blocks have no NaN. To find the places of NaN takes a tenth of the whole time.
            if unordered(a, b) | unordered(c, d) != 0 {
                let low = _mm512_kunpackw(unordered(b, b).into(), unordered(a, a).into());
                let high = _mm512_kunpackw(unordered(d, d).into(), unordered(c, c).into());
                let are_nan = _mm512_kunpackd(high.into(), low.into());
                bits = _mm512_mask_mov_epi8(bits, are_nan, _mm512_set1_epi8(format.quiet_nan as i8));
            }
            _mm512_storeu_si512(to.as_mut_ptr().cast(), bits);
        }
        to
    }
}

struct Avx512Vbmi;

impl Instructions for Avx512Vbmi {
    #[inline(always)]
    fn widen_float16(from: &[f16; LANES]) -> [f32; LANES] {
        Avx512::widen_float16(from)
    }

    #[inline(always)]
    fn narrow_float16(from: &[f32; LANES]) -> [f16; LANES] {
        Avx512::narrow_float16(from)
    }

    #[inline(always)]
    fn narrow_bfloat16(from: &[f32; LANES]) -> [bf16; LANES] {
        Avx512::narrow_bfloat16(from)
    }

    /// Looks up two bytes of each magnitude's float32, whose other two are zero. The sign is a bit
    /// of the first.
    #[inline(always)]
    fn widen_float8<T: Float8>(from: &[T; LANES]) -> [f32; LANES] {
        let mut to = [0f32; LANES];
        // SAFETY: the processor has AVX-512 with VBMI. The blocks have 64 elements, and the tables
        // 128.
        unsafe {
            let [first, second] = const { &first_bytes(&T::FORMAT) };
            // The unpacking below interleaves within each fourth of a vector.
            let bits = _mm512_permutexvar_epi32(load(&TRANSPOSED), load(from));
            let first = _mm512_permutex2var_epi8(load(&first[..64]), bits, load(&first[64..]));
            let second = _mm512_permutex2var_epi8(load(&second[..64]), bits, load(&second[64..]));
            let first = _mm512_or_si512(first, _mm512_and_si512(bits, _mm512_set1_epi8(SIGN)));
            let words = [_mm512_unpacklo_epi8(second, first), _mm512_unpackhi_epi8(second, first)];
            for (to, words) in to.chunks_exact_mut(32).zip(words) {
                let zero = _mm512_setzero_si512();
                _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_unpacklo_epi16(zero, words));
                _mm512_storeu_si512(to[16..].as_mut_ptr().cast(), _mm512_unpackhi_epi16(zero, words));
            }
        }
        to
    }

    #[inline(always)]
    fn narrow_float8<T: Float8>(from: &[f32; LANES]) -> [T; LANES] {
        Avx512::narrow_float8(from)
    }
}

const SIGN: i8 = i8::MIN;

/// Where the dword of a 4 by 4 matrix of them is in the transposed one.
const TRANSPOSED: [u32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// The places of the lower words of 32 dwords, then of the upper ones.
const WORDS: [[u16; 32]; 2] = {
    let mut places = [[0; 32]; 2];
    let mut i = 0;
    while i < 32 {
        places[0][i] = 2 * i as u16;
        places[1][i] = 2 * i as u16 + 1;
        i += 1;
    }
    places
};

/// The most significant byte of each magnitude's float32, and the next one.
const fn first_bytes(format: &FloatFormat) -> [[u8; 128]; 2] {
    let mut bytes = [[0; 128]; 2];
    let mut magnitude = 0;
    while magnitude < 128 {
        let [first, second, ..] = format.widen(magnitude as u32).to_bits().to_be_bytes();
        bytes[0][magnitude] = first;
        bytes[1][magnitude] = second;
        magnitude += 1;
    }
    bytes
}

/// # Safety
///
/// The processor has AVX-512, and the slice 64 bytes.
#[inline(always)]
unsafe fn load<T>(from: &[T]) -> __m512i {
    debug_assert_eq!(size_of_val(from), 64);
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Adds to 16 float32 half of a bfloat16's last place, less one if the kept part is even.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn add_half(bits: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let is_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd)
    }
}

/// Of 32 float32, in their order: their rounded magnitudes as words, before saturation and without
/// regard to NaN, and the upper words of the float32.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn round_32(format: &FloatFormat, low: __m512i, high: __m512i) -> (__m512i, __m512i) {
    let smallest = format.smallest_normal();
    // SAFETY: the caller's promise.
    unsafe {
        let sums = [rounding_sum(format, low), rounding_sum(format, high)];
        let mantissas = _mm512_abs_epi16(_mm512_permutex2var_epi16(sums[0], load(&WORDS[0]), sums[1]));
        let uppers = _mm512_permutex2var_epi16(low, load(&WORDS[1]), high);
        let exponents = _mm512_and_si512(uppers, _mm512_set1_epi16((FloatFormat::INFINITY >> 16) as i16));
        let exponents = _mm512_subs_epu16(exponents, _mm512_set1_epi16((smallest >> 16) as i16));
        let exponents = _mm512_srl_epi16(exponents, _mm_cvtsi32_si128(7 - format.mantissa_bits as i32));
        (_mm512_add_epi16(exponents, mantissas), uppers)
    }
}

/// The sums of 16 float32 and the numbers that round them. The last places of a sum are the signed
/// mantissa of the result.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn rounding_sum(format: &FloatFormat, bits: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let power = _mm512_and_si512(bits, _mm512_set1_epi32(FloatFormat::INFINITY as i32));
        let power = _mm512_max_epu32(power, _mm512_set1_epi32(format.smallest_normal() as i32));
        let factor = _mm512_set1_ps(1.5 * (1 << (23 - format.mantissa_bits)) as f32);
        let sum = _mm512_fmadd_ps(_mm512_castsi512_ps(power), factor, _mm512_castsi512_ps(bits));
        _mm512_castps_si512(sum)
    }
}

/// The places of a NaN in one of two vectors of 16 float32, or in both.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn unordered(a: __m512i, b: __m512i) -> __mmask16 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)) }
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

pub(super) fn has_avx512_vbmi() -> bool {
    has_avx512() && is_x86_feature_detected!("avx512vbmi")
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn run_avx2(kernel: impl VectorKernel) {
    kernel.run::<Avx2>();
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn run_avx512(kernel: impl VectorKernel) {
    kernel.run::<Avx512>();
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(super) fn run_avx512_vbmi(kernel: impl VectorKernel) {
    kernel.run::<Avx512Vbmi>();
}
