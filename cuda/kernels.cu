/* All kernels: what CI compiles for every device, and for the host, where they can be looked up by name. */
#include "kernels.h"

#include "list.h"

#ifndef __CUDACC__

#undef DCL_CAST
#undef DCL_NORMALIZE_BOOL
#undef DCL_DIVIDE
#undef DCL_REDUCE
#undef DCL_TRANSPOSE
#undef DCL_TRANSPOSE_TILED

#define DCL_ENTRY(NAME, ARGUMENTS) {#NAME, NAME, sizeof(struct ARGUMENTS)},
#define DCL_CAST(FROM, TO) DCL_ENTRY(dcl_cast_##FROM##_##TO, dcl_cast_arguments)
#define DCL_NORMALIZE_BOOL() DCL_ENTRY(dcl_normalize_bool, dcl_cast_arguments)
#define DCL_DIVIDE(TO) DCL_ENTRY(dcl_divide_##TO, dcl_divide_arguments)
#define DCL_REDUCE(TYPE, OPERATION) DCL_ENTRY(dcl_reduce_##TYPE##_##OPERATION, dcl_reduce_arguments)
#define DCL_TRANSPOSE(BYTES) DCL_ENTRY(dcl_transpose_##BYTES, dcl_transpose_arguments)
#define DCL_TRANSPOSE_TILED(BYTES) DCL_ENTRY(dcl_transpose_tiled_##BYTES, dcl_transpose_tiled_arguments)

static const struct {
    const char *name;
    dcl_host_kernel_fn kernel;
    size_t arguments;
} dcl_host_kernels[] = {
#include "list.h"
};

dcl_host_kernel_fn dcl_host_kernel(const char *name)
{
    for (size_t i = 0; i < sizeof dcl_host_kernels / sizeof dcl_host_kernels[0]; i++)
        if (strcmp(dcl_host_kernels[i].name, name) == 0)
            return dcl_host_kernels[i].kernel;
    return NULL;
}

size_t dcl_host_kernel_arguments(const char *name)
{
    for (size_t i = 0; i < sizeof dcl_host_kernels / sizeof dcl_host_kernels[0]; i++)
        if (strcmp(dcl_host_kernels[i].name, name) == 0)
            return dcl_host_kernels[i].arguments;
    return 0;
}

#endif
