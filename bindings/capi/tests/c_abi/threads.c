/* Several threads on one object: which calls run, which return BUSY, and what happens if an object
 * is freed during a call. */
#include "check.h"

#include <stdatomic.h>
#include <time.h>

/* Repeats a call until it returns BUSY, which it does while another call is inside. */
#define UNTIL_BUSY(call)                                     \
    do {                                                     \
        dcl_status_t until_busy;                             \
        while ((until_busy = (call)) != DCL_STATUS_BUSY) {   \
            CHECK(until_busy == DCL_STATUS_SUCCESS);         \
            pause_ms(1);                                     \
        }                                                    \
        MESSAGE_HAS("another call");                       \
    } while (0)

/* Repeats a call until it does not return BUSY. It returns BUSY if the other call's check has
 * exclusive use. */
#define ONCE_FREE(call)                                            \
    do {                                                           \
        dcl_status_t once_free;                                    \
        while ((once_free = (call)) == DCL_STATUS_BUSY) {          \
            sched_yield();                                         \
        }                                                          \
        OK(once_free);                                             \
    } while (0)

/* The two ranks of a test. Rank 0 waits for rank 1 in a thread. Rank 1 starts after the test has
 * looked at rank 0. */
struct pair {
    dcl_communicator_t *communicators[2];
    dcl_execution_context_t *contexts[2];
    int32_t given[2], taken[2];
};

static void make_pair(struct pair *pair) {
    dcl_engine_t *engine = sum_of_two();
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, pair->communicators));
    for (int rank = 0; rank < 2; rank++) {
        pair->given[rank] = rank + 1;
        pair->taken[rank] = 0;
        OK(dcl_engine_create_execution_context(engine, NULL, &pair->contexts[rank]));
        OK(dcl_execution_context_set_tensor_address(pair->contexts[rank], "x", &pair->given[rank], sizeof(int32_t)));
        OK(dcl_execution_context_set_tensor_address(pair->contexts[rank], "y", &pair->taken[rank], sizeof(int32_t)));
    }
    OK(dcl_engine_free(engine));
}

static void *set_communicator_of_0(void *argument) {
    struct pair *pair = argument;
    ONCE_FREE(dcl_execution_context_set_communicator(pair->contexts[0], pair->communicators[0]));
    return NULL;
}

static void *run_0(void *argument) {
    struct pair *pair = argument;
    ONCE_FREE(dcl_execution_context_enqueue(pair->contexts[0], NULL, NULL));
    return NULL;
}

static void a_context_is_busy_and_can_be_freed(void) {
    struct pair pair;
    make_pair(&pair);
    void *address = NULL;
    dcl_dims_t dims = vector(1);
    pthread_t thread = start(set_communicator_of_0, &pair);
    UNTIL_BUSY(dcl_execution_context_set_timeout(pair.contexts[0], DCL_TIMEOUT_DEFAULT));
    FAILS(DCL_STATUS_BUSY, dcl_execution_context_enqueue(pair.contexts[0], NULL, NULL));
    FAILS(DCL_STATUS_BUSY, dcl_execution_context_set_communicator(pair.contexts[0], pair.communicators[1]));
    OK(dcl_execution_context_set_communicator(pair.contexts[1], pair.communicators[1]));
    join(thread);

    thread = start(run_0, &pair);
    UNTIL_BUSY(dcl_execution_context_set_timeout(pair.contexts[0], DCL_TIMEOUT_DEFAULT));
    FAILS(DCL_STATUS_BUSY, dcl_execution_context_get_tensor_address(pair.contexts[0], "x", &address));
    FAILS(DCL_STATUS_BUSY, dcl_execution_context_get_tensor_shape(pair.contexts[0], "x", &dims));
    FAILS(DCL_STATUS_BUSY, dcl_execution_context_set_tensor_address(pair.contexts[0], "x", NULL, 0));
    CHECK(address == NULL);
    /* The running call completes. */
    OK(dcl_execution_context_free(pair.contexts[0]));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_execution_context_enqueue(pair.contexts[0], NULL, NULL));
    OK(dcl_communicator_free(pair.communicators[0]));
    OK(dcl_execution_context_enqueue(pair.contexts[1], NULL, NULL));
    join(thread);
    CHECK(pair.taken[0] == 3 && pair.taken[1] == 3);
    OK(dcl_execution_context_free(pair.contexts[1]));
    OK(dcl_communicator_free(pair.communicators[1]));
}

/* A call that waits for another rank, and its arguments. */
struct waiting {
    dcl_communicator_t *communicator;
    dcl_work_t *work;
    dcl_stream_t *stream;
    dcl_layer_t *layer;
    dcl_bound_layer_t *bound;
    atomic_int is_inside;
};

static void *wait_for_work(void *argument) {
    struct waiting *waiting = argument;
    ONCE_FREE(dcl_work_wait(waiting->work));
    return NULL;
}

static void work_is_busy_and_can_be_freed(void) {
    dcl_communicator_t *communicators[2];
    struct waiting waiting;
    int32_t given[2] = {1, 2}, taken[2] = {0, 0}, is_done = -7;
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, communicators));
    OK(dcl_stream_new_worker(&waiting.stream));
    OK(dcl_all_reduce(communicators[0], &given[0], &taken[0], 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, waiting.stream,
                      &waiting.work));
    OK(dcl_work_is_done(waiting.work, &is_done));
    CHECK(is_done == 0);
    pthread_t thread = start(wait_for_work, &waiting);
    UNTIL_BUSY(dcl_work_is_done(waiting.work, &is_done));
    FAILS(DCL_STATUS_BUSY, dcl_work_wait(waiting.work));
    OK(dcl_work_free(waiting.work));
    OK(dcl_stream_free(waiting.stream));
    OK(dcl_communicator_free(communicators[0]));
    OK(dcl_all_reduce(communicators[1], &given[1], &taken[1], 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, NULL, NULL));
    join(thread);
    CHECK(taken[0] == 3 && taken[1] == 3);
    OK(dcl_communicator_free(communicators[1]));
}

static void *bind_layer(void *argument) {
    struct waiting *waiting = argument;
    atomic_store(&waiting->is_inside, 1);
    OK(dcl_dist_collective_bind(waiting->layer, waiting->communicator, DCL_DATA_TYPE_INT32, &waiting->bound));
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Frees a network while its layer is being bound, which waits for the other rank. Freeing does not
 * wait. */
static void a_network_is_freed_during_a_bind(void) {
    dcl_communicator_t *communicators[2];
    dcl_network_t *network;
    dcl_tensor_t *x;
    struct waiting waiting[2] = {0};
    dcl_dims_t dims = vector(1);
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, communicators));
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    for (int rank = 0; rank < 2; rank++) {
        waiting[rank].communicator = communicators[rank];
        OK(dcl_network_add_dist_collective(network, x, DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, -1, NULL, 0,
                                           &waiting[rank].layer));
        OK(dcl_layer_set_nb_rank(waiting[rank].layer, 2));
    }
    dcl_layer_t *clone;
    OK(dcl_dist_collective_clone(waiting[1].layer, &clone));
    waiting[1].layer = clone;
    pthread_t thread = start(bind_layer, &waiting[0]);
    while (!atomic_load(&waiting[0].is_inside)) {
        pause_ms(1);
    }
    pause_ms(20);
    double before = seconds();
    OK(dcl_network_free(network));
    OK(dcl_communicator_free(communicators[0]));
    CHECK(seconds() - before < TIMEOUT_MS / 2000.0);
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_layer_set_name(waiting[0].layer, "gone"));
    bind_layer(&waiting[1]);
    join(thread);
    for (int rank = 0; rank < 2; rank++) {
        OK(dcl_bound_layer_free(waiting[rank].bound));
    }
    OK(dcl_layer_free(clone));
    OK(dcl_communicator_free(communicators[1]));
}

/* Frees a communicator's handle while a call on it waits. */
static void *barrier(void *argument) {
    struct waiting *waiting = argument;
    atomic_store(&waiting->is_inside, 1);
    OK(dcl_communicator_barrier(waiting->communicator));
    return NULL;
}

static void a_communicator_is_freed_during_a_barrier(void) {
    dcl_communicator_t *communicators[2];
    struct waiting waiting = {0};
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, communicators));
    waiting.communicator = communicators[0];
    pthread_t thread = start(barrier, &waiting);
    while (!atomic_load(&waiting.is_inside)) {
        pause_ms(1);
    }
    pause_ms(20);
    OK(dcl_communicator_free(communicators[0]));
    OK(dcl_communicator_barrier(communicators[1]));
    join(thread);
    OK(dcl_communicator_free(communicators[1]));
}

/* Two threads in one network: each call is done or refused as a whole. */
struct one_network {
    dcl_network_t *network;
    dcl_tensor_t *x;
    atomic_int nb_added, nb_busy, nb_inside;
};

#define ADDED_BY_EACH 300

static void *add_layers(void *argument) {
    struct one_network *one = argument;
    atomic_fetch_add(&one->nb_inside, 1);
    while (atomic_load(&one->nb_inside) < 2) {
        sched_yield();
    }
    for (int i = 0; i < ADDED_BY_EACH; i++) {
        dcl_layer_t *layer = NULL;
        dcl_status_t status = dcl_network_add_shuffle(one->network, one->x, NULL, NULL, NULL, &layer);
        if (status == DCL_STATUS_BUSY) {
            CHECK(layer == NULL);
            atomic_fetch_add(&one->nb_busy, 1);
            continue;
        }
        OK(status);
        atomic_fetch_add(&one->nb_added, 1);
        int32_t nb = 0;
        status = dcl_layer_get_nb_outputs(layer, &nb);
        CHECK((status == DCL_STATUS_SUCCESS && nb == 1) || (status == DCL_STATUS_BUSY && nb == 0));
    }
    return NULL;
}

static void two_threads_are_in_one_network(void) {
    struct one_network one = {0};
    dcl_dims_t dims = vector(1);
    int32_t nb_layers;
    OK(dcl_network_new(&one.network));
    OK(dcl_network_add_input(one.network, "x", DCL_DATA_TYPE_INT32, &dims, &one.x));
    pthread_t threads[2] = {start(add_layers, &one), start(add_layers, &one)};
    join(threads[0]);
    join(threads[1]);
    CHECK(atomic_load(&one.nb_added) + atomic_load(&one.nb_busy) == 2 * ADDED_BY_EACH);
    OK(dcl_network_get_nb_layers(one.network, &nb_layers));
    CHECK(nb_layers == atomic_load(&one.nb_added));
    OK(dcl_network_free(one.network));
}

/* Threads that create and free objects, and use objects that others may have freed. */
static _Atomic(dcl_layer_t *) shared_layer;
static atomic_int is_over;

static void *use_shared(void *nothing) {
    while (!atomic_load(&is_over)) {
        dcl_layer_t *layer = atomic_load(&shared_layer);
        char kind[32];
        dcl_status_t status = dcl_layer_get_kind(layer, kind, sizeof kind, NULL);
        CHECK(status == DCL_STATUS_INVALID_HANDLE || status == DCL_STATUS_BUSY ||
              (status == DCL_STATUS_SUCCESS && strcmp(kind, "all_gather") == 0));
        int64_t groups[2], nb_groups, group_size;
        status = dcl_dist_collective_get_groups(layer, groups, 2, &nb_groups, &group_size);
        CHECK(status == DCL_STATUS_INVALID_HANDLE || status == DCL_STATUS_BUSY ||
              (status == DCL_STATUS_SUCCESS && nb_groups == 1 && group_size == 2 && groups[0] == 1 && groups[1] == 0));
    }
    return nothing;
}

static void what_is_used_is_freed(void) {
    pthread_t threads[2] = {start(use_shared, NULL), start(use_shared, NULL)};
    int64_t ranks[] = {1, 0};
    for (int i = 0; i < 500; i++) {
        dcl_layer_t *layer;
        OK(dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, ranks, 2, &layer));
        dcl_layer_t *before = atomic_exchange(&shared_layer, layer);
        OK(dcl_layer_free(before));
    }
    atomic_store(&is_over, 1);
    join(threads[0]);
    join(threads[1]);
    OK(dcl_layer_free(atomic_load(&shared_layer)));
}

/* Both threads free the same handle, and one succeeds. */
struct freed_twice {
    dcl_layer_t *layer;
    pthread_barrier_t *together;
    atomic_int *nb_freed;
};

static void *free_it(void *argument) {
    struct freed_twice *twice = argument;
    pthread_barrier_wait(twice->together);
    dcl_status_t status = dcl_layer_free(twice->layer);
    CHECK(status == DCL_STATUS_SUCCESS || status == DCL_STATUS_INVALID_HANDLE);
    atomic_fetch_add(twice->nb_freed, status == DCL_STATUS_SUCCESS);
    return NULL;
}

static void one_of_two_frees(void) {
    for (int i = 0; i < 50; i++) {
        pthread_barrier_t together;
        atomic_int nb_freed = 0;
        struct freed_twice twice = {NULL, &together, &nb_freed};
        pthread_barrier_init(&together, NULL, 2);
        OK(dcl_dist_collective_new(DCL_COLLECTIVE_ALL_GATHER, DCL_REDUCE_NONE, -1, NULL, 0, &twice.layer));
        pthread_t threads[2] = {start(free_it, &twice), start(free_it, &twice)};
        join(threads[0]);
        join(threads[1]);
        CHECK(atomic_load(&nb_freed) == 1);
        pthread_barrier_destroy(&together);
    }
}

/* Shared calls: several threads read an engine and create contexts. */
static void *use_engine(void *engine) {
    for (int i = 0; i < 50; i++) {
        char text[4096];
        size_t length;
        dcl_execution_context_t *context;
        OK(dcl_engine_inspect(engine, text, sizeof text, &length));
        CHECK(text[0] == '{' && strlen(text) == length);
        OK(dcl_engine_create_execution_context(engine, NULL, &context));
        OK(dcl_execution_context_free(context));
    }
    return NULL;
}

static void an_engine_is_shared(void) {
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *layer;
    dcl_engine_t *engine;
    dcl_dims_t dims = vector(1);
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    OK(dcl_network_add_shuffle(network, x, NULL, NULL, NULL, &layer));
    OK(dcl_layer_get_output(layer, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    OK(dcl_engine_build(network, &engine));
    pthread_t threads[2] = {start(use_engine, engine), start(use_engine, engine)};
    join(threads[0]);
    join(threads[1]);
    OK(dcl_engine_free(engine));
    OK(dcl_network_free(network));
}

/* One layer for all ranks, which query and bind it at the same time. */
static void bind_shared(dcl_communicator_t *communicator, int32_t rank, void *layer) {
    for (int i = 0; i < 50; i++) {
        dcl_bound_layer_t *bound;
        dcl_layer_t *clone;
        dcl_dims_t dims = vector(2);
        int32_t x = rank;
        OK(dcl_dist_collective_check_type(layer, DCL_DATA_TYPE_INT32));
        OK(dcl_dist_collective_get_output_dims(layer, &dims, &dims));
        OK(dcl_dist_collective_clone(layer, &clone));
        OK(dcl_layer_free(clone));
        OK(dcl_dist_collective_bind(layer, communicator, DCL_DATA_TYPE_INT32, &bound));
        dims = vector(1);
        OK(dcl_bound_layer_enqueue(bound, &x, &x, &dims, NULL, NULL));
        CHECK(x == 6);
        OK(dcl_bound_layer_free(bound));
    }
}

static void a_layer_is_shared(void) {
    dcl_layer_t *layer;
    OK(dcl_dist_collective_new(DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    OK(dcl_layer_set_nb_rank(layer, 4));
    on_ranks(4, bind_shared, layer);
    OK(dcl_layer_free(layer));
}

/* A rank that mixes work on two streams with calls of its own thread. Both ranks do the same. */
static void *mix(void *argument) {
    dcl_communicator_t *communicator = argument;
    dcl_stream_t *streams[2];
    dcl_work_t *work[4];
    for (int i = 0; i < 2; i++) {
        OK(dcl_stream_new_worker(&streams[i]));
    }
    for (int32_t round = 0; round < 50; round++) {
        int32_t given[4], taken[4] = {0, 0, 0, 0};
        for (int32_t i = 0; i < 4; i++) {
            given[i] = round + i;
            OK(dcl_all_reduce(communicator, &given[i], &taken[i], 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM,
                              streams[i % 2], &work[i]));
        }
        OK(dcl_communicator_barrier(communicator));
        for (int i = 3; i >= 0; i--) {
            OK(dcl_work_wait(work[i]));
            OK(dcl_work_free(work[i]));
            CHECK(taken[i] == 2 * given[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        OK(dcl_stream_free(streams[i]));
    }
    OK(dcl_communicator_finalize(communicator));
    return NULL;
}

static void calls_run_in_the_order_of_issue(void) {
    dcl_communicator_t *communicators[2];
    pthread_t threads[2];
    OK(dcl_communicator_new_in_process("host", 2, TIMEOUT_MS, communicators));
    for (int rank = 0; rank < 2; rank++) {
        threads[rank] = start(mix, communicators[rank]);
    }
    for (int rank = 0; rank < 2; rank++) {
        join(threads[rank]);
    }
}

int main(void) {
    calls_run_in_the_order_of_issue();
    a_layer_is_shared();
    a_context_is_busy_and_can_be_freed();
    work_is_busy_and_can_be_freed();
    a_network_is_freed_during_a_bind();
    a_communicator_is_freed_during_a_barrier();
    two_threads_are_in_one_network();
    what_is_used_is_freed();
    one_of_two_frees();
    an_engine_is_shared();
    return 0;
}
