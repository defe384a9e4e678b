// What the fake driver has besides CUDA's interface, and how a kernel of NCCL is launched on it.
#pragma once

#include <cuda.h>

#include <cstddef>

extern "C" {
CUresult fake_cuda_map(CUdeviceptr *address, size_t size);
CUresult fake_cuda_unmap(CUdeviceptr address);

// Has a stream call a function with a copy of these bytes, as it runs a kernel with its arguments.
CUresult fake_cuda_launch(CUstream stream,
    void (*function)(const void *arguments, unsigned grid, unsigned block), const void *arguments,
    size_t size);
}

// It is there where NCCL's host code is.
__attribute__((weak)) CUresult launch_nccl_kernel(
    CUfunction kernel, const void *arguments, size_t size, unsigned grid, CUstream stream);

// A function of CUDA that its header has for itself only.
extern "C" CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
    cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count);
