/* Which object owns which, and for how long. */
#include "check.h"

/* A handle that every function must refuse, whatever its type. */
#define GARBAGE(type) ((type *)(uintptr_t)0x5eed)

static void nothing_is_freed(void) {
    OK(dcl_network_free(NULL));
    OK(dcl_layer_free(NULL));
    OK(dcl_engine_free(NULL));
    OK(dcl_execution_context_free(NULL));
    OK(dcl_bound_layer_free(NULL));
    OK(dcl_environment_free(NULL));
    OK(dcl_communicator_free(NULL));
    OK(dcl_buffer_free(NULL));
    OK(dcl_stream_free(NULL));
    OK(dcl_work_free(NULL));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_free(GARBAGE(dcl_network_t)));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_environment_finalize(NULL));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_communicator_finalize(NULL));
}

static void a_handle_is_freed_once(void) {
    dcl_network_t *network;
    OK(dcl_network_new(&network));
    OK(dcl_network_free(network));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_free(network));
    int32_t number = -7;
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_get_nb_layers(network, &number));
    CHECK(number == -7);
    /* Also after other objects use the entry in the table. */
    for (int i = 0; i < 1000; i++) {
        dcl_network_t *other;
        OK(dcl_network_new(&other));
        CHECK(other != network);
        FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_free(network));
        OK(dcl_network_free(other));
    }
    dcl_stream_t *stream;
    OK(dcl_stream_new_worker(&stream));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_free((dcl_network_t *)(uintptr_t)stream));
    MESSAGE_HAS("dcl_stream_t");
    MESSAGE_HAS("dcl_network_t");
    OK(dcl_stream_synchronize(stream));
    OK(dcl_stream_free(stream));
}

/* y = the sum of x over `nb_ranks`, and its layer. */
static dcl_network_t *new_sum(int32_t nb_ranks, dcl_tensor_t **x, dcl_layer_t **layer, dcl_tensor_t **y) {
    dcl_network_t *network;
    dcl_dims_t dims = vector(4);
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, x));
    OK(dcl_network_add_dist_collective(network, *x, DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, -1, NULL, 0, layer));
    OK(dcl_layer_set_nb_rank(*layer, nb_ranks));
    OK(dcl_layer_get_output(*layer, 0, y));
    OK(dcl_network_mark_output(network, *y, "y"));
    return network;
}

static void a_network_takes_its_tensors_and_layers_along(void) {
    dcl_tensor_t *x, *y, *again;
    dcl_layer_t *layer, *layer_again;
    dcl_network_t *network = new_sum(1, &x, &layer, &y);
    OK(dcl_network_get_input(network, 0, &again));
    CHECK(again == x);
    OK(dcl_network_get_output(network, 0, &again));
    CHECK(again == y);
    OK(dcl_layer_get_input(layer, 0, &again));
    CHECK(again == x);
    OK(dcl_network_get_layer(network, 0, &layer_again));
    CHECK(layer_again == layer);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_free(layer));
    OK(dcl_layer_set_name(layer, "still there"));

    dcl_engine_t *engine;
    OK(dcl_engine_build(network, &engine));
    dcl_layer_t *clone;
    OK(dcl_dist_collective_clone(layer, &clone));
    OK(dcl_network_free(network));
    dcl_data_type_t type = -7;
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_tensor_get_type(x, &type));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_tensor_get_type(y, &type));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_layer_set_name(layer, "not any more"));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_layer_free(layer));
    CHECK(type == -7);
    int32_t number;
    OK(dcl_engine_get_nb_io_tensors(engine, &number));
    CHECK(number == 2);
    OK(dcl_layer_get_nb_rank(clone, &number));
    CHECK(number == 1);
    OK(dcl_layer_free(clone));
    OK(dcl_engine_free(engine));
}

static void a_tensor_is_of_one_network(void) {
    dcl_tensor_t *x, *y, *other_x, *other_y;
    dcl_layer_t *layer, *other_layer, *none = NULL;
    dcl_network_t *network = new_sum(1, &x, &layer, &y);
    dcl_network_t *other = new_sum(1, &other_x, &other_layer, &other_y);
    dcl_dims_t dims = vector(4);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_cast(network, other_x, DCL_DATA_TYPE_HALF, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_shuffle(network, other_x, NULL, NULL, NULL, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_dist_collective(network, other_x, DCL_COLLECTIVE_ALL_GATHER,
                                                                       DCL_REDUCE_NONE, -1, NULL, 0, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_mark_output(network, other_y, "z"));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_set_optimization_profile(network, other_x, &dims, &dims, &dims));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_set_input(layer, 0, other_x));
    CHECK(none == NULL);
    int32_t number;
    OK(dcl_network_get_nb_layers(network, &number));
    CHECK(number == 1);
    OK(dcl_network_free(other));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_mark_output(network, other_y, "z"));
    OK(dcl_network_free(network));
}

/* `nb_times` counts what is told. */
static void take_time(const dcl_layer_time_t *time, void *nb_times) {
    CHECK(strcmp(time->layer, "all_reduce_0") == 0);
    CHECK(time->begin_ns > 0 && time->duration_ns > 0);
    CHECK(time->wait_ns >= 0 && time->wait_ns <= time->duration_ns);
    CHECK(time->input_bytes == 16 && time->output_bytes == 16);
    *(int32_t *)nb_times += 1;
}

/* Frees everything that a context needs, in one of several orders, and then runs it. */
static void run_after_freeing(dcl_communicator_t *communicator, int32_t rank, void *order) {
    dcl_tensor_t *x, *y;
    dcl_layer_t *layer;
    dcl_network_t *network = new_sum(2, &x, &layer, &y);
    dcl_engine_t *engine;
    dcl_execution_context_t *context;
    dcl_communicator_t *own;
    dcl_stream_t *stream;
    dcl_work_t *work;
    int32_t given[4] = {rank, 1, 2, 3}, taken[4] = {0}, nb_times = 0;
    OK(dcl_engine_build(network, &engine));
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    own = with_timeout(communicator, TIMEOUT_MS);
    OK(dcl_execution_context_set_communicator(context, own));
    OK(dcl_execution_context_set_tensor_address(context, "x", given, sizeof given));
    OK(dcl_execution_context_set_tensor_address(context, "y", taken, sizeof taken));
    OK(dcl_execution_context_set_profiler(context, take_time, &nb_times));
    OK(dcl_stream_new_worker(&stream));
    switch (*(int *)order) {
    case 0:
        OK(dcl_network_free(network));
        OK(dcl_engine_free(engine));
        OK(dcl_communicator_free(own));
        OK(dcl_execution_context_enqueue(context, stream, &work));
        OK(dcl_execution_context_free(context));
        OK(dcl_stream_free(stream));
        break;
    case 1:
        OK(dcl_communicator_free(own));
        OK(dcl_execution_context_enqueue(context, stream, &work));
        OK(dcl_stream_free(stream));
        OK(dcl_engine_free(engine));
        OK(dcl_execution_context_free(context));
        OK(dcl_network_free(network));
        break;
    default:
        OK(dcl_execution_context_enqueue(context, stream, &work));
        OK(dcl_execution_context_free(context));
        OK(dcl_engine_free(engine));
        OK(dcl_network_free(network));
        OK(dcl_communicator_free(own));
        OK(dcl_stream_free(stream));
        break;
    }
    OK(dcl_work_wait(work));
    OK(dcl_work_wait(work));
    int32_t is_done;
    OK(dcl_work_is_done(work, &is_done));
    CHECK(is_done == 1);
    OK(dcl_work_free(work));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_work_wait(work));
    CHECK(taken[0] == 1 && taken[1] == 2 && taken[2] == 4 && taken[3] == 6);
    CHECK(nb_times == 1);
}

/* A run without a work handle. Its buffers outlive the stream here. */
static void let_go_of_work(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t given = rank + 1, taken = 0;
    dcl_stream_t *stream;
    dcl_work_t *work;
    OK(dcl_stream_new_worker(&stream));
    OK(dcl_all_reduce(communicator, &given, &taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, &work));
    OK(dcl_work_free(work));
    OK(dcl_stream_synchronize(stream));
    CHECK(taken == 3);
    OK(dcl_stream_free(stream));
}

/* Symmetric memory outlives the handle of its communicator. */
static void keep_a_buffer(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    dcl_communicator_t *other;
    dcl_buffer_t *buffer;
    other = with_timeout(communicator, TIMEOUT_MS);
    OK(dcl_communicator_allocate(other, 8, &buffer));
    OK(dcl_communicator_free(other));
    void *address, *again;
    size_t length;
    OK(dcl_buffer_get_address(buffer, &address));
    OK(dcl_buffer_get_byte_len(buffer, &length));
    CHECK(length == 8);
    int32_t values[2] = {rank, 5}, got[2];
    OK(dcl_buffer_write(buffer, 0, values, sizeof values));
    OK(dcl_all_reduce(communicator, address, address, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
    OK(dcl_buffer_read(buffer, 0, got, sizeof got));
    CHECK(got[0] == 1 && got[1] == 10);
    OK(dcl_buffer_get_address(buffer, &again));
    CHECK(again == address);
    got[0] = -7;
    CHECK(dcl_buffer_read(buffer, 6, got, 4) != DCL_STATUS_SUCCESS);
    CHECK(dcl_buffer_read(buffer, SIZE_MAX, got, 4) != DCL_STATUS_SUCCESS);
    CHECK(dcl_buffer_read(buffer, 9, got, 0) != DCL_STATUS_SUCCESS);
    CHECK(got[0] == -7);
    CHECK(dcl_buffer_write(buffer, 5, values, 4) != DCL_STATUS_SUCCESS);
    OK(dcl_buffer_read(buffer, 8, NULL, 0));
    OK(dcl_buffer_free(buffer));
}

/* The text that gives a communicator to a session of ONNX Runtime. */
static void name_it_for_sessions(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)rank, (void)shared;
    dcl_communicator_t *other;
    char value[32], again[32];
    size_t length, length_again;
    OK(dcl_communicator_session_value(communicator, NULL, 0, &length));
    OK(dcl_communicator_session_value(communicator, value, sizeof value, &length_again));
    CHECK(length > 0 && length == length_again && length == strlen(value));
    OK(dcl_communicator_session_value(communicator, again, length + 1, NULL));
    CHECK(strcmp(value, again) == 0);
    again[0] = '?';
    FAILS(DCL_STATUS_BUFFER_TOO_SMALL, dcl_communicator_session_value(communicator, again, length, NULL));
    CHECK(again[0] == '?');
    /* Another handle has another timeout, and so another text. */
    other = with_timeout(communicator, 1);
    OK(dcl_communicator_session_value(other, again, sizeof again, NULL));
    CHECK(strcmp(value, again) != 0);
    OK(dcl_communicator_free(other));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_communicator_session_value(other, again, sizeof again, NULL));
    OK(dcl_communicator_barrier(communicator));
}

static void an_environment_is_left(void) {
    dcl_environment_config_t config = DCL_ENVIRONMENT_CONFIG_INIT;
    config.rank = 0;
    config.world_size = 1;
    config.host = "localhost";
    config.port = own_port();
    config.backend = "host";
    config.timeout_ms = TIMEOUT_MS;
    for (int i = 0; i < 3; i++) {
        dcl_environment_t *environment, *second = NULL;
        dcl_communicator_t *communicator;
        OK(dcl_environment_initialize(&config, &environment));
        CHECK(dcl_environment_initialize(&config, &second) != DCL_STATUS_SUCCESS);
        CHECK(second == NULL);
        OK(dcl_environment_get_communicator(environment, &communicator));
        if (i == 1) {
            OK(dcl_environment_free(environment));
        } else {
            OK(dcl_environment_finalize(environment));
        }
        FAILS(DCL_STATUS_INVALID_HANDLE, dcl_environment_finalize(environment));
        /* The layer stays. */
        OK(dcl_communicator_barrier(communicator));
        OK(dcl_communicator_finalize(communicator));
        FAILS(DCL_STATUS_INVALID_HANDLE, dcl_communicator_free(communicator));
    }
}

int main(void) {
    nothing_is_freed();
    a_handle_is_freed_once();
    a_network_takes_its_tensors_and_layers_along();
    a_tensor_is_of_one_network();
    for (int order = 0; order < 3; order++) {
        on_ranks(2, run_after_freeing, &order);
    }
    on_ranks(2, let_go_of_work, NULL);
    on_ranks(2, keep_a_buffer, NULL);
    on_ranks(2, name_it_for_sessions, NULL);
    an_environment_is_left();
    return 0;
}
