/* The calls of ranks in several processes. What they bring is in memory that all of them have. A
 * wait looks every so often whether something has come, since a peer may be killed at any point. */
#include <sys/mman.h>
#include <time.h>

#include "gathering.h"

size_t gathering_size(void) {
    return sizeof(struct gathering);
}

int gathering_most(void) {
    return MOST_RANKS;
}

struct gathering *gathering_map(int file, size_t offset) {
    void *memory = mmap(
        NULL, gathering_size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, (off_t)offset);
    return memory == MAP_FAILED ? NULL : memory;
}

int gathering_come(struct gathering *gathering, int ranks) {
    return atomic_fetch_add(&gathering->present, ranks) + ranks;
}

int *gathering_ends(struct gathering *gathering, int from, int to) {
    return &gathering->lines[from][to].ends;
}

void gathering_nap(void) {
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){0, 50000}, NULL);
    pthread_mutex_lock(&lock);
}

bool gathering_wait(const struct communicator *communicator, size_t counter, uint64_t number,
    bool (*ended)(const struct communicator *)) {
    const struct clique *clique = communicator->clique;
    for (int rank = 0; rank < clique->size;) {
        const char *seat = (const char *)&clique->gathering->seats[rank];
        if (atomic_load((const _Atomic uint64_t *)(seat + counter)) >= number)
            rank++;
        else if (ended(communicator))
            return false;
        else
            gathering_nap();
    }
    return true;
}

static void run_collective(struct communicator *communicator, const struct call *call) {
    const struct clique *clique = communicator->clique;
    struct gathering *gathering = clique->gathering;
    struct seat *seat = &gathering->seats[communicator->rank];
    uint64_t number = ++communicator->met;
    size_t bytes = call->count * type_size(call->type) * call_send_blocks(call, clique->size);
    if (bytes > INPUT_BYTES) {
        note_violation("a collective between processes has an input of %zu bytes", bytes);
        return;
    }
    if (!gathering_wait(communicator, offsetof(struct seat, read), number - 1, communicator_stopped))
        return;
    seat->call = *call;
    if (call_reads(call, communicator->rank))
        memcpy(gathering->inputs[communicator->rank], call->send, bytes);
    atomic_store(&seat->posted, number);
    if (!gathering_wait(communicator, offsetof(struct seat, posted), number, communicator_stopped))
        return;
    struct call calls[MOST_RANKS];
    struct call *pointers[MOST_RANKS];
    for (int rank = 0; rank < clique->size; rank++) {
        pointers[rank] = &calls[rank];
        calls[rank] = gathering->seats[rank].call;
        calls[rank].send = gathering->inputs[rank];
        calls[rank].receive = rank == communicator->rank ? call->receive : NULL;
        while (!calls_agree(&calls[0], &calls[rank])) {
            if (communicator_stopped(communicator))
                return;
            gathering_nap();
        }
    }
    pthread_mutex_unlock(&lock);
    move(pointers, clique->size);
    pthread_mutex_lock(&lock);
    atomic_store(&seat->read, number);
}

/* How many bytes of a message are in its line or were taken from there, and whether these are all
 * and the peer has them. */
struct progress {
    size_t moved;
    bool is_through, is_done;
};

/* Moves a message along, if the earlier ones of this bundle in its line have gone. */
static void advance(
    const struct communicator *communicator, const struct call *calls, struct progress *progress, size_t index) {
    const struct call *call = &calls[index];
    struct progress *own = &progress[index];
    for (size_t i = 0; i < index; i++) {
        if (calls[i].operation == call->operation && calls[i].root == call->root && !progress[i].is_done)
            return;
    }
    struct gathering *gathering = communicator->clique->gathering;
    bool sends = call->operation == SEND;
    int from = sends ? communicator->rank : call->root, to = sends ? call->root : communicator->rank;
    struct line *line = &gathering->lines[from][to];
    bool is_taken = atomic_load(&line->taken) == atomic_load(&line->sent);
    if (sends && is_taken && own->is_through)
        own->is_done = true;
    if (own->is_done || sends != is_taken)
        return;
    char *piece = gathering->pieces[from][to];
    size_t rest = call->count * type_size(call->type) - own->moved;
    size_t length = rest < PIECE_BYTES ? rest : PIECE_BYTES;
    if (sends) {
        line->count = call->count;
        line->type = call->type;
        memcpy(piece, (const char *)call->send + own->moved, length);
        atomic_fetch_add(&line->sent, 1);
    } else if (line->count == call->count && line->type == call->type) {
        memcpy((char *)call->receive + own->moved, piece, length);
        atomic_fetch_add(&line->taken, 1);
    } else {
        return;
    }
    own->moved += length;
    own->is_through = length == rest;
    own->is_done = own->is_through && !sends;
}

static bool is_message(const struct call *call) {
    return call->operation == SEND || call->operation == RECEIVE;
}

void run_calls_of_processes(struct communicator *communicator, const struct call *calls, size_t count) {
    struct progress *progress = allocate((count + 1) * sizeof *progress);
    bool is_done = false;
    while (!is_done && !communicator_stopped(communicator)) {
        is_done = true;
        for (size_t i = 0; i < count; i++) {
            if (!is_message(&calls[i]))
                continue;
            advance(communicator, calls, progress, i);
            is_done = is_done && progress[i].is_done;
        }
        if (!is_done)
            gathering_nap();
    }
    for (size_t i = 0; i < count && !communicator_stopped(communicator); i++) {
        if (!is_message(&calls[i]))
            run_collective(communicator, &calls[i]);
    }
    free(progress);
}

