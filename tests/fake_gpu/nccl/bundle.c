/* What happens on the streams: bundles of calls, the meetings of collectives, the transfers
 * between two ranks. */
#include "internal.h"

#define CAPTURE_ACTIVE 1

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

/* Bundles that graphs have recorded. They live as long as the process, because the library does
 * not learn when a graph is destroyed. */
static struct bundle *recorded;

static bool agree(const struct meeting *meeting, int size) {
    const struct call *first = meeting->calls[0];
    for (int rank = 1; rank < size; rank++) {
        const struct call *call = meeting->calls[rank];
        if (call->operation != first->operation || call->count != first->count || call->type != first->type
            || call->reduction != first->reduction || call->scale != first->scale || call->root != first->root)
            return false;
    }
    return true;
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

/* All sends and receives of a bundle are under way together; its collectives go one after the
 * other meanwhile. */
static void run_calls(struct communicator *communicator, const struct bundle *bundle) {
    struct transfer *transfers = allocate((bundle->count + 1) * sizeof *transfers);
    for (size_t i = 0; i < bundle->count; i++) {
        if (is_transfer(&bundle->calls[i]))
            post(communicator, &bundle->calls[i], &transfers[i]);
    }
    for (size_t i = 0; i < bundle->count; i++) {
        if (is_transfer(&bundle->calls[i]))
            match(communicator->clique, transfers[i].from, transfers[i].to);
    }
    for (size_t i = 0; i < bundle->count; i++) {
        if (!is_transfer(&bundle->calls[i]))
            run_collective(communicator, &bundle->calls[i]);
    }
    for (size_t i = 0; i < bundle->count; i++) {
        if (is_transfer(&bundle->calls[i]))
            wait_for(communicator, &transfers[i]);
    }
    free(transfers);
}

/* A scripted error comes instead of the work, and the stream goes on only after an abort. */
static bool is_spoiled(struct communicator *communicator, const struct bundle *bundle) {
    for (size_t i = 0; i < bundle->count; i++) {
        if (bundle->calls[i].async_error == ncclSuccess)
            continue;
        communicator->async_error = bundle->calls[i].async_error;
        while (!communicator_stopped(communicator))
            pthread_cond_wait(&changed, &lock);
        return true;
    }
    return false;
}

/* The bundle's turn: on one communicator, one bundle works at a time, in the order of the calls. */
static bool is_turn(const struct communicator *communicator, const struct bundle *bundle) {
    return !communicator->busy && (bundle->captured || communicator->executed == bundle->turn);
}

static void run(void *data) {
    struct bundle *bundle = data;
    struct communicator *communicator = bundle->communicator;
    pthread_mutex_lock(&lock);
    communicator->running++;
    if (communicator->stage == DESTROYED)
        note_violation("rank %d: a collective of a destroyed communicator is launched", communicator->rank);
    while (!is_turn(communicator, bundle) && !communicator_stopped(communicator))
        pthread_cond_wait(&changed, &lock);
    if (!communicator_stopped(communicator)) {
        communicator->busy = true;
        if (!is_spoiled(communicator, bundle))
            run_calls(communicator, bundle);
        communicator->busy = false;
    }
    communicator->executed += !bundle->captured;
    communicator->running--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (!bundle->captured)
        free(bundle);
}

/* Waits until few enough collectives wait for the GPU, and says whether that came (enqueue.cc of
 * NCCL 2.30.7, waitWorkFifoAvailable, in which abort flags end the wait). */
static bool wait_for_room(const struct communicator *communicator) {
    int most = script_fifo();
    while (most >= 0 && communicator->enqueued - communicator->executed >= (uint64_t)most
           && !communicator_stopped(communicator))
        pthread_cond_wait(&changed, &lock);
    return !communicator_stopped(communicator);
}

ncclResult_t bundle_enqueue(struct communicator *communicator, void *data) {
    struct bundle *bundle = data;
    const struct driver *cuda = driver();
    int status = 0;
    if (cuda->context_push(communicator->context) != 0)
        return failure(ncclUnhandledCudaError, "the communicator's context is gone");
    int error = cuda->stream_is_capturing(bundle->stream, &status);
    bundle->captured = status == CAPTURE_ACTIVE;
    pthread_mutex_lock(&lock);
    bool aborted = !bundle->captured && !wait_for_room(communicator);
    if (bundle->captured) {
        bundle->next = recorded;
        recorded = bundle;
    } else if (!aborted) {
        bundle->turn = communicator->enqueued++;
    }
    pthread_mutex_unlock(&lock);
    if (aborted) {
        void *popped;
        cuda->context_pop(&popped);
        return failure(ncclInternalError, "aborted while the GPU's queue was full");
    }
    if (error == 0)
        error = cuda->launch_host_function(bundle->stream, run, bundle);
    void *context;
    cuda->context_pop(&context);
    if (error == 0)
        return ncclSuccess;
    pthread_mutex_lock(&lock);
    communicator->enqueued -= !bundle->captured;
    pthread_mutex_unlock(&lock);
    return failure(ncclUnhandledCudaError, "the driver's error %d", error);
}
