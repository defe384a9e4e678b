/* The log callback, set and removed while other threads log. */
#include "check.h"

#include <stdatomic.h>

/* The user_data of a callback. The callback must not be called after `is_over` is set. */
struct listener {
    atomic_int lines;
    atomic_int is_over;
    dcl_severity_t most_verbose;
};

static void listen(dcl_severity_t severity, const char *message, void *user_data) {
    struct listener *listener = user_data;
    CHECK(!atomic_load(&listener->is_over));
    CHECK(severity >= DCL_SEVERITY_ERROR && severity <= listener->most_verbose);
    CHECK(message[0] != '\0');
    atomic_fetch_add(&listener->lines, 1);
    sched_yield();
    CHECK(!atomic_load(&listener->is_over));
}

/* Logs a warning: an operation without a root gets one. */
static void log_a_line(void) {
    dcl_layer_t *layer;
    OK(dcl_dist_collective_new(DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, 3, NULL, 0, &layer));
    OK(dcl_layer_free(layer));
}

static atomic_int is_done;

static void *log_lines(void *nothing) {
    while (!atomic_load(&is_done)) {
        log_a_line();
    }
    return nothing;
}

static void lines_come_up_to_a_severity(void) {
    struct listener warnings = {0, 0, DCL_SEVERITY_WARNING}, errors = {0, 0, DCL_SEVERITY_ERROR};
    log_a_line();
    OK(dcl_set_log_callback(listen, &warnings, DCL_SEVERITY_WARNING));
    log_a_line();
    CHECK(atomic_load(&warnings.lines) == 1);
    OK(dcl_set_log_callback(listen, &errors, DCL_SEVERITY_ERROR));
    log_a_line();
    CHECK(atomic_load(&errors.lines) == 0 && atomic_load(&warnings.lines) == 1);
    static const dcl_severity_t wrong[] = {INT32_MIN, -1, 0, 5, INT32_MAX};
    for (size_t i = 0; i < LENGTH_OF(wrong); i++) {
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_set_log_callback(listen, &warnings, wrong[i]));
    }
    OK(dcl_set_log_callback(NULL, NULL, DCL_SEVERITY_VERBOSE));
    log_a_line();
    CHECK(atomic_load(&warnings.lines) == 1);
}

static void nobody_is_inside_when_it_is_gone(void) {
    pthread_t threads[3];
    for (size_t i = 0; i < LENGTH_OF(threads); i++) {
        threads[i] = start(log_lines, NULL);
    }
    int nb_heard = 0;
    for (int round = 0; round < 200 || nb_heard == 0; round++) {
        struct listener *listener = calloc(1, sizeof *listener);
        listener->most_verbose = DCL_SEVERITY_WARNING;
        OK(dcl_set_log_callback(listen, listener, DCL_SEVERITY_WARNING));
        if (round % 2 == 0) {
            sched_yield();
        } else {
            usleep(100);
        }
        struct listener *other = NULL;
        if (round % 3 == 0) {
            other = calloc(1, sizeof *other);
            /* No thread logs errors here. */
            other->most_verbose = DCL_SEVERITY_ERROR;
            OK(dcl_set_log_callback(listen, other, DCL_SEVERITY_ERROR));
            atomic_store(&listener->is_over, 1);
        }
        OK(dcl_set_log_callback(NULL, NULL, DCL_SEVERITY_ERROR));
        atomic_store(&listener->is_over, 1);
        nb_heard += atomic_load(&listener->lines);
        free(listener);
        free(other);
    }
    atomic_store(&is_done, 1);
    for (size_t i = 0; i < LENGTH_OF(threads); i++) {
        join(threads[i]);
    }
}

/* Several threads set a callback at once. The last one stays. */
static void *set_and_unset(void *listener) {
    for (int i = 0; i < 200; i++) {
        OK(dcl_set_log_callback(listen, listener, DCL_SEVERITY_VERBOSE));
        log_a_line();
        OK(dcl_set_log_callback(NULL, NULL, DCL_SEVERITY_ERROR));
    }
    return NULL;
}

static void several_set_it(void) {
    struct listener listeners[3] = {
        {0, 0, DCL_SEVERITY_VERBOSE}, {0, 0, DCL_SEVERITY_VERBOSE}, {0, 0, DCL_SEVERITY_VERBOSE}};
    pthread_t threads[3];
    for (size_t i = 0; i < LENGTH_OF(threads); i++) {
        threads[i] = start(set_and_unset, &listeners[i]);
    }
    for (size_t i = 0; i < LENGTH_OF(threads); i++) {
        join(threads[i]);
    }
    struct listener last = {0, 0, DCL_SEVERITY_VERBOSE};
    OK(dcl_set_log_callback(listen, &last, DCL_SEVERITY_WARNING));
    log_a_line();
    CHECK(atomic_load(&last.lines) > 0);
    OK(dcl_set_log_callback(NULL, NULL, DCL_SEVERITY_ERROR));
}

/* A callback that sets the callback would wait for itself. */
static void set_it_again(dcl_severity_t severity, const char *message, void *user_data) {
    (void)message;
    FAILS(DCL_STATUS_BUSY, dcl_set_log_callback(NULL, NULL, severity));
    /* It receives no message of that call. */
    log_a_line();
    ++*(int *)user_data;
}

static void it_sets_itself(void) {
    int nb_lines = 0;
    OK(dcl_set_log_callback(set_it_again, &nb_lines, DCL_SEVERITY_WARNING));
    log_a_line();
    log_a_line();
    OK(dcl_set_log_callback(NULL, NULL, DCL_SEVERITY_ERROR));
    CHECK(nb_lines == 2);
}

int main(void) {
    it_sets_itself();
    lines_come_up_to_a_severity();
    nobody_is_inside_when_it_is_gone();
    several_set_it();
    return 0;
}
