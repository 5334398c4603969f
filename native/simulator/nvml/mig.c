/* GPUs divided by MIG, and their instances as devices. */
#include "nvml.h"

#define MOST_INSTANCES 7
#define IS_DIVISIBLE (NVML_FACTS->cc_major >= 8 && NVML_FACTS->bus_bits >= 4096)

NVML_PAIR(nvmlDeviceGetMigMode, unsigned, IS_DIVISIBLE, NVML_FACTS->divided, NVML_FACTS->divided)
NVML_VALUE(nvmlDeviceGetMaxMigDeviceCount, unsigned, IS_DIVISIBLE ? MOST_INSTANCES : 0)

/* IDs without an instance are gaps, not the end. */
NVML_EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvml_abi_device device, unsigned index, nvml_abi_device *instance) {
    NVML_ENTER_GPU(true);
    NVML_REQUIRE(IS_DIVISIBLE, NVML_ABI_NOT_SUPPORTED);
    NVML_REQUIRE(instance && index < MOST_INSTANCES, NVML_ABI_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < nvml_facts->gpu_count; i++) {
        const struct sim_gpu_facts *facts = &nvml_facts->gpus[i];
        if (facts->parent != gpu + 1 || facts->gpu_instance != index + 1) continue;
        *instance = nvml_handle(i);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}
NVML_EXPORT nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_abi_device device, nvml_abi_device *parent) {
    NVML_ENTER_ANY(parent && NVML_FACTS->parent);
    *parent = nvml_handle(NVML_FACTS->parent - 1);
    return NVML_ABI_SUCCESS;
}

#define OF_INSTANCE(name, supported, value) NVML_VALUE_BY(nvml_gpu_or_instance, name, unsigned, supported, value)
OF_INSTANCE(nvmlDeviceIsMigDeviceHandle, true, NVML_FACTS->parent != 0)
OF_INSTANCE(nvmlDeviceGetGpuInstanceId, NVML_FACTS->parent, NVML_FACTS->gpu_instance)
OF_INSTANCE(nvmlDeviceGetComputeInstanceId, NVML_FACTS->parent, NVML_FACTS->compute_instance)
