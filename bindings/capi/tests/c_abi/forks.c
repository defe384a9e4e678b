/* Children that are forked from ranks, which are processes here. Their use of copied handles must
 * not affect the ranks. */
#include "check.h"

#include <stdbool.h>

#define BYTES 8192

/* The objects of a rank. */
struct rank {
    dcl_communicator_t *communicator, *group;
    dcl_buffer_t *buffer;
    dcl_stream_t *stream;
};

static void add_one(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    int32_t sum = 0, one = 1;
    (void)rank;
    (void)shared;
    OK(dcl_all_reduce(communicator, &one, &sum, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
    CHECK(sum == 2);
}

static void be_a_child(struct rank *copy) {
    int32_t sum = 0, one = 1, number = -1;
    dcl_communicator_t *other = NULL;
    dcl_buffer_t *buffer = NULL;
    OK(dcl_communicator_get_world_size(copy->communicator, &number));
    CHECK(number == 2);
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_check(copy->communicator));
    MESSAGE_HAS("forked");
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_barrier(copy->communicator));
    dcl_work_t *work = NULL;
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_send(copy->communicator, &one, 1, DCL_DATA_TYPE_INT32, 0, 0));
    FAILS(DCL_STATUS_UNSUPPORTED,
          dcl_recv(copy->communicator, &sum, 1, DCL_DATA_TYPE_INT32, DCL_ANY_SOURCE, 0, NULL, NULL));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_isend(copy->communicator, &one, 1, DCL_DATA_TYPE_INT32, 0, 0, &work));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_irecv(copy->communicator, &sum, 1, DCL_DATA_TYPE_INT32, 0, 0, &work));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_split(copy->communicator, 0, 0, &other));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_allocate(copy->communicator, BYTES, &buffer));
    dcl_stream_t *fresh = NULL;
    OK(dcl_stream_new_worker(&fresh));
    dcl_stream_t *streams[] = {NULL, copy->stream, fresh};
    for (size_t i = 0; i < LENGTH_OF(streams); i++) {
        FAILS(DCL_STATUS_UNSUPPORTED,
              dcl_all_reduce(copy->group, &one, &sum, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, streams[i], NULL));
    }
    OK(dcl_stream_free(fresh));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_stream_synchronize(copy->stream));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_abort(copy->communicator, "a child wants to"));
    /* Symmetric memory becomes the child's own. */
    unsigned char bytes[BYTES], found[BYTES];
    OK(dcl_buffer_read(copy->buffer, 0, found, BYTES));
    CHECK(found[0] == 0x40 || found[0] == 0x41);
    memset(bytes, 0x7f, BYTES);
    OK(dcl_buffer_write(copy->buffer, 0, bytes, BYTES));
    OK(dcl_buffer_read(copy->buffer, 0, found, BYTES));
    CHECK(memcmp(bytes, found, BYTES) == 0);
    OK(dcl_buffer_free(copy->buffer));
    OK(dcl_communicator_free(copy->group));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_finalize(copy->communicator));
    OK(dcl_stream_free(copy->stream));
    /* Objects that the child creates are its own. */
    on_ranks(2, add_one, NULL);
    OK(dcl_stream_new_worker(&copy->stream));
    OK(dcl_stream_synchronize(copy->stream));
    OK(dcl_stream_free(copy->stream));
}

static void be_a_rank(const char *job, int32_t number) {
    struct rank rank;
    void *address;
    unsigned char bytes[BYTES];
    dcl_bootstrap_config_t config = DCL_BOOTSTRAP_CONFIG_INIT;
    config.job = job;
    config.world_size = 2;
    config.rank = number;
    config.timeout_ms = TIMEOUT_MS;
    OK(dcl_communicator_bootstrap(&config, &rank.communicator));
    OK(dcl_communicator_split(rank.communicator, 0, 0, &rank.group));
    OK(dcl_communicator_allocate(rank.communicator, BYTES, &rank.buffer));
    OK(dcl_stream_new_worker(&rank.stream));
    memset(bytes, 0x40 + number, BYTES);
    OK(dcl_buffer_write(rank.buffer, 0, bytes, BYTES));
    pid_t child;
    IN_A_CHILD(child, be_a_child(&rank));
    has_ended_well(child);
    /* A child that only exits. */
    IN_A_CHILD(child, (void)0);
    has_ended_well(child);
    OK(dcl_buffer_get_address(rank.buffer, &address));
    CHECK(memcmp(address, bytes, BYTES) == 0);
    add_one(rank.communicator, number, NULL);
    add_one(rank.group, number, NULL);
    /* Collectives in symmetric memory, and on the worker thread, of which the child has no copy. */
    OK(dcl_all_reduce(rank.communicator, address, address, BYTES, DCL_DATA_TYPE_UINT8, DCL_REDUCE_MAX, rank.stream,
                      NULL));
    OK(dcl_stream_synchronize(rank.stream));
    memset(bytes, 0x41, BYTES);
    CHECK(memcmp(address, bytes, BYTES) == 0);
    OK(dcl_buffer_free(rank.buffer));
    OK(dcl_stream_free(rank.stream));
    OK(dcl_communicator_free(rank.group));
    OK(dcl_communicator_finalize(rank.communicator));
}

/* A rank with an engine, as a thread of this process. */
struct running {
    dcl_communicator_t *communicator;
    dcl_execution_context_t *context;
    int32_t input, sum;
};

static void *make_ready(void *argument) {
    struct running *rank = argument;
    dcl_engine_t *engine = sum_of_two();
    OK(dcl_engine_create_execution_context(engine, NULL, &rank->context));
    OK(dcl_execution_context_set_communicator(rank->context, rank->communicator));
    OK(dcl_execution_context_set_tensor_address(rank->context, "x", &rank->input, sizeof rank->input));
    OK(dcl_execution_context_set_tensor_address(rank->context, "y", &rank->sum, sizeof rank->sum));
    OK(dcl_engine_free(engine));
    return NULL;
}

static void *run_once(void *argument) {
    struct running *rank = argument;
    OK(dcl_execution_context_enqueue(rank->context, NULL, NULL));
    CHECK(rank->sum == 3);
    return NULL;
}

/* The child of a rank whose worker stream is busy. The child has no copy of that thread, but a copy
 * of the locks that it holds. */
static void be_a_child_of_a_busy_rank(struct running *rank, dcl_work_t *work, dcl_stream_t *stream) {
    int32_t is_done = 0;
    OK(dcl_work_is_done(work, &is_done));
    CHECK(is_done == 1);
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_work_wait(work));
    MESSAGE_HAS("forked");
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_execution_context_enqueue(rank->context, NULL, NULL));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_barrier(rank->communicator));
    OK(dcl_work_free(work));
    OK(dcl_stream_free(stream));
    OK(dcl_execution_context_free(rank->context));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_finalize(rank->communicator));
}

/* The copy of a receive never ends; its buffer and the rank's are different memory by now. */
static void be_a_child_of_a_receiving_rank(dcl_work_t *receiving) {
    int32_t source = -7;
    FAILS(DCL_STATUS_NOT_READY, dcl_work_get_received(receiving, 0, &source, NULL));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_work_wait(receiving));
    MESSAGE_HAS("forked");
    OK(dcl_work_free(receiving));
}

static void fork_while_work_goes_on(void) {
    dcl_communicator_t *communicators[2];
    dcl_stream_t *stream;
    dcl_work_t *work;
    struct running ranks[2];
    pthread_t threads[2];
    int32_t is_done = 1;
    pid_t child;
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, communicators));
    for (int32_t rank = 0; rank < 2; rank++) {
        ranks[rank] = (struct running){communicators[rank], NULL, rank + 1, 0};
        threads[rank] = start(make_ready, &ranks[rank]);
    }
    join(threads[0]);
    join(threads[1]);
    OK(dcl_stream_new_worker(&stream));
    OK(dcl_execution_context_enqueue(ranks[0].context, stream, &work));
    /* A receive whose message comes after the fork. The progress thread has it. */
    dcl_work_t *receiving;
    int32_t message = -7, sent = 5;
    OK(dcl_irecv(communicators[0], &message, 1, DCL_DATA_TYPE_INT32, 1, 0, &receiving));
    /* The worker is most likely inside the collective. */
    pause_ms(20);
    IN_A_CHILD(child, {
        be_a_child_of_a_receiving_rank(receiving);
        be_a_child_of_a_busy_rank(&ranks[0], work, stream);
    });
    has_ended_well(child);
    OK(dcl_send(communicators[1], &sent, 1, DCL_DATA_TYPE_INT32, 0, 0));
    OK(dcl_work_wait(receiving));
    OK(dcl_work_free(receiving));
    CHECK(message == 5);
    OK(dcl_work_is_done(work, &is_done));
    CHECK(is_done == 0);
    threads[1] = start(run_once, &ranks[1]);
    OK(dcl_work_wait(work));
    CHECK(ranks[0].sum == 3);
    join(threads[1]);
    OK(dcl_work_free(work));
    OK(dcl_stream_free(stream));
    for (int32_t rank = 0; rank < 2; rank++) {
        OK(dcl_execution_context_free(ranks[rank].context));
        OK(dcl_communicator_free(communicators[rank]));
    }
}

/* Rank 0 leaves a child behind, which has copies of its connections. If rank 0's process has
 * ended, ranks 1 and 2 learn of it at once. If it has only freed its handles, they go on. */
static void leave_a_child_behind(const char *job, int32_t number, bool frees, int going_on) {
    dcl_communicator_t *communicator, *group, *other = NULL;
    dcl_bootstrap_config_t config = DCL_BOOTSTRAP_CONFIG_INIT;
    config.job = job;
    config.world_size = 3;
    config.rank = number;
    config.timeout_ms = TIMEOUT_MS;
    OK(dcl_communicator_bootstrap(&config, &communicator));
    OK(dcl_communicator_split(communicator, number == 0 ? DCL_NO_COLOR : 0, 0, &group));
    if (number == 0) {
        pid_t child;
        char nothing;
        /* It ends when the process that started the ranks closes the pipe. */
        IN_A_CHILD(child, (void)!read(going_on, &nothing, 1));
        if (frees) {
            OK(dcl_communicator_free(communicator));
            FAILS(DCL_STATUS_INVALID_HANDLE, dcl_communicator_check(communicator));
            /* For as long as the other ranks may take. */
            (void)!read(going_on, &nothing, 1);
        }
        return;
    }
    if (!frees) {
        FAILS(DCL_STATUS_PEER_LOST, dcl_communicator_barrier(communicator));
    }
    for (int round = 0; frees && round < 50; round++) {
        OK(dcl_communicator_split(group, 0, 0, &other));
        OK(dcl_communicator_free(other));
    }
    OK(dcl_communicator_free(group));
    OK(dcl_communicator_free(communicator));
}

int main(void) {
    char job[64];
    pid_t ranks[3];
    snprintf(job, sizeof job, "c-abi-forks-%ld", (long)getpid());
    for (int32_t rank = 0; rank < 2; rank++) {
        IN_A_CHILD(ranks[rank], be_a_rank(job, rank));
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        has_ended_well(ranks[rank]);
    }
    fork_while_work_goes_on();
    for (int frees = 0; frees < 2; frees++) {
        int going_on[2];
        CHECK(pipe(going_on) == 0);
        for (int32_t rank = 0; rank < 3; rank++) {
            IN_A_CHILD(ranks[rank], { close(going_on[1]); leave_a_child_behind(job, rank, frees != 0, going_on[0]); });
        }
        has_ended_well(ranks[1]);
        has_ended_well(ranks[2]);
        close(going_on[1]);
        has_ended_well(ranks[0]);
        close(going_on[0]);
    }
    return 0;
}
