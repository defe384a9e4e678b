/* Devices, and their contexts. */
#include "internal.h"

#define CUDA_VERSION 13000
#define DEEPEST_STACK 16
#define COMPUTE_CAPABILITY_MAJOR 75
#define COMPUTE_CAPABILITY_MINOR 76
#define MEMORY_POOLS_SUPPORTED 115

bool initialized, is_over;

static struct context *primaries[MOST_DEVICES];
static _Thread_local CUcontext stack[DEEPEST_STACK];
static _Thread_local int depth;

int device_count(void) {
    long count = environment_number("FAKE_CUDA_DEVICES", 8);
    return count < 0 ? 0 : count > MOST_DEVICES ? MOST_DEVICES : (int)count;
}

static bool is_device(CUdevice device) {
    return device >= 0 && device < device_count();
}

struct context *current_context(void) {
    return depth > 0 ? handle_get(HANDLE_CONTEXT, stack[depth - 1]) : NULL;
}

bool context_is_alive(const struct context *context) {
    return context->retained > 0;
}

static CUresult initialize(void) {
    if (device_count() == 0)
        return CUDA_ERROR_NO_DEVICE;
    initialized = true;
    return CUDA_SUCCESS;
}

/* The real driver's exit handler takes contexts apart, under threads that still use them. Calls
 * that come while it works, or later, end the process with an error. */
static void take_apart(void) {
    pthread_mutex_lock(&lock);
    is_over = true;
    pthread_mutex_unlock(&lock);
    long milliseconds = environment_number("FAKE_CUDA_EXIT_MS", 0);
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void register_exit(void) {
    if (atexit(take_apart) != 0)
        abort();
}

EXPORT CUresult cuInit(unsigned flags) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    ENTER(NOTHING);
    pthread_once(&once, register_exit);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(initialize());
}

long driver_version(void) {
    return environment_number("FAKE_CUDA_VERSION", CUDA_VERSION);
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    ENTER(NOTHING);
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = (int)driver_version();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    ENTER(INITIALIZED);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(INITIALIZED);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    ENTER(INITIALIZED);
    if (name == NULL || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER(INITIALIZED);
    if (value == NULL || attribute <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    long capability = environment_number("FAKE_CUDA_SM", 90);
    static const struct {
        int attribute, value;
    } values[] = {
        {1, 1024},       /* threads per block */
        {2, 1024},       /* block, x */
        {3, 1024},       /* block, y */
        {4, 64},         /* block, z */
        {5, 2147483647}, /* grid, x */
        {6, 65535},      /* grid, y */
        {7, 65535},      /* grid, z */
        {8, 49152},      /* shared memory per block */
        {10, 32},        /* warp */
        {16, 4},         /* multiprocessors */
        {39, 2048},      /* threads per multiprocessor */
        {40, 3},         /* asynchronous engines */
        {41, 1},         /* unified addressing */
        {102, 1},        /* virtual memory management */
    };
    *value = attribute == COMPUTE_CAPABILITY_MAJOR ? (int)(capability / 10)
           : attribute == COMPUTE_CAPABILITY_MINOR ? (int)(capability % 10)
           : attribute == MEMORY_POOLS_SUPPORTED   ? (int)environment_number("FAKE_CUDA_POOLS", 0)
                                                   : 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (values[i].attribute == attribute)
            *value = values[i].value;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(INITIALIZED);
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = (size_t)environment_number("FAKE_CUDA_MEMORY", 1L << 30);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice device) {
    ENTER(INITIALIZED);
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid, "a fake GPU's id", 15);
    uuid[15] = (unsigned char)device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device) {
    ENTER(INITIALIZED);
    if (id == NULL || size < 13)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)(device + 1) & 0xff);
    return CUDA_SUCCESS;
}

struct context *device_context(int device) {
    return is_device(device) && primaries[device] != NULL ? primaries[device] : current_context();
}

static CUresult retain(CUcontext *handle, CUdevice device) {
    struct context *context = primaries[device];
    if (context == NULL) {
        context = primaries[device] = allocate(sizeof *context);
        context->device = device;
        context->handle = handle_new(HANDLE_CONTEXT, context);
        context->default_stream = stream_new(context, 0);
    }
    context->retained++;
    *handle = context->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER(INITIALIZED);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return is_device(device) ? LOCKED(retain(context, device)) : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    ENTER(INITIALIZED);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *is_active = LOCKED(primaries[device] != NULL && context_is_alive(primaries[device]));
    return CUDA_SUCCESS;
}

/* Contexts that have gone stay in memory: streams, events and memory that outlive them point
 * there. */
static struct context *gone;

static CUresult release(CUdevice device) {
    struct context *context = primaries[device];
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retained == 0) {
        handle_drop(HANDLE_CONTEXT, context->handle);
        stream_close(context->default_stream);
        context->default_stream = NULL;
        primaries[device] = NULL;
        context->next = gone;
        gone = context;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(INITIALIZED);
    return is_device(device) ? LOCKED(release(device)) : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    ENTER(INITIALIZED);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

static CUresult check_context(CUcontext context) {
    return handle_get(HANDLE_CONTEXT, context) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER(INITIALIZED);
    if (context == NULL) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    TRY(LOCKED(check_context(context)));
    depth += depth == 0;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER(INITIALIZED);
    TRY(LOCKED(check_context(context)));
    if (depth == DEEPEST_STACK)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER(INITIALIZED);
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device) {
    *device = current_context()->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(CONTEXT);
    return device != NULL ? LOCKED(get_device(device)) : CUDA_ERROR_INVALID_VALUE;
}
