/* Mistakes on purpose: what the library says to them. */
#ifndef SAMPLES_MISTAKES_H
#define SAMPLES_MISTAKES_H

#include <time.h>

#include "ranks.h"

/* How long ranks wait where nobody is meant to be late, and where somebody is. */
enum { PATIENCE_MS = 10000, SHORT_MS = 1000 };

/* Prints a mistake with its status and message. Returns 0 if the status is one of two that were to come, 1 if not. `rank` is
 * NULL where the mistake has nothing to do with ranks. */
static inline int expect_either(const struct rank *rank, const char *mistake, dcl_status_t status, dcl_status_t expected,
                                dcl_status_t other) {
    char who[32] = "";
    if (rank) {
        snprintf(who, sizeof who, "[rank %d] ", (int)rank->number);
    }
    char message[4096] = "nothing is wrong with it";
    if (status != DCL_STATUS_SUCCESS) {
        dcl_last_error_message(message, sizeof message);
    }
    if (status == expected || status == other) {
        printf("%s%s\n  %s: %s\n", who, mistake, dcl_status_name(status), message);
        return 0;
    }
    printf("%s%s\n  UNEXPECTED, instead of %s: %s: %s\n", who, mistake, dcl_status_name(expected), dcl_status_name(status),
           message);
    return 1;
}

static inline int expect(const struct rank *rank, const char *mistake, dcl_status_t status, dcl_status_t expected) {
    return expect_either(rank, mistake, status, expected, expected);
}

/* Waits until the others have given this rank up, and returns what its communicator then says. A rank that returned instead
 * would have left, which is another mistake. */
static inline dcl_status_t wait_until_given_up(const struct rank *rank) {
    const struct timespec pause = {0, 10 * 1000 * 1000};
    dcl_status_t status = DCL_STATUS_SUCCESS;
    for (int i = 0; i < PATIENCE_MS / 10 && status == DCL_STATUS_SUCCESS; i++) {
        nanosleep(&pause, NULL);
        status = dcl_communicator_check(rank->communicator);
    }
    return status;
}

#endif /* SAMPLES_MISTAKES_H */
