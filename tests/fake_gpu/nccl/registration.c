/* Memory that NCCL registers when a call on it is captured. */
#include <stdatomic.h>

#include "internal.h"

#define NO_DESTRUCTOR_SYNC 1
#define MOVE_REFERENCE 1

int at_end_of_graph(cudaStream_t stream, void (*function)(void *value), void *value) {
    const struct driver *cuda = driver();
    int status;
    unsigned long long id;
    void *graph, *object;
    int error = cuda->stream_get_capture_info(stream, &status, &id, &graph, NULL, NULL);
    if (error == 0)
        error = cuda->user_object_create(&object, value, function, 1, NO_DESTRUCTOR_SYNC);
    return error != 0 ? error : cuda->graph_retain_user_object(graph, object, 1, MOVE_REFERENCE);
}

#if FAKE_NCCL_VERSION >= 22400
/* With how many groups a communicator comes to the graphs that are gone (group.cc of NCCL 2.30.7,
 * GROUP_MAX_RECLAIM_STEPS). */
#define GROUPS 11

/* One use of memory in a graph. The communicator has the memory in its cache as long as there is
 * one (ncclRegister and commDeregister in register.cc). */
struct registration {
    struct registration *next;
    const struct communicator *communicator;
    const char *memory;
    atomic_bool graph_is_gone;
    /* How many groups the communicator has ended since then. */
    int groups;
};

static struct registration *registrations;

/* The driver's lock is held, so this takes no other. */
static void note_end_of_graph(void *registration) {
    atomic_store(&((struct registration *)registration)->graph_is_gone, true);
}

static int add(const struct communicator *communicator, const char *memory, cudaStream_t stream) {
    struct registration *registration = allocate(sizeof *registration);
    registration->communicator = communicator;
    registration->memory = memory;
    pthread_mutex_lock(&lock);
    registration->next = registrations;
    registrations = registration;
    pthread_mutex_unlock(&lock);
    return at_end_of_graph(stream, note_end_of_graph, registration);
}

int register_captured(const struct bundle *bundle) {
    const struct communicator *communicator = bundle->communicator;
    int error = 0;
    for (size_t i = 0; i < 2 * bundle->count && error == 0; i++) {
        const struct call *call = &bundle->calls[i / 2];
        bool is_used = i % 2 == 0 ? call_reads(call, communicator->rank) : call_writes(call, communicator->rank);
        pthread_mutex_lock(&lock);
        const char *memory = is_used ? memory_start(i % 2 == 0 ? call->send : call->receive, 1) : NULL;
        pthread_mutex_unlock(&lock);
        if (memory != NULL)
            error = add(communicator, memory, bundle->stream);
    }
    return error;
}

void registration_end_group(const struct communicator *communicator) {
    struct registration **place = &registrations;
    while (*place != NULL) {
        struct registration *registration = *place;
        bool is_over = registration->communicator == communicator && atomic_load(&registration->graph_is_gone)
                    && ++registration->groups == GROUPS;
        if (is_over) {
            *place = registration->next;
            free(registration);
        } else {
            place = &registration->next;
        }
    }
}

bool is_registered(const char *memory) {
    for (const struct registration *registration = registrations; registration != NULL;
         registration = registration->next) {
        if (registration->memory == memory && registration->communicator->stage < DESTROYED)
            return true;
    }
    return false;
}
#else
int register_captured(const struct bundle *bundle) {
    (void)bundle;
    return 0;
}

void registration_end_group(const struct communicator *communicator) {
    (void)communicator;
}

bool is_registered(const char *memory) {
    (void)memory;
    return false;
}
#endif
