/* Plugins: when their callbacks are called, what their errors become, and that each is destroyed
 * once. */
#include "check.h"

#include <stdatomic.h>

/* A plugin that adds a number to float elements and counts its calls. */
struct adder {
    int32_t addend;
    /* What the callbacks return. */
    dcl_status_t types, shapes, run, written;
    atomic_int nb_runs, nb_destroyed;
};

static dcl_status_t adder_types(void *user_data, const dcl_data_type_t *inputs, int32_t nb_inputs,
                                dcl_data_type_t *outputs, int32_t nb_outputs) {
    struct adder *adder = user_data;
    CHECK(nb_inputs == 1 && nb_outputs == 1);
    outputs[0] = inputs[0];
    return adder->types;
}

static dcl_status_t adder_shapes(void *user_data, const dcl_dims_t *inputs, int32_t nb_inputs, dcl_dims_t *outputs,
                                 int32_t nb_outputs) {
    struct adder *adder = user_data;
    CHECK(nb_inputs == 1 && nb_outputs == 1 && inputs[0].nb_dims == 1 && inputs[0].d[0] >= 0);
    outputs[0] = inputs[0];
    return adder->shapes;
}

static dcl_status_t adder_run(void *user_data, const dcl_plugin_tensor_t *const *inputs, int32_t nb_inputs,
                              const dcl_plugin_tensor_t *const *outputs, int32_t nb_outputs, void *cuda_stream) {
    struct adder *adder = user_data;
    CHECK(nb_inputs == 1 && nb_outputs == 1 && cuda_stream == NULL);
    const dcl_plugin_tensor_t *input = inputs[0], *output = outputs[0];
    CHECK(input->data_type == DCL_DATA_TYPE_INT32 && input->byte_len == (size_t)input->dims.d[0] * 4);
    CHECK(output->byte_len == input->byte_len && (uintptr_t)output->address % 4 == 0);
    for (int64_t i = 0; i < input->dims.d[0]; i++) {
        ((int32_t *)output->address)[i] = ((int32_t *)input->address)[i] + adder->addend;
    }
    atomic_fetch_add(&adder->nb_runs, 1);
    return adder->run;
}

static dcl_status_t adder_write(void *user_data, void *buffer, size_t capacity, size_t *length) {
    struct adder *adder = user_data;
    *length = sizeof adder->addend;
    if (buffer != NULL) {
        CHECK(capacity >= sizeof adder->addend);
        memcpy(buffer, &adder->addend, sizeof adder->addend);
    }
    return adder->written;
}

static void adder_destroy(void *user_data) {
    struct adder *adder = user_data;
    CHECK(atomic_fetch_add(&adder->nb_destroyed, 1) == 0);
}

static dcl_plugin_t plugin_of(struct adder *adder) {
    dcl_plugin_t plugin = DCL_PLUGIN_INIT;
    plugin.type_name = "adder";
    plugin.user_data = adder;
    plugin.get_output_data_types = adder_types;
    plugin.get_output_shapes = adder_shapes;
    plugin.enqueue = adder_run;
    plugin.serialize = adder_write;
    plugin.destroy = adder_destroy;
    return plugin;
}

/* y = the sum over `nb_ranks` of x + the addend. */
static dcl_network_t *network_of(const dcl_plugin_t *plugin, int32_t nb_ranks) {
    dcl_network_t *network;
    dcl_tensor_t *x, *y;
    dcl_layer_t *layer;
    dcl_dims_t dims = vector(3);
    char kind[16];
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    OK(dcl_network_add_plugin(network, "my adder", &x, 1, plugin, &layer));
    OK(dcl_layer_get_kind(layer, kind, sizeof kind, NULL));
    CHECK(strcmp(kind, "adder") == 0);
    OK(dcl_layer_get_output(layer, 0, &y));
    OK(dcl_network_add_dist_collective(network, y, DCL_COLLECTIVE_ALL_REDUCE, DCL_REDUCE_SUM, -1, NULL, 0, &layer));
    OK(dcl_layer_set_nb_rank(layer, nb_ranks));
    OK(dcl_layer_get_output(layer, 0, &y));
    OK(dcl_network_mark_output(network, y, "y"));
    return network;
}

/* The plugins of creators, one for each call. */
static struct adder made[8];
static atomic_int nb_made;

static dcl_status_t make_adder(void *user_data, const void *bytes, size_t byte_len, dcl_plugin_t *plugin) {
    CHECK(plugin->struct_size == sizeof *plugin && plugin->nb_outputs == 1);
    if (byte_len != sizeof(int32_t)) {
        return DCL_STATUS_INVALID_PLAN;
    }
    struct adder *adder = &made[atomic_fetch_add(&nb_made, 1)];
    memcpy(&adder->addend, bytes, sizeof adder->addend);
    dcl_plugin_t filled = plugin_of(adder);
    if (user_data != NULL) {
        filled.enqueue = NULL;
    }
    *plugin = filled;
    return DCL_STATUS_SUCCESS;
}

static void run_added(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    dcl_engine_t *engine = shared;
    dcl_execution_context_t *context;
    int32_t given[3] = {rank, 10, 20}, taken[3] = {0};
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    OK(dcl_execution_context_set_communicator(context, communicator));
    OK(dcl_execution_context_set_tensor_address(context, "x", given, sizeof given));
    OK(dcl_execution_context_set_tensor_address(context, "y", taken, sizeof taken));
    OK(dcl_execution_context_enqueue(context, NULL, NULL));
    CHECK(taken[0] == 11 && taken[1] == 30 && taken[2] == 50);
    OK(dcl_execution_context_free(context));
}

static void a_plugin_runs_and_goes_through_bytes(void) {
    struct adder adder = {.addend = 5};
    dcl_plugin_t plugin = plugin_of(&adder);
    dcl_network_t *network = network_of(&plugin, 2);
    /* The library has copied everything. */
    memset(&plugin, 0x55, sizeof plugin);
    dcl_engine_t *built, *read, *none = NULL;
    OK(dcl_engine_build(network, &built));
    OK(dcl_network_free(network));
    CHECK(atomic_load(&adder.nb_destroyed) == 0);
    on_ranks(2, run_added, built);
    CHECK(atomic_load(&adder.nb_runs) == 2);

    unsigned char plan[4096];
    size_t length;
    OK(dcl_engine_serialize(built, plan, sizeof plan, &length));
    OK(dcl_engine_free(built));
    CHECK(atomic_load(&adder.nb_destroyed) == 1);

    CHECK(dcl_engine_deserialize(plan, length, NULL, 0, &none) != DCL_STATUS_SUCCESS);
    MESSAGE_HAS("adder");
    dcl_plugin_creator_t creator = DCL_PLUGIN_CREATOR_INIT;
    creator.type_name = "adder";
    creator.create = make_adder;
    OK(dcl_engine_deserialize(plan, length, &creator, 1, &read));
    CHECK(atomic_load(&nb_made) == 1);
    on_ranks(2, run_added, read);
    OK(dcl_engine_free(read));
    CHECK(atomic_load(&made[0].nb_destroyed) == 1);

    creator.version = "2";
    CHECK(dcl_engine_deserialize(plan, length, &creator, 1, &none) != DCL_STATUS_SUCCESS);
    creator.version = NULL;
    creator.create = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_deserialize(plan, length, &creator, 1, &none));
    creator.create = make_adder;
    creator.struct_size = 8;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_deserialize(plan, length, &creator, 1, &none));
    creator.struct_size = sizeof creator;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_deserialize(plan, length, &creator, -1, &none));
    dcl_plugin_creator_t twice[2] = {creator, creator};
    CHECK(dcl_engine_deserialize(plan, length, twice, 2, &none) != DCL_STATUS_SUCCESS);
    CHECK(atomic_load(&nb_made) == 1);
    /* The library owns what a creator has filled in, whether it is valid or not. */
    creator.user_data = &creator;
    CHECK(dcl_engine_deserialize(plan, length, &creator, 1, &none) != DCL_STATUS_SUCCESS);
    CHECK(atomic_load(&nb_made) == 2 && atomic_load(&made[1].nb_destroyed) == 1);
    CHECK(none == NULL);
}

/* A creator that makes another version than it says, and one from a header with more fields. */
static dcl_status_t make_another(void *user_data, const void *bytes, size_t byte_len, dcl_plugin_t *plugin) {
    (void)user_data;
    OK(make_adder(NULL, bytes, byte_len, plugin));
    plugin->version = "3";
    return DCL_STATUS_SUCCESS;
}

/* A creator whose plugin has no struct_size. */
static dcl_status_t make_sizeless(void *user_data, const void *bytes, size_t byte_len, dcl_plugin_t *plugin) {
    (void)user_data;
    OK(make_adder(NULL, bytes, byte_len, plugin));
    plugin->struct_size = 0;
    return DCL_STATUS_SUCCESS;
}

static dcl_status_t make_newer(void *user_data, const void *bytes, size_t byte_len, dcl_plugin_t *plugin) {
    (void)user_data;
    OK(make_adder(NULL, bytes, byte_len, plugin));
    plugin->struct_size += 16;
    memset((char *)plugin + sizeof *plugin, 0, 16);
    return DCL_STATUS_SUCCESS;
}

static void creators_of_other_versions(void) {
    struct adder adder = {.addend = 5};
    dcl_plugin_t plugin = plugin_of(&adder);
    dcl_network_t *network = network_of(&plugin, 2);
    dcl_engine_t *engine, *read = NULL;
    unsigned char plan[4096];
    size_t length;
    OK(dcl_engine_build(network, &engine));
    OK(dcl_engine_serialize(engine, plan, sizeof plan, &length));
    OK(dcl_engine_free(engine));
    OK(dcl_network_free(network));
    dcl_plugin_creator_t creators[2] = {DCL_PLUGIN_CREATOR_INIT, DCL_PLUGIN_CREATOR_INIT};
    creators[0].type_name = "adder";
    creators[0].create = make_another;
    int before = atomic_load(&nb_made);
    FAILS(DCL_STATUS_PLUGIN, dcl_engine_deserialize(plan, length, creators, 1, &read));
    MESSAGE_HAS("made a \"adder\" version \"3\"");
    CHECK(read == NULL && atomic_load(&made[before].nb_destroyed) == 1);
    creators[0].create = make_newer;
    OK(dcl_engine_deserialize(plan, length, creators, 1, &read));
    OK(dcl_engine_free(read));
    CHECK(atomic_load(&made[before + 1].nb_destroyed) == 1);
    creators[0].create = make_sizeless;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_deserialize(plan, length, creators, 1, &read));
    MESSAGE_HAS("struct_size of plugin is 0");
    CHECK(atomic_load(&made[before + 2].nb_destroyed) == 1);
    creators[0].create = make_newer;
    creators[1].type_name = "other";
    creators[1].create = make_adder;
    creators[1].struct_size += 8;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_deserialize(plan, length, creators, 2, &read));
    creators[0].struct_size = creators[1].struct_size = sizeof creators[0] + 1;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_engine_deserialize(plan, length, creators, 2, &read));
}

/* Callbacks that use the network during the build. They may read it and free it, but they cannot
 * change it. */
struct meddler {
    struct adder adder;
    dcl_network_t *network;
    dcl_layer_t *layer;
};

static dcl_status_t meddle(void *user_data, const dcl_dims_t *inputs, int32_t nb_inputs, dcl_dims_t *outputs,
                           int32_t nb_outputs) {
    struct meddler *meddler = user_data;
    (void)nb_inputs;
    (void)nb_outputs;
    outputs[0] = inputs[0];
    if (meddler->network != NULL) {
        dcl_network_t *network = meddler->network;
        meddler->network = NULL;
        int32_t nb_layers;
        OK(dcl_network_get_nb_layers(network, &nb_layers));
        FAILS(DCL_STATUS_BUSY, dcl_layer_set_name(meddler->layer, "mine"));
        OK(dcl_network_free(network));
        /* The message has the callback's own reason. */
        return dcl_layer_set_name(meddler->layer, "mine");
    }
    return DCL_STATUS_SUCCESS;
}

static void a_callback_calls_back(void) {
    struct meddler meddler = {.adder = {.addend = 1}};
    dcl_plugin_t plugin = plugin_of(&meddler.adder);
    plugin.get_output_shapes = meddle;
    plugin.user_data = &meddler;
    dcl_engine_t *engine = NULL;
    dcl_network_t *network = network_of(&plugin, 1);
    OK(dcl_network_get_layer(network, 0, &meddler.layer));
    meddler.network = network;
    dcl_status_t status = dcl_engine_build(network, &engine);
    CHECK(status == DCL_STATUS_INVALID_NETWORK);
    MESSAGE_HAS("get_output_shapes returned DCL_STATUS_INVALID_HANDLE: dcl_layer_set_name");
    CHECK(engine == NULL && atomic_load(&meddler.adder.nb_destroyed) == 1);
}

/* A callback that frees the network to which the plugin is being added. The effect is as if the
 * call came right afterwards. */
static dcl_status_t free_network(void *user_data, const dcl_data_type_t *inputs, int32_t nb_inputs,
                                 dcl_data_type_t *outputs, int32_t nb_outputs) {
    struct meddler *meddler = user_data;
    OK(dcl_network_free(meddler->network));
    return adder_types(&meddler->adder, inputs, nb_inputs, outputs, nb_outputs);
}

static void a_network_goes_while_a_plugin_comes(void) {
    struct meddler meddler = {.adder = {.addend = 1}};
    dcl_plugin_t plugin = plugin_of(&meddler.adder);
    plugin.get_output_data_types = free_network;
    plugin.user_data = &meddler;
    dcl_tensor_t *x;
    dcl_dims_t dims = vector(3);
    int32_t number;
    OK(dcl_network_new(&meddler.network));
    OK(dcl_network_add_input(meddler.network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    OK(dcl_network_add_plugin(meddler.network, "my adder", &x, 1, &plugin, &meddler.layer));
    CHECK(atomic_load(&meddler.adder.nb_destroyed) == 1);
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_layer_get_nb_rank(meddler.layer, &number));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_layer_free(meddler.layer));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_get_nb_layers(meddler.network, &number));
}

/* The reason that a callback gives: none; its own text; the message of a failed call of the
 * library; an older message that does not count. */
static int what_to_say;

static dcl_status_t say(void *user_data, const dcl_dims_t *inputs, int32_t nb_inputs, dcl_dims_t *outputs,
                        int32_t nb_outputs) {
    (void)user_data;
    outputs[0] = inputs[0];
    CHECK(nb_inputs == 1 && nb_outputs == 1);
    if (what_to_say > 0) {
        FAILS(DCL_STATUS_INVALID_HANDLE, dcl_engine_free((dcl_engine_t *)(uintptr_t)0x5eed));
    }
    if (what_to_say > 1) {
        OK(dcl_set_last_error(DCL_STATUS_SYSTEM, "the disk is full"));
        CHECK(dcl_last_error_rank() == -1);
    }
    return DCL_STATUS_SYSTEM;
}

static void a_callback_says_why(void) {
    struct adder adder = {.addend = 1};
    dcl_plugin_t plugin = plugin_of(&adder);
    plugin.get_output_shapes = say;
    dcl_network_t *network = network_of(&plugin, 1);
    dcl_engine_t *engine = NULL;
    for (what_to_say = 0; what_to_say < 3; what_to_say++) {
        FAILS(DCL_STATUS_INVALID_NETWORK, dcl_engine_build(network, &engine));
        MESSAGE_HAS("get_output_shapes returned DCL_STATUS_SYSTEM");
        CHECK((strstr(last_message(), "the disk is full") != NULL) == (what_to_say == 2));
        CHECK(strstr(last_message(), "dcl_engine_free") == NULL);
    }
    OK(dcl_network_free(network));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_set_last_error(DCL_STATUS_SUCCESS, "it worked"));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_set_last_error(DCL_STATUS_SYSTEM, NULL));
}

/* A plugin on a worker stream that waits for that stream, and for work that is behind it there, or
 * is its own. */
static dcl_stream_t *own_stream;
static dcl_work_t *_Atomic own_work;

static dcl_status_t wait_for_itself(void *user_data, const dcl_plugin_tensor_t *const *inputs, int32_t nb_inputs,
                                    const dcl_plugin_tensor_t *const *outputs, int32_t nb_outputs,
                                    void *cuda_stream) {
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_stream_synchronize(own_stream));
    MESSAGE_HAS("itself");
    while (atomic_load(&own_work) == NULL) {
        pause_ms(1);
    }
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_work_wait(atomic_load(&own_work)));
    MESSAGE_HAS("itself");
    return adder_run(user_data, inputs, nb_inputs, outputs, nb_outputs, cuda_stream);
}

static void a_plugin_waits_for_its_own_stream(void) {
    struct adder adder = {.addend = 1};
    dcl_plugin_t plugin = plugin_of(&adder);
    plugin.enqueue = wait_for_itself;
    dcl_network_t *network = network_of(&plugin, 1);
    dcl_engine_t *engine;
    dcl_execution_context_t *context;
    int32_t given[3] = {1, 2, 3}, taken[3] = {0};
    OK(dcl_engine_build(network, &engine));
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    OK(dcl_stream_new_worker(&own_stream));
    OK(dcl_execution_context_set_tensor_address(context, "x", given, sizeof given));
    OK(dcl_execution_context_set_tensor_address(context, "y", taken, sizeof taken));
    dcl_work_t *work;
    OK(dcl_execution_context_enqueue(context, own_stream, NULL));
    OK(dcl_execution_context_enqueue(context, own_stream, &work));
    atomic_store(&own_work, work);
    OK(dcl_stream_synchronize(own_stream));
    /* Other threads can wait for what a plugin cannot. */
    OK(dcl_work_wait(work));
    CHECK(taken[0] == 2 && taken[2] == 4 && atomic_load(&adder.nb_runs) == 2);
    OK(dcl_work_free(work));
    OK(dcl_stream_free(own_stream));
    OK(dcl_execution_context_free(context));
    OK(dcl_engine_free(engine));
    OK(dcl_network_free(network));
}

static void a_plugin_that_is_refused_is_the_caller_s(void) {
    struct adder adder = {.addend = 5};
    dcl_plugin_t good = plugin_of(&adder), plugin;
    dcl_network_t *network, *other;
    dcl_tensor_t *x, *other_x;
    dcl_layer_t *layer = NULL;
    dcl_dims_t dims = vector(3);
    OK(dcl_network_new(&network));
    OK(dcl_network_add_input(network, "x", DCL_DATA_TYPE_INT32, &dims, &x));
    OK(dcl_network_new(&other));
    OK(dcl_network_add_input(other, "x", DCL_DATA_TYPE_INT32, &dims, &other_x));
    dcl_tensor_t *none = NULL, *freed = (dcl_tensor_t *)(uintptr_t)0x5eed;
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_add_plugin(network, "p", &none, 1, &good, &layer));
    FAILS(DCL_STATUS_INVALID_HANDLE, dcl_network_add_plugin(network, "p", &freed, 1, &good, &layer));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &other_x, 1, &good, &layer));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, -1, &good, &layer));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", NULL, 1, &good, &layer));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, 1, NULL, &layer));
    dcl_tensor_t *many[DCL_MAX_PLUGIN_TENSORS + 1];
    for (size_t i = 0; i < LENGTH_OF(many); i++) {
        many[i] = x;
    }
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", many, LENGTH_OF(many), &good, &layer));
    static const int32_t counts[] = {INT32_MIN, -1, 0, DCL_MAX_PLUGIN_TENSORS + 1, INT32_MAX};
    for (size_t i = 0; i < LENGTH_OF(counts); i++) {
        plugin = good;
        plugin.nb_outputs = counts[i];
        FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, 1, &plugin, &layer));
    }
    plugin = good;
    plugin.type_name = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, 1, &plugin, &layer));
    plugin = good;
    plugin.get_output_data_types = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, 1, &plugin, &layer));
    plugin = good;
    plugin.get_output_shapes = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, 1, &plugin, &layer));
    plugin = good;
    plugin.enqueue = NULL;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, 1, &plugin, &layer));
    plugin = good;
    plugin.struct_size = 16;
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_network_add_plugin(network, "p", &x, 1, &plugin, &layer));
    int32_t nb_layers;
    OK(dcl_network_get_nb_layers(network, &nb_layers));
    CHECK(nb_layers == 0 && layer == NULL);
    OK(dcl_network_free(network));
    OK(dcl_network_free(other));
    CHECK(atomic_load(&adder.nb_destroyed) == 0);
}

/* Errors of each callback in turn. */
static void a_callback_fails(void) {
    for (int which = 0; which < 3; which++) {
        struct adder adder = {.addend = 1};
        dcl_plugin_t plugin = plugin_of(&adder);
        dcl_network_t *network = network_of(&plugin, 1);
        dcl_engine_t *engine = NULL;
        adder.types = which == 0 ? DCL_STATUS_SYSTEM : DCL_STATUS_SUCCESS;
        adder.shapes = which == 1 ? -12345 : DCL_STATUS_SUCCESS;
        adder.written = which == 2 ? DCL_STATUS_SYSTEM : DCL_STATUS_SUCCESS;
        dcl_status_t status = dcl_engine_build(network, &engine);
        if (which < 2) {
            CHECK(status != DCL_STATUS_SUCCESS && engine == NULL);
            MESSAGE_HAS("my adder");
        } else if (status == DCL_STATUS_SUCCESS) {
            size_t length = 7;
            FAILS(DCL_STATUS_PLUGIN, dcl_engine_serialize(engine, NULL, 0, &length));
            CHECK(length == 7);
        }
        OK(dcl_engine_free(engine));
        OK(dcl_network_free(network));
        CHECK(atomic_load(&adder.nb_destroyed) == 1);
    }
}

/* A plugin that fails on rank 1 while it runs. Rank 0, which waits in the collective, learns of
 * it. */
static void fail_on_rank_1(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    /* How many ranks have set their communicator. */
    atomic_int *nb_set = shared;
    struct adder adder = {.addend = 1, .run = rank == 1 ? DCL_STATUS_SYSTEM : DCL_STATUS_SUCCESS};
    dcl_plugin_t plugin = plugin_of(&adder);
    plugin.serialize = NULL;
    dcl_network_t *network = network_of(&plugin, 2);
    dcl_engine_t *engine;
    dcl_execution_context_t *context;
    int32_t given[3] = {0}, taken[3] = {0};
    size_t length = 7;
    OK(dcl_engine_build(network, &engine));
    CHECK(dcl_engine_serialize(engine, NULL, 0, &length) == DCL_STATUS_UNSUPPORTED);
    CHECK(length == 7);
    OK(dcl_engine_create_execution_context(engine, NULL, &context));
    OK(dcl_engine_free(engine));
    OK(dcl_network_free(network));
    OK(dcl_execution_context_set_communicator(context, communicator));
    /* A rank that is still in that call would get the error of rank 1 from it. */
    atomic_fetch_add(nb_set, 1);
    while (atomic_load(nb_set) < 2)
        pause_ms(1);
    OK(dcl_execution_context_set_tensor_address(context, "x", given, sizeof given));
    OK(dcl_execution_context_set_tensor_address(context, "y", taken, sizeof taken));
    FAILS(rank == 1 ? DCL_STATUS_PLUGIN : DCL_STATUS_ABORTED, dcl_execution_context_enqueue(context, NULL, NULL));
    MESSAGE_HAS("my adder");
    CHECK(atomic_load(&adder.nb_destroyed) == 0);
    OK(dcl_execution_context_free(context));
    CHECK(atomic_load(&adder.nb_destroyed) == 1);
}

int main(void) {
    a_plugin_runs_and_goes_through_bytes();
    creators_of_other_versions();
    a_callback_calls_back();
    a_network_goes_while_a_plugin_comes();
    a_callback_says_why();
    a_plugin_waits_for_its_own_stream();
    a_plugin_that_is_refused_is_the_caller_s();
    a_callback_fails();
    atomic_int nb_set = 0;
    on_ranks(2, fail_on_rank_1, &nb_set);
    return 0;
}
