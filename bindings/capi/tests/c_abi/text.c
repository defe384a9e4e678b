/* Text, names, messages, and structures with a size. */
#include "check.h"

static void the_version_is_the_header_s(void) {
    CHECK(dcl_version() == DCL_VERSION);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", DCL_VERSION_MAJOR, DCL_VERSION_MINOR, DCL_VERSION_PATCH);
    CHECK(strcmp(dcl_version_string(), version) == 0);
}

static void numbers_have_names(void) {
    CHECK(strcmp(dcl_status_name(23), "unknown status") == 0);
    CHECK(strcmp(dcl_status_name(-1), "unknown status") == 0);
    static const char *const statuses[] = {"DCL_STATUS_SUCCESS",        "DCL_STATUS_INVALID_ARGUMENT",
                                           "DCL_STATUS_INVALID_HANDLE", "DCL_STATUS_INVALID_NETWORK",
                                           "DCL_STATUS_INVALID_PLAN",   "DCL_STATUS_INVALID_SHAPE",
                                           "DCL_STATUS_INVALID_BUFFER", "DCL_STATUS_INVALID_COMMUNICATOR",
                                           "DCL_STATUS_NOT_READY",      "DCL_STATUS_UNSUPPORTED",
                                           "DCL_STATUS_BUSY",           "DCL_STATUS_BUFFER_TOO_SMALL",
                                           "DCL_STATUS_DISAGREEMENT",   "DCL_STATUS_DEADLINE_EXCEEDED",
                                           "DCL_STATUS_PEER_LOST",      "DCL_STATUS_ABORTED",
                                           "DCL_STATUS_PLUGIN",         "DCL_STATUS_SYSTEM",
                                           "DCL_STATUS_INTERNAL",       "DCL_STATUS_INTERRUPTED",
                                           "DCL_STATUS_PENDING",
                                           "DCL_STATUS_NOT_A_MEMBER",   "DCL_STATUS_RUN_REFUSED"};
    for (int32_t status = 0; status < (int32_t)LENGTH_OF(statuses); status++) {
        CHECK(strcmp(dcl_status_name(status), statuses[status]) == 0);
    }
    static const char *const types[] = {"float32", "float16",     "int8",     "int32", "bool",
                                        "uint8",   "float8_e4m3", "bfloat16", "int64"};
    for (int32_t type = 0; type < (int32_t)LENGTH_OF(types); type++) {
        CHECK(strcmp(dcl_data_type_name(type), types[type]) == 0);
    }
    CHECK(strcmp(dcl_data_type_name(DCL_DATA_TYPE_FP8_E5M2), "float8_e5m2") == 0);
    static const char *const operations[] = {"all_reduce",     "all_gather", "broadcast", "reduce",
                                             "reduce_scatter", "all_to_all", "gather",    "scatter"};
    for (int32_t operation = 0; operation < (int32_t)LENGTH_OF(operations); operation++) {
        CHECK(strcmp(dcl_collective_operation_name(operation), operations[operation]) == 0);
    }
    static const char *const reductions[] = {"sum", "prod", "max", "min", "avg", "none"};
    for (int32_t reduction = 0; reduction < (int32_t)LENGTH_OF(reductions); reduction++) {
        CHECK(strcmp(dcl_reduce_operation_name(reduction), reductions[reduction]) == 0);
    }
    static const size_t sizes[] = {4, 2, 1, 4, 1, 1, 1, 2, 8};
    for (int32_t type = 0; type < 9; type++) {
        CHECK(dcl_data_type_size(type) == sizes[type] && dcl_data_type_name(type) != NULL);
    }
    CHECK(dcl_data_type_size(DCL_DATA_TYPE_FP8_E5M2) == 1);
    CHECK(dcl_data_type_size(DCL_DATA_TYPE_FLOAT64) == 8 && dcl_data_type_size(DCL_DATA_TYPE_UINT32) == 4);
    CHECK(strcmp(dcl_data_type_name(DCL_DATA_TYPE_UINT64), "uint64") == 0);
    static const int32_t no_types[] = {INT32_MIN, -1, 9, 10, 11, 12, 99, 104, INT32_MAX};
    for (size_t i = 0; i < LENGTH_OF(no_types); i++) {
        CHECK(dcl_data_type_name(no_types[i]) == NULL && dcl_data_type_size(no_types[i]) == 0);
        CHECK(no_types[i] == 9 || dcl_collective_operation_name(no_types[i]) == NULL);
        CHECK(dcl_reduce_operation_name(no_types[i]) == NULL);
    }
    CHECK(dcl_collective_operation_name(8) == NULL && dcl_reduce_operation_name(6) == NULL);
}

/* Whether text consists of whole UTF-8 characters. */
static int is_utf8(const char *text, size_t length) {
    for (size_t i = 0; i < length;) {
        unsigned char first = (unsigned char)text[i];
        size_t more = first < 0x80 ? 0 : first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : SIZE_MAX;
        if (more == SIZE_MAX || more >= length - i) {
            return 0;
        }
        for (size_t next = 1; next <= more; next++) {
            if (((unsigned char)text[i + next] & 0xc0) != 0x80) {
                return 0;
            }
        }
        i += more + 1;
    }
    return 1;
}

static void a_message_is_cut_at_a_character(void) {
    /* Characters of one to four bytes. */
    const char *name = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa4z";
    dcl_communicator_t *none = NULL;
    CHECK(dcl_communicator_new_in_process(name, 1, 1000, &none) != DCL_STATUS_SUCCESS);
    MESSAGE_HAS(name);
    CHECK(none == NULL);
    char whole[1024], text[1024];
    size_t length = dcl_last_error_message(whole, sizeof whole);
    CHECK(length == strlen(whole) && is_utf8(whole, length));
    CHECK(dcl_last_error_message(NULL, 0) == length);
    for (size_t capacity = 0; capacity <= length + 2; capacity++) {
        memset(text, 0x5a, sizeof text);
        CHECK(dcl_last_error_message(text, capacity) == length);
        size_t room = capacity == 0 ? 0 : capacity - 1;
        size_t got = capacity == 0 ? 0 : strlen(text);
        CHECK(got <= room && is_utf8(text, got) && memcmp(text, whole, got) == 0);
        /* All characters that fit are copied, and nothing is written after them. */
        CHECK(got == length || got + 4 > room);
        CHECK(text[capacity] == 0x5a);
    }
    /* A call that succeeds does not change it. */
    CHECK(dcl_version() == DCL_VERSION);
    OK(dcl_network_free(NULL));
    CHECK(dcl_last_error_message(text, sizeof text) == length && strcmp(text, whole) == 0);
    CHECK(dcl_last_error_rank() == -1);
}

static void *another_thread(void *nothing) {
    char text[8] = "before";
    CHECK(dcl_last_error_message(text, sizeof text) == 0 && text[0] == '\0');
    CHECK(dcl_last_error_rank() == -1);
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_engine_free((dcl_engine_t *)(uintptr_t)3));
    return nothing;
}

static void a_message_is_of_its_thread(void) {
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_free((dcl_network_t *)(uintptr_t)3));
    join(start(another_thread, NULL));
    MESSAGE_HAS("dcl_network_t");
}

static void text_is_utf8(void) {
    const char *bad[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"};
    dcl_network_t *network;
    dcl_tensor_t *x, *none = NULL;
    dcl_layer_t *layer;
    dcl_dims_t dims = vector(1);
    char text[64];
    size_t length;
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    OK(dcl_network_add_shuffle(network, x, NULL, NULL, NULL, &layer));
    for (size_t i = 0; i < LENGTH_OF(bad); i++) {
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_input(network, bad[i], DCL_DATA_TYPE_FLOAT, &dims, &none));
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_tensor_set_name(x, bad[i]));
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_set_name(layer, bad[i]));
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_layer_set_metadata(layer, bad[i]));
    }
    CHECK(none == NULL);
    OK(dcl_tensor_get_name(x, text, sizeof text, &length));
    CHECK(length == 1 && strcmp(text, "x") == 0);
    OK(dcl_layer_set_metadata(layer, "\xe2\x82\xac \"\\\n"));
    OK(dcl_layer_get_metadata(layer, text, sizeof text, &length));
    CHECK(length == 7 && strcmp(text, "\xe2\x82\xac \"\\\n") == 0);
    OK(dcl_layer_set_metadata(layer, ""));
    OK(dcl_layer_get_metadata(layer, text, 1, &length));
    CHECK(length == 0 && text[0] == '\0');
    FAILS(DCL_STATUS_BUFFER_TOO_SMALL, dcl_layer_get_metadata(layer, text, 0, &length));
    OK(dcl_network_free(network));
}

/* A structure of a later version: the fields of this version, and unknown ones. */
#define LARGER(type) \
    struct {         \
        type known;  \
        char tail[64]; \
    }

static void structures_have_a_size(void) {
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *layer;
    dcl_dims_t dims = vector(1);
    dcl_engine_t *engine;
    dcl_execution_context_t *context = NULL;
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_FLOAT, &dims, &x));
    OK(dcl_network_add_shuffle(network, x, NULL, NULL, NULL, &layer));
    OK(dcl_layer_get_output(layer, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_engine_build(network, &engine));
    OK(dcl_network_free(network));

    LARGER(dcl_execution_context_options_t) options = {DCL_EXECUTION_CONTEXT_OPTIONS_INIT, {0}};
    static const size_t wrong[] = {0, 1, sizeof(size_t), SIZE_MAX};
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        options.known.struct_size = wrong[i];
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_create_execution_context(engine, &options.known, &context));
        MESSAGE_HAS("struct_size");
        CHECK(context == NULL);
    }
    options.known.struct_size = sizeof options;
    OK(dcl_engine_create_execution_context(engine, &options.known, &context));
    OK(dcl_execution_context_free(context));
    context = NULL;
    options.tail[63] = 1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_create_execution_context(engine, &options.known, &context));
    options.tail[63] = 0;
    options.tail[0] = 1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_create_execution_context(engine, &options.known, &context));
    CHECK(context == NULL);
    OK(dcl_engine_free(engine));

    char job[64];
    snprintf(job, sizeof job, "c_abi text %ld", (long)getpid());
    LARGER(dcl_bootstrap_config_t) bootstrap = {DCL_BOOTSTRAP_CONFIG_INIT, {0}};
    bootstrap.known.job = job;
    bootstrap.known.timeout_ms = TIMEOUT_MS;
    dcl_communicator_t *communicator = NULL;
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        bootstrap.known.struct_size = wrong[i];
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_bootstrap(&bootstrap.known, &communicator));
    }
    bootstrap.known.struct_size = sizeof bootstrap;
    bootstrap.tail[1] = 1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_bootstrap(&bootstrap.known, &communicator));
    CHECK(communicator == NULL);
    bootstrap.tail[1] = 0;
    OK(dcl_communicator_bootstrap(&bootstrap.known, &communicator));
    OK(dcl_communicator_free(communicator));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_bootstrap(NULL, &communicator));

    LARGER(dcl_environment_config_t) config = {DCL_ENVIRONMENT_CONFIG_INIT, {0}};
    dcl_environment_t *environment = NULL;
    config.known.rank = 0;
    config.known.world_size = 1;
    config.known.host = "localhost";
    config.known.port = own_port();
    config.known.backend = "host";
    config.known.seed = UINT64_MAX;
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        config.known.struct_size = wrong[i];
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_environment_initialize(&config.known, &environment));
    }
    config.known.struct_size = sizeof config;
    config.tail[2] = 1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_environment_initialize(&config.known, &environment));
    CHECK(environment == NULL);
    config.tail[2] = 0;
    config.known.secret = "";
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_environment_initialize(&config.known, &environment));
    config.known.secret = NULL;
    OK(dcl_environment_initialize(&config.known, &environment));

    /* Structures that the library fills in: an unknown tail becomes 0. */
    LARGER(dcl_environment_info_t) info = {DCL_ENVIRONMENT_INFO_INIT, {0}};
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        info.known.struct_size = wrong[i];
        info.known.rank = -7;
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_environment_get_info(environment, &info.known));
        MESSAGE_HAS("struct_size");
        CHECK(info.known.struct_size == wrong[i] && info.known.rank == -7);
    }
    info.known.struct_size = sizeof info;
    info.tail[0] = info.tail[63] = 1;
    OK(dcl_environment_get_info(environment, &info.known));
    CHECK(info.known.struct_size == sizeof info && info.known.rank == 0 && info.known.seed == UINT64_MAX);
    CHECK(info.tail[0] == 0 && info.tail[63] == 0);
    info.known.struct_size = sizeof info.known;
    info.tail[0] = 1;
    OK(dcl_environment_get_info(environment, &info.known));
    CHECK(info.tail[0] == 1);
    OK(dcl_environment_finalize(environment));
}

int main(void) {
    the_version_is_the_header_s();
    a_message_is_cut_at_a_character();
    numbers_have_names();
    a_message_is_of_its_thread();
    text_is_utf8();
    structures_have_a_size();
    return 0;
}
