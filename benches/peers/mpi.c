// Times one collective of an MPI library as `distcollective bench --points` does.
//
// usage: mpi LABEL OPERATION dirty|clean BYTES...
//
// Prints a line for each size: label,ranks,operation,bytes,median,min,max,batches,iterations. Bytes
// are those of what a rank has to itself, times are microseconds a call on the slowest rank. An
// operation that ends with _bar is followed by a barrier, whose time is counted. With `dirty` the
// input is rewritten before each call, and each call is timed by itself after a barrier.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 9, TRIALS = 3, WARMUP = 5, ROOT = 0 };
static const double BATCH_SECONDS = 0.01;

static int rank, ranks;

// What a call works on. A block is the smallest part that belongs to one rank.
struct call {
    float *input, *output;
    int block;
};

static void all_reduce(const struct call *c) {
    MPI_Allreduce(c->input, c->output, c->block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(const struct call *c) {
    MPI_Allgather(c->input, c->block, MPI_FLOAT, c->output, c->block, MPI_FLOAT, MPI_COMM_WORLD);
}

// MPI's broadcast has one buffer.
static void broadcast(const struct call *c) {
    MPI_Bcast(c->input, c->block, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

static void reduce(const struct call *c) {
    MPI_Reduce(c->input, c->output, c->block, MPI_FLOAT, MPI_SUM, ROOT, MPI_COMM_WORLD);
}

static void reduce_scatter(const struct call *c) {
    MPI_Reduce_scatter_block(c->input, c->output, c->block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_to_all(const struct call *c) {
    MPI_Alltoall(c->input, c->block, MPI_FLOAT, c->output, c->block, MPI_FLOAT, MPI_COMM_WORLD);
}

static void gather(const struct call *c) {
    MPI_Gather(c->input, c->block, MPI_FLOAT, c->output, c->block, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

static void scatter(const struct call *c) {
    MPI_Scatter(c->input, c->block, MPI_FLOAT, c->output, c->block, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}

// An operation, and how many blocks a rank has to itself, its input and its output have; 0 stands
// for one for each rank.
static const struct operation {
    const char *name;
    void (*run)(const struct call *);
    int own, input, output;
    bool only_root_reads;
} operations[] = {
    {"all_reduce", all_reduce, 1, 1, 1, false},
    {"all_gather", all_gather, 1, 1, 0, false},
    {"broadcast", broadcast, 1, 1, 1, true},
    {"reduce", reduce, 1, 1, 1, false},
    {"reduce_scatter", reduce_scatter, 0, 0, 1, false},
    {"all_to_all", all_to_all, 0, 0, 0, false},
    {"gather", gather, 1, 1, 0, false},
    {"scatter", scatter, 1, 0, 1, true},
};

struct benchmark {
    const struct operation *operation;
    bool has_barrier, is_dirty;
    struct call call;
    size_t inputs;
};

static void run(const struct benchmark *b) {
    b->operation->run(&b->call);
    if (b->has_barrier)
        MPI_Barrier(MPI_COMM_WORLD);
}

static void write_input(const struct benchmark *b) {
    if (b->operation->only_root_reads && rank != ROOT)
        return;
    for (size_t i = 0; i < b->inputs; i++)
        b->call.input[i] = (float)(i % 7 + 1);
}

// The seconds of so many calls on this rank.
static double batch(const struct benchmark *b, long calls) {
    double seconds = 0;
    if (!b->is_dirty) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (long i = 0; i < calls; i++)
            run(b);
        return MPI_Wtime() - start;
    }
    for (long i = 0; i < calls; i++) {
        write_input(b);
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        run(b);
        seconds += MPI_Wtime() - start;
    }
    return seconds;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

// Replaces each time by that of the slowest rank, and sorts them.
static void slowest(double *times, int count) {
    MPI_Allreduce(MPI_IN_PLACE, times, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, count, sizeof *times, ascending);
}

static long calls_in_a_batch(const struct benchmark *b) {
    for (long calls = 1;; calls *= 2) {
        double times[TRIALS];
        for (int i = 0; i < TRIALS; i++)
            times[i] = batch(b, calls);
        slowest(times, TRIALS);
        double share = BATCH_SECONDS / times[0];
        if (share <= 2) {
            long wanted = (long)(calls * share + 0.5);
            return wanted < 1 ? 1 : wanted;
        }
    }
}

static float *buffer(size_t elements) {
    size_t bytes = (elements * sizeof(float) + 4095) / 4096 * 4096;
    float *memory = aligned_alloc(4096, bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static void measure(struct benchmark *b, const char *label, size_t bytes) {
    const struct operation *operation = b->operation;
    int own = operation->own ? operation->own : ranks;
    size_t block = bytes / sizeof(float) / own;
    b->call.block = (int)(block > 0 ? block : 1);
    b->inputs = (size_t)b->call.block * (operation->input ? operation->input : ranks);
    b->call.input = buffer(b->inputs);
    b->call.output = buffer((size_t)b->call.block * (operation->output ? operation->output : ranks));
    write_input(b);
    for (int i = 0; i < WARMUP; i++)
        run(b);
    long calls = calls_in_a_batch(b);
    double times[BATCHES];
    for (int i = 0; i < BATCHES; i++)
        times[i] = batch(b, calls) / calls * 1e6;
    slowest(times, BATCHES);
    if (rank == 0) {
        printf("%s,%d,%s%s,%zu,", label, ranks, operation->name, b->has_barrier ? "_bar" : "", bytes);
        printf("%.3f,%.3f,%.3f,%d,%ld\n", times[BATCHES / 2], times[0], times[BATCHES - 1], BATCHES, calls);
        fflush(stdout);
    }
    free(b->call.input);
    free(b->call.output);
}

// Binds this process to one processor, as `distcollective bench --bind core` does, if there are
// enough of them. Before MPI starts, so that threads of MPI are bound too.
static void bind_process(void) {
    const char *number = getenv("OMPI_COMM_WORLD_RANK"), *count = getenv("OMPI_COMM_WORLD_SIZE");
    if (number == NULL) {
        number = getenv("PMI_RANK");
        count = getenv("PMI_SIZE");
    }
    cpu_set_t all, one;
    if (number == NULL || count == NULL || sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < atoi(count))
        return;
    int left = atoi(number) * CPU_COUNT(&all) / atoi(count), cpu = 0;
    for (;; cpu++)
        if (CPU_ISSET(cpu, &all) && left-- == 0)
            break;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

int main(int count, char **arguments) {
    if (count < 5) {
        fprintf(stderr, "usage: mpi LABEL OPERATION dirty|clean BYTES...\n");
        return 2;
    }
    bind_process();
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct benchmark benchmark = {.is_dirty = strcmp(arguments[3], "dirty") == 0};
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        size_t length = strlen(operations[i].name);
        if (strncmp(arguments[2], operations[i].name, length) != 0)
            continue;
        const char *rest = arguments[2] + length;
        if (*rest == '\0' || strcmp(rest, "_bar") == 0) {
            benchmark.operation = &operations[i];
            benchmark.has_barrier = *rest != '\0';
        }
    }
    if (benchmark.operation == NULL) {
        fprintf(stderr, "%s is not an operation\n", arguments[2]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int i = 4; i < count; i++)
        measure(&benchmark, arguments[1], strtoull(arguments[i], NULL, 10));
    MPI_Finalize();
    return 0;
}
