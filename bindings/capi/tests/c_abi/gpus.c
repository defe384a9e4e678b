/* Communicators, buffers and streams on GPUs: two ranks in one process, or on an ncclComm_t of the
 * caller. */
#include "check.h"

#include <dlfcn.h>

#define NB_RANKS 2

/* The caller's functions of CUDA and NCCL. */
struct unique_id {
    char bytes[DCL_NCCL_ID_BYTES];
};

static void *symbol(const char *library, const char *name) {
    void *handle = dlopen(library, RTLD_NOW);
    CHECK(handle != NULL);
    void *address = dlsym(handle, name);
    CHECK(address != NULL);
    return address;
}

#define FUNCTION(pointer, library, name)                        \
    do {                                                        \
        void *found = symbol(library, name);                    \
        memcpy(&(pointer), &found, sizeof(pointer));            \
    } while (0)

/* Reduces on this rank's GPU, on a CUDA stream, with a work handle and without. */
static void add_up(dcl_communicator_t *communicator, int32_t rank) {
    int32_t device;
    char backend[8];
    OK(dcl_communicator_get_device(communicator, &device));
    CHECK(device == rank);
    OK(dcl_communicator_get_backend(communicator, backend, sizeof backend, NULL));
    CHECK(strcmp(backend, "nccl") == 0);
    dcl_buffer_t *input, *output;
    dcl_stream_t *stream;
    dcl_work_t *work;
    int32_t given[2] = {rank + 1, 10}, taken[2] = {0, 0};
    void *in, *out, *cuda_stream = NULL;
    OK(dcl_buffer_new(device, sizeof given, &input));
    OK(dcl_communicator_allocate(communicator, sizeof taken, &output));
    OK(dcl_buffer_write(input, 0, given, sizeof given));
    OK(dcl_buffer_get_address(input, &in));
    OK(dcl_buffer_get_address(output, &out));
    OK(dcl_stream_new_cuda(device, &stream));
    OK(dcl_stream_get_cuda(stream, &cuda_stream));
    CHECK(cuda_stream != NULL);
    OK(dcl_all_reduce(communicator, in, out, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, &work));
    OK(dcl_work_wait(work));
    OK(dcl_work_free(work));
    OK(dcl_buffer_read(output, 0, taken, sizeof taken));
    CHECK(taken[0] == 3 && taken[1] == 20);
    OK(dcl_all_reduce(communicator, out, out, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_MAX, stream, NULL));
    OK(dcl_stream_synchronize(stream));
    /* The same stream, borrowed from the caller, and the NULL stream. */
    dcl_stream_t *borrowed;
    OK(dcl_stream_from_cuda(cuda_stream, device, &borrowed));
    OK(dcl_all_reduce(communicator, out, out, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, borrowed, NULL));
    OK(dcl_stream_synchronize(borrowed));
    OK(dcl_stream_free(borrowed));
    OK(dcl_all_reduce(communicator, out, out, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
    OK(dcl_buffer_read(output, 4, taken, 4));
    CHECK(taken[0] == 80);
    OK(dcl_communicator_barrier(communicator));
    OK(dcl_stream_free(stream));
    OK(dcl_buffer_free(output));
    OK(dcl_buffer_free(input));
}

struct gpu_rank {
    int32_t rank;
    dcl_communicator_t *communicator;
    uint8_t *id;
};

static void *in_process(void *argument) {
    struct gpu_rank *rank = argument;
    add_up(rank->communicator, rank->rank);
    OK(dcl_communicator_free(rank->communicator));
    return NULL;
}

static void *by_id(void *argument) {
    struct gpu_rank *rank = argument;
    dcl_communicator_t *communicator;
    OK(dcl_communicator_new_nccl(rank->id, rank->rank, NB_RANKS, rank->rank, TIMEOUT_MS, &communicator));
    add_up(communicator, rank->rank);
    OK(dcl_communicator_finalize(communicator));
    return NULL;
}

static void *on_the_caller_s(void *argument) {
    struct gpu_rank *rank = argument;
    int (*init)(void **, int, struct unique_id, int), (*destroy)(void *);
    int (*retain)(void **, int), (*set_current)(void *);
    FUNCTION(retain, "libcuda.so.1", "cuDevicePrimaryCtxRetain");
    FUNCTION(set_current, "libcuda.so.1", "cuCtxSetCurrent");
    FUNCTION(init, "libnccl.so.2", "ncclCommInitRank");
    FUNCTION(destroy, "libnccl.so.2", "ncclCommDestroy");
    void *context, *comm;
    struct unique_id id;
    memcpy(&id, rank->id, sizeof id);
    CHECK(retain(&context, rank->rank) == 0 && set_current(context) == 0);
    CHECK(init(&comm, NB_RANKS, id, rank->rank) == 0);
    dcl_communicator_t *communicator;
    OK(dcl_communicator_from_nccl(comm, TIMEOUT_MS, &communicator));
    add_up(communicator, rank->rank);
    OK(dcl_communicator_free(communicator));
    /* The caller still owns it. */
    CHECK(destroy(comm) == 0);
    return NULL;
}

static void on_gpus(void *(*body)(void *), dcl_communicator_t **communicators, uint8_t *id) {
    struct gpu_rank ranks[NB_RANKS];
    pthread_t threads[NB_RANKS];
    for (int32_t rank = 0; rank < NB_RANKS; rank++) {
        ranks[rank] = (struct gpu_rank){rank, communicators == NULL ? NULL : communicators[rank], id};
        threads[rank] = start(body, &ranks[rank]);
    }
    for (int32_t rank = 0; rank < NB_RANKS; rank++) {
        join(threads[rank]);
    }
}

/* A child's calls on copies of objects on GPUs reach neither CUDA nor NCCL. */
struct copies {
    dcl_communicator_t *communicators[NB_RANKS];
    dcl_buffer_t *buffer;
    dcl_stream_t *stream;
};

static uint64_t calls_so_far(void) {
    uint64_t (*of_nccl)(const char *), (*of_cuda)(const char *), count = 0;
    FUNCTION(of_nccl, "libnccl.so.2", "fake_nccl_calls");
    FUNCTION(of_cuda, "libcuda.so.1", "fake_cuda_calls");
    const char *nccl[] = {"ncclCommAbort", "ncclCommFinalize", "ncclCommDestroy", "ncclAllReduce"};
    const char *cuda[] = {"cuMemFree_v2", "cuStreamDestroy_v2", "cuMemcpyHtoDAsync_v2", "cuCtxGetCurrent"};
    for (size_t i = 0; i < LENGTH_OF(nccl); i++) {
        count += of_nccl(nccl[i]) + of_cuda(cuda[i]);
    }
    return count;
}

static void be_a_child(const struct copies *copies) {
    int32_t one = 1;
    void *address;
    uint64_t before = calls_so_far();
    CHECK(before > 0);
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_barrier(copies->communicators[0]));
    MESSAGE_HAS("forked");
    OK(dcl_buffer_get_address(copies->buffer, &address));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_all_reduce(copies->communicators[0], address, address, 1, DCL_DATA_TYPE_INT32,
                                                 DCL_REDUCE_SUM, copies->stream, NULL));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_communicator_abort(copies->communicators[0], "a child wants to"));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_buffer_write(copies->buffer, 0, &one, sizeof one));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_stream_synchronize(copies->stream));
    OK(dcl_buffer_free(copies->buffer));
    OK(dcl_stream_free(copies->stream));
    for (int32_t rank = 0; rank < NB_RANKS; rank++) {
        OK(dcl_communicator_free(copies->communicators[rank]));
    }
    pause_ms(50);
    CHECK(calls_so_far() == before);
}

static void *add_up_and_keep(void *argument) {
    struct gpu_rank *rank = argument;
    add_up(rank->communicator, rank->rank);
    return NULL;
}

static void fork_a_child(void) {
    struct copies copies;
    pid_t child;
    OK(dcl_communicator_new_in_process("nccl", NB_RANKS, TIMEOUT_MS, copies.communicators));
    OK(dcl_buffer_new(0, 64, &copies.buffer));
    OK(dcl_stream_new_cuda(0, &copies.stream));
    on_gpus(add_up_and_keep, copies.communicators, NULL);
    IN_A_CHILD(child, be_a_child(&copies));
    has_ended_well(child);
    on_gpus(in_process, copies.communicators, NULL);
    OK(dcl_buffer_free(copies.buffer));
    OK(dcl_stream_free(copies.stream));
}

int main(int argc, char **argv) {
    dcl_communicator_t *communicators[NB_RANKS], *none = NULL;
    if (argc == 2 && strcmp(argv[1], "fork") == 0) {
        fork_a_child();
        return 0;
    }
    uint8_t id[DCL_NCCL_ID_BYTES], other[DCL_NCCL_ID_BYTES];
    OK(dcl_communicator_new_in_process("nccl", NB_RANKS, TIMEOUT_MS, communicators));
    on_gpus(in_process, communicators, NULL);
    CHECK(dcl_communicator_new_in_process("nccl", 3, TIMEOUT_MS, communicators) != DCL_STATUS_SUCCESS);
    OK(dcl_nccl_id_new(id));
    on_gpus(by_id, NULL, id);
    OK(dcl_nccl_id_new(other));
    CHECK(memcmp(id, other, sizeof id) != 0);
    on_gpus(on_the_caller_s, NULL, other);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_from_nccl(NULL, TIMEOUT_MS, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_new_nccl(id, -1, 2, 0, TIMEOUT_MS, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_new_nccl(id, 2, 2, 0, TIMEOUT_MS, &none));
    CHECK(none == NULL);
    return 0;
}
