/* The memory in which ranks of several processes meet. */
#ifndef FAKE_NCCL_GATHERING_H
#define FAKE_NCCL_GATHERING_H

#include <stdatomic.h>

#include "internal.h"

enum {
    MOST_RANKS = 16,
    GIFT_BYTES = 128,
    INPUT_BYTES = 16 << 20,
    PIECE_BYTES = 1 << 20,
    PAGE = 4096,
};

/* What a rank says. Only its process writes it. */
struct seat {
    _Atomic pid_t process;
    _Atomic bool is_complete;
    int device, capability;
    uint64_t machine;
    /* Up to which collective it has posted its call, and has read what it wanted of the others'. */
    _Atomic uint64_t posted, read;
    struct call call;
    /* The same of assemblies. */
    _Atomic uint64_t brought, left;
    char kind, gift[GIFT_BYTES];
};

/* The messages from one rank to another, of which the last piece is here until it is taken. */
struct line {
    int ends;
    _Atomic uint64_t sent, taken;
    size_t count;
    ncclDataType_t type;
};

/* The ranks of one communicator. */
struct gathering {
    _Atomic int present;
    struct seat seats[MOST_RANKS];
    struct line lines[MOST_RANKS][MOST_RANKS];
    _Alignas(PAGE) char inputs[MOST_RANKS][INPUT_BYTES];
    char pieces[MOST_RANKS][MOST_RANKS][PIECE_BYTES];
};

/* Waits until a counter of every rank's seat has come so far, or the communicator has ended. */
bool gathering_wait(const struct communicator *communicator, size_t counter, uint64_t number,
    bool (*ended)(const struct communicator *));

#endif
