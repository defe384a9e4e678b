/* The layer by itself, for an engine with a graph of its own: what a plugin of TensorRT's (an IPluginV3) would call, and when.
 *
 *   supportsFormatCombination  dcl_dist_collective_check_type
 *   getOutputShapes            dcl_dist_collective_get_output_dims
 *   clone                      dcl_dist_collective_clone
 *   getFieldsToSerialize       dcl_dist_collective_serialize
 *   attachToContext            dcl_dist_collective_bind
 *   enqueue                    dcl_bound_layer_enqueue
 *
 * Every operation runs on raw addresses, apart and in place, then on a group and on a partition of the ranks.
 *
 *   sample_layer --ranks 4
 *   distcollective launch -n 4 -- sample_layer
 */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>

#include "mistakes.h"
#include "options.h"
#include "ranks.h"
#include "values.h"

/* ---------------------------------------------------------------------------------------------------------------------------------
 * Before there are ranks
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Attributes, types and shapes: what an engine asks while it builds. */
static int describe(void) {
    dcl_layer_t *layer = NULL;
    CHECK(dcl_dist_collective_new(DCL_COLLECTIVE_REDUCE_SCATTER, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    CHECK(dcl_layer_set_name(layer, "grad_sync"));
    CHECK(dcl_layer_set_metadata(layer, "from block 3"));
    CHECK(dcl_layer_set_nb_rank(layer, 4));

    CHECK(dcl_dist_collective_check_type(layer, DCL_DATA_TYPE_BF16));

    /* Dimensions that are not known yet stay -1. */
    const dcl_dims_t fixed = {2, {8, 3}}, dynamic = {2, {-1, 3}};
    dcl_dims_t output;
    CHECK(dcl_dist_collective_get_output_dims(layer, &fixed, &output));
    REQUIRE(output.nb_dims == 2 && output.d[0] == 2 && output.d[1] == 3);
    CHECK(dcl_dist_collective_get_output_dims(layer, &dynamic, &output));
    REQUIRE(output.nb_dims == 2 && output.d[0] == -1 && output.d[1] == 3);

    /* A copy goes its own way. */
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

    /* Bytes for the engine's own file, and the same layer from them. */
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
    printf("layer \"%s\" (%s): %s among %d groups of %d, root %d of each\n", name, kind, dcl_reduce_operation_name(reduce_op),
           (int)nb_groups, (int)group_size, (int)root);

    CHECK(dcl_layer_free(layer));
    CHECK(dcl_layer_free(copy));
    CHECK(dcl_layer_free(again));
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------------------------
 * On ranks
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Runs a bound layer on this input, and compares every element of the output. A side that is not used on this rank may be NULL. */
static int run_and_check(dcl_bound_layer_t *bound, const struct rank *rank, dcl_collective_operation_t operation, int32_t root,
                         const dcl_dims_t *dims, float *input, float *output) {
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

/* Runs a bound layer with input and output apart, and then in the same memory, as far as the operation can. */
static int run_apart_and_in_place(dcl_bound_layer_t *bound, const struct rank *rank, dcl_collective_operation_t operation,
                                  int32_t root) {
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
        failed |= run_and_check(bound, rank, operation, root, &dims, reads_input ? memory : NULL, reads_input ? NULL : memory);
        break;
    default:
        /* Other ranks run twice only if this one does. */
        failed |= run_and_check(bound, rank, operation, root, &dims, memory, memory + count);
    }
    free(memory);
    return failed;
}

/* Puts a layer of one operation on the communicator, and runs it. */
static int run_operation(const struct rank *rank, dcl_collective_operation_t operation) {
    const char *name = dcl_collective_operation_name(operation);
    int32_t root = rank->count - 1;
    dcl_layer_t *layer = NULL;
    dcl_bound_layer_t *bound = NULL;
    CHECK(dcl_dist_collective_new(operation, reduces(operation) ? DCL_REDUCE_SUM : DCL_REDUCE_NONE, has_root(operation) ? root : -1,
                                  NULL, 0, &layer));
    CHECK(dcl_layer_set_nb_rank(layer, rank->count));
    CHECK(dcl_layer_set_name(layer, name));
    CHECK(dcl_dist_collective_bind(layer, rank->communicator, DCL_DATA_TYPE_FLOAT, &bound));
    /* What is bound is a copy. */
    CHECK(dcl_layer_free(layer));
    int failed = run_apart_and_in_place(bound, rank, operation, root);
    CHECK(dcl_bound_layer_free(bound));
    if (!failed) {
        printf("Rank %d - %s PASSED\n", (int)rank->number, name);
    }
    return failed;
}

/* The last rank and the first, in this order, gather; others skip the layer. */
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

/* Each pair of neighbours broadcasts from its second member: one layer for all. */
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
    /* The root counts within each group now. */
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

/* One rank: everything. */
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

/* ---------------------------------------------------------------------------------------------------------------------------------
 * Mistakes
 * ------------------------------------------------------------------------------------------------------------------------------ */

static int mistakes_of_making(void) {
    const int64_t twice[] = {2, 0, 2}, negative[] = {0, -2};
    dcl_layer_t *layer = NULL;
    int wrong = 0;
    wrong += expect(NULL, "an operation that there is not",
                    dcl_dist_collective_new(8, DCL_REDUCE_NONE, -1, NULL, 0, &layer), DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a reduction that there is not",
                    dcl_dist_collective_new(DCL_COLLECTIVE_ALL_REDUCE, 6, -1, NULL, 0, &layer), DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a reduction that all_gather has not",
                    dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_SUM, -1, NULL, 0, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a gather without a root",
                    dcl_dist_collective_new(DCL_COLLECTIVE_GATHER, DCL_REDUCE_NONE, -1, NULL, 0, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a group with a rank twice",
                    dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, twice, 3, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a group with a negative rank",
                    dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, negative, 2, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a group without its ranks",
                    dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, NULL, 2, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "nowhere to put the layer",
                    dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, NULL, 0, NULL),
                    DCL_STATUS_INVALID_ARGUMENT);
    REQUIRE(layer == NULL);
    return wrong;
}

static int mistakes_of_asking(void) {
    const dcl_dims_t ten_rows = {2, {10, 8}}, too_many = {DCL_MAX_DIMS + 1, {1}}, four_rows = {1, {4}};
    dcl_layer_t *layer = NULL;
    dcl_tensor_t *tensor = NULL;
    dcl_dims_t output;
    int wrong = 0;
    CHECK(dcl_dist_collective_new(DCL_COLLECTIVE_REDUCE_SCATTER, DCL_REDUCE_AVG, -1, NULL, 0, &layer));
    CHECK(dcl_layer_set_nb_rank(layer, 4));
    CHECK(dcl_layer_set_name(layer, "grad_sync"));
    wrong += expect(NULL, "the average of bool", dcl_dist_collective_check_type(layer, DCL_DATA_TYPE_BOOL),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a type of TensorRT's that has no collective", dcl_dist_collective_check_type(layer, 10),
                    DCL_STATUS_UNSUPPORTED);
    wrong += expect(NULL, "a reduce_scatter of 10 rows on 4 ranks",
                    dcl_dist_collective_get_output_dims(layer, &ten_rows, &output), DCL_STATUS_INVALID_SHAPE);
    wrong += expect(NULL, "more dimensions than there may be", dcl_dist_collective_get_output_dims(layer, &too_many, &output),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "no ranks at all", dcl_layer_set_nb_rank(layer, 0), DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "the input of a layer of no network", dcl_layer_get_input(layer, 0, &tensor),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a transpose of a layer that has none", dcl_shuffle_set_first_transpose(layer, NULL, 0),
                    DCL_STATUS_INVALID_ARGUMENT);
    CHECK(dcl_dist_collective_set_collective_operation(layer, DCL_COLLECTIVE_ALL_GATHER));
    wrong += expect(NULL, "an operation to which the reduction does not fit",
                    dcl_dist_collective_get_output_dims(layer, &four_rows, &output), DCL_STATUS_INVALID_NETWORK);
    CHECK(dcl_dist_collective_set_reduce_op(layer, DCL_REDUCE_NONE));
    CHECK(dcl_dist_collective_get_output_dims(layer, &four_rows, &output));
    REQUIRE(output.nb_dims == 1 && output.d[0] == 16);

    char name[4] = "?";
    size_t length = 0;
    wrong += expect(NULL, "no room for a name", dcl_layer_get_name(layer, name, sizeof name, &length),
                    DCL_STATUS_BUFFER_TOO_SMALL);
    REQUIRE(length == strlen("grad_sync") && strcmp(name, "?") == 0);

    unsigned char bytes[512];
    CHECK(dcl_dist_collective_serialize(layer, bytes, sizeof bytes, &length));
    wrong += expect(NULL, "half of a layer's bytes", dcl_dist_collective_deserialize(bytes, length / 2, &layer),
                    DCL_STATUS_INVALID_PLAN);

    CHECK(dcl_layer_free(layer));
    CHECK(dcl_layer_free(NULL));
    wrong += expect(NULL, "a layer freed twice", dcl_layer_free(layer), DCL_STATUS_INVALID_HANDLE);
    wrong += expect(NULL, "a freed layer", dcl_dist_collective_set_root(layer, 0), DCL_STATUS_INVALID_HANDLE);
    wrong += expect(NULL, "no layer", dcl_dist_collective_set_root(NULL, 0), DCL_STATUS_INVALID_HANDLE);
    return wrong;
}

/* A layer that goes with its network. */
static int mistakes_of_owning(void) {
    const dcl_dims_t dims = {1, {4}};
    dcl_network_t *network = NULL;
    dcl_tensor_t *x = NULL;
    dcl_layer_t *layer = NULL;
    CHECK(dcl_network_new(&network));
    CHECK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    CHECK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_TO_ALL, DCL_REDUCE_NONE, -1, NULL, 0, &layer));
    int wrong = expect(NULL, "freeing a layer of a network", dcl_layer_free(layer), DCL_STATUS_INVALID_ARGUMENT);
    CHECK(dcl_network_free(network));
    wrong += expect(NULL, "a layer of a freed network", dcl_layer_set_nb_rank(layer, 2), DCL_STATUS_INVALID_HANDLE);
    return wrong;
}

/* A layer of an operation for this many ranks; 0 leaves that open. */
static int make_layer(dcl_collective_operation_t operation, int32_t nb_rank, dcl_layer_t **layer) {
    CHECK(dcl_dist_collective_new(operation, reduces(operation) ? DCL_REDUCE_SUM : DCL_REDUCE_NONE, -1, NULL, 0, layer));
    CHECK(dcl_layer_set_name(*layer, "sync"));
    if (nb_rank > 0) {
        CHECK(dcl_layer_set_nb_rank(*layer, nb_rank));
    }
    return 0;
}

/* Binds a layer that does not fit. No rank has bound it then, and the communicator works on. */
static int misfit(const struct rank *rank, const char *mistake, dcl_collective_operation_t operation, int32_t nb_rank,
                  dcl_data_type_t data_type, dcl_status_t expected) {
    dcl_layer_t *layer = NULL;
    dcl_bound_layer_t *bound = NULL;
    if (make_layer(operation, nb_rank, &layer)) {
        return 1;
    }
    int wrong = expect(rank, mistake, dcl_dist_collective_bind(layer, rank->communicator, data_type, &bound), expected);
    REQUIRE(bound == NULL);
    CHECK(dcl_communicator_barrier(rank->communicator));
    CHECK(dcl_layer_free(layer));
    return wrong;
}

/* Addresses and dimensions that a bound layer cannot take: found before anything moves, so that no rank waits for another. */
static int mistakes_of_enqueue(const struct rank *rank) {
    const dcl_dims_t four = {1, {4}}, dynamic = {1, {-1}};
    float x[16] = {0}, y[8 * MAX_RANKS];
    dcl_layer_t *layer = NULL;
    dcl_bound_layer_t *bound = NULL;
    int wrong = 0;
    if (make_layer(DCL_COLLECTIVE_ALL_GATHER, rank->count, &layer)) {
        return 1;
    }
    CHECK(dcl_dist_collective_bind(layer, rank->communicator, DCL_DATA_TYPE_FLOAT, &bound));
    CHECK(dcl_layer_free(layer));
    wrong += expect(rank, "no input", dcl_bound_layer_enqueue(bound, NULL, y, &four, NULL, NULL), DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "no output", dcl_bound_layer_enqueue(bound, x, NULL, &four, NULL, NULL), DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "an address between two floats",
                    dcl_bound_layer_enqueue(bound, (const char *)x + 2, y, &four, NULL, NULL), DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "an input at the wrong place in the output",
                    dcl_bound_layer_enqueue(bound, y + 1, y, &four, NULL, NULL), DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "a dimension that is not settled", dcl_bound_layer_enqueue(bound, x, y, &dynamic, NULL, NULL),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(rank, "no dimensions", dcl_bound_layer_enqueue(bound, x, y, NULL, NULL, NULL), DCL_STATUS_INVALID_ARGUMENT);
    CHECK(dcl_bound_layer_enqueue(bound, x, y, &four, NULL, NULL));
    CHECK(dcl_bound_layer_free(bound));
    wrong += expect(rank, "a freed layer", dcl_bound_layer_enqueue(bound, x, y, &four, NULL, NULL), DCL_STATUS_INVALID_HANDLE);
    return wrong;
}

/* Mistakes after which the communicator still works. */
static int mistakes_that_break_nothing(const struct rank *rank, void *argument) {
    (void)argument;
    REQUIRE(rank->count >= 2);
    int wrong = 0;
    if (rank->number == 0) {
        wrong += mistakes_of_making() + mistakes_of_asking() + mistakes_of_owning();
    }
    bool is_odd = rank->number == 1;
    wrong += misfit(rank, "a number of ranks that is not set", DCL_COLLECTIVE_ALL_REDUCE, 0, DCL_DATA_TYPE_FLOAT,
                    DCL_STATUS_INVALID_COMMUNICATOR);
    wrong += misfit(rank, "more ranks than there are", DCL_COLLECTIVE_ALL_REDUCE, rank->count + 1, DCL_DATA_TYPE_FLOAT,
                    DCL_STATUS_INVALID_COMMUNICATOR);
    wrong += misfit(rank, "layers that differ", is_odd ? DCL_COLLECTIVE_ALL_GATHER : DCL_COLLECTIVE_ALL_REDUCE, rank->count,
                    DCL_DATA_TYPE_FLOAT, DCL_STATUS_DISAGREEMENT);
    wrong += misfit(rank, "types that differ", DCL_COLLECTIVE_ALL_REDUCE, rank->count,
                    is_odd ? DCL_DATA_TYPE_INT32 : DCL_DATA_TYPE_FLOAT, DCL_STATUS_DISAGREEMENT);
    return wrong + mistakes_of_enqueue(rank);
}

/* What one rank does differently from the others in a run. */
enum oddity { ANOTHER_LENGTH, ABSENCE };

/* A run in which the ranks do not do the same. It ends the communicator. */
static int run_oddly(const struct rank *rank, void *argument) {
    enum oddity oddity = *(enum oddity *)argument;
    bool is_odd = rank->number == 1;
    const dcl_dims_t dims = {1, {is_odd && oddity == ANOTHER_LENGTH ? 3 : 4}};
    float x[4] = {0};
    dcl_communicator_t *patient = rank->communicator, *impatient = NULL;
    dcl_layer_t *layer = NULL;
    dcl_bound_layer_t *bound = NULL;
    if (make_layer(DCL_COLLECTIVE_ALL_REDUCE, rank->count, &layer)) {
        return 1;
    }
    /* A bound layer waits as long as the handle that it was bound to says. */
    CHECK(dcl_communicator_barrier(patient));
    CHECK(dcl_communicator_with_timeout(patient, SHORT_MS, &impatient));
    CHECK(dcl_dist_collective_bind(layer, oddity == ABSENCE ? impatient : patient, DCL_DATA_TYPE_FLOAT, &bound));
    int wrong = 0;
    if (oddity == ANOTHER_LENGTH) {
        wrong += expect_either(rank, "ranks that run with different lengths",
                               dcl_bound_layer_enqueue(bound, x, x, &dims, NULL, NULL), DCL_STATUS_DISAGREEMENT,
                               DCL_STATUS_ABORTED);
    } else if (is_odd) {
        wrong += expect_either(rank, "a rank that does not run, itself", wait_until_given_up(rank), DCL_STATUS_ABORTED,
                               DCL_STATUS_DEADLINE_EXCEEDED);
    } else {
        wrong += expect_either(rank, "a rank that does not run", dcl_bound_layer_enqueue(bound, x, x, &dims, NULL, NULL),
                               DCL_STATUS_DEADLINE_EXCEEDED, DCL_STATUS_ABORTED);
    }
    CHECK(dcl_bound_layer_free(bound));
    CHECK(dcl_layer_free(layer));
    CHECK(dcl_communicator_free(impatient));
    return wrong;
}

static int make_mistakes(int32_t nb_ranks) {
    struct job job = {.nb_ranks = nb_ranks, .backend = "host", .timeout_ms = PATIENCE_MS};
    int failed = run_on_ranks(&job, mistakes_that_break_nothing, NULL);
    job.ends_badly = true;
    for (enum oddity oddity = ANOTHER_LENGTH; oddity <= ABSENCE; oddity++) {
        failed |= run_on_ranks(&job, run_oddly, &oddity);
    }
    printf(failed ? "\nNot every mistake got its error.\n" : "\nEvery mistake got its error.\n");
    return failed;
}

int main(int argc, char **argv) {
    struct options options = {.nb_ranks = 4};
    parse_options(argc, argv, &options);
    if (options.mistakes) {
        return make_mistakes(options.nb_ranks) ? FAILED : PASSED;
    }
    /* The addresses are the host's, and so is the backend. */
    const struct job job = {.nb_ranks = options.nb_ranks, .backend = "host", .timeout_ms = 30000};
    return run_on_ranks(&job, demonstrate, NULL) ? FAILED : PASSED;
}
