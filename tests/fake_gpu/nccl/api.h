/*
 * The fake NCCL's public face: what of NCCL 2.30's C interface this library has, with its names, layouts and numbers, and a
 * few functions of its own.
 *
 * The model. All ranks are threads of one process. A collective is a host function on its stream (of the fake driver, which
 * is found as libcuda.so.1, as the real library finds the real one). The n-th collective that a rank comes to on a
 * communicator meets the others' n-th, like a kernel that spins until its peers come; the last one to come moves the
 * elements of all. Where the calls that meet differ in operation, count, type, reduction or root, nobody ever goes on, until
 * the communicator is aborted. Captured collectives work again with every launch of their graph.
 *
 * It is stricter than NCCL. What a program must not do although NCCL may let it pass is a violation, which is returned as an
 * error where that is possible and noted down either way:
 *   any call but ncclCommGetAsyncError, ncclCommAbort and ncclGetLastError while the communicator is in progress
 *   two threads inside one communicator, and an abort while another thread is inside
 *   a communicator that was destroyed or aborted, also in a graph; a finalized or revoked one, but to end it
 *   a current device that is not the communicator's
 *   calls on different streams for one communicator in one group
 *   a window registered twice, differently on some ranks, bound at different offsets because ranks deregistered others at
 *   different moments, or alive when its memory is freed
 * Errors without a violation are those of NCCL's own checks, and of buffers that overlap in a way that is not one of the
 * legal forms of working in place.
 *
 * A communicator with blocking = 0 answers ncclInProgress to init, finalize and revoke, and with more than one rank to every
 * collective call or group. Split and window registration answer ncclSuccess although they are in progress, as NCCL's do. A
 * thread of the library finishes the call, at once or 1 ms later. The handle of a new communicator is there at once, those of
 * split and window registration when it is finished.
 *
 * The environment, read once: FAKE_NCCL, comma-separated:
 *   in_progress=FUNCTION:MS            the function always answers ncclInProgress on non-blocking communicators, for so long
 *   never_in_progress                  none does: the library's thread is always faster than the answer
 *   fail=FUNCTION:NTH:RESULT[:RANK]    the nth call (from 1; of that rank, or of all) fails; so does the communicator, but for
 *                                      ncclInvalidArgument (4) on one that blocks
 *   async_error=NTH:RESULT:RANK        the rank's nth collective never completes, and its communicator has this error from
 *                                      then on
 *   stall=FUNCTION:NTH[:RANK]          the call does not return
 *   hang_abort                         ncclCommAbort does not return
 *   null_window                        windows are not supported: registration gives NULL
 * A rank is that of the communicator at hand. NCCL_MULTI_RANK_GPU_ENABLE=1 allows several ranks on one device.
 *
 * FAKE_NCCL_VERSION at compile time is the version, and decides which functions there are.
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
