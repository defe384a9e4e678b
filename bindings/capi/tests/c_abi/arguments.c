/* Calls every function of the header with wrong arguments, in rounds. The functions and their
 * parameters are in functions.inc, which the test generates from the header. The program's argument
 * selects the round; each tries one function. */
#include "arguments_values.h"

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
                                        "user_data", "nccl_comm",      "mpi_comm",    "cuda_stream"};
    static const char *const pairs[][2] = {
        {"dcl_dist_collective_get_groups", "groups"},
        {"dcl_communicator_get_global_ranks", "ranks"},
        {"dcl_tensor_dict_set_metadata", "text"},
        {"dcl_recv", "source"},
        {"dcl_recv", "received_count"},
        {"dcl_work_get_received", "source"},
        {"dcl_work_get_received", "received_count"},
        {"dcl_network_add_shuffle", "first_transpose"},
        {"dcl_network_add_shuffle", "reshape"},
        {"dcl_network_add_shuffle", "second_transpose"},
        {"dcl_execution_context_set_tensor_address", "address"},
    };
    for (size_t i = 0; i < LENGTH_OF(names); i++) {
        if (named(parameter, names[i]) && (parameter->kind != HANDLE || parameter->detail == dcl_stream) &&
            !has(function->name, "dcl_buffer_") && !has(function->name, "dcl_stream_") &&
            !has(function->name, "dcl_work_") && !has(function->name, "allocate") && !has(function->name, "_init") &&
            !has(function->name, "get_stream") && !has(function->name, "communicator_get_options") &&
            !has(function->name, "with_options") && !is_message(function)) {
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
    int needs_more = has(function->name, "nccl") || has(function->name, "mpi") || has(function->name, "cuda") ||
                     has(function->name, "deserialize");
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
            if (f > 0 && FUNCTIONS[f - 1].is_exclusive) {
                /* It may have changed an object. */
                renew_world();
            }
            rounds[i].round(&FUNCTIONS[f]);
        }
    }
    CHECK(found);
    free_world();
    CHECK(unlink(path) == 0);
    OK(dcl_set_log_callback(NULL, NULL, DCL_SEVERITY_ERROR));
    OK(dcl_set_interrupt_callback(NULL, NULL));
    printf("%d functions, %ld calls\n", NB_FUNCTIONS, nb_calls);
    return 0;
}
