/* Messages: blocking, asynchronous and in batches, between threads and between processes. */
#include "check.h"

#define NB_RANKS 3
#define LONG 100000

#define INT32 DCL_DATA_TYPE_INT32

/* Rank 0 sends to the others, which answer. */
static void one_by_one(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t value[3] = {rank, 10 * rank, -7}, source = -7;
    size_t count = 77;
    if (rank == 0) {
        for (int32_t other = 1; other < NB_RANKS; other++) {
            value[1] = other;
            OK(dcl_send(communicator, value, 2, INT32, other, 5));
        }
        int32_t seen = 0;
        for (int32_t other = 1; other < NB_RANKS; other++) {
            OK(dcl_recv(communicator, value, 3, INT32, DCL_ANY_SOURCE, DCL_MAX_TAG, &source, &count));
            CHECK(count == 1 && value[0] == 100 * source && value[2] == -7);
            seen += source;
        }
        CHECK(seen == 3);
        OK(dcl_send(communicator, NULL, 0, INT32, 1, 0));
    } else {
        OK(dcl_recv(communicator, value, 3, INT32, 0, 5, &source, &count));
        CHECK(source == 0 && count == 2 && value[0] == 0 && value[1] == rank && value[2] == -7);
        value[0] = 100 * rank;
        OK(dcl_send(communicator, value, 1, INT32, 0, DCL_MAX_TAG));
        if (rank == 1) {
            OK(dcl_recv(communicator, NULL, 0, INT32, 0, 0, NULL, NULL));
        }
    }
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_send(communicator, value, 1, INT32, NB_RANKS, 0));
    MESSAGE_HAS("send: dst 3 is not one of 3 ranks");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_send(communicator, value, 1, INT32, DCL_ANY_SOURCE, 0));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_recv(communicator, value, 1, INT32, -2, 0, &source, &count));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_recv(communicator, value, 1, INT32, 0, DCL_MAX_TAG + 1, &source, &count));
    MESSAGE_HAS("recv: tag 32768 is not from 0 to 32767");
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_send(communicator, NULL, 1, INT32, 0, 0));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_recv(communicator, (char *)value + 1, 1, INT32, 0, 0, &source, &count));
    OK(dcl_communicator_barrier(communicator));
}

/* Every rank sends to the next one more than there is room for. */
static void around_a_ring(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t next = (rank + 1) % NB_RANKS, before = (rank + NB_RANKS - 1) % NB_RANKS;
    int32_t *sent = calloc(LONG, sizeof *sent), *received = calloc(LONG, sizeof *received);
    sent[0] = sent[LONG - 1] = rank;
    dcl_work_t *works[2];
    int32_t source = -7, is_done = 0;
    size_t count = 77;
    OK(dcl_isend(communicator, sent, LONG, INT32, next, 1, &works[0]));
    OK(dcl_irecv(communicator, received, LONG, INT32, DCL_ANY_SOURCE, 1, &works[1]));
    OK(dcl_work_wait(works[1]));
    OK(dcl_work_get_received(works[1], 0, &source, &count));
    CHECK(source == before && count == LONG && received[0] == before && received[LONG - 1] == before);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_work_get_received(works[1], -1, &source, &count));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_work_get_received(works[1], 1, &source, &count));
    MESSAGE_HAS("there is no message 1; there are 1");
    OK(dcl_work_wait_for(works[0], TIMEOUT_MS));
    OK(dcl_work_is_done(works[0], &is_done));
    CHECK(is_done == 1);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_work_get_received(works[0], 0, &source, &count));
    MESSAGE_HAS("message 0 is a send");
    OK(dcl_work_free(works[0]));
    OK(dcl_work_free(works[1]));

    dcl_message_t messages[2] = {DCL_MESSAGE_INIT, DCL_MESSAGE_INIT};
    for (int i = 0; i < 2; i++) {
        messages[i].count = LONG - 1;
        messages[i].data_type = INT32;
        messages[i].tag = 2;
    }
    messages[0].is_send = 1;
    messages[0].buffer = sent;
    messages[0].peer = before;
    messages[1].buffer = received;
    messages[1].peer = next;
    OK(dcl_batch_isend_irecv(communicator, messages, 2, &works[0]));
    OK(dcl_work_wait(works[0]));
    OK(dcl_work_get_received(works[0], 1, &source, NULL));
    OK(dcl_work_get_received(works[0], 1, NULL, &count));
    CHECK(source == next && count == LONG - 1 && received[0] == next);
    OK(dcl_work_free(works[0]));
    OK(dcl_batch_isend_irecv(communicator, NULL, 0, &works[0]));
    OK(dcl_work_wait(works[0]));
    OK(dcl_work_free(works[0]));
    messages[1].tag = -1;
    works[0] = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_batch_isend_irecv(communicator, messages, 2, &works[0]));
    CHECK(works[0] == NULL);
    OK(dcl_communicator_barrier(communicator));
    free(sent);
    free(received);
}

/* A receive whose message comes later, and one whose message does not fit. */
static void waits_and_fails(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t value[2] = {rank, rank}, source = -7;
    dcl_work_t *work;
    if (rank > 0) {
        OK(dcl_recv(communicator, value, 1, INT32, 0, 0, NULL, NULL));
        OK(dcl_send(communicator, value, 1, INT32, 0, rank));
        if (rank == 1) {
            OK(dcl_send(communicator, value, 2, INT32, 0, 7));
        }
        return;
    }
    OK(dcl_irecv(communicator, value, 1, INT32, 1, 1, &work));
    FAILS(DCL_STATUS_PENDING, dcl_work_wait_for(work, 0));
    FAILS(DCL_STATUS_NOT_READY, dcl_work_get_received(work, 0, &source, NULL));
    MESSAGE_HAS("no call has waited for the work's end");
    for (int32_t other = 1; other < NB_RANKS; other++) {
        OK(dcl_send(communicator, &value[1], 1, INT32, other, 0));
    }
    OK(dcl_work_wait(work));
    OK(dcl_work_get_received(work, 0, &source, NULL));
    CHECK(source == 1);
    OK(dcl_work_free(work));
    /* All other calls have been made when this one ends the communicator. */
    OK(dcl_recv(communicator, value, 1, INT32, 2, 2, NULL, NULL));
    OK(dcl_irecv(communicator, value, 1, INT32, 1, 7, &work));
    FAILS(DCL_STATUS_DISAGREEMENT, dcl_work_wait(work));
    MESSAGE_HAS("irecv: rank 1 sent 2 int32 with tag 7, and rank 0 cannot receive them");
    FAILS(DCL_STATUS_NOT_READY, dcl_work_get_received(work, 0, &source, NULL));
    MESSAGE_HAS("the work has failed: ");
    OK(dcl_work_free(work));
}

int main(void) {
    on_ranks(NB_RANKS, one_by_one, NULL);
    on_ranks(NB_RANKS, around_a_ring, NULL);
    on_ranks(NB_RANKS, waits_and_fails, NULL);
    return 0;
}
