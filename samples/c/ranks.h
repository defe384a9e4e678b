/* Ranks for a C program, to copy and change.
 *
 * run_on_ranks calls a function once for each rank. If a launcher started this process
 * (distcollective launch, torchrun, mpirun, srun), the process is one rank of the launcher's job,
 * and the function is called once. Otherwise each rank is a thread of this process.
 */
#ifndef SAMPLES_RANKS_H
#define SAMPLES_RANKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "distcollective.h"

/* The most ranks that a sample runs on: the length of its arrays. */
#define MAX_RANKS 64

/* How many ranks there are as threads, if the command line does not say. */
#define DEFAULT_RANKS 4

/* Prints the error of this thread's last call. */
static inline void print_failure(const char *file, int line, const char *call, dcl_status_t status) {
    char message[4096];
    dcl_last_error_message(message, sizeof message);
    fflush(stdout);
    fprintf(stderr, "%s:%d: %s\n  %s: %s\n", file, line, call, dcl_status_name(status), message);
}

/* In a function that returns 0 for success: returns 1 if a call fails. The function then frees
 * nothing: the process is about to end. */
#define CHECK(call)                                                                                 \
    do {                                                                                            \
        dcl_status_t check_status = (call);                                                         \
        if (check_status != DCL_STATUS_SUCCESS) {                                                   \
            print_failure(__FILE__, __LINE__, #call, check_status);                                 \
            return 1;                                                                               \
        }                                                                                           \
    } while (0)

/* In such a function: returns 1 if a condition does not hold. */
#define REQUIRE(condition)                                                                          \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fflush(stdout);                                                                         \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);               \
            return 1;                                                                               \
        }                                                                                           \
    } while (0)

/* How long a collective of a sample waits for other ranks. */
#define SAMPLE_TIMEOUT_MS 30000

/* The ranks to start. */
struct job {
    /* The number of ranks, or 0: DEFAULT_RANKS threads, or as many as the launcher started. */
    int32_t nb_ranks;
    /* "host", "nccl" or "auto". */
    const char *backend;
};

/* One rank. run_on_ranks frees the communicator. */
struct rank {
    dcl_communicator_t *communicator;
    int32_t number;
    int32_t count;
};

/* The part of one rank. Returns 0 for success. */
typedef int rank_function(const struct rank *rank, void *argument);

/* Whether a launcher started this process. */
static inline bool is_launched(void) {
    size_t length = 0;
    return dcl_environment_detect_launcher(NULL, 0, &length) == DCL_STATUS_SUCCESS && length > 0;
}

/* Calls the function for one rank, and frees its communicator. */
static inline int run_rank(dcl_communicator_t *communicator, rank_function *function, void *argument) {
    struct rank rank = {communicator, 0, 0};
    CHECK(dcl_communicator_get_rank(communicator, &rank.number));
    CHECK(dcl_communicator_get_world_size(communicator, &rank.count));
    REQUIRE(rank.count <= MAX_RANKS);
    int failed = function(&rank, argument);
    if (failed) {
        /* Otherwise the other ranks would wait for this one until their timeout. */
        dcl_communicator_abort(communicator, "this rank of the sample failed");
        CHECK(dcl_communicator_free(communicator));
    } else {
        /* Waits until every rank has finished its last call, so that no rank loses a peer in it. */
        CHECK(dcl_communicator_finalize(communicator));
    }
    return failed;
}

/* Makes this process one rank of the launcher's job. */
static inline int run_launched(const struct job *job, rank_function *function, void *argument) {
    dcl_environment_config_t config = DCL_ENVIRONMENT_CONFIG_INIT;
    config.backend = job->backend;
    config.timeout_ms = SAMPLE_TIMEOUT_MS;
    dcl_environment_t *environment = NULL;
    CHECK(dcl_environment_initialize(&config, &environment));
    dcl_communicator_t *communicator = NULL;
    CHECK(dcl_environment_get_communicator(environment, &communicator));
    int32_t nb_ranks = 0;
    CHECK(dcl_communicator_get_world_size(communicator, &nb_ranks));
    if (job->nb_ranks > 0 && job->nb_ranks != nb_ranks) {
        fprintf(stderr, "--ranks is %d, and the launcher started %d; leave --ranks out\n", (int)job->nb_ranks,
                (int)nb_ranks);
        return 1;
    }
    int failed = run_rank(communicator, function, argument);
    CHECK(dcl_environment_free(environment));
    return failed;
}

/* A rank that is a thread. */
struct rank_thread {
    pthread_t thread;
    bool started;
    dcl_communicator_t *communicator;
    rank_function *function;
    void *argument;
    int failed;
};

static inline void *rank_thread_main(void *pointer) {
    struct rank_thread *self = (struct rank_thread *)pointer;
    self->failed = run_rank(self->communicator, self->function, self->argument);
    return NULL;
}

/* Starts a thread for each rank, and joins them all. */
static inline int run_threads(const struct job *job, rank_function *function, void *argument) {
    int32_t nb_ranks = job->nb_ranks > 0 ? job->nb_ranks : DEFAULT_RANKS;
    REQUIRE(nb_ranks <= MAX_RANKS);
    dcl_communicator_t *communicators[MAX_RANKS];
    CHECK(dcl_communicator_new_in_process(job->backend, nb_ranks, SAMPLE_TIMEOUT_MS, communicators));
    struct rank_thread threads[MAX_RANKS];
    for (int32_t r = 0; r < nb_ranks; r++) {
        struct rank_thread *self = &threads[r];
        self->communicator = communicators[r];
        self->function = function;
        self->argument = argument;
        self->failed = 0;
        self->started = pthread_create(&self->thread, NULL, rank_thread_main, self) == 0;
        if (!self->started) {
            self->failed = 1;
            dcl_communicator_abort(self->communicator, "the thread of this rank cannot be started");
            dcl_communicator_free(self->communicator);
        }
    }
    int failed = 0;
    for (int32_t r = 0; r < nb_ranks; r++) {
        if (threads[r].started) {
            pthread_join(threads[r].thread, NULL);
        }
        failed |= threads[r].failed;
    }
    return failed;
}

/* Calls the function once for each rank of this process. Returns 0 if every call returned 0, and
 * all that was printed is written. */
static inline int run_on_ranks(const struct job *job, rank_function *function, void *argument) {
    int failed = is_launched() ? run_launched(job, function, argument) : run_threads(job, function, argument);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "error: the output cannot be written\n");
        return 1;
    }
    return failed;
}

#endif /* SAMPLES_RANKS_H */
