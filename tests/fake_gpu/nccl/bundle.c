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
    while (!is_turn(communicator, bundle) && !communicator_stopped(communicator))
        pthread_cond_wait(&changed, &lock);
    if (!communicator_stopped(communicator)) {
        communicator->busy = true;
        if (!is_spoiled(communicator, bundle))
            run_calls(communicator, bundle->calls, bundle->count);
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

/* What a rank has come to: a send to another rank, a receive from it, or a collective, which is
 * noted with the rank itself. With the line to a peer it is noted what the first bundle between the
 * two has. */
enum end { SENDS = 1, RECEIVES = 2, COLLECTS = 4, IS_KNOWN = 8, SENDS_FIRST = 16, RECEIVES_FIRST = 32 };

static int *ends(const struct clique *clique, int from, int to) {
    return clique->gathering != NULL ? gathering_ends(clique->gathering, from, to)
                                     : &clique->ends[from * clique->size + to];
}

static bool is_sent_to(const struct call *call, int rank, int peer) {
    return call->operation == ALL_TO_ALL || (call->operation == SCATTER && call->root == rank)
        || ((call->operation == SEND || call->operation == GATHER) && call->root == peer);
}

static bool is_received_from(const struct call *call, int rank, int peer) {
    return call->operation == ALL_TO_ALL || (call->operation == GATHER && call->root == rank)
        || ((call->operation == RECEIVE || call->operation == SCATTER) && call->root == peer);
}

static bool is_for_all(const struct call *call) {
    return call->operation <= REDUCE_SCATTER;
}

/* Notes the own end of a line to a peer, or looks whether the peer has come to the other one. */
static bool has_end(const struct clique *clique, int from, int to, enum end end, bool is_own) {
    int *place = ends(clique, from, to);
    int before = is_own ? __atomic_fetch_or(place, end, __ATOMIC_SEQ_CST) : __atomic_load_n(place, __ATOMIC_SEQ_CST);
    return is_own || (before & end) != 0;
}

/* Notes all own ends of a bundle, or looks whether all peers have come to theirs. */
static bool has_ends(const struct bundle *bundle, bool is_own) {
    const struct clique *clique = bundle->communicator->clique;
    int rank = bundle->communicator->rank;
    bool all = true;
    for (size_t i = 0; i < bundle->count; i++) {
        const struct call *call = &bundle->calls[i];
        for (int peer = 0; peer < clique->size; peer++) {
            int at = is_own ? rank : peer;
            if (FAKE_NCCL_VERSION >= 22200 && is_for_all(call))
                all = has_end(clique, at, at, COLLECTS, is_own) && all;
            if (peer != rank && is_sent_to(call, rank, peer))
                all = has_end(clique, rank, peer, is_own ? SENDS : RECEIVES, is_own) && all;
            if (peer != rank && is_received_from(call, rank, peer))
                all = has_end(clique, peer, rank, is_own ? RECEIVES : SENDS, is_own) && all;
        }
    }
    return all;
}

/* What a bundle has for a peer. */
static int shape_for(const struct bundle *bundle, int rank, int peer) {
    int shape = 0;
    for (size_t i = 0; i < bundle->count; i++) {
        shape |= is_sent_to(&bundle->calls[i], rank, peer) ? SENDS_FIRST | IS_KNOWN : 0;
        shape |= is_received_from(&bundle->calls[i], rank, peer) ? RECEIVES_FIRST | IS_KNOWN : 0;
    }
    return shape;
}

void bundle_announce(const struct bundle *bundle) {
    const struct clique *clique = bundle->communicator->clique;
    int rank = bundle->communicator->rank;
    for (int peer = 0; peer < clique->size; peer++) {
        int *place = ends(clique, rank, peer), known = __atomic_load_n(place, __ATOMIC_SEQ_CST) & IS_KNOWN;
        if (peer != rank && !known)
            __atomic_fetch_or(place, shape_for(bundle, rank, peer), __ATOMIC_SEQ_CST);
    }
    has_ends(bundle, true);
}

/* Whether what both ranks have first fits together. Only ranks that are opposite in the ring of all
 * exchange one record for both directions, and take what comes for the answer
 * (ncclTransportP2pSetup in transport.cc, bootstrapRecv in bootstrap.cc of NCCL 2.30.7). */
static bool fits(const struct bundle *bundle) {
    const struct clique *clique = bundle->communicator->clique;
    int rank = bundle->communicator->rank, peer = (rank + clique->size / 2) % clique->size;
    if (clique->size % 2 != 0 || shape_for(bundle, rank, peer) == 0)
        return true;
    int own = __atomic_load_n(ends(clique, rank, peer), __ATOMIC_SEQ_CST);
    int other = __atomic_load_n(ends(clique, peer, rank), __ATOMIC_SEQ_CST);
    return ((own & SENDS_FIRST) != 0) == ((other & RECEIVES_FIRST) != 0)
        && ((own & RECEIVES_FIRST) != 0) == ((other & SENDS_FIRST) != 0);
}

/* Ranks connect on the host: all at their first collective (ncclCollPreconnect in group.cc, from
 * 2.22 on), and two at their first message (ncclP2PPreconnectFunc). Abort flags end the wait. */
static bool connect(const struct bundle *bundle) {
    bundle_announce(bundle);
    while (!has_ends(bundle, false) && !communicator_stopped(bundle->communicator))
        gathering_nap();
    return !communicator_stopped(bundle->communicator);
}

static void note_end_of_graph(void *communicator) {
    __atomic_fetch_sub(&((struct communicator *)communicator)->graph_uses, 1, __ATOMIC_SEQ_CST);
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
    bool is_connected = connect(bundle), is_fit = fits(bundle);
    bool aborted = !is_connected || !is_fit || (!bundle->captured && !wait_for_room(communicator));
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
        return is_fit ? failure(ncclInternalError, "aborted while peers or the GPU were waited for")
                      : failure(ncclInternalError, "Message truncated : received other bytes than were asked for");
    }
    /* A call of one rank is no kernel of NCCL's. */
    if (error == 0 && bundle->captured && communicator->clique->size > 1) {
        __atomic_fetch_add(&communicator->graph_uses, 1, __ATOMIC_SEQ_CST);
        error = at_end_of_graph(bundle->stream, note_end_of_graph, communicator);
        if (error != 0)
            note_end_of_graph(communicator);
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
