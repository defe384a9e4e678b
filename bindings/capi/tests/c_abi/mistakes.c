/* Mistakes of callers that failures.c, layers.c and arguments.c do not make: each call fails with
 * the status that the header gives it, and what it failed on stays usable. */
#include "check.h"

/* How long a call waits in a test where a rank does not come. */
#define SHORT_MS 1000

#define FOUR_FLOATS vector(4)

/* A layer named "sync" for `nb_rank` ranks; 0 leaves the number open. */
static dcl_layer_t *new_layer(dcl_collective_operation_t operation, int32_t nb_rank) {
    int reduces = operation == DCL_COLLECTIVE_ALL_REDUCE || operation == DCL_COLLECTIVE_REDUCE_SCATTER;
    dcl_layer_t *layer;
    OK(dcl_dist_collective_new(operation, reduces ? DCL_REDUCE_SUM : DCL_REDUCE_NONE, -1, NULL, 0, &layer));
    OK(dcl_layer_set_name(layer, "sync"));
    if (nb_rank > 0) {
        OK(dcl_layer_set_nb_rank(layer, nb_rank));
    }
    return layer;
}

/* A context of one all_reduce of x, 1 to 8 floats, on `nb_rank` ranks. */
static dcl_execution_context_t *new_context(int32_t nb_rank) {
    dcl_dims_t dims = vector(-1), min = vector(1), opt = vector(4), max = vector(8);
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *layer;
    dcl_engine_t *engine;
    dcl_execution_context_t *context;
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    OK(dcl_network_set_optimization_profile(network, x, &min, &opt, &max));
    OK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    OK(dcl_layer_set_nb_rank(layer, nb_rank));
    OK(dcl_layer_get_output(layer, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_engine_build(network, &engine));
    OK(dcl_network_free(network));
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    OK(dcl_engine_free(engine));
    return context;
}

static void in_a_new_communicator(void) {
    dcl_communicator_t *communicators[2] = {NULL, NULL};
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_new_in_process("host", 0, TIMEOUT_MS, communicators));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_new_in_process("mpj", 2, TIMEOUT_MS, communicators));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_new_in_process("host", 2, -7, communicators));
    CHECK(communicators[0] == NULL && communicators[1] == NULL);
}

static void in_a_layer_alone(void) {
    const dcl_dims_t ten_rows = {2, {10, 8}}, too_many = {DCL_MAX_DIMS + 1, {1}}, four = FOUR_FLOATS;
    const int64_t twice[] = {2, 0, 2}, negative[] = {0, -2};
    dcl_layer_t *none = NULL;
    dcl_dims_t output;
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, twice, 3, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, negative, 2, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, NULL, 2, &none));
    CHECK(none == NULL);

    dcl_layer_t *layer = new_layer(DCL_COLLECTIVE_REDUCE_SCATTER, 4);
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_dist_collective_check_type(layer, 10));
    FAILS(DCL_STATUS_INVALID_SHAPE, dcl_dist_collective_get_output_dims(layer, &ten_rows, &output));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_get_output_dims(layer, &too_many, &output));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_set_nb_rank(layer, 0));
    /* The setters accept a reduction that the operation does not have; what uses it does not. */
    OK(dcl_dist_collective_set_collective_operation(layer, DCL_COLLECTIVE_ALL_GATHER));
    FAILS(DCL_STATUS_INVALID_NETWORK, dcl_dist_collective_get_output_dims(layer, &four, &output));
    OK(dcl_dist_collective_set_reduce_op(layer, DCL_REDUCE_NONE));
    OK(dcl_dist_collective_get_output_dims(layer, &four, &output));
    CHECK(output.nb_dims == 1 && output.d[0] == 16);
    OK(dcl_layer_free(layer));
}

static void in_a_network(void) {
    const dcl_dims_t four = FOUR_FLOATS;
    dcl_network_t *network, *other;
    dcl_tensor_t *x, *foreign, *none = NULL;
    dcl_layer_t *layer = NULL;
    OK(dcl_network_new(&network));
    OK(dcl_network_new(&other));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &four, &x));
    OK(dcl_network_add_input(other, "x", DCL_DATA_TYPE_FLOAT, &four, &foreign));
    FAILS(DCL_STATUS_UNSUPPORTED, dcl_network_add_input(network, "y", 9, &four, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_shuffle(network, foreign, NULL, NULL, NULL, &layer));
    OK(dcl_network_free(other));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_tensor_set_name(foreign, "y"));
    CHECK(none == NULL && layer == NULL);
    OK(dcl_network_free(network));
}

static void in_a_plan(void) {
    dcl_engine_t *engine = sum_of_two(), *none = NULL;
    size_t length;
    OK(dcl_engine_serialize(engine, NULL, 0, &length));
    unsigned char *plan = malloc(length);
    OK(dcl_engine_serialize(engine, plan, length, NULL));
    OK(dcl_engine_free(engine));
    plan[length / 2] ^= 1;
    FAILS(DCL_STATUS_INVALID_PLAN, dcl_engine_deserialize(plan, length, NULL, 0, &none));
    FAILS(DCL_STATUS_INVALID_PLAN, dcl_engine_deserialize("not a plan", 10, NULL, 0, &none));
    CHECK(none == NULL);
    free(plan);
}

/* Layers that do not fit the communicator, or differ between ranks: no rank has a bound layer. */
static void in_binding(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    const struct {
        dcl_collective_operation_t operation;
        int32_t nb_rank;
        dcl_data_type_t data_type;
        dcl_status_t status;
    } wrong[] = {
        {DCL_COLLECTIVE_ALL_REDUCE, 0, DCL_DATA_TYPE_FLOAT, DCL_STATUS_INVALID_COMMUNICATOR},
        {DCL_COLLECTIVE_ALL_REDUCE, 3, DCL_DATA_TYPE_FLOAT, DCL_STATUS_INVALID_COMMUNICATOR},
        {rank == 1 ? DCL_COLLECTIVE_ALL_GATHER : DCL_COLLECTIVE_ALL_REDUCE, 2, DCL_DATA_TYPE_FLOAT,
         DCL_STATUS_DISAGREEMENT},
        {DCL_COLLECTIVE_ALL_REDUCE, 2, rank == 1 ? DCL_DATA_TYPE_INT32 : DCL_DATA_TYPE_FLOAT, DCL_STATUS_DISAGREEMENT},
    };
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        dcl_layer_t *layer = new_layer(wrong[i].operation, wrong[i].nb_rank);
        dcl_bound_layer_t *bound = NULL;
        FAILS(wrong[i].status, dcl_dist_collective_bind(layer, communicator, wrong[i].data_type, &bound));
        CHECK(bound == NULL);
        OK(dcl_communicator_barrier(communicator));
        OK(dcl_layer_free(layer));
    }
}

/* Addresses and dimensions that a bound layer refuses before anything moves. */
static void in_a_bound_layer(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)rank;
    (void)shared;
    const dcl_dims_t four = FOUR_FLOATS, dynamic = vector(-1);
    float x[5] = {0}, y[8];
    dcl_layer_t *layer = new_layer(DCL_COLLECTIVE_ALL_GATHER, 2);
    dcl_bound_layer_t *bound;
    OK(dcl_dist_collective_bind(layer, communicator, DCL_DATA_TYPE_FLOAT, &bound));
    OK(dcl_layer_free(layer));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_bound_layer_enqueue(bound, NULL, y, &four, NULL, NULL));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_bound_layer_enqueue(bound, x, NULL, &four, NULL, NULL));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_bound_layer_enqueue(bound, (const char *)x + 2, y, &four, NULL, NULL));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_bound_layer_enqueue(bound, y + 1, y, &four, NULL, NULL));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_bound_layer_enqueue(bound, x, y, &dynamic, NULL, NULL));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_bound_layer_enqueue(bound, x, y, NULL, NULL, NULL));
    OK(dcl_bound_layer_enqueue(bound, x, y, &four, NULL, NULL));
    OK(dcl_bound_layer_free(bound));
}

/* Rank 1 leaves out a run of a layer, of a context, and a request. Both ranks go on. */
static void in_a_run_and_a_request(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    const dcl_dims_t four = FOUR_FLOATS;
    const char *names[] = {"x"};
    float x[4] = {1, 2, 3, 4}, y[4];
    dcl_layer_t *layer = new_layer(DCL_COLLECTIVE_ALL_REDUCE, 2);
    dcl_bound_layer_t *bound;
    OK(dcl_dist_collective_bind(layer, communicator, DCL_DATA_TYPE_FLOAT, &bound));
    OK(dcl_layer_free(layer));
    dcl_execution_context_t *context = new_context(2);
    OK(dcl_execution_context_set_communicator(context, communicator));
    OK(dcl_execution_context_set_input_shapes(context, names, &four, 1));
    OK(dcl_execution_context_set_tensor_address(context, "x", x, sizeof x));
    OK(dcl_execution_context_set_tensor_address(context, "y", y, sizeof y));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_end_request(communicator, NULL));
    if (rank == 1) {
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_bound_layer_refuse_run(bound, NULL));
        OK(dcl_bound_layer_refuse_run(bound, "no image"));
        OK(dcl_execution_context_refuse_run(context, "no image"));
        OK(dcl_communicator_begin_request(communicator, 7));
        OK(dcl_communicator_end_request(communicator, "no image"));
    } else {
        FAILS(DCL_STATUS_RUN_REFUSED, dcl_bound_layer_enqueue(bound, x, y, &four, NULL, NULL));
        MESSAGE_HAS("rank 1 refused run 1: no image");
        FAILS(DCL_STATUS_RUN_REFUSED, dcl_execution_context_enqueue(context, NULL, NULL));
        MESSAGE_HAS("rank 1 refused run 1: no image");
        OK(dcl_communicator_begin_request(communicator, 7));
        FAILS(DCL_STATUS_RUN_REFUSED, dcl_execution_context_enqueue(context, NULL, NULL));
        MESSAGE_HAS("rank 1 left the request: no image");
        FAILS(DCL_STATUS_RUN_REFUSED, dcl_communicator_end_request(communicator, NULL));
        MESSAGE_HAS("request 7: rank 1 left the request: no image");
    }
    OK(dcl_communicator_begin_request(communicator, 8));
    OK(dcl_execution_context_enqueue(context, NULL, NULL));
    CHECK(y[3] == 8);
    OK(dcl_communicator_end_request(communicator, NULL));
    OK(dcl_bound_layer_enqueue(bound, x, y, &four, NULL, NULL));
    CHECK(y[0] == 2);
    OK(dcl_bound_layer_free(bound));
    OK(dcl_execution_context_free(context));
}

/* A plan for more ranks than there are, on both ranks and then on one. */
static void in_a_communicator_of_a_context(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    for (int32_t first = 0; first < 2; first++) {
        dcl_execution_context_t *context = new_context(rank >= first ? 3 : 2);
        FAILS(DCL_STATUS_INVALID_COMMUNICATOR, dcl_execution_context_set_communicator(context, communicator));
        OK(dcl_communicator_barrier(communicator));
        OK(dcl_execution_context_free(context));
    }
}

/* What a context refuses before anything moves, in the order in which a caller would meet it. */
static void in_a_context(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)rank;
    (void)shared;
    const dcl_dims_t four = FOUR_FLOATS;
    const char *names[] = {"x", "z"};
    float x[4] = {0}, y[5];
    dcl_execution_context_t *context = new_context(2);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_execution_context_set_input_shapes(context, &names[1], &four, 1));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_execution_context_set_tensor_address(context, "z", x, sizeof x));
    OK(dcl_execution_context_set_input_shapes(context, names, &four, 1));
    OK(dcl_execution_context_set_tensor_address(context, "x", y + 1, sizeof x));
    OK(dcl_execution_context_set_tensor_address(context, "y", y, sizeof x));
    FAILS(DCL_STATUS_NOT_READY, dcl_execution_context_enqueue(context, NULL, NULL));
    MESSAGE_HAS("communicator");
    OK(dcl_execution_context_set_communicator(context, communicator));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_execution_context_enqueue(context, NULL, NULL));
    OK(dcl_execution_context_set_tensor_address(context, "x", x, sizeof x));
    OK(dcl_execution_context_enqueue(context, NULL, NULL));
    OK(dcl_execution_context_free(context));
}

/* Lengths that differ, and operations that differ. */
static void lengths_differ(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    float x[4] = {0};
    size_t count = rank == 1 ? 3 : 4;
    FAILS(DCL_STATUS_DISAGREEMENT,
          dcl_all_reduce(communicator, x, x, count, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL));
    CHECK(dcl_communicator_check(communicator) != DCL_STATUS_SUCCESS);
    CHECK(dcl_communicator_barrier(communicator) != DCL_STATUS_SUCCESS);
}

static void operations_differ(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    float x[4] = {0}, y[8];
    if (rank == 1) {
        FAILS(DCL_STATUS_DISAGREEMENT, dcl_all_gather(communicator, x, y, 4, DCL_DATA_TYPE_FLOAT, NULL, NULL));
    } else {
        FAILS(DCL_STATUS_DISAGREEMENT,
              dcl_all_reduce(communicator, x, x, 4, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, NULL));
    }
}

/* A root only sends, so its broadcast may return before it can learn of the mistake. Then
 * finalizing the communicator reports it. */
static void roots_differ(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    float x[4] = {0};
    dcl_status_t status = dcl_broadcast(communicator, x, x, 4, DCL_DATA_TYPE_FLOAT, rank, NULL, NULL);
    if (status == DCL_STATUS_SUCCESS) {
        dcl_communicator_t *last;
        last = with_timeout(communicator, DCL_TIMEOUT_DEFAULT);
        status = dcl_communicator_finalize(last);
    }
    CHECK(status == DCL_STATUS_DISAGREEMENT || status == DCL_STATUS_ABORTED);
}

static void lengths_of_a_bound_layer_differ(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    const dcl_dims_t dims = vector(rank == 1 ? 3 : 4);
    float x[4] = {0};
    dcl_layer_t *layer = new_layer(DCL_COLLECTIVE_ALL_REDUCE, 2);
    dcl_bound_layer_t *bound;
    OK(dcl_dist_collective_bind(layer, communicator, DCL_DATA_TYPE_FLOAT, &bound));
    FAILS(DCL_STATUS_DISAGREEMENT, dcl_bound_layer_enqueue(bound, x, x, &dims, NULL, NULL));
    MESSAGE_HAS("sync");
    OK(dcl_bound_layer_free(bound));
    OK(dcl_layer_free(layer));
}

/* A bound layer has the timeout of the handle that it was bound to. */
static void a_rank_does_not_run_a_bound_layer(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    const dcl_dims_t four = FOUR_FLOATS;
    float x[4] = {0};
    dcl_layer_t *layer = new_layer(DCL_COLLECTIVE_ALL_REDUCE, 2);
    dcl_communicator_t *impatient;
    dcl_bound_layer_t *bound;
    OK(dcl_communicator_barrier(communicator));
    impatient = with_timeout(communicator, rank == 0 ? SHORT_MS : TIMEOUT_MS);
    OK(dcl_dist_collective_bind(layer, impatient, DCL_DATA_TYPE_FLOAT, &bound));
    if (rank == 0) {
        FAILS(DCL_STATUS_DEADLINE_EXCEEDED, dcl_bound_layer_enqueue(bound, x, x, &four, NULL, NULL));
    }
    OK(dcl_bound_layer_free(bound));
    OK(dcl_communicator_free(impatient));
    OK(dcl_layer_free(layer));
}

/* `shared` is NULL if the ranks run a context with different shapes; else rank 1 does not run. */
static void a_context_runs_differently(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    const dcl_dims_t dims = vector(rank == 1 && !shared ? 3 : 4);
    const char *name = "x";
    float x[4] = {0}, y[4];
    size_t byte_len = (size_t)dims.d[0] * sizeof(float);
    dcl_execution_context_t *context = new_context(2);
    OK(dcl_execution_context_set_communicator(context, communicator));
    OK(dcl_execution_context_set_input_shapes(context, &name, &dims, 1));
    OK(dcl_execution_context_set_tensor_address(context, "x", x, byte_len));
    OK(dcl_execution_context_set_tensor_address(context, "y", y, byte_len));
    if (!shared) {
        FAILS(DCL_STATUS_DISAGREEMENT, dcl_execution_context_enqueue(context, NULL, NULL));
    } else if (rank == 0) {
        OK(dcl_execution_context_set_timeout(context, SHORT_MS));
        FAILS(DCL_STATUS_DEADLINE_EXCEEDED, dcl_execution_context_enqueue(context, NULL, NULL));
    }
    OK(dcl_execution_context_free(context));
}

int main(void) {
    int does_not_run = 1;
    in_a_new_communicator();
    in_a_layer_alone();
    in_a_network();
    in_a_plan();
    on_ranks(2, in_binding, NULL);
    on_ranks(2, in_a_bound_layer, NULL);
    on_ranks(2, in_a_run_and_a_request, NULL);
    on_ranks(2, in_a_communicator_of_a_context, NULL);
    on_ranks(2, in_a_context, NULL);
    on_ranks(2, lengths_differ, NULL);
    on_ranks(2, operations_differ, NULL);
    on_ranks(2, roots_differ, NULL);
    on_ranks(2, lengths_of_a_bound_layer_differ, NULL);
    on_ranks(2, a_rank_does_not_run_a_bound_layer, NULL);
    on_ranks(2, a_context_runs_differently, NULL);
    on_ranks(2, a_context_runs_differently, &does_not_run);
    return 0;
}
