/* Calls every function of the header with wrong arguments. The functions and their parameters are
 * in functions.inc, which the test generates from the header. The program's argument selects the
 * round. */
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
    /* An array of tensors, as an input. */
    TENSORS,
    /* Other memory that the function reads. */
    INPUT,
    /* Memory that the function writes. */
    OUTPUT,
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
    /* For a handle, its type. For a number, its bits; they are negative if it is signed. For
     * another pointer: ONE, ARRAY or CHARACTERS. */
    int detail;
};

struct function {
    const char *name;
    /* Calls the function. Pointers are passed as numbers. */
    uint64_t (*call)(const uint64_t *arguments);
    int returns_status;
    int nb_parameters;
    struct parameter parameters[MOST_PARAMETERS];
};

#include "functions.inc"

#define NB_FUNCTIONS ((int)LENGTH_OF(FUNCTIONS))

/* -------------------------------------------------------------------------------------------------
 * Objects
 * ---------------------------------------------------------------------------------------------- */

/* One object of each type, for the next call. `layers` has a layer of each kind. */
static uint64_t live[NB_TYPES];
static uint64_t freed[NB_TYPES];

enum { COLLECTIVE, SHUFFLE, CAST, CONSTANT, LOOSE, NB_LAYERS };
static uint64_t layers[NB_LAYERS];

/* A tensor that a layer computes. The tensor in `live` is an input. */
static uint64_t computed;

static float memory[4][16];

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
    dcl_layer_t *reduce, *cast, *shuffle, *constant, *loose;
    dcl_dims_t one = vector(1);
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
    OK(dcl_network_add_shuffle(network, y, &shuffle));
    OK(dcl_layer_get_output(shuffle, 0, &y));
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
    dcl_generator_t *generator;
    dcl_environment_config_t config = alone();
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
    OK(dcl_all_reduce(communicator, memory[0], memory[3], 1, DCL_DATA_TYPE_FLOAT, DCL_REDUCE_SUM, NULL, &work));

    OK(dcl_generator_new(1, 2, &generator));

    live[dcl_network] = NUMBER_OF(network);
    live[dcl_tensor] = NUMBER_OF(x);
    live[dcl_layer] = NUMBER_OF(reduce);
    live[dcl_engine] = NUMBER_OF(engine);
    live[dcl_execution_context] = NUMBER_OF(context);
    live[dcl_bound_layer] = NUMBER_OF(bound);
    live[dcl_environment] = NUMBER_OF(environment);
    live[dcl_generator] = NUMBER_OF(generator);
    live[dcl_communicator] = NUMBER_OF(communicator);
    live[dcl_buffer] = NUMBER_OF(buffer);
    live[dcl_stream] = NUMBER_OF(stream);
    live[dcl_work] = NUMBER_OF(work);
    layers[COLLECTIVE] = NUMBER_OF(reduce);
    layers[SHUFFLE] = NUMBER_OF(shuffle);
    layers[CAST] = NUMBER_OF(cast);
    layers[CONSTANT] = NUMBER_OF(constant);
    layers[LOOSE] = NUMBER_OF(loose);
}

/* Frees an object. It may have been freed before, or belong to another object. */
static void free_one(int type, uint64_t handle) {
    switch (type) {
    case dcl_network: dcl_network_free(POINTER_OF(dcl_network_t, handle)); break;
    case dcl_layer: dcl_layer_free(POINTER_OF(dcl_layer_t, handle)); break;
    case dcl_engine: dcl_engine_free(POINTER_OF(dcl_engine_t, handle)); break;
    case dcl_execution_context: dcl_execution_context_free(POINTER_OF(dcl_execution_context_t, handle)); break;
    case dcl_bound_layer: dcl_bound_layer_free(POINTER_OF(dcl_bound_layer_t, handle)); break;
    case dcl_generator: dcl_generator_free(POINTER_OF(dcl_generator_t, handle)); break;
    case dcl_environment: dcl_environment_free(POINTER_OF(dcl_environment_t, handle)); break;
    case dcl_communicator: dcl_communicator_free(POINTER_OF(dcl_communicator_t, handle)); break;
    case dcl_buffer: dcl_buffer_free(POINTER_OF(dcl_buffer_t, handle)); break;
    case dcl_stream: dcl_stream_free(POINTER_OF(dcl_stream_t, handle)); break;
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
    free_one(dcl_layer, layers[LOOSE]);
    freed[dcl_layer] = layers[LOOSE];
}

static void renew_world(void) {
    free_world();
    make_world();
}

/* -------------------------------------------------------------------------------------------------
 * Arguments
 * ---------------------------------------------------------------------------------------------- */

/* Memory for each parameter. Outputs are filled with UNTOUCHED before each call. */
#define AREA 16384
#define UNTOUCHED 0xa5
static _Alignas(64) unsigned char areas[MOST_PARAMETERS][AREA];

static int named(const struct parameter *parameter, const char *name) { return strcmp(parameter->name, name) == 0; }

static int has(const char *text, const char *part) { return strstr(text, part) != NULL; }

static int is_free(const struct function *function) {
    size_t length = strlen(function->name);
    return length > 5 && strcmp(function->name + length - 5, "_free") == 0;
}

/* A layer of the kind that a function requires. */
static uint64_t layer_for(const struct function *function) {
    if (has(function->name, "dcl_shuffle")) {
        return layers[SHUFFLE];
    }
    if (has(function->name, "dcl_cast")) {
        return layers[CAST];
    }
    if (has(function->name, "dcl_constant")) {
        return layers[CONSTANT];
    }
    return is_free(function) ? layers[LOOSE] : layers[COLLECTIVE];
}

static uint64_t good_number(const struct parameter *parameter) {
    if (named(parameter, "timeout_ms")) {
        return 1000;
    }
    if (named(parameter, "nb_rank")) {
        return 1;
    }
    if (named(parameter, "status")) {
        return DCL_STATUS_SYSTEM;
    }
    if (named(parameter, "most_verbose")) {
        return DCL_SEVERITY_WARNING;
    }
    return named(parameter, "device") || (named(parameter, "root") && parameter->detail == -64) ? UINT64_MAX : 0;
}

static uint64_t good_length(const struct parameter *parameter) {
    if (named(parameter, "capacity")) {
        return AREA / 8 - 1;
    }
    if (named(parameter, "struct_size")) {
        /* The length of the longest structure. Longer ones are those of newer headers. */
        return sizeof(dcl_environment_config_t);
    }
    return named(parameter, "byte_len") ? 4 : 1;
}

static dcl_status_t same_types(void *user_data, const dcl_data_type_t *inputs, int32_t nb_inputs,
                               dcl_data_type_t *outputs, int32_t nb_outputs) {
    (void)user_data;
    CHECK(nb_outputs == 1);
    outputs[0] = nb_inputs > 0 ? inputs[0] : DCL_DATA_TYPE_FLOAT;
    return DCL_STATUS_SUCCESS;
}

static dcl_status_t same_shapes(void *user_data, const dcl_dims_t *inputs, int32_t nb_inputs, dcl_dims_t *outputs,
                                int32_t nb_outputs) {
    (void)user_data;
    CHECK(nb_outputs == 1);
    outputs[0] = nb_inputs > 0 ? inputs[0] : vector(1);
    return DCL_STATUS_SUCCESS;
}

static dcl_status_t run_nothing(void *user_data, const dcl_plugin_tensor_t *inputs, int32_t nb_inputs,
                                const dcl_plugin_tensor_t *outputs, int32_t nb_outputs, void *cuda_stream) {
    (void)user_data, (void)inputs, (void)nb_inputs, (void)outputs, (void)nb_outputs, (void)cuda_stream;
    return DCL_STATUS_SUCCESS;
}

static dcl_plugin_t a_plugin(void) {
    dcl_plugin_t plugin = DCL_PLUGIN_INIT;
    plugin.type_name = "identity";
    plugin.get_output_data_types = same_types;
    plugin.get_output_shapes = same_shapes;
    plugin.enqueue = run_nothing;
    return plugin;
}

static dcl_status_t create_plugin(void *user_data, const void *bytes, size_t byte_len, dcl_plugin_t *plugin) {
    (void)user_data, (void)bytes, (void)byte_len;
    *plugin = a_plugin();
    return DCL_STATUS_SUCCESS;
}

/* An argument that is valid by itself. */
static uint64_t good(const struct function *function, int i) {
    const struct parameter *parameter = &function->parameters[i];
    unsigned char *area = areas[i];
    switch (parameter->kind) {
    case HANDLE:
        if (parameter->detail == dcl_tensor && named(parameter, "tensor")) {
            return computed;
        }
        return parameter->detail == dcl_layer ? layer_for(function) : live[parameter->detail];
    case TEXT:
        if (named(parameter, "name") && has(function->name, "get_group")) {
            return NUMBER_OF("default");
        }
        return NUMBER_OF(named(parameter, "backend") ? "host" : named(parameter, "value") ? "rank" : "x");
    case NAMES: ((const char **)(void *)area)[0] = ((const char **)(void *)area)[1] = "x"; break;
    case DIMS: ((dcl_dims_t *)(void *)area)[0] = ((dcl_dims_t *)(void *)area)[1] = vector(1); break;
    case OPTIONS: {
        dcl_execution_context_options_t options = DCL_EXECUTION_CONTEXT_OPTIONS_INIT;
        *(dcl_execution_context_options_t *)(void *)area = options;
        break;
    }
    case CONFIG: *(dcl_environment_config_t *)(void *)area = alone(); break;
    case BOOTSTRAP_CONFIG: {
        static char job[32];
        snprintf(job, sizeof job, "c_abi %ld", (long)getpid());
        dcl_bootstrap_config_t config = DCL_BOOTSTRAP_CONFIG_INIT;
        config.job = job;
        config.timeout_ms = 1000;
        *(dcl_bootstrap_config_t *)(void *)area = config;
        break;
    }
    case PLUGIN: *(dcl_plugin_t *)(void *)area = a_plugin(); break;
    case CREATORS: {
        dcl_plugin_creator_t creator = DCL_PLUGIN_CREATOR_INIT;
        creator.type_name = "identity";
        creator.create = create_plugin;
        ((dcl_plugin_creator_t *)(void *)area)[0] = ((dcl_plugin_creator_t *)(void *)area)[1] = creator;
        break;
    }
    case TENSORS: ((uint64_t *)(void *)area)[0] = ((uint64_t *)(void *)area)[1] = computed; break;
    case FOREIGN:
        if (!named(parameter, "callback")) {
            return 0;
        }
        return has(function->name, "interrupt") ? NUMBER_OF(go_on) : NUMBER_OF(take_line);
    case LENGTH: return good_length(parameter);
    case NUMBER: return good_number(parameter);
    case INPUT:
        memset(area, 0, 64);
        if (has(function->name, "_list") && (named(parameter, "inputs") || named(parameter, "outputs"))) {
            *(void **)(void *)area = memory[3];
        }
        break;
    case HANDLES:
    case OUTPUT: break;
    }
    return NUMBER_OF(area);
}

static void good_arguments(const struct function *function, uint64_t *arguments) {
    for (int i = 0; i < function->nb_parameters; i++) {
        arguments[i] = good(function, i);
    }
}

static int is_output(const struct parameter *parameter) {
    return parameter->kind == OUTPUT || parameter->kind == HANDLES;
}

static int is_pointer(const struct parameter *parameter) {
    return parameter->kind != LENGTH && parameter->kind != NUMBER;
}

static void complain(const struct function *function, const uint64_t *arguments, uint64_t result, const char *what) {
    fprintf(stderr, "%s(", function->name);
    for (int i = 0; i < function->nb_parameters; i++) {
        fprintf(stderr, "%s%s = %#llx", i ? ", " : "", function->parameters[i].name, (unsigned long long)arguments[i]);
    }
    fprintf(stderr, ") is %s: %s; the last message is: %s\n",
            function->returns_status ? dcl_status_name((dcl_status_t)result) : "not a status", what, last_message());
    fflush(stderr);
    _Exit(1);
}

static long nb_calls;

/* Calls a function, and checks what holds for every call. */
static dcl_status_t attempt(const struct function *function, const uint64_t *arguments) {
    nb_calls++;
    for (int i = 0; i < function->nb_parameters; i++) {
        if (is_output(&function->parameters[i])) {
            memset(areas[i], UNTOUCHED, AREA);
        }
    }
    if (has(function->name, "environment_initialize")) {
        free_one(dcl_environment, live[dcl_environment]);
    }
    uint64_t result = function->call(arguments);
    if (!function->returns_status) {
        return DCL_STATUS_SUCCESS;
    }
    dcl_status_t status = (dcl_status_t)result;
    if (status == DCL_STATUS_SUCCESS && function->nb_parameters > 0 &&
        named(&function->parameters[function->nb_parameters - 1], "work")) {
        /* The work continues, and the next call uses the same output. */
        OK(dcl_stream_synchronize(POINTER_OF(dcl_stream_t, live[dcl_stream])));
    }
    if (status < DCL_STATUS_SUCCESS || status == DCL_STATUS_INTERNAL || status > DCL_STATUS_NOT_A_MEMBER) {
        complain(function, arguments, result, "not a status for this");
    }
    if (status != DCL_STATUS_SUCCESS && dcl_last_error_message(NULL, 0) == 0) {
        complain(function, arguments, result, "there is no message");
    }
    static unsigned char untouched[AREA];
    memset(untouched, UNTOUCHED, AREA);
    for (int i = 0; i < function->nb_parameters; i++) {
        const struct parameter *parameter = &function->parameters[i];
        if (!is_output(parameter) || arguments[i] != NUMBER_OF(areas[i])) {
            continue;
        }
        int may_be_written =
            status == DCL_STATUS_SUCCESS || (status == DCL_STATUS_BUFFER_TOO_SMALL && named(parameter, "length"));
        if (!may_be_written && memcmp(areas[i], untouched, AREA) != 0) {
            complain(function, arguments, result, "it failed and wrote an output");
        }
        if (parameter->kind == HANDLES) {
            uint64_t none;
            memset(&none, UNTOUCHED, sizeof none);
            for (uint64_t *handle = (uint64_t *)(void *)areas[i]; *handle != none; handle++) {
                /* The function may return a layer or tensor that the network has already. */
                int is_part = parameter->detail == dcl_layer || parameter->detail == dcl_tensor;
                if (!has(function->name, "_get_") || !is_part) {
                    free_one(parameter->detail, *handle);
                }
            }
        }
    }
    if (status == DCL_STATUS_SUCCESS &&
        (is_free(function) || has(function->name, "_finalize") || has(function->name, "_abort") ||
         has(function->name, "environment_initialize"))) {
        renew_world();
    }
    return status;
}

/* -------------------------------------------------------------------------------------------------
 * Rounds: each tries one function
 * ---------------------------------------------------------------------------------------------- */

/* Whether this handle may be NULL: for _free, and for the stream that is the calling thread. */
static int takes_null(const struct function *function, int i) {
    int is_stream = function->parameters[i].detail == dcl_stream;
    return is_free(function) || (is_stream && (i > 0 || has(function->name, "synchronize")));
}

/* All arguments are 0. */
static void all_zero(const struct function *function) {
    uint64_t arguments[MOST_PARAMETERS] = {0};
    dcl_status_t status = attempt(function, arguments);
    if (function->nb_parameters > 0 && function->parameters[0].kind == HANDLE) {
        dcl_status_t wanted = takes_null(function, 0) ? DCL_STATUS_SUCCESS : DCL_STATUS_INVALID_HANDLE;
        if (status != wanted) {
            complain(function, arguments, (uint64_t)status, dcl_status_name(wanted));
        }
    }
}

static uint64_t random_number(void) {
    static uint64_t state = 1;
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A handle is wrong. */
static void bad_handles(const struct function *function) {
    static uint64_t in_data;
    uint64_t on_stack;
    void *on_heap = malloc(64);
    for (int i = 0; i < function->nb_parameters; i++) {
        const struct parameter *parameter = &function->parameters[i];
        if (parameter->kind != HANDLE) {
            continue;
        }
        uint64_t bad[64] = {0, 1, 2, 8, 0x1000, 0xdeadbeefdeadbeefu,
                            UINT64_MAX, (uint64_t)INT64_MIN, INT64_MAX, UINT32_MAX};
        int nb_bad = 10;
        bad[nb_bad++] = NUMBER_OF(&in_data);
        bad[nb_bad++] = NUMBER_OF(&on_stack);
        bad[nb_bad++] = NUMBER_OF(on_heap);
        bad[nb_bad++] = NUMBER_OF(function->call);
        bad[nb_bad++] = freed[parameter->detail];
        bad[nb_bad++] = good(function, i) ^ (uint64_t)1 << 63;
        for (int n = 0; n < 16; n++) {
            bad[nb_bad++] = random_number();
        }
        for (int type = 0; type < NB_TYPES; type++) {
            if (type != parameter->detail) {
                bad[nb_bad++] = live[type];
            }
        }
        for (int n = 0; n < nb_bad; n++) {
            uint64_t arguments[MOST_PARAMETERS];
            good_arguments(function, arguments);
            arguments[i] = bad[n];
            int legal = bad[n] == 0 && takes_null(function, i);
            dcl_status_t status = attempt(function, arguments);
            if (!legal && status != DCL_STATUS_INVALID_HANDLE) {
                complain(function, arguments, (uint64_t)status, "a handle is bad");
            }
            if (is_free(function) && legal && status != DCL_STATUS_SUCCESS) {
                complain(function, arguments, (uint64_t)status, "free(NULL) is a success");
            }
        }
    }
    free(on_heap);
}

/* Pointers that may be NULL. (If `config` is NULL, a launcher is needed, and there is none.) */
static int is_optional(const struct function *function, const struct parameter *parameter) {
    static const char *const names[] = {"length",    "buffer",         "work",        "stream",        "options",
                                        "backend",   "element_offset", "reads_input", "writes_output", "callback",
                                        "user_data", "nccl_comm",      "cuda_stream"};
    static const char *const pairs[][2] = {
        {"dcl_constant_get_dimensions", "data_type"},
        {"dcl_constant_get_dimensions", "dims"},
        {"dcl_dist_collective_get_groups", "groups"},
        {"dcl_communicator_get_global_ranks", "ranks"},
        {"dcl_environment_get_group_ranks", "ranks"},
        {"dcl_shuffle_set_reshape_dimensions", "dims"},
        {"dcl_execution_context_set_tensor_address", "address"},
    };
    for (size_t i = 0; i < LENGTH_OF(names); i++) {
        if (named(parameter, names[i]) && (parameter->kind != HANDLE || parameter->detail == dcl_stream) &&
            !has(function->name, "dcl_buffer_") && !has(function->name, "dcl_stream_") &&
            !has(function->name, "dcl_work_") && !has(function->name, "allocate") && !has(function->name, "_init") &&
            !has(function->name, "get_stream")) {
            return 1;
        }
    }
    for (size_t i = 0; i < LENGTH_OF(pairs); i++) {
        if (strcmp(function->name, pairs[i][0]) == 0 && named(parameter, pairs[i][1])) {
            return 1;
        }
    }
    return 0;
}

/* A pointer is NULL, and all other arguments are valid. */
static void no_pointer(const struct function *function) {
    uint64_t arguments[MOST_PARAMETERS];
    good_arguments(function, arguments);
    dcl_status_t without = attempt(function, arguments);
    int needs_more = has(function->name, "nccl") || has(function->name, "cuda") || has(function->name, "deserialize");
    if (without != DCL_STATUS_SUCCESS && !needs_more) {
        complain(function, arguments, (uint64_t)without, "nothing is wrong here");
    }
    for (int i = 0; i < function->nb_parameters; i++) {
        const struct parameter *parameter = &function->parameters[i];
        if (!is_pointer(parameter) || parameter->kind == HANDLE) {
            continue;
        }
        good_arguments(function, arguments);
        arguments[i] = 0;
        dcl_status_t status = attempt(function, arguments);
        if (without != DCL_STATUS_SUCCESS || parameter->kind == FOREIGN || !function->returns_status) {
            continue;
        }
        if (is_optional(function, parameter) ? status != DCL_STATUS_SUCCESS : status == DCL_STATUS_SUCCESS) {
            complain(function, arguments, (uint64_t)status,
                     is_optional(function, parameter) ? "NULL is allowed" : "NULL is an error");
        }
        if (status != DCL_STATUS_SUCCESS && status != DCL_STATUS_INVALID_ARGUMENT &&
            status != DCL_STATUS_INVALID_BUFFER) {
            complain(function, arguments, (uint64_t)status, "a pointer is NULL");
        }
    }
}

/* A number is out of range. */
static void bad_numbers(const struct function *function) {
    static const int64_t numbers[] = {-1, 0, 1,  2,  3,  4,   5,   6,         7,         8,         9,        10,
                                      11, 12, 13, 99, 100, 101, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX};
    static const int64_t lengths[] = {0, 1, 2, -1, INT32_MIN, INT64_MIN};
    for (int i = 0; i < function->nb_parameters; i++) {
        const struct parameter *parameter = &function->parameters[i];
        int is_length = parameter->kind == LENGTH;
        if (!is_length && parameter->kind != NUMBER) {
            continue;
        }
        const int64_t *tried = is_length ? lengths : numbers;
        size_t nb_tried = is_length ? LENGTH_OF(lengths) : LENGTH_OF(numbers);
        for (size_t n = 0; n < nb_tried; n++) {
            /* A negative length, if it is signed: as an unsigned one it would be larger than
             * memory. 32-bit lengths end here. */
            int fits = parameter->detail == -64 || (tried[n] >= INT32_MIN && tried[n] <= INT32_MAX);
            if (is_length && (!fits || (parameter->detail > 0 && tried[n] < 0))) {
                continue;
            }
            uint64_t arguments[MOST_PARAMETERS];
            good_arguments(function, arguments);
            arguments[i] = (uint64_t)tried[n];
            dcl_status_t status = attempt(function, arguments);
            if (is_length && tried[n] < 0 && status == DCL_STATUS_SUCCESS && function->returns_status) {
                complain(function, arguments, (uint64_t)status, "a length below 0");
            }
        }
    }
}

/* A length is huge, and the array is NULL. */
static void huge_lengths(const struct function *function) {
    static const uint64_t lengths[] = {UINT64_MAX,           (uint64_t)INT64_MAX, (uint64_t)INT64_MAX + 1,
                                       (uint64_t)1 << 62,    (uint64_t)1 << 61,   UINT64_MAX / 8 + 1,
                                       (uint64_t)INT32_MAX,  UINT64_MAX - 4095};
    for (int i = 0; i < function->nb_parameters; i++) {
        if (function->parameters[i].kind != LENGTH) {
            continue;
        }
        for (size_t n = 0; n < LENGTH_OF(lengths); n++) {
            uint64_t arguments[MOST_PARAMETERS];
            good_arguments(function, arguments);
            for (int j = 0; j < function->nb_parameters; j++) {
                const struct parameter *parameter = &function->parameters[j];
                if (parameter->kind != HANDLE && is_pointer(parameter) && parameter->detail != ONE) {
                    arguments[j] = 0;
                }
            }
            /* A machine may have that much memory. */
            if (named(&function->parameters[i], "byte_len") && lengths[n] == INT32_MAX) {
                continue;
            }
            arguments[i] = lengths[n];
            attempt(function, arguments);
        }
    }
}

static int find(const struct function *function, const char *name) {
    for (int i = 0; i < function->nb_parameters; i++) {
        if (named(&function->parameters[i], name)) {
            return i;
        }
    }
    return -1;
}

/* Copying out follows the rules of (buffer, capacity, length). */
static void copied_out(const struct function *function) {
    int buffer = find(function, "buffer"), capacity = find(function, "capacity"), length = find(function, "length");
    if (capacity < 0 || length < 0) {
        return;
    }
    /* The capacity counts the elements. */
    size_t unit = buffer >= 0 ? 1 : sizeof(int64_t);
    buffer = buffer >= 0 ? buffer : find(function, "ranks");
    CHECK(buffer >= 0);
    uint64_t arguments[MOST_PARAMETERS];
    good_arguments(function, arguments);
    size_t is = SIZE_MAX, got = SIZE_MAX;
    arguments[length] = NUMBER_OF(&is);
    arguments[buffer] = 0;
    arguments[capacity] = 0;
    dcl_status_t status = attempt(function, arguments);
    if (status != DCL_STATUS_SUCCESS || is == SIZE_MAX) {
        complain(function, arguments, (uint64_t)status, "the length");
    }
    /* If the buffer is NULL, the capacity does not matter. */
    arguments[capacity] = UINT64_MAX;
    arguments[length] = NUMBER_OF(&got);
    status = attempt(function, arguments);
    if (status != DCL_STATUS_SUCCESS || got != is) {
        complain(function, arguments, (uint64_t)status, "the length, with a capacity");
    }
    int is_text = function->parameters[buffer].detail == CHARACTERS;
    size_t needed = is + (size_t)is_text;
    /* Memory of exactly the length, so that a tool finds a byte written after it. */
    unsigned char *exact = malloc(needed ? needed * unit : 1);
    memset(exact, UNTOUCHED, needed * unit);
    arguments[buffer] = NUMBER_OF(exact);
    for (size_t too_small = 0; too_small < needed; too_small += needed > 8 ? needed / 8 : 1) {
        arguments[capacity] = too_small;
        got = SIZE_MAX;
        status = attempt(function, arguments);
        if (status != DCL_STATUS_BUFFER_TOO_SMALL || got != is) {
            complain(function, arguments, (uint64_t)status, "the capacity is too small");
        }
    }
    arguments[capacity] = needed - 1;
    if (needed > 0 && attempt(function, arguments) != DCL_STATUS_BUFFER_TOO_SMALL) {
        complain(function, arguments, (uint64_t)status, "the capacity is too small by one");
    }
    for (size_t i = 0; i < needed * unit; i++) {
        if (exact[i] != UNTOUCHED) {
            complain(function, arguments, (uint64_t)status, "the buffer was written");
        }
    }
    arguments[capacity] = needed;
    got = SIZE_MAX;
    status = attempt(function, arguments);
    if (status != DCL_STATUS_SUCCESS || got != is || (is_text && strlen((char *)exact) != is)) {
        complain(function, arguments, (uint64_t)status, "the capacity is enough");
    }
    /* Without a length, and with a larger capacity than needed. */
    unsigned char *larger = malloc((needed + 16) * unit);
    memset(larger, UNTOUCHED, (needed + 16) * unit);
    arguments[buffer] = NUMBER_OF(larger);
    arguments[capacity] = needed + 16;
    arguments[length] = 0;
    status = attempt(function, arguments);
    if (status != DCL_STATUS_SUCCESS || memcmp(larger, exact, needed * unit) != 0 ||
        larger[needed * unit] != UNTOUCHED) {
        complain(function, arguments, (uint64_t)status, "more room than is needed");
    }
    free(larger);
    free(exact);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*round)(const struct function *);
    } rounds[] = {{"zeros", all_zero},         {"handles", bad_handles},   {"pointers", no_pointer},
                  {"numbers", bad_numbers},    {"lengths", huge_lengths},  {"buffers", copied_out}};
    CHECK(argc == 2);
    make_world();
    int found = 0;
    for (size_t i = 0; i < LENGTH_OF(rounds); i++) {
        if (strcmp(rounds[i].name, argv[1]) != 0) {
            continue;
        }
        found = 1;
        for (int f = 0; f < NB_FUNCTIONS; f++) {
            renew_world();
            rounds[i].round(&FUNCTIONS[f]);
        }
    }
    CHECK(found);
    free_world();
    OK(dcl_set_log_callback(NULL, NULL, DCL_SEVERITY_ERROR));
    OK(dcl_set_interrupt_callback(NULL, NULL));
    printf("%d functions, %ld calls\n", NB_FUNCTIONS, nb_calls);
    return 0;
}
