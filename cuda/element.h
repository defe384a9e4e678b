/* The element types: their sizes, their values, and the elements that values become.
 *
 * An element is passed as its bits in an unsigned integer. Its value is exact: a float for the
 * floating-point types but float64, whose is a double, an unsigned long long for uint32 and uint64,
 * and a long long for the others. float64, uint32 and uint64 are only reduced. A float is rounded
 * once to a narrower type, to nearest even. float8 saturates, infinity too. A NaN becomes the
 * positive quiet NaN of the type.
 */
#ifndef DCL_ELEMENT_H
#define DCL_ELEMENT_H

#include "launch.h"

/* The size of each type in bytes, and whether its values are floats or integers. */
#define DCL_BYTES_float32 4
#define DCL_BYTES_float16 2
#define DCL_BYTES_bfloat16 2
#define DCL_BYTES_float8_e4m3 1
#define DCL_BYTES_float8_e5m2 1
#define DCL_BYTES_int64 8
#define DCL_BYTES_int32 4
#define DCL_BYTES_int8 1
#define DCL_BYTES_uint8 1
#define DCL_BYTES_bool 1
#define DCL_BYTES_float64 8
#define DCL_BYTES_uint32 4
#define DCL_BYTES_uint64 8

#define DCL_KIND_float32 float
#define DCL_KIND_float16 float
#define DCL_KIND_bfloat16 float
#define DCL_KIND_float8_e4m3 float
#define DCL_KIND_float8_e5m2 float
#define DCL_KIND_int64 integer
#define DCL_KIND_int32 integer
#define DCL_KIND_int8 integer
#define DCL_KIND_uint8 integer
#define DCL_KIND_bool integer
#define DCL_KIND_float64 double
#define DCL_KIND_uint32 unsigned
#define DCL_KIND_uint64 unsigned

DCL_INLINE unsigned dcl_bits_of(float x)
{
#ifdef __CUDACC__
    return __float_as_uint(x);
#else
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

DCL_INLINE float dcl_float_of(unsigned bits)
{
#ifdef __CUDACC__
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

DCL_INLINE unsigned long long dcl_bits_of_double(double x)
{
#ifdef __CUDACC__
    return (unsigned long long)__double_as_longlong(x);
#else
    unsigned long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

DCL_INLINE double dcl_double_of(unsigned long long bits)
{
#ifdef __CUDACC__
    return __longlong_as_double((long long)bits);
#else
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

DCL_INLINE unsigned dcl_smaller(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

DCL_INLINE unsigned dcl_larger(unsigned a, unsigned b)
{
    return a > b ? a : b;
}

/* ---- The value of an element ---- */

/* The value of a float with few exponent and mantissa bits, which are the highest of `bits`. At the
 * positions that float32 has for them, they are the value times a power of two, also for subnormal
 * numbers. The multiplication is exact. The largest exponent is handled as an ordinary one. */
DCL_INLINE float dcl_widen(unsigned bits, unsigned exponent_bits)
{
    unsigned moved = (unsigned)((int)bits >> (8 - exponent_bits));
    unsigned sign_and_value = 0x80000000 | (0x7fffffff >> (8 - exponent_bits));
    /* 2 to the difference of the biases, 127 - (2 ^ (exponent_bits - 1) - 1). */
    unsigned scale = (127 + 128 - (1u << (exponent_bits - 1))) << 23;
    return dcl_float_of(moved & sign_and_value) * dcl_float_of(scale);
}

/* Infinity or NaN for a widened float of five exponent bits whose exponent was the largest one. */
DCL_INLINE float dcl_with_infinity(float x)
{
    return fabsf(x) >= 65536.0f ? dcl_float_of(dcl_bits_of(x) | 0x7f800000) : x;
}

DCL_INLINE float dcl_value_float32(unsigned bits)
{
    return dcl_float_of(bits);
}

DCL_INLINE float dcl_value_float16(unsigned bits)
{
    return dcl_with_infinity(dcl_widen(bits << 16, 5));
}

DCL_INLINE float dcl_value_bfloat16(unsigned bits)
{
    return dcl_float_of(bits << 16);
}

/* NaN has the bits that would be 480. Times 0x1.2p+119, 480 overflows to infinity and 448 does not,
 * and infinity times zero is NaN. For other values this adds a zero of the same sign. It costs a
 * device less than a comparison. */
DCL_INLINE float dcl_value_float8_e4m3(unsigned bits)
{
    float x = dcl_widen(bits << 24, 4);
    return x + x * 0x1.2p+119f * 0.0f;
}

DCL_INLINE float dcl_value_float8_e5m2(unsigned bits)
{
    return dcl_with_infinity(dcl_widen(bits << 24, 5));
}

DCL_INLINE long long dcl_value_int64(unsigned long long bits)
{
    return (long long)bits;
}

DCL_INLINE long long dcl_value_int32(unsigned bits)
{
    return (int)bits;
}

DCL_INLINE long long dcl_value_int8(unsigned bits)
{
    return (signed char)bits;
}

DCL_INLINE long long dcl_value_uint8(unsigned bits)
{
    return bits;
}

DCL_INLINE long long dcl_value_bool(unsigned bits)
{
    return bits != 0;
}

DCL_INLINE double dcl_value_float64(unsigned long long bits)
{
    return dcl_double_of(bits);
}

DCL_INLINE unsigned long long dcl_value_uint32(unsigned bits)
{
    return bits;
}

DCL_INLINE unsigned long long dcl_value_uint64(unsigned long long bits)
{
    return bits;
}

/* ---- The element that a float becomes ---- */

/* The bits, without the sign, of the float with `mantissa_bits` and a smallest normal number
 * that is nearest to the magnitude of x, or to `limit` if that is smaller or x is NaN.
 *
 * `large` is a float32 whose last place has the weight of the target's last place. Adding it
 * rounds the magnitude, and leaves the target's mantissa, with its leading one, in the lowest bits
 * of the sum. Then the exponent is added. A carry out of the mantissa raises the exponent, and so
 * does the leading one, which subnormal numbers do not have. `large` also contains the difference
 * of the biases. That is even, so ties still go to even. */
DCL_INLINE unsigned dcl_narrow(float x, unsigned mantissa_bits, unsigned smallest_normal, unsigned limit, unsigned mask)
{
    const unsigned dropped_bits = 23 - mantissa_bits;
    const unsigned bias = (0 - (smallest_normal >> dropped_bits)) & mask;
    unsigned magnitude = dcl_smaller(dcl_bits_of(x) & 0x7fffffff, limit);
    unsigned exponent = dcl_larger(magnitude, smallest_normal) & 0x7f800000;
    float large = dcl_float_of(exponent + (dropped_bits << 23) + bias);
    return (dcl_bits_of(dcl_float_of(magnitude) + large) + (exponent >> dropped_bits)) & mask;
}

DCL_INLINE int dcl_is_nan(float x)
{
    return x != x;
}

/* One of two numbers, both computed, without a branch. With a branch, compilers compute only the
 * side that is needed, behind the branch. */
DCL_INLINE unsigned dcl_choose(int condition, unsigned yes, unsigned no)
{
    unsigned mask = 0 - (unsigned)condition;
    return (yes & mask) | (no & ~mask);
}

DCL_INLINE unsigned dcl_float32_of_float(float x)
{
    return dcl_choose(dcl_is_nan(x), 0x7fc00000, dcl_bits_of(x));
}

DCL_INLINE unsigned dcl_float16_of_float(float x)
{
    /* The limit is 2^16, which has the bits of infinity. A smaller value that is too large
     * rounds to infinity by carry. */
    unsigned magnitude = dcl_narrow(x, 10, 0x38800000, 0x47800000, 0x7fff);
    return dcl_choose(dcl_is_nan(x), 0x7e00, magnitude | (dcl_bits_of(x) >> 16 & 0x8000));
}

DCL_INLINE unsigned dcl_bfloat16_of_float(float x)
{
    unsigned bits = dcl_bits_of(x);
    /* Adds half of the last place, less one if the kept part is even. This carries exactly if the
     * dropped part is above a half, or if it is a half and the kept part is odd. */
    return dcl_choose(dcl_is_nan(x), 0x7fc0, (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* float8 with its sign, of a float that is no NaN. From compute capability 8.9 on there is an
 * instruction for it, which rounds to nearest even and saturates, infinity too. It converts two
 * floats; the second one gives the lower byte. */
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
#define DCL_NARROW_TO_FLOAT8(FORMAT, x, ...) dcl_convert_to_##FORMAT(x)
#define DCL_CONVERT_TO(FORMAT) \
    DCL_INLINE unsigned dcl_convert_to_##FORMAT(float x) \
    { \
        unsigned short both; \
        asm("cvt.rn.satfinite." #FORMAT "x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x)); \
        return both; \
    }
DCL_CONVERT_TO(e4m3)
DCL_CONVERT_TO(e5m2)
#else
#define DCL_NARROW_TO_FLOAT8(FORMAT, x, ...) (dcl_narrow(x, __VA_ARGS__, 0x7f) | (dcl_bits_of(x) >> 24 & 0x80))
#endif

DCL_INLINE unsigned dcl_float8_e4m3_of_float(float x)
{
    return dcl_choose(dcl_is_nan(x), 0x7f, DCL_NARROW_TO_FLOAT8(e4m3, x, 3, 0x3c800000, 0x43e00000));
}

DCL_INLINE unsigned dcl_float8_e5m2_of_float(float x)
{
    return dcl_choose(dcl_is_nan(x), 0x7e, DCL_NARROW_TO_FLOAT8(e5m2, x, 2, 0x38800000, 0x47600000));
}

/* The float is truncated and saturates; NaN gives 0. The conversions of C only get values for which
 * their result is defined. */

DCL_INLINE float dcl_number(float x)
{
    return dcl_is_nan(x) ? 0.0f : x;
}

/* `limit` is the smallest power of two that is too large. A float from there on gives 0 here, and
 * its callers then set the bits of the largest integer. */
DCL_INLINE float dcl_limited_below(float x, float limit)
{
    x = x < -limit ? -limit : x;
    return x >= limit ? 0.0f : x;
}

DCL_INLINE unsigned long long dcl_int64_of_float(float x)
{
    const float limit = 9223372036854775808.0f;
    unsigned long long too_large = 0 - (unsigned long long)(x >= limit);
    return (unsigned long long)(long long)dcl_limited_below(dcl_number(x), limit) | too_large >> 1;
}

DCL_INLINE unsigned dcl_int32_of_float(float x)
{
    const float limit = 2147483648.0f;
    unsigned too_large = 0 - (unsigned)(x >= limit);
    return (unsigned)(int)dcl_limited_below(dcl_number(x), limit) | too_large >> 1;
}

/* For integers of eight bits. */
DCL_INLINE unsigned dcl_truncate(float x, float smallest, float largest)
{
    x = dcl_number(x);
    x = x < smallest ? smallest : x;
    return (unsigned)(int)(x > largest ? largest : x) & 0xff;
}

DCL_INLINE unsigned dcl_int8_of_float(float x)
{
    return dcl_truncate(x, -128.0f, 127.0f);
}

DCL_INLINE unsigned dcl_uint8_of_float(float x)
{
    return dcl_truncate(x, 0.0f, 255.0f);
}

DCL_INLINE unsigned dcl_bool_of_float(float x)
{
    return x != 0.0f;
}

/* ---- The element that an integer becomes ---- */

DCL_INLINE unsigned dcl_float32_of_integer(long long x)
{
    return dcl_bits_of((float)x);
}

/* An integer as a float, for types whose largest value is far below 2^20. It is exact up to there.
 * Larger integers overflow or saturate in these types, as 2^20 does. */
DCL_INLINE float dcl_limited(long long x)
{
    const int limit = 1 << 20;
    return (float)(x < -limit ? -limit : x > limit ? limit : (int)x);
}

DCL_INLINE unsigned dcl_float16_of_integer(long long x)
{
    return dcl_float16_of_float(dcl_limited(x));
}

DCL_INLINE unsigned dcl_float8_e4m3_of_integer(long long x)
{
    return dcl_float8_e4m3_of_float(dcl_limited(x));
}

DCL_INLINE unsigned dcl_float8_e5m2_of_integer(long long x)
{
    return dcl_float8_e5m2_of_float(dcl_limited(x));
}

DCL_INLINE unsigned dcl_leading_zeros(unsigned long long x)
{
#ifdef __CUDACC__
    return (unsigned)__clzll((long long)x);
#else
    return x == 0 ? 64 : (unsigned)__builtin_clzll(x);
#endif
}

/* bfloat16 has the range of float32, so the integer is rounded twice. The first rounding is to 24
 * bits and to odd: it sets the last bit if the result is not exact. So it never makes a tie for the
 * second rounding. */
DCL_INLINE unsigned dcl_bfloat16_of_integer(long long x)
{
    unsigned long long magnitude = x < 0 ? 0 - (unsigned long long)x : (unsigned long long)x;
    unsigned zeros = dcl_leading_zeros(magnitude);
    unsigned lost_bits = zeros < 40 ? 40 - zeros : 0;
    unsigned long long lost = magnitude & ((1ull << lost_bits) - 1);
    unsigned long long odd = (magnitude >> lost_bits | (lost != 0)) << lost_bits;
    return dcl_bfloat16_of_float((float)odd) | (x < 0 ? 0x8000 : 0);
}

DCL_INLINE unsigned long long dcl_int64_of_integer(long long x)
{
    return (unsigned long long)x;
}

DCL_INLINE unsigned dcl_int32_of_integer(long long x)
{
    return (unsigned)x;
}

DCL_INLINE unsigned dcl_int8_of_integer(long long x)
{
    return (unsigned char)x;
}

DCL_INLINE unsigned dcl_uint8_of_integer(long long x)
{
    return (unsigned char)x;
}

DCL_INLINE unsigned dcl_bool_of_integer(long long x)
{
    return x != 0;
}

/* ---- The element that a value of a type that is only reduced becomes ---- */

DCL_INLINE unsigned long long dcl_float64_of_double(double x)
{
    return x != x ? 0x7ff8000000000000 : dcl_bits_of_double(x);
}

DCL_INLINE unsigned dcl_uint32_of_unsigned(unsigned long long x)
{
    return (unsigned)x;
}

DCL_INLINE unsigned long long dcl_uint64_of_unsigned(unsigned long long x)
{
    return x;
}

#endif
