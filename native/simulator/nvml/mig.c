/* GPUs divided by MIG, and their instances as devices. */
#include "nvml.h"

#define MOST_INSTANCES 7

static bool divisible(uint32_t gpu) {
    return nvml_facts->gpus[gpu].cc_major >= 8 && nvml_facts->gpus[gpu].bus_bits >= 4096;
}

NVML_EXPORT nvmlDeviceGetMigMode(nvml_abi_device device, unsigned *current, unsigned *pending) {
    NVML_ENTER_GPU("nvmlDeviceGetMigMode", device, gpu);
    if (!divisible(gpu)) return NVML_ABI_NOT_SUPPORTED;
    if (!current || !pending) return NVML_ABI_INVALID_ARGUMENT;
    *current = *pending = nvml_facts->gpus[gpu].divided;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetMaxMigDeviceCount(nvml_abi_device device, unsigned *count) {
    NVML_ENTER_GPU("nvmlDeviceGetMaxMigDeviceCount", device, gpu);
    if (!count) return NVML_ABI_INVALID_ARGUMENT;
    *count = divisible(gpu) ? MOST_INSTANCES : 0;
    return NVML_ABI_SUCCESS;
}
/* IDs without an instance are gaps, not the end. */
NVML_EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvml_abi_device device, unsigned index, nvml_abi_device *instance) {
    NVML_ENTER_GPU("nvmlDeviceGetMigDeviceHandleByIndex", device, gpu);
    if (!divisible(gpu)) return NVML_ABI_NOT_SUPPORTED;
    if (!instance || index >= MOST_INSTANCES) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < nvml_facts->gpu_count; i++) {
        const struct sim_gpu_facts *facts = &nvml_facts->gpus[i];
        if (facts->parent != gpu + 1 || facts->gpu_instance != index + 1) continue;
        *instance = nvml_handle(i);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}
NVML_EXPORT nvmlDeviceIsMigDeviceHandle(nvml_abi_device device, unsigned *is_instance) {
    NVML_ENTER_ANY("nvmlDeviceIsMigDeviceHandle", device, gpu);
    if (!is_instance) return NVML_ABI_INVALID_ARGUMENT;
    *is_instance = nvml_facts->gpus[gpu].parent != 0;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_abi_device device, nvml_abi_device *parent) {
    NVML_ENTER_ANY("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, gpu);
    if (!parent || !nvml_facts->gpus[gpu].parent) return NVML_ABI_INVALID_ARGUMENT;
    *parent = nvml_handle(nvml_facts->gpus[gpu].parent - 1);
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetGpuInstanceId(nvml_abi_device device, unsigned *id) {
    NVML_ENTER_ANY("nvmlDeviceGetGpuInstanceId", device, gpu);
    if (!nvml_facts->gpus[gpu].parent) return NVML_ABI_NOT_SUPPORTED;
    if (!id) return NVML_ABI_INVALID_ARGUMENT;
    *id = nvml_facts->gpus[gpu].gpu_instance;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetComputeInstanceId(nvml_abi_device device, unsigned *id) {
    NVML_ENTER_ANY("nvmlDeviceGetComputeInstanceId", device, gpu);
    if (!nvml_facts->gpus[gpu].parent) return NVML_ABI_NOT_SUPPORTED;
    if (!id) return NVML_ABI_INVALID_ARGUMENT;
    *id = nvml_facts->gpus[gpu].compute_instance;
    return NVML_ABI_SUCCESS;
}
