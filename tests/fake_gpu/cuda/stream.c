/* Streams: queues, each with a thread that serves it. */
#include "internal.h"

/* All of them, also those that were destroyed and still have work. */
static struct stream *streams;

struct stream *stream_new(struct context *context, unsigned flags) {
    struct stream *stream = allocate(sizeof *stream);
    stream->next = streams;
    streams = stream;
    stream->context = context;
    stream->flags = flags;
    stream->end = &stream->first;
    pthread_cond_init(&stream->work, NULL);
    return stream;
}

static void stream_free(struct stream *stream) {
    struct stream **place = &streams;
    while (*place != stream)
        place = &(*place)->next;
    *place = stream->next;
    free(stream);
}

static void *serve(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (stream->first == NULL && !stream->closing)
            pthread_cond_wait(&stream->work, &lock);
        struct operation *operation = stream->first;
        if (operation == NULL)
            break;
        stream->first = operation->next;
        if (stream->first == NULL)
            stream->end = &stream->first;
        stream->running = operation;
        operation_run(operation);
        stream->running = NULL;
        operation_free(operation);
        stream->finished++;
        pthread_cond_broadcast(&changed);
    }
    while (stream->drains > 0)
        pthread_cond_wait(&changed, &lock);
    stream_free(stream);
    pthread_mutex_unlock(&lock);
    return NULL;
}

void stream_push(struct stream *stream, const struct operation *operation) {
    struct operation *clone = operation_clone(operation);
    *stream->end = clone;
    stream->end = &clone->next;
    stream->enqueued++;
    if (!stream->has_worker) {
        pthread_t worker;
        if (pthread_create(&worker, NULL, serve, stream) != 0)
            fatal("no thread for a stream");
        pthread_detach(worker);
        stream->has_worker = true;
    }
    pthread_cond_signal(&stream->work);
}

/* What is queued is still done, as by the driver. */
void stream_close(struct stream *stream) {
    stream->closing = true;
    if (stream->has_worker)
        pthread_cond_signal(&stream->work);
    else
        stream_free(stream);
}

void stream_drain(struct stream *stream) {
    uint64_t last = stream->enqueued;
    stream->drains++;
    while (stream->finished < last)
        pthread_cond_wait(&changed, &lock);
    stream->drains--;
    pthread_cond_broadcast(&changed);
}

CUresult stream_get(CUstream handle, struct stream **stream) {
    struct context *context = current_context();
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        TRY(refuse_implicit_use(context));
        *stream = context->default_stream;
        return CUDA_SUCCESS;
    }
    *stream = handle_get(HANDLE_STREAM, handle);
    return *stream != NULL && context_is_alive((*stream)->context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_for_work(CUstream handle, struct stream **stream) {
    struct context *context = current_context();
    while (context->holds > 0)
        pthread_cond_wait(&changed, &lock);
    TRY(stream_get(handle, stream));
    return (*stream)->context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_submit(struct stream *stream, const struct operation *operation) {
    if (stream->capture != NULL)
        return capture_add(stream, operation);
    stream_push(stream, operation);
    return CUDA_SUCCESS;
}

bool streams_use(const void *address, size_t size) {
    for (const struct stream *stream = streams; stream != NULL; stream = stream->next) {
        if (stream->running != NULL && operation_uses(stream->running, address, size))
            return true;
        for (const struct operation *operation = stream->first; operation != NULL; operation = operation->next) {
            if (operation_uses(operation, address, size))
                return true;
        }
    }
    return false;
}

static CUresult create(CUstream *handle, unsigned flags) {
    struct stream *stream = stream_new(current_context(), flags);
    *handle = stream->handle = handle_new(HANDLE_STREAM, stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTER(CONTEXT);
    return stream == NULL || flags > CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE : LOCKED(create(stream, flags));
}

static CUresult destroy(CUstream handle) {
    struct stream *stream = handle_get(HANDLE_STREAM, handle);
    if (stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != NULL && !capture_leave(stream))
        return capture_refuse(stream);
    handle_drop(HANDLE_STREAM, handle);
    stream_close(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(destroy(stream));
}

static CUresult synchronize(CUstream handle) {
    struct stream *stream;
    TRY(stream_get(handle, &stream));
    if (stream->capture != NULL)
        return capture_refuse(stream);
    stream_drain(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(synchronize(stream));
}

/* A stream may go while this waits, so it begins anew. */
void context_drain(const struct context *context) {
    for (struct stream *stream = streams; stream != NULL;) {
        bool busy = stream->context == context && stream->finished != stream->enqueued;
        if (busy)
            stream_drain(stream);
        stream = busy ? streams : stream->next;
    }
}

void context_drain_held(struct context *context) {
    context->holds++;
    context_drain(context);
    context->holds--;
    pthread_cond_broadcast(&changed);
}

/* "It is also invalid to query the execution status of or synchronize a broader handle which
 * encompasses an active stream capture, such as a device or context handle when any associated
 * stream is in capture mode", and an invalid operation invalidates the capture: the CUDA
 * programming guide, "Prohibited and Unhandled Operations" of stream captures. No mode of the
 * calling thread allows it. */
static CUresult synchronize_context(void) {
    CUresult result = CUDA_SUCCESS;
    for (struct stream *stream = streams; stream != NULL; stream = stream->next) {
        if (stream->context == current_context() && stream->capture != NULL)
            result = capture_refuse(stream);
    }
    if (result == CUDA_SUCCESS)
        context_drain(current_context());
    return result;
}

EXPORT CUresult cuCtxSynchronize(void) {
    ENTER(CONTEXT);
    return LOCKED(synchronize_context());
}

static CUresult query(CUstream handle) {
    struct stream *stream;
    TRY(stream_get(handle, &stream));
    if (stream->capture != NULL)
        return capture_refuse(stream);
    return stream->finished == stream->enqueued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(query(stream));
}

static CUresult get_context(CUstream handle, CUcontext *context) {
    struct stream *stream;
    TRY(stream_get(handle, &stream));
    *context = stream->context->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    ENTER(CONTEXT);
    return context == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(get_context(stream, context));
}
