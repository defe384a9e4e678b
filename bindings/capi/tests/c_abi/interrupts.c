/* The interrupt callback ends waits, and waits with a timeout. Without the callback each wait would
 * last longer than the program's deadline. */
#include "check.h"

#define LONG_MS 600000

/* The user_data of the callback: how often a thread has called it, and at which call it ends the
 * wait. */
struct counter {
    int nb_calls;
    int last;
};

static int32_t count(void *user_data) {
    struct counter *counter = user_data;
    counter->nb_calls++;
    return counter->nb_calls == counter->last ? -1 : 0;
}

static void end_at_call(struct counter *counter, int last) {
    counter->nb_calls = 0;
    counter->last = last;
    OK(dcl_set_interrupt_callback(count, counter));
}

static void two_ranks(dcl_communicator_t **communicators) {
    OK(dcl_communicator_new_in_process("host", 2, LONG_MS, communicators));
}

static void free_two(dcl_communicator_t **communicators) {
    OK(dcl_communicator_free(communicators[0]));
    OK(dcl_communicator_free(communicators[1]));
}

static void a_blocking_call(void) {
    struct counter counter;
    dcl_communicator_t *ranks[2], *group = NULL;
    two_ranks(ranks);
    end_at_call(&counter, 2);
    FAILS(DCL_STATUS_INTERRUPTED, dcl_communicator_split(ranks[0], 0, 0, &group));
    CHECK(counter.nb_calls == 2 && group == NULL && dcl_last_error_rank() == 0);
    MESSAGE_HAS("interrupted by the program while it waited for rank 1");
    /* The communicator has ended, and the other rank learns why. */
    FAILS(DCL_STATUS_INTERRUPTED, dcl_communicator_barrier(ranks[0]));
    FAILS(DCL_STATUS_ABORTED, dcl_communicator_barrier(ranks[1]));
    MESSAGE_HAS("rank 0 ended the communicator");
    MESSAGE_HAS("interrupted by the program");
    free_two(ranks);
}

static void an_initialization(void) {
    struct counter counter;
    char job[64];
    snprintf(job, sizeof job, "c_abi interrupts %ld", (long)getpid());
    dcl_bootstrap_config_t config;
    dcl_communicator_t *communicator = NULL;
    OK(dcl_bootstrap_config_init(&config, sizeof config));
    config.job = job;
    config.world_size = 2;
    config.timeout_ms = LONG_MS;
    for (config.rank = 0; config.rank < 2; config.rank++) {
        end_at_call(&counter, 2);
        FAILS(DCL_STATUS_INTERRUPTED, dcl_communicator_bootstrap(&config, &communicator));
        CHECK(communicator == NULL);
    }
    dcl_environment_config_t environment_config;
    dcl_environment_t *environment = NULL;
    OK(dcl_environment_config_init(&environment_config, sizeof environment_config));
    environment_config.rank = 0;
    environment_config.world_size = 2;
    environment_config.host = "localhost";
    environment_config.port = own_port();
    environment_config.timeout_ms = LONG_MS;
    end_at_call(&counter, 2);
    FAILS(DCL_STATUS_INTERRUPTED, dcl_environment_initialize(&environment_config, &environment));
    MESSAGE_HAS("rank 1 of 2 had not come");
    CHECK(environment == NULL);
}

static dcl_work_t *sum(dcl_communicator_t *communicator, int32_t *number, dcl_stream_t *stream, int has_handle) {
    dcl_work_t *work = NULL;
    dcl_work_t **handle = has_handle ? &work : NULL;
    OK(dcl_all_reduce(communicator, number, number, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, handle));
    return work;
}

/* The work goes on after an interrupted wait, and after one whose time is over. */
static void waits_for_work(void) {
    struct counter counter;
    dcl_communicator_t *ranks[2];
    dcl_stream_t *stream;
    int32_t numbers[4] = {1, 2, 3, 4}, is_done;
    two_ranks(ranks);
    OK(dcl_stream_new_worker(&stream));
    dcl_work_t *work = sum(ranks[0], &numbers[0], stream, 1);
    sum(ranks[0], &numbers[1], stream, 0);

    OK(dcl_set_interrupt_callback(NULL, NULL));
    FAILS(DCL_STATUS_PENDING, dcl_work_wait_for(work, 0));
    FAILS(DCL_STATUS_PENDING, dcl_work_wait_for(work, 1));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_work_wait_for(work, -2));
    end_at_call(&counter, 2);
    FAILS(DCL_STATUS_INTERRUPTED, dcl_work_wait_for(work, LONG_MS));
    end_at_call(&counter, 2);
    FAILS(DCL_STATUS_INTERRUPTED, dcl_work_wait_for(work, DCL_TIMEOUT_DEFAULT));
    end_at_call(&counter, 2);
    FAILS(DCL_STATUS_INTERRUPTED, dcl_work_wait(work));
    end_at_call(&counter, 2);
    FAILS(DCL_STATUS_INTERRUPTED, dcl_stream_synchronize(stream));
    OK(dcl_work_is_done(work, &is_done));
    CHECK(!is_done);
    OK(dcl_communicator_check(ranks[0]));

    OK(dcl_set_interrupt_callback(NULL, NULL));
    sum(ranks[1], &numbers[2], NULL, 0);
    OK(dcl_work_wait_for(work, TIMEOUT_MS));
    OK(dcl_work_wait(work));
    OK(dcl_work_wait_for(work, 0));
    CHECK(numbers[0] == 4 && numbers[2] == 4);
    /* The work without a handle is still one of the stream's. */
    OK(dcl_communicator_abort(ranks[1], "enough"));
    FAILS(DCL_STATUS_ABORTED, dcl_stream_synchronize(stream));
    OK(dcl_work_free(work));
    OK(dcl_stream_free(stream));
    free_two(ranks);
}

/* What the callback may not do. */
static int32_t call_the_library(void *user_data) {
    dcl_communicator_t **ranks = user_data;
    FAILS(DCL_STATUS_BUSY, dcl_set_interrupt_callback(NULL, NULL));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_barrier(ranks[0]));
    OK(dcl_communicator_check(ranks[0]));
    OK(dcl_communicator_abort(ranks[0], "the callback has seen enough"));
    return 0;
}

static void calls_of_the_callback(void) {
    dcl_communicator_t *ranks[2];
    two_ranks(ranks);
    OK(dcl_set_interrupt_callback(call_the_library, ranks));
    FAILS(DCL_STATUS_ABORTED, dcl_communicator_barrier(ranks[0]));
    MESSAGE_HAS("the callback has seen enough");
    OK(dcl_set_interrupt_callback(NULL, NULL));
    free_two(ranks);
}

/* A structure of a newer header, which has more fields. */
#define NEWER(type)             \
    struct {                    \
        type known;             \
        unsigned char tail[64]; \
    }

#define IS_INITIALIZED(type, init, ...)                                    \
    do {                                                                   \
        NEWER(type) by_function;                                           \
        const type by_macro = __VA_ARGS__;                                 \
        memset(&by_function, 0xa5, sizeof by_function);                    \
        OK(init(&by_function.known, sizeof(type)));                        \
        CHECK(memcmp(&by_function.known, &by_macro, sizeof by_macro) == 0); \
        CHECK(by_function.tail[0] == 0xa5);                                \
        OK(init(&by_function.known, sizeof by_function));                  \
        CHECK(by_function.known.struct_size == sizeof by_function);        \
        CHECK(by_function.tail[0] == 0 && by_function.tail[63] == 0);      \
        FAILS(DCL_STATUS_INVALID_ARGUMENT, init(&by_function.known, 8));   \
        FAILS(DCL_STATUS_INVALID_ARGUMENT, init(NULL, sizeof(type)));      \
    } while (0)

static void structures_are_initialized(void) {
    IS_INITIALIZED(dcl_plugin_t, dcl_plugin_init, DCL_PLUGIN_INIT);
    IS_INITIALIZED(dcl_plugin_creator_t, dcl_plugin_creator_init, DCL_PLUGIN_CREATOR_INIT);
    IS_INITIALIZED(dcl_execution_context_options_t, dcl_execution_context_options_init,
                   DCL_EXECUTION_CONTEXT_OPTIONS_INIT);
    IS_INITIALIZED(dcl_environment_config_t, dcl_environment_config_init, DCL_ENVIRONMENT_CONFIG_INIT);
    IS_INITIALIZED(dcl_bootstrap_config_t, dcl_bootstrap_config_init, DCL_BOOTSTRAP_CONFIG_INIT);
}

int main(void) {
    structures_are_initialized();
    a_blocking_call();
    an_initialization();
    waits_for_work();
    calls_of_the_callback();
    return 0;
}
