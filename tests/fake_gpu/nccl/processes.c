/* Ranks in several processes: how they find each other, and what they exchange on the host. They
 * meet in memory of the process that made the id, which the others open below /proc. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gathering.h"

#define MOST_GATHERINGS 128

/* Which communicator each gathering is of. */
struct directory {
    _Alignas(PAGE) _Atomic uint64_t keys[MOST_GATHERINGS];
};

static uint64_t mix(uint64_t key, uint64_t number) {
    return ((key ^ number) * 0x9e3779b97f4a7c15U) | 1;
}

/* The gathering of a communicator in a file, which the first of its ranks takes. */
static struct gathering *find(int file, uint64_t key) {
    struct directory *directory = mmap(NULL, sizeof *directory, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct gathering *gathering = NULL;
    if (directory == MAP_FAILED)
        return NULL;
    for (size_t i = 0; i < MOST_GATHERINGS && gathering == NULL; i++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&directory->keys[i], &found, key) || found == key)
            gathering = gathering_map(file, sizeof *directory + i * gathering_size());
    }
    munmap(directory, sizeof *directory);
    return gathering;
}

bool gathering_make_id(ncclUniqueId *id) {
    static int file, count;
    static pid_t owner;
    if (owner != getpid()) {
        file = memfd_create("fake-nccl", MFD_CLOEXEC);
        size_t size = sizeof(struct directory) + MOST_GATHERINGS * gathering_size();
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

struct assembly *assemble_processes(struct communicator *communicator, const char *kind, const void *gift, size_t size,
    void (*conclude)(struct clique *clique, struct assembly *assembly)) {
    struct clique *clique = communicator->clique;
    struct seat *seats = clique->gathering->seats, *own = &seats[communicator->rank];
    uint64_t number = ++communicator->assembled;
    if (size > GIFT_BYTES)
        abort();
    if (!gathering_wait(communicator, offsetof(struct seat, left), number - 1, communicator_ended))
        return NULL;
    own->kind = kind[0];
    if (size > 0)
        memcpy(own->gift, gift, size);
    atomic_store(&own->brought, number);
    if (!gathering_wait(communicator, offsetof(struct seat, brought), number, communicator_ended))
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
