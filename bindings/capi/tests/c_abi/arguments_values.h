/* Arguments that are valid by themselves, and one call of a function with the checks that hold for
 * every call. */
#ifndef ARGUMENTS_VALUES_H
#define ARGUMENTS_VALUES_H

#include "arguments_world.h"

/* Memory for each parameter. Outputs are filled with UNTOUCHED before each call. */
#define AREA 32768
#define UNTOUCHED 0xa5
static _Alignas(64) unsigned char areas[MOST_PARAMETERS][AREA];

static int named(const struct parameter *parameter, const char *name) { return strcmp(parameter->name, name) == 0; }

static int has(const char *text, const char *part) { return strstr(text, part) != NULL; }

static int is_free(const struct function *function) {
    size_t length = strlen(function->name);
    return length > 5 && strcmp(function->name + length - 5, "_free") == 0;
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
        return sizeof(dcl_dict_tensor_t);
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

static dcl_status_t run_nothing(void *user_data, const dcl_plugin_tensor_t *const *inputs, int32_t nb_inputs,
                                const dcl_plugin_tensor_t *const *outputs, int32_t nb_outputs, void *cuda_stream) {
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
        return parameter->detail == dcl_layer && is_free(function) ? loose_layer : live[parameter->detail];
    case TEXT:
        if (named(parameter, "name") && has(function->name, "get_group")) {
            return NUMBER_OF("default");
        }
        if (named(parameter, "path")) {
            return NUMBER_OF(path);
        }
        return NUMBER_OF(named(parameter, "backend") ? "host" : "x");
    case NAMES: ((const char **)(void *)area)[0] = ((const char **)(void *)area)[1] = "x"; break;
    case DIMS:
        /* The only permutation of one dimension is 0. */
        ((dcl_dims_t *)(void *)area)[0] = vector(has(parameter->name, "transpose") ? 0 : 1);
        ((dcl_dims_t *)(void *)area)[1] = vector(1);
        break;
    case OPTIONS: {
        dcl_execution_context_options_t options = DCL_EXECUTION_CONTEXT_OPTIONS_INIT;
        *(dcl_execution_context_options_t *)(void *)area = options;
        break;
    }
    case BROADCAST_OPTIONS: {
        dcl_broadcast_options_t options = DCL_BROADCAST_OPTIONS_INIT;
        *(dcl_broadcast_options_t *)(void *)area = options;
        break;
    }
    case COMMUNICATOR_OPTIONS: {
        dcl_communicator_options_t options = DCL_COMMUNICATOR_OPTIONS_INIT;
        *(dcl_communicator_options_t *)(void *)area = options;
        break;
    }
    case DICT_TENSOR: {
        dcl_dict_tensor_t tensor = DCL_DICT_TENSOR_INIT;
        *(dcl_dict_tensor_t *)(void *)area = tensor;
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
    case MESSAGES: {
        /* Sends of this rank to itself. */
        dcl_message_t message = DCL_MESSAGE_INIT;
        message.is_send = 1;
        message.buffer = memory[0];
        message.count = 1;
        ((dcl_message_t *)(void *)area)[0] = ((dcl_message_t *)(void *)area)[1] = message;
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
        if (named(parameter, "input_counts") || named(parameter, "output_counts")) {
            *(size_t *)(void *)area = 1;
        }
        break;
    case HANDLES:
    case STRUCTURE:
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
    return parameter->kind == OUTPUT || parameter->kind == STRUCTURE || parameter->kind == HANDLES;
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

static int find(const struct function *function, const char *name) {
    for (int i = 0; i < function->nb_parameters; i++) {
        if (named(&function->parameters[i], name)) {
            return i;
        }
    }
    return -1;
}

static int is_message(const struct function *function) {
    return find(function, "tag") >= 0 || has(function->name, "dcl_batch");
}

/* Sends the message that a receive is about to get from this rank itself. A wrong tag has none. */
static void send_for(const struct function *function, const uint64_t *arguments) {
    int src = find(function, "src");
    if (src < 0) {
        return;
    }
    int32_t tag = (int32_t)arguments[find(function, "tag")];
    if (tag >= 0 && tag <= DCL_MAX_TAG) {
        OK(dcl_send(POINTER_OF(dcl_communicator_t, live[dcl_communicator]), memory[0], 1, DCL_DATA_TYPE_FLOAT, 0, tag));
    }
}

static long nb_calls;

/* Fills memory with what it has before a call. */
static void prepare(const struct parameter *parameter, unsigned char *area) {
    memset(area, UNTOUCHED, AREA);
    if (parameter->kind == STRUCTURE) {
        *(size_t *)(void *)area = (size_t)parameter->detail;
    }
}

/* Calls a function, and checks what holds for every call. */
static dcl_status_t attempt(const struct function *function, const uint64_t *arguments) {
    nb_calls++;
    for (int i = 0; i < function->nb_parameters; i++) {
        if (is_output(&function->parameters[i])) {
            prepare(&function->parameters[i], areas[i]);
        }
    }
    if (has(function->name, "environment_initialize")) {
        free_one(dcl_environment, live[dcl_environment]);
    }
    send_for(function, arguments);
    uint64_t result = function->call(arguments);
    if (!function->returns_status) {
        return DCL_STATUS_SUCCESS;
    }
    dcl_status_t status = (dcl_status_t)result;
    int has_ended_well = status == DCL_STATUS_SUCCESS;
    if (status == DCL_STATUS_SUCCESS && function->nb_parameters > 0 &&
        named(&function->parameters[function->nb_parameters - 1], "work")) {
        /* The work continues, and the next call uses the same memory. */
        OK(dcl_stream_synchronize(POINTER_OF(dcl_stream_t, live[dcl_stream])));
        uint64_t *work = (uint64_t *)(void *)areas[function->nb_parameters - 1];
        if (arguments[function->nb_parameters - 1] == NUMBER_OF(work)) {
            has_ended_well = dcl_work_wait(POINTER_OF(dcl_work_t, *work)) == DCL_STATUS_SUCCESS;
        }
    }
    if (status < DCL_STATUS_SUCCESS || status == DCL_STATUS_INTERNAL || status > DCL_STATUS_RUN_REFUSED) {
        complain(function, arguments, result, "not a status for this");
    }
    if (status != DCL_STATUS_SUCCESS && dcl_last_error_message(NULL, 0) == 0) {
        complain(function, arguments, result, "there is no message");
    }
    static _Alignas(64) unsigned char untouched[AREA];
    for (int i = 0; i < function->nb_parameters; i++) {
        const struct parameter *parameter = &function->parameters[i];
        if (!is_output(parameter) || arguments[i] != NUMBER_OF(areas[i])) {
            continue;
        }
        int may_be_written =
            status == DCL_STATUS_SUCCESS || (status == DCL_STATUS_BUFFER_TOO_SMALL && named(parameter, "length"));
        prepare(parameter, untouched);
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
    int is_receive = find(function, "src") >= 0;
    if (is_message(function) && (!is_receive || !has_ended_well)) {
        /* A message may be on its way, or have ended the communicator. */
        renew_world();
    }
    int has_ended_one = is_free(function) || has(function->name, "_finalize") || has(function->name, "_abort") ||
                        has(function->name, "_remove") || has(function->name, "set_metadata");
    if (has(function->name, "environment_initialize") || (status == DCL_STATUS_SUCCESS && has_ended_one)) {
        renew_world();
    }
    return status;
}

#endif
