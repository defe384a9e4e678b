/* What happens on the streams: bundles of calls. */
#include "internal.h"

#define CAPTURE_ACTIVE 1

/* Bundles that graphs have recorded. They live as long as the process, because the library does
 * not learn when a graph is destroyed. */
static struct bundle *recorded;

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
        bool has_processes = communicator->clique->gathering != NULL;
        if (!is_spoiled(communicator, bundle))
            (has_processes ? run_calls_of_processes : run_calls)(communicator, bundle->calls, bundle->count);
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
    if (error == 0 && bundle->captured)
        error = register_captured(bundle);
    if (error == 0)
        error = cuda->launch_host_function(bundle->stream, run, bundle);
    void *context;
    cuda->context_pop(&context);
    pthread_mutex_lock(&lock);
    registration_end_group(communicator);
    pthread_mutex_unlock(&lock);
    if (error == 0)
        return ncclSuccess;
    pthread_mutex_lock(&lock);
    communicator->enqueued -= !bundle->captured;
    pthread_mutex_unlock(&lock);
    return failure(ncclUnhandledCudaError, "the driver's error %d", error);
}
