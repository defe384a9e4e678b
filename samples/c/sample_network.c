/* The demo, in the manner of TensorRT's sampleDistCollective: a network with one DistCollective
 * layer between two transposes, built, written as a plan, read back, run on every rank and checked.
 *
 *   input [3, C] -> Shuffle -> [C, 3] -> DistCollective -> "collective" -> Shuffle -> "output"
 *
 * C is 4, or for operations that divide the C rows among the ranks the next multiple of the ranks.
 *
 * The network has two outputs. "output" is the model's result. "collective" is the layer's own
 * output, bound to memory that is filled with a pattern: on a rank where the operation does not
 * write (REDUCE and GATHER, except on the root) the memory must keep the pattern, and the second
 * Shuffle must read zeros.
 *
 *   sample_network --op reduce_scatter --ranks 4
 *   distcollective launch -n 4 -- sample_network
 */
#define _POSIX_C_SOURCE 200809L

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "options.h"
#include "ranks.h"
#include "values.h"

enum { ROWS = 3, LEAST_COLUMNS = 4, MOST_COLUMNS = MAX_RANKS, NB_OPERATIONS = DCL_COLLECTIVE_SCATTER + 1 };

/* The columns of the network's input, which are the rows of the collective's. */
static int32_t columns_of(dcl_collective_operation_t operation, int32_t nb_ranks) {
    bool divides = operation == DCL_COLLECTIVE_REDUCE_SCATTER || operation == DCL_COLLECTIVE_ALL_TO_ALL ||
                   operation == DCL_COLLECTIVE_SCATTER;
    return divides ? (LEAST_COLUMNS + nb_ranks - 1) / nb_ranks * nb_ranks : LEAST_COLUMNS;
}

/* Writes dimensions as "[3, 4]". */
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

/* ---- The plan ---- */

struct plan {
    void *bytes;
    size_t byte_len;
};

/* Adds a Shuffle that transposes a matrix. */
static int add_transpose(dcl_network_t *network, dcl_tensor_t *input, dcl_tensor_t **output) {
    const dcl_dims_t permutation = {2, {1, 0}};
    dcl_layer_t *layer = NULL;
    CHECK(dcl_network_add_shuffle(network, input, &permutation, NULL, NULL, &layer));
    CHECK(dcl_layer_get_output(layer, 0, output));
    return 0;
}

/* Describes the network. It is the same on every rank. */
static int describe(dcl_network_t *network, dcl_collective_operation_t operation, int32_t nb_ranks, int32_t root) {
    const dcl_dims_t dims = {2, {ROWS, columns_of(operation, nb_ranks)}};
    dcl_tensor_t *input = NULL, *transposed = NULL, *collective = NULL, *output = NULL;
    CHECK(dcl_network_add_input(network, "input", DCL_DATA_TYPE_FLOAT, &dims, &input));
    if (add_transpose(network, input, &transposed)) {
        return 1;
    }
    dcl_layer_t *layer = NULL;
    CHECK(dcl_network_add_dist_collective(network, transposed, operation,
                                          reduces(operation) ? DCL_REDUCE_SUM : DCL_REDUCE_NONE,
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

/* Builds the network and writes it as a plan, which other processes could read from a file. */
static int build(dcl_collective_operation_t operation, int32_t nb_ranks, int32_t root, struct plan *plan) {
    dcl_network_t *network = NULL;
    CHECK(dcl_network_new(&network));
    if (describe(network, operation, nb_ranks, root)) {
        return 1;
    }
    dcl_engine_t *engine = NULL;
    /* The build reports every mistake in the network. */
    CHECK(dcl_engine_build(network, &engine));
    CHECK(dcl_network_free(network));
    CHECK(dcl_engine_serialize(engine, NULL, 0, &plan->byte_len));
    plan->bytes = malloc(plan->byte_len);
    REQUIRE(plan->bytes);
    CHECK(dcl_engine_serialize(engine, plan->bytes, plan->byte_len, NULL));
    CHECK(dcl_engine_free(engine));
    return 0;
}

/* ---- The run ---- */

/* An input or output, in memory of the communicator's device: the host or a GPU. */
struct io_tensor {
    char name[32];
    dcl_dims_t dims;
    dcl_buffer_t *buffer;
    size_t count;
};

enum { INPUT, COLLECTIVE, OUTPUT, NB_IO_TENSORS };

/* Allocates an input or output, fills it with UNWRITTEN and binds it. */
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

/* Writes the input. After the first Shuffle its element i is input_value(rank, i). */
static int write_input(const struct io_tensor *tensor, int32_t rank) {
    float values[ROWS * MOST_COLUMNS];
    size_t columns = (size_t)tensor->dims.d[1];
    REQUIRE(columns <= MOST_COLUMNS);
    for (size_t row = 0; row < ROWS; row++) {
        for (size_t column = 0; column < columns; column++) {
            values[row * columns + column] = input_value(rank, column * ROWS + row);
        }
    }
    CHECK(dcl_buffer_write(tensor->buffer, 0, values, tensor->count * sizeof(float)));
    return 0;
}

/* Compares every element of both outputs. `written`: whether the operation writes this rank's
 * output. */
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
        float expected = UNWRITTEN;
        if (written) {
            expected = output_value(operation, rank->number, rank->count, root, tensors[INPUT].count, i);
        }
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

/* A row of the summary: one operation on this rank. */
struct row {
    dcl_dims_t input;
    dcl_dims_t output;
    bool written;
};

/* Reads the plan, runs it and checks the outputs. */
static int run_plan(const struct plan *plan, dcl_collective_operation_t operation, const struct rank *rank,
                    int32_t root, struct row *row) {
    dcl_engine_t *engine = NULL;
    dcl_execution_context_t *context = NULL;
    CHECK(dcl_engine_deserialize(plan->bytes, plan->byte_len, NULL, 0, &engine));
    CHECK(dcl_engine_create_execution_context(engine, NULL, &context));
    /* The ranks compare their plans. */
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
                   dims_text(&rows[op].output, output, sizeof output),
                   rows[op].written ? "" : ", untouched off the root");
        }
    }
    return 0;
}

/* The part of one rank: all chosen operations. */
static int demonstrate_all(const struct rank *rank, void *argument) {
    const bool *chosen = argument;
    struct row rows[NB_OPERATIONS] = {0};
    for (int32_t op = 0; op < NB_OPERATIONS; op++) {
        if (chosen[op] && demonstrate(op, rank, &rows[op])) {
            return 1;
        }
    }
    /* After the barrier every rank has passed, so the summary holds for all. */
    CHECK(dcl_communicator_barrier(rank->communicator));
    return rank->number == 0 ? print_summary(chosen, rows, rank) : 0;
}

int main(int argc, char **argv) {
    struct options options = {.op = "all", .backend = "auto"};
    parse_options(argc, argv, &options);
    bool chosen[NB_OPERATIONS] = {false}, any = false;
    for (int32_t op = 0; op < NB_OPERATIONS; op++) {
        chosen[op] =
            strcasecmp(options.op, "all") == 0 || strcasecmp(options.op, dcl_collective_operation_name(op)) == 0;
        any |= chosen[op];
    }
    if (!any) {
        fprintf(stderr, "%s is not an operation; they are all_reduce, all_gather, broadcast, reduce, reduce_scatter, "
                        "all_to_all, gather, scatter, and all\n", options.op);
        return WRONG_USAGE;
    }
    const struct job job = {.nb_ranks = options.nb_ranks, .backend = options.backend};
    return run_on_ranks(&job, demonstrate_all, chosen) ? FAILED : PASSED;
}
