/* The structures that kernels take, by value. src/cuda/kernels.rs makes the same structures.
 *
 * Addresses are multiples of the element's size. Counts are in elements. */
#ifndef DCL_ARGUMENTS_H
#define DCL_ARGUMENTS_H

enum { DCL_MAX_DIMS = 8 };

/* output[i] = input[i] in another type, or as 0 or 1. Both addresses may be the same if the
 * sizes of the types are equal. */
struct dcl_cast_arguments {
    const void *input;
    void *output;
    unsigned long long count;
};

/* output[i] = input[i] / divisor, rounded once to the type of the output. float32 may be divided
 * in place. */
struct dcl_divide_arguments {
    const void *input;
    void *output;
    unsigned long long count;
    float divisor;
};

/* output[i] = the reduction of input[rank * stride + i] over the ranks, in their order. The
 * output may be the first rank's elements, and overlaps the input nowhere else. */
struct dcl_reduce_arguments {
    const void *input;
    void *output;
    unsigned long long count;
    unsigned long long stride;
    unsigned long long ranks;
};

/* The output has these dimensions, the last one varying fastest, without gaps. A step along
 * dimension i of the output is a step of strides[i] elements in the input. count is the product of
 * the dimensions. If it is not 0, all dimensions are at least 1. */
struct dcl_transpose_arguments {
    const void *input;
    void *output;
    unsigned long long count;
    unsigned long long dim_count;
    unsigned long long dims[DCL_MAX_DIMS];
    long long strides[DCL_MAX_DIMS];
};

/* [batch, rows, columns] to [batch, columns, rows], both without gaps. Where bytes are moved as
 * words, rows, columns and addresses are multiples of four. */
struct dcl_transpose_tiled_arguments {
    const void *input;
    void *output;
    unsigned long long batch;
    unsigned long long rows;
    unsigned long long columns;
};

/* Rows of `row` elements, which lie one after the other in the input. In the output each begins
 * `pitch` elements after the one before. count is the number of elements in all rows. */
struct dcl_copy_rows_arguments {
    const void *input;
    void *output;
    unsigned long long count;
    unsigned long long row;
    unsigned long long pitch;
};

/* The output has these dimensions, as above. A step along dimension i of the output is a step of
 * strides[input][i] elements in each input. In the last dimension that is 1, or 0 if the input
 * repeats one element. The first elements of the output are in `packets` packets of 16 bytes, whose
 * elements are in one row each. If there are any, the output is aligned to packets, and so are
 * inputs that repeat no element. */
struct dcl_elementwise_arguments {
    const void *inputs[2];
    void *output;
    unsigned long long count;
    unsigned long long packets;
    unsigned long long dim_count;
    unsigned long long dims[DCL_MAX_DIMS];
    long long strides[2][DCL_MAX_DIMS];
};

#endif
