/* ncclCommSplit. */
#include "internal.h"

/* What a rank brings, and where it wants its new communicator. */
struct wish {
    int color, key, rank;
    ncclComm_t *handle;
    bool blocking, share;
};

static int compare(const void *a, const void *b) {
    const struct wish *x = *(struct wish *const *)a, *y = *(struct wish *const *)b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->rank - y->rank;
}

/* Makes the communicator of all ranks of one color, the wishes of which are in order. */
static void make(const struct clique *parents, struct assembly *assembly, struct wish **wishes, int size) {
    struct clique *clique = clique_new(size);
    clique->is_complete = true;
    gathering_of_group(parents, assembly->number, wishes[0]->color, clique);
    for (int rank = 0; rank < size; rank++) {
        const struct wish *wish = wishes[rank];
        const struct communicator *parent = parents->members[wish->rank];
        struct communicator *child = communicator_new(clique, rank, wish->share ? parent->fate : NULL, wish->blocking);
        child->device = parent->device;
        child->capability = parent->capability;
        child->machine = parent->machine;
        child->context = parent->context;
        clique->members[rank] = child;
        assembly->results[wish->rank] = child;
    }
}

/* Every rank's wish is here: takes one color after the other. */
static void conclude(struct clique *clique, struct assembly *assembly) {
    struct wish **wishes = allocate((size_t)clique->size * sizeof *wishes);
    for (int first = 0; first < clique->size; first++) {
        int color = ((struct wish *)assembly->gifts[first])->color;
        if (color == NCCL_SPLIT_NOCOLOR || assembly->results[first] != NULL)
            continue;
        int size = 0;
        for (int rank = first; rank < clique->size; rank++) {
            if (((struct wish *)assembly->gifts[rank])->color == color)
                wishes[size++] = assembly->gifts[rank];
        }
        qsort(wishes, (size_t)size, sizeof *wishes, compare);
        make(clique, assembly, wishes, size);
    }
    free(wishes);
}

static ncclResult_t split(struct communicator *communicator, void *argument) {
    struct wish *wish = argument;
    pthread_mutex_lock(&lock);
    struct assembly *assembly = assemble(communicator, "split", wish, sizeof *wish, conclude);
    if (assembly != NULL) {
        struct communicator *child = assembly->results[communicator->rank];
        *wish->handle = child != NULL ? communicator_handle(child) : NULL;
        assembly_leave(communicator, assembly);
    } else if (wish->color != NCCL_SPLIT_NOCOLOR) {
        /* NCCL gives a child that is good for nothing but an abort (ncclCommInitRankFunc in
         * init.cc). */
        struct communicator *child = communicator_new(clique_new(1), 0, NULL, wish->blocking);
        child->device = communicator->device;
        child->context = communicator->context;
        child->parent = communicator;
        child->async_error = ncclInternalError;
        *wish->handle = communicator_handle(child);
    }
    pthread_mutex_unlock(&lock);
    free(wish);
    return assembly != NULL ? ncclSuccess : failure(ncclInternalError, "aborted while other ranks were waited for");
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *new_handle, ncclConfig_t *given) {
    struct communicator *communicator;
    TRY(enter(__func__, handle, MAY_BE_REVOKED, &communicator, "color %d key %d", color, key));
    if (new_handle == NULL || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
        return leave(communicator, failure(ncclInvalidArgument, "%s: color %d", __func__, color));
    ncclConfig_t config;
    ncclResult_t result = read_config(given, &config);
    if (result != ncclSuccess)
        return leave(communicator, result);
    *new_handle = NULL;
    struct wish *wish = allocate(sizeof *wish);
    *wish = (struct wish){
        .color = color,
        .key = key,
        .rank = communicator->rank,
        .handle = new_handle,
        .blocking = config.blocking == NCCL_CONFIG_UNDEF_INT ? communicator->blocking : config.blocking != 0,
        .share = config.splitShare == 1,
    };
    return leave(communicator, hide_progress(complete(__func__, communicator, false, split, wish)));
}
