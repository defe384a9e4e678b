/* Children that are forked from ranks, which are processes here: what they do with their copies of handles is no matter to the ranks. */
#include "check.h"

#include <sys/wait.h>

#define BYTES 8192

/* What a rank has. */
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
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_split(copy->communicator, 0, 0, &other));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_allocate(copy->communicator, BYTES, &buffer));
    dcl_stream_t *streams[] = {NULL, copy->stream};
    for (size_t i = 0; i < LENGTH_OF(streams); i++) {
        FAILS(DCL_STATUS_UNSUPPORTED, dcl_all_reduce(copy->group, &one, &sum, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, streams[i], NULL));
    }
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_stream_synchronize(copy->stream));
    OK(dcl_communicator_abort(copy->communicator, "a child wants to"));
    OK(dcl_buffer_free(copy->buffer));
    OK(dcl_communicator_free(copy->group));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_finalize(copy->communicator));
    OK(dcl_stream_free(copy->stream));
    /* What it makes itself is its own. */
    on_ranks(2, add_one, NULL);
    OK(dcl_stream_new_worker(&copy->stream));
    OK(dcl_stream_synchronize(copy->stream));
    OK(dcl_stream_free(copy->stream));
}

/* Runs `body` in a child, from which it returns to `exit`. */
#define IN_A_CHILD(pid, body)                                                                                                            \
    do {                                                                                                                                 \
        fflush(NULL);                                                                                                                    \
        (pid) = fork();                                                                                                                  \
        CHECK((pid) >= 0);                                                                                                               \
        if ((pid) == 0) {                                                                                                                \
            alarm(9);                                                                                                                    \
            body;                                                                                                                        \
            exit(0);                                                                                                                     \
        }                                                                                                                                \
    } while (0)

static void has_ended_well(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void be_a_rank(const char *job, int32_t number) {
    struct rank rank;
    void *address;
    unsigned char bytes[BYTES];
    dcl_meeting_t meeting = DCL_MEETING_INIT;
    meeting.job = job;
    meeting.world_size = 2;
    meeting.rank = number;
    meeting.timeout_ms = TIMEOUT_MS;
    OK(dcl_communicator_meet(&meeting, &rank.communicator));
    OK(dcl_communicator_split(rank.communicator, 0, 0, &rank.group));
    OK(dcl_communicator_allocate(rank.communicator, BYTES, &rank.buffer));
    OK(dcl_stream_new_worker(&rank.stream));
    memset(bytes, 0x40 + number, BYTES);
    OK(dcl_buffer_write(rank.buffer, 0, bytes, BYTES));
    pid_t child;
    IN_A_CHILD(child, be_a_child(&rank));
    has_ended_well(child);
    /* One that only ends. */
    IN_A_CHILD(child, (void)0);
    has_ended_well(child);
    OK(dcl_buffer_get_address(rank.buffer, &address));
    CHECK(memcmp(address, bytes, BYTES) == 0);
    add_one(rank.communicator, number, NULL);
    add_one(rank.group, number, NULL);
    /* In symmetric memory, and on the thread that the child has no copy of. */
    OK(dcl_all_reduce(rank.communicator, address, address, BYTES, DCL_DATA_TYPE_UINT8, DCL_REDUCE_MAX, rank.stream, NULL));
    OK(dcl_stream_synchronize(rank.stream));
    memset(bytes, 0x41, BYTES);
    CHECK(memcmp(address, bytes, BYTES) == 0);
    OK(dcl_buffer_free(rank.buffer));
    OK(dcl_stream_free(rank.stream));
    OK(dcl_communicator_free(rank.group));
    OK(dcl_communicator_finalize(rank.communicator));
}

int main(void) {
    char job[64];
    snprintf(job, sizeof job, "c-abi-forks-%ld", (long)getpid());
    pid_t ranks[2];
    for (int32_t rank = 0; rank < 2; rank++) {
        IN_A_CHILD(ranks[rank], be_a_rank(job, rank));
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        has_ended_well(ranks[rank]);
    }
    return 0;
}
