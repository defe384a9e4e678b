/* What the programs of this folder share: checks that end the program, and ranks on threads. */
#ifndef CHECK_H
#define CHECK_H

#include "distcollective.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The timeout of calls. It is shorter than a program's deadline. */
#define TIMEOUT_MS 8000

#define CHECK(condition) ((condition) ? (void)0 : fail_check(__FILE__, __LINE__, #condition))

/* Checks that a call succeeds. */
#define OK(call) expect(__FILE__, __LINE__, #call, (call), DCL_STATUS_SUCCESS)

/* Checks that a call returns a status and, if that is an error, sets a message. */
#define FAILS(status, call) expect(__FILE__, __LINE__, #call, (call), (status))

/* Checks that the last error's message contains a text. */
#define MESSAGE_HAS(text) message_has(__FILE__, __LINE__, (text))

#define LENGTH_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline void fail_check(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    fflush(stderr);
    _Exit(1);
}

/* The last error's message. The thread owns the memory until the next call. */
static inline const char *last_message(void) {
    static _Thread_local char text[4096];
    dcl_last_error_message(text, sizeof text);
    return text;
}

static inline void expect(const char *file, int line, const char *call, dcl_status_t got, dcl_status_t wanted) {
    if (got != wanted) {
        fprintf(stderr, "%s:%d: %s is %s, not %s; the last message is: %s\n", file, line, call, dcl_status_name(got),
                dcl_status_name(wanted), last_message());
        fflush(stderr);
        _Exit(1);
    }
    if (got != DCL_STATUS_SUCCESS && last_message()[0] == '\0') {
        fail_check(file, line, "a failure without a message");
    }
}

static inline void message_has(const char *file, int line, const char *text) {
    if (strstr(last_message(), text) == NULL) {
        fprintf(stderr, "%s:%d: \"%s\" is not in: %s\n", file, line, text, last_message());
        fflush(stderr);
        _Exit(1);
    }
}

static inline dcl_dims_t vector(int64_t length) {
    dcl_dims_t dims = {1, {length}};
    return dims;
}

/* An engine for two ranks: y is the sum of their x, an int32 each. */
static inline dcl_engine_t *sum_of_two(void) {
    dcl_network_t *network;
    dcl_engine_t *engine;
    dcl_tensor_t *x, *y;
    dcl_layer_t *layer;
    dcl_dims_t dims = vector(1);
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    OK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    OK(dcl_layer_set_nb_rank(layer, 2));
    OK(dcl_layer_get_output(layer, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_engine_build(network, &engine));
    OK(dcl_network_free(network));
    return engine;
}

/* A port for an environment of this process. No process listens there, but jobs on one machine need
 * different ports. */
static inline int32_t own_port(void) { return 1024 + (int32_t)(getpid() % 60000); }

/* A thread. It must be joined before its program's deadline. */
static inline pthread_t start(void *(*body)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    return thread;
}

static inline void join(pthread_t thread) { CHECK(pthread_join(thread, NULL) == 0); }

static inline void pause_ms(unsigned ms) { usleep(ms * 1000); }

/* Runs `body` in a child process, which then calls `exit`. */
#define IN_A_CHILD(pid, body)                                   \
    do {                                                        \
        fflush(NULL);                                           \
        (pid) = fork();                                         \
        CHECK((pid) >= 0);                                      \
        if ((pid) == 0) {                                       \
            alarm(9);                                           \
            body;                                               \
            exit(0);                                            \
        }                                                       \
    } while (0)

static inline void has_ended_well(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Another handle of the same rank, with another timeout. */
static inline dcl_communicator_t *with_timeout(dcl_communicator_t *communicator, int64_t timeout_ms) {
    dcl_communicator_options_t options = DCL_COMMUNICATOR_OPTIONS_INIT;
    dcl_communicator_t *other;
    OK(dcl_communicator_get_options(communicator, &options));
    options.timeout_ms = timeout_ms;
    OK(dcl_communicator_with_options(communicator, &options, &other));
    return other;
}

#define MOST_RANKS 8

/* The body of a rank. The function that started the ranks frees the communicator. */
typedef void (*rank_body)(dcl_communicator_t *communicator, int32_t rank, void *shared);

struct rank_start {
    rank_body body;
    dcl_communicator_t *communicator;
    int32_t rank;
    void *shared;
};

static inline void *run_rank(void *argument) {
    struct rank_start *rank = argument;
    rank->body(rank->communicator, rank->rank, rank->shared);
    return NULL;
}

/* Runs `body` on `n` ranks of this process, each on a thread. */
static inline void on_ranks(int32_t n, rank_body body, void *shared) {
    dcl_communicator_t *communicators[MOST_RANKS];
    struct rank_start starts[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    CHECK(n <= MOST_RANKS);
    OK(dcl_communicator_new_in_process("host", n, TIMEOUT_MS, communicators));
    for (int32_t rank = 0; rank < n; rank++) {
        starts[rank] = (struct rank_start){body, communicators[rank], rank, shared};
        threads[rank] = start(run_rank, &starts[rank]);
    }
    for (int32_t rank = 0; rank < n; rank++) {
        join(threads[rank]);
        OK(dcl_communicator_free(communicators[rank]));
    }
}

#endif
