/* Networks, layers and engines: a getter returns what the setter set, and the header's rules about
 * numbers and attributes hold. */
#include "check.h"

static int same(const dcl_dims_t *dims, int32_t nb_dims, const int64_t *d) {
    return dims->nb_dims == nb_dims && memcmp(dims->d, d, (size_t)nb_dims * sizeof *d) == 0;
}

static void attributes_of_a_collective(void) {
    dcl_layer_t *layer, *copy, *none = NULL;
    const int64_t pair[] = {3, 1}, twice[] = {1, 1}, negative[] = {-1}, four[] = {3, 1, 2, 0};
    OK(dcl_dist_collective_new(DCL_COLLECTIVE_REDUCE, DCL_REDUCE_MAX, 1, pair, 2, &layer));
    int32_t number = -7;
    int64_t root, groups[4] = {-7, -7, -7, -7}, nb_groups, group_size;
    OK(dcl_dist_collective_get_collective_operation(layer, &number));
    CHECK(number == DCL_COLLECTIVE_REDUCE);
    OK(dcl_dist_collective_get_reduce_op(layer, &number));
    CHECK(number == DCL_REDUCE_MAX);
    OK(dcl_dist_collective_get_root(layer, &root));
    CHECK(root == 1);
    OK(dcl_layer_get_nb_rank(layer, &number));
    CHECK(number == 2);
    OK(dcl_dist_collective_get_groups(layer, NULL, 0, &nb_groups, &group_size));
    CHECK(nb_groups == 1 && group_size == 2);
    nb_groups = group_size = -7;
    FAILS(DCL_STATUS_BUFFER_TOO_SMALL, dcl_dist_collective_get_groups(layer, groups, 1, &nb_groups, &group_size));
    CHECK(groups[0] == -7 && nb_groups == -7 && group_size == -7);
    OK(dcl_dist_collective_get_groups(layer, groups, 2, &nb_groups, &group_size));
    CHECK(groups[0] == 3 && groups[1] == 1 && groups[2] == -7);

    OK(dcl_dist_collective_set_partition(layer, four, 2, 2));
    OK(dcl_dist_collective_get_groups(layer, groups, 4, &nb_groups, &group_size));
    CHECK(nb_groups == 2 && group_size == 2 && memcmp(groups, four, sizeof four) == 0);
    OK(dcl_dist_collective_get_root(layer, &root));
    CHECK(root == 1);
    OK(dcl_dist_collective_set_groups(layer, NULL, 0));
    OK(dcl_dist_collective_get_groups(layer, groups, 4, &nb_groups, &group_size));
    CHECK(nb_groups == 0);
    /* With 0 all ranks take part, whatever the pointer. */
    OK(dcl_dist_collective_set_groups(layer, (const int64_t *)(uintptr_t)1, 0));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_set_groups(layer, NULL, 1));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_set_groups(layer, pair, -1));
    CHECK(dcl_dist_collective_set_groups(layer, twice, 2) != DCL_STATUS_SUCCESS);
    CHECK(dcl_dist_collective_set_groups(layer, negative, 1) != DCL_STATUS_SUCCESS);
    CHECK(dcl_dist_collective_set_partition(layer, twice, 2, 1) != DCL_STATUS_SUCCESS);
    CHECK(dcl_dist_collective_set_partition(layer, four, INT64_MAX, INT64_MAX) != DCL_STATUS_SUCCESS);
    CHECK(dcl_dist_collective_set_partition(layer, four, -1, -4) != DCL_STATUS_SUCCESS);
    OK(dcl_dist_collective_get_groups(layer, groups, 4, &nb_groups, &group_size));
    CHECK(nb_groups == 0);
    OK(dcl_dist_collective_set_root(layer, -1));
    OK(dcl_dist_collective_get_root(layer, &root));
    CHECK(root == -1);
    CHECK(dcl_dist_collective_set_root(layer, -2) == DCL_STATUS_INVALID_ARGUMENT);
    CHECK(dcl_dist_collective_set_root(layer, INT64_MAX) != DCL_STATUS_SUCCESS);
    OK(dcl_dist_collective_set_collective_operation(layer, DCL_COLLECTIVE_ALL_REDUCE));
    OK(dcl_dist_collective_set_reduce_op(layer, DCL_REDUCE_AVG));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_check_type(layer, DCL_DATA_TYPE_BOOL));
    OK(dcl_dist_collective_check_type(layer, DCL_DATA_TYPE_FP8_E5M2));

    OK(dcl_layer_set_name(layer, "mean"));
    OK(dcl_layer_set_metadata(layer, "of all"));
    OK(dcl_layer_set_nb_rank(layer, 4));
    OK(dcl_dist_collective_get_determinism(layer, &number));
    CHECK(number == DCL_DETERMINISM_BACKEND);
    OK(dcl_dist_collective_set_determinism(layer, DCL_DETERMINISM_EXACT));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_set_determinism(layer, 2));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_set_determinism(layer, -1));
    OK(dcl_dist_collective_get_wire_type(layer, &number));
    CHECK(number == DCL_WIRE_TYPE_NONE);
    OK(dcl_dist_collective_set_wire_type(layer, DCL_WIRE_TYPE_BFLOAT16));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_set_wire_type(layer, 2));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_check_type(layer, DCL_DATA_TYPE_HALF));
    unsigned char bytes[512];
    size_t length;
    OK(dcl_dist_collective_serialize(layer, bytes, sizeof bytes, &length));
    OK(dcl_dist_collective_deserialize(bytes, length, &copy));
    OK(dcl_dist_collective_get_reduce_op(copy, &number));
    CHECK(number == DCL_REDUCE_AVG);
    OK(dcl_layer_get_nb_rank(copy, &number));
    CHECK(number == 4);
    OK(dcl_dist_collective_get_determinism(copy, &number));
    CHECK(number == DCL_DETERMINISM_EXACT);
    OK(dcl_dist_collective_get_wire_type(copy, &number));
    CHECK(number == DCL_WIRE_TYPE_BFLOAT16);
    char name[16];
    OK(dcl_layer_get_name(copy, name, sizeof name, NULL));
    CHECK(strcmp(name, "mean") == 0);
    OK(dcl_layer_free(copy));
    /* Damaged bytes of every length. */
    for (size_t cut = 0; cut < length; cut++) {
        FAILS(DCL_STATUS_INVALID_PLAN, dcl_dist_collective_deserialize(bytes, cut, &none));
    }
    for (size_t at = 0; at < length; at++) {
        bytes[at] ^= 0x41;
        CHECK(dcl_dist_collective_deserialize(bytes, length, &none) == DCL_STATUS_INVALID_PLAN);
        bytes[at] ^= 0x41;
    }
    CHECK(none == NULL);

    /* A change of the copy does not change the layer. */
    OK(dcl_dist_collective_clone(layer, &copy));
    OK(dcl_dist_collective_set_reduce_op(layer, DCL_REDUCE_MIN));
    OK(dcl_dist_collective_get_reduce_op(copy, &number));
    CHECK(number == DCL_REDUCE_AVG);
    OK(dcl_layer_free(layer));
    /* The layer belongs to no network. */
    dcl_tensor_t *tensor = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_get_nb_inputs(copy, &number));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_get_nb_outputs(copy, &number));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_get_input(copy, 0, &tensor));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_get_output(copy, 0, &tensor));
    dcl_dims_t dims = {2, {-1, 3}};
    OK(dcl_dist_collective_get_output_dims(copy, &dims, &dims));
    CHECK(same(&dims, 2, (int64_t[]){-1, 3}));
    OK(dcl_layer_free(copy));

    /* Mistakes that the arguments alone show. */
    static const struct {
        int32_t operation, reduce_op;
        int64_t root;
    } wrong[] = {{-1, DCL_REDUCE_SUM, -1},
                 {8, DCL_REDUCE_SUM, -1},
                 {DCL_COLLECTIVE_ALL_REDUCE, 6, -1},
                 {DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_NONE, -1},
                 {DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_SUM, -1},
                 {DCL_COLLECTIVE_BROADCAST, DCL_REDUCE_NONE, -1},
                 {DCL_COLLECTIVE_BROADCAST, DCL_REDUCE_NONE, -2}};
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        CHECK(dcl_dist_collective_new(wrong[i].operation, wrong[i].reduce_op, wrong[i].root, NULL, 0, &none) !=
              DCL_STATUS_SUCCESS);
        CHECK(none == NULL);
    }
}

static void layers_of_other_kinds(void) {
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *shuffle, *cast, *constant, *none = NULL;
    dcl_dims_t dims = {2, {2, 3}}, swap = {2, {1, 0}}, reshape = {2, {3, -1}};
    float weights[6] = {1, 2, 3, 4, 5, 6};
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    OK(dcl_network_add_shuffle(network, x, &swap, &reshape, &swap, &shuffle));
    OK(dcl_layer_get_output(shuffle, 0, &y));
    OK(dcl_network_add_cast(network, y, DCL_DATA_TYPE_HALF, &cast));
    OK(dcl_network_add_constant(network, DCL_DATA_TYPE_FLOAT, &dims, weights, sizeof weights, &constant));
    FAILS(DCL_STATUS_INVALID_BUFFER,
          dcl_network_add_constant(network, DCL_DATA_TYPE_FLOAT, &dims, weights, sizeof weights - 1, &none));

    const dcl_dims_t wrong[] = {{2, {1, 1}}, {2, {0, 2}}, {2, {0, -1}}, {2, {0, 256}}, {-1, {0}}, {9, {0}}};
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_shuffle(network, x, &wrong[i], NULL, NULL, &none));
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_shuffle(network, x, NULL, NULL, &wrong[i], &none));
    }
    reshape.d[0] = -1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_shuffle(network, x, NULL, &reshape, NULL, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_shuffle(network, x, NULL, &wrong[5], NULL, &none));
    CHECK(none == NULL);

    int64_t root;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_get_root(constant, &root));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_dist_collective_clone(constant, &cast));

    /* The attributes are what the caller gave. */
    dcl_engine_t *engine;
    char text[4096];
    OK(dcl_layer_get_output(cast, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_layer_get_output(constant, 0, &y));
    OK(dcl_network_mark_output(network, y, "c"));
    OK(dcl_engine_build(network, &engine));
    OK(dcl_network_free(network));
    OK(dcl_engine_inspect(engine, text, sizeof text, NULL));
    CHECK(strstr(text, "\"first_transpose\":[1,0]") && strstr(text, "\"reshape\":[3,-1]"));
    OK(dcl_engine_free(engine));
}

/* y = x gathered over one rank, after a cast; x has from 1 to 8 rows of 2. */
static void an_engine_goes_through_bytes(void) {
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *cast, *gather;
    dcl_engine_t *built, *engine, *none = NULL;
    dcl_dims_t dims = {2, {-1, 2}}, min = {2, {1, 2}}, opt = {2, {4, 2}}, max = {2, {8, 2}};
    dcl_dims_t large = {2, {32, 2}}, got;
    OK(dcl_network_new(&network));
    FAILS(DCL_STATUS_INVALID_NETWORK, dcl_engine_build(network, &none));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    int32_t number;
    OK(dcl_network_get_nb_optimization_profiles(network, &number));
    CHECK(number == 0);
    OK(dcl_network_set_optimization_profile(network, x, &min, &opt, &max));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_set_optimization_profile(network, x, &min, &opt, &max));
    MESSAGE_HAS("has shapes for it already");
    OK(dcl_network_add_optimization_profile(network, &number));
    CHECK(number == 1);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_set_profile_shapes(network, 2, x, &max, &large, &large));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_set_profile_shapes(network, -1, x, &max, &large, &large));
    OK(dcl_network_set_profile_shapes(network, 1, x, &max, &large, &large));
    OK(dcl_network_get_nb_optimization_profiles(network, &number));
    CHECK(number == 2);
    OK(dcl_network_add_cast(network, x, DCL_DATA_TYPE_INT32, &cast));
    OK(dcl_layer_get_output(cast, 0, &y));
    OK(dcl_network_add_dist_collective(network, y, DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, NULL, 0, &gather));
    OK(dcl_layer_set_nb_rank(gather, 1));
    OK(dcl_layer_get_output(gather, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_engine_build(network, &built));
    OK(dcl_network_free(network));

    size_t length, again;
    OK(dcl_engine_serialize(built, NULL, 0, &length));
    unsigned char *plan = malloc(length), *copy = malloc(length);
    OK(dcl_engine_serialize(built, plan, length, NULL));
    OK(dcl_engine_deserialize(plan, length, NULL, 0, &engine));
    OK(dcl_engine_serialize(engine, copy, length, &again));
    CHECK(again == length && memcmp(plan, copy, length) == 0);
    char print[64], other_print[64];
    OK(dcl_engine_get_fingerprint(built, print, sizeof print, NULL));
    OK(dcl_engine_get_fingerprint(engine, other_print, sizeof other_print, NULL));
    CHECK(strcmp(print, other_print) == 0);
    OK(dcl_engine_free(built));
    for (size_t cut = 0; cut < length; cut += 7) {
        FAILS(DCL_STATUS_INVALID_PLAN, dcl_engine_deserialize(plan, cut, NULL, 0, &none));
    }
    FAILS(DCL_STATUS_INVALID_PLAN, dcl_engine_deserialize(NULL, 0, NULL, 0, &none));
    CHECK(none == NULL);
    free(plan);
    free(copy);

    char name[8];
    OK(dcl_engine_get_io_tensor_name(engine, 0, name, sizeof name, NULL));
    CHECK(strcmp(name, "x") == 0);
    OK(dcl_engine_get_io_tensor_name(engine, 1, name, sizeof name, NULL));
    CHECK(strcmp(name, "y") == 0);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_get_io_tensor_name(engine, 2, name, sizeof name, NULL));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_get_io_tensor_name(engine, -1, name, sizeof name, NULL));
    OK(dcl_engine_get_tensor_io_mode(engine, "x", &number));
    CHECK(number == DCL_TENSOR_IO_MODE_INPUT);
    OK(dcl_engine_get_tensor_io_mode(engine, "y", &number));
    CHECK(number == DCL_TENSOR_IO_MODE_OUTPUT);
    OK(dcl_engine_get_tensor_io_mode(engine, "z", &number));
    CHECK(number == DCL_TENSOR_IO_MODE_NONE);
    OK(dcl_engine_get_tensor_data_type(engine, "y", &number));
    CHECK(number == DCL_DATA_TYPE_INT32);
    CHECK(dcl_engine_get_tensor_data_type(engine, "z", &number) != DCL_STATUS_SUCCESS);
    OK(dcl_engine_get_tensor_shape(engine, "y", &got));
    CHECK(same(&got, 2, (int64_t[]){-1, 2}));
    OK(dcl_engine_get_profile_shape(engine, "x", 0, DCL_OPT_PROFILE_MIN, &got));
    CHECK(same(&got, 2, min.d));
    OK(dcl_engine_get_profile_shape(engine, "x", 0, DCL_OPT_PROFILE_OPT, &got));
    CHECK(same(&got, 2, opt.d));
    OK(dcl_engine_get_profile_shape(engine, "y", 0, DCL_OPT_PROFILE_MAX, &got));
    CHECK(same(&got, 2, max.d));
    OK(dcl_engine_get_profile_shape(engine, "y", 1, DCL_OPT_PROFILE_MAX, &got));
    CHECK(same(&got, 2, large.d));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_get_profile_shape(engine, "x", 0, 3, &got));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_get_profile_shape(engine, "x", 2, 0, &got));
    OK(dcl_engine_get_nb_optimization_profiles(engine, &number));
    CHECK(number == 2);

    dcl_execution_context_t *context;
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    OK(dcl_engine_free(engine));
    float given[6] = {1.5f, -2.5f, 3, 4, 5, 6};
    int32_t taken[6] = {0};
    void *address = taken;
    OK(dcl_execution_context_get_tensor_address(context, "x", &address));
    CHECK(address == NULL);
    FAILS(DCL_STATUS_NOT_READY, dcl_execution_context_get_tensor_shape(context, "y", &got));
    FAILS(DCL_STATUS_NOT_READY, dcl_execution_context_enqueue(context, NULL, NULL));
    dcl_dims_t three = {2, {3, 2}}, nine = {2, {9, 2}};
    const char *names[] = {"x"};
    FAILS(DCL_STATUS_INVALID_SHAPE, dcl_execution_context_set_input_shapes(context, names, &nine, 1));
    OK(dcl_execution_context_set_optimization_profile(context, 1));
    OK(dcl_execution_context_set_input_shapes(context, names, &nine, 1));
    OK(dcl_execution_context_get_optimization_profile(context, &number));
    CHECK(number == 1);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_execution_context_set_optimization_profile(context, 2));
    OK(dcl_execution_context_set_optimization_profile(context, 0));
    FAILS(DCL_STATUS_NOT_READY, dcl_execution_context_get_tensor_shape(context, "x", &got));
    OK(dcl_execution_context_set_input_shapes(context, names, &three, 1));
    OK(dcl_execution_context_set_input_shapes(context, NULL, NULL, 0));
    OK(dcl_execution_context_get_tensor_shape(context, "y", &got));
    CHECK(same(&got, 2, three.d));
    OK(dcl_execution_context_set_tensor_address(context, "x", given, sizeof given));
    OK(dcl_execution_context_get_tensor_address(context, "x", &address));
    CHECK(address == given);
    FAILS(DCL_STATUS_NOT_READY, dcl_execution_context_enqueue(context, NULL, NULL));
    OK(dcl_execution_context_set_tensor_address(context, "y", taken, sizeof taken - 4));
    FAILS(DCL_STATUS_INVALID_BUFFER, dcl_execution_context_enqueue(context, NULL, NULL));
    OK(dcl_execution_context_set_tensor_address(context, "y", taken, sizeof taken));
    OK(dcl_execution_context_enqueue(context, NULL, NULL));
    CHECK(taken[0] == 1 && taken[1] == -2 && taken[5] == 6);
    /* NULL unbinds it. */
    OK(dcl_execution_context_set_tensor_address(context, "y", NULL, sizeof taken));
    OK(dcl_execution_context_get_tensor_address(context, "y", &address));
    CHECK(address == NULL);
    FAILS(DCL_STATUS_NOT_READY, dcl_execution_context_enqueue(context, NULL, NULL));
    CHECK(dcl_execution_context_set_tensor_address(context, "z", taken, sizeof taken) != DCL_STATUS_SUCCESS);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_execution_context_set_timeout(context, -2));
    OK(dcl_execution_context_free(context));
}

/* All mistakes at once, one on each line. */
static void mistakes_are_listed(void) {
    dcl_network_t *network;
    dcl_tensor_t *x;
    dcl_layer_t *layer;
    dcl_engine_t *none = NULL;
    dcl_dims_t dims = vector(10);
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    OK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_REDUCE_SCATTER, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    OK(dcl_layer_set_nb_rank(layer, 4));
    OK(dcl_layer_set_name(layer, "grad_sync"));
    FAILS(DCL_STATUS_INVALID_NETWORK, dcl_engine_build(network, &none));
    MESSAGE_HAS("layer \"grad_sync\" (reduce_scatter)");
    MESSAGE_HAS("not a multiple of 4 ranks");
    MESSAGE_HAS("\n");
    MESSAGE_HAS("no output");
    CHECK(none == NULL);
    OK(dcl_network_free(network));
}

int main(void) {
    attributes_of_a_collective();
    layers_of_other_kinds();
    an_engine_goes_through_bytes();
    mistakes_are_listed();
    return 0;
}
