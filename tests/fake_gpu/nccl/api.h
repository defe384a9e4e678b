/*
 * The interface of the fake NCCL: the part of NCCL 2.30's C interface that this library has, with
 * its names, layouts and numbers, and a few functions of its own.
 *
 * The model:
 *   - Ranks are threads, or up to 16 processes. Between processes an input has at most 16 MiB.
 *   - A collective is a host function on its stream. The stream is the fake driver's. This library
 *     finds the driver as libcuda.so.1, as the real library finds the real driver.
 *   - The n-th collective of each rank on a communicator belongs together. It waits for the other
 *     ranks' n-th, like a kernel that spins until its peers have come. The last rank to come moves
 *     the elements of all.
 *   - If these calls differ in operation, count, type, reduction or root, all ranks wait until the
 *     communicator is aborted.
 *   - Captured collectives run with every launch of their graph. Until their graphs are gone, the
 *     communicator does not end.
 *   - The first collective of all ranks, and the first message between two, wait on the host until
 *     the peers come.
 *
 * The library is stricter than NCCL. It records a violation for a mistake that NCCL may accept,
 * and returns an error too where it can. Violations are:
 *   - a call other than ncclCommGetAsyncError, ncclCommAbort and ncclGetLastError while the
 *     communicator is in progress
 *   - two threads inside one communicator, or its abort while another thread is inside; from 2.22
 *     on an abort in a group only sets flags, and the violation is ncclGroupEnd meanwhile
 *   - an abort of the child of a split that failed before an abort of the parent
 *   - the use of a communicator that was destroyed or aborted
 *   - a call other than those that end it on a communicator that was finalized or revoked
 *   - a current device that is not the communicator's
 *   - calls on different streams for one communicator in one group
 *   - a window that is registered twice, or differently on some ranks, or bound at different
 *     offsets because ranks deregistered others at different moments, or alive when its memory is
 *     freed
 *   - from 2.24 on, memory of ncclMemAlloc's that is freed after a captured call has used it, while
 *     the communicator is there and has not ended 11 groups since the graph was destroyed
 * Errors without a violation come from NCCL's own checks, and from buffers that overlap and are not
 * in place.
 *
 * A communicator that blocks keeps the caller until all ranks have come in init, split, window
 * registration, finalize and destroy. Abort flags end these waits, and those of collectives.
 *
 * A communicator with blocking = 0 returns ncclInProgress from init, finalize and revoke, and with
 * more than one rank from every collective call or group. Split and window registration return
 * ncclSuccess although they are in progress, as NCCL's do. A thread of the library finishes the
 * call, at once or 1 ms later. The handle of a new communicator is there at once. The handle of a
 * split or a window is there when the call is finished.
 *
 * The environment, read once: FAKE_NCCL, separated by commas:
 *   in_progress=FUNCTION:MS          on non-blocking communicators the function always returns
 *                                    ncclInProgress, and finishes after that time; on blocking
 *                                    ones, and if it is ncclCommAbort, it keeps the caller for that
 *                                    time
 *   fifo=N                           a collective keeps its caller as long as N of the
 *                                    communicator wait for the GPU
 *   late_handle=MS                   ncclCommInitRankConfig writes the communicator so much later
 *   never_in_progress                no function does: the library's thread is always faster
 *   fail=FUNCTION:NTH:RESULT[:RANK]  the nth call (from 1; of that rank, or of all ranks) fails,
 *                                    and so does the communicator; ncclInvalidArgument (4) does
 *                                    not end a blocking one
 *   async_error=NTH:RESULT:RANK      the rank's nth collective never completes, and its
 *                                    communicator has this error from then on
 *   stall=FUNCTION:NTH[:RANK]        the call does not return
 *   hang_abort                       ncclCommAbort does not return
 *   null_window                      windows are not supported: registration gives NULL
 * A rank is a rank of the communicator of the call. NCCL_MULTI_RANK_GPU_ENABLE=1 lets several ranks
 * share one device.
 *
 * FAKE_NCCL_VERSION, a macro, is the version, and decides which functions there are.
 */
#ifndef FAKE_NCCL_API_H
#define FAKE_NCCL_API_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 23007
#endif

#define EXPORT __attribute__((visibility("default")))

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow *ncclWindow_t;
typedef void *cudaStream_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8,
    ncclNumResults = 9,
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_API_MAGIC 0xcafebeefu
#define NCCL_WIN_COLL_SYMMETRIC 1
#define NCCL_WIN_STRICT_ORDERING 2
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

typedef struct {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
    int graphUsageMode;
    int numRmaCtx;
    int maxP2pPeers;
    int graphStreamOrdering;
} ncclConfig_t;

typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps } ncclRedOp_t;

typedef enum {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
    ncclNumTypes,
} ncclDataType_t;

typedef enum { ncclScalarDevice, ncclScalarHostImmediate } ncclScalarResidence_t;

/* How many there are now of: "communicator", "memory", "window". */
EXPORT size_t fake_nccl_live(const char *kind);

/* How often the function has been called, by all ranks. */
EXPORT uint64_t fake_nccl_calls(const char *function);

/* How many violations there were, and the text of one, or NULL. */
EXPORT size_t fake_nccl_violations(void);
EXPORT const char *fake_nccl_violation(size_t number);

/* The latest calls, a line each: "rank 0: ncclAllReduce count 12 type 7 op 0 in group". Good
 * until this thread's next call of it. */
EXPORT const char *fake_nccl_log(void);

#endif
