/* The collectives' entry points, and what NCCL checks of their arguments, strictly. */
#include "internal.h"

#define MEMORY_TYPE 2
#define MEMORY_TYPE_DEVICE 2
#define DEVICE_ORDINAL 9
#define RANGE_START 11
#define RANGE_SIZE 12
#define FIRST_WITH_FLOAT8_ARITHMETIC 90

static bool reduces(enum operation operation) {
    return operation == ALL_REDUCE || operation == REDUCE || operation == REDUCE_SCATTER;
}

static bool has_root(enum operation operation) {
    return operation == BROADCAST || operation == REDUCE || operation == GATHER || operation == SCATTER
        || operation == SEND || operation == RECEIVE;
}

static bool is_point_to_point(const struct call *call) {
    return call->operation == SEND || call->operation == RECEIVE;
}

/* Whether so many bytes are memory of the communicator's device. */
static bool is_device_memory(const struct communicator *communicator, const void *address, size_t size) {
    const struct driver *cuda = driver();
    unsigned long long at = (uintptr_t)address, start;
    unsigned type;
    int device;
    size_t range;
    return cuda->pointer_get_attribute(&type, MEMORY_TYPE, at) == 0 && type == MEMORY_TYPE_DEVICE
        && cuda->pointer_get_attribute(&device, DEVICE_ORDINAL, at) == 0 && device == communicator->device
        && cuda->pointer_get_attribute(&start, RANGE_START, at) == 0
        && cuda->pointer_get_attribute(&range, RANGE_SIZE, at) == 0 && size <= range - (size_t)(at - start);
}

/* Whether buffers that both are used and overlap do so in a way that the operation allows. */
static bool is_in_place(const struct call *call, int rank, size_t bytes) {
    const char *send = call->send, *receive = call->receive;
    switch (call->operation) {
    case ALL_GATHER:
    case GATHER:
        return send == receive + (size_t)rank * bytes;
    case REDUCE_SCATTER:
    case SCATTER:
        return receive == send + (size_t)rank * bytes;
    case ALL_TO_ALL:
        return false;
    default:
        return send == receive;
    }
}

/* What is wrong with the call, or NULL. */
static const char *objection(const struct communicator *communicator, const struct call *call) {
    int size = communicator->clique->size, rank = communicator->rank;
    /* ncclNumTypes of nccl.h, which had no float8 before 2.24.3. */
    if ((unsigned)call->type >= (FAKE_NCCL_VERSION < 22403 ? ncclFloat8e4m3 : ncclNumTypes))
        return "an unknown type";
    if (reduces(call->operation) && (unsigned)call->reduction >= ncclNumOps)
        return "an unknown reduction";
    if (has_root(call->operation) && (call->root < 0 || call->root >= size))
        return "the root or peer is no rank";
    for (int i = 0; i < size && reduces(call->operation) && call->type >= ncclFloat8e4m3; i++) {
        if (communicator->clique->members[i]->capability < FIRST_WITH_FLOAT8_ARITHMETIC)
            return "float8 cannot be reduced on a device below SM 9.0";
    }
    if (call->count == 0)
        return NULL;
    bool reads = call_reads(call, rank), writes = call_writes(call, rank);
    size_t bytes = call->count * type_size(call->type);
    size_t sent = bytes * call_send_blocks(call, size), received = bytes * call_receive_blocks(call, size);
    if (call->operation != RECEIVE
        && (call->send == NULL || !is_device_memory(communicator, call->send, reads ? sent : 1)))
        return "the send buffer is no memory of the communicator's device";
    if (call->operation != SEND
        && (call->receive == NULL || !is_device_memory(communicator, call->receive, writes ? received : 1)))
        return "the receive buffer is no memory of the communicator's device";
    bool overlap = (uintptr_t)call->send < (uintptr_t)call->receive + received
                && (uintptr_t)call->receive < (uintptr_t)call->send + sent;
    if (!is_point_to_point(call) && reads && writes && overlap && !is_in_place(call, rank, bytes))
        return "the buffers overlap";
    return NULL;
}

static ncclResult_t submit(
    const char *function, struct communicator *communicator, struct call *call, cudaStream_t stream) {
    unsigned made = (unsigned)call->reduction - ncclNumOps;
    if (reduces(call->operation) && made < communicator->made_count && communicator->made[made].type == call->type) {
        call->reduction = ncclSum;
        call->scale = communicator->made[made].scale;
    }
    const char *why = objection(communicator, call);
    if (why != NULL)
        return failure(ncclInvalidArgument, "%s: %s", function, why);
    pthread_mutex_lock(&lock);
    call->async_error = script_async_error(count_call("a collective", communicator->rank), communicator->rank);
    pthread_mutex_unlock(&lock);
    /* taskAppend in enqueue.cc of NCCL 2.30.7. */
    if (call->count == 0 && !is_point_to_point(call))
        return ncclSuccess;
    if (group_is_open()) {
        group_add_call(communicator, call, stream);
        return ncclSuccess;
    }
    struct bundle *bundle = allocate(sizeof *bundle + sizeof *call);
    bundle->communicator = communicator;
    bundle->stream = stream;
    bundle->count = 1;
    bundle->calls[0] = *call;
    return complete(function, communicator, true, bundle_enqueue, bundle);
}

static ncclResult_t collective(const char *function, struct call call, ncclComm_t handle, cudaStream_t stream) {
    struct communicator *communicator;
    char reduction[24] = "", root[24] = "";
    if (reduces(call.operation))
        snprintf(reduction, sizeof reduction, " op %d", (int)call.reduction);
    if (has_root(call.operation))
        snprintf(root, sizeof root, " %s %d", is_point_to_point(&call) ? "peer" : "root", call.root);
    ncclResult_t result = enter(function, handle, IN_GROUP, &communicator, "count %zu type %d%s%s", call.count,
        (int)call.type, reduction, root);
    if (result == ncclSuccess)
        result = leave(communicator, submit(function, communicator, &call, stream));
    if (group_is_open() && result != ncclSuccess)
        group_fail(result);
    return result;
}

/* The reduction is the communicator's own: its number means nothing to another one. */
EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *reduction, void *scalar, ncclDataType_t type,
    ncclScalarResidence_t residence, ncclComm_t handle) {
    struct communicator *communicator;
    ncclResult_t result = enter(__func__, handle, IN_GROUP, &communicator, "type %d", (int)type);
    if (result != ncclSuccess)
        return result;
    unsigned made = communicator->made_count;
    if (made == sizeof communicator->made / sizeof communicator->made[0] || residence != ncclScalarHostImmediate
        || !is_float(type))
        return leave(communicator, failure(ncclInvalidArgument, "%s: not made here", __func__));
    communicator->made[made].type = type;
    communicator->made[made].scale = load_float(type, scalar, 0);
    communicator->made_count++;
    *reduction = (ncclRedOp_t)(ncclNumOps + made);
    return leave(communicator, ncclSuccess);
}

EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
    ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {ALL_REDUCE, send, receive, count, type, reduction, 0, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

EXPORT ncclResult_t ncclAllGather(
    const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {ALL_GATHER, send, receive, count, type, ncclSum, 0, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
    ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {BROADCAST, send, receive, count, type, ncclSum, root, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
    ncclRedOp_t reduction, int root, ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {REDUCE, send, receive, count, type, reduction, root, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
    ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {REDUCE_SCATTER, send, receive, count, type, reduction, 0, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

#if FAKE_NCCL_VERSION >= 22803
EXPORT ncclResult_t ncclAlltoAll(
    const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {ALL_TO_ALL, send, receive, count, type, ncclSum, 0, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

EXPORT ncclResult_t ncclGather(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
    ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {GATHER, send, receive, count, type, ncclSum, root, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

EXPORT ncclResult_t ncclScatter(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
    ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {SCATTER, send, receive, count, type, ncclSum, root, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}
#endif

EXPORT ncclResult_t ncclSend(
    const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {SEND, send, NULL, count, type, ncclSum, peer, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}

EXPORT ncclResult_t ncclRecv(
    void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
    struct call call = {RECEIVE, NULL, receive, count, type, ncclSum, peer, ncclSuccess, 0};
    return collective(__func__, call, communicator, stream);
}
