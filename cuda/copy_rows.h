/* Copies of rows, by the bytes of an element. */
#ifndef DCL_COPY_ROWS_H
#define DCL_COPY_ROWS_H

#include "arguments.h"
#include "packet.h"

/* Neighbouring threads copy neighbouring elements. Up to DCL_NARROW_COUNT elements are indexed in
 * 32 bits, because a division of 64 bits takes several times as long. */
#define DCL_COPY_ROWS(NAME, BYTES) \
    DCL_INLINE unsigned long long NAME##_target(const struct dcl_copy_rows_arguments *arguments, \
                                                unsigned long long element) \
    { \
        const unsigned long long row = arguments->count <= DCL_NARROW_COUNT \
                                           ? (unsigned)element / (unsigned)arguments->row \
                                           : element / arguments->row; \
        return element + row * (arguments->pitch - arguments->row); \
    } \
    DCL_KERNEL(NAME, dcl_copy_rows_arguments) \
    { \
        const unsigned long long in_one_go = DCL_DEPTH * DCL_BLOCK; \
        DCL_THREADS(thread) \
        { \
            for (unsigned long long first = DCL_BLOCK_INDEX * in_one_go + thread; first < arguments.count; \
                 first += DCL_GRID * in_one_go) { \
                struct dcl_packet packets[DCL_DEPTH]; \
                DCL_UNROLL for (unsigned i = 0; i < DCL_DEPTH; i++) \
                    if (first + i * DCL_BLOCK < arguments.count) \
                        packets[i] = dcl_load((const char *)arguments.input + (first + i * DCL_BLOCK) * BYTES, BYTES); \
                DCL_UNROLL for (unsigned i = 0; i < DCL_DEPTH; i++) \
                    if (first + i * DCL_BLOCK < arguments.count) \
                        dcl_store((char *)arguments.output + NAME##_target(&arguments, first + i * DCL_BLOCK) * BYTES, \
                                  packets[i], BYTES); \
            } \
        } \
    }

#endif
