/* Ranks in several processes. What they bring to their collectives is in memory of the process that
 * made the id, which the others open below /proc. A wait looks every so often whether something has
 * come, since a peer may be killed at any point. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum {
    MOST_GATHERINGS = 128,
    MOST_RANKS = 16,
    GIFT_BYTES = 128,
    INPUT_BYTES = 16 << 20,
    MESSAGE_BYTES = 1 << 20,
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

/* The messages from one rank to another, of which the last one is here until it is taken. */
struct line {
    _Atomic uint64_t sent, taken;
    size_t count;
    ncclDataType_t type;
};

/* The ranks of one communicator. */
struct gathering {
    struct seat seats[MOST_RANKS];
    struct line lines[MOST_RANKS][MOST_RANKS];
    _Alignas(PAGE) char inputs[MOST_RANKS][INPUT_BYTES];
    char messages[MOST_RANKS][MOST_RANKS][MESSAGE_BYTES];
};

/* Which communicator each gathering is of. */
struct directory {
    _Alignas(PAGE) _Atomic uint64_t keys[MOST_GATHERINGS];
};

static void *map(int file, size_t offset, size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, (off_t)offset);
    return memory == MAP_FAILED ? NULL : memory;
}

static uint64_t mix(uint64_t key, uint64_t number) {
    return ((key ^ number) * 0x9e3779b97f4a7c15U) | 1;
}

/* The gathering of a communicator in a file, which the first of its ranks takes. */
static struct gathering *find(int file, uint64_t key) {
    struct directory *directory = map(file, 0, sizeof *directory);
    struct gathering *gathering = NULL;
    for (size_t i = 0; directory != NULL && i < MOST_GATHERINGS && gathering == NULL; i++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&directory->keys[i], &found, key) || found == key)
            gathering = map(file, sizeof *directory + i * sizeof *gathering, sizeof *gathering);
    }
    if (directory != NULL)
        munmap(directory, sizeof *directory);
    return gathering;
}

bool gathering_make_id(ncclUniqueId *id) {
    static int file, count;
    static pid_t owner;
    if (owner != getpid()) {
        file = memfd_create("fake-nccl", MFD_CLOEXEC);
        size_t size = sizeof(struct directory) + MOST_GATHERINGS * sizeof(struct gathering);
        if (file < 0 || ftruncate(file, (off_t)size) != 0)
            return false;
        owner = getpid();
    }
    snprintf(id->internal, sizeof id->internal, "fake nccl id %d %d %d", (int)owner, file, count++);
    return true;
}

bool gathering_open(struct clique *clique) {
    int owner, file, number;
    if (sscanf(clique->id.internal, "fake nccl id %d %d %d", &owner, &file, &number) != 3
        || clique->size > MOST_RANKS)
        return false;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", owner, file);
    clique->file = open(path, O_RDWR | O_CLOEXEC);
    clique->key = mix(mix((uint64_t)number + 1, 0), (uint64_t)clique->size);
    clique->gathering = clique->file >= 0 ? find(clique->file, clique->key) : NULL;
    return clique->gathering != NULL;
}

void gathering_of_group(const struct clique *parent, uint64_t number, int color, struct clique *clique) {
    if (parent->gathering == NULL)
        return;
    clique->file = parent->file;
    clique->key = mix(mix(parent->key, number + 1), (uint64_t)color + 1);
    clique->gathering = find(clique->file, clique->key);
    if (clique->gathering == NULL)
        abort();
}

bool gathering_take_seat(const struct communicator *communicator) {
    struct seat *seat = &communicator->clique->gathering->seats[communicator->rank];
    pid_t free_seat = 0;
    if (!atomic_compare_exchange_strong(&seat->process, &free_seat, getpid()))
        return false;
    seat->device = communicator->device;
    seat->capability = communicator->capability;
    seat->machine = communicator->machine;
    atomic_store(&seat->is_complete, true);
    return true;
}

bool gathering_is_complete(struct clique *clique) {
    if (clique->is_complete)
        return true;
    const struct gathering *gathering = clique->gathering;
    bool is_local = true;
    for (int rank = 0; rank < clique->size; rank++) {
        if (!atomic_load(&gathering->seats[rank].is_complete))
            return false;
        is_local = is_local && clique->members[rank] != NULL;
    }
    clique->is_complete = true;
    for (int rank = 0; rank < clique->size; rank++) {
        if (clique->members[rank] != NULL)
            continue;
        clique->members[rank] = communicator_new(clique, rank, NULL, false);
        clique->members[rank]->device = gathering->seats[rank].device;
        clique->members[rank]->capability = gathering->seats[rank].capability;
        clique->members[rank]->machine = gathering->seats[rank].machine;
    }
    if (is_local) {
        munmap(clique->gathering, sizeof *gathering);
        close(clique->file);
        clique->gathering = NULL;
    }
    return true;
}

void gathering_nap(void) {
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){0, 50000}, NULL);
    pthread_mutex_lock(&lock);
}

/* Waits until a counter of every rank's has come so far, or the communicator has ended. */
static bool wait_for_all(const struct communicator *communicator, size_t counter, uint64_t number,
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
    if (!wait_for_all(communicator, offsetof(struct seat, read), number - 1, communicator_stopped))
        return;
    seat->call = *call;
    if (call_reads(call, communicator->rank))
        memcpy(gathering->inputs[communicator->rank], call->send, bytes);
    atomic_store(&seat->posted, number);
    if (!wait_for_all(communicator, offsetof(struct seat, posted), number, communicator_stopped))
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

/* How far a message has come. */
enum progress { WAITING, SENT, DONE };

/* Moves a message along, if the earlier ones of this bundle in its line have gone. */
static void advance(
    const struct communicator *communicator, const struct call *calls, enum progress *progress, size_t index) {
    const struct call *call = &calls[index];
    for (size_t i = 0; i < index; i++) {
        if (calls[i].operation == call->operation && calls[i].root == call->root && progress[i] != DONE)
            return;
    }
    struct gathering *gathering = communicator->clique->gathering;
    bool sends = call->operation == SEND;
    int from = sends ? communicator->rank : call->root, to = sends ? call->root : communicator->rank;
    struct line *line = &gathering->lines[from][to];
    char *message = gathering->messages[from][to];
    size_t bytes = call->count * type_size(call->type);
    bool is_taken = atomic_load(&line->taken) == atomic_load(&line->sent);
    if (sends && progress[index] == SENT && is_taken) {
        progress[index] = DONE;
    } else if (sends && progress[index] == WAITING && is_taken) {
        line->count = call->count;
        line->type = call->type;
        memcpy(message, call->send, bytes);
        atomic_fetch_add(&line->sent, 1);
        progress[index] = SENT;
    } else if (!sends && !is_taken && line->count == call->count && line->type == call->type) {
        memcpy(call->receive, message, bytes);
        atomic_fetch_add(&line->taken, 1);
        progress[index] = DONE;
    }
}

static bool is_message(const struct call *call) {
    return call->operation == SEND || call->operation == RECEIVE;
}

void run_calls_of_processes(struct communicator *communicator, const struct call *calls, size_t count) {
    enum progress *progress = allocate((count + 1) * sizeof *progress);
    for (size_t i = 0; i < count; i++) {
        bool is_long = calls[i].count * type_size(calls[i].type) > MESSAGE_BYTES;
        if (is_message(&calls[i]) && is_long)
            note_violation("a message between processes is longer than %d bytes", MESSAGE_BYTES);
        if (!is_message(&calls[i]) || is_long)
            progress[i] = DONE;
    }
    bool is_done = false;
    while (!is_done && !communicator_stopped(communicator)) {
        is_done = true;
        for (size_t i = 0; i < count; i++) {
            if (progress[i] != DONE)
                advance(communicator, calls, progress, i);
            is_done = is_done && progress[i] == DONE;
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

struct assembly *assemble_processes(struct communicator *communicator, const char *kind, const void *gift, size_t size,
    void (*conclude)(struct clique *clique, struct assembly *assembly)) {
    struct clique *clique = communicator->clique;
    struct seat *seats = clique->gathering->seats, *own = &seats[communicator->rank];
    uint64_t number = ++communicator->assembled;
    if (size > GIFT_BYTES)
        abort();
    if (!wait_for_all(communicator, offsetof(struct seat, left), number - 1, communicator_ended))
        return NULL;
    own->kind = kind[0];
    if (size > 0)
        memcpy(own->gift, gift, size);
    atomic_store(&own->brought, number);
    if (!wait_for_all(communicator, offsetof(struct seat, brought), number, communicator_ended))
        return NULL;
    struct assembly *assembly = allocate(sizeof *assembly);
    assembly->number = number;
    assembly->gifts = allocate((size_t)clique->size * sizeof(void *));
    assembly->results = allocate((size_t)clique->size * sizeof(void *));
    for (int rank = 0; rank < clique->size; rank++) {
        assembly->gifts[rank] = memcpy(allocate(size + 1), seats[rank].gift, size);
        while (seats[rank].kind != kind[0]) {
            if (communicator_ended(communicator))
                return NULL;
            gathering_nap();
        }
    }
    atomic_store(&own->left, number);
    if (conclude != NULL)
        conclude(clique, assembly);
    return assembly;
}
