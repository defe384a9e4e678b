/* Communicators: handles, what every call begins and ends with, finalize, destroy, abort,
 * revoke. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <time.h>

#include "internal.h"

#define MARK ((uintptr_t)0x0fa4c1 << 40)

static struct communicator **table;
static size_t table_count, table_room, live;

struct communicator *communicator_new(struct clique *clique, int rank, struct fate *fate, bool blocking) {
    struct communicator *communicator = allocate(sizeof *communicator);
    communicator->clique = clique;
    communicator->rank = rank;
    communicator->blocking = blocking;
    communicator->fate = fate != NULL ? fate : allocate(sizeof *fate);
    return communicator;
}

/* Handles are numbers that are not used again. */
ncclComm_t communicator_handle(struct communicator *communicator) {
    if (table_count == table_room) {
        table_room = 2 * table_room + 64;
        table = realloc(table, table_room * sizeof(struct communicator *));
        if (table == NULL)
            abort();
    }
    live++;
    table[table_count] = communicator;
    return (ncclComm_t)(MARK | table_count++ << 4);
}

static struct communicator *find(ncclComm_t handle) {
    uintptr_t number = (uintptr_t)handle - MARK;
    return number % 16 == 0 && number / 16 < table_count ? table[number / 16] : NULL;
}

size_t communicator_live(void) {
    return live;
}

bool communicator_ended(const struct communicator *communicator) {
    return communicator->fate->aborted || communicator->stage >= DESTROYED;
}

bool communicator_stopped(const struct communicator *communicator) {
    return communicator_ended(communicator) || communicator->stage == REVOKED;
}

/* Counts, notes and lets scripted faults happen. */
static ncclResult_t begin(const char *function, int rank, const char *details) {
    pthread_mutex_lock(&lock);
    uint64_t calls = count_call(function, -1);
    uint64_t calls_of_rank = rank >= 0 ? count_call(function, rank) : 0;
    note_call(rank, function, details);
    pthread_mutex_unlock(&lock);
    if (script_stall(function, calls, calls_of_rank, rank))
        hang();
    ncclResult_t result = script_failure(function, calls, calls_of_rank, rank);
    return result == ncclSuccess ? result : failure(result, "%s fails as it was told to", function);
}

ncclResult_t enter_without(const char *function, int rank, const char *details) {
    return begin(function, rank, details);
}

/* What is wrong with a call on this communicator in words, or NULL. */
static const char *objection(const struct communicator *communicator, int allowances) {
    if (communicator->pending && (allowances & MAY_BE_IN_PROGRESS) == 0)
        return "the communicator is in progress";
    if (communicator->stage == FINALIZED && (allowances & MAY_BE_FINALIZED) == 0)
        return "the communicator is finalized";
    if (communicator->stage == REVOKED && (allowances & MAY_BE_REVOKED) == 0)
        return "the communicator is revoked";
    if (group_is_open() && (allowances & IN_GROUP) == 0)
        return "this does not go into a group";
    return NULL;
}

/* Whether the calling thread's device is the communicator's. Not with the lock held. */
static bool is_on_device(const struct communicator *communicator) {
    int device;
    return driver()->context_get_device(&device) == 0 && device == communicator->device;
}

ncclResult_t enter(
    const char *function, ncclComm_t handle, int allowances, struct communicator **entered, const char *details, ...) {
    char text[160];
    va_list arguments;
    va_start(arguments, details);
    vsnprintf(text, sizeof text, details, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    struct communicator *communicator = *entered = find(handle);
    bool visited = false;
    const char *why = NULL;
    if (communicator != NULL) {
        why = communicator->stage >= DESTROYED ? "the communicator is gone" : objection(communicator, allowances);
        visited = communicator->inside > 0 && !communicator->visitor_aborts &&
                  !pthread_equal(communicator->visitor, pthread_self());
        if (why != NULL)
            note_violation("rank %d: %s: %s", communicator->rank, function, why);
        if (visited && (allowances & BESIDE_OTHERS) == 0)
            note_violation("rank %d: %s: another thread is inside the communicator", communicator->rank, function);
        if (communicator->inside++ == 0) {
            communicator->visitor = pthread_self();
            communicator->visitor_aborts = (allowances & BESIDE_OTHERS) != 0;
        }
    }
    bool gone = communicator == NULL || communicator->stage >= DESTROYED;
    ncclResult_t broken =
        communicator != NULL && (allowances & MAY_HAVE_FAILED) == 0 ? communicator->async_error : ncclSuccess;
    pthread_mutex_unlock(&lock);
    ncclResult_t result = begin(function, communicator != NULL ? communicator->rank : -1, text);
    if (communicator == NULL)
        return failure(ncclInvalidArgument, "%s: this is no communicator", function);
    if (result != ncclSuccess && result != ncclInvalidArgument) {
        pthread_mutex_lock(&lock);
        communicator->async_error = result;
        pthread_mutex_unlock(&lock);
    } else if (gone) {
        result = failure(ncclInvalidArgument, "%s: %s", function, why);
    } else if (why != NULL) {
        result = failure(ncclInvalidUsage, "%s: %s", function, why);
    } else if (visited && (allowances & MAY_BE_IN_PROGRESS) == 0) {
        result = failure(ncclInvalidUsage, "%s: another thread is inside the communicator", function);
    } else if (broken != ncclSuccess) {
        result = failure(broken, "%s: the communicator has failed before", function);
    } else if ((allowances & ON_ANY_DEVICE) == 0 && !is_on_device(communicator)) {
        pthread_mutex_lock(&lock);
        note_violation("rank %d: %s: the current device is not the communicator's", communicator->rank, function);
        pthread_mutex_unlock(&lock);
        result = failure(ncclInvalidUsage, "%s: the current device is not the communicator's", function);
    }
    return result == ncclSuccess ? result : leave(communicator, result);
}

ncclResult_t leave(struct communicator *communicator, ncclResult_t result) {
    pthread_mutex_lock(&lock);
    communicator->inside--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return result;
}

/* The rest of a call, to be done by a thread. */
struct job {
    struct communicator *communicator;
    work_function work;
    void *argument;
    int milliseconds;
};

static ncclResult_t do_work(struct communicator *communicator, work_function work, void *argument) {
    ncclResult_t result = work(communicator, argument);
    pthread_mutex_lock(&lock);
    if (result != ncclSuccess && (result != ncclInvalidArgument || !communicator->blocking))
        communicator->async_error = result;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Waits for so long, or until the communicator has ended. */
static void wait_in_progress(const struct communicator *communicator, int milliseconds) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += milliseconds % 1000 * 1000000L;
    end.tv_sec += milliseconds / 1000 + end.tv_nsec / 1000000000L;
    end.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&lock);
    while (!communicator_ended(communicator) && pthread_cond_timedwait(&changed, &lock, &end) != ETIMEDOUT)
        continue;
    pthread_mutex_unlock(&lock);
}

static void *do_job(void *data) {
    struct job *job = data;
    wait_in_progress(job->communicator, job->milliseconds);
    ncclResult_t result = do_work(job->communicator, job->work, job->argument);
    pthread_mutex_lock(&lock);
    if (result != ncclSuccess)
        job->communicator->async_error = result;
    job->communicator->pending = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(job);
    return NULL;
}

/* For how many milliseconds the call is to be in progress, or -1. A group of calls is in progress
 * where a communicator does not block (group.cc of NCCL 2.30.7, ncclGroupEndInternal), but a
 * collective of one rank is launched at once and never comes into the group (enqueue.cc,
 * taskAppend). */
static int progress(const char *function, struct communicator *communicator, bool collective) {
    uint64_t calls = collective ? ++communicator->collective_calls : 0;
    int scripted = script_in_progress(function);
    if (communicator->blocking || script_has("never_in_progress"))
        return -1;
    if (scripted >= 0)
        return scripted;
    if (collective && communicator->clique->size == 1)
        return -1;
    return collective && calls % 3 != 0 ? 0 : 1;
}

/* On a communicator that blocks the script keeps the calling thread in the call, until that time is
 * over or the abort flags are set. */
static ncclResult_t keep_caller(const char *function, struct communicator *communicator) {
    int milliseconds = script_in_progress(function);
    if (milliseconds < 0)
        return ncclSuccess;
    wait_in_progress(communicator, milliseconds);
    pthread_mutex_lock(&lock);
    bool ended = communicator_ended(communicator);
    pthread_mutex_unlock(&lock);
    return ended ? failure(ncclInternalError, "%s: aborted", function) : ncclSuccess;
}

ncclResult_t complete(
    const char *function, struct communicator *communicator, bool collective, work_function work, void *argument) {
    pthread_mutex_lock(&lock);
    int milliseconds = progress(function, communicator, collective);
    communicator->pending = milliseconds >= 0;
    pthread_mutex_unlock(&lock);
    if (communicator->blocking)
        TRY(keep_caller(function, communicator));
    if (milliseconds < 0)
        return do_work(communicator, work, argument);
    struct job *job = allocate(sizeof *job);
    *job = (struct job){communicator, work, argument, milliseconds};
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_job, job) != 0)
        abort();
    pthread_detach(thread);
    return ncclInProgress;
}

ncclResult_t hide_progress(ncclResult_t result) {
    return result == ncclInProgress ? ncclSuccess : result;
}

/* Enqueues the bundles of a group in their order, and says of each communicator that it is done. */
static ncclResult_t enqueue_in_order(struct bundle *bundle) {
    ncclResult_t result = ncclSuccess;
    for (struct bundle *next = bundle; next != NULL; next = next->next)
        bundle_announce(next);
    while (bundle != NULL) {
        struct bundle *next = bundle->next;
        struct communicator *communicator = bundle->communicator;
        ncclResult_t one = do_work(communicator, bundle_enqueue, bundle);
        pthread_mutex_lock(&lock);
        if (one != ncclSuccess) {
            communicator->async_error = one;
            result = one;
        }
        communicator->pending = false;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        bundle = next;
    }
    return result;
}

struct group_job {
    struct bundle *bundles;
    int milliseconds;
};

static void *do_group_job(void *data) {
    struct group_job *job = data;
    wait_in_progress(job->bundles->communicator, job->milliseconds);
    enqueue_in_order(job->bundles);
    free(job);
    return NULL;
}

ncclResult_t complete_group(const char *function, struct bundle *bundles) {
    int milliseconds = -1;
    pthread_mutex_lock(&lock);
    for (struct bundle *bundle = bundles; bundle != NULL; bundle = bundle->next) {
        int one = progress(function, bundle->communicator, true);
        milliseconds = one > milliseconds ? one : milliseconds;
    }
    for (struct bundle *bundle = bundles; bundle != NULL && milliseconds >= 0; bundle = bundle->next)
        bundle->communicator->pending = true;
    pthread_mutex_unlock(&lock);
    if (bundles->communicator->blocking)
        TRY(keep_caller(function, bundles->communicator));
    if (milliseconds < 0)
        return enqueue_in_order(bundles);
    struct group_job *job = allocate(sizeof *job);
    *job = (struct group_job){bundles, milliseconds};
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_group_job, job) != 0)
        abort();
    pthread_detach(thread);
    return ncclInProgress;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *error) {
    struct communicator *communicator;
    TRY(enter(__func__, handle, IN_ANY_STATE | MAY_BE_IN_PROGRESS | IN_GROUP, &communicator, "%s", ""));
    if (error == NULL)
        return leave(communicator, ncclInvalidArgument);
    pthread_mutex_lock(&lock);
    *error = communicator->pending ? ncclInProgress : communicator->async_error;
    pthread_mutex_unlock(&lock);
    return leave(communicator, ncclSuccess);
}

static ncclResult_t get(
    const char *function, ncclComm_t handle, int *to, int (*field)(const struct communicator *communicator)) {
    struct communicator *communicator;
    TRY(enter(function, handle, IN_ANY_STATE | IN_GROUP, &communicator, "%s", ""));
    if (to == NULL)
        return leave(communicator, ncclInvalidArgument);
    *to = field(communicator);
    return leave(communicator, ncclSuccess);
}

static int size_of(const struct communicator *communicator) {
    return communicator->clique->size;
}

static int rank_of(const struct communicator *communicator) {
    return communicator->rank;
}

static int device_of(const struct communicator *communicator) {
    return communicator->device;
}

EXPORT ncclResult_t ncclCommCount(ncclComm_t communicator, int *count) {
    return get(__func__, communicator, count, size_of);
}

EXPORT ncclResult_t ncclCommUserRank(ncclComm_t communicator, int *rank) {
    return get(__func__, communicator, rank, rank_of);
}

EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t communicator, int *device) {
    return get(__func__, communicator, device, device_of);
}

/* Waits until no graph has a call of the communicator. Abort flags do not end this
 * (localPersistentRefs in commDestroySync, init.cc of NCCL 2.30.7). */
static void wait_for_graphs(const struct communicator *communicator) {
    while (__atomic_load_n(&communicator->graph_uses, __ATOMIC_SEQ_CST) > 0)
        gathering_nap();
}

/* Waits until this rank's work is through and every rank has come. */
static ncclResult_t flush(struct communicator *communicator, void *nothing) {
    (void)nothing;
    pthread_mutex_lock(&lock);
    while (communicator->executed != communicator->enqueued && !communicator_stopped(communicator))
        pthread_cond_wait(&changed, &lock);
    wait_for_graphs(communicator);
    struct assembly *assembly = assemble(communicator, "finalize", NULL, 0, NULL);
    if (assembly != NULL) {
        assembly_leave(communicator, assembly);
        communicator->stage = FINALIZED;
    }
    pthread_mutex_unlock(&lock);
    return assembly != NULL ? ncclSuccess : ncclInternalError;
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    struct communicator *communicator;
    TRY(enter(__func__, handle, ON_ANY_DEVICE, &communicator, "%s", ""));
    return leave(communicator, complete(__func__, communicator, false, flush, NULL));
}

/* Marks the communicator as gone. */
static void end(struct communicator *communicator, enum stage stage) {
    window_forget(communicator);
    communicator->stage = stage;
    live--;
    pthread_cond_broadcast(&changed);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    struct communicator *communicator;
    TRY(enter(__func__, handle, IN_ANY_STATE, &communicator, "%s", ""));
    pthread_mutex_lock(&lock);
    bool flushed = communicator->stage != ALIVE;
    pthread_mutex_unlock(&lock);
    ncclResult_t result = flushed ? ncclSuccess : flush(communicator, NULL);
    /* It calls cudaFreeHost (commFree in init.cc). */
    void *popped;
    const struct driver *cuda = driver();
    if (cuda->context_push(communicator->context) == 0) {
        cuda->wait_as_free();
        cuda->context_pop(&popped);
    }
    pthread_mutex_lock(&lock);
    end(communicator, DESTROYED);
    pthread_mutex_unlock(&lock);
    return leave(communicator, result);
}

/* Waits until nothing of the communicator works any more. */
static void settle(struct communicator *communicator) {
    pthread_cond_broadcast(&changed);
    while (communicator->pending || communicator->running > 0)
        pthread_cond_wait(&changed, &lock);
}

void abort_finish(struct communicator *communicator) {
    pthread_mutex_lock(&lock);
    if (communicator->inside > 0)
        note_violation("rank %d: the communicator is freed while a thread is inside", communicator->rank);
    if (communicator->parent != NULL && communicator->parent->stage != ABORTED)
        note_violation("rank %d: the child of a failed split is aborted before its parent", communicator->rank);
    settle(communicator);
    wait_for_graphs(communicator);
    end(communicator, ABORTED);
    pthread_mutex_unlock(&lock);
}

/* Sets the abort flags. Frees the communicator too, but in a group that is left to ncclGroupEnd:
 * from 2.22 on ncclCommAbort hands commReclaim to ncclAsyncLaunch (init.cc, group.cc), and so other
 * threads may be inside. */
EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle) {
    struct communicator *communicator;
    bool grouped = group_is_open() && FAKE_NCCL_VERSION >= 22200;
    int allowances = IN_ANY_STATE | MAY_BE_IN_PROGRESS | (grouped ? IN_GROUP | BESIDE_OTHERS : 0);
    TRY(enter(__func__, handle, allowances, &communicator, "%s", ""));
    if (script_has("hang_abort"))
        hang();
    int milliseconds = script_in_progress(__func__);
    if (milliseconds > 0)
        poll(NULL, 0, milliseconds);
    pthread_mutex_lock(&lock);
    communicator->fate->aborted = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    leave(communicator, ncclSuccess);
    if (grouped)
        group_add_abort(communicator);
    else
        abort_finish(communicator);
    return ncclSuccess;
}

#if FAKE_NCCL_VERSION >= 22807
static ncclResult_t revoke(struct communicator *communicator, void *nothing) {
    (void)nothing;
    pthread_mutex_lock(&lock);
    communicator->stage = REVOKED;
    pthread_cond_broadcast(&changed);
    while (communicator->running > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags) {
    struct communicator *communicator;
    TRY(enter(__func__, handle, MAY_HAVE_FAILED | ON_ANY_DEVICE, &communicator, "flags %d", flags));
    if (flags != 0)
        return leave(communicator, failure(ncclInvalidArgument, "%s: flags must be 0", __func__));
    return leave(communicator, complete(__func__, communicator, false, revoke, NULL));
}
#endif
