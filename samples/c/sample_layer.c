/* The layer by itself, for an engine with a graph of its own. These are the calls that a plugin of
 * TensorRT (an IPluginV3) would make in each of its methods:
 *
 *   supportsFormatCombination  dcl_dist_collective_check_type
 *   getOutputShapes            dcl_dist_collective_get_output_dims
 *   clone                      dcl_dist_collective_clone
 *   getFieldsToSerialize       dcl_dist_collective_serialize
 *   attachToContext            dcl_dist_collective_bind
 *   enqueue                    dcl_bound_layer_enqueue
 *
 * Every operation runs on raw addresses, with input and output apart and then in place; after that
 * a group and a partition of the ranks run a layer.
 *
 *   sample_layer --ranks 4
 *   distcollective launch -n 4 -- sample_layer
 */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "ranks.h"
#include "values.h"

/* ---- Before there are ranks ---- */

/* Attributes, types and shapes: what an engine reads while it builds. */
static int describe(void) {
    dcl_layer_t *layer = NULL;
    CHECK(dcl_dist_collective_new(DCL_COLLECTIVE_REDUCE_SCATTER, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    CHECK(dcl_layer_set_name(layer, "grad_sync"));
    CHECK(dcl_layer_set_metadata(layer, "from block 3"));
    CHECK(dcl_layer_set_nb_rank(layer, 4));

    CHECK(dcl_dist_collective_check_type(layer, DCL_DATA_TYPE_BF16));

    /* A dimension that is not known yet is -1, in the output too. */
    const dcl_dims_t fixed = {2, {8, 3}}, dynamic = {2, {-1, 3}};
    dcl_dims_t output;
    CHECK(dcl_dist_collective_get_output_dims(layer, &fixed, &output));
    REQUIRE(output.nb_dims == 2 && output.d[0] == 2 && output.d[1] == 3);
    CHECK(dcl_dist_collective_get_output_dims(layer, &dynamic, &output));
    REQUIRE(output.nb_dims == 2 && output.d[0] == -1 && output.d[1] == 3);

    /* A change of the copy does not change the original. */
    const int64_t pairs[] = {0, 1, 2, 3};
    dcl_layer_t *copy = NULL;
    CHECK(dcl_dist_collective_clone(layer, &copy));
    CHECK(dcl_dist_collective_set_collective_operation(copy, DCL_COLLECTIVE_REDUCE));
    CHECK(dcl_dist_collective_set_reduce_op(copy, DCL_REDUCE_MAX));
    CHECK(dcl_layer_set_nb_rank(copy, 2));
    CHECK(dcl_dist_collective_set_partition(copy, pairs, 2, 2));
    CHECK(dcl_dist_collective_set_root(copy, 1));
    dcl_collective_operation_t operation = -1;
    CHECK(dcl_dist_collective_get_collective_operation(layer, &operation));
    REQUIRE(operation == DCL_COLLECTIVE_REDUCE_SCATTER);

    /* Writes the layer as bytes, for the engine's own file, and reads it back. */
    size_t byte_len = 0;
    CHECK(dcl_dist_collective_serialize(copy, NULL, 0, &byte_len));
    void *bytes = malloc(byte_len);
    REQUIRE(bytes);
    CHECK(dcl_dist_collective_serialize(copy, bytes, byte_len, NULL));
    dcl_layer_t *again = NULL;
    CHECK(dcl_dist_collective_deserialize(bytes, byte_len, &again));
    free(bytes);

    char name[32], kind[32], metadata[32];
    dcl_reduce_operation_t reduce_op = -1;
    int64_t root = -1, groups[4] = {0}, nb_groups = 0, group_size = 0;
    CHECK(dcl_layer_get_name(again, name, sizeof name, NULL));
    CHECK(dcl_layer_get_kind(again, kind, sizeof kind, NULL));
    CHECK(dcl_layer_get_metadata(again, metadata, sizeof metadata, NULL));
    CHECK(dcl_dist_collective_get_reduce_op(again, &reduce_op));
    CHECK(dcl_dist_collective_get_root(again, &root));
    CHECK(dcl_dist_collective_get_groups(again, groups, 4, &nb_groups, &group_size));
    REQUIRE(strcmp(name, "grad_sync") == 0 && strcmp(kind, "reduce") == 0 && strcmp(metadata, "from block 3") == 0);
    REQUIRE(reduce_op == DCL_REDUCE_MAX && root == 1 && nb_groups == 2 && group_size == 2);
    REQUIRE(memcmp(groups, pairs, sizeof pairs) == 0);
    printf("layer \"%s\" (%s): %s among %d groups of %d, root %d of each\n", name, kind,
           dcl_reduce_operation_name(reduce_op), (int)nb_groups, (int)group_size, (int)root);

    CHECK(dcl_layer_free(layer));
    CHECK(dcl_layer_free(copy));
    CHECK(dcl_layer_free(again));
    return 0;
}

/* ---- On ranks ---- */

/* Runs a bound layer and compares every element of the output. An input or output that this rank
 * does not use may be NULL. */
static int run_and_check(dcl_bound_layer_t *bound, const struct rank *rank, dcl_collective_operation_t operation,
                         int32_t root, const dcl_dims_t *dims, float *input, float *output) {
    size_t count = (size_t)(dims->d[0] * dims->d[1]);
    dcl_dims_t output_dims;
    int32_t reads_input = 0, writes_output = 0;
    CHECK(dcl_bound_layer_get_output_dims(bound, dims, &output_dims));
    CHECK(dcl_bound_layer_get_uses(bound, &reads_input, &writes_output));
    size_t output_count = (size_t)(output_dims.d[0] * output_dims.d[1]);
    for (size_t i = 0; output && i < output_count; i++) {
        output[i] = UNWRITTEN;
    }
    for (size_t i = 0; input && i < count; i++) {
        input[i] = input_value(rank->number, i);
    }
    CHECK(dcl_bound_layer_enqueue(bound, input, output, dims, NULL, NULL));
    size_t wrong = 0;
    for (size_t i = 0; output && i < output_count; i++) {
        float before = output == input ? input_value(rank->number, i) : UNWRITTEN;
        float expected = writes_output ? output_value(operation, rank->number, rank->count, root, count, i) : before;
        wrong += memcmp(&output[i], &expected, sizeof expected) != 0;
    }
    if (wrong > 0) {
        fprintf(stderr, "rank %d: %s: %zu of %zu elements are wrong\n", (int)rank->number,
                dcl_collective_operation_name(operation), wrong, output_count);
    }
    return wrong > 0;
}

/* Runs a bound layer with input and output apart, and then in place if the operation can. */
static int run_apart_and_in_place(dcl_bound_layer_t *bound, const struct rank *rank,
                                  dcl_collective_operation_t operation, int32_t root) {
    const dcl_dims_t dims = {2, {2 * rank->count, 3}};
    dcl_dims_t output_dims;
    CHECK(dcl_bound_layer_get_output_dims(bound, &dims, &output_dims));
    size_t count = (size_t)(dims.d[0] * dims.d[1]);
    size_t output_count = (size_t)(output_dims.d[0] * output_dims.d[1]);
    float *memory = malloc((count + output_count) * sizeof(float));
    REQUIRE(memory);
    int failed = run_and_check(bound, rank, operation, root, &dims, memory, memory + count);

    dcl_in_place_t in_place = DCL_IN_PLACE_NEVER;
    size_t offset = 0;
    int32_t reads_input = 0;
    CHECK(dcl_bound_layer_get_in_place(bound, &dims, &in_place, &offset));
    CHECK(dcl_bound_layer_get_uses(bound, &reads_input, NULL));
    switch (in_place) {
    case DCL_IN_PLACE_SAME_ADDRESS:
        failed |= run_and_check(bound, rank, operation, root, &dims, memory, memory);
        break;
    case DCL_IN_PLACE_INPUT_AT:
        failed |= run_and_check(bound, rank, operation, root, &dims, memory + offset, memory);
        break;
    case DCL_IN_PLACE_OUTPUT_AT:
        failed |= run_and_check(bound, rank, operation, root, &dims, memory, memory + offset);
        break;
    case DCL_IN_PLACE_UNUSED:
        failed |= run_and_check(bound, rank, operation, root, &dims, reads_input ? memory : NULL,
                                reads_input ? NULL : memory);
        break;
    default:
        /* The operation has no in-place form. All ranks must make the same calls, so run it
         * again. */
        failed |= run_and_check(bound, rank, operation, root, &dims, memory, memory + count);
    }
    free(memory);
    return failed;
}

/* Binds a layer of one operation to the communicator, and runs it. */
static int run_operation(const struct rank *rank, dcl_collective_operation_t operation) {
    const char *name = dcl_collective_operation_name(operation);
    int32_t root = rank->count - 1;
    dcl_layer_t *layer = NULL;
    dcl_bound_layer_t *bound = NULL;
    CHECK(dcl_dist_collective_new(operation, reduces(operation) ? DCL_REDUCE_SUM : DCL_REDUCE_NONE,
                                  has_root(operation) ? root : -1, NULL, 0, &layer));
    CHECK(dcl_layer_set_nb_rank(layer, rank->count));
    CHECK(dcl_layer_set_name(layer, name));
    CHECK(dcl_dist_collective_bind(layer, rank->communicator, DCL_DATA_TYPE_FLOAT, &bound));
    /* The bound layer is a copy. */
    CHECK(dcl_layer_free(layer));
    int failed = run_apart_and_in_place(bound, rank, operation, root);
    CHECK(dcl_bound_layer_free(bound));
    if (!failed) {
        printf("Rank %d - %s PASSED\n", (int)rank->number, name);
    }
    return failed;
}

/* The last rank and the first, in this order, gather. The other ranks skip the layer. */
static int run_group(const struct rank *rank) {
    const int64_t members[] = {rank->count - 1, 0};
    const dcl_dims_t dims = {1, {3}};
    bool is_member = rank->number == members[0] || rank->number == members[1];
    dcl_layer_t *layer = NULL;
    dcl_bound_layer_t *bound = NULL;
    CHECK(dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, members, 2, &layer));
    CHECK(dcl_dist_collective_bind(layer, rank->communicator, DCL_DATA_TYPE_FLOAT, &bound));
    CHECK(dcl_layer_free(layer));
    int32_t reads_input = -1, writes_output = -1;
    CHECK(dcl_bound_layer_get_uses(bound, &reads_input, &writes_output));
    REQUIRE(reads_input == is_member && writes_output == is_member);
    float input[3], output[6];
    for (size_t i = 0; i < 3; i++) {
        input[i] = input_value(rank->number, i);
    }
    CHECK(dcl_bound_layer_enqueue(bound, is_member ? input : NULL, is_member ? output : NULL, &dims, NULL, NULL));
    for (size_t i = 0; is_member && i < 6; i++) {
        float expected = input_value((int32_t)members[i / 3], i % 3);
        REQUIRE(memcmp(&output[i], &expected, sizeof expected) == 0);
    }
    CHECK(dcl_bound_layer_free(bound));
    printf("Rank %d - a group PASSED%s\n", (int)rank->number, is_member ? "" : ", not a member");
    return 0;
}

/* Each pair of neighbours broadcasts from its second member: one layer for all pairs. */
static int run_partition(const struct rank *rank) {
    int64_t members[MAX_RANKS];
    int32_t nb_pairs = rank->count / 2;
    for (int32_t r = 0; r < 2 * nb_pairs; r++) {
        members[r] = r;
    }
    const dcl_dims_t dims = {1, {3}};
    bool is_member = rank->number < 2 * nb_pairs;
    dcl_layer_t *layer = NULL;
    dcl_bound_layer_t *bound = NULL;
    CHECK(dcl_dist_collective_new(DCL_COLLECTIVE_BROADCAST, DCL_REDUCE_NONE, 1, NULL, 0, &layer));
    /* With a partition, the root is a rank within each group. */
    CHECK(dcl_dist_collective_set_partition(layer, members, nb_pairs, 2));
    CHECK(dcl_dist_collective_bind(layer, rank->communicator, DCL_DATA_TYPE_FLOAT, &bound));
    CHECK(dcl_layer_free(layer));
    float values[3];
    for (size_t i = 0; i < 3; i++) {
        values[i] = input_value(rank->number, i);
    }
    CHECK(dcl_bound_layer_enqueue(bound, is_member ? values : NULL, is_member ? values : NULL, &dims, NULL, NULL));
    for (size_t i = 0; is_member && i < 3; i++) {
        float expected = input_value(rank->number / 2 * 2 + 1, i);
        REQUIRE(memcmp(&values[i], &expected, sizeof expected) == 0);
    }
    CHECK(dcl_bound_layer_free(bound));
    printf("Rank %d - a partition PASSED%s\n", (int)rank->number, is_member ? "" : ", not a member");
    return 0;
}

/* The part of one rank. */
static int demonstrate(const struct rank *rank, void *argument) {
    (void)argument;
    if (rank->number == 0 && describe()) {
        return 1;
    }
    for (dcl_collective_operation_t op = DCL_COLLECTIVE_ALL_REDUCE; op <= DCL_COLLECTIVE_SCATTER; op++) {
        if (run_operation(rank, op)) {
            return 1;
        }
    }
    return rank->count >= 2 && (run_group(rank) || run_partition(rank));
}

int main(int argc, char **argv) {
    struct options options = {0};
    parse_options(argc, argv, &options);
    /* The addresses are in host memory, so the backend is the host's. */
    const struct job job = {.nb_ranks = options.nb_ranks, .backend = "host"};
    return run_on_ranks(&job, demonstrate, NULL) ? FAILED : PASSED;
}
