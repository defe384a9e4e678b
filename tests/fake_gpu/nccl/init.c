/* Versions, unique ids, configurations, and the making of communicators. */
#include "internal.h"

#define COMPUTE_CAPABILITY_MAJOR 75
#define COMPUTE_CAPABILITY_MINOR 76

static struct clique *cliques;

struct clique *clique_new(int size) {
    struct clique *clique = allocate(sizeof *clique);
    clique->size = size;
    clique->members = allocate((size_t)size * sizeof(struct communicator *));
    clique->ends = allocate((size_t)size * (size_t)size * sizeof(int));
    clique->next = cliques;
    cliques = clique;
    return clique;
}

EXPORT ncclResult_t ncclGetVersion(int *version) {
    TRY(enter_without(__func__, -1, ""));
    if (version == NULL)
        return failure(ncclInvalidArgument, "%s: version is NULL", __func__);
    *version = FAKE_NCCL_VERSION;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    TRY(enter_without(__func__, -1, ""));
    if (id == NULL)
        return failure(ncclInvalidArgument, "%s: id is NULL", __func__);
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&lock);
    bool made = gathering_make_id(id);
    pthread_mutex_unlock(&lock);
    return made ? ncclSuccess : failure(ncclSystemError, "no memory that processes share");
}

static bool in_range(int value, int least, int most) {
    return value == NCCL_CONFIG_UNDEF_INT || (value >= least && value <= most);
}

/* Whether a library of this version may meet a configuration of this size: what was the
 * structure in some version. */
static bool is_config_size(size_t size) {
    static const struct {
        size_t size;
        int since;
    } sizes[] = {
        {offsetof(ncclConfig_t, cgaClusterSize) + sizeof(int), 21400},
        {offsetof(ncclConfig_t, splitShare), 21700},
        {offsetof(ncclConfig_t, commName), 21800},
        {offsetof(ncclConfig_t, shrinkShare), 22700},
        {offsetof(ncclConfig_t, nChannelsPerNetPeer), 22800},
        {offsetof(ncclConfig_t, graphUsageMode), 22900},
        {sizeof(ncclConfig_t), 23000},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].size == size)
            return sizes[i].since <= FAKE_NCCL_VERSION;
    }
    return false;
}

ncclResult_t read_config(const ncclConfig_t *given, ncclConfig_t *config) {
    *config = (ncclConfig_t){
        .blocking = NCCL_CONFIG_UNDEF_INT,
        .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
        .minCTAs = NCCL_CONFIG_UNDEF_INT,
        .maxCTAs = NCCL_CONFIG_UNDEF_INT,
        .splitShare = NCCL_CONFIG_UNDEF_INT,
        .graphUsageMode = NCCL_CONFIG_UNDEF_INT,
        .graphStreamOrdering = NCCL_CONFIG_UNDEF_INT,
    };
    if (given == NULL)
        return ncclSuccess;
    if (!is_config_size(given->size))
        return failure(ncclInvalidArgument, "config: a size of %zu bytes", given->size);
    if (given->magic != NCCL_API_MAGIC)
        return failure(ncclInvalidArgument, "config: magic is %x", given->magic);
    if (given->version < 21400 || given->version > FAKE_NCCL_VERSION)
        return failure(ncclInvalidArgument, "config: version is %u", given->version);
    memcpy(config, given, given->size);
    bool ordering = config->graphStreamOrdering != 0
                    || (config->graphUsageMode != 2 && config->graphUsageMode != NCCL_CONFIG_UNDEF_INT);
    if (!in_range(config->blocking, 0, 1) || !in_range(config->cgaClusterSize, 0, 8)
        || !in_range(config->minCTAs, 1, INT_MAX) || !in_range(config->maxCTAs, 1, INT_MAX)
        || !in_range(config->splitShare, 0, 1) || !in_range(config->graphUsageMode, 0, 2)
        || !in_range(config->graphStreamOrdering, 0, 1) || !ordering
        || (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs != NCCL_CONFIG_UNDEF_INT
            && config->minCTAs > config->maxCTAs))
        return failure(ncclInvalidArgument, "config: a value is out of range");
    return ncclSuccess;
}

/* Takes the calling thread's context and device for the communicator's. */
static ncclResult_t take_device(struct communicator *communicator) {
    const struct driver *cuda = driver();
    int major, minor;
    if (cuda == NULL)
        return failure(ncclSystemError, "libcuda.so.1 cannot be loaded");
    if (cuda->context_get_device(&communicator->device) != 0 || cuda->context_get_current(&communicator->context) != 0
        || cuda->device_get_attribute(&major, COMPUTE_CAPABILITY_MAJOR, communicator->device) != 0
        || cuda->device_get_attribute(&minor, COMPUTE_CAPABILITY_MINOR, communicator->device) != 0)
        return failure(ncclUnhandledCudaError, "no device is current");
    communicator->capability = 10 * major + minor;
    const char *name = getenv("NCCL_HOSTID");
    for (size_t i = 0; name != NULL && name[i] != '\0'; i++)
        communicator->machine = 31 * communicator->machine + (unsigned char)name[i];
    return ncclSuccess;
}

/* The clique of this process that has the id and this size. */
static struct clique *find_clique(const ncclUniqueId *id, int size) {
    struct clique *clique = cliques;
    while (clique != NULL && (memcmp(&clique->id, id, sizeof *id) != 0 || clique->size != size))
        clique = clique->next;
    return clique;
}

/* Puts the communicator into the clique of an id. Ranks that name different sizes never meet.
 * With the lock held. */
static bool take_seat(struct communicator *communicator, const ncclUniqueId *id, int size) {
    struct clique *clique = find_clique(id, size);
    if (clique == NULL) {
        clique = clique_new(size);
        clique->id = *id;
        if (!gathering_open(clique)) {
            clique->size = 0;
            return false;
        }
    }
    if (clique->members[communicator->rank] != NULL)
        return false;
    communicator->clique = clique;
    if (!gathering_take_seat(communicator))
        return false;
    clique->members[communicator->rank] = communicator;
    pthread_cond_broadcast(&changed);
    return true;
}

/* Whether two ranks are on one device. */
static bool has_duplicate(const struct clique *clique) {
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (allowed != NULL && strcmp(allowed, "1") == 0)
        return false;
    for (int a = 0; a < clique->size; a++) {
        for (int b = 0; b < a; b++) {
            if (clique->members[a]->device == clique->members[b]->device
                && clique->members[a]->machine == clique->members[b]->machine)
                return true;
        }
    }
    return false;
}

ncclResult_t join_ranks(struct communicator *communicator, void *nothing) {
    (void)nothing;
    struct clique *clique = communicator->clique;
    pthread_mutex_lock(&lock);
    while (!gathering_is_complete(clique) && !communicator_ended(communicator))
        gathering_nap();
    bool came = clique->is_complete;
    bool duplicate = came && has_duplicate(clique);
    pthread_mutex_unlock(&lock);
    if (!came)
        return failure(ncclInternalError, "aborted while other ranks were waited for");
    /* The text is that of initTransportsRank (init.cc of NCCL 2.30.7). */
    return duplicate ? failure(ncclInvalidUsage, "Multiple Ranks are using the same GPU/Partition. "
                               "Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.")
                     : ncclSuccess;
}

static ncclResult_t initialize(
    const char *function, ncclComm_t *handle, int size, const ncclUniqueId *id, int rank, const ncclConfig_t *given) {
    if (handle == NULL || size < 1 || rank < 0 || rank >= size)
        return failure(ncclInvalidArgument, "%s: rank %d of %d", function, rank, size);
    ncclConfig_t config;
    TRY(read_config(given, &config));
    struct communicator *communicator = communicator_new(NULL, rank, NULL, config.blocking != 0);
    ncclResult_t result = take_device(communicator);
    int milliseconds = script_late_handle();
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
    pthread_mutex_lock(&lock);
    bool seated = result == ncclSuccess && take_seat(communicator, id, size);
    if (seated)
        *handle = communicator_handle(communicator);
    pthread_mutex_unlock(&lock);
    if (!seated) {
        free(communicator->fate);
        free(communicator);
        return result != ncclSuccess
                   ? result
                   : failure(ncclInvalidArgument, "%s: an unknown id, or a rank that is taken", function);
    }
    if (group_is_open()) {
        group_add_init(communicator);
        return ncclSuccess;
    }
    return complete(function, communicator, false, join_ranks, NULL);
}

static ncclResult_t enter_init(
    const char *function, ncclComm_t *handle, int size, const ncclUniqueId *id, int rank, const ncclConfig_t *config) {
    char details[32];
    snprintf(details, sizeof details, "of %d", size);
    ncclResult_t result = enter_without(function, rank, details);
    if (result == ncclSuccess)
        result = initialize(function, handle, size, id, rank, config);
    if (group_is_open() && result != ncclSuccess)
        group_fail(result);
    return result;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int size, ncclUniqueId id, int rank) {
    return enter_init(__func__, communicator, size, &id, rank, NULL);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *communicator, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    return enter_init(__func__, communicator, size, &id, rank, config);
}
