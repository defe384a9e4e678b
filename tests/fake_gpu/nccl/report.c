/* What tests can ask afterwards: violations, counts, the log, the last error. */
#include <stdarg.h>
#include <unistd.h>

#include "internal.h"

#define LINE 256
#define MOST_LINES 1024
#define MOST_COUNTERS 1024

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* Texts are kept for ever, as callers keep pointers to them. */
struct text {
    struct text *next;
    char text[LINE];
};

static struct text *violations, **violations_end = &violations;
static struct text *errors;
static char lines[MOST_LINES][LINE];
static uint64_t line_count;
static struct {
    const char *function;
    int rank;
    uint64_t calls;
} counters[MOST_COUNTERS];

void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL)
        abort();
    return memory;
}

void hang(void) {
    for (;;)
        pause();
}

void note_violation(const char *format, ...) {
    struct text *violation = allocate(sizeof *violation);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(violation->text, LINE, format, arguments);
    va_end(arguments);
    *violations_end = violation;
    violations_end = &violation->next;
}

void note_call(int rank, const char *function, const char *details) {
    char *line = lines[line_count++ % MOST_LINES];
    char who[24] = "";
    if (rank >= 0)
        snprintf(who, sizeof who, "rank %d: ", rank);
    snprintf(line, LINE, "%s%s%s%s%s", who, function, *details == '\0' ? "" : " ", details,
        group_is_open() ? " in group" : "");
}

uint64_t count_call(const char *function, int rank) {
    for (int i = 0; i < MOST_COUNTERS; i++) {
        if (counters[i].function == NULL) {
            counters[i].function = strdup(function);
            counters[i].rank = rank;
        }
        if (counters[i].rank == rank && strcmp(counters[i].function, function) == 0)
            return ++counters[i].calls;
    }
    abort();
}

ncclResult_t failure(ncclResult_t result, const char *format, ...) {
    struct text *error = allocate(sizeof *error);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, LINE, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    error->next = errors;
    errors = error;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT const char *ncclGetLastError(ncclComm_t communicator) {
    (void)communicator;
    pthread_mutex_lock(&lock);
    count_call(__func__, -1);
    const char *text = errors != NULL ? errors->text : "";
    pthread_mutex_unlock(&lock);
    return text;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[ncclNumResults] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
        "NCCL operation timed out",
    };
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

size_t fake_nccl_violations(void) {
    size_t count = 0;
    pthread_mutex_lock(&lock);
    for (const struct text *violation = violations; violation != NULL; violation = violation->next)
        count++;
    pthread_mutex_unlock(&lock);
    return count;
}

const char *fake_nccl_violation(size_t number) {
    pthread_mutex_lock(&lock);
    const struct text *violation = violations;
    while (violation != NULL && number-- > 0)
        violation = violation->next;
    pthread_mutex_unlock(&lock);
    return violation != NULL ? violation->text : NULL;
}

uint64_t fake_nccl_calls(const char *function) {
    uint64_t calls = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_COUNTERS && counters[i].function != NULL; i++) {
        if (counters[i].rank == -1 && strcmp(counters[i].function, function) == 0)
            calls = counters[i].calls;
    }
    pthread_mutex_unlock(&lock);
    return calls;
}

const char *fake_nccl_log(void) {
    static _Thread_local char text[MOST_LINES * LINE];
    pthread_mutex_lock(&lock);
    size_t size = 0;
    for (uint64_t i = line_count > MOST_LINES ? line_count - MOST_LINES : 0; i < line_count; i++)
        size += (size_t)snprintf(text + size, sizeof text - size, "%s\n", lines[i % MOST_LINES]);
    text[size] = '\0';
    pthread_mutex_unlock(&lock);
    return text;
}

size_t fake_nccl_live(const char *kind) {
    pthread_mutex_lock(&lock);
    size_t live = strcmp(kind, "communicator") == 0 ? communicator_live()
                : strcmp(kind, "memory") == 0       ? memory_live()
                : strcmp(kind, "window") == 0       ? window_live()
                                                    : (size_t)-1;
    pthread_mutex_unlock(&lock);
    return live;
}
