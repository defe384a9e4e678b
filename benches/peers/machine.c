// Measures what the machine gives just now, between two threads on the first two processors that
// this process may use.
//
// Prints: the time in which a cache line goes to the other processor and back, in ns, and how much
// both together copy between buffers of 4 MiB, in GB/s. Each is the median of 9 samples.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SAMPLES = 9, ROUND_TRIPS = 5000, COPIES = 4, BYTES = 4 << 20 };

static _Alignas(128) atomic_long ball;
static _Alignas(128) atomic_long arrived;
static double line[SAMPLES], copy[2][SAMPLES];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void bind_thread(int number) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    int cpu = 0;
    for (;; cpu++)
        if (CPU_ISSET(cpu, &all) && number-- == 0)
            break;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

// Waits for the other thread.
static void meet(long number) {
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) < 2 * number)
        ;
}

static void *measure(void *argument) {
    long thread = (long)argument, meetings = 0, trips = 0;
    bind_thread((int)thread);
    char *from = aligned_alloc(4096, BYTES), *to = aligned_alloc(4096, BYTES);
    if (from == NULL || to == NULL)
        exit(1);
    memset(from, 1, BYTES);
    memset(to, 1, BYTES);
    for (int sample = 0; sample < SAMPLES; sample++) {
        meet(++meetings);
        double start = now();
        for (int i = 0; i < ROUND_TRIPS; i++, trips += 2) {
            while (atomic_load_explicit(&ball, memory_order_acquire) != trips + thread)
                ;
            atomic_store_explicit(&ball, trips + thread + 1, memory_order_release);
        }
        if (thread == 0)
            line[sample] = (now() - start) / ROUND_TRIPS;
        meet(++meetings);
        start = now();
        for (int i = 0; i < COPIES; i++) {
            memcpy(to, from, BYTES);
            __asm__ volatile("" : : "r"(to) : "memory");
        }
        copy[thread][sample] = (double)COPIES * BYTES / (now() - start);
    }
    return NULL;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *samples) {
    qsort(samples, SAMPLES, sizeof *samples, ascending);
    return samples[SAMPLES / 2];
}

int main(void) {
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) {
        fprintf(stderr, "two processors are needed\n");
        return 1;
    }
    pthread_t other;
    if (pthread_create(&other, NULL, measure, (void *)1) != 0)
        return 1;
    measure((void *)0);
    pthread_join(other, NULL);
    printf("%.1f %.2f\n", median(line), median(copy[0]) + median(copy[1]));
    return 0;
}
