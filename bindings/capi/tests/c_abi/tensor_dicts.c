/* Dictionaries of tensors: their tensors, files, and their broadcast. */
#include "check.h"

#define NB_RANKS 3

static void has_name(dcl_tensor_dict_t *dict, int32_t index, const char *name) {
    char text[64];
    OK(dcl_tensor_dict_get_name(dict, index, text, sizeof text, NULL));
    CHECK(strcmp(text, name) == 0);
}

static dcl_dict_tensor_t described(dcl_data_type_t data_type, dcl_dims_t dims, void *address) {
    dcl_dict_tensor_t tensor = DCL_DICT_TENSOR_INIT;
    tensor.data_type = data_type;
    tensor.dims = dims;
    tensor.address = address;
    return tensor;
}

static dcl_status_t insert(dcl_tensor_dict_t *dict, const char *name, dcl_dict_tensor_t tensor) {
    return dcl_tensor_dict_insert(dict, name, &tensor);
}

static dcl_dict_tensor_t tensor_of(dcl_tensor_dict_t *dict, const char *name) {
    dcl_dict_tensor_t tensor = DCL_DICT_TENSOR_INIT;
    OK(dcl_tensor_dict_get_tensor(dict, name, &tensor));
    CHECK(tensor.struct_size == sizeof tensor && tensor.strides == NULL);
    return tensor;
}

static void tensors(void) {
    dcl_tensor_dict_t *dict;
    dcl_dims_t matrix = {2, {2, 3}}, scalar = {0, {0}}, empty = vector(0);
    float own[6] = {1, 2, 3, 4, 5, 6}, read[6];
    const int64_t by_column[2] = {1, 3}, backwards[2] = {-3, -1};
    double half = 0.5;
    int32_t number = -7;
    size_t byte_len = 77;
    dcl_dict_tensor_t double_one = described(DCL_OPAQUE_TYPE, scalar, &half), got;
    double_one.type_name = "F64";
    double_one.bit_len = 64;
    dcl_dict_tensor_t columns = described(DCL_DATA_TYPE_FLOAT, (dcl_dims_t){2, {3, 2}}, own);
    columns.strides = by_column;
    dcl_dict_tensor_t reversed = described(DCL_DATA_TYPE_FLOAT, matrix, own + 5);
    reversed.strides = backwards;
    OK(dcl_tensor_dict_new(&dict));
    OK(dcl_tensor_dict_get_nb_tensors(dict, &number));
    CHECK(number == 0);
    OK(insert(dict, "zeros", described(DCL_DATA_TYPE_BF16, scalar, NULL)));
    OK(insert(dict, "own", described(DCL_DATA_TYPE_FLOAT, matrix, own)));
    OK(insert(dict, "empty", described(DCL_DATA_TYPE_INT64, empty, NULL)));
    OK(insert(dict, "double", double_one));
    OK(insert(dict, "columns", columns));
    OK(insert(dict, "backwards", reversed));
    OK(dcl_tensor_dict_get_nb_tensors(dict, &number));
    CHECK(number == 6);
    has_name(dict, 0, "zeros");
    has_name(dict, 5, "backwards");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_get_name(dict, 6, NULL, 0, &byte_len));
    MESSAGE_HAS("there is no tensor 6; there are 6");

    got = tensor_of(dict, "own");
    CHECK(got.data_type == DCL_DATA_TYPE_FLOAT && strcmp(got.type_name, "float32") == 0 && got.bit_len == 32);
    CHECK(got.dims.nb_dims == 2 && got.dims.d[0] == 2 && got.dims.d[1] == 3);
    CHECK(got.device == DCL_DEVICE_HOST && got.byte_len == sizeof own);
    CHECK(got.address == own && !got.is_read_only);
    got = tensor_of(dict, "zeros");
    CHECK(got.data_type == DCL_DATA_TYPE_BF16 && *(uint16_t *)got.address == 0);
    got = tensor_of(dict, "double");
    CHECK(got.data_type == DCL_OPAQUE_TYPE && strcmp(got.type_name, "F64") == 0 && got.bit_len == 64);
    CHECK(got.address == &half && got.byte_len == sizeof half);
    /* What the library describes can be inserted. */
    OK(insert(dict, "double", got));
    CHECK(tensor_of(dict, "double").address == &half);
    got = tensor_of(dict, "columns");
    CHECK(got.dims.nb_dims == 2 && got.dims.d[0] == 3 && got.dims.d[1] == 2);
    CHECK(got.address == NULL && !got.is_read_only && strcmp(got.type_name, "float32") == 0);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, insert(dict, "copy", got));
    MESSAGE_HAS("it describes a strided tensor; copy the elements by dcl_tensor_dict_read");
    OK(dcl_tensor_dict_read(dict, "columns", 0, read, sizeof read));
    CHECK(read[0] == 1 && read[1] == 4 && read[2] == 2 && read[5] == 6);
    OK(dcl_tensor_dict_read(dict, "backwards", 0, read, sizeof read));
    CHECK(read[0] == 6 && read[1] == 5 && read[5] == 1);
    read[0] = 60;
    OK(dcl_tensor_dict_write(dict, "own", 5 * sizeof(float), read, sizeof(float)));
    CHECK(own[5] == 60);
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_tensor_dict_write(dict, "own", 6 * sizeof(float), read, 1));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_tensor_dict_write(dict, "columns", 0, read, 4));
    MESSAGE_HAS("the tensor is strided or read-only");
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_tensor_dict_read(dict, "own", 1, read, sizeof read));

    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_get_tensor(dict, "none", &got));
    MESSAGE_HAS("the dictionary has no tensor \"none\"");
    got.struct_size = 8;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_get_tensor(dict, "own", &got));
    MESSAGE_HAS("struct_size of tensor is 8");
    FAILS(DCL_STATUS_INVALID_BUFFER, insert(dict, "odd", described(DCL_DATA_TYPE_FLOAT, scalar, (char *)own + 1)));
    got = described(DCL_DATA_TYPE_FLOAT, scalar, NULL);
    got.device = DCL_DEVICE_UNSET;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, insert(dict, "unset", got));
    got = described(DCL_OPAQUE_TYPE, scalar, NULL);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, insert(dict, "half", got));
    MESSAGE_HAS("type_name is NULL");
    got.type_name = "F4";
    got.bit_len = 4;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, insert(dict, "half", got));
    double_one.strides = by_column;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, insert(dict, "opaque", double_one));
    MESSAGE_HAS("a tensor of an opaque type has no strides");
    const int64_t far[2] = {INT64_MAX, INT64_MIN};
    columns.strides = far;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, insert(dict, "far", columns));
    MESSAGE_HAS("the strides reach more than memory can hold");
    OK(dcl_tensor_dict_remove(dict, "own"));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_remove(dict, "own"));
    has_name(dict, 1, "empty");
    OK(dcl_tensor_dict_free(dict));
    CHECK(own[0] == 1);
}

static void metadata_of(dcl_tensor_dict_t *dict) {
    char text[16];
    int32_t number = -7;
    OK(dcl_tensor_dict_get_nb_metadata(dict, &number));
    CHECK(number == 1);
    OK(dcl_tensor_dict_get_metadata_key(dict, 0, text, sizeof text, NULL));
    CHECK(strcmp(text, "format") == 0);
    OK(dcl_tensor_dict_get_metadata(dict, "format", text, sizeof text, NULL));
    CHECK(strcmp(text, "pt") == 0);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_get_metadata(dict, "none", text, sizeof text, NULL));
}

static void files(void) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/dcl_tensor_dicts_%ld.safetensors", (long)getpid());
    dcl_tensor_dict_t *dict, *loaded, *mapped;
    dcl_dims_t dims = vector(3);
    int32_t own[3] = {1, 2, 3}, read[3] = {0, 0, 0};
    OK(dcl_tensor_dict_new(&dict));
    OK(insert(dict, "x", described(DCL_DATA_TYPE_INT32, dims, own)));
    OK(dcl_tensor_dict_set_metadata(dict, "format", "pt"));
    OK(dcl_tensor_dict_set_metadata(dict, "gone", "x"));
    OK(dcl_tensor_dict_set_metadata(dict, "gone", NULL));
    OK(dcl_tensor_dict_save(dict, path));
    OK(dcl_tensor_dict_load(path, &loaded));
    OK(dcl_tensor_dict_map(path, &mapped));
    metadata_of(loaded);
    metadata_of(mapped);
    dcl_dict_tensor_t x = tensor_of(loaded, "x");
    CHECK(!x.is_read_only && memcmp(x.address, own, sizeof own) == 0);
    x = tensor_of(mapped, "x");
    CHECK(x.is_read_only && memcmp(x.address, own, sizeof own) == 0);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_insert(loaded, "read_only", &x));
    MESSAGE_HAS("it describes a read-only tensor");
    OK(dcl_tensor_dict_read(mapped, "x", 0, read, sizeof read));
    CHECK(memcmp(read, own, sizeof own) == 0);
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_tensor_dict_write(mapped, "x", 0, own, 4));
    OK(dcl_tensor_dict_free(mapped));
    OK(dcl_tensor_dict_free(loaded));
    CHECK(truncate(path, 20) == 0);
    loaded = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_load(path, &loaded));
    MESSAGE_HAS("it is no safetensors file, or was cut");
    CHECK(loaded == NULL);
    CHECK(unlink(path) == 0);
    FAILS(DCL_STATUS_SYSTEM, dcl_tensor_dict_load(path, &loaded));
    OK(dcl_tensor_dict_free(dict));
}

static void count_bytes(uint64_t byte_count, uint64_t total_bytes, void *user_data) {
    CHECK(byte_count <= total_bytes);
    *(uint64_t *)user_data = byte_count;
}

/* The source has "x" and "y"; the others have "x" in memory of their own. */
static dcl_tensor_dict_t *weights(int32_t is_source, int32_t *own) {
    dcl_tensor_dict_t *dict;
    dcl_dims_t dims = vector(2);
    OK(dcl_tensor_dict_new(&dict));
    OK(insert(dict, "x", described(DCL_DATA_TYPE_INT32, dims, own)));
    if (is_source) {
        OK(insert(dict, "y", described(DCL_DATA_TYPE_INT32, dims, own)));
        OK(dcl_tensor_dict_set_metadata(dict, "format", "pt"));
    }
    return dict;
}

static void broadcast(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    dcl_broadcast_options_t options = DCL_BROADCAST_OPTIONS_INIT;
    uint64_t done = 0;
    int32_t own[2] = {10 * rank, 10 * rank + 1}, read[2] = {-7, -7}, number = -7;
    options.src = 1;
    options.progress = count_bytes;
    options.user_data = &done;
    dcl_tensor_dict_t *dict = weights(rank == options.src, own);
    OK(dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    CHECK(own[0] == 10 && own[1] == 11 && done == 16);
    OK(dcl_tensor_dict_read(dict, "y", 0, read, sizeof read));
    CHECK(read[1] == 11);
    metadata_of(dict);

    /* On a stream. The dictionary is away until the broadcast has ended, which the others begin
     * later. */
    dcl_stream_t *stream;
    dcl_work_t *work;
    own[0] = 20 * rank;
    OK(dcl_stream_new_worker(&stream));
    OK(dcl_communicator_barrier(communicator));
    if (rank != 0) {
        int32_t begun = 0;
        OK(dcl_recv(communicator, &begun, 1, DCL_DATA_TYPE_INT32, 0, 0, NULL, NULL));
    }
    OK(dcl_broadcast_tensor_dict(communicator, dict, &options, stream, &work));
    if (rank == 0) {
        FAILS(DCL_STATUS_BUSY, dcl_tensor_dict_get_nb_tensors(dict, &number));
        MESSAGE_HAS("a stream broadcasts the dictionary");
        FAILS(DCL_STATUS_BUSY, dcl_broadcast_tensor_dict(communicator, dict, &options, stream, NULL));
        for (int32_t dst = 1; dst < NB_RANKS; dst++) {
            OK(dcl_send(communicator, &rank, 1, DCL_DATA_TYPE_INT32, dst, 0));
        }
    }
    OK(dcl_work_wait(work));
    OK(dcl_work_free(work));
    CHECK(own[0] == 20);
    OK(dcl_tensor_dict_get_nb_tensors(dict, &number));
    CHECK(number == 2);
    own[0] = 30 * rank;
    OK(dcl_communicator_barrier(communicator));
    OK(dcl_broadcast_tensor_dict(communicator, dict, &options, stream, NULL));
    OK(dcl_stream_synchronize(stream));
    CHECK(own[0] == 30);
    OK(dcl_stream_free(stream));

    /* Errors hand it back, and end nothing. */
    options.src = NB_RANKS;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    MESSAGE_HAS("source 3 is not one of 3 ranks");
    options.src = 1;
    options.backend = "nccl";
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    options.backend = "host";
    options.shared = rank;
    FAILS(DCL_STATUS_DISAGREEMENT, dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    options.shared = 1;
    options.pin_memory = 1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    options.pin_memory = 0;
    options.reserved = 1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    options.reserved = 0;

    /* A receiver's tensors become views, which outlive the caller's memory. */
    options.offload_to_cpu = 1;
    options.device = DCL_DEVICE_HOST;
    OK(dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    dcl_dict_tensor_t x = tensor_of(dict, "x");
    CHECK((x.address == own) == (rank == 1) && x.is_read_only == (rank != 1));
    CHECK(memcmp(x.address, own, sizeof own) == 0);
    if (rank != 1) {
        FAILS(DCL_STATUS_INVALID_BUFFER, dcl_tensor_dict_write(dict, "x", 0, own, 4));
    }
    OK(dcl_tensor_dict_free(dict));
}

/* Waits until the broadcast has ended and the dictionary is back. */
static void until_it_is_back(dcl_tensor_dict_t *dict) {
    dcl_status_t status;
    int32_t number = -7;
    while ((status = dcl_tensor_dict_get_nb_tensors(dict, &number)) == DCL_STATUS_BUSY) {
        MESSAGE_HAS("a stream broadcasts the dictionary");
        pause_ms(1);
    }
    OK(status);
    CHECK(number == 2);
}

/* The dictionary comes back when the broadcast has ended, whichever handles are freed before. */
static void freed_in_any_order(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t own[2], read[2] = {-7, -7};
    for (int32_t order = 0; order < 6; order++) {
        dcl_stream_t *stream;
        dcl_work_t *work = NULL;
        own[0] = own[1] = 10 * rank + order;
        dcl_tensor_dict_t *dict = weights(rank == 0, own);
        OK(dcl_stream_new_worker(&stream));
        OK(dcl_broadcast_tensor_dict(communicator, dict, NULL, stream, order == 0 ? NULL : &work));
        if (order <= 2) {
            OK(dcl_stream_free(stream));
            OK(dcl_work_free(work));
        }
        if (order == 2) {
            /* The memory is borrowed until the broadcast has ended. */
            OK(dcl_tensor_dict_free(dict));
            OK(dcl_communicator_barrier(communicator));
            CHECK(own[1] == order);
            continue;
        }
        if (order == 3) {
            OK(dcl_tensor_dict_free(dict));
            OK(dcl_work_wait(work));
        } else {
            until_it_is_back(dict);
            OK(dcl_tensor_dict_read(dict, "y", 0, read, sizeof read));
            CHECK(read[1] == order);
        }
        CHECK(own[1] == order);
        if (order >= 3) {
            /* A dictionary that is back does not take the work's result along. */
            OK(dcl_work_wait(work));
            OK(dcl_work_free(work));
            OK(dcl_stream_free(stream));
        }
        if (order == 4) {
            dcl_broadcast_options_t options = DCL_BROADCAST_OPTIONS_INIT;
            options.src = NB_RANKS;
            OK(dcl_communicator_get_stream(communicator, &stream));
            OK(dcl_broadcast_tensor_dict(communicator, dict, &options, stream, &work));
            until_it_is_back(dict);
            for (int i = 0; i < 2; i++) {
                FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_work_wait(work));
                MESSAGE_HAS("source 3 is not one of 3 ranks");
            }
            OK(dcl_work_free(work));
            OK(dcl_stream_free(stream));
        }
        if (order != 3) {
            OK(dcl_tensor_dict_free(dict));
        }
    }
}

/* A wrong value on one rank is an error on all. */
static void one_rank_refuses(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    static const char *const says[] = {"src is -1", "\"mps\" is not a backend", "reserved of options is 1",
                                       "device (-1 is the host) is -5", "struct_size of options is 1"};
    int32_t own[2] = {rank, rank}, number = -7;
    dcl_tensor_dict_t *dict = weights(rank == 0, own);
    for (size_t i = 0; i < LENGTH_OF(says); i++) {
        dcl_broadcast_options_t options = DCL_BROADCAST_OPTIONS_INIT;
        if (rank == 1) {
            options.src = i == 0 ? -1 : 0;
            options.backend = i == 1 ? "mps" : NULL;
            options.reserved = i == 2;
            options.device = i == 3 ? -5 : DCL_DEVICE_UNSET;
            options.struct_size = i == 4 ? 1 : sizeof options;
        }
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
        MESSAGE_HAS(says[i]);
        if (rank != 1) {
            MESSAGE_HAS("no dictionary has changed, because rank 1 refuses");
        }
    }
    OK(dcl_tensor_dict_get_nb_tensors(dict, &number));
    CHECK(number == 1 + (rank == 0));
    OK(dcl_broadcast_tensor_dict(communicator, dict, NULL, NULL, NULL));
    CHECK(own[0] == 0);
    OK(dcl_tensor_dict_free(dict));
}

int main(void) {
    tensors();
    files();
    on_ranks(NB_RANKS, broadcast, NULL);
    on_ranks(NB_RANKS, freed_in_any_order, NULL);
    on_ranks(NB_RANKS, one_rank_refuses, NULL);
    return 0;
}
