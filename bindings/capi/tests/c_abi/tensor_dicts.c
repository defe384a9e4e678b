/* Dictionaries of tensors: their tensors, files, and their broadcast. */
#include "check.h"

#define NB_RANKS 3

static void has_name(dcl_tensor_dict_t *dict, int32_t index, const char *name) {
    char text[64];
    OK(dcl_tensor_dict_get_name(dict, index, text, sizeof text, NULL));
    CHECK(strcmp(text, name) == 0);
}

static void has_type(dcl_tensor_dict_t *dict, const char *name, const char *type) {
    char text[64];
    OK(dcl_tensor_dict_get_type_name(dict, name, text, sizeof text, NULL));
    CHECK(strcmp(text, type) == 0);
}

static void tensors(void) {
    dcl_tensor_dict_t *dict;
    dcl_dims_t matrix = {2, {2, 3}}, transposed = {2, {3, 2}}, scalar = {0, {0}}, empty = {1, {0}}, got;
    float own[6] = {1, 2, 3, 4, 5, 6}, read[6];
    const int64_t by_column[2] = {1, 3}, backwards[2] = {-3, -1};
    double opaque = 0.5;
    int32_t number = -7, data_type = -7;
    size_t byte_len = 77;
    void *address = NULL;
    OK(dcl_tensor_dict_new(&dict));
    OK(dcl_tensor_dict_get_nb_tensors(dict, &number));
    CHECK(number == 0);
    OK(dcl_tensor_dict_insert(dict, "zeros", DCL_DATA_TYPE_BF16, &scalar, DCL_DEVICE_HOST, NULL));
    OK(dcl_tensor_dict_insert(dict, "own", DCL_DATA_TYPE_FLOAT, &matrix, DCL_DEVICE_HOST, own));
    OK(dcl_tensor_dict_insert(dict, "empty", DCL_DATA_TYPE_INT64, &empty, DCL_DEVICE_HOST, NULL));
    OK(dcl_tensor_dict_insert_opaque(dict, "double", "F64", 64, &scalar, &opaque));
    OK(dcl_tensor_dict_insert_strided(dict, "columns", DCL_DATA_TYPE_FLOAT, &transposed, by_column, own));
    OK(dcl_tensor_dict_insert_strided(dict, "backwards", DCL_DATA_TYPE_FLOAT, &matrix, backwards, own + 5));
    OK(dcl_tensor_dict_get_nb_tensors(dict, &number));
    CHECK(number == 6);
    has_name(dict, 0, "zeros");
    has_name(dict, 5, "backwards");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_get_name(dict, 6, NULL, 0, &byte_len));
    MESSAGE_HAS("there is no tensor 6; there are 6");

    OK(dcl_tensor_dict_get_type(dict, "zeros", &data_type));
    CHECK(data_type == DCL_DATA_TYPE_BF16);
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_tensor_dict_get_type(dict, "double", &data_type));
    MESSAGE_HAS("element type F64 is none of this library's");
    has_type(dict, "double", "F64");
    has_type(dict, "columns", "float32");
    OK(dcl_tensor_dict_get_dims(dict, "columns", &got));
    CHECK(got.nb_dims == 2 && got.d[0] == 3 && got.d[1] == 2);
    OK(dcl_tensor_dict_get_byte_len(dict, "own", &byte_len));
    CHECK(byte_len == sizeof own);
    OK(dcl_tensor_dict_get_device(dict, "own", &number));
    CHECK(number == DCL_DEVICE_HOST);

    OK(dcl_tensor_dict_get_address(dict, "own", &address));
    CHECK(address == own);
    OK(dcl_tensor_dict_get_address(dict, "zeros", &address));
    CHECK(*(uint16_t *)address == 0);
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_tensor_dict_get_address(dict, "columns", &address));
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

    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_get_dims(dict, "none", &got));
    MESSAGE_HAS("the dictionary has no tensor \"none\"");
    FAILS(DCL_STATUS_INVALID_BUFFER,
          dcl_tensor_dict_insert(dict, "odd", DCL_DATA_TYPE_FLOAT, &scalar, DCL_DEVICE_HOST, (char *)own + 1));
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_tensor_dict_insert(dict, "unset", DCL_DATA_TYPE_FLOAT, &scalar, DCL_DEVICE_UNSET, NULL));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_dict_insert_opaque(dict, "half", "F4", 4, &scalar, NULL));
    const int64_t far[2] = {INT64_MAX, INT64_MIN};
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_tensor_dict_insert_strided(dict, "far", DCL_DATA_TYPE_FLOAT, &transposed, far, own));
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
    void *address = NULL;
    OK(dcl_tensor_dict_new(&dict));
    OK(dcl_tensor_dict_insert(dict, "x", DCL_DATA_TYPE_INT32, &dims, DCL_DEVICE_HOST, own));
    OK(dcl_tensor_dict_set_metadata(dict, "format", "pt"));
    OK(dcl_tensor_dict_set_metadata(dict, "gone", "x"));
    OK(dcl_tensor_dict_set_metadata(dict, "gone", NULL));
    OK(dcl_tensor_dict_save(dict, path));
    OK(dcl_tensor_dict_load(path, &loaded));
    OK(dcl_tensor_dict_map(path, &mapped));
    metadata_of(loaded);
    metadata_of(mapped);
    OK(dcl_tensor_dict_get_address(loaded, "x", &address));
    CHECK(memcmp(address, own, sizeof own) == 0);
    OK(dcl_tensor_dict_get_address(mapped, "x", &address));
    CHECK(memcmp(address, own, sizeof own) == 0);
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
    OK(dcl_tensor_dict_insert(dict, "x", DCL_DATA_TYPE_INT32, &dims, DCL_DEVICE_HOST, own));
    if (is_source) {
        OK(dcl_tensor_dict_insert(dict, "y", DCL_DATA_TYPE_INT32, &dims, DCL_DEVICE_HOST, own));
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
    void *address = NULL;
    options.offload_to_cpu = 1;
    options.device = DCL_DEVICE_HOST;
    OK(dcl_broadcast_tensor_dict(communicator, dict, &options, NULL, NULL));
    OK(dcl_tensor_dict_get_address(dict, "x", &address));
    CHECK((address == own) == (rank == 1) && memcmp(address, own, sizeof own) == 0);
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

static void in_an_environment(void) {
    dcl_environment_config_t config = DCL_ENVIRONMENT_CONFIG_INIT;
    dcl_broadcast_options_t options = DCL_BROADCAST_OPTIONS_INIT;
    dcl_environment_t *environment;
    int32_t own[2] = {1, 2};
    dcl_tensor_dict_t *dict = weights(1, own);
    config.rank = 0;
    config.world_size = 1;
    config.host = "localhost";
    config.port = own_port();
    config.backend = "host";
    OK(dcl_environment_initialize(&config, &environment));
    OK(dcl_environment_broadcast_tensor_dict(environment, dict, NULL));
    options.group_name = "sync_group";
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_environment_broadcast_tensor_dict(environment, dict, &options));
    MESSAGE_HAS("there is no group \"sync_group\"");
    OK(dcl_environment_finalize(environment));
    OK(dcl_tensor_dict_free(dict));
}

int main(void) {
    tensors();
    files();
    on_ranks(NB_RANKS, broadcast, NULL);
    on_ranks(NB_RANKS, freed_in_any_order, NULL);
    on_ranks(NB_RANKS, one_rank_refuses, NULL);
    in_an_environment();
    return 0;
}
