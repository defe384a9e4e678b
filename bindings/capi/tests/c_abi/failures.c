/* What ranks learn of each other's failures, and what stays untouched. */
#include "check.h"

static dcl_communicator_options_t options_of(dcl_communicator_t *communicator) {
    dcl_communicator_options_t options = DCL_COMMUNICATOR_OPTIONS_INIT;
    OK(dcl_communicator_get_options(communicator, &options));
    return options;
}

/* Options are those of one handle. Groups that are created with it have its determinism, but no
 * transport type. */
static void a_handle_has_options(void) {
    dcl_communicator_t *communicator, *other, *group, *none = NULL;
    float given = 1, taken = -7;
    int32_t whole = 1;
    OK(dcl_communicator_new_in_process("host", 1, TIMEOUT_MS, &communicator));
    dcl_communicator_options_t options = options_of(communicator);
    CHECK(options.struct_size == sizeof options && options.timeout_ms == TIMEOUT_MS);
    CHECK(options.determinism == DCL_DETERMINISM_BACKEND && options.wire_type == DCL_WIRE_TYPE_NONE);
    options.timeout_ms = DCL_TIMEOUT_DEFAULT;
    options.determinism = DCL_DETERMINISM_EXACT;
    options.wire_type = DCL_WIRE_TYPE_BFLOAT16;
    OK(dcl_communicator_with_options(communicator, &options, &other));
    options = options_of(other);
    CHECK(options.timeout_ms == TIMEOUT_MS);
    CHECK(options.determinism == DCL_DETERMINISM_EXACT && options.wire_type == DCL_WIRE_TYPE_BFLOAT16);
    CHECK(options_of(communicator).wire_type == DCL_WIRE_TYPE_NONE);
    OK(dcl_communicator_split(other, 0, 0, &group));
    CHECK(options_of(group).determinism == DCL_DETERMINISM_EXACT);
    CHECK(options_of(group).wire_type == DCL_WIRE_TYPE_NONE);
    OK(dcl_all_reduce(other, &given, &taken, 1, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL));
    CHECK(taken == 1);
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_all_reduce(other, &whole, &whole, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
    MESSAGE_HAS("only float32 has a transport type");

    options.wire_type = 2;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_with_options(communicator, &options, &none));
    options.wire_type = DCL_WIRE_TYPE_NONE;
    options.determinism = 2;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_with_options(communicator, &options, &none));
    options.determinism = DCL_DETERMINISM_EXACT;
    options.timeout_ms = -2;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_with_options(communicator, &options, &none));
    CHECK(none == NULL);
    OK(dcl_communicator_free(group));
    OK(dcl_communicator_free(other));
    OK(dcl_communicator_free(communicator));
}

/* A rank that does not make the call. */
static void a_rank_is_late(void) {
    dcl_communicator_t *communicators[2], *short_one;
    int32_t given = 1, taken = -7;
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, communicators));
    short_one = with_timeout(communicators[0], 50);
    CHECK(options_of(short_one).timeout_ms == 50);
    FAILS(DCL_STATUS_DEADLINE_EXCEEDED,
          dcl_all_reduce(short_one, &given, &taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
    CHECK(dcl_last_error_rank() == 0);
    MESSAGE_HAS("all_reduce");
    /* Every rank's communicator has ended. */
    CHECK(dcl_communicator_check(communicators[0]) != DCL_STATUS_SUCCESS);
    CHECK(dcl_communicator_check(communicators[1]) != DCL_STATUS_SUCCESS);
    CHECK(dcl_communicator_barrier(communicators[1]) != DCL_STATUS_SUCCESS);
    OK(dcl_communicator_free(short_one));
    OK(dcl_communicator_free(communicators[0]));
    OK(dcl_communicator_free(communicators[1]));
}

static void *wait_for_rank_1(void *communicator) {
    FAILS(DCL_STATUS_PEER_LOST, dcl_communicator_barrier(communicator));
    MESSAGE_HAS("rank 1");
    CHECK(dcl_last_error_rank() == 0);
    return NULL;
}

static void a_rank_leaves(void) {
    dcl_communicator_t *communicators[2];
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, communicators));
    pthread_t thread = start(wait_for_rank_1, communicators[0]);
    OK(dcl_communicator_free(communicators[1]));
    join(thread);
    OK(dcl_communicator_free(communicators[0]));
}

static void abort_or_wait(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    if (rank == 1) {
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_abort(communicator, NULL));
        OK(dcl_communicator_check(communicator));
        pause_ms(10);
        OK(dcl_communicator_abort(communicator, "the fuse has blown \xe2\x82\xac"));
        return;
    }
    FAILS(DCL_STATUS_ABORTED, dcl_communicator_barrier(communicator));
    MESSAGE_HAS("the fuse has blown \xe2\x82\xac");
    MESSAGE_HAS("rank 1");
    FAILS(DCL_STATUS_ABORTED, dcl_communicator_check(communicator));
    FAILS(DCL_STATUS_ABORTED, dcl_communicator_barrier(communicator));
}

/* Ranks that make different calls. */
static void disagree(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t given = 1, taken = -7;
    if (rank == 1) {
        FAILS(DCL_STATUS_DISAGREEMENT,
              dcl_all_reduce(communicator, &given, &taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_MAX, NULL, NULL));
    } else {
        FAILS(DCL_STATUS_DISAGREEMENT,
              dcl_all_reduce(communicator, &given, &taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
    }
    MESSAGE_HAS("all_reduce(sum)");
    MESSAGE_HAS("all_reduce(max)");
}

/* The stream returns the error of a call without a work handle. The work handle returns it as often
 * as it is asked. */
static void fail_on_a_stream(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t given = 1, taken = -7;
    dcl_stream_t *stream;
    dcl_work_t *work;
    OK(dcl_stream_new_worker(&stream));
    dcl_reduce_operation_t reduce_op = rank == 1 ? DCL_REDUCE_MAX : DCL_REDUCE_SUM;
    OK(dcl_all_reduce(communicator, &given, &taken, 1, DCL_DATA_TYPE_INT32, reduce_op, stream, NULL));
    FAILS(DCL_STATUS_DISAGREEMENT, dcl_stream_synchronize(stream));
    OK(dcl_stream_synchronize(stream));
    dcl_status_t status =
        dcl_all_reduce(communicator, &given, &taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, &work);
    if (status == DCL_STATUS_SUCCESS) {
        status = dcl_work_wait(work);
        CHECK(status != DCL_STATUS_SUCCESS && dcl_work_wait(work) == status);
        OK(dcl_work_free(work));
    }
    CHECK(status != DCL_STATUS_SUCCESS && status != DCL_STATUS_INVALID_ARGUMENT);
    OK(dcl_stream_synchronize(stream));
    OK(dcl_stream_free(stream));
}

/* A rank finds its own mistake before any data moves, and the communicator still works. */
static void mistakes_move_nothing(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t given[4] = {rank, 1, 2, 3}, taken[4] = {-7, -7, -7, -7};
    dcl_work_t *work = (dcl_work_t *)(uintptr_t)7;
    char *odd = (char *)given + 1;
    CHECK(dcl_all_reduce(communicator, NULL, taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, &work) !=
          DCL_STATUS_SUCCESS);
    CHECK(dcl_all_reduce(communicator, given, NULL, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, &work) !=
          DCL_STATUS_SUCCESS);
    FAILS(DCL_STATUS_INVALID_BUFFER,
          dcl_all_reduce(communicator, odd, taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, &work));
    FAILS(DCL_STATUS_INVALID_BUFFER,
          dcl_all_reduce(communicator, given, given + 1, 2, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, &work));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_all_to_all(communicator, given, given, 1, DCL_DATA_TYPE_INT32, NULL, &work));
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_all_reduce(communicator, given, taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_NONE, NULL, &work));
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_all_reduce(communicator, given, taken, 1, DCL_DATA_TYPE_BOOL, DCL_REDUCE_AVG, NULL, &work));
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_all_reduce(communicator, given, taken, 1, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_BOR, NULL, &work));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_all_reduce(communicator, given, taken, 1, 10, DCL_REDUCE_SUM, NULL, &work));
    CHECK(dcl_broadcast(communicator, given, taken, 1, DCL_DATA_TYPE_INT32, 2, NULL, &work) != DCL_STATUS_SUCCESS);
    CHECK(dcl_broadcast(communicator, given, taken, 1, DCL_DATA_TYPE_INT32, -1, NULL, &work) != DCL_STATUS_SUCCESS);
    CHECK(dcl_all_gather(communicator, given, taken, SIZE_MAX, DCL_DATA_TYPE_INT32, NULL, &work) != DCL_STATUS_SUCCESS);
    CHECK(dcl_all_gather(communicator, given, taken, SIZE_MAX / 2 + 1, DCL_DATA_TYPE_INT8, NULL, &work) !=
          DCL_STATUS_SUCCESS);
    CHECK(work == (dcl_work_t *)(uintptr_t)7 && taken[0] == -7);
    OK(dcl_communicator_check(communicator));
    OK(dcl_all_reduce(communicator, given, taken, 4, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, &work));
    OK(dcl_work_free(work));
    CHECK(taken[0] == 1 && taken[3] == 6);
    /* A call with 0 elements is a call too. */
    OK(dcl_all_reduce(communicator, NULL, NULL, 0, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
}

/* Groups: a rank that is in none gets NULL, and the order is the requested one. */
static void make_groups(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    dcl_communicator_t *group = (dcl_communicator_t *)(uintptr_t)7;
    int32_t number;
    OK(dcl_communicator_split(communicator, rank == 1 ? DCL_NO_COLOR : 0, 3 - rank, &group));
    if (rank == 1) {
        CHECK(group == NULL);
    } else {
        OK(dcl_communicator_get_rank(group, &number));
        CHECK(number == (rank == 2 ? 0 : 1));
        OK(dcl_communicator_get_world_size(group, &number));
        CHECK(number == 2);
        OK(dcl_communicator_get_global_rank(group, rank == 2 ? 0 : 1, &number));
        CHECK(number == rank);
        OK(dcl_communicator_barrier(group));
    }
    OK(dcl_communicator_free(group));
    const int64_t ranks[] = {2, 1};
    group = (dcl_communicator_t *)(uintptr_t)7;
    CHECK(dcl_communicator_new_group(communicator, ranks, -1, &group) == DCL_STATUS_INVALID_ARGUMENT);
    CHECK(dcl_communicator_new_group(communicator, NULL, 1, &group) == DCL_STATUS_INVALID_ARGUMENT);
    CHECK(group == (dcl_communicator_t *)(uintptr_t)7);
    OK(dcl_communicator_new_group(communicator, ranks, 2, &group));
    CHECK((group == NULL) == (rank == 0));
    if (rank > 0) {
        OK(dcl_communicator_get_rank(group, &number));
        CHECK(number == 2 - rank);
        OK(dcl_communicator_finalize(group));
    }
    char backend[5];
    size_t length;
    OK(dcl_communicator_get_backend(communicator, backend, sizeof backend, &length));
    CHECK(length == 4 && strcmp(backend, "host") == 0);
    OK(dcl_communicator_get_device(communicator, &number));
    CHECK(number == -1);
}

/* Plans that differ: no rank has set the communicator, which still works. */
static void compare_plans(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *layer;
    dcl_engine_t *engine;
    dcl_execution_context_t *context;
    dcl_dims_t dims = vector(4);
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    OK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_REDUCE,
                                       rank == 0 ? DCL_REDUCE_SUM : DCL_REDUCE_PROD, -1, NULL, 0, &layer));
    OK(dcl_layer_set_name(layer, "grad_sync"));
    OK(dcl_layer_set_nb_rank(layer, 2));
    OK(dcl_layer_get_output(layer, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_engine_build(network, &engine));
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    FAILS(DCL_STATUS_DISAGREEMENT, dcl_execution_context_set_communicator(context, communicator));
    MESSAGE_HAS("grad_sync");
    int32_t given[4] = {0}, taken[4] = {0};
    OK(dcl_execution_context_set_tensor_address(context, "x", given, sizeof given));
    OK(dcl_execution_context_set_tensor_address(context, "y", taken, sizeof taken));
    FAILS(DCL_STATUS_NOT_READY, dcl_execution_context_enqueue(context, NULL, NULL));
    OK(dcl_communicator_barrier(communicator));
    OK(dcl_execution_context_free(context));
    OK(dcl_engine_free(engine));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_for_rank(network, 2, 2));
    OK(dcl_network_for_rank(network, 1, 2));
    OK(dcl_engine_build(network, &engine));
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    FAILS(DCL_STATUS_INVALID_COMMUNICATOR, dcl_execution_context_set_communicator(context, communicator));
    MESSAGE_HAS("the network was made for rank 1 of 2, and this is rank 0 of 2");
    OK(dcl_execution_context_free(context));
    OK(dcl_engine_free(engine));
    OK(dcl_network_free(network));
}

int main(void) {
    a_handle_has_options();
    a_rank_is_late();
    a_rank_leaves();
    on_ranks(2, abort_or_wait, NULL);
    on_ranks(2, disagree, NULL);
    on_ranks(2, fail_on_a_stream, NULL);
    on_ranks(2, mistakes_move_nothing, NULL);
    on_ranks(3, make_groups, NULL);
    on_ranks(2, compare_plans, NULL);
    return 0;
}
