/* Asynchronous calls, barriers, groups by name, random numbers, and bytes of unknown length. */
#include "check.h"

#define NB_RANKS 3

static void own_stream(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    dcl_stream_t *stream, *again;
    dcl_work_t *work;
    OK(dcl_communicator_get_stream(communicator, &stream));
    OK(dcl_communicator_get_stream(communicator, &again));
    int32_t given = rank + 1, taken = 0;
    OK(dcl_all_reduce(communicator, &given, &taken, 1, DCL_DATA_TYPE_INT32, DCL_REDUCE_SUM, stream, &work));
    /* A blocking call comes after it. */
    OK(dcl_communicator_barrier(communicator));
    CHECK(taken == 6);
    OK(dcl_work_wait(work));
    /* Its result stays. */
    OK(dcl_work_wait_for(work, 0));
    OK(dcl_work_free(work));
    OK(dcl_communicator_enqueue_barrier(communicator, again, &work));
    OK(dcl_work_wait(work));
    OK(dcl_work_free(work));
    OK(dcl_stream_free(stream));
    OK(dcl_stream_synchronize(again));
    OK(dcl_stream_free(again));
    OK(dcl_communicator_monitored_barrier(communicator, TIMEOUT_MS));
    OK(dcl_communicator_monitored_barrier(communicator, DCL_TIMEOUT_DEFAULT));
}

static void missing_ranks_are_named(void) {
    dcl_communicator_t *communicators[NB_RANKS];
    OK(dcl_communicator_new_in_process("host", NB_RANKS, TIMEOUT_MS, communicators));
    FAILS(DCL_STATUS_DEADLINE_EXCEEDED, dcl_communicator_monitored_barrier(communicators[0], 20));
    MESSAGE_HAS("monitored_barrier (collective 1): ranks 1 and 2 did not arrive before the deadline");
    FAILS(DCL_STATUS_ABORTED, dcl_communicator_monitored_barrier(communicators[2], 20));
    MESSAGE_HAS("ranks 1 and 2 did not arrive");
    for (int rank = 0; rank < NB_RANKS; rank++) {
        OK(dcl_communicator_free(communicators[rank]));
    }
}

static void numbers_in_groups(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    const int64_t members[] = {2, 0};
    dcl_communicator_t *group;
    OK(dcl_communicator_new_group(communicator, members, 2, &group));
    CHECK((group == NULL) == (rank == 1));
    if (group == NULL) {
        return;
    }
    int64_t ranks[3] = {-7, -7, -7};
    size_t length = 0;
    OK(dcl_communicator_get_global_ranks(group, NULL, 0, &length));
    CHECK(length == 2);
    FAILS(DCL_STATUS_BUFFER_TOO_SMALL, dcl_communicator_get_global_ranks(group, ranks, 1, &length));
    CHECK(ranks[0] == -7);
    OK(dcl_communicator_get_global_ranks(group, ranks, 3, NULL));
    CHECK(ranks[0] == 2 && ranks[1] == 0 && ranks[2] == -7);
    int32_t number = -7;
    OK(dcl_communicator_get_global_rank(group, 0, &number));
    CHECK(number == 2);
    OK(dcl_communicator_get_group_rank(group, 0, &number));
    CHECK(number == 1);
    FAILS(DCL_STATUS_NOT_A_MEMBER, dcl_communicator_get_group_rank(group, 1, &number));
    MESSAGE_HAS("rank 1 is not a member of the group, which has ranks 2 and 0");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_get_global_rank(group, 2, &number));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_communicator_get_group_rank(group, -1, &number));
    CHECK(number == 1);
    /* A root is a rank of the group. */
    int32_t value = rank;
    OK(dcl_broadcast(group, &value, &value, 1, DCL_DATA_TYPE_INT32, 0, NULL, NULL));
    CHECK(value == 2);
    OK(dcl_communicator_free(group));
}

/* Checks a received buffer, and frees it. */
static void holds(dcl_buffer_t *buffer, const char *text) {
    size_t length = 0;
    char bytes[64];
    OK(dcl_buffer_get_byte_len(buffer, &length));
    CHECK(length == strlen(text) && length < sizeof bytes);
    OK(dcl_buffer_read(buffer, 0, bytes, length));
    CHECK(memcmp(bytes, text, length) == 0);
    OK(dcl_buffer_free(buffer));
}

static void bytes_of_unknown_length(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    static const char *const texts[NB_RANKS] = {"a longer text", "", "x"};
    static const void *const list[NB_RANKS] = {"one", "", "three"};
    static const size_t byte_lens[NB_RANKS] = {3, 0, 5};
    const char *own = texts[rank];
    int32_t root = 2;
    dcl_buffer_t *received[NB_RANKS] = {NULL, NULL, NULL};
    OK(dcl_broadcast_bytes(communicator, own, strlen(own), root, received));
    holds(received[0], "x");
    OK(dcl_all_gather_bytes(communicator, own, strlen(own), received));
    for (int i = 0; i < NB_RANKS; i++) {
        holds(received[i], texts[i]);
    }
    OK(dcl_gather_bytes(communicator, own, strlen(own), root, rank == root ? received : NULL));
    for (int i = 0; i < NB_RANKS && rank == root; i++) {
        holds(received[i], texts[i]);
    }
    if (rank == root) {
        OK(dcl_scatter_bytes(communicator, list, byte_lens, root, received));
    } else {
        OK(dcl_scatter_bytes(communicator, NULL, NULL, root, received));
    }
    holds(received[0], rank == 0 ? "one" : rank == 1 ? "" : "three");
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_broadcast_bytes(communicator, own, 1, NB_RANKS, received));
    OK(dcl_communicator_barrier(communicator));
}

static void lists(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    int32_t own[2] = {rank, 10 * rank}, all[NB_RANKS][3], taken[2] = {-7, -7}, root = 1;
    void *outputs[NB_RANKS];
    const void *inputs[NB_RANKS];
    for (int i = 0; i < NB_RANKS; i++) {
        outputs[i] = all[i];
        inputs[i] = all[i];
        all[i][2] = -7;
    }
    OK(dcl_all_gather_list(communicator, own, outputs, 2, DCL_DATA_TYPE_INT32, NULL, NULL));
    for (int i = 0; i < NB_RANKS; i++) {
        CHECK(all[i][0] == i && all[i][1] == 10 * i && all[i][2] == -7);
        all[i][0] = all[i][1] = -7;
    }
    dcl_stream_t *stream;
    dcl_work_t *work;
    OK(dcl_communicator_get_stream(communicator, &stream));
    OK(dcl_gather_list(communicator, own, rank == root ? outputs : NULL, 2, DCL_DATA_TYPE_INT32, root, stream, &work));
    OK(dcl_work_wait(work));
    OK(dcl_work_free(work));
    OK(dcl_stream_free(stream));
    for (int i = 0; i < NB_RANKS; i++) {
        CHECK(all[i][0] == (rank == root ? i : -7));
    }
    OK(dcl_scatter_list(communicator, rank == root ? inputs : NULL, taken, 2, DCL_DATA_TYPE_INT32, root, NULL, NULL));
    CHECK(taken[0] == rank && taken[1] == 10 * rank);
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_all_gather_list(communicator, own, NULL, 2, DCL_DATA_TYPE_INT32, NULL, NULL));
    outputs[0] = outputs[1];
    FAILS(DCL_STATUS_INVALID_BUFFER,
          dcl_all_gather_list(communicator, own, outputs, 2, DCL_DATA_TYPE_INT32, NULL, NULL));
    MESSAGE_HAS("two tensors of the output list overlap");
    OK(dcl_communicator_barrier(communicator));
}

/* Rank r gives rank s r + 2 * s elements, each 100 * r + 10 * s + its place in the block. */
static void counts(dcl_communicator_t *communicator, int32_t rank, void *shared) {
    (void)shared;
    double own[16], all[16], part[8];
    size_t given[NB_RANKS], taken[NB_RANKS], own_count = (size_t)rank + 1, total = 0;
    const size_t counts[NB_RANKS] = {1, 2, 3};
    int32_t root = 1;
    for (size_t s = 0; s < NB_RANKS; s++) {
        given[s] = (size_t)rank + 2 * s;
        taken[s] = s + 2 * (size_t)rank;
        for (size_t i = 0; i < given[s]; i++) {
            own[total++] = 100 * rank + 10 * (double)s + (double)i;
        }
    }
    OK(dcl_all_to_all_v(communicator, own, given, all, taken, DCL_DATA_TYPE_FLOAT64, NULL, NULL));
    total = 0;
    for (size_t s = 0; s < NB_RANKS; s++) {
        for (size_t i = 0; i < taken[s]; i++) {
            CHECK(all[total++] == 100 * (double)s + 10 * rank + (double)i);
        }
    }
    own[0] = own[1] = own[2] = rank;
    OK(dcl_all_gather_v(communicator, own, own_count, all, counts, DCL_DATA_TYPE_FLOAT64, NULL, NULL));
    CHECK(all[0] == 0 && all[1] == 1 && all[2] == 1 && all[3] == 2 && all[5] == 2);
    all[3] = all[5] = -7;
    OK(dcl_gather_v(communicator, own, own_count, rank == root ? all : NULL, rank == root ? counts : NULL,
                    DCL_DATA_TYPE_FLOAT64, root, NULL, NULL));
    CHECK(all[3] == (rank == root ? 2 : -7));
    dcl_stream_t *stream;
    dcl_work_t *work;
    OK(dcl_communicator_get_stream(communicator, &stream));
    OK(dcl_scatter_v(communicator, all, rank == root ? counts : NULL, part, own_count, DCL_DATA_TYPE_FLOAT64, root,
                     stream, &work));
    OK(dcl_work_wait(work));
    OK(dcl_work_free(work));
    OK(dcl_stream_free(stream));
    CHECK(part[0] == rank && part[own_count - 1] == rank);
    for (int i = 0; i < 6; i++) {
        own[i] = 0.25 * i;
    }
    OK(dcl_reduce_scatter_v(communicator, own, counts, part, own_count, DCL_DATA_TYPE_FLOAT64, DCL_REDUCE_SUM, NULL,
                            NULL));
    CHECK(part[0] == (rank == 0 ? 0 : rank == 1 ? 0.75 : 2.25));
    FAILS(DCL_STATUS_INVALID_ARGUMENT,
          dcl_all_gather_v(communicator, own, 1, all, NULL, DCL_DATA_TYPE_FLOAT64, NULL, NULL));
    MESSAGE_HAS("output_counts");
    given[0] = SIZE_MAX;
    FAILS(DCL_STATUS_INVALID_BUFFER,
          dcl_all_to_all_v(communicator, own, given, all, taken, DCL_DATA_TYPE_FLOAT64, NULL, NULL));
    OK(dcl_communicator_barrier(communicator));
    /* Rank 0 takes one element less from rank 2 than rank 2 gives. */
    const size_t less[NB_RANKS] = {1, 2, 2};
    FAILS(DCL_STATUS_DISAGREEMENT, dcl_all_gather_v(communicator, own, own_count, all, rank == 0 ? less : counts,
                                                    DCL_DATA_TYPE_FLOAT64, NULL, NULL));
    MESSAGE_HAS("rank 2 gives rank 0 3 float64, and rank 0 takes 2 from rank 2");
}

static void environment_of_one_rank(void) {
    dcl_environment_config_t config = DCL_ENVIRONMENT_CONFIG_INIT;
    config.rank = 0;
    config.world_size = 1;
    config.host = "localhost";
    config.port = own_port();
    config.backend = "host";
    config.seed = 5;
    int32_t is_initialized = -7;
    OK(dcl_environment_is_initialized(&is_initialized));
    CHECK(is_initialized == 0);
    dcl_environment_t *environment;
    OK(dcl_environment_initialize(&config, &environment));
    OK(dcl_environment_is_initialized(&is_initialized));
    CHECK(is_initialized == 1);

    dcl_environment_info_t info = DCL_ENVIRONMENT_INFO_INIT;
    OK(dcl_environment_get_info(environment, &info));
    CHECK(info.struct_size == sizeof info && info.rank == 0 && info.world_size == 1);
    CHECK(info.local_rank == 0 && info.local_world_size == 1 && info.seed == 5);
    CHECK(strlen(info.launcher) > 0 && strcmp(info.rank_source, "given by the caller") == 0);
    CHECK(strcmp(info.world_size_source, info.rank_source) == 0 && info.local_world_size_source != NULL);
    CHECK(info.local_rank_source != NULL && info.rendezvous_source != NULL);

    const int64_t all[] = {0};
    dcl_communicator_t *group, *outside;
    OK(dcl_environment_new_group(environment, "tp", all, 1, &group));
    OK(dcl_communicator_free(group));
    OK(dcl_environment_new_group(environment, "nobody", NULL, 0, &outside));
    CHECK(outside == NULL);
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_environment_new_group(environment, "tp", all, 1, &group));
    OK(dcl_environment_get_group(environment, "tp", &group));
    OK(dcl_communicator_barrier(group));
    OK(dcl_communicator_free(group));
    OK(dcl_environment_get_group(environment, "default", &group));
    OK(dcl_communicator_free(group));
    FAILS(DCL_STATUS_NOT_A_MEMBER, dcl_environment_get_group(environment, "nobody", &group));
    FAILS(DCL_STATUS_INVALID_ARGUMENT, dcl_environment_get_group(environment, "dp", &group));
    MESSAGE_HAS("there is no group \"dp\"; there are \"default\", \"nobody\", \"tp\"");
    OK(dcl_environment_finalize(environment));
    OK(dcl_environment_is_initialized(&is_initialized));
    CHECK(is_initialized == 0);
}

int main(void) {
    on_ranks(NB_RANKS, own_stream, NULL);
    missing_ranks_are_named();
    on_ranks(NB_RANKS, numbers_in_groups, NULL);
    on_ranks(NB_RANKS, bytes_of_unknown_length, NULL);
    on_ranks(NB_RANKS, lists, NULL);
    on_ranks(NB_RANKS, counts, NULL);
    environment_of_one_rank();
    return 0;
}
