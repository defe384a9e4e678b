/* Windows. */
#include "internal.h"

#if FAKE_NCCL_VERSION >= 22700
struct window {
    struct window *next;
    struct communicator *communicator;
    const char *buffer;
    size_t size;
    /* Where the rank has bound it. */
    size_t bound_at;
    ncclWindow_t handle;
};

static struct window *windows;
static size_t window_count;

size_t window_live(void) {
    return window_count;
}

bool window_overlaps(const struct communicator *communicator, const char *address, size_t size) {
    for (const struct window *window = windows; window != NULL; window = window->next) {
        if ((communicator == NULL || window->communicator == communicator) && address < window->buffer + window->size
            && window->buffer < address + size)
            return true;
    }
    return false;
}

void window_forget(const struct communicator *communicator) {
    struct window **place = &windows;
    while (*place != NULL) {
        struct window *window = *place;
        if (window->communicator != communicator) {
            place = &window->next;
            continue;
        }
        *place = window->next;
        window_count--;
        free(window);
    }
}

/* What a rank brings to a registration. */
struct wish {
    char *buffer;
    size_t size, offset, bound_at;
    int flags;
    /* Whether the memory is ncclMemAlloc's. */
    bool is_nccls;
    ncclWindow_t *handle;
};

enum verdict { UNLIKE, UNSUPPORTED, SUPPORTED };

/* Whether all ranks want the same. */
static void conclude(struct clique *clique, struct assembly *assembly) {
    const struct wish *first = assembly->gifts[0];
    assembly->verdict = script_has("null_window") ? UNSUPPORTED : SUPPORTED;
    for (int rank = 1; rank < clique->size; rank++) {
        const struct wish *wish = assembly->gifts[rank];
        bool symmetric = (wish->flags & NCCL_WIN_COLL_SYMMETRIC) != 0;
        if (wish->size != first->size || wish->flags != first->flags
            || (symmetric && wish->offset != first->offset))
            assembly->verdict = UNLIKE;
    }
    for (int rank = 1; rank < clique->size; rank++) {
        if (((struct wish *)assembly->gifts[rank])->bound_at != first->bound_at)
            note_violation("ranks bind a window at different offsets");
    }
    if (assembly->verdict == UNLIKE)
        note_violation("ranks register windows of different sizes, offsets or flags");
}

static ncclWindow_t window_new(struct communicator *communicator, const struct wish *wish) {
    static uintptr_t count;
    struct window *window = allocate(sizeof *window);
    *window = (struct window){
        .next = windows,
        .communicator = communicator,
        .buffer = wish->buffer,
        .size = wish->size,
        .bound_at = wish->bound_at,
        .handle = (ncclWindow_t)(((uintptr_t)0x0fa4c2 << 40) + 16 * count++),
    };
    windows = window;
    window_count++;
    return window->handle;
}

/* The first place in the rank's own free space that is large enough: NCCL 2.30.7 binds a window
 * there (symMemoryObtain in dev_runtime.cc, ncclSpaceAlloc in allocator.cc), and its multicast
 * object too (cuMulticastBindAddr in symBindTeamMemory), which wants the same place on all
 * ranks. */
static size_t free_space(const struct communicator *communicator, size_t size) {
    size_t at = 0;
    for (const struct window *window = windows; window != NULL;) {
        bool in_the_way = window->communicator == communicator && at < window->bound_at + window->size
                       && window->bound_at < at + size;
        at = in_the_way ? window->bound_at + window->size : at;
        window = in_the_way ? windows : window->next;
    }
    return at;
}

static ncclResult_t register_window(struct communicator *communicator, void *argument) {
    struct wish *wish = argument;
    ncclResult_t result = ncclInternalError;
    /* In progress already (ncclDevrWindowRegisterInGroup in dev_runtime.cc of NCCL 2.30.7). */
    if ((uintptr_t)wish->buffer % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
        free(wish);
        return failure(ncclInvalidArgument, "Window address must be suitably aligned.");
    }
    if (!wish->is_nccls) {
        free(wish);
        return failure(ncclUnhandledCudaError, "cuMemRetainAllocationHandle has failed");
    }
    pthread_mutex_lock(&lock);
    wish->bound_at = free_space(communicator, wish->size);
    struct assembly *assembly = assemble(communicator, "window", wish, sizeof *wish, conclude);
    if (assembly != NULL) {
        result = assembly->verdict == UNLIKE ? ncclInvalidArgument : ncclSuccess;
        *wish->handle = assembly->verdict == SUPPORTED ? window_new(communicator, wish) : NULL;
        assembly_leave(communicator, assembly);
    }
    pthread_mutex_unlock(&lock);
    free(wish);
    return result == ncclSuccess ? result : failure(result, "window registration: aborted, or ranks that differ");
}

EXPORT ncclResult_t ncclCommWindowRegister(
    ncclComm_t handle, void *buffer, size_t size, ncclWindow_t *window, int flags) {
    struct communicator *communicator;
    TRY(enter(__func__, handle, 0, &communicator, "size %zu flags %d", size, flags));
    if (buffer == NULL || size == 0 || window == NULL
        || (flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0)
        return leave(communicator, failure(ncclInvalidArgument, "%s: address, size or flags", __func__));
    *window = NULL;
    struct wish *wish = allocate(sizeof *wish);
    pthread_mutex_lock(&lock);
    const char *start = memory_start(buffer, size);
    bool twice = window_overlaps(communicator, buffer, size);
    if (twice)
        note_violation("rank %d: memory is registered twice", communicator->rank);
    *wish = (struct wish){
        .buffer = buffer,
        .size = size,
        .offset = start != NULL ? (size_t)((char *)buffer - start) : 0,
        .flags = flags,
        .is_nccls = start != NULL,
        .handle = window,
    };
    pthread_mutex_unlock(&lock);
    if (twice) {
        free(wish);
        return leave(communicator, failure(ncclInvalidUsage, "%s: this memory is registered already", __func__));
    }
    return leave(communicator, hide_progress(complete(__func__, communicator, false, register_window, wish)));
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t handle, ncclWindow_t window) {
    struct communicator *communicator;
    TRY(enter(__func__, handle, MAY_HAVE_FAILED | MAY_BE_FINALIZED | MAY_BE_REVOKED, &communicator, "%s", ""));
    pthread_mutex_lock(&lock);
    struct window **place = &windows;
    while (*place != NULL && ((*place)->handle != window || (*place)->communicator != communicator))
        place = &(*place)->next;
    struct window *found = *place;
    if (found != NULL) {
        *place = found->next;
        window_count--;
    }
    pthread_mutex_unlock(&lock);
    free(found);
    if (found == NULL && window != NULL)
        return leave(communicator, failure(ncclInvalidArgument, "%s: this is no window of the communicator", __func__));
    return leave(communicator, ncclSuccess);
}
#else
size_t window_live(void) {
    return 0;
}

void window_forget(const struct communicator *communicator) {
    (void)communicator;
}

bool window_overlaps(const struct communicator *communicator, const char *address, size_t size) {
    (void)communicator;
    (void)address;
    (void)size;
    return false;
}
#endif
