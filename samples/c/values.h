/* The inputs of the samples' collectives and the outputs that they must produce: the README's table
 * of operations, element by element. */
#ifndef SAMPLES_VALUES_H
#define SAMPLES_VALUES_H

#include <stdbool.h>

#include "distcollective.h"

/* Every element of an output buffer before the collective. */
#define UNWRITTEN (-1.0f)

/* Element i of a rank's input. All elements of all ranks differ, and their sums are exact in
 * float32. */
static inline float input_value(int32_t rank, size_t i) {
    return (float)(1000 * rank + (int32_t)i);
}

static inline float sum_of_inputs(int32_t nb_ranks, size_t i) {
    float sum = 0.0f;
    for (int32_t r = 0; r < nb_ranks; r++) {
        sum += input_value(r, i);
    }
    return sum;
}

static inline bool reduces(dcl_collective_operation_t operation) {
    return operation == DCL_COLLECTIVE_ALL_REDUCE || operation == DCL_COLLECTIVE_REDUCE ||
           operation == DCL_COLLECTIVE_REDUCE_SCATTER;
}

static inline bool has_root(dcl_collective_operation_t operation) {
    return operation == DCL_COLLECTIVE_BROADCAST || operation == DCL_COLLECTIVE_REDUCE ||
           operation == DCL_COLLECTIVE_GATHER || operation == DCL_COLLECTIVE_SCATTER;
}

/* Whether only the root's output is written. */
static inline bool writes_on_root_only(dcl_collective_operation_t operation) {
    return operation == DCL_COLLECTIVE_REDUCE || operation == DCL_COLLECTIVE_GATHER;
}

/* Element i of a rank's output, for inputs of `count` elements and reductions that are sums. */
static inline float output_value(dcl_collective_operation_t operation, int32_t rank, int32_t nb_ranks, int32_t root,
                                 size_t count, size_t i) {
    /* The part of an input that goes to this rank, where the input is divided between ranks. */
    size_t block = count / (size_t)nb_ranks;
    size_t begin = (size_t)rank * block;
    switch (operation) {
    case DCL_COLLECTIVE_ALL_REDUCE:
    case DCL_COLLECTIVE_REDUCE:
        return sum_of_inputs(nb_ranks, i);
    case DCL_COLLECTIVE_ALL_GATHER:
    case DCL_COLLECTIVE_GATHER:
        return input_value((int32_t)(i / count), i % count);
    case DCL_COLLECTIVE_BROADCAST:
        return input_value(root, i);
    case DCL_COLLECTIVE_REDUCE_SCATTER:
        return sum_of_inputs(nb_ranks, begin + i);
    case DCL_COLLECTIVE_ALL_TO_ALL:
        return input_value((int32_t)(i / block), begin + i % block);
    case DCL_COLLECTIVE_SCATTER:
        return input_value(root, begin + i);
    default:
        return UNWRITTEN;
    }
}

#endif /* SAMPLES_VALUES_H */
