/* The demo, in the manner of TensorRT's sampleDistCollective: a network with one DistCollective layer between two
 * transposes, built, written as a plan, read back, run on every rank and checked.
 *
 *   input [3, 4] -> Shuffle -> [4, 3] -> DistCollective -> "collective" -> Shuffle -> "output"
 *
 * The network has two outputs. "output" is what a user of the model wants. "collective" is the layer's own output, bound to
 * memory with a pattern in it: on a rank where the operation does not write (off the root of REDUCE and GATHER) the pattern
 * has to stay, and the second Shuffle has to read zeros.
 *
 *   sample_network --op reduce_scatter --ranks 4
 *   distcollective launch -n 4 -- sample_network
 */
#define _POSIX_C_SOURCE 200809L

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "mistakes.h"
#include "options.h"
#include "ranks.h"
#include "values.h"

enum { ROWS = 3, COLUMNS = 4, ELEMENTS = ROWS * COLUMNS, NB_OPERATIONS = DCL_COLLECTIVE_SCATTER + 1 };

/* "[3, 4]", for people. */
static const char *dims_text(const dcl_dims_t *dims, char *text, size_t capacity) {
    size_t length = (size_t)snprintf(text, capacity, "[");
    for (int32_t i = 0; i < dims->nb_dims && length < capacity; i++) {
        length += (size_t)snprintf(text + length, capacity - length, i ? ", %lld" : "%lld", (long long)dims->d[i]);
    }
    if (length < capacity) {
        snprintf(text + length, capacity - length, "]");
    }
    return text;
}

static size_t element_count(const dcl_dims_t *dims) {
    size_t count = 1;
    for (int32_t i = 0; i < dims->nb_dims; i++) {
        count *= (size_t)dims->d[i];
    }
    return count;
}

static void upper_case(const char *name, char *text, size_t capacity) {
    size_t i = 0;
    for (; name[i] && i + 1 < capacity; i++) {
        text[i] = (char)toupper((unsigned char)name[i]);
    }
    text[i] = '\0';
}

/* ---------------------------------------------------------------------------------------------------------------------------------
 * The plan
 * ------------------------------------------------------------------------------------------------------------------------------ */

struct plan {
    void *bytes;
    size_t byte_len;
};

/* Adds a Shuffle that transposes a matrix. */
static int add_transpose(dcl_network_t *network, dcl_tensor_t *input, dcl_tensor_t **output) {
    const int32_t permutation[] = {1, 0};
    dcl_layer_t *layer = NULL;
    CHECK(dcl_network_add_shuffle(network, input, &layer));
    CHECK(dcl_shuffle_set_first_transpose(layer, permutation, 2));
    CHECK(dcl_layer_get_output(layer, 0, output));
    return 0;
}

/* Describes the network. It is the same on every rank. */
static int describe(dcl_network_t *network, dcl_collective_operation_t operation, int32_t nb_ranks, int32_t root) {
    const dcl_dims_t dims = {2, {ROWS, COLUMNS}};
    dcl_tensor_t *input = NULL, *transposed = NULL, *collective = NULL, *output = NULL;
    CHECK(dcl_network_add_input(network, "input", DCL_DATA_TYPE_FLOAT, &dims, &input));
    if (add_transpose(network, input, &transposed)) {
        return 1;
    }
    dcl_layer_t *layer = NULL;
    CHECK(dcl_network_add_dist_collective(network, transposed, operation, reduces(operation) ? DCL_REDUCE_SUM : DCL_REDUCE_NONE,
                                          has_root(operation) ? root : -1, NULL, 0, &layer));
    CHECK(dcl_layer_set_nb_rank(layer, nb_ranks));
    CHECK(dcl_layer_set_name(layer, dcl_collective_operation_name(operation)));
    CHECK(dcl_layer_get_output(layer, 0, &collective));
    if (add_transpose(network, collective, &output)) {
        return 1;
    }
    CHECK(dcl_network_mark_output(network, collective, "collective"));
    CHECK(dcl_network_mark_output(network, output, "output"));
    return 0;
}

/* Builds the network and writes it as a plan. The plan can be kept in a file and read by other processes. */
static int build(dcl_collective_operation_t operation, int32_t nb_ranks, int32_t root, struct plan *plan) {
    dcl_network_t *network = NULL;
    CHECK(dcl_network_new(&network));
    if (describe(network, operation, nb_ranks, root)) {
        return 1;
    }
    dcl_engine_t *engine = NULL;
    /* Every mistake in the network is found here. */
    CHECK(dcl_engine_build(network, &engine));
    CHECK(dcl_network_free(network));
    CHECK(dcl_engine_serialize(engine, NULL, 0, &plan->byte_len));
    plan->bytes = malloc(plan->byte_len);
    REQUIRE(plan->bytes);
    CHECK(dcl_engine_serialize(engine, plan->bytes, plan->byte_len, NULL));
    CHECK(dcl_engine_free(engine));
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------------------------
 * The run
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* An input or output, with memory where the communicator wants it: the host's or a GPU's. */
struct io_tensor {
    char name[32];
    dcl_dims_t dims;
    dcl_buffer_t *buffer;
    size_t count;
};

enum { INPUT, COLLECTIVE, OUTPUT, NB_IO_TENSORS };

/* Gives an input or output memory, with these elements in it, and binds it. */
static int bind_tensor(dcl_engine_t *engine, dcl_execution_context_t *context, int32_t device, int32_t index,
                       struct io_tensor *tensor) {
    CHECK(dcl_engine_get_io_tensor_name(engine, index, tensor->name, sizeof tensor->name, NULL));
    CHECK(dcl_execution_context_get_tensor_shape(context, tensor->name, &tensor->dims));
    tensor->count = element_count(&tensor->dims);
    size_t byte_len = tensor->count * sizeof(float);
    float *values = malloc(byte_len);
    REQUIRE(values);
    for (size_t i = 0; i < tensor->count; i++) {
        values[i] = UNWRITTEN;
    }
    void *address = NULL;
    CHECK(dcl_buffer_new(device, byte_len, &tensor->buffer));
    CHECK(dcl_buffer_write(tensor->buffer, 0, values, byte_len));
    CHECK(dcl_buffer_get_address(tensor->buffer, &address));
    CHECK(dcl_execution_context_set_tensor_address(context, tensor->name, address, byte_len));
    free(values);
    return 0;
}

/* The input, so that after the first Shuffle element i of it is input_value(rank, i). */
static int write_input(const struct io_tensor *tensor, int32_t rank) {
    float values[ELEMENTS];
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t column = 0; column < COLUMNS; column++) {
            values[row * COLUMNS + column] = input_value(rank, column * ROWS + row);
        }
    }
    CHECK(dcl_buffer_write(tensor->buffer, 0, values, sizeof values));
    return 0;
}

/* Compares every element of both outputs. `written` says whether this rank's output is. */
static int check_outputs(const struct io_tensor *tensors, dcl_collective_operation_t operation, const struct rank *rank,
                         int32_t root, bool written) {
    size_t count = tensors[COLLECTIVE].count;
    size_t rows = (size_t)tensors[COLLECTIVE].dims.d[0];
    REQUIRE(tensors[OUTPUT].count == count);
    float *collective = malloc(count * sizeof(float));
    float *output = malloc(count * sizeof(float));
    REQUIRE(collective && output);
    CHECK(dcl_buffer_read(tensors[COLLECTIVE].buffer, 0, collective, count * sizeof(float)));
    CHECK(dcl_buffer_read(tensors[OUTPUT].buffer, 0, output, count * sizeof(float)));
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        float expected = written ? output_value(operation, rank->number, rank->count, root, ELEMENTS, i) : UNWRITTEN;
        float inside = written ? expected : 0.0f;
        size_t transposed = i % ROWS * rows + i / ROWS;
        wrong += memcmp(&collective[i], &expected, sizeof expected) != 0;
        wrong += memcmp(&output[transposed], &inside, sizeof inside) != 0;
    }
    free(collective);
    free(output);
    if (wrong > 0) {
        fprintf(stderr, "rank %d: %zu of %zu elements are wrong\n", (int)rank->number, wrong, 2 * count);
    }
    return wrong > 0;
}

/* Prints the inputs and outputs of an engine. */
static int list_io_tensors(dcl_engine_t *engine) {
    int32_t nb_tensors = 0;
    CHECK(dcl_engine_get_nb_io_tensors(engine, &nb_tensors));
    for (int32_t i = 0; i < nb_tensors; i++) {
        char name[32], dims[64];
        dcl_tensor_io_mode_t mode = DCL_TENSOR_IO_MODE_NONE;
        dcl_data_type_t data_type = DCL_DATA_TYPE_FLOAT;
        dcl_dims_t shape;
        CHECK(dcl_engine_get_io_tensor_name(engine, i, name, sizeof name, NULL));
        CHECK(dcl_engine_get_tensor_io_mode(engine, name, &mode));
        CHECK(dcl_engine_get_tensor_data_type(engine, name, &data_type));
        CHECK(dcl_engine_get_tensor_shape(engine, name, &shape));
        printf("  %-6s \"%s\" %s %s\n", mode == DCL_TENSOR_IO_MODE_INPUT ? "input" : "output", name,
               dcl_data_type_name(data_type), dims_text(&shape, dims, sizeof dims));
    }
    return 0;
}

/* What the summary tells of an operation, on this rank. */
struct row {
    dcl_dims_t input;
    dcl_dims_t output;
    bool written;
};

/* Reads the plan, runs it and checks what comes out. */
static int run_plan(const struct plan *plan, dcl_collective_operation_t operation, const struct rank *rank, int32_t root,
                    struct row *row) {
    dcl_engine_t *engine = NULL;
    dcl_execution_context_t *context = NULL;
    CHECK(dcl_engine_deserialize(plan->bytes, plan->byte_len, &engine));
    CHECK(dcl_engine_create_execution_context(engine, NULL, &context));
    /* Here the ranks compare their plans. */
    CHECK(dcl_execution_context_set_communicator(context, rank->communicator));
    if (rank->number == 0 && list_io_tensors(engine)) {
        return 1;
    }
    int32_t device = -1;
    CHECK(dcl_communicator_get_device(rank->communicator, &device));
    struct io_tensor tensors[NB_IO_TENSORS];
    for (int32_t i = 0; i < NB_IO_TENSORS; i++) {
        if (bind_tensor(engine, context, device, i, &tensors[i])) {
            return 1;
        }
    }
    if (write_input(&tensors[INPUT], rank->number)) {
        return 1;
    }
    CHECK(dcl_execution_context_enqueue(context, NULL, NULL));
    row->input = tensors[INPUT].dims;
    row->output = tensors[OUTPUT].dims;
    row->written = rank->number == root || !writes_on_root_only(operation);
    int failed = check_outputs(tensors, operation, rank, root, row->written);
    CHECK(dcl_execution_context_free(context));
    CHECK(dcl_engine_free(engine));
    for (int32_t i = 0; i < NB_IO_TENSORS; i++) {
        CHECK(dcl_buffer_free(tensors[i].buffer));
    }
    return failed;
}

/* Builds and runs the network of one operation. */
static int demonstrate(dcl_collective_operation_t operation, const struct rank *rank, struct row *row) {
    char name[32];
    upper_case(dcl_collective_operation_name(operation), name, sizeof name);
    int32_t root = rank->count - 1;
    struct plan plan = {NULL, 0};
    int failed = build(operation, rank->count, root, &plan) || run_plan(&plan, operation, rank, root, row);
    free(plan.bytes);
    if (failed) {
        printf("Rank %d - %s FAILED\n", (int)rank->number, name);
    } else {
        int r = (int)rank->number;
        printf("Rank %d - %s PASSED\nRank %d - %s test completed successfully!\n", r, name, r, name);
    }
    return failed;
}

static int print_summary(const bool *chosen, const struct row *rows, const struct rank *rank) {
    char backend[16];
    CHECK(dcl_communicator_get_backend(rank->communicator, backend, sizeof backend, NULL));
    printf("\nranks: %d %s; backend: %s\n", (int)rank->count, is_launched() ? "processes" : "threads", backend);
    printf("%-15s %-10s %-10s rank 0's result\n", "operation", "input", "output");
    for (int32_t op = 0; op < NB_OPERATIONS; op++) {
        if (chosen[op]) {
            char name[32], input[32], output[32];
            upper_case(dcl_collective_operation_name(op), name, sizeof name);
            printf("%-15s %-10s %-10s PASSED%s\n", name, dims_text(&rows[op].input, input, sizeof input),
                   dims_text(&rows[op].output, output, sizeof output), rows[op].written ? "" : ", untouched off the root");
        }
    }
    return 0;
}

/* One rank: all operations that were asked for. */
static int demonstrate_all(const struct rank *rank, void *argument) {
    const bool *chosen = argument;
    struct row rows[NB_OPERATIONS] = {0};
    for (int32_t op = 0; op < NB_OPERATIONS; op++) {
        if (chosen[op] && demonstrate(op, rank, &rows[op])) {
            return 1;
        }
    }
    /* Behind the barrier nobody has failed. */
    CHECK(dcl_communicator_barrier(rank->communicator));
    return rank->number == 0 ? print_summary(chosen, rows, rank) : 0;
}

/* ---------------------------------------------------------------------------------------------------------------------------------
 * Mistakes
 * ------------------------------------------------------------------------------------------------------------------------------ */

/* Mistakes in calls that describe a network. */
static int mistakes_of_description(void) {
    const dcl_dims_t dims = {2, {10, 8}};
    const int64_t twice[] = {0, 1, 0};
    dcl_network_t *network = NULL, *other = NULL;
    dcl_tensor_t *x = NULL, *stranger = NULL, *tensor = NULL;
    dcl_layer_t *layer = NULL;
    int wrong = 0;
    CHECK(dcl_network_new(&network));
    CHECK(dcl_network_new(&other));
    CHECK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    CHECK(dcl_network_add_input(other, "x", DCL_DATA_TYPE_FLOAT, &dims, &stranger));
    wrong += expect(NULL, "an operation that there is not",
                    dcl_network_add_dist_collective(network, x, 8, DCL_REDUCE_NONE, -1, NULL, 0, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "an all_reduce without a reduction",
                    dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_NONE, -1, NULL, 0, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a broadcast without a root",
                    dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_BROADCAST, DCL_REDUCE_NONE, -1, NULL, 0, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a group with a rank twice",
                    dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, twice, 3, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "a type of TensorRT's that has no collective", dcl_network_add_input(network, "y", 9, &dims, &tensor),
                    DCL_STATUS_UNSUPPORTED);
    wrong += expect(NULL, "an input without a name", dcl_network_add_input(network, NULL, DCL_DATA_TYPE_FLOAT, &dims, &tensor),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "nowhere to put the layer", dcl_network_add_shuffle(network, x, NULL), DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(NULL, "another network's tensor", dcl_network_add_shuffle(network, stranger, &layer),
                    DCL_STATUS_INVALID_ARGUMENT);
    char name[2] = "?";
    size_t length = 0;
    CHECK(dcl_tensor_set_name(x, "activations"));
    wrong += expect(NULL, "no room for a name", dcl_tensor_get_name(x, name, sizeof name, &length), DCL_STATUS_BUFFER_TOO_SMALL);
    REQUIRE(length == strlen("activations") && name[0] == '?');
    CHECK(dcl_network_free(other));
    wrong += expect(NULL, "no handle", dcl_network_add_shuffle(NULL, x, &layer), DCL_STATUS_INVALID_HANDLE);
    wrong += expect(NULL, "a freed network", dcl_network_mark_output(other, x, "y"), DCL_STATUS_INVALID_HANDLE);
    wrong += expect(NULL, "a tensor of a freed network", dcl_tensor_set_name(stranger, "y"), DCL_STATUS_INVALID_HANDLE);
    wrong += expect(NULL, "a tensor where a layer should be", dcl_layer_set_nb_rank((dcl_layer_t *)(void *)x, 2),
                    DCL_STATUS_INVALID_HANDLE);
    CHECK(dcl_network_free(network));
    return wrong;
}

/* Mistakes that the build finds, and bytes that are no plan. */
static int mistakes_of_build(void) {
    const dcl_dims_t dims = {2, {10, 8}};
    dcl_network_t *network = NULL;
    dcl_tensor_t *x = NULL, *unread = NULL, *y = NULL;
    dcl_layer_t *layer = NULL;
    dcl_engine_t *engine = NULL;
    int wrong = 0;
    CHECK(dcl_network_new(&network));
    wrong += expect(NULL, "a network without outputs", dcl_engine_build(network, &engine), DCL_STATUS_INVALID_NETWORK);
    CHECK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    CHECK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_REDUCE_SCATTER, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    CHECK(dcl_layer_set_nb_rank(layer, 4));
    CHECK(dcl_layer_set_name(layer, "grad_sync"));
    CHECK(dcl_layer_get_output(layer, 0, &y));
    CHECK(dcl_network_mark_output(network, y, "y"));
    wrong += expect(NULL, "a reduce_scatter of 10 rows on 4 ranks", dcl_engine_build(network, &engine), DCL_STATUS_INVALID_NETWORK);
    CHECK(dcl_network_add_input(network, "y", DCL_DATA_TYPE_FLOAT, &dims, &unread));
    wrong += expect(NULL, "several mistakes at once", dcl_engine_build(network, &engine), DCL_STATUS_INVALID_NETWORK);
    CHECK(dcl_network_free(network));
    struct plan plan = {NULL, 0};
    if (build(DCL_COLLECTIVE_ALL_REDUCE, 2, 0, &plan)) {
        return 1;
    }
    ((unsigned char *)plan.bytes)[plan.byte_len / 2] ^= 1;
    wrong += expect(NULL, "a plan with one bit changed", dcl_engine_deserialize(plan.bytes, plan.byte_len, &engine),
                    DCL_STATUS_INVALID_PLAN);
    wrong += expect(NULL, "half a plan", dcl_engine_deserialize(plan.bytes, plan.byte_len / 2, &engine), DCL_STATUS_INVALID_PLAN);
    wrong += expect(NULL, "a plan that is none", dcl_engine_deserialize("not a plan", 10, &engine), DCL_STATUS_INVALID_PLAN);
    free(plan.bytes);
    return wrong;
}

/* An engine of one all_reduce of x with 1 to 8 rows, on this many ranks. */
static int build_all_reduce(int32_t nb_ranks, dcl_reduce_operation_t reduce_op, dcl_engine_t **engine) {
    const dcl_dims_t dims = {2, {-1, 4}}, min = {2, {1, 4}}, opt = {2, {4, 4}}, max = {2, {8, 4}};
    dcl_network_t *network = NULL;
    dcl_tensor_t *x = NULL, *y = NULL;
    dcl_layer_t *layer = NULL;
    CHECK(dcl_network_new(&network));
    CHECK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    CHECK(dcl_network_set_optimization_profile(network, x, &min, &opt, &max));
    CHECK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_REDUCE, reduce_op, -1, NULL, 0, &layer));
    CHECK(dcl_layer_set_nb_rank(layer, nb_ranks));
    CHECK(dcl_layer_set_name(layer, "mlp.sum"));
    CHECK(dcl_layer_get_output(layer, 0, &y));
    CHECK(dcl_network_mark_output(network, y, "y"));
    CHECK(dcl_engine_build(network, engine));
    CHECK(dcl_network_free(network));
    return 0;
}

/* Mistakes of one context, in the order in which a program would make them. None of them moves anything. */
static int mistakes_of_context(const struct rank *rank) {
    const dcl_dims_t two_rows = {2, {2, 4}}, nine_rows = {2, {9, 4}};
    float x[8] = {0}, y[9];
    dcl_engine_t *engine = NULL;
    dcl_execution_context_t *context = NULL;
    int wrong = 0;
    if (build_all_reduce(rank->count, DCL_REDUCE_SUM, &engine)) {
        return 1;
    }
    CHECK(dcl_engine_create_execution_context(engine, NULL, &context));
    wrong += expect(rank, "no shape yet", dcl_execution_context_enqueue(context, NULL, NULL), DCL_STATUS_NOT_READY);
    wrong += expect(rank, "a tensor that there is not", dcl_execution_context_set_input_shape(context, "z", &two_rows),
                    DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(rank, "an address for a tensor that there is not",
                    dcl_execution_context_set_tensor_address(context, "z", x, sizeof x), DCL_STATUS_INVALID_ARGUMENT);
    wrong += expect(rank, "a shape outside the profile", dcl_execution_context_set_input_shape(context, "x", &nine_rows),
                    DCL_STATUS_INVALID_SHAPE);
    CHECK(dcl_execution_context_set_input_shape(context, "x", &two_rows));
    CHECK(dcl_execution_context_set_tensor_address(context, "x", x, sizeof x));
    wrong += expect(rank, "no communicator yet", dcl_execution_context_enqueue(context, NULL, NULL), DCL_STATUS_NOT_READY);
    CHECK(dcl_execution_context_set_communicator(context, rank->communicator));
    wrong += expect(rank, "no address yet", dcl_execution_context_enqueue(context, NULL, NULL), DCL_STATUS_NOT_READY);
    CHECK(dcl_execution_context_set_tensor_address(context, "y", y, sizeof x / 2));
    wrong += expect(rank, "memory that is too small", dcl_execution_context_enqueue(context, NULL, NULL),
                    DCL_STATUS_INVALID_BUFFER);
    CHECK(dcl_execution_context_set_tensor_address(context, "x", y + 1, sizeof x));
    CHECK(dcl_execution_context_set_tensor_address(context, "y", y, sizeof x));
    wrong += expect(rank, "memory that overlaps", dcl_execution_context_enqueue(context, NULL, NULL),
                    DCL_STATUS_INVALID_BUFFER);
    CHECK(dcl_execution_context_set_tensor_address(context, "x", x, sizeof x));
    /* With all of it mended the run goes well. */
    CHECK(dcl_execution_context_enqueue(context, NULL, NULL));
    CHECK(dcl_execution_context_free(context));
    wrong += expect(rank, "a freed context", dcl_execution_context_enqueue(context, NULL, NULL), DCL_STATUS_INVALID_HANDLE);
    CHECK(dcl_engine_free(engine));
    return wrong;
}

/* An engine that does not fit this communicator. No rank has set it then, and the communicator works on. */
static int misfit(const struct rank *rank, const char *mistake, int32_t nb_ranks, dcl_reduce_operation_t reduce_op,
                  dcl_status_t expected) {
    dcl_engine_t *engine = NULL;
    dcl_execution_context_t *context = NULL;
    if (build_all_reduce(nb_ranks, reduce_op, &engine)) {
        return 1;
    }
    CHECK(dcl_engine_create_execution_context(engine, NULL, &context));
    int wrong = expect(rank, mistake, dcl_execution_context_set_communicator(context, rank->communicator), expected);
    CHECK(dcl_communicator_barrier(rank->communicator));
    CHECK(dcl_execution_context_free(context));
    CHECK(dcl_engine_free(engine));
    return wrong;
}

/* Mistakes after which the communicator still works. */
static int mistakes_that_break_nothing(const struct rank *rank, void *argument) {
    (void)argument;
    REQUIRE(rank->count >= 2);
    int wrong = 0;
    if (rank->number == 0) {
        wrong += mistakes_of_description() + mistakes_of_build();
    }
    bool is_odd = rank->number == 1;
    wrong += mistakes_of_context(rank);
    wrong += misfit(rank, "a plan for more ranks than there are", rank->count + 1, DCL_REDUCE_SUM,
                    DCL_STATUS_INVALID_COMMUNICATOR);
    wrong += misfit(rank, "a plan for more ranks, on one rank only", is_odd ? rank->count + 1 : rank->count, DCL_REDUCE_SUM,
                    DCL_STATUS_INVALID_COMMUNICATOR);
    wrong += misfit(rank, "plans that differ", rank->count, is_odd ? DCL_REDUCE_MAX : DCL_REDUCE_SUM, DCL_STATUS_DISAGREEMENT);
    return wrong;
}

/* What one rank does differently from the others in a run. */
enum oddity { ANOTHER_SHAPE, ABSENCE };

/* A run in which the ranks do not do the same. It ends the communicator. */
static int run_oddly(const struct rank *rank, void *argument) {
    enum oddity oddity = *(enum oddity *)argument;
    bool is_odd = rank->number == 1;
    const dcl_dims_t two_rows = {2, {2, 4}}, three_rows = {2, {3, 4}};
    float x[12] = {0}, y[12];
    size_t byte_len = is_odd && oddity == ANOTHER_SHAPE ? sizeof x : sizeof x / 3 * 2;
    dcl_engine_t *engine = NULL;
    dcl_execution_context_t *context = NULL;
    if (build_all_reduce(rank->count, DCL_REDUCE_SUM, &engine)) {
        return 1;
    }
    CHECK(dcl_engine_create_execution_context(engine, NULL, &context));
    CHECK(dcl_execution_context_set_communicator(context, rank->communicator));
    CHECK(dcl_execution_context_set_input_shape(context, "x", is_odd && oddity == ANOTHER_SHAPE ? &three_rows : &two_rows));
    CHECK(dcl_execution_context_set_tensor_address(context, "x", x, byte_len));
    CHECK(dcl_execution_context_set_tensor_address(context, "y", y, byte_len));
    int wrong = 0;
    if (oddity == ANOTHER_SHAPE) {
        wrong += expect_either(rank, "ranks that run with different shapes", dcl_execution_context_enqueue(context, NULL, NULL),
                               DCL_STATUS_DISAGREEMENT, DCL_STATUS_ABORTED);
    } else if (is_odd) {
        wrong += expect_either(rank, "a rank that does not run, itself", wait_until_given_up(rank), DCL_STATUS_ABORTED,
                               DCL_STATUS_DEADLINE_EXCEEDED);
    } else {
        CHECK(dcl_execution_context_set_timeout(context, SHORT_MS));
        /* The first to give up says so, and the others may hear it from him. */
        wrong += expect_either(rank, "a rank that does not run", dcl_execution_context_enqueue(context, NULL, NULL),
                               DCL_STATUS_DEADLINE_EXCEEDED, DCL_STATUS_ABORTED);
    }
    CHECK(dcl_execution_context_free(context));
    CHECK(dcl_engine_free(engine));
    return wrong;
}

static int make_mistakes(int32_t nb_ranks) {
    struct job job = {.nb_ranks = nb_ranks, .backend = "host", .timeout_ms = PATIENCE_MS};
    int failed = run_on_ranks(&job, mistakes_that_break_nothing, NULL);
    job.ends_badly = true;
    for (enum oddity oddity = ANOTHER_SHAPE; oddity <= ABSENCE; oddity++) {
        failed |= run_on_ranks(&job, run_oddly, &oddity);
    }
    printf(failed ? "\nNot every mistake got its error.\n" : "\nEvery mistake got its error.\n");
    return failed;
}

int main(int argc, char **argv) {
    struct options options = {.op = "all", .backend = "auto", .nb_ranks = 4};
    parse_options(argc, argv, &options);
    if (options.mistakes) {
        return make_mistakes(options.nb_ranks) ? FAILED : PASSED;
    }
    bool chosen[NB_OPERATIONS] = {false}, any = false;
    for (int32_t op = 0; op < NB_OPERATIONS; op++) {
        chosen[op] = strcasecmp(options.op, "all") == 0 || strcasecmp(options.op, dcl_collective_operation_name(op)) == 0;
        any |= chosen[op];
    }
    if (!any) {
        fprintf(stderr, "%s is not an operation; they are all_reduce, all_gather, broadcast, reduce, reduce_scatter, "
                        "all_to_all, gather, scatter, and all\n", options.op);
        return WRONG_USAGE;
    }
    const struct job job = {.nb_ranks = options.nb_ranks, .backend = options.backend, .timeout_ms = 30000};
    return run_on_ranks(&job, demonstrate_all, chosen) ? FAILED : PASSED;
}
