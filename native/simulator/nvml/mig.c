/* Cards that are divided (MIG), and their instances as devices of their own. */
#include "nvml.h"

#define MOST_INSTANCES 7

static bool divisible(uint32_t card) {
    return nvml_facts->cards[card].cc_major >= 8 && nvml_facts->cards[card].bus_bits >= 4096;
}

NVML_EXPORT nvmlDeviceGetMigMode(nvml_abi_device device, unsigned *current, unsigned *pending) {
    NVML_ENTER_CARD("nvmlDeviceGetMigMode", device, card);
    if (!divisible(card)) return NVML_ABI_NOT_SUPPORTED;
    if (!current || !pending) return NVML_ABI_INVALID_ARGUMENT;
    *current = *pending = nvml_facts->cards[card].divided;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetMaxMigDeviceCount(nvml_abi_device device, unsigned *count) {
    NVML_ENTER_CARD("nvmlDeviceGetMaxMigDeviceCount", device, card);
    if (!count) return NVML_ABI_INVALID_ARGUMENT;
    *count = divisible(card) ? MOST_INSTANCES : 0;
    return NVML_ABI_SUCCESS;
}
/* Numbers without an instance are holes, not the end. */
NVML_EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvml_abi_device device, unsigned index, nvml_abi_device *instance) {
    NVML_ENTER_CARD("nvmlDeviceGetMigDeviceHandleByIndex", device, card);
    if (!divisible(card)) return NVML_ABI_NOT_SUPPORTED;
    if (!instance || index >= MOST_INSTANCES) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < nvml_facts->card_count; i++) {
        const struct sim_card_facts *facts = &nvml_facts->cards[i];
        if (facts->parent != card + 1 || facts->gpu_instance != index + 1) continue;
        *instance = nvml_handle(i);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}
NVML_EXPORT nvmlDeviceIsMigDeviceHandle(nvml_abi_device device, unsigned *is_instance) {
    NVML_ENTER_ANY("nvmlDeviceIsMigDeviceHandle", device, card);
    if (!is_instance) return NVML_ABI_INVALID_ARGUMENT;
    *is_instance = nvml_facts->cards[card].parent != 0;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_abi_device device, nvml_abi_device *parent) {
    NVML_ENTER_ANY("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, card);
    if (!parent || !nvml_facts->cards[card].parent) return NVML_ABI_INVALID_ARGUMENT;
    *parent = nvml_handle(nvml_facts->cards[card].parent - 1);
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetGpuInstanceId(nvml_abi_device device, unsigned *id) {
    NVML_ENTER_ANY("nvmlDeviceGetGpuInstanceId", device, card);
    if (!nvml_facts->cards[card].parent) return NVML_ABI_NOT_SUPPORTED;
    if (!id) return NVML_ABI_INVALID_ARGUMENT;
    *id = nvml_facts->cards[card].gpu_instance;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetComputeInstanceId(nvml_abi_device device, unsigned *id) {
    NVML_ENTER_ANY("nvmlDeviceGetComputeInstanceId", device, card);
    if (!nvml_facts->cards[card].parent) return NVML_ABI_NOT_SUPPORTED;
    if (!id) return NVML_ABI_INVALID_ARGUMENT;
    *id = nvml_facts->cards[card].compute_instance;
    return NVML_ABI_SUCCESS;
}
