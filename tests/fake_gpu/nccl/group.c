/* Groups: what a thread calls between ncclGroupStart and ncclGroupEnd goes on the streams
 * together. */
#include "internal.h"

#define MOST_COMMUNICATORS 64

static _Thread_local struct {
    int depth;
    ncclResult_t result;
    struct bundle *bundles;
    struct communicator *inits[MOST_COMMUNICATORS];
    int init_count;
    struct communicator *aborts[MOST_COMMUNICATORS];
    int abort_count;
} group;

bool group_is_open(void) {
    return group.depth > 0;
}

void group_fail(ncclResult_t result) {
    if (group.result == ncclSuccess)
        group.result = result;
}

void group_add_init(struct communicator *communicator) {
    if (group.bundles != NULL || group.init_count == MOST_COMMUNICATORS)
        group_fail(failure(ncclInvalidUsage, "a communicator is made in a group with collectives"));
    else
        group.inits[group.init_count++] = communicator;
}

void group_add_abort(struct communicator *communicator) {
    if (group.abort_count == MOST_COMMUNICATORS)
        abort();
    group.aborts[group.abort_count++] = communicator;
}

void group_add_call(struct communicator *communicator, const struct call *call, cudaStream_t stream) {
    struct bundle **place = &group.bundles;
    while (*place != NULL && (*place)->communicator != communicator)
        place = &(*place)->next;
    if (group.init_count > 0) {
        group_fail(failure(ncclInvalidUsage, "a collective is called in a group in which a communicator is made"));
        return;
    }
    if (*place == NULL) {
        *place = allocate(sizeof **place);
        (*place)->communicator = communicator;
        (*place)->stream = stream;
    }
    if ((*place)->stream != stream) {
        pthread_mutex_lock(&lock);
        note_violation("rank %d: calls on two streams in one group", communicator->rank);
        pthread_mutex_unlock(&lock);
        group_fail(failure(ncclInvalidUsage, "calls on two streams in one group"));
        return;
    }
    struct bundle *bundle = realloc(*place, sizeof *bundle + ((*place)->count + 1) * sizeof *call);
    if (bundle == NULL)
        abort();
    bundle->calls[bundle->count++] = *call;
    *place = bundle;
}

EXPORT ncclResult_t ncclGroupStart(void) {
    TRY(enter_without(__func__, -1, ""));
    group.depth++;
    return ncclSuccess;
}

/* Keeps the worse of two results: an error before being in progress, and that before success. */
static void keep(ncclResult_t *result, ncclResult_t other) {
    if (*result == ncclSuccess || (*result == ncclInProgress && other != ncclSuccess))
        *result = other;
}

static ncclResult_t finish(const char *function) {
    ncclResult_t result = group.result;
    struct bundle *bundles = group.bundles;
    group.bundles = NULL;
    if (bundles != NULL && group.result == ncclSuccess) {
        keep(&result, complete_group(function, bundles));
        bundles = NULL;
    }
    while (bundles != NULL) {
        struct bundle *next = bundles->next;
        free(bundles);
        bundles = next;
    }
    /* Non-blocking communicators come first, so that none waits for another one of this thread. */
    for (int blocking = 0; blocking < 2; blocking++) {
        for (int i = 0; i < group.init_count; i++) {
            if (group.inits[i]->blocking == (blocking == 1))
                keep(&result, complete(function, group.inits[i], false, join_ranks, NULL));
        }
    }
    group.init_count = 0;
    for (int i = 0; i < group.abort_count; i++)
        abort_finish(group.aborts[i]);
    group.abort_count = 0;
    group.result = ncclSuccess;
    return result;
}

EXPORT ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result = enter_without(__func__, -1, "");
    if (group.depth == 0)
        return failure(ncclInvalidUsage, "%s without ncclGroupStart", __func__);
    if (result != ncclSuccess)
        group_fail(result);
    return --group.depth > 0 ? ncclSuccess : finish(__func__);
}
