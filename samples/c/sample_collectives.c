/* Ranks and the collectives called directly, in the manner of NCCL and torch.distributed: groups, memory that all ranks
 * reach, the eight collectives, a stream with work handles, timeouts.
 *
 *   sample_collectives --ranks 4
 *   distcollective launch -n 4 -- sample_collectives
 */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mistakes.h"
#include "options.h"
#include "ranks.h"
#include "values.h"

/* The elements of a block: what the collectives count in. */
#define BLOCK ((size_t)5)

/* ---------------------------------------------------------------------------------------------------------------------------------
 * The eight collectives
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Calls one of the eight on float32, with sums where they reduce. */
static dcl_status_t call(const struct rank *rank, dcl_collective_operation_t operation, const float *input, float *output,
                         int32_t root) {
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

/* How many blocks a rank gives, and how many it gets. */
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

/* Runs one of the eight, and compares every element of the output. */
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

/* All eight, in memory that every rank reaches, and again in this process's own. */
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

/* ---------------------------------------------------------------------------------------------------------------------------------
 * Groups, streams, timeouts
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Adds up the origin ranks of a group's members. */
static int sum_of_members(dcl_communicator_t *group, int64_t *sum) {
    int32_t origin = -1;
    CHECK(dcl_communicator_get_origin_rank(group, &origin));
    int64_t own = origin;
    CHECK(dcl_all_reduce(group, &own, sum, 1, DCL_DATA_TYPE_INT64, DCL_REDUCE_SUM, NULL, NULL));
    return 0;
}

/* Even and odd ranks, each in reverse order. */
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

/* The last rank and the first. The others call it too, and get no communicator. */
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
    /* Freeing nothing is fine. */
    CHECK(dcl_communicator_free(group));
    return 0;
}

/* Two collectives on a thread of the library's, while this one does something else. */
static int run_stream(const struct rank *rank) {
    dcl_stream_t *stream = NULL;
    dcl_work_t *work = NULL;
    /* Not on the stack: after a failure this function returns while the library may still write there. */
    int32_t *first = malloc(3 * sizeof *first), *second = first + 2;
    REQUIRE(first != NULL);
    first[0] = rank->number;
    first[1] = *second = 1;
    CHECK(dcl_stream_new_worker(&stream));
    CHECK(dcl_all_reduce(rank->communicator, first, first, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, &work));
    CHECK(dcl_all_reduce(rank->communicator, second, second, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, NULL));
    /* What has a handle is waited for by it, and what has none by the stream. */
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

/* A handle with a timeout of its own, for calls that have to be quick. */
static int run_timeout(const struct rank *rank) {
    dcl_communicator_t *impatient = NULL;
    int64_t timeout_ms = 0;
    CHECK(dcl_communicator_with_timeout(rank->communicator, 5000, &impatient));
    CHECK(dcl_communicator_get_timeout(impatient, &timeout_ms));
    REQUIRE(timeout_ms == 5000);
    CHECK(dcl_communicator_barrier(impatient));
    CHECK(dcl_communicator_free(impatient));
    CHECK(dcl_communicator_check(rank->communicator));
    return 0;
}

/* One rank: everything. */
static int demonstrate(const struct rank *rank, void *argument) {
    (void)argument;
    char backend[16];
    CHECK(dcl_communicator_get_backend(rank->communicator, backend, sizeof backend, NULL));
    if (rank->number == 0) {
        printf("library: %s; ranks: %d %s; backend: %s\n", dcl_version_string(), (int)rank->count,
               is_launched() ? "processes" : "threads", backend);
    }
    if (run_all_operations(rank) || (rank->count >= 2 && (run_split(rank) || run_new_group(rank))) || run_stream(rank)) {
        return 1;
    }
    return run_timeout(rank);
}

/* ---------------------------------------------------------------------------------------------------------------------------------
 * Mistakes
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Mistakes before there are ranks. */
static int mistakes_of_starting(void) {
    dcl_communicator_t *communicators[MAX_RANKS];
    int wrong = 0;
    wrong += expect(NULL, "no ranks at all", dcl_communicator_new_in_process("host", 0, PATIENCE_MS, communicators),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a backend that there is not", dcl_communicator_new_in_process("mpj", 2, PATIENCE_MS, communicators),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a timeout that is none", dcl_communicator_new_in_process("host", 2, -7, communicators),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "nowhere to put the communicators", dcl_communicator_new_in_process("host", 2, PATIENCE_MS, NULL),
                    DCL_STATUS_INVALID_ARGUMENT);
    char job[64];
    snprintf(job, sizeof job, "sample_collectives-%d", (int)getpid());
    dcl_bootstrap_config_t config = DCL_BOOTSTRAP_CONFIG_INIT;
    config.world_size = 2;
    config.timeout_ms = SHORT_MS;
    wrong += expect(NULL, "a bootstrap without a name", dcl_communicator_bootstrap(&config, communicators),
                    DCL_STATUS_INVALID_ARGUMENT);
    config.job = job;
    wrong += expect(NULL, "a process that does not come", dcl_communicator_bootstrap(&config, communicators),
                    DCL_STATUS_DEADLINE_EXCEEDED);
    config.rank = 2;
    wrong += expect(NULL, "a rank beyond the others", dcl_communicator_bootstrap(&config, communicators),
                    DCL_STATUS_INVALID_ARGUMENT);
    config.struct_size = 3;
    wrong += expect(NULL, "a structure of no known size", dcl_communicator_bootstrap(&config, communicators),
                    DCL_STATUS_INVALID_ARGUMENT);
    return wrong;
}

/* Arguments that a collective cannot take: found before anything moves, so that no rank waits for another. */
static int mistakes_of_calling(const struct rank *rank) {
    dcl_communicator_t *communicator = rank->communicator;
    float x[8] = {0}, y[8 * MAX_RANKS];
    int wrong = 0;
    wrong += expect(rank, "a type that there is not",
                    dcl_all_reduce(communicator, x, y, 4, 12, DCL_REDUCE_SUM, NULL, NULL), DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(rank, "a reduction that is none",
                    dcl_all_reduce(communicator, x, y, 4, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_NONE, NULL, NULL),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(rank, "a root that is not there",
                    dcl_broadcast(communicator, x, x, 4, DCL_DATA_TYPE_FLOAT, rank->count, NULL, NULL),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(rank, "no input", dcl_all_reduce(communicator, NULL, y, 4, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL),
                    DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "an output that overlaps the input",
                    dcl_all_reduce(communicator, x, x + 1, 4, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL),
                    DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "an exchange in place",
                    dcl_all_to_all(communicator, y, y, 4, DCL_DATA_TYPE_FLOAT, NULL, NULL), DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "an address between two floats",
                    dcl_all_gather(communicator, (const char *)x + 2, y, 4, DCL_DATA_TYPE_FLOAT, NULL, NULL),
                    DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "more than memory can hold",
                    dcl_all_gather(communicator, x, y, SIZE_MAX / 4, DCL_DATA_TYPE_FLOAT, NULL, NULL), DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "no communicator", dcl_communicator_barrier(NULL), DCL_STATUS_INVALID_HANDLE);
    /* The communicator is as good as before. */
    CHECK(dcl_communicator_barrier(communicator));
    return wrong;
}

/* Handles, buffers and texts. */
static int mistakes_of_handling(const struct rank *rank) {
    int wrong = 0;
    char backend[2] = "?", byte = 0;
    size_t length = 0;
    dcl_communicator_t *group = NULL;
    dcl_buffer_t *buffer = NULL;
    wrong += expect(rank, "no room for a name",
                    dcl_communicator_get_backend(rank->communicator, backend, sizeof backend, &length),
                    DCL_STATUS_BUFFER_TOO_SMALL);
    REQUIRE(length == strlen("host") && backend[0] == '?');
    CHECK(dcl_communicator_split(rank->communicator, 0, 0, &group));
    CHECK(dcl_communicator_barrier(group));
    CHECK(dcl_communicator_free(group));
    wrong += expect(rank, "a freed communicator", dcl_communicator_barrier(group), DCL_STATUS_INVALID_HANDLE);
    CHECK(dcl_buffer_new(-1, 16, &buffer));
    wrong += expect(rank, "bytes beyond a buffer's end", dcl_buffer_write(buffer, 16, &byte, 1), DCL_STATUS_INVALID_BUFFER);
    wrong += expect(rank, "a buffer where a communicator should be",
                    dcl_communicator_barrier((dcl_communicator_t *)(void *)buffer), DCL_STATUS_INVALID_HANDLE);
    CHECK(dcl_buffer_free(buffer));
    wrong += expect(rank, "a buffer freed twice", dcl_buffer_free(buffer), DCL_STATUS_INVALID_HANDLE);
    CHECK(dcl_communicator_barrier(rank->communicator));
    return wrong;
}

/* Mistakes after which the communicator still works. */
static int mistakes_that_break_nothing(const struct rank *rank, void *argument) {
    (void)argument;
    REQUIRE(rank->count >= 2);
    int wrong = rank->number == 0 ? mistakes_of_starting() : 0;
    return wrong + mistakes_of_calling(rank) + mistakes_of_handling(rank);
}

/* Mistakes that end the communicator. Rank 1 makes them. */
enum oddity { ANOTHER_LENGTH, ANOTHER_OPERATION, ANOTHER_ROOT, ABSENCE, DEPARTURE, ABORT, NB_ODDITIES };

static int run_oddly(const struct rank *rank, void *argument) {
    enum oddity oddity = *(enum oddity *)argument;
    dcl_communicator_t *communicator = rank->communicator, *impatient = NULL, *group = NULL;
    bool is_odd = rank->number == 1;
    float x[4] = {0}, y[4 * MAX_RANKS];
    int wrong = 0;
    switch (oddity) {
    case ANOTHER_LENGTH:
        wrong += expect_either(rank, "lengths that differ",
                               dcl_all_reduce(communicator, x, x, is_odd ? 3 : 4, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL),
                               DCL_STATUS_DISAGREEMENT, DCL_STATUS_ABORTED);
        break;
    case ANOTHER_OPERATION:
        wrong += expect_either(rank, "calls that differ",
                               is_odd ? dcl_all_gather(communicator, x, y, 4, DCL_DATA_TYPE_FLOAT, NULL, NULL)
                                      : dcl_all_reduce(communicator, x, x, 4, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL),
                               DCL_STATUS_DISAGREEMENT, DCL_STATUS_ABORTED);
        break;
    case ANOTHER_ROOT: {
        /* A root that only gives has returned before it can learn of this. Saying good-bye tells it. */
        dcl_status_t status = dcl_broadcast(communicator, x, x, 4, DCL_DATA_TYPE_FLOAT, is_odd, NULL, NULL);
        if (status == DCL_STATUS_SUCCESS) {
            dcl_communicator_t *last = NULL;
            CHECK(dcl_communicator_with_timeout(communicator, DCL_TIMEOUT_DEFAULT, &last));
            status = dcl_communicator_finalize(last);
        }
        wrong += expect_either(rank, "roots that differ", status, DCL_STATUS_DISAGREEMENT, DCL_STATUS_ABORTED);
        break;
    }
    case ABSENCE:
        CHECK(dcl_communicator_with_timeout(communicator, SHORT_MS, &impatient));
        wrong += expect_either(rank, is_odd ? "a rank that does not come, itself" : "a rank that does not come",
                               is_odd ? wait_until_given_up(rank) : dcl_communicator_barrier(impatient),
                               DCL_STATUS_DEADLINE_EXCEEDED, DCL_STATUS_ABORTED);
        CHECK(dcl_communicator_free(impatient));
        break;
    case DEPARTURE:
        CHECK(dcl_communicator_split(communicator, 0, 0, &group));
        if (!is_odd) {
            wrong += expect_either(rank, "a rank that left", dcl_communicator_barrier(group), DCL_STATUS_PEER_LOST,
                                   DCL_STATUS_ABORTED);
        }
        CHECK(dcl_communicator_free(group));
        break;
    default:
        if (is_odd) {
            CHECK(dcl_communicator_abort(communicator, "the model file is missing"));
        }
        wrong += expect(rank, "a rank that calls it off", dcl_communicator_barrier(communicator), DCL_STATUS_ABORTED);
        /* The message names who did it; this is who was told. */
        REQUIRE(dcl_last_error_rank() == rank->number);
    }
    /* A communicator stays dead. */
    if (oddity != DEPARTURE) {
        REQUIRE(dcl_communicator_barrier(communicator) != DCL_STATUS_SUCCESS);
        REQUIRE(dcl_communicator_check(communicator) != DCL_STATUS_SUCCESS);
    }
    return wrong;
}

static int make_mistakes(int32_t nb_ranks) {
    struct job job = {.nb_ranks = nb_ranks, .backend = "host", .timeout_ms = PATIENCE_MS};
    int failed = run_on_ranks(&job, mistakes_that_break_nothing, NULL);
    job.ends_badly = true;
    for (enum oddity oddity = ANOTHER_LENGTH; oddity < NB_ODDITIES; oddity++) {
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
