// libnvidia-ml.so.1: what NCCL asks NVML for, told by the fake driver. Each device has 18 NVLinks
// to a switch, as an H100 has, and can read and write every other.
#include <cuda.h>
#include <nvmlwrap.h>

#include <cstdint>
#include <cstdlib>

static const unsigned NVLINKS = 18;

#define EXPORT extern "C" __attribute__((visibility("default")))

static nvmlReturn_t answer(CUresult result) {
    return result == CUDA_SUCCESS ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

// A handle is the number of a device, from 1.
static CUdevice device_of(nvmlDevice_t handle) {
    return CUdevice(uintptr_t(handle) - 1);
}

EXPORT nvmlReturn_t nvmlInit_v2() {
    return answer(cuInit(0));
}

EXPORT const char *nvmlErrorString(nvmlReturn_t) {
    return "the fake driver has refused";
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    int devices = 0;
    CUresult result = cuDeviceGetCount(&devices);
    *count = unsigned(devices);
    return answer(result);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    *device = nvmlDevice_t(uintptr_t(index) + 1);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *wanted, nvmlDevice_t *device) {
    int devices = 0;
    cuDeviceGetCount(&devices);
    for (int i = 0; i < devices; i++) {
        char id[32];
        // NCCL writes the number of the bus its own way.
        if (cuDeviceGetPCIBusId(id, sizeof id, i) == CUDA_SUCCESS
            && strtol(id + 5, nullptr, 16) == strtol(wanted + 5, nullptr, 16)) {
            *device = nvmlDevice_t(uintptr_t(i) + 1);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    *index = unsigned(device_of(device));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(
    nvmlDevice_t device, int *major, int *minor) {
    CUresult result = cuDeviceGetAttribute(
        major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_of(device));
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetAttribute(
            minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device_of(device));
    return answer(result);
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(
    nvmlDevice_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t *status) {
    *status = NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    *info = {};
    // An H100 of NVIDIA's.
    info->pciDeviceId = 0x233010de;
    info->pciSubSystemId = 0x16c110de;
    return answer(cuDeviceGetPCIBusId(info->busId, sizeof info->busId, device_of(device)));
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t, int *speed) {
    *speed = 32000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t, unsigned *generation) {
    *generation = 5;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t, unsigned *width) {
    *width = 16;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(
    nvmlDevice_t, unsigned link, nvmlNvLinkCapability_t capability, unsigned *has) {
    *has = link < NVLINKS && capability == NVML_NVLINK_CAP_P2P_SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned, nvmlEnableState_t *state) {
    *state = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

// NCCL takes an end that it is not told of for a switch.
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t, unsigned, nvmlPciInfo_t *info) {
    *info = {};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int count, nvmlFieldValue_t *values) {
    for (int i = 0; i < count; i++) {
        bool is_known = values[i].fieldId == NVML_FI_DEV_NVLINK_GET_STATE;
        values[i].nvmlReturn = is_known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].value.uiVal = NVML_FEATURE_ENABLED;
    }
    return NVML_SUCCESS;
}
