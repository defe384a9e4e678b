/* Writes the plan of python_plans.rs, or runs it on two threads: write PLAN, or run PLAN. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../samples/c/ranks.h"

enum { RANKS = 2, ROWS = 2, COLUMNS = 3, OUTPUTS = RANKS * ROWS * COLUMNS };

static int write_plan(const char *path) {
    const dcl_dims_t dims = {2, {-1, COLUMNS}};
    const dcl_dims_t min = {2, {1, COLUMNS}}, opt = {2, {2, COLUMNS}}, max = {2, {4, COLUMNS}};
    const dcl_dims_t permutation = {2, {1, 0}};
    dcl_network_t *network = NULL;
    dcl_tensor_t *x = NULL, *transposed = NULL, *gathered = NULL, *y = NULL;
    dcl_layer_t *transpose = NULL, *gather = NULL, *cast = NULL;
    CHECK(dcl_network_new(&network));
    CHECK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    CHECK(dcl_network_set_optimization_profile(network, x, &min, &opt, &max));
    CHECK(dcl_network_add_shuffle(network, x, &permutation, NULL, NULL, &transpose));
    CHECK(dcl_layer_set_name(transpose, "transpose"));
    CHECK(dcl_layer_get_output(transpose, 0, &transposed));
    CHECK(dcl_tensor_set_name(transposed, "transposed"));
    CHECK(dcl_network_add_dist_collective(network, transposed, DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, NULL, 0,
                                          &gather));
    CHECK(dcl_layer_set_nb_rank(gather, RANKS));
    CHECK(dcl_layer_set_name(gather, "gather"));
    CHECK(dcl_layer_get_output(gather, 0, &gathered));
    CHECK(dcl_tensor_set_name(gathered, "gathered"));
    CHECK(dcl_network_add_cast(network, gathered, DCL_DATA_TYPE_INT32, &cast));
    CHECK(dcl_layer_set_name(cast, "cast"));
    CHECK(dcl_layer_get_output(cast, 0, &y));
    CHECK(dcl_network_mark_output(network, y, "y"));
    dcl_engine_t *engine = NULL;
    size_t byte_len = 0;
    CHECK(dcl_engine_build(network, &engine));
    CHECK(dcl_engine_serialize(engine, NULL, 0, &byte_len));
    void *plan = malloc(byte_len);
    REQUIRE(plan);
    CHECK(dcl_engine_serialize(engine, plan, byte_len, NULL));
    FILE *file = fopen(path, "wb");
    REQUIRE(file);
    REQUIRE(fwrite(plan, 1, byte_len, file) == byte_len);
    REQUIRE(fclose(file) == 0);
    free(plan);
    CHECK(dcl_engine_free(engine));
    CHECK(dcl_network_free(network));
    return 0;
}

static char plan[1 << 16];
static size_t plan_len;

static int run_plan(const struct rank *rank, void *argument) {
    char *line = (char *)argument + 128 * rank->number;
    const char *name = "x";
    const dcl_dims_t dims = {2, {ROWS, COLUMNS}};
    float x[ROWS * COLUMNS];
    int32_t y[OUTPUTS];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        x[i] = (float)(i + 10 * rank->number);
    }
    dcl_engine_t *engine = NULL;
    dcl_execution_context_t *context = NULL;
    CHECK(dcl_engine_deserialize(plan, plan_len, NULL, 0, &engine));
    CHECK(dcl_engine_create_execution_context(engine, NULL, &context));
    CHECK(dcl_execution_context_set_communicator(context, rank->communicator));
    CHECK(dcl_execution_context_set_input_shapes(context, &name, &dims, 1));
    CHECK(dcl_execution_context_set_tensor_address(context, "x", x, sizeof x));
    CHECK(dcl_execution_context_set_tensor_address(context, "y", y, sizeof y));
    CHECK(dcl_execution_context_enqueue(context, NULL, NULL));
    int length = snprintf(line, 128, "rank %d:", (int)rank->number);
    for (int i = 0; i < OUTPUTS; i++) {
        length += snprintf(line + length, (size_t)(128 - length), " %d", (int)y[i]);
    }
    CHECK(dcl_execution_context_free(context));
    CHECK(dcl_engine_free(engine));
    return 0;
}

int main(int argc, char **argv) {
    REQUIRE(argc == 3);
    if (strcmp(argv[1], "write") == 0) {
        return write_plan(argv[2]);
    }
    FILE *file = fopen(argv[2], "rb");
    REQUIRE(file);
    plan_len = fread(plan, 1, sizeof plan, file);
    REQUIRE(fclose(file) == 0);
    const struct job job = {RANKS, "host"};
    char lines[RANKS][128];
    if (run_on_ranks(&job, run_plan, lines)) {
        return 1;
    }
    for (int rank = 0; rank < RANKS; rank++) {
        printf("%s\n", lines[rank]);
    }
    return 0;
}
