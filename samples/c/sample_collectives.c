/* Collectives called on a communicator, in the manner of NCCL and torch.distributed: the eight
 * collectives, memory that all ranks map, groups, a stream with work handles, and timeouts.
 *
 *   sample_collectives --ranks 4
 *   distcollective launch -n 4 -- sample_collectives
 */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "ranks.h"
#include "values.h"

/* The elements of a block, which is the unit of the collectives' counts. */
#define BLOCK ((size_t)5)

/* ---- The eight collectives ---- */

/* Calls one collective on float32; reductions are sums. */
static dcl_status_t call(const struct rank *rank, dcl_collective_operation_t operation, const float *input,
                         float *output, int32_t root) {
    dcl_communicator_t *communicator = rank->communicator;
    const dcl_data_type_t type = DCL_DATA_TYPE_FLOAT;
    switch (operation) {
    case DCL_COLLECTIVE_ALL_REDUCE:
        return dcl_all_reduce(communicator, input, output, BLOCK, type, DCL_REDUCE_SUM, NULL, NULL);
    case DCL_COLLECTIVE_ALL_GATHER:
        return dcl_all_gather(communicator, input, output, BLOCK, type, NULL, NULL);
    case DCL_COLLECTIVE_BROADCAST:
        return dcl_broadcast(communicator, input, output, BLOCK, type, root, NULL, NULL);
    case DCL_COLLECTIVE_REDUCE:
        return dcl_reduce(communicator, input, output, BLOCK, type, DCL_REDUCE_SUM, root, NULL, NULL);
    case DCL_COLLECTIVE_REDUCE_SCATTER:
        return dcl_reduce_scatter(communicator, input, output, BLOCK, type, DCL_REDUCE_SUM, NULL, NULL);
    case DCL_COLLECTIVE_ALL_TO_ALL:
        return dcl_all_to_all(communicator, input, output, BLOCK, type, NULL, NULL);
    case DCL_COLLECTIVE_GATHER:
        return dcl_gather(communicator, input, output, BLOCK, type, root, NULL, NULL);
    default:
        return dcl_scatter(communicator, input, output, BLOCK, type, root, NULL, NULL);
    }
}

/* The number of blocks in a rank's input, and in its output. */
static size_t input_blocks(dcl_collective_operation_t operation, size_t nb_ranks) {
    bool hands_out = operation == DCL_COLLECTIVE_REDUCE_SCATTER || operation == DCL_COLLECTIVE_ALL_TO_ALL ||
                     operation == DCL_COLLECTIVE_SCATTER;
    return hands_out ? nb_ranks : 1;
}

static size_t output_blocks(dcl_collective_operation_t operation, size_t nb_ranks) {
    bool collects = operation == DCL_COLLECTIVE_ALL_GATHER || operation == DCL_COLLECTIVE_ALL_TO_ALL ||
                    operation == DCL_COLLECTIVE_GATHER;
    return collects ? nb_ranks : 1;
}

/* Runs one collective and compares every element of the output. */
static int run_operation(const struct rank *rank, dcl_collective_operation_t operation, float *input, float *output) {
    const char *name = dcl_collective_operation_name(operation);
    int32_t root = rank->count - 1;
    size_t input_count = input_blocks(operation, (size_t)rank->count) * BLOCK;
    size_t output_count = output_blocks(operation, (size_t)rank->count) * BLOCK;
    for (size_t i = 0; i < input_count; i++) {
        input[i] = input_value(rank->number, i);
    }
    for (size_t i = 0; i < output_count; i++) {
        output[i] = UNWRITTEN;
    }
    CHECK(call(rank, operation, input, output, root));
    bool written = rank->number == root || !writes_on_root_only(operation);
    size_t wrong = 0;
    for (size_t i = 0; i < output_count; i++) {
        float expected = written ? output_value(operation, rank->number, rank->count, root, input_count, i) : UNWRITTEN;
        wrong += memcmp(&output[i], &expected, sizeof expected) != 0;
    }
    if (wrong > 0) {
        fprintf(stderr, "rank %d: %s: %zu of %zu elements are wrong\n", (int)rank->number, name, wrong, output_count);
        return 1;
    }
    printf("Rank %d - %s PASSED\n", (int)rank->number, name);
    return 0;
}

/* Runs all collectives, each in memory of the communicator and then in memory of this process. */
static int run_all_operations(const struct rank *rank) {
    size_t byte_len = (size_t)rank->count * BLOCK * sizeof(float);
    float own_input[MAX_RANKS * BLOCK], own_output[MAX_RANKS * BLOCK];
    dcl_buffer_t *input = NULL, *output = NULL;
    void *input_address = NULL, *output_address = NULL;
    CHECK(dcl_communicator_allocate(rank->communicator, byte_len, &input));
    CHECK(dcl_communicator_allocate(rank->communicator, byte_len, &output));
    CHECK(dcl_buffer_get_address(input, &input_address));
    CHECK(dcl_buffer_get_address(output, &output_address));
    for (dcl_collective_operation_t op = DCL_COLLECTIVE_ALL_REDUCE; op <= DCL_COLLECTIVE_SCATTER; op++) {
        if (run_operation(rank, op, input_address, output_address) || run_operation(rank, op, own_input, own_output)) {
            return 1;
        }
    }
    CHECK(dcl_buffer_free(input));
    CHECK(dcl_buffer_free(output));
    return 0;
}

/* ---- Groups, streams, timeouts ---- */

/* Adds up the global ranks of a group's members. */
static int sum_of_members(dcl_communicator_t *group, int64_t *sum) {
    int32_t rank = -1, global_rank = -1;
    CHECK(dcl_communicator_get_rank(group, &rank));
    CHECK(dcl_communicator_get_global_rank(group, rank, &global_rank));
    int64_t own = global_rank;
    CHECK(dcl_all_reduce(group, &own, sum, 1, DCL_DATA_TYPE_INT64, DCL_REDUCE_SUM, NULL, NULL));
    return 0;
}

/* Splits the ranks into the even and the odd ones, each in reverse order. */
static int run_split(const struct rank *rank) {
    dcl_communicator_t *group = NULL;
    CHECK(dcl_communicator_split(rank->communicator, rank->number % 2, -rank->number, &group));
    int32_t number = -1, count = 0;
    CHECK(dcl_communicator_get_rank(group, &number));
    CHECK(dcl_communicator_get_world_size(group, &count));
    REQUIRE(number == (rank->count - 1 - rank->number) / 2);
    int64_t sum = -1, expected = 0;
    for (int32_t r = rank->number % 2; r < rank->count; r += 2) {
        expected += r;
    }
    if (sum_of_members(group, &sum)) {
        return 1;
    }
    REQUIRE(sum == expected);
    printf("Rank %d - split PASSED: rank %d of %d there\n", (int)rank->number, (int)number, (int)count);
    CHECK(dcl_communicator_free(group));
    return 0;
}

/* Makes a group of the last rank and the first. All ranks call it; those that are not members get
 * no communicator. */
static int run_new_group(const struct rank *rank) {
    const int64_t members[] = {rank->count - 1, 0};
    dcl_communicator_t *group = NULL;
    CHECK(dcl_communicator_new_group(rank->communicator, members, 2, &group));
    bool is_member = rank->number == members[0] || rank->number == members[1];
    REQUIRE((group != NULL) == is_member);
    int64_t sum = -1;
    if (is_member) {
        if (sum_of_members(group, &sum)) {
            return 1;
        }
        REQUIRE(sum == rank->count - 1);
    }
    printf("Rank %d - new_group PASSED%s\n", (int)rank->number, is_member ? "" : ", not a member");
    /* For a rank that is not a member this is free(NULL), which does nothing. */
    CHECK(dcl_communicator_free(group));
    return 0;
}

/* Runs two collectives on a thread of the library, while this thread could do something else. */
static int run_stream(const struct rank *rank) {
    dcl_stream_t *stream = NULL;
    dcl_work_t *work = NULL;
    /* Not on the stack: if a call fails, this function returns while the library may still
     * write. */
    int32_t *first = malloc(3 * sizeof *first), *second = first + 2;
    REQUIRE(first != NULL);
    first[0] = rank->number;
    first[1] = *second = 1;
    CHECK(dcl_stream_new_worker(&stream));
    CHECK(dcl_all_reduce(rank->communicator, first, first, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, &work));
    CHECK(dcl_all_reduce(rank->communicator, second, second, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, NULL));
    /* The first call has a handle to wait for; the second is waited for through its stream. */
    CHECK(dcl_work_wait(work));
    int32_t is_done = 0;
    CHECK(dcl_work_is_done(work, &is_done));
    REQUIRE(is_done == 1);
    REQUIRE(first[0] == rank->count * (rank->count - 1) / 2 && first[1] == rank->count);
    CHECK(dcl_work_free(work));
    CHECK(dcl_stream_synchronize(stream));
    REQUIRE(*second == rank->count);
    CHECK(dcl_stream_free(stream));
    free(first);
    printf("Rank %d - stream PASSED\n", (int)rank->number);
    return 0;
}

/* Makes a second handle of the communicator, with a shorter timeout. */
static int run_timeout(const struct rank *rank) {
    dcl_communicator_t *impatient = NULL;
    dcl_communicator_options_t options = DCL_COMMUNICATOR_OPTIONS_INIT;
    CHECK(dcl_communicator_get_options(rank->communicator, &options));
    options.timeout_ms = 5000;
    CHECK(dcl_communicator_with_options(rank->communicator, &options, &impatient));
    CHECK(dcl_communicator_barrier(impatient));
    CHECK(dcl_communicator_free(impatient));
    CHECK(dcl_communicator_check(rank->communicator));
    return 0;
}

/* The part of one rank. */
static int demonstrate(const struct rank *rank, void *argument) {
    (void)argument;
    char backend[16];
    CHECK(dcl_communicator_get_backend(rank->communicator, backend, sizeof backend, NULL));
    if (rank->number == 0) {
        printf("library: %s; ranks: %d %s; backend: %s\n", dcl_version_string(), (int)rank->count,
               is_launched() ? "processes" : "threads", backend);
    }
    if (run_all_operations(rank) || (rank->count >= 2 && (run_split(rank) || run_new_group(rank))) ||
        run_stream(rank)) {
        return 1;
    }
    return run_timeout(rank);
}

int main(int argc, char **argv) {
    struct options options = {0};
    parse_options(argc, argv, &options);
    /* The addresses are in host memory, so the backend is the host's. */
    const struct job job = {.nb_ranks = options.nb_ranks, .backend = "host"};
    return run_on_ranks(&job, demonstrate, NULL) ? FAILED : PASSED;
}
