/* Macros with which one text is a kernel of the device, compiled by NVRTC, and a function of the
 * host, compiled as C11.
 *
 * A kernel takes one structure by value, and works with any one-dimensional grid of blocks of
 * DCL_BLOCK threads. On the host it is a function that runs the blocks one after the other, and
 * in each block the threads one after the other.
 *
 * DCL_KERNEL(NAME, ARGUMENTS) begins the definition of a kernel, whose body sees `arguments`. In
 * the body, DCL_BLOCK_INDEX is the block, DCL_GRID the number of blocks, and
 *     DCL_THREADS(thread) { ... }    is the code of every thread;
 *     DCL_PHASE(thread) { ... }      is the same, and ends for all threads of the block together;
 *     DCL_SHARED(TYPE, name, [N])    is memory of the block: a phase writes it, the next reads it.
 * Code between phases has the same values in every thread.
 *
 * Results have the same bits everywhere. So NVRTC is called with --fmad=false, because
 * contraction changes bits, with --ftz=false, which keeps subnormal numbers, and with
 * --prec-div=true for the divisions of IEEE 754. On the host -ffp-contract=off does the same. */
#ifndef DCL_LAUNCH_H
#define DCL_LAUNCH_H

#define DCL_BLOCK 256u

/* The index of a thread among those of all blocks, and their number. */
#define DCL_THREAD_INDEX(thread) ((unsigned long long)DCL_BLOCK_INDEX * DCL_BLOCK + thread)
#define DCL_THREAD_COUNT ((unsigned long long)DCL_GRID * DCL_BLOCK)

#ifdef __CUDACC__

#define DCL_INLINE static __device__ __forceinline__
#define DCL_UNROLL _Pragma("unroll")
#define DCL_NO_UNROLL _Pragma("unroll 1")
#define DCL_BLOCK_INDEX blockIdx.x
#define DCL_GRID gridDim.x
#define DCL_KERNEL(NAME, ARGUMENTS) \
    extern "C" __global__ void __launch_bounds__(DCL_BLOCK) NAME(const struct ARGUMENTS arguments)
#define DCL_THREADS(thread) for (unsigned thread = threadIdx.x, once = 1; once; once = 0)
#define DCL_PHASE(thread) for (unsigned thread = threadIdx.x, once = 1; once; once = 0, __syncthreads())
#define DCL_SHARED(TYPE, name, extent) __shared__ TYPE name extent

#else

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DCL_INLINE static inline
#define DCL_UNROLL
#define DCL_NO_UNROLL
#define DCL_BLOCK_INDEX dcl_block_index
#define DCL_GRID dcl_grid
#define DCL_KERNEL(NAME, ARGUMENTS) \
    enum { NAME##_argument_bytes = sizeof(struct ARGUMENTS) }; \
    static void NAME##_block(struct ARGUMENTS arguments, unsigned dcl_block_index, unsigned dcl_grid); \
    static void NAME(const void *bytes, unsigned grid, unsigned block) \
    { \
        struct ARGUMENTS arguments; \
        memcpy(&arguments, bytes, sizeof arguments); \
        if (block != DCL_BLOCK) \
            abort(); \
        for (unsigned i = 0; i < grid; i++) \
            NAME##_block(arguments, i, grid); \
    } \
    static void NAME##_block(struct ARGUMENTS arguments, unsigned dcl_block_index, unsigned dcl_grid)
#define DCL_THREADS(thread) for (unsigned thread = 0; thread < DCL_BLOCK; thread++)
#define DCL_PHASE(thread) DCL_THREADS(thread)
#define DCL_SHARED(TYPE, name, extent) TYPE name extent

#endif

#endif
