/* Where ranks meet: in the collectives of all, and in the transfers between two. */
#include "internal.h"

enum progress { WAITING, MOVING, DONE };

/* The ranks' calls that make one collective. */
struct meeting {
    struct meeting *next;
    uint64_t number;
    int present;
    enum progress progress;
    const struct call *calls[];
};

/* One end of a send and a receive. */
struct transfer {
    struct transfer *next;
    int from, to;
    bool sends;
    enum progress progress;
    const struct call *call;
};

bool calls_agree(const struct call *one, const struct call *other) {
    return one->operation == other->operation && one->count == other->count && one->type == other->type
        && one->root == other->root;
}

static bool agree(const struct meeting *meeting, int size) {
    int rank = 1;
    while (rank < size && calls_agree(meeting->calls[0], meeting->calls[rank]))
        rank++;
    return rank == size;
}

static struct meeting *join(struct communicator *communicator, const struct call *call) {
    struct clique *clique = communicator->clique;
    uint64_t number = communicator->met++;
    struct meeting *meeting = clique->meetings;
    while (meeting != NULL && meeting->number != number)
        meeting = meeting->next;
    if (meeting == NULL) {
        meeting = allocate(sizeof *meeting + (size_t)clique->size * sizeof(struct call *));
        meeting->next = clique->meetings;
        meeting->number = number;
        clique->meetings = meeting;
    }
    meeting->calls[communicator->rank] = call;
    meeting->present++;
    return meeting;
}

static void part(struct communicator *communicator, struct meeting *meeting) {
    meeting->calls[communicator->rank] = NULL;
    if (--meeting->present > 0)
        return;
    struct meeting **place = &communicator->clique->meetings;
    while (*place != meeting)
        place = &(*place)->next;
    *place = meeting->next;
    free(meeting);
}

static void run_collective(struct communicator *communicator, const struct call *call) {
    int size = communicator->clique->size;
    struct meeting *meeting = join(communicator, call);
    if (meeting->present == size && meeting->progress == WAITING && agree(meeting, size)) {
        meeting->progress = MOVING;
        pthread_mutex_unlock(&lock);
        move((struct call *const *)meeting->calls, size);
        pthread_mutex_lock(&lock);
        meeting->progress = DONE;
        pthread_cond_broadcast(&changed);
    }
    while (meeting->progress == MOVING || (meeting->progress == WAITING && !communicator_stopped(communicator)))
        pthread_cond_wait(&changed, &lock);
    part(communicator, meeting);
}

/* The first end from one rank to another that waits. */
static struct transfer *first_waiting(struct clique *clique, int from, int to, bool sends) {
    struct transfer *transfer = clique->transfers;
    while (transfer != NULL
           && (transfer->from != from || transfer->to != to || transfer->sends != sends
               || transfer->progress != WAITING))
        transfer = transfer->next;
    return transfer;
}

/* Moves what can be moved from one rank to another. */
static void match(struct clique *clique, int from, int to) {
    for (;;) {
        struct transfer *send = first_waiting(clique, from, to, true),
                        *receive = first_waiting(clique, from, to, false);
        if (send == NULL || receive == NULL || send->call->count != receive->call->count
            || send->call->type != receive->call->type)
            return;
        send->progress = receive->progress = MOVING;
        pthread_mutex_unlock(&lock);
        memmove(receive->call->receive, send->call->send, send->call->count * type_size(send->call->type));
        pthread_mutex_lock(&lock);
        send->progress = receive->progress = DONE;
        pthread_cond_broadcast(&changed);
    }
}

static void post(struct communicator *communicator, const struct call *call, struct transfer *transfer) {
    bool sends = call->operation == SEND;
    *transfer = (struct transfer){
        .from = sends ? communicator->rank : call->root,
        .to = sends ? call->root : communicator->rank,
        .sends = sends,
        .call = call,
    };
    struct transfer **end = &communicator->clique->transfers;
    while (*end != NULL)
        end = &(*end)->next;
    *end = transfer;
}

static void wait_for(struct communicator *communicator, struct transfer *transfer) {
    while (transfer->progress == MOVING || (transfer->progress == WAITING && !communicator_stopped(communicator)))
        pthread_cond_wait(&changed, &lock);
    struct transfer **place = &communicator->clique->transfers;
    while (*place != transfer)
        place = &(*place)->next;
    *place = transfer->next;
}

static bool is_transfer(const struct call *call) {
    return call->operation == SEND || call->operation == RECEIVE;
}

void run_calls(struct communicator *communicator, const struct call *calls, size_t count) {
    if (communicator->clique->gathering != NULL) {
        run_calls_of_processes(communicator, calls, count);
        return;
    }
    struct transfer *transfers = allocate((count + 1) * sizeof *transfers);
    for (size_t i = 0; i < count; i++) {
        if (is_transfer(&calls[i]))
            post(communicator, &calls[i], &transfers[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (is_transfer(&calls[i]))
            match(communicator->clique, transfers[i].from, transfers[i].to);
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_transfer(&calls[i]))
            run_collective(communicator, &calls[i]);
    }
    for (size_t i = 0; i < count; i++) {
        if (is_transfer(&calls[i]))
            wait_for(communicator, &transfers[i]);
    }
    free(transfers);
}
