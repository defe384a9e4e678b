/* The objects that arguments.c passes to functions, and the table of functions. */
#ifndef ARGUMENTS_WORLD_H
#define ARGUMENTS_WORLD_H

#include "check.h"

#define MOST_PARAMETERS 9

/* The kind of a parameter. */
enum kind {
    /* A handle. */
    HANDLE,
    /* An array for handles. */
    HANDLES,
    /* A text. */
    TEXT,
    /* An array of texts. */
    NAMES,
    /* Dimensions, as an input. */
    DIMS,
    /* Structures with a struct_size. */
    OPTIONS,
    CONFIG,
    BOOTSTRAP_CONFIG,
    PLUGIN,
    CREATORS,
    MESSAGES,
    BROADCAST_OPTIONS,
    COMMUNICATOR_OPTIONS,
    DICT_TENSOR,
    /* An array of tensors, as an input. */
    TENSORS,
    /* Other memory that the function reads. */
    INPUT,
    /* Memory that the function writes. */
    OUTPUT,
    /* A structure that the function fills in. Its struct_size is set. */
    STRUCTURE,
    /* A pointer of another library. It must be right or NULL. */
    FOREIGN,
    /* The length of an array or a buffer. */
    LENGTH,
    /* Any other number. */
    NUMBER
};

/* What a pointer points to. */
enum { ONE, ARRAY, CHARACTERS };

struct parameter {
    const char *name;
    enum kind kind;
    /* For a handle, its type. For a number, its bits; they are negative if it is signed. For a
     * STRUCTURE, its size. For another pointer: ONE, ARRAY or CHARACTERS. */
    int detail;
};

struct function {
    const char *name;
    /* Calls the function. Pointers are passed as numbers. */
    uint64_t (*call)(const uint64_t *arguments);
    int returns_status;
    /* Whether the function needs exclusive use of its first argument. */
    int is_exclusive;
    int nb_parameters;
    struct parameter parameters[MOST_PARAMETERS];
};

#include "functions.inc"

#define NB_FUNCTIONS ((int)LENGTH_OF(FUNCTIONS))

/* One object of each type, for the next call. */
static uint64_t live[NB_TYPES];
static uint64_t freed[NB_TYPES];

/* A layer of no network. The layer in `live` belongs to one. */
static uint64_t loose_layer;

/* A tensor that a layer computes. The tensor in `live` is an input. */
static uint64_t computed;

static float memory[4][16];

/* A safetensors file. */
static char path[64];

#define NUMBER_OF(pointer) ((uint64_t)(uintptr_t)(pointer))
#define POINTER_OF(type, number) ((type *)(uintptr_t)(number))

static void take_line(dcl_severity_t severity, const char *message, void *user_data) {
    (void)severity;
    (void)message;
    (void)user_data;
}

static int32_t go_on(void *user_data) {
    (void)user_data;
    return 0;
}

static dcl_environment_config_t alone(void) {
    dcl_environment_config_t config = DCL_ENVIRONMENT_CONFIG_INIT;
    config.rank = 0;
    config.world_size = 1;
    config.host = "localhost";
    config.port = own_port();
    config.backend = "host";
    config.timeout_ms = 1000;
    return config;
}

static void make_world(void) {
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *reduce, *cast, *shuffle, *sum, *joined, *part, *constant, *loose;
    dcl_dims_t one = vector(1), zero = {1, {0}};
    int64_t ranks[] = {0, 1};
    int32_t profile;
    float weight = 1;
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &one, &x));
    OK(dcl_network_add_optimization_profile(network, &profile));
    OK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_REDUCE, DCL_REDUCE_SUM, 0, ranks, 2, &reduce));
    OK(dcl_layer_get_output(reduce, 0, &y));
    OK(dcl_network_add_cast(network, y, DCL_DATA_TYPE_FLOAT, &cast));
    OK(dcl_layer_get_output(cast, 0, &y));
    computed = NUMBER_OF(y);
    OK(dcl_network_add_shuffle(network, y, NULL, &one, NULL, &shuffle));
    OK(dcl_layer_get_output(shuffle, 0, &y));
    OK(dcl_network_add_elementwise(network, y, y, DCL_ELEMENTWISE_SUM, &sum));
    OK(dcl_layer_get_output(sum, 0, &y));
    OK(dcl_network_add_concatenation(network, &y, 1, 0, &joined));
    OK(dcl_layer_get_output(joined, 0, &y));
    OK(dcl_network_add_slice(network, y, &zero, &one, &one, &part));
    OK(dcl_layer_get_output(part, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_network_add_constant(network, DCL_DATA_TYPE_FLOAT, &one, &weight, sizeof weight, &constant));
    OK(dcl_layer_get_output(constant, 0, &y));
    OK(dcl_network_mark_output(network, y, "c"));
    OK(dcl_dist_collective_new(DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, -1, NULL, 0, &loose));
    OK(dcl_layer_set_nb_rank(loose, 1));

    dcl_communicator_t *communicator;
    dcl_engine_t *engine, *runnable;
    dcl_execution_context_t *context;
    dcl_bound_layer_t *bound;
    dcl_environment_t *environment;
    dcl_buffer_t *buffer;
    dcl_stream_t *stream;
    dcl_work_t *work;
    dcl_tensor_dict_t *dict;
    dcl_environment_config_t config = alone();
    dcl_dict_tensor_t tensor = DCL_DICT_TENSOR_INIT;
    tensor.dims = one;
    OK(dcl_communicator_new_in_process("host", 1, 1000, &communicator));
    /* On two ranks the engine has a warning; on one it runs. */
    OK(dcl_engine_build(network, &engine));
    OK(dcl_dist_collective_set_groups(reduce, ranks, 1));
    OK(dcl_engine_build(network, &runnable));
    OK(dcl_engine_create_execution_context(runnable, NULL, &context));
    OK(dcl_engine_free(runnable));
    OK(dcl_execution_context_set_communicator(context, communicator));
    OK(dcl_execution_context_set_tensor_address(context, "x", memory[0], sizeof(float)));
    OK(dcl_execution_context_set_tensor_address(context, "y", memory[1], sizeof(float)));
    OK(dcl_execution_context_set_tensor_address(context, "c", memory[2], sizeof(float)));
    OK(dcl_dist_collective_bind(loose, communicator, DCL_DATA_TYPE_FLOAT, &bound));
    OK(dcl_environment_initialize(&config, &environment));
    OK(dcl_buffer_new(-1, 64, &buffer));
    OK(dcl_stream_new_worker(&stream));
    /* The work of a message that has come. */
    OK(dcl_send(communicator, memory[0], 1, DCL_DATA_TYPE_FLOAT, 0, 0));
    OK(dcl_irecv(communicator, memory[3], 1, DCL_DATA_TYPE_FLOAT, 0, 0, &work));
    OK(dcl_work_wait(work));
    OK(dcl_tensor_dict_new(&dict));
    OK(dcl_tensor_dict_insert(dict, "x", &tensor));
    OK(dcl_tensor_dict_set_metadata(dict, "x", "a text"));
    if (path[0] == '\0') {
        snprintf(path, sizeof path, "/tmp/dcl_arguments_%ld.safetensors", (long)getpid());
    }
    if (access(path, F_OK) != 0) {
        OK(dcl_tensor_dict_save(dict, path));
    }

    live[dcl_network] = NUMBER_OF(network);
    live[dcl_tensor] = NUMBER_OF(x);
    live[dcl_layer] = NUMBER_OF(reduce);
    live[dcl_engine] = NUMBER_OF(engine);
    live[dcl_execution_context] = NUMBER_OF(context);
    live[dcl_bound_layer] = NUMBER_OF(bound);
    live[dcl_environment] = NUMBER_OF(environment);
    live[dcl_communicator] = NUMBER_OF(communicator);
    live[dcl_buffer] = NUMBER_OF(buffer);
    live[dcl_stream] = NUMBER_OF(stream);
    live[dcl_work] = NUMBER_OF(work);
    live[dcl_tensor_dict] = NUMBER_OF(dict);
    loose_layer = NUMBER_OF(loose);
}

/* Frees an object. It may have been freed before, or belong to another object. */
static void free_one(int type, uint64_t handle) {
    switch (type) {
    case dcl_network: dcl_network_free(POINTER_OF(dcl_network_t, handle)); break;
    case dcl_layer: dcl_layer_free(POINTER_OF(dcl_layer_t, handle)); break;
    case dcl_engine: dcl_engine_free(POINTER_OF(dcl_engine_t, handle)); break;
    case dcl_execution_context: dcl_execution_context_free(POINTER_OF(dcl_execution_context_t, handle)); break;
    case dcl_bound_layer: dcl_bound_layer_free(POINTER_OF(dcl_bound_layer_t, handle)); break;
    case dcl_environment: dcl_environment_free(POINTER_OF(dcl_environment_t, handle)); break;
    case dcl_communicator: dcl_communicator_free(POINTER_OF(dcl_communicator_t, handle)); break;
    case dcl_buffer: dcl_buffer_free(POINTER_OF(dcl_buffer_t, handle)); break;
    case dcl_stream: dcl_stream_free(POINTER_OF(dcl_stream_t, handle)); break;
    case dcl_tensor_dict: dcl_tensor_dict_free(POINTER_OF(dcl_tensor_dict_t, handle)); break;
    case dcl_work: dcl_work_free(POINTER_OF(dcl_work_t, handle)); break;
    default: break;
    }
}

static void free_world(void) {
    for (int type = 0; type < NB_TYPES; type++) {
        free_one(type, live[type]);
        freed[type] = live[type];
        live[type] = 0;
    }
    free_one(dcl_layer, loose_layer);
    freed[dcl_layer] = loose_layer;
}

static void renew_world(void) {
    free_world();
    make_world();
}

#endif
