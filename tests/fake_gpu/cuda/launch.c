/* Modules, kernels and host functions. */
#include "internal.h"

/* The version of the compiler follows. */
#define IMAGE "FAKE CUBIN "
#define PTX "// FAKE PTX "
#define MOST_THREADS_OF_A_BLOCK 1024

/* The project's kernels, where they are linked in. */
__attribute__((weak)) kernel_function dcl_host_kernel(const char *name);
__attribute__((weak)) size_t dcl_host_kernel_arguments(const char *name);

struct module {
    struct context *context;
    struct function *functions;
};

struct function {
    struct function *next;
    struct module *module;
    kernel_function kernel;
    size_t arguments;
    CUfunction handle;
};

struct fill {
    uint32_t *at;
    uint64_t count;
    uint32_t value;
};

/* The library's own kernel: a grid-stride loop that fills. */
static void fake_fill(const void *arguments, unsigned grid, unsigned block) {
    const struct fill *fill = arguments;
    uint64_t stride = (uint64_t)grid * block;
    for (uint64_t thread = 0; thread < stride; thread++) {
        for (uint64_t i = thread; i < fill->count; i += stride)
            fill->at[i] = fill->value;
    }
}

static CUresult load(CUmodule *handle) {
    TRY(refuse_unsafe_call());
    struct module *module = allocate(sizeof *module);
    module->context = current_context();
    context_drain_held(module->context);
    *handle = handle_new(HANDLE_MODULE, module);
    return CUDA_SUCCESS;
}

static CUresult check_image(CUmodule *module, const void *image) {
    if (module == NULL || image == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_ptx = strncmp(image, PTX, strlen(PTX)) == 0;
    if (!is_ptx && strncmp(image, IMAGE, strlen(IMAGE)) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    bool is_newer = atol((const char *)image + strlen(is_ptx ? PTX : IMAGE)) > driver_version() / 1000;
    return !is_newer ? CUDA_SUCCESS : is_ptx ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_INVALID_IMAGE;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER(CONTEXT);
    TRY(check_image(module, image));
    return LOCKED(load(module));
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    ENTER(CONTEXT);
    TRY(check_image(module, image));
    return count > 0 && (options == NULL || values == NULL) ? CUDA_ERROR_INVALID_VALUE : LOCKED(load(module));
}

static CUresult unload(CUmodule handle) {
    TRY(refuse_unsafe_call());
    struct module *module = handle_get(HANDLE_MODULE, handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    context_drain(module->context);
    while (module->functions != NULL) {
        struct function *function = module->functions;
        module->functions = function->next;
        handle_drop(HANDLE_FUNCTION, function->handle);
        free(function);
    }
    handle_drop(HANDLE_MODULE, handle);
    free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    ENTER(CONTEXT);
    return LOCKED(unload(module));
}

static CUresult get_function(CUfunction *handle, CUmodule module_handle, const char *name) {
    struct module *module = handle_get(HANDLE_MODULE, module_handle);
    if (module == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    kernel_function kernel = NULL;
    size_t arguments = 0;
    if (strcmp(name, "fake_fill") == 0) {
        kernel = fake_fill;
        arguments = sizeof(struct fill);
    } else if (dcl_host_kernel != NULL) {
        kernel = dcl_host_kernel(name);
        arguments = dcl_host_kernel_arguments != NULL ? dcl_host_kernel_arguments(name) : 0;
    }
    if (kernel == NULL)
        return CUDA_ERROR_NOT_FOUND;
    if (arguments == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct function *function = allocate(sizeof *function);
    *function = (struct function){
        .next = module->functions, .module = module, .kernel = kernel, .arguments = arguments};
    module->functions = function;
    *handle = function->handle = handle_new(HANDLE_FUNCTION, function);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER(CONTEXT);
    return function == NULL || name == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(get_function(function, module, name));
}

static CUresult launch(CUfunction handle, unsigned grid, unsigned block, CUstream stream_handle, void **parameters) {
    struct function *function = handle_get(HANDLE_FUNCTION, handle);
    struct stream *stream;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(stream_for_work(stream_handle, &stream));
    if (function->module->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    struct operation operation = {
        .kind = OPERATION_KERNEL,
        .kernel = {function->kernel, grid, block, function->arguments, parameters[0]},
    };
    return stream_submit(stream, &operation);
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
    unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra) {
    ENTER(CONTEXT);
    if (grid_x == 0 || grid_x > 0x7fffffff || grid_y != 1 || grid_z != 1 || block_x == 0
        || block_x > MOST_THREADS_OF_A_BLOCK || block_y != 1 || block_z != 1 || shared_bytes != 0 || parameters == NULL
        || parameters[0] == NULL || extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(launch(function, grid_x, block_x, stream, parameters));
}

static CUresult launch_function(CUstream handle, kernel_function function, const void *arguments, size_t size) {
    struct stream *stream;
    TRY(stream_for_work(handle, &stream));
    struct operation operation = {.kind = OPERATION_KERNEL, .kernel = {function, 1, 1, size, (void *)arguments}};
    return stream_submit(stream, &operation);
}

EXPORT CUresult fake_cuda_launch(CUstream stream, fake_kernel function, const void *arguments, size_t size) {
    ENTER(CONTEXT);
    return LOCKED(launch_function(stream, function, arguments, size));
}

static CUresult launch_host(CUstream handle, CUhostFn function, void *data) {
    struct stream *stream;
    TRY(stream_for_work(handle, &stream));
    struct operation operation = {.kind = OPERATION_HOST, .host = {.function = function, .data = data}};
    return stream_submit(stream, &operation);
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    ENTER(CONTEXT);
    return function == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(launch_host(stream, function, data));
}
