/* Reductions of float8, which not every device's NCCL has. */
#ifndef DCL_REDUCE_H
#define DCL_REDUCE_H

#include "arguments.h"
#include "packet.h"

/* Each operation starts with its identity, combines the accumulator with the value of every rank,
 * and finishes with a float, which is rounded once. The identity of the sum is -0, because a sum
 * that starts with +0 is never -0. Maximum and minimum compare integers that have the order of the
 * floats. */
#define DCL_ACCUMULATOR_sum float
#define DCL_ACCUMULATOR_prod float
#define DCL_ACCUMULATOR_max int
#define DCL_ACCUMULATOR_min int
#define DCL_ACCUMULATOR_avg float

#define DCL_IDENTITY_sum -0.0f
#define DCL_IDENTITY_prod 1.0f
#define DCL_IDENTITY_max (int)0x80000000
#define DCL_IDENTITY_min 0x7fffffff
#define DCL_IDENTITY_avg -0.0f

/* An integer that is ordered as the float with these bits; -0 is below +0. It is its own
 * inverse. */
DCL_INLINE int dcl_order_key(int bits)
{
    return bits ^ (bits >> 31 & 0x7fffffff);
}

DCL_INLINE float dcl_combine_sum(float sum, float x)
{
    return sum + x;
}

DCL_INLINE float dcl_finish_sum(float sum, unsigned long long ranks)
{
    (void)ranks;
    return sum;
}

DCL_INLINE float dcl_combine_prod(float product, float x)
{
    return product * x;
}

DCL_INLINE float dcl_finish_prod(float product, unsigned long long ranks)
{
    (void)ranks;
    return product;
}

DCL_INLINE float dcl_combine_avg(float sum, float x)
{
    return sum + x;
}

DCL_INLINE float dcl_finish_avg(float sum, unsigned long long ranks)
{
    return sum / (float)ranks;
}

/* A NaN gives the identity, which is below every number. Its float is a NaN too. */
DCL_INLINE int dcl_combine_max(int largest, float x)
{
    int key = dcl_is_nan(x) ? DCL_IDENTITY_max : dcl_order_key((int)dcl_bits_of(x));
    return key > largest ? key : largest;
}

DCL_INLINE float dcl_finish_max(int largest, unsigned long long ranks)
{
    (void)ranks;
    return dcl_float_of((unsigned)dcl_order_key(largest));
}

/* A NaN is above every number. */
DCL_INLINE int dcl_combine_min(int smallest, float x)
{
    int key = dcl_is_nan(x) ? DCL_IDENTITY_min : dcl_order_key((int)dcl_bits_of(x));
    return key < smallest ? key : smallest;
}

DCL_INLINE float dcl_finish_min(int smallest, unsigned long long ranks)
{
    (void)ranks;
    return dcl_float_of((unsigned)dcl_order_key(smallest));
}

/* Reduces `elements` elements, a constant, of every rank. Those of the first rank are at `from`.
 * The elements of several ranks are loaded before the first are used. */
#define DCL_REDUCE(NAME, TYPE, OPERATION) \
    DCL_INLINE struct dcl_packet NAME##_packet(const struct dcl_reduce_arguments *arguments, \
                                               const char *from, unsigned elements) \
    { \
        if (arguments->ranks == 1) \
            return dcl_load(from, elements); \
        DCL_ACCUMULATOR_##OPERATION accumulators[16]; \
        DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
            accumulators[i] = DCL_IDENTITY_##OPERATION; \
        DCL_NO_UNROLL for (unsigned long long rank = 0; rank < arguments->ranks; rank += DCL_DEPTH) { \
            struct dcl_packet packets[DCL_DEPTH]; \
            DCL_UNROLL for (unsigned next = 0; next < DCL_DEPTH; next++) \
                if (rank + next < arguments->ranks) \
                    packets[next] = dcl_load(from + (rank + next) * arguments->stride, elements); \
            DCL_UNROLL for (unsigned next = 0; next < DCL_DEPTH; next++) \
                if (rank + next < arguments->ranks) \
                    DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
                        accumulators[i] = dcl_combine_##OPERATION(accumulators[i], \
                                                                  dcl_value_##TYPE(dcl_get_1(&packets[next], i))); \
        } \
        struct dcl_packet output = {{0, 0, 0, 0}}; \
        DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
            dcl_put_1(&output, i, dcl_##TYPE##_of_float(dcl_finish_##OPERATION(accumulators[i], arguments->ranks))); \
        return output; \
    } \
    DCL_KERNEL(NAME, dcl_reduce_arguments) \
    { \
        const struct dcl_cut cut = \
            arguments.stride % 16 == 0 ? dcl_cut(arguments.input, 1, arguments.output, 1, 16, arguments.count) \
                                       : dcl_no_packets(arguments.count); \
        DCL_THREADS(thread) \
        { \
            for (unsigned long long i = DCL_THREAD_INDEX(thread); i < cut.packets; i += DCL_THREAD_COUNT) { \
                unsigned long long first = cut.head + i * 16; \
                dcl_store((char *)arguments.output + first, \
                          NAME##_packet(&arguments, (const char *)arguments.input + first, 16), 16); \
            } \
            for (unsigned long long i = DCL_THREAD_INDEX(thread); i < cut.loose; i += DCL_THREAD_COUNT) { \
                unsigned long long element = dcl_loose(cut, 16, i); \
                dcl_store((char *)arguments.output + element, \
                          NAME##_packet(&arguments, (const char *)arguments.input + element, 1), 1); \
            } \
        } \
    }

#endif
