/* Where the elements of each collective go. */
#include "internal.h"

size_t call_send_blocks(const struct call *call, int size) {
    return call->operation == REDUCE_SCATTER || call->operation == ALL_TO_ALL || call->operation == SCATTER
               ? (size_t)size
               : 1;
}

size_t call_receive_blocks(const struct call *call, int size) {
    return call->operation == ALL_GATHER || call->operation == ALL_TO_ALL || call->operation == GATHER
               ? (size_t)size
               : 1;
}

bool call_reads(const struct call *call, int rank) {
    return call->operation != RECEIVE
        && ((call->operation != BROADCAST && call->operation != SCATTER) || call->root == rank);
}

bool call_writes(const struct call *call, int rank) {
    return call->operation != SEND && ((call->operation != REDUCE && call->operation != GATHER) || call->root == rank);
}

/* The reduction of all inputs, before any output is written, as those may be the inputs. */
static void *reduction(struct call *const *calls, int ranks, size_t count) {
    const struct call *call = calls[0];
    const void **from = allocate((size_t)ranks * sizeof *from);
    for (int rank = 0; rank < ranks; rank++)
        from[rank] = calls[rank]->send;
    void *result = allocate(count * type_size(call->type));
    reduce(result, from, ranks, count, call);
    free(from);
    return result;
}

/* Where a block of a send or a receive buffer begins. */
static const void *sent(const struct call *call, int block, size_t bytes) {
    return (const char *)call->send + (size_t)block * bytes;
}

static void *received(const struct call *call, int block, size_t bytes) {
    return (char *)call->receive + (size_t)block * bytes;
}

void move(struct call *const *calls, int ranks) {
    const struct call *first = calls[0];
    int root = first->root;
    size_t bytes = first->count * type_size(first->type);
    bool reduces = first->operation == ALL_REDUCE || first->operation == REDUCE || first->operation == REDUCE_SCATTER;
    char *reduced = reduces ? reduction(calls, ranks, first->count * call_send_blocks(first, ranks)) : NULL;
    for (int rank = 0; rank < ranks; rank++) {
        const struct call *call = calls[rank];
        if (!call_writes(call, rank) || call->receive == NULL)
            continue;
        switch (first->operation) {
        case ALL_REDUCE:
        case REDUCE:
            memcpy(call->receive, reduced, bytes);
            break;
        case REDUCE_SCATTER:
            memcpy(call->receive, reduced + (size_t)rank * bytes, bytes);
            break;
        case BROADCAST:
            memmove(call->receive, calls[root]->send, bytes);
            break;
        case SCATTER:
            memmove(call->receive, sent(calls[root], rank, bytes), bytes);
            break;
        default:
            for (int peer = 0; peer < ranks; peer++)
                memmove(received(call, peer, bytes),
                    sent(calls[peer], first->operation == ALL_TO_ALL ? rank : 0, bytes), bytes);
        }
    }
    free(reduced);
}
