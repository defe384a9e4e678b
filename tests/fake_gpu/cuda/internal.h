/* What the files of the fake driver share. One lock guards everything; functions declared here
 * want it held. */
#ifndef FAKE_CUDA_INTERNAL_H
#define FAKE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

#define MOST_DEVICES 64
#define MOST_CAPTURED_STREAMS 32

extern pthread_mutex_t lock;
/* Signalled when an operation, a moment or a graph has finished. */
extern pthread_cond_t changed;

static inline CUresult unlocked(CUresult result) {
    pthread_mutex_unlock(&lock);
    return result;
}

/* The value of an expression that is computed with the lock held. */
#define LOCKED(expression) (pthread_mutex_lock(&lock), unlocked(expression))

/* Returns from the calling function if the expression is an error. */
#define TRY(expression)                \
    do {                               \
        CUresult tried = (expression); \
        if (tried != CUDA_SUCCESS)     \
            return tried;              \
    } while (0)

/* What every function of the interface begins with, without the lock: it is counted, faults
 * happen, and what it needs is there. */
enum need { NOTHING, INITIALIZED, CONTEXT };
#define ENTER(need) TRY(enter(__func__, need))
CUresult enter(const char *function, enum need need);

/* For numbers in the environment. */
long environment_number(const char *name, long otherwise);

/* What cuDriverGetVersion says. */
long driver_version(void);

/* Prints a mistake of the program or of this library, and ends the process. */
__attribute__((noreturn, format(printf, 1, 2))) void fatal(const char *format, ...);

/* malloc that cannot fail, zeroed. */
void *allocate(size_t size);

/* Handles are numbers that are never used again, so that the use of a destroyed one is found. */
enum handle_kind {
    HANDLE_CONTEXT,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_GRAPH,
    HANDLE_EXEC,
    HANDLE_USER_OBJECT,
    HANDLE_MEMORY,
    HANDLE_KINDS
};
void *handle_new(enum handle_kind kind, void *object);
/* What the handle stands for, or NULL. */
void *handle_get(enum handle_kind kind, const void *handle);
void handle_drop(enum handle_kind kind, void *handle);
size_t handle_live(enum handle_kind kind);

struct stream;

struct context {
    struct context *next;
    int device;
    int retained;
    /* Calls that wait for all its work and hold back what is enqueued meanwhile. */
    unsigned holds;
    CUcontext handle;
    struct stream *default_stream;
};

/* Whether cuInit was called, and whether the library's exit handler was. */
extern bool initialized, is_over;
int device_count(void);
/* The calling thread's context, or NULL. */
struct context *current_context(void);
bool context_is_alive(const struct context *context);
/* The primary context of a device, or the current context if no caller has retained it. */
struct context *device_context(int device);

struct memory;

/* A piece of device memory or of pinned host memory. */
struct allocation {
    struct allocation *next;
    unsigned char *address;
    size_t size;
    struct context *context;
    bool pinned;
    void *block;
    /* What is mapped there, or NULL. */
    struct memory *memory;
    /* fake_cuda_map gave it. */
    bool mapped;
};
struct allocation *allocation_find(const void *address, size_t size);
bool is_device_memory(const void *address, size_t size);
bool is_pinned_memory(const void *address, size_t size);
size_t allocation_live(bool pinned);
void allocation_add_mapped(void *address, size_t size, struct context *context, bool pinned, struct memory *memory);
/* Forgets what is mapped at the address, and gives its length. NULL where nothing of at most that
 * size is. */
struct memory *allocation_remove_mapped(const void *address, size_t most, size_t *size);

/* A point in a stream's order, which an event stands for. */
struct moment {
    int references;
    bool done;
    struct timespec time;
};
void moment_release(struct moment *moment);

/* What the external events of one launch of a graph stand for, in the order of its operations. */
struct moments {
    int references;
    size_t count;
    struct moment *list[];
};
void moments_release(struct moments *moments);

struct exec;

typedef fake_kernel kernel_function;

enum operation_kind {
    OPERATION_KERNEL,
    OPERATION_COPY,
    OPERATION_SET,
    OPERATION_HOST,
    OPERATION_RECORD,
    OPERATION_WAIT,
    OPERATION_GRAPH,
    /* In graphs: the event is recorded, or waited for, as of the launch. */
    OPERATION_EXTERNAL_RECORD,
    OPERATION_EXTERNAL_WAIT
};

struct operation {
    enum operation_kind kind;
    struct operation *next;
    union {
        struct {
            kernel_function function;
            unsigned grid, block;
            size_t size;
            void *arguments;
        } kernel;
        struct {
            void *to;
            const void *from;
            size_t size;
        } copy;
        struct {
            void *at;
            unsigned char value;
            size_t size;
        } set;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct moment *moment;
        CUevent event;
        struct {
            struct exec *exec;
            uint64_t turn;
            struct moments *external;
        } graph;
    };
};

struct operation *operation_clone(const struct operation *operation);
void operation_free(struct operation *operation);
/* Does the operation, without the lock while it works. */
void operation_run(const struct operation *operation);
bool operation_uses(const struct operation *operation, const void *address, size_t size);
/* Whether the calling thread is inside a host function, where no call of the driver is allowed. */
extern _Thread_local bool inside_host_function;

struct capture;

struct stream {
    struct stream *next;
    struct context *context;
    CUstream handle;
    unsigned flags;
    pthread_cond_t work;
    struct operation *first, **end, *running;
    uint64_t enqueued, finished;
    /* Threads that wait for its work; it is freed after the last one. */
    unsigned drains;
    bool has_worker, closing;
    struct capture *capture;
    int captured_as;
};
struct stream *stream_new(struct context *context, unsigned flags);
void stream_close(struct stream *stream);
/* The stream of a handle, the default one among them. */
CUresult stream_get(CUstream handle, struct stream **stream);
/* The same for a call that puts work on it, which must be of the current context. */
CUresult stream_for_work(CUstream handle, struct stream **stream);
/* Records the operation if the stream is capturing, else queues it. Takes a copy. */
CUresult stream_submit(struct stream *stream, const struct operation *operation);
void stream_push(struct stream *stream, const struct operation *operation);
/* Waits until all that is queued now is done. */
void stream_drain(struct stream *stream);
/* The same for all streams of a context. */
void context_drain(const struct context *context);
/* The same, and what is enqueued on the context meanwhile waits until this is over. */
void context_drain_held(struct context *context);
/* Whether any queue names this memory. */
bool streams_use(const void *address, size_t size);

struct event {
    struct context *context;
    unsigned flags;
    struct moment *moment;
    /* The capture it was recorded in, or zero, and what had been recorded before it. */
    uint64_t capture;
    uint32_t clock[MOST_CAPTURED_STREAMS];
};

/* The error of a call that may not be made while streams are capturing, if there is such a
 * capture; it is then invalid. Which captures these are, the modes of the thread and of the capture
 * decide: see cuThreadExchangeStreamCaptureMode in the reference of CUDA's driver. */
CUresult refuse_unsafe_call(void);
/* The error of a use of the default stream while a blocking stream of the context captures. */
CUresult refuse_implicit_use(struct context *context);
CUresult capture_refuse(struct stream *stream);
CUresult capture_add(struct stream *stream, const struct operation *operation);
void capture_record_event(struct stream *stream, struct event *event);
CUresult capture_wait_event(struct stream *stream, const struct event *event);
/* Takes a stream that is destroyed out of its capture, unless the capture began on it or it has
 * recorded anything. */
bool capture_leave(struct stream *stream);
/* Adds an operation to a graph, which a capture may still be recording. */
CUresult graph_add(CUgraph graph, const struct operation *operation);

/* What a program has a graph keep. It is destroyed with the last graph that keeps it. */
struct user_object {
    void *value;
    CUhostFn destroy;
    int references;
};
#define MOST_KEPT 256
struct kept {
    struct user_object *objects[MOST_KEPT];
    int count;
};
void kept_clone(const struct kept *kept, struct kept *clone);
void kept_release(struct kept *kept);

struct graph {
    struct operation *first;
    size_t nodes;
    struct kept kept;
};
void graph_free(struct graph *graph);

struct exec {
    int references;
    struct operation *first;
    struct kept kept;
    uint64_t launched, finished;
};
void exec_run(struct exec *exec, uint64_t turn, const struct moments *external);
void exec_release(struct exec *exec);
bool exec_uses(const struct exec *exec, const void *address, size_t size);

#endif
