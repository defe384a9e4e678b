/* Operations: what streams queue and graphs record. */
#include "internal.h"

_Thread_local bool inside_host_function;

void moment_release(struct moment *moment) {
    if (moment != NULL && --moment->references == 0)
        free(moment);
}

void moments_release(struct moments *moments) {
    if (--moments->references > 0)
        return;
    for (size_t i = 0; i < moments->count; i++)
        moment_release(moments->list[i]);
    free(moments);
}

struct operation *operation_clone(const struct operation *operation) {
    struct operation *clone = allocate(sizeof *clone);
    *clone = *operation;
    clone->next = NULL;
    if (clone->kind == OPERATION_KERNEL) {
        clone->kernel.arguments = allocate(clone->kernel.size);
        memcpy(clone->kernel.arguments, operation->kernel.arguments, clone->kernel.size);
    } else if (clone->kind == OPERATION_RECORD || clone->kind == OPERATION_WAIT) {
        clone->moment->references++;
    } else if (clone->kind == OPERATION_GRAPH) {
        clone->graph.exec->references++;
        clone->graph.external->references++;
    }
    return clone;
}

void operation_free(struct operation *operation) {
    if (operation->kind == OPERATION_KERNEL) {
        free(operation->kernel.arguments);
    } else if (operation->kind == OPERATION_RECORD || operation->kind == OPERATION_WAIT) {
        moment_release(operation->moment);
    } else if (operation->kind == OPERATION_GRAPH) {
        exec_release(operation->graph.exec);
        moments_release(operation->graph.external);
    }
    free(operation);
}

/* The part that works on memory, without the lock. */
static void work(const struct operation *operation) {
    switch (operation->kind) {
    case OPERATION_KERNEL:
        operation->kernel.function(operation->kernel.arguments, operation->kernel.grid, operation->kernel.block);
        break;
    case OPERATION_COPY:
        memmove(operation->copy.to, operation->copy.from, operation->copy.size);
        break;
    case OPERATION_SET:
        memset(operation->set.at, operation->set.value, operation->set.size);
        break;
    default:
        inside_host_function = true;
        operation->host.function(operation->host.data);
        inside_host_function = false;
    }
}

void operation_run(const struct operation *operation) {
    switch (operation->kind) {
    case OPERATION_RECORD:
        operation->moment->done = true;
        clock_gettime(CLOCK_MONOTONIC, &operation->moment->time);
        break;
    case OPERATION_WAIT:
        while (!operation->moment->done)
            pthread_cond_wait(&changed, &lock);
        break;
    case OPERATION_GRAPH:
        exec_run(operation->graph.exec, operation->graph.turn, operation->graph.external);
        break;
    default:
        pthread_mutex_unlock(&lock);
        work(operation);
        pthread_mutex_lock(&lock);
    }
}

static bool overlap(const void *a, size_t a_size, const void *b, size_t b_size) {
    return (uintptr_t)a < (uintptr_t)b + b_size && (uintptr_t)b < (uintptr_t)a + a_size;
}

bool operation_uses(const struct operation *operation, const void *address, size_t size) {
    switch (operation->kind) {
    case OPERATION_COPY:
        return overlap(operation->copy.to, operation->copy.size, address, size)
            || overlap(operation->copy.from, operation->copy.size, address, size);
    case OPERATION_SET:
        return overlap(operation->set.at, operation->set.size, address, size);
    case OPERATION_GRAPH:
        return exec_uses(operation->graph.exec, address, size);
    default:
        return false;
    }
}
