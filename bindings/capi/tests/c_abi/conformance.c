/* Runs the cases that conformance.rs writes: each through the layer by itself and, if all ranks
 * take part, through the eager calls. It compares every byte, also around the buffers and in
 * outputs that are not written. */
#include "check.h"

#define GUARD 64
#define UNTOUCHED 0xa5
#define MOST_GROUP_RANKS 16

/* Bytes of the file. NULL if an output is not written. */
struct bytes {
    const unsigned char *at;
    size_t length;
};

struct one_case {
    int64_t number, operation, reduce_op, data_type, wire_type, root, in_place, is_partition, nb_groups, group_size;
    int64_t groups[MOST_GROUP_RANKS];
    dcl_dims_t dims;
    struct bytes input[MOST_RANKS], expected[MOST_RANKS];
};

static const unsigned char *file, *file_end;

static int64_t read_number(const unsigned char **at) {
    int64_t number;
    CHECK(*at + sizeof number <= file_end);
    memcpy(&number, *at, sizeof number);
    *at += sizeof number;
    return number;
}

static struct bytes read_bytes(const unsigned char **at) {
    int64_t length = read_number(at);
    if (length < 0) {
        return (struct bytes){NULL, 0};
    }
    struct bytes bytes = {*at, (size_t)length};
    *at += (bytes.length + 7) / 8 * 8;
    CHECK(*at <= file_end);
    return bytes;
}

static struct one_case read_case(const unsigned char **at, int64_t number, int64_t nb_ranks) {
    struct one_case c;
    memset(&c, 0, sizeof c);
    c.number = number;
    c.operation = read_number(at);
    c.reduce_op = read_number(at);
    c.data_type = read_number(at);
    c.wire_type = read_number(at);
    c.root = read_number(at);
    c.in_place = read_number(at);
    c.dims.nb_dims = (int32_t)read_number(at);
    for (int i = 0; i < c.dims.nb_dims; i++) {
        c.dims.d[i] = read_number(at);
    }
    c.is_partition = read_number(at);
    c.nb_groups = read_number(at);
    c.group_size = read_number(at);
    CHECK(c.nb_groups * c.group_size <= MOST_GROUP_RANKS);
    for (int i = 0; i < c.nb_groups * c.group_size; i++) {
        c.groups[i] = read_number(at);
    }
    for (int64_t rank = 0; rank < nb_ranks; rank++) {
        c.input[rank] = read_bytes(at);
        c.expected[rank] = read_bytes(at);
    }
    return c;
}

static dcl_layer_t *make_layer(const struct one_case *c) {
    dcl_layer_t *layer;
    OK(dcl_dist_collective_new((int32_t)c->operation, (int32_t)c->reduce_op, c->root, c->groups,
                               c->nb_groups == 0 || c->is_partition ? 0 : c->group_size, &layer));
    if (c->is_partition) {
        OK(dcl_dist_collective_set_partition(layer, c->groups, c->nb_groups, c->group_size));
    }
    OK(dcl_layer_set_nb_rank(layer, (int32_t)c->group_size));
    OK(dcl_dist_collective_set_wire_type(layer, (int32_t)c->wire_type));
    int64_t groups[MOST_GROUP_RANKS], nb_groups, group_size, root;
    OK(dcl_dist_collective_get_groups(layer, groups, MOST_GROUP_RANKS, &nb_groups, &group_size));
    CHECK(nb_groups == c->nb_groups && (nb_groups == 0 || group_size == c->group_size));
    CHECK(memcmp(groups, c->groups, (size_t)(nb_groups * group_size) * sizeof *groups) == 0);
    OK(dcl_dist_collective_get_root(layer, &root));
    CHECK(root == c->root);
    return layer;
}

/* The memory of one call: input and output apart, or placed by the in-place rule. */
struct call_memory {
    unsigned char *start, *input, *output, *before;
    size_t length;
};

static struct call_memory make_memory(const struct one_case *c, int32_t rank, dcl_in_place_t in_place,
                                      size_t element_offset, size_t output_length) {
    size_t input_length = c->input[rank].length, offset = element_offset * dcl_data_type_size((int32_t)c->data_type);
    size_t input_at = GUARD, output_at = (2 * GUARD + input_length + 7) / 8 * 8;
    if (c->in_place && in_place == DCL_IN_PLACE_SAME_ADDRESS) {
        output_at = GUARD;
    } else if (c->in_place && in_place == DCL_IN_PLACE_INPUT_AT) {
        output_at = GUARD;
        input_at = GUARD + offset;
    } else if (c->in_place && in_place == DCL_IN_PLACE_OUTPUT_AT) {
        output_at = GUARD + offset;
    }
    size_t input_end = input_at + input_length, output_end = output_at + output_length;
    struct call_memory memory;
    memory.length = (input_end > output_end ? input_end : output_end) + GUARD;
    memory.start = malloc(memory.length);
    memory.before = malloc(memory.length);
    CHECK(memory.start != NULL && memory.before != NULL);
    memset(memory.before, UNTOUCHED, memory.length);
    memcpy(memory.before + input_at, c->input[rank].at, input_length);
    memcpy(memory.start, memory.before, memory.length);
    memory.input = memory.start + input_at;
    memory.output = memory.start + output_at;
    return memory;
}

static void compare(const struct one_case *c, int32_t rank, struct call_memory memory, const char *door) {
    struct bytes expected = c->expected[rank];
    if (expected.at != NULL) {
        memcpy(memory.before + (memory.output - memory.start), expected.at, expected.length);
    }
    for (size_t i = 0; i < memory.length; i++) {
        if (memory.start[i] != memory.before[i]) {
            fprintf(stderr,
                    "%s: case %lld, rank %d: operation %lld, reduction %lld, type %lld, sent as %lld, root %lld, "
                    "%lld groups of %lld, in place %lld: byte %zu of %zu is %#x, not %#x; the input begins at %zu, "
                    "the output at %zu\n",
                    door, (long long)c->number, rank, (long long)c->operation, (long long)c->reduce_op,
                    (long long)c->data_type, (long long)c->wire_type, (long long)c->root, (long long)c->nb_groups,
                    (long long)c->group_size, (long long)c->in_place, i, memory.length, memory.start[i],
                    memory.before[i], (size_t)(memory.input - memory.start), (size_t)(memory.output - memory.start));
            _Exit(1);
        }
    }
    free(memory.start);
    free(memory.before);
}

static size_t count_of(const dcl_dims_t *dims) {
    size_t count = 1;
    for (int i = 0; i < dims->nb_dims; i++) {
        count *= (size_t)dims->d[i];
    }
    return count;
}

/* Waits in the way that a case selects: in the call, with a work handle, or with a stream. */
static dcl_work_t **work_of(const struct one_case *c, dcl_work_t **work) { return c->number % 3 == 0 ? NULL : work; }

static void finish(const struct one_case *c, dcl_stream_t *stream, dcl_work_t *work) {
    if (c->number % 3 == 0) {
        OK(dcl_stream_synchronize(stream));
    } else {
        OK(dcl_work_wait(work));
        OK(dcl_work_free(work));
    }
}

/* A rank's place in its group, or -1 if it does not take part. */
static int32_t place_in_group(const struct one_case *c, int32_t rank) {
    if (c->nb_groups == 0) {
        return rank;
    }
    for (int64_t i = 0; i < c->nb_groups * c->group_size; i++) {
        if (c->groups[i] == rank) {
            return (int32_t)(i % c->group_size);
        }
    }
    return -1;
}

static void run_bound(const struct one_case *c, dcl_communicator_t *communicator, int32_t rank, dcl_stream_t *stream) {
    dcl_layer_t *layer = make_layer(c);
    dcl_bound_layer_t *bound;
    OK(dcl_dist_collective_bind(layer, communicator, (int32_t)c->data_type, &bound));
    dcl_dims_t wanted, got;
    OK(dcl_dist_collective_get_output_dims(layer, &c->dims, &wanted));
    OK(dcl_bound_layer_get_output_dims(bound, &c->dims, &got));
    CHECK(got.nb_dims == wanted.nb_dims && memcmp(got.d, wanted.d, sizeof *got.d * (size_t)got.nb_dims) == 0);
    dcl_in_place_t rule;
    size_t rule_offset = 0;
    int32_t member = place_in_group(c, rank);
    if (member >= 0) {
        OK(dcl_dist_collective_get_in_place(layer, member, &c->dims, &rule, &rule_offset));
    }
    OK(dcl_layer_free(layer));
    size_t length = count_of(&got) * dcl_data_type_size((int32_t)c->data_type);
    CHECK(c->expected[rank].at == NULL || c->expected[rank].length == length);
    dcl_in_place_t in_place;
    size_t element_offset;
    int32_t reads_input, writes_output;
    OK(dcl_bound_layer_get_in_place(bound, &c->dims, &in_place, &element_offset));
    /* The rule was known before there was a communicator. */
    CHECK(member < 0 || (rule == in_place && rule_offset == element_offset));
    OK(dcl_bound_layer_get_uses(bound, &reads_input, &writes_output));
    CHECK(writes_output == (c->expected[rank].at != NULL));

    struct call_memory memory = make_memory(c, rank, in_place, element_offset, length);
    dcl_stream_t *on = c->number % 2 == 0 ? stream : NULL;
    dcl_work_t *work = NULL;
    OK(dcl_bound_layer_enqueue(bound, memory.input, memory.output, &c->dims, on, work_of(c, &work)));
    /* Enqueued work keeps the objects that it needs. */
    OK(dcl_bound_layer_free(bound));
    finish(c, stream, work);
    compare(c, rank, memory, "the layer");
}

/* NCCL's count: the elements of a block. */
static size_t block_of(const struct one_case *c, size_t nb_ranks) {
    size_t count = count_of(&c->dims);
    switch (c->operation) {
    case DCL_COLLECTIVE_REDUCE_SCATTER:
    case DCL_COLLECTIVE_ALL_TO_ALL:
    case DCL_COLLECTIVE_SCATTER: return count / nb_ranks;
    default: return count;
    }
}

static void run_eagerly(const struct one_case *c, dcl_communicator_t *of_all, int32_t rank, dcl_stream_t *stream) {
    dcl_communicator_options_t options = DCL_COMMUNICATOR_OPTIONS_INIT;
    dcl_communicator_t *communicator;
    options.wire_type = (int32_t)c->wire_type;
    OK(dcl_communicator_with_options(of_all, &options, &communicator));
    size_t n = (size_t)c->group_size, count = block_of(c, n), length = c->input[rank].length;
    dcl_data_type_t type = (int32_t)c->data_type;
    dcl_reduce_operation_t reduce_op = (int32_t)c->reduce_op;
    int32_t root = (int32_t)c->root;
    dcl_in_place_t in_place = DCL_IN_PLACE_SAME_ADDRESS;
    size_t offset = (size_t)rank * count;
    switch (c->operation) {
    case DCL_COLLECTIVE_ALL_GATHER: length *= n; in_place = DCL_IN_PLACE_INPUT_AT; break;
    case DCL_COLLECTIVE_GATHER:
        length *= n;
        in_place = rank == root ? DCL_IN_PLACE_INPUT_AT : DCL_IN_PLACE_UNUSED;
        break;
    case DCL_COLLECTIVE_REDUCE_SCATTER: length /= n; in_place = DCL_IN_PLACE_OUTPUT_AT; break;
    case DCL_COLLECTIVE_SCATTER:
        length /= n;
        in_place = rank == root ? DCL_IN_PLACE_OUTPUT_AT : DCL_IN_PLACE_UNUSED;
        break;
    default: break;
    }
    struct call_memory memory = make_memory(c, rank, in_place, offset, length);
    void *in = memory.input, *out = memory.output;
    dcl_stream_t *on = c->number % 2 == 0 ? stream : NULL;
    dcl_work_t *handle = NULL, **work = work_of(c, &handle);
    switch (c->operation) {
    case DCL_COLLECTIVE_ALL_REDUCE: OK(dcl_all_reduce(communicator, in, out, count, type, reduce_op, on, work)); break;
    case DCL_COLLECTIVE_ALL_GATHER: OK(dcl_all_gather(communicator, in, out, count, type, on, work)); break;
    case DCL_COLLECTIVE_BROADCAST: OK(dcl_broadcast(communicator, in, out, count, type, root, on, work)); break;
    case DCL_COLLECTIVE_REDUCE: OK(dcl_reduce(communicator, in, out, count, type, reduce_op, root, on, work)); break;
    case DCL_COLLECTIVE_REDUCE_SCATTER:
        OK(dcl_reduce_scatter(communicator, in, out, count, type, reduce_op, on, work));
        break;
    case DCL_COLLECTIVE_ALL_TO_ALL: OK(dcl_all_to_all(communicator, in, out, count, type, on, work)); break;
    case DCL_COLLECTIVE_GATHER: OK(dcl_gather(communicator, in, out, count, type, root, on, work)); break;
    case DCL_COLLECTIVE_SCATTER: OK(dcl_scatter(communicator, in, out, count, type, root, on, work)); break;
    default: CHECK(0);
    }
    OK(dcl_communicator_free(communicator));
    finish(c, stream, handle);
    compare(c, rank, memory, "the eager call");
}

/* The number of calls that rank 0 made. */
static int64_t nb_bound, nb_eager;

static void run_cases(dcl_communicator_t *communicator, int32_t rank, void *nb_ranks) {
    const unsigned char *at = file;
    int64_t n = read_number(&at), nb_cases = read_number(&at);
    CHECK(n == *(int32_t *)nb_ranks);
    dcl_stream_t *stream;
    OK(dcl_stream_new_worker(&stream));
    for (int64_t i = 0; i < nb_cases; i++) {
        struct one_case c = read_case(&at, i, n);
        run_bound(&c, communicator, rank, stream);
        if (c.nb_groups == 0) {
            run_eagerly(&c, communicator, rank, stream);
        }
        if (rank == 0) {
            nb_bound++;
            nb_eager += c.nb_groups == 0;
        }
    }
    CHECK(at == file_end);
    OK(dcl_stream_free(stream));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    FILE *stream = fopen(argv[1], "rb");
    CHECK(stream != NULL && fseek(stream, 0, SEEK_END) == 0);
    long length = ftell(stream);
    unsigned char *bytes = malloc((size_t)length);
    rewind(stream);
    CHECK(fread(bytes, 1, (size_t)length, stream) == (size_t)length);
    fclose(stream);
    file = bytes;
    file_end = bytes + length;
    int64_t n;
    memcpy(&n, file, sizeof n);
    int32_t nb_ranks = (int32_t)n;
    on_ranks(nb_ranks, run_cases, &nb_ranks);
    free(bytes);
    printf("%lld cases through the layer, %lld through the eager calls\n", (long long)nb_bound, (long long)nb_eager);
    return 0;
}
