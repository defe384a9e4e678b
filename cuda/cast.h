/* Casts, divisions, and the normalization of bool. */
#ifndef DCL_CAST_H
#define DCL_CAST_H

#include "arguments.h"
#include "packet.h"

/* Converts the value of an element to another type. */
#define DCL_CAST(NAME, FROM, TO) \
    DCL_CAST_KERNEL(NAME, FROM, TO, DCL_BYTES_##FROM, DCL_BYTES_##TO, DCL_KIND_##FROM)
#define DCL_NORMALIZE_BOOL(NAME) DCL_CAST_KERNEL(NAME, bool, bool, 1, 1, integer)

#define DCL_CAST_KERNEL(NAME, FROM, TO, FROM_BYTES, TO_BYTES, KIND) \
    DCL_CAST_EXPANDED(NAME, FROM, TO, FROM_BYTES, TO_BYTES, KIND)
#define DCL_CAST_EXPANDED(NAME, FROM, TO, FROM_BYTES, TO_BYTES, KIND) \
    DCL_INLINE struct dcl_packet NAME##_packet(const struct dcl_cast_arguments *arguments, \
                                               const struct dcl_packet *input, unsigned elements) \
    { \
        struct dcl_packet output = {{0, 0, 0, 0}}; \
        (void)arguments; \
        DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
            dcl_put_##TO_BYTES(&output, i, dcl_##TO##_of_##KIND(dcl_value_##FROM(dcl_get_##FROM_BYTES(input, i)))); \
        return output; \
    } \
    DCL_STREAM_KERNEL(NAME, dcl_cast_arguments, FROM_BYTES, TO_BYTES, NAME##_packet)

/* Divides a float32, and rounds the quotient once more to the other type. */
#define DCL_DIVIDE(NAME, TO) DCL_DIVIDE_KERNEL(NAME, TO, DCL_BYTES_##TO)
#define DCL_DIVIDE_KERNEL(NAME, TO, TO_BYTES) DCL_DIVIDE_EXPANDED(NAME, TO, TO_BYTES)
#define DCL_DIVIDE_EXPANDED(NAME, TO, TO_BYTES) \
    DCL_INLINE struct dcl_packet NAME##_packet(const struct dcl_divide_arguments *arguments, \
                                               const struct dcl_packet *input, unsigned elements) \
    { \
        struct dcl_packet output = {{0, 0, 0, 0}}; \
        DCL_UNROLL for (unsigned i = 0; i < elements; i++) \
            dcl_put_##TO_BYTES(&output, i, dcl_##TO##_of_float(dcl_float_of(input->words[i]) / arguments->divisor)); \
        return output; \
    } \
    DCL_STREAM_KERNEL(NAME, dcl_divide_arguments, 4, TO_BYTES, NAME##_packet)

#endif
