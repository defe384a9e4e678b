/* Events. */
#include "internal.h"

static CUresult event_get(CUevent handle, struct event **event) {
    *event = handle_get(HANDLE_EVENT, handle);
    return *event != NULL && context_is_alive((*event)->context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult create(CUevent *handle, unsigned flags) {
    struct event *event = allocate(sizeof *event);
    event->context = current_context();
    event->flags = flags;
    *handle = handle_new(HANDLE_EVENT, event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTER(CONTEXT);
    if (event == NULL || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(create(event, flags));
}

static CUresult destroy(CUevent handle) {
    struct event *event;
    TRY(event_get(handle, &event));
    handle_drop(HANDLE_EVENT, handle);
    moment_release(event->moment);
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(CONTEXT);
    return LOCKED(destroy(event));
}

static CUresult record(CUevent handle, CUstream stream_handle) {
    struct event *event;
    struct stream *stream;
    TRY(event_get(handle, &event));
    TRY(stream_for_work(stream_handle, &stream));
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != NULL) {
        capture_record_event(stream, event);
        return CUDA_SUCCESS;
    }
    moment_release(event->moment);
    event->capture = 0;
    event->moment = allocate(sizeof *event->moment);
    event->moment->references = 1;
    struct operation operation = {.kind = OPERATION_RECORD, .moment = event->moment};
    stream_push(stream, &operation);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(record(event, stream));
}

/* A graph that has such a wait looks for the event's latest moment at each launch. */
static CUresult wait_external(CUstream stream_handle, CUevent handle) {
    struct event *event;
    struct stream *stream;
    TRY(event_get(handle, &event));
    TRY(stream_for_work(stream_handle, &stream));
    if (stream->capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct operation operation = {.kind = OPERATION_EXTERNAL_WAIT, .event = handle};
    return capture_add(stream, &operation);
}

static CUresult wait_on_stream(CUstream stream_handle, CUevent handle) {
    struct event *event;
    struct stream *stream;
    TRY(event_get(handle, &event));
    TRY(stream_for_work(stream_handle, &stream));
    if (stream->capture != NULL || event->capture != 0)
        return capture_wait_event(stream, event);
    if (event->moment != NULL) {
        struct operation operation = {.kind = OPERATION_WAIT, .moment = event->moment};
        stream_push(stream, &operation);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    ENTER(CONTEXT);
    if (flags == CU_EVENT_WAIT_EXTERNAL)
        return LOCKED(wait_external(stream, event));
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(wait_on_stream(stream, event));
}

static CUresult query(CUevent handle) {
    struct event *event;
    TRY(event_get(handle, &event));
    TRY(refuse_unsafe_call());
    if (event->capture != 0)
        return CUDA_ERROR_CAPTURED_EVENT;
    return event->moment == NULL || event->moment->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventQuery(CUevent event) {
    ENTER(CONTEXT);
    return LOCKED(query(event));
}

static CUresult synchronize(CUevent handle) {
    struct event *event;
    TRY(event_get(handle, &event));
    TRY(refuse_unsafe_call());
    if (event->capture != 0)
        return CUDA_ERROR_CAPTURED_EVENT;
    struct moment *moment = event->moment;
    if (moment == NULL)
        return CUDA_SUCCESS;
    moment->references++;
    while (!moment->done)
        pthread_cond_wait(&changed, &lock);
    moment_release(moment);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    ENTER(CONTEXT);
    return LOCKED(synchronize(event));
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    struct event *start, *end;
    TRY(event_get(start_handle, &start));
    TRY(event_get(end_handle, &end));
    if (start->capture != 0 || end->capture != 0)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || start->moment == NULL || end->moment == NULL
        || start->context != end->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->moment->done || !end->moment->done)
        return CUDA_ERROR_NOT_READY;
    const struct timespec *from = &start->moment->time, *to = &end->moment->time;
    *milliseconds = (float)((double)(to->tv_sec - from->tv_sec) * 1e3 + (double)(to->tv_nsec - from->tv_nsec) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER(CONTEXT);
    return milliseconds == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(elapsed(milliseconds, start, end));
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    ENTER(CONTEXT);
    return milliseconds == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(elapsed(milliseconds, start, end));
}
