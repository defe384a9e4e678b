/* Reductions in the order of the ranks, with the host's bits, of every type. */
#ifndef DCL_REDUCE_H
#define DCL_REDUCE_H

#include "arguments.h"
#include "packet.h"

/* Each operation starts with its identity, combines the accumulator with the value of every rank,
 * and finishes with a value, from which the element is made once. The identity of the sum of floats
 * is -0, because a sum that starts with +0 is never -0. Maximum and minimum of floats compare
 * integers that have the order of the floats. Sums and products of integers wrap in 64 bits, and
 * the element has the lowest of these. The value of a bool is 0 or 1, and its element is whether
 * the result is not 0. */
#define DCL_ACCUMULATOR_float_sum float
#define DCL_ACCUMULATOR_float_prod float
#define DCL_ACCUMULATOR_float_max int
#define DCL_ACCUMULATOR_float_min int
#define DCL_ACCUMULATOR_float_avg float
#define DCL_ACCUMULATOR_double_sum double
#define DCL_ACCUMULATOR_double_prod double
#define DCL_ACCUMULATOR_double_max long long
#define DCL_ACCUMULATOR_double_min long long
#define DCL_ACCUMULATOR_double_avg double
#define DCL_ACCUMULATOR_integer_sum unsigned long long
#define DCL_ACCUMULATOR_integer_prod unsigned long long
#define DCL_ACCUMULATOR_integer_max long long
#define DCL_ACCUMULATOR_integer_min long long
#define DCL_ACCUMULATOR_integer_avg unsigned long long
#define DCL_ACCUMULATOR_unsigned_sum unsigned long long
#define DCL_ACCUMULATOR_unsigned_prod unsigned long long
#define DCL_ACCUMULATOR_unsigned_max unsigned long long
#define DCL_ACCUMULATOR_unsigned_min unsigned long long
#define DCL_ACCUMULATOR_unsigned_avg unsigned long long

#define DCL_IDENTITY_float_sum -0.0f
#define DCL_IDENTITY_float_prod 1.0f
#define DCL_IDENTITY_float_max (int)0x80000000
#define DCL_IDENTITY_float_min 0x7fffffff
#define DCL_IDENTITY_float_avg -0.0f
#define DCL_IDENTITY_double_sum -0.0
#define DCL_IDENTITY_double_prod 1.0
#define DCL_IDENTITY_double_max (long long)0x8000000000000000
#define DCL_IDENTITY_double_min 0x7fffffffffffffff
#define DCL_IDENTITY_double_avg -0.0
#define DCL_IDENTITY_integer_sum 0
#define DCL_IDENTITY_integer_prod 1
#define DCL_IDENTITY_integer_max (long long)0x8000000000000000
#define DCL_IDENTITY_integer_min 0x7fffffffffffffff
#define DCL_IDENTITY_integer_avg 0
#define DCL_IDENTITY_unsigned_sum 0
#define DCL_IDENTITY_unsigned_prod 1
#define DCL_IDENTITY_unsigned_max 0
#define DCL_IDENTITY_unsigned_min 0xffffffffffffffff
#define DCL_IDENTITY_unsigned_avg 0

/* An integer that is ordered as the float with these bits; -0 is below +0. It is its own
 * inverse. */
DCL_INLINE int dcl_order_key(int bits)
{
    return bits ^ (bits >> 31 & 0x7fffffff);
}

DCL_INLINE long long dcl_order_key_64(long long bits)
{
    return bits ^ (bits >> 63 & 0x7fffffffffffffff);
}

/* The functions of an operation that combines accumulator `a` and value `x` in one expression. */
#define DCL_FOLD(KIND, VALUE, OPERATION, EXPRESSION) \
    DCL_INLINE DCL_ACCUMULATOR_##KIND##_##OPERATION dcl_combine_##KIND##_##OPERATION( \
        DCL_ACCUMULATOR_##KIND##_##OPERATION a, VALUE x) \
    { \
        return EXPRESSION; \
    } \
    DCL_INLINE VALUE dcl_finish_##KIND##_##OPERATION(DCL_ACCUMULATOR_##KIND##_##OPERATION a) \
    { \
        return (VALUE)a; \
    }

DCL_FOLD(float, float, sum, a + x)
DCL_FOLD(float, float, prod, a * x)
DCL_FOLD(float, float, avg, a + x)
DCL_FOLD(double, double, sum, a + x)
DCL_FOLD(double, double, prod, a * x)
DCL_FOLD(double, double, avg, a + x)
DCL_FOLD(integer, long long, sum, a + (unsigned long long)x)
DCL_FOLD(integer, long long, prod, a * (unsigned long long)x)
DCL_FOLD(integer, long long, avg, a + (unsigned long long)x)
DCL_FOLD(integer, long long, max, x > a ? x : a)
DCL_FOLD(integer, long long, min, x < a ? x : a)
DCL_FOLD(unsigned, unsigned long long, sum, a + x)
DCL_FOLD(unsigned, unsigned long long, prod, a * x)
DCL_FOLD(unsigned, unsigned long long, avg, a + x)
DCL_FOLD(unsigned, unsigned long long, max, x > a ? x : a)
DCL_FOLD(unsigned, unsigned long long, min, x < a ? x : a)

/* A NaN gives the identity, which is below every number. Its float is a NaN too. */
DCL_INLINE int dcl_combine_float_max(int largest, float x)
{
    int key = dcl_is_nan(x) ? DCL_IDENTITY_float_max : dcl_order_key((int)dcl_bits_of(x));
    return key > largest ? key : largest;
}

DCL_INLINE float dcl_finish_float_max(int largest)
{
    return dcl_float_of((unsigned)dcl_order_key(largest));
}

/* A NaN is above every number. */
DCL_INLINE int dcl_combine_float_min(int smallest, float x)
{
    int key = dcl_is_nan(x) ? DCL_IDENTITY_float_min : dcl_order_key((int)dcl_bits_of(x));
    return key < smallest ? key : smallest;
}

DCL_INLINE float dcl_finish_float_min(int smallest)
{
    return dcl_float_of((unsigned)dcl_order_key(smallest));
}

DCL_INLINE long long dcl_combine_double_max(long long largest, double x)
{
    long long key = x != x ? DCL_IDENTITY_double_max : dcl_order_key_64((long long)dcl_bits_of_double(x));
    return key > largest ? key : largest;
}

DCL_INLINE double dcl_finish_double_max(long long largest)
{
    return dcl_double_of((unsigned long long)dcl_order_key_64(largest));
}

DCL_INLINE long long dcl_combine_double_min(long long smallest, double x)
{
    long long key = x != x ? DCL_IDENTITY_double_min : dcl_order_key_64((long long)dcl_bits_of_double(x));
    return key < smallest ? key : smallest;
}

DCL_INLINE double dcl_finish_double_min(long long smallest)
{
    return dcl_double_of((unsigned long long)dcl_order_key_64(smallest));
}

/* A sum of integers wraps in the element's width before it is divided, towards zero. A device
 * divides integers of 32 bits much faster than those of 64. */
DCL_INLINE long long dcl_divide(long long sum, unsigned long long ranks, unsigned bytes)
{
    return bytes == 8 ? sum / (long long)ranks : (int)sum / (int)ranks;
}

DCL_INLINE unsigned long long dcl_divide_unsigned(unsigned long long sum, unsigned long long ranks, unsigned bytes)
{
    return bytes == 8 ? sum / ranks : (unsigned)sum / (unsigned)ranks;
}

#define DCL_FINISH_sum(TYPE, BYTES, KIND, ACCUMULATOR, RANKS) dcl_finish_##KIND##_sum(ACCUMULATOR)
#define DCL_FINISH_prod(TYPE, BYTES, KIND, ACCUMULATOR, RANKS) dcl_finish_##KIND##_prod(ACCUMULATOR)
#define DCL_FINISH_max(TYPE, BYTES, KIND, ACCUMULATOR, RANKS) dcl_finish_##KIND##_max(ACCUMULATOR)
#define DCL_FINISH_min(TYPE, BYTES, KIND, ACCUMULATOR, RANKS) dcl_finish_##KIND##_min(ACCUMULATOR)
#define DCL_FINISH_avg(TYPE, BYTES, KIND, ACCUMULATOR, RANKS) \
    DCL_AVERAGE_##KIND(TYPE, BYTES, ACCUMULATOR, RANKS)
#define DCL_AVERAGE_float(TYPE, BYTES, SUM, RANKS) ((SUM) / (float)(RANKS))
#define DCL_AVERAGE_double(TYPE, BYTES, SUM, RANKS) ((SUM) / (double)(RANKS))
#define DCL_AVERAGE_unsigned(TYPE, BYTES, SUM, RANKS) dcl_divide_unsigned(SUM, RANKS, BYTES)
#define DCL_AVERAGE_integer(TYPE, BYTES, SUM, RANKS) \
    dcl_divide(dcl_value_##TYPE(dcl_##TYPE##_of_integer((long long)(SUM))), RANKS, BYTES)

/* Reduces `elements` elements, a constant, of every rank. Those of the first rank are at `from`.
 * The elements of several ranks are loaded before the first are used. */
#define DCL_REDUCE(NAME, TYPE, OPERATION) \
    DCL_REDUCE_KERNEL(NAME, TYPE, OPERATION, DCL_BYTES_##TYPE, DCL_KIND_##TYPE)
#define DCL_REDUCE_KERNEL(NAME, TYPE, OPERATION, BYTES, KIND) DCL_REDUCE_EXPANDED(NAME, TYPE, OPERATION, BYTES, KIND)
#define DCL_REDUCE_EXPANDED(NAME, TYPE, OPERATION, BYTES, KIND) \
    DCL_INLINE struct dcl_packet NAME##_packet(const struct dcl_reduce_arguments *arguments, \
                                               const char *from, unsigned elements) \
    { \
        if (arguments->ranks == 1) \
            return dcl_load(from, elements * BYTES); \
        DCL_ACCUMULATOR_##KIND##_##OPERATION accumulators[16 / BYTES]; \
        DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
            accumulators[i] = DCL_IDENTITY_##KIND##_##OPERATION; \
        DCL_NO_UNROLL for (unsigned long long rank = 0; rank < arguments->ranks; rank += DCL_DEPTH) { \
            struct dcl_packet packets[DCL_DEPTH]; \
            DCL_UNROLL for (unsigned next = 0; next < DCL_DEPTH; next++) \
                if (rank + next < arguments->ranks) \
                    packets[next] = dcl_load(from + (rank + next) * arguments->stride * BYTES, elements * BYTES); \
            DCL_UNROLL for (unsigned next = 0; next < DCL_DEPTH; next++) \
                if (rank + next < arguments->ranks) \
                    DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
                        accumulators[i] = dcl_combine_##KIND##_##OPERATION( \
                            accumulators[i], dcl_value_##TYPE(dcl_get_##BYTES(&packets[next], i))); \
        } \
        struct dcl_packet output = {{0, 0, 0, 0}}; \
        DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
            dcl_put_##BYTES(&output, i, dcl_##TYPE##_of_##KIND(DCL_FINISH_##OPERATION( \
                                            TYPE, BYTES, KIND, accumulators[i], arguments->ranks))); \
        return output; \
    } \
    DCL_KERNEL(NAME, dcl_reduce_arguments) \
    { \
        enum { ELEMENTS = 16 / BYTES }; \
        const struct dcl_cut cut = \
            arguments.stride % ELEMENTS == 0 \
                ? dcl_cut(arguments.input, BYTES, arguments.output, BYTES, ELEMENTS, arguments.count) \
                : dcl_no_packets(arguments.count); \
        DCL_THREADS(thread) \
        { \
            for (unsigned long long i = DCL_THREAD_INDEX(thread); i < cut.packets; i += DCL_THREAD_COUNT) { \
                unsigned long long first = (cut.head + i * ELEMENTS) * BYTES; \
                dcl_store((char *)arguments.output + first, \
                          NAME##_packet(&arguments, (const char *)arguments.input + first, ELEMENTS), 16); \
            } \
            for (unsigned long long i = DCL_THREAD_INDEX(thread); i < cut.loose; i += DCL_THREAD_COUNT) { \
                unsigned long long first = dcl_loose(cut, ELEMENTS, i) * BYTES; \
                dcl_store((char *)arguments.output + first, \
                          NAME##_packet(&arguments, (const char *)arguments.input + first, 1), BYTES); \
            } \
        } \
    }

#endif
