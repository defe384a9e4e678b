/* Graphs and their executable copies. A launch does the recorded operations one after the other,
 * in the order in which they were recorded, which is one of the orders that the recorded
 * dependencies allow. */
#include "internal.h"

static void free_list(struct operation *operation) {
    while (operation != NULL) {
        struct operation *next = operation->next;
        operation_free(operation);
        operation = next;
    }
}

void kept_clone(const struct kept *kept, struct kept *clone) {
    *clone = *kept;
    for (int i = 0; i < kept->count; i++)
        kept->objects[i]->references++;
}

/* The destructor must not call the driver, whose lock it does not find free. */
void kept_release(struct kept *kept) {
    for (int i = 0; i < kept->count; i++) {
        struct user_object *object = kept->objects[i];
        if (--object->references > 0)
            continue;
        object->destroy(object->value);
        free(object);
    }
    kept->count = 0;
}

void graph_free(struct graph *graph) {
    kept_release(&graph->kept);
    free_list(graph->first);
    free(graph);
}

static CUresult retain(CUgraph graph_handle, CUuserObject object_handle, unsigned count) {
    struct graph *graph = handle_get(HANDLE_GRAPH, graph_handle);
    struct user_object *object = handle_get(HANDLE_USER_OBJECT, object_handle);
    if (graph == NULL || object == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (count != 1 || graph->kept.count == MOST_KEPT)
        return CUDA_ERROR_INVALID_VALUE;
    graph->kept.objects[graph->kept.count++] = object;
    /* The program gives its own reference away. */
    handle_drop(HANDLE_USER_OBJECT, object_handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
    ENTER(INITIALIZED);
    return flags != CU_GRAPH_USER_OBJECT_MOVE ? CUDA_ERROR_INVALID_VALUE : LOCKED(retain(graph, object, count));
}

static CUresult create_object(CUuserObject *handle, const struct user_object *object) {
    struct user_object *new = allocate(sizeof *new);
    *new = *object;
    *handle = handle_new(HANDLE_USER_OBJECT, new);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuUserObjectCreate(
    CUuserObject *object, void *value, CUhostFn destroy, unsigned references, unsigned flags) {
    ENTER(INITIALIZED);
    const struct user_object new = {value, destroy, 1};
    return object == NULL || destroy == NULL || references != 1 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
               ? CUDA_ERROR_INVALID_VALUE
               : LOCKED(create_object(object, &new));
}

static bool is_external(const struct operation *operation) {
    return operation->kind == OPERATION_EXTERNAL_RECORD || operation->kind == OPERATION_EXTERNAL_WAIT;
}

void exec_run(struct exec *exec, uint64_t turn, const struct moments *external) {
    while (exec->finished != turn)
        pthread_cond_wait(&changed, &lock);
    struct moment *const *moment = external->list;
    for (const struct operation *operation = exec->first; operation != NULL; operation = operation->next) {
        struct operation now = *operation;
        if (is_external(operation)) {
            now.kind = operation->kind == OPERATION_EXTERNAL_WAIT ? OPERATION_WAIT : OPERATION_RECORD;
            now.moment = *moment++;
        }
        operation_run(&now);
        pthread_cond_broadcast(&changed);
    }
    exec->finished++;
}

/* What the external events stand for in a launch that comes now: a record makes a new moment, a
 * wait waits for the latest. */
static CUresult external_moments(const struct exec *exec, struct moments **external) {
    size_t count = 0;
    for (const struct operation *operation = exec->first; operation != NULL; operation = operation->next) {
        if (is_external(operation) && handle_get(HANDLE_EVENT, operation->event) == NULL)
            return CUDA_ERROR_INVALID_HANDLE;
        count += is_external(operation);
    }
    struct moments *moments = allocate(sizeof *moments + count * sizeof moments->list[0]);
    moments->references = 1;
    for (const struct operation *operation = exec->first; operation != NULL; operation = operation->next) {
        if (!is_external(operation))
            continue;
        struct event *event = handle_get(HANDLE_EVENT, operation->event);
        if (event->moment == NULL || operation->kind == OPERATION_EXTERNAL_RECORD) {
            moment_release(event->moment);
            event->capture = 0;
            event->moment = allocate(sizeof *event->moment);
            event->moment->references = 1;
            event->moment->done = operation->kind == OPERATION_EXTERNAL_WAIT;
        }
        event->moment->references++;
        moments->list[moments->count++] = event->moment;
    }
    *external = moments;
    return CUDA_SUCCESS;
}

void exec_release(struct exec *exec) {
    if (--exec->references > 0)
        return;
    kept_release(&exec->kept);
    free_list(exec->first);
    free(exec);
}

bool exec_uses(const struct exec *exec, const void *address, size_t size) {
    for (const struct operation *operation = exec->first; operation != NULL; operation = operation->next) {
        if (operation_uses(operation, address, size))
            return true;
    }
    return false;
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle) {
    const struct graph *graph = handle_get(HANDLE_GRAPH, graph_handle);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    struct exec *exec = allocate(sizeof *exec);
    exec->references = 1;
    kept_clone(&graph->kept, &exec->kept);
    struct operation **end = &exec->first;
    for (const struct operation *operation = graph->first; operation != NULL; operation = operation->next) {
        *end = operation_clone(operation);
        end = &(*end)->next;
    }
    *handle = handle_new(HANDLE_EXEC, exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER(CONTEXT);
    return exec == NULL || flags > 15 ? CUDA_ERROR_INVALID_VALUE : LOCKED(instantiate(exec, graph));
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle) {
    struct exec *exec = handle_get(HANDLE_EXEC, handle);
    struct stream *stream;
    if (exec == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(stream_for_work(stream_handle, &stream));
    if (stream->capture != NULL)
        return capture_refuse(stream);
    struct moments *external = NULL;
    TRY(external_moments(exec, &external));
    struct operation operation = {
        .kind = OPERATION_GRAPH, .graph = {.exec = exec, .turn = exec->launched++, .external = external}};
    stream_push(stream, &operation);
    moments_release(external);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(launch(exec, stream));
}

static CUresult add_record(CUgraph graph, CUevent event) {
    if (handle_get(HANDLE_EVENT, event) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    struct operation operation = {.kind = OPERATION_EXTERNAL_RECORD, .event = event};
    return graph_add(graph, &operation);
}

/* It comes after everything that the graph has by now. */
EXPORT CUresult cuGraphAddEventRecordNode(
    CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event) {
    ENTER(CONTEXT);
    if (node == NULL || (dependencies == NULL) != (count == 0))
        return CUDA_ERROR_INVALID_VALUE;
    *node = NULL;
    return LOCKED(add_record(graph, event));
}

static CUresult destroy_exec(CUgraphExec handle) {
    struct exec *exec = handle_get(HANDLE_EXEC, handle);
    if (exec == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_drop(HANDLE_EXEC, handle);
    exec_release(exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER(INITIALIZED);
    return LOCKED(destroy_exec(exec));
}

static CUresult destroy_graph(CUgraph handle) {
    struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_drop(HANDLE_GRAPH, handle);
    graph_free(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    ENTER(INITIALIZED);
    return LOCKED(destroy_graph(graph));
}

static CUresult get_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count) {
    const struct graph *graph = handle_get(HANDLE_GRAPH, handle);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (nodes != NULL) {
        struct operation *operation = graph->first;
        for (size_t i = 0; i < *count; i++) {
            nodes[i] = operation;
            operation = operation != NULL ? operation->next : NULL;
        }
    }
    *count = nodes == NULL || *count > graph->nodes ? graph->nodes : *count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(INITIALIZED);
    return count == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(get_nodes(graph, nodes, count));
}
