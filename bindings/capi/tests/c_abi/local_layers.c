/* ElementWise, Concatenation, Slice and Identity layers: a network of all of them, and mistakes. */
#include "check.h"

static int same(const dcl_dims_t *dims, int32_t nb_dims, const int64_t *d) {
    return dims->nb_dims == nb_dims && memcmp(dims->d, d, (size_t)nb_dims * sizeof *d) == 0;
}

static dcl_tensor_t *output_of(dcl_layer_t *layer) {
    dcl_tensor_t *output;
    OK(dcl_layer_get_output(layer, 0, &output));
    return output;
}

static void has_kind(dcl_layer_t *layer, const char *kind) {
    char text[32];
    OK(dcl_layer_get_kind(layer, text, sizeof text, NULL));
    CHECK(strcmp(text, kind) == 0);
}

/* y = -(x beside 10 - x, the columns reversed, every second one), of 2 rows of 3. */
static void a_network_of_all(void) {
    dcl_network_t *network;
    dcl_tensor_t *x, *ten, *parts[2];
    dcl_layer_t *constant, *less, *joined, *taken, *copied, *layer;
    dcl_dims_t dims = {2, {2, 3}}, one = {2, {1, 1}}, got;
    dcl_dims_t start = {2, {0, 5}}, size = {2, {2, 3}}, stride = {2, {1, -2}};
    const float number = 10, given[6] = {0, 1, 2, 3, 4, 5};
    float result[6] = {0};
    int32_t count;
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    OK(dcl_network_add_constant(network, DCL_DATA_TYPE_FLOAT, &one, &number, sizeof number, &constant));
    ten = output_of(constant);
    OK(dcl_network_add_elementwise(network, ten, x, DCL_ELEMENTWISE_SUB, &less));
    parts[0] = x;
    parts[1] = output_of(less);
    OK(dcl_network_add_concatenation(network, parts, 2, 1, &joined));
    OK(dcl_network_add_slice(network, output_of(joined), &start, &size, &stride, &taken));
    OK(dcl_network_add_identity(network, output_of(taken), &copied));
    OK(dcl_layer_get_nb_inputs(joined, &count));
    CHECK(count == 2);
    has_kind(less, "elementwise");
    has_kind(joined, "concatenation");
    has_kind(taken, "slice");
    has_kind(copied, "identity");
    OK(dcl_network_add_elementwise(network, output_of(copied), ten, DCL_ELEMENTWISE_DIV, &layer));
    OK(dcl_network_mark_output(network, output_of(layer), "y"));

    dcl_engine_t *engine;
    dcl_execution_context_t *context;
    OK(dcl_engine_build(network, &engine));
    OK(dcl_network_free(network));
    OK(dcl_engine_get_tensor_shape(engine, "y", &got));
    CHECK(same(&got, 2, size.d));
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    OK(dcl_engine_free(engine));
    OK(dcl_execution_context_set_tensor_address(context, "x", (void *)given, sizeof given));
    OK(dcl_execution_context_set_tensor_address(context, "y", result, sizeof result));
    OK(dcl_execution_context_enqueue(context, NULL, NULL));
    /* The columns 5, 3 and 1 of x beside 10 - x, divided by 10. */
    const float expected[6] = {8.0f / 10, 10.0f / 10, 1.0f / 10, 5.0f / 10, 7.0f / 10, 4.0f / 10};
    CHECK(memcmp(result, expected, sizeof expected) == 0);
    OK(dcl_execution_context_free(context));
}

static void mistakes(void) {
    dcl_network_t *network;
    dcl_tensor_t *x, *truth, *pair[2];
    dcl_layer_t *cast, *none = NULL;
    dcl_dims_t dims = {2, {2, 3}}, zero = {2, {0, 0}}, one = {2, {1, 1}}, negative = {2, {-1, 0}};
    dcl_dims_t short_one = {1, {1}}, wrong = {9, {0}};
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    OK(dcl_network_add_cast(network, x, DCL_DATA_TYPE_BOOL, &cast));
    truth = output_of(cast);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_elementwise(network, x, truth, DCL_ELEMENTWISE_SUM, &none));
    MESSAGE_HAS("input 0 is int32 and input 1 is bool");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_elementwise(network, truth, truth, DCL_ELEMENTWISE_SUB, &none));
    MESSAGE_HAS("bool has no sub");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_elementwise(network, x, x, 6, &none));
    MESSAGE_HAS("6 is not the number of an elementwise operation");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_concatenation(network, NULL, 0, 0, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_concatenation(network, &x, 1, -1, &none));
    MESSAGE_HAS("axis is -1");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_concatenation(network, &x, 1, DCL_MAX_DIMS, &none));
    pair[0] = x;
    pair[1] = truth;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_concatenation(network, pair, 2, 0, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_slice(network, x, &negative, &one, &one, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_slice(network, x, &zero, &negative, &one, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_slice(network, x, &zero, &one, &short_one, &none));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_slice(network, x, &zero, &wrong, &one, &none));
    CHECK(none == NULL);
    OK(dcl_network_free(network));
}

int main(void) {
    a_network_of_all();
    mistakes();
    return 0;
}
