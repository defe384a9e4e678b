/* What the files of the fake NCCL share. One lock guards everything; it is not held while
 * elements move. */
#ifndef FAKE_NCCL_INTERNAL_H
#define FAKE_NCCL_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

extern pthread_mutex_t lock;
/* Signalled when anything has changed that a thread may wait for. */
extern pthread_cond_t changed;

/* malloc that cannot fail, zeroed. */
void *allocate(size_t size);
__attribute__((noreturn)) void hang(void);

#define TRY(expression)                    \
    do {                                   \
        ncclResult_t tried = (expression); \
        if (tried != ncclSuccess)          \
            return tried;                  \
    } while (0)

/* The driver. */
struct driver {
    int (*context_get_current)(void **context);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*context_get_device)(int *device);
    int (*device_get_attribute)(int *value, int attribute, int device);
    int (*pointer_get_attribute)(void *data, int attribute, unsigned long long address);
    int (*stream_is_capturing)(void *stream, int *status);
    int (*stream_get_capture_info)(void *stream, int *status, unsigned long long *id, void **graph,
        const void *const **dependencies, size_t *count);
    int (*user_object_create)(
        void **object, void *value, void (*destroy)(void *value), unsigned references, unsigned flags);
    int (*graph_retain_user_object)(void *graph, void *object, unsigned count, unsigned flags);
    int (*launch_host_function)(void *stream, void (*function)(void *data), void *data);
    int (*wait_as_free)(void);
    int (*memory_map)(unsigned long long *address, size_t size);
    int (*memory_unmap)(unsigned long long address);
};
/* NULL where there is none. */
const struct driver *driver(void);

/* The script. */
bool script_has(const char *flag);
/* For how many milliseconds the function is to be in progress, or -1. */
int script_in_progress(const char *function);
/* How many collectives may wait for the GPU, or -1. */
int script_fifo(void);
/* After how many milliseconds a communicator that is made is written. */
int script_late_handle(void);
/* The result with which the call is to fail, or ncclSuccess. */
ncclResult_t script_failure(const char *function, uint64_t calls, uint64_t calls_of_rank, int rank);
bool script_stall(const char *function, uint64_t calls, uint64_t calls_of_rank, int rank);
ncclResult_t script_async_error(uint64_t collective, int rank);

/* Reports. With the lock held. */
__attribute__((format(printf, 1, 2))) void note_violation(const char *format, ...);
void note_call(int rank, const char *function, const char *details);
/* Counts a call of a rank; rank -1 is all of them. */
uint64_t count_call(const char *function, int rank);
/* Keeps the text for ncclGetLastError and returns the result. */
__attribute__((format(printf, 2, 3))) ncclResult_t failure(ncclResult_t result, const char *format, ...);

enum operation {
    ALL_REDUCE,
    ALL_GATHER,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SEND,
    RECEIVE,
};

/* One rank's call of an operation. */
struct call {
    enum operation operation;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    /* The root, or the peer. */
    int root;
    /* What the script wants to become of it. */
    ncclResult_t async_error;
    /* What a reduction multiplies each element by, or 0 for nothing. */
    double scale;
};
size_t type_size(ncclDataType_t type);
/* Whether this rank's call reads its send buffer and writes its receive buffer, and how many
 * blocks these have. */
bool call_reads(const struct call *call, int rank);
bool call_writes(const struct call *call, int rank);
size_t call_send_blocks(const struct call *call, int size);
size_t call_receive_blocks(const struct call *call, int size);

/* Reduces `count` elements of every rank's buffer. */
void reduce(void *to, const void *const *from, int ranks, size_t count, const struct call *call);
/* The value of an element of a floating-point type. */
bool is_float(ncclDataType_t type);
double load_float(ncclDataType_t type, const void *from, size_t i);
/* Moves the elements of a collective, all ranks' calls at hand, to those that have an output. */
void move(struct call *const *calls, int ranks);
struct communicator;

/* Does what calls say when the peers come to theirs: all sends and receives are under way together,
 * the collectives go one after the other meanwhile. (Between processes the collectives come after
 * the sends and receives.) With the lock held. */
void run_calls(struct communicator *communicator, const struct call *calls, size_t count);

/* Whether the ranks' kernels find each other and come to an end. NCCL compares nothing: with
 * another reduction they do too, and the result is nothing that the ranks have asked for. */
bool calls_agree(const struct call *one, const struct call *other);

struct meeting;
struct assembly;
struct transfer;

/* The ranks of a communicator. */
struct clique {
    struct clique *next;
    ncclUniqueId id;
    int size;
    /* Whether all ranks are there. */
    bool is_complete;
    /* Where ranks of several processes meet, or NULL; and in which file it is under which key. */
    struct gathering *gathering;
    int file;
    uint64_t key;
    struct communicator **members;
    struct meeting *meetings;
    struct assembly *assemblies;
    struct transfer *transfers;
    /* For each two ranks, the bits by which they tell each other that they have come to a first
     * call (enum end in bundle.c). Atomic. */
    int *ends;
};
struct clique *clique_new(int size);

/* What communicators with shared resources have in common: whether they were aborted. */
struct fate {
    bool aborted;
};

enum stage { ALIVE, FINALIZED, REVOKED, DESTROYED, ABORTED };

/* One rank of it. It stays in memory when it is destroyed. */
struct communicator {
    struct communicator *next;
    struct clique *clique;
    struct fate *fate;
    void *context;
    int rank, device, capability;
    /* Which machine it is on, as NCCL_HOSTID says. */
    uint64_t machine;
    bool blocking, share;
    /* The parent of a split that failed, which still refers to this child (childAbortFlag in
     * init.cc), or NULL. */
    const struct communicator *parent;
    enum stage stage;
    ncclResult_t async_error;
    /* A thread of the library works on it. */
    bool pending;
    /* How many calls of the thread `visitor` are inside. */
    int inside;
    pthread_t visitor;
    /* That thread only sets the abort flags, beside any other. */
    bool visitor_aborts;
    uint64_t collective_calls;
    /* Bundles that were put on streams, those that are through, and whether one works now. */
    uint64_t enqueued, executed;
    int running;
    bool busy;
    /* How many of its bundles graphs have. Atomic. */
    int graph_uses;
    /* How many collectives and assemblies it has come to. */
    uint64_t met, assembled;
    /* The reductions that were made for it: sums of elements that are multiplied first. */
    struct {
        ncclDataType_t type;
        double scale;
    } made[16];
    unsigned made_count;
};

struct communicator *communicator_new(struct clique *clique, int rank, struct fate *fate, bool blocking);
ncclComm_t communicator_handle(struct communicator *communicator);
/* Whether nothing of it shall wait any more, and whether no collective shall. */
bool communicator_ended(const struct communicator *communicator);
bool communicator_stopped(const struct communicator *communicator);

/* What a function allows. */
enum allowance {
    MAY_BE_IN_PROGRESS = 1,
    MAY_HAVE_FAILED = 2,
    MAY_BE_FINALIZED = 4,
    MAY_BE_REVOKED = 8,
    ON_ANY_DEVICE = 16,
    IN_GROUP = 32,
    BESIDE_OTHERS = 64,
    IN_ANY_STATE = MAY_HAVE_FAILED | MAY_BE_FINALIZED | MAY_BE_REVOKED | ON_ANY_DEVICE,
};
/* Begins a call on a communicator: counts and notes it, lets scripted faults happen, checks the
 * communicator and who else is inside. If it gives success, leave must follow. */
__attribute__((format(printf, 5, 6))) ncclResult_t enter(const char *function,
    ncclComm_t handle, int allowances, struct communicator **communicator, const char *details, ...);
ncclResult_t leave(struct communicator *communicator, ncclResult_t result);
/* The same for a call without one. */
ncclResult_t enter_without(const char *function, int rank, const char *details);

/* Does the rest of a call, at once, or on a thread of the library if the call is to be in
 * progress. */
typedef ncclResult_t (*work_function)(struct communicator *communicator, void *argument);
ncclResult_t complete(
    const char *function, struct communicator *communicator, bool collective, work_function work, void *argument);

/* What split and window registration answer: success while they are in progress. NCCL 2.30.7 ends
 * their groups with NCCLCHECK, which passes over ncclInProgress (checks.h), and returns the result
 * from before (ncclCommSplit in init.cc, ncclCommWindowRegister in dev_runtime.cc). */
ncclResult_t hide_progress(ncclResult_t result);

struct bundle;
/* `complete` for the bundles of a group: they are enqueued in their order, by one thread, and in
 * progress together, as NCCL does it, so that ranks with several communicators come to their
 * collectives in one order. */
ncclResult_t complete_group(const char *function, struct bundle *bundles);

/* Meeting on the host: returns when all ranks have come, or NULL when the communicator has
 * ended. With the lock held. The last one to come calls `conclude`. */
struct assembly {
    struct assembly *next;
    uint64_t number;
    const char *kind;
    int arrived, left;
    bool complete;
    /* What each rank brings, and what comes of it. */
    void **gifts;
    void **results;
    int verdict;
};
struct assembly *assemble(struct communicator *communicator, const char *kind, void *gift, size_t size,
    void (*conclude)(struct clique *clique, struct assembly *assembly));
void assembly_leave(struct communicator *communicator, struct assembly *assembly);

/* Ranks in several processes: gathering.c. */
size_t gathering_size(void);
/* How many ranks it can have. */
int gathering_most(void);
/* The gathering in a file, or NULL. */
struct gathering *gathering_map(int file, size_t offset);
/* Adds so many ranks to those who have come, and returns how many these are now. */
int gathering_come(struct gathering *gathering, int ranks);
/* Lets go of the lock for a moment. */
void gathering_nap(void);
/* The place in `ends` of a clique that has a gathering. */
int *gathering_ends(struct gathering *gathering, int from, int to);
/* run_calls, for ranks of several processes. */
void run_calls_of_processes(struct communicator *communicator, const struct call *calls, size_t count);

/* How they find each other: processes.c. With the lock held. */
bool gathering_make_id(ncclUniqueId *id);
/* Opens the gathering of a clique's id. */
bool gathering_open(struct clique *clique);
/* The gathering of a group that is split off in this assembly, if the parent has one. */
void gathering_of_group(const struct clique *parent, uint64_t number, int color, struct clique *clique);
bool gathering_take_seat(const struct communicator *communicator);
/* Whether all ranks are there. If they are of this process, the gathering ends. */
bool gathering_is_complete(struct clique *clique);
/* As assemble. */
struct assembly *assemble_processes(struct communicator *communicator, const char *kind, const void *gift, size_t size,
    void (*conclude)(struct clique *clique, struct assembly *assembly));

/* Calls that go on a stream together. */
struct bundle {
    struct bundle *next;
    struct communicator *communicator;
    cudaStream_t stream;
    bool captured;
    uint64_t turn;
    size_t count;
    struct call calls[];
};
/* Tells the peers that this rank comes, for a first call. With and without the lock. */
void bundle_announce(const struct bundle *bundle);
/* Puts it on its stream, as work for `complete`. */
ncclResult_t bundle_enqueue(struct communicator *communicator, void *bundle);

/* Whether the calling thread has opened a group, and what goes into it. */
bool group_is_open(void);
void group_fail(ncclResult_t result);
void group_add_call(struct communicator *communicator, const struct call *call, cudaStream_t stream);
void group_add_init(struct communicator *communicator);
void group_add_abort(struct communicator *communicator);

/* Frees a communicator whose abort flags are set, when nothing of it works any more. */
void abort_finish(struct communicator *communicator);

/* Joins a communicator's ranks, as work for `complete`. */
ncclResult_t join_ranks(struct communicator *communicator, void *nothing);
/* Makes a configuration of what the caller gave, which may be NULL. */
ncclResult_t read_config(const ncclConfig_t *given, ncclConfig_t *config);

/* Where the memory of ncclMemAlloc's in which the bytes lie begins, or NULL. */
const char *memory_start(const char *address, size_t size);
/* Whether a window of the communicator, or of any, touches the bytes. */
bool window_overlaps(const struct communicator *communicator, const char *address, size_t size);

/* Has a function called with a value when the graph that the stream records is gone. It must take
 * no lock. Gives the driver's error. */
int at_end_of_graph(cudaStream_t stream, void (*function)(void *value), void *value);
/* Registers what the calls of a bundle that is being captured use of ncclMemAlloc's memory. Gives
 * the driver's error. Without the lock. */
int register_captured(const struct bundle *bundle);
/* The communicator has ended a group. */
void registration_end_group(const struct communicator *communicator);
/* Whether a living communicator has registered memory of ncclMemAlloc's that begins here. */
bool is_registered(const char *memory);

size_t memory_live(void);
size_t window_live(void);

/* The windows of a communicator go with it. */
void window_forget(const struct communicator *communicator);
size_t communicator_live(void);

#endif
