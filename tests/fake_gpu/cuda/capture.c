/*
 * Stream capture. Each stream of a capture has a clock: how many steps of each stream came before
 * its next step. A stream that waits for another stream's event takes over that event's clock. A
 * stream is joined when the origin's clock has all of its steps. Its entry into the capture is its
 * first step.
 */
#include "internal.h"

struct capture {
    struct capture *next;
    uint64_t id;
    pthread_t owner;
    int mode;
    bool invalid;
    struct stream *streams[MOST_CAPTURED_STREAMS];
    uint32_t clocks[MOST_CAPTURED_STREAMS][MOST_CAPTURED_STREAMS];
    int stream_count;
    /* Up to which of its steps a stream need not be joined. */
    uint32_t excused[MOST_CAPTURED_STREAMS];
    /* What the program has asked for as nodes: the clocks of streams. */
    struct frontier *frontiers;
    /* What it records into, as the program knows it from the first question on. */
    struct graph *graph;
    CUgraph handle;
    struct operation **end;
};

/* What a stream's next operation comes after, as the program has it: one node. */
struct frontier {
    struct frontier *next;
    uint32_t clock[MOST_CAPTURED_STREAMS];
};

static struct capture *captures;
static uint64_t last_id;
static _Thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult refuse_unsafe_call(void) {
    CUresult result = CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = pthread_equal(capture->owner, pthread_self()) && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED && (own || global)) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult refuse_implicit_use(struct context *context) {
    CUresult result = CUDA_SUCCESS;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        for (int i = 0; i < capture->stream_count; i++) {
            const struct stream *stream = capture->streams[i];
            if (stream != NULL && stream->context == context && stream->flags != CU_STREAM_NON_BLOCKING) {
                capture->invalid = true;
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
        }
    }
    return result;
}

CUresult capture_refuse(struct stream *stream) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_add(struct stream *stream, const struct operation *operation) {
    struct capture *capture = stream->capture;
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct operation *clone = operation_clone(operation);
    *capture->end = clone;
    capture->end = &clone->next;
    capture->graph->nodes++;
    capture->clocks[stream->captured_as][stream->captured_as]++;
    return CUDA_SUCCESS;
}

CUresult graph_add(CUgraph handle, const struct operation *operation) {
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    struct operation **end = &graph->first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = operation_clone(operation);
    graph->nodes++;
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        if (capture->graph == graph)
            capture->end = &(*end)->next;
    }
    return CUDA_SUCCESS;
}

static void enter_capture(struct capture *capture, struct stream *stream) {
    if (capture->stream_count == MOST_CAPTURED_STREAMS)
        fatal("more than %d streams in one capture", MOST_CAPTURED_STREAMS);
    stream->capture = capture;
    stream->captured_as = capture->stream_count++;
    capture->streams[stream->captured_as] = stream;
    capture->clocks[stream->captured_as][stream->captured_as] = 1;
}

void capture_record_event(struct stream *stream, struct event *event) {
    moment_release(event->moment);
    event->moment = NULL;
    event->capture = stream->capture->id;
    memcpy(event->clock, stream->capture->clocks[stream->captured_as], sizeof event->clock);
}

CUresult capture_wait_event(struct stream *stream, const struct event *event) {
    if (stream->capture != NULL && stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (event->capture == 0) {
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    struct capture *capture = captures;
    while (capture != NULL && capture->id != event->capture)
        capture = capture->next;
    if (capture == NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (stream->capture != NULL && stream->capture != capture) {
        stream->capture->invalid = capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture == NULL)
        enter_capture(capture, stream);
    uint32_t *clock = capture->clocks[stream->captured_as];
    for (int i = 0; i < MOST_CAPTURED_STREAMS; i++)
        clock[i] = clock[i] > event->clock[i] ? clock[i] : event->clock[i];
    return CUDA_SUCCESS;
}

bool capture_leave(struct stream *stream) {
    struct capture *capture = stream->capture;
    int place = stream->captured_as;
    if (place == 0 || capture->clocks[place][place] > 1)
        return false;
    /* There is nothing to join of it. */
    capture->streams[place] = NULL;
    capture->excused[place] = 1;
    stream->capture = NULL;
    if (place == capture->stream_count - 1) {
        capture->stream_count--;
        capture->excused[place] = 0;
        memset(capture->clocks[place], 0, sizeof capture->clocks[place]);
    }
    return true;
}

static CUresult begin(CUstream handle, int mode) {
    struct stream *stream;
    TRY(stream_for_work(handle, &stream));
    if (stream == stream->context->default_stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = allocate(sizeof *capture);
    capture->next = captures;
    capture->id = ++last_id;
    capture->owner = pthread_self();
    capture->mode = mode;
    capture->graph = allocate(sizeof *capture->graph);
    capture->end = &capture->graph->first;
    captures = capture;
    enter_capture(capture, stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    ENTER(CONTEXT);
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(begin(stream, mode));
}

static CUgraph handle_of(struct capture *capture) {
    if (capture->handle == NULL)
        capture->handle = handle_new(HANDLE_GRAPH, capture->graph);
    return capture->handle;
}

/* Takes the capture apart, and gives what it recorded if that is a graph. */
static CUresult finish(struct capture *capture, CUgraph *handle) {
    CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    for (int i = 0; i < capture->stream_count; i++) {
        uint32_t steps = capture->clocks[i][i];
        if (result == CUDA_SUCCESS && capture->clocks[0][i] < steps && capture->excused[i] < steps)
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        if (capture->streams[i] != NULL)
            capture->streams[i]->capture = NULL;
    }
    while (capture->frontiers != NULL) {
        struct frontier *frontier = capture->frontiers;
        capture->frontiers = frontier->next;
        free(frontier);
    }
    struct capture **place = &captures;
    while (*place != capture)
        place = &(*place)->next;
    *place = capture->next;
    *handle = result == CUDA_SUCCESS ? handle_of(capture) : NULL;
    if (result != CUDA_SUCCESS) {
        if (capture->handle != NULL)
            handle_drop(HANDLE_GRAPH, capture->handle);
        graph_free(capture->graph);
    }
    free(capture);
    return result;
}

static CUresult end(CUstream handle, CUgraph *graph) {
    struct stream *stream;
    TRY(stream_get(handle, &stream));
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->streams[0] != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->owner, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    return finish(capture, graph);
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    ENTER(CONTEXT);
    return graph == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(end(stream, graph));
}

static CUresult get_status(CUstream handle, int *status) {
    struct stream *stream;
    TRY(stream_get(handle, &stream));
    *status = stream->capture == NULL  ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status) {
    ENTER(CONTEXT);
    return status == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(get_status(stream, status));
}

static const CUgraphNode *frontier_of(const struct stream *stream) {
    struct capture *capture = stream->capture;
    struct frontier *frontier = allocate(sizeof *frontier + sizeof(CUgraphNode));
    frontier->next = capture->frontiers;
    memcpy(frontier->clock, capture->clocks[stream->captured_as], sizeof frontier->clock);
    capture->frontiers = frontier;
    CUgraphNode *node = (CUgraphNode *)(frontier + 1);
    *node = frontier;
    return node;
}

static CUresult get_info(
    CUstream handle, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
    TRY(get_status(handle, status));
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    struct stream *stream;
    TRY(stream_get(handle, &stream));
    *id = stream->capture->id;
    *graph = handle_of(stream->capture);
    if (nodes != NULL) {
        *nodes = frontier_of(stream);
        *count = 1;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
    const CUgraphNode **dependencies, size_t *dependency_count) {
    ENTER(CONTEXT);
    if (status == NULL || id == NULL || graph == NULL || (dependencies == NULL) != (dependency_count == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(get_info(stream, status, id, graph, dependencies, dependency_count));
}

/* What the stream records next comes after these nodes alone. A node that records an event, NULL,
 * comes after all that the stream has recorded. "Nodes that are removed from the dependency set via
 * this API do not result in CUDA_ERROR_STREAM_CAPTURE_UNJOINED" (cuStreamUpdateCaptureDependencies
 * in the reference of CUDA's driver). */
static CUresult set_dependencies(CUstream handle, CUgraphNode *nodes, size_t count) {
    struct stream *stream;
    TRY(stream_get(handle, &stream));
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    uint32_t *clock = capture->clocks[stream->captured_as], own = clock[stream->captured_as];
    capture->excused[stream->captured_as] = own;
    if (count == 1 && nodes[0] == NULL)
        return CUDA_SUCCESS;
    memset(clock, 0, sizeof capture->clocks[0]);
    clock[stream->captured_as] = own;
    for (size_t node = 0; node < count; node++) {
        const struct frontier *frontier = nodes[node];
        for (int i = 0; i < MOST_CAPTURED_STREAMS; i++)
            clock[i] = clock[i] > frontier->clock[i] ? clock[i] : frontier->clock[i];
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(
    CUstream stream, CUgraphNode *nodes, const void *edges, size_t count, unsigned flags) {
    ENTER(CONTEXT);
    if (edges != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES || (nodes == NULL) != (count == 0))
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(set_dependencies(stream, nodes, count));
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(INITIALIZED);
    if (mode == NULL || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
