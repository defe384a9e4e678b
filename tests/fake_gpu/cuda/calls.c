/* The beginning of every call: it is counted, scripted faults happen, and its needs are checked. */
#include <stdarg.h>

#include "internal.h"

#define MOST_FUNCTIONS 128
#define MOST_FAULTS 64

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static struct {
    const char *function;
    uint64_t calls;
} counters[MOST_FUNCTIONS];

static struct {
    char function[64];
    /* Zero is every one. */
    uint64_t nth;
    int error;
} faults[MOST_FAULTS];
static int fault_count = -1;

void fatal(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fake libcuda: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL)
        fatal("out of host memory");
    return memory;
}

long environment_number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? strtol(text, NULL, 10) : otherwise;
}

static void read_faults(void) {
    fault_count = 0;
    const char *text = getenv("FAKE_CUDA_FAULTS");
    while (text != NULL && *text != '\0') {
        char nth[24];
        if (fault_count == MOST_FAULTS
            || sscanf(text, "%63[^:]:%23[^:]:%d", faults[fault_count].function, nth, &faults[fault_count].error) != 3)
            fatal("FAKE_CUDA_FAULTS cannot be read from here on: %s", text);
        faults[fault_count++].nth = nth[0] == '*' ? 0 : strtoull(nth, NULL, 10);
        text = strchr(text, ',');
        text = text != NULL ? text + 1 : NULL;
    }
}

static uint64_t *counter(const char *function) {
    for (int i = 0; i < MOST_FUNCTIONS; i++) {
        if (counters[i].function == NULL)
            counters[i].function = strdup(function);
        if (strcmp(counters[i].function, function) == 0)
            return &counters[i].calls;
    }
    fatal("more functions than counters");
}

static CUresult begin(const char *function, enum need need) {
    uint64_t calls = ++*counter(function);
    if (is_over)
        fatal("%s is called although the exit handler has begun", function);
    if (fault_count < 0)
        read_faults();
    for (int i = 0; i < fault_count; i++) {
        if (strcmp(faults[i].function, function) == 0 && (faults[i].nth == 0 || faults[i].nth == calls))
            return faults[i].error;
    }
    if (inside_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    if (need != NOTHING && !initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    return need == CONTEXT && current_context() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult enter(const char *function, enum need need) {
    return LOCKED(begin(function, need));
}

uint64_t fake_cuda_calls(const char *function) {
    pthread_mutex_lock(&lock);
    uint64_t calls = *counter(function);
    pthread_mutex_unlock(&lock);
    return calls;
}

size_t fake_cuda_live(const char *kind) {
    static const char *const kinds[HANDLE_KINDS] = {
        "context", "stream", "event", "module", "function", "graph", "graph exec", "user object",
        "memory handle"};
    pthread_mutex_lock(&lock);
    size_t live = (size_t)-1;
    for (int i = 0; i < HANDLE_KINDS; i++) {
        if (strcmp(kinds[i], kind) == 0)
            live = handle_live(i);
    }
    if (strcmp(kind, "device memory") == 0)
        live = allocation_live(false);
    if (strcmp(kind, "pinned memory") == 0)
        live = allocation_live(true);
    pthread_mutex_unlock(&lock);
    return live;
}
