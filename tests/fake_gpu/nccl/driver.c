/* The way to the driver. */
#include <dlfcn.h>

#include "internal.h"

static struct driver functions;
static bool found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return;
    const struct {
        void *to;
        const char *name;
    } symbols[] = {
        {&functions.context_get_current, "cuCtxGetCurrent"},
        {&functions.context_push, "cuCtxPushCurrent_v2"},
        {&functions.context_pop, "cuCtxPopCurrent_v2"},
        {&functions.context_get_device, "cuCtxGetDevice"},
        {&functions.device_get_attribute, "cuDeviceGetAttribute"},
        {&functions.pointer_get_attribute, "cuPointerGetAttribute"},
        {&functions.stream_is_capturing, "cuStreamIsCapturing"},
        {&functions.stream_get_capture_info, "cuStreamGetCaptureInfo_v2"},
        {&functions.user_object_create, "cuUserObjectCreate"},
        {&functions.graph_retain_user_object, "cuGraphRetainUserObject"},
        {&functions.launch_host_function, "cuLaunchHostFunc"},
        {&functions.wait_as_free, "fake_cuda_wait_as_free"},
        {&functions.memory_map, "fake_cuda_map"},
        {&functions.memory_unmap, "fake_cuda_unmap"},
    };
    found = true;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        memcpy(symbols[i].to, &symbol, sizeof symbol);
        found = found && symbol != NULL;
    }
}

const struct driver *driver(void) {
    pthread_once(&once, load);
    return found ? &functions : NULL;
}
