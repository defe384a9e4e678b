/* Element-wise operations on two inputs, which may be broadcast, with the host's bits. */
#ifndef DCL_ELEMENTWISE_H
#define DCL_ELEMENTWISE_H

#include "reduce.h"

/* Sum, product, maximum and minimum are reductions over two ranks. */
#define DCL_PAIR(KIND, VALUE, OPERATION) \
    DCL_INLINE VALUE dcl_pair_##KIND##_##OPERATION(VALUE a, VALUE b) \
    { \
        DCL_ACCUMULATOR_##KIND##_##OPERATION first = DCL_IDENTITY_##KIND##_##OPERATION; \
        first = dcl_combine_##KIND##_##OPERATION(first, a); \
        return dcl_finish_##KIND##_##OPERATION(dcl_combine_##KIND##_##OPERATION(first, b)); \
    }

DCL_PAIR(float, float, sum)
DCL_PAIR(float, float, prod)
DCL_PAIR(float, float, max)
DCL_PAIR(float, float, min)
DCL_PAIR(integer, long long, sum)
DCL_PAIR(integer, long long, prod)
DCL_PAIR(integer, long long, max)
DCL_PAIR(integer, long long, min)

DCL_INLINE float dcl_pair_float_sub(float a, float b)
{
    return a - b;
}

DCL_INLINE float dcl_pair_float_div(float a, float b)
{
    return a / b;
}

DCL_INLINE long long dcl_pair_integer_sub(long long a, long long b)
{
    return (long long)((unsigned long long)a - (unsigned long long)b);
}

/* Truncates. A division by 0 gives 0. The smallest integer divided by -1 wraps: C does not define
 * that quotient. A device divides integers of 32 bits much faster than those of 64. */
DCL_INLINE long long dcl_pair_integer_div(long long a, long long b)
{
    if (b == 0)
        return 0;
    if (b == -1)
        return dcl_pair_integer_sub(0, a);
    return (int)a == a && (int)b == b ? (int)a / (int)b : a / b;
}

/* The positions in both inputs of an element of the output. */
#define DCL_PAIR_SOURCES(NAME, NUMBER) \
    DCL_INLINE void NAME(const struct dcl_elementwise_arguments *arguments, NUMBER element, long long *sources) \
    { \
        NUMBER rest = element; \
        sources[0] = sources[1] = 0; \
        DCL_NO_UNROLL for (unsigned dim = (unsigned)arguments->dim_count; dim-- > 1;) { \
            const NUMBER size = (NUMBER)arguments->dims[dim], quotient = rest / size; \
            DCL_UNROLL for (unsigned side = 0; side < 2; side++) \
                sources[side] += (long long)(rest - quotient * size) * arguments->strides[side][dim]; \
            rest = quotient; \
        } \
        DCL_UNROLL for (unsigned side = 0; side < 2; side++) \
            sources[side] += (long long)rest * arguments->strides[side][0]; \
    }

DCL_PAIR_SOURCES(dcl_pair_sources_narrow, unsigned)
DCL_PAIR_SOURCES(dcl_pair_sources_wide, unsigned long long)

/* Combines `elements` elements, a constant, from element `first` of the output on. They are in one
 * row. Where an input repeats one element, each of them is that one. */
#define DCL_ELEMENTWISE(NAME, TYPE, OPERATION) \
    DCL_ELEMENTWISE_KERNEL(NAME, TYPE, OPERATION, DCL_BYTES_##TYPE, DCL_KIND_##TYPE)
#define DCL_ELEMENTWISE_KERNEL(NAME, TYPE, OPERATION, BYTES, KIND) \
    DCL_ELEMENTWISE_EXPANDED(NAME, TYPE, OPERATION, BYTES, KIND)
#define DCL_ELEMENTWISE_EXPANDED(NAME, TYPE, OPERATION, BYTES, KIND) \
    DCL_INLINE void NAME##_packet(const struct dcl_elementwise_arguments *arguments, unsigned long long first, \
                                  unsigned elements) \
    { \
        const unsigned last = arguments->dim_count == 0 ? 0 : (unsigned)arguments->dim_count - 1; \
        struct dcl_packet inputs[2], output = {{0, 0, 0, 0}}; \
        unsigned steps[2]; \
        long long sources[2]; \
        if (arguments->count <= DCL_NARROW_COUNT) \
            dcl_pair_sources_narrow(arguments, (unsigned)first, sources); \
        else \
            dcl_pair_sources_wide(arguments, first, sources); \
        DCL_UNROLL for (unsigned side = 0; side < 2; side++) { \
            const char *from = (const char *)arguments->inputs[side] + sources[side] * BYTES; \
            steps[side] = arguments->strides[side][last] != 0; \
            inputs[side] = steps[side] ? dcl_load(from, elements * BYTES) : dcl_load(from, BYTES); \
        } \
        DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
            dcl_put_##BYTES(&output, i, \
                            dcl_##TYPE##_of_##KIND(dcl_pair_##KIND##_##OPERATION( \
                                dcl_value_##TYPE(steps[0] ? dcl_get_##BYTES(&inputs[0], i) \
                                                          : dcl_get_##BYTES(&inputs[0], 0)), \
                                dcl_value_##TYPE(steps[1] ? dcl_get_##BYTES(&inputs[1], i) \
                                                          : dcl_get_##BYTES(&inputs[1], 0))))); \
        dcl_store((char *)arguments->output + first * BYTES, output, elements * BYTES); \
    } \
    DCL_KERNEL(NAME, dcl_elementwise_arguments) \
    { \
        enum { ELEMENTS = 16 / BYTES }; \
        DCL_THREADS(thread) \
        { \
            for (unsigned long long i = DCL_THREAD_INDEX(thread); i < arguments.packets; i += DCL_THREAD_COUNT) \
                NAME##_packet(&arguments, i * ELEMENTS, ELEMENTS); \
            for (unsigned long long i = arguments.packets * ELEMENTS + DCL_THREAD_INDEX(thread); i < arguments.count; \
                 i += DCL_THREAD_COUNT) \
                NAME##_packet(&arguments, i, 1); \
        } \
    }

#endif
