/* Facts and readings of one GPU. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

nvml_abi_return nvml_gpu_state(uint32_t gpu, struct sim_gpu_state *state) {
    struct sim_reply reply;
    nvml_abi_return result = nvml_ask(SIM_GPU_STATE, gpu, 0, &reply, state, sizeof *state);
    if (result != NVML_ABI_SUCCESS) return result;
    for (uint32_t i = 0; i < nvml_facts->gpu_count; i++) {
        if (nvml_facts->gpus[i].parent == gpu + 1)
            state->used_bytes += atomic_load((_Atomic uint64_t *)&nvml_facts->gpus[i].used_bytes);
    }
    return NVML_ABI_SUCCESS;
}

static nvml_abi_return give_text(char *to, unsigned length, const char *text) {
    if (!to) return NVML_ABI_INVALID_ARGUMENT;
    size_t bytes = strlen(text) + 1;
    if (length < bytes) return NVML_ABI_INSUFFICIENT_SIZE;
    memcpy(to, text, bytes);
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetName(nvml_abi_device device, char *name, unsigned length) {
    NVML_ENTER_ANY("nvmlDeviceGetName", device, gpu);
    return give_text(name, length, nvml_facts->gpus[gpu].name);
}
NVML_EXPORT nvmlDeviceGetUUID(nvml_abi_device device, char *uuid, unsigned length) {
    NVML_ENTER_ANY("nvmlDeviceGetUUID", device, gpu);
    char text[SIM_UUID_TEXT];
    sim_uuid_text(&nvml_facts->gpus[gpu], text);
    return give_text(uuid, length, text);
}
NVML_EXPORT nvmlDeviceGetHandleByUUID(const char *uuid, nvml_abi_device *device) {
    NVML_ENTER("nvmlDeviceGetHandleByUUID");
    if (!uuid || !device) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t gpu = 0; gpu < nvml_facts->gpu_count; gpu++) {
        char text[SIM_UUID_TEXT];
        sim_uuid_text(&nvml_facts->gpus[gpu], text);
        uint32_t seen;
        if (strcmp(text, uuid) != 0 || nvml_gpu_or_instance(nvml_handle(gpu), &seen)) continue;
        *device = nvml_handle(gpu);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetHandleByUUIDV(const struct nvml_abi_uuid *uuid, nvml_abi_device *device) {
    NVML_ENTER("nvmlDeviceGetHandleByUUIDV");
    if (!uuid || !device) return NVML_ABI_INVALID_ARGUMENT;
    if (uuid->version != NVML_ABI_STRUCT_VERSION(struct nvml_abi_uuid, 1)) return NVML_ABI_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == NVML_ABI_UUID_ASCII) return nvmlDeviceGetHandleByUUID(uuid->text, device);
    if (uuid->type != NVML_ABI_UUID_BINARY) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t index = 0; index < nvml_gpu_count; index++) {
        if (memcmp(nvml_facts->gpus[nvml_gpus[index]].uuid, uuid->text, 16) != 0) continue;
        *device = nvml_handle(nvml_gpus[index]);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}

/* All GPUs of the simulated node are attached to the same part of it. A count of 0 asks how many there are. */
static nvml_abi_return nearest(uint32_t but, unsigned *count, nvml_abi_device *devices) {
    if (!count || (*count && !devices)) return NVML_ABI_INVALID_ARGUMENT;
    unsigned found = 0;
    for (uint32_t index = 0; index < nvml_gpu_count; index++) {
        if (nvml_gpus[index] == but) continue;
        if (found < *count) devices[found] = nvml_handle(nvml_gpus[index]);
        found++;
    }
    if (!*count || found < *count) *count = found;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetTopologyNearestGpus(nvml_abi_device device, int level, unsigned *count,
                                             nvml_abi_device *devices) {
    NVML_ENTER_GPU("nvmlDeviceGetTopologyNearestGpus", device, gpu);
    return level < 0 ? NVML_ABI_INVALID_ARGUMENT : nearest(gpu, count, devices);
}
NVML_EXPORT nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvml_abi_device *devices) {
    NVML_ENTER("nvmlSystemGetTopologyGpuSet");
    return nearest(UINT32_MAX, count, devices);
}

static void pci_of(uint32_t gpu, struct nvml_abi_pci_v3 *pci) {
    const struct sim_gpu_facts *facts = &nvml_facts->gpus[gpu];
    *pci = (struct nvml_abi_pci_v3){
        .domain = facts->pci_domain, .bus = facts->pci_bus, .device = facts->pci_device, .device_id = facts->pci_id};
    snprintf(pci->legacy_id, sizeof pci->legacy_id, "%04X:%02X:%02X.0", facts->pci_domain & 0xffff,
             facts->pci_bus & 0xff, facts->pci_device & 0xff);
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.0", facts->pci_domain, facts->pci_bus, facts->pci_device);
}
NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvml_abi_device device, struct nvml_abi_pci_v3 *pci) {
    NVML_ENTER_GPU("nvmlDeviceGetPciInfo_v3", device, gpu);
    if (!pci) return NVML_ABI_INVALID_ARGUMENT;
    pci_of(gpu, pci);
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvml_abi_device *device) {
    NVML_ENTER("nvmlDeviceGetHandleByPciBusId_v2");
    unsigned domain, bus, slot;
    if (!id || !device || sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) return NVML_ABI_INVALID_ARGUMENT;
    for (uint32_t index = 0; index < nvml_gpu_count; index++) {
        const struct sim_gpu_facts *facts = &nvml_facts->gpus[nvml_gpus[index]];
        if (facts->pci_domain != domain || facts->pci_bus != bus || facts->pci_device != slot) continue;
        *device = nvml_handle(nvml_gpus[index]);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetHandleByPciBusId(const char *id, nvml_abi_device *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

/* These GPUs have no serial numbers. */
NVML_EXPORT nvmlDeviceGetHandleBySerial(const char *serial, nvml_abi_device *device) {
    NVML_ENTER("nvmlDeviceGetHandleBySerial");
    return serial && device ? NVML_ABI_NOT_FOUND : NVML_ABI_INVALID_ARGUMENT;
}

/* The first form counts the driver's own memory as used; the second reports it separately. */
NVML_EXPORT nvmlDeviceGetMemoryInfo(nvml_abi_device device, struct nvml_abi_memory_v1 *out) {
    NVML_ENTER_ANY("nvmlDeviceGetMemoryInfo", device, gpu);
    struct sim_gpu_state state;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_gpu_state(gpu, &state);
    if (result != NVML_ABI_SUCCESS) return result;
    const struct sim_gpu_facts *facts = &nvml_facts->gpus[gpu];
    *out = (struct nvml_abi_memory_v1){.total = facts->total_bytes,
                                       .used = state.used_bytes + facts->reserved_bytes,
                                       .free = facts->total_bytes - facts->reserved_bytes - state.used_bytes};
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvml_abi_device device, struct nvml_abi_memory_v2 *out) {
    NVML_ENTER_ANY("nvmlDeviceGetMemoryInfo_v2", device, gpu);
    struct sim_gpu_state state;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    if (out->version != NVML_ABI_STRUCT_VERSION(struct nvml_abi_memory_v2, 2))
        return NVML_ABI_ARGUMENT_VERSION_MISMATCH;
    nvml_abi_return result = nvml_gpu_state(gpu, &state);
    if (result != NVML_ABI_SUCCESS) return result;
    const struct sim_gpu_facts *facts = &nvml_facts->gpus[gpu];
    *out = (struct nvml_abi_memory_v2){.version = out->version,
                                       .total = facts->total_bytes,
                                       .reserved = facts->reserved_bytes,
                                       .used = state.used_bytes,
                                       .free = facts->total_bytes - facts->reserved_bytes - state.used_bytes};
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetBAR1MemoryInfo(nvml_abi_device device, uint64_t *total_free_used) {
    NVML_ENTER_GPU("nvmlDeviceGetBAR1MemoryInfo", device, gpu);
    if (!total_free_used) return NVML_ABI_INVALID_ARGUMENT;
    total_free_used[0] = 256ull << 20;
    total_free_used[1] = 254ull << 20;
    total_free_used[2] = 2ull << 20;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetUtilizationRates(nvml_abi_device device, struct nvml_abi_utilization *out) {
    NVML_ENTER_GPU("nvmlDeviceGetUtilizationRates", device, gpu);
    NVML_UNDIVIDED(gpu);
    struct sim_gpu_state state;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_gpu_state(gpu, &state);
    if (result == NVML_ABI_SUCCESS) *out = (struct nvml_abi_utilization){state.sm_percent, state.memory_percent};
    return result;
}

/* An unsigned value of the GPU's live state. */
#define READING(name, field)                                            \
    NVML_EXPORT name(nvml_abi_device device, unsigned *value) {         \
        NVML_ENTER_GPU(#name, device, gpu);                             \
        struct sim_gpu_state state;                                     \
        if (!value) return NVML_ABI_INVALID_ARGUMENT;                   \
        nvml_abi_return result = nvml_gpu_state(gpu, &state);           \
        if (result == NVML_ABI_SUCCESS) *value = (unsigned)state.field; \
        return result;                                                  \
    }
/* An unsigned value that never changes. */
#define FACT(name, expression)                                  \
    NVML_EXPORT name(nvml_abi_device device, unsigned *value) { \
        NVML_ENTER_GPU(#name, device, gpu);                     \
        if (!value) return NVML_ABI_INVALID_ARGUMENT;           \
        *value = (unsigned)(expression);                        \
        return NVML_ABI_SUCCESS;                                \
    }
/* A call that these GPUs do not support. */
#define MISSING(name)                          \
    NVML_EXPORT name(nvml_abi_device device) { \
        NVML_ENTER_GPU(#name, device, gpu);    \
        return NVML_ABI_NOT_SUPPORTED;         \
    }

static uint32_t index_of(uint32_t gpu) {
    uint32_t index = 0;
    while (nvml_gpus[index] != gpu) index++;
    return index;
}

READING(nvmlDeviceGetPowerUsage, power_mw)
FACT(nvmlDeviceGetIndex, index_of(gpu))
FACT(nvmlDeviceGetMinorNumber, gpu)
FACT(nvmlDeviceGetEnforcedPowerLimit, nvml_facts->gpus[gpu].power_limit_mw)
FACT(nvmlDeviceGetPowerManagementLimit, nvml_facts->gpus[gpu].power_limit_mw)
FACT(nvmlDeviceGetPowerManagementDefaultLimit, nvml_facts->gpus[gpu].power_limit_mw)
FACT(nvmlDeviceGetPerformanceState, 0)
FACT(nvmlDeviceGetPersistenceMode, 1)
FACT(nvmlDeviceGetDisplayMode, 0)
FACT(nvmlDeviceGetDisplayActive, 0)
FACT(nvmlDeviceGetComputeMode, 0)
FACT(nvmlDeviceGetBrand, 0)
FACT(nvmlDeviceGetMemoryBusWidth, nvml_facts->gpus[gpu].bus_bits)
FACT(nvmlDeviceGetNumGpuCores, nvml_facts->gpus[gpu].sm_count * 128)
FACT(nvmlDeviceGetMaxPcieLinkGeneration, 4)
FACT(nvmlDeviceGetMaxPcieLinkWidth, 16)
FACT(nvmlDeviceGetCurrPcieLinkGeneration, 4)
FACT(nvmlDeviceGetCurrPcieLinkWidth, 16)
MISSING(nvmlDeviceGetFanSpeed)
MISSING(nvmlDeviceGetSerial)
MISSING(nvmlDeviceGetCurrentDriverModel)
MISSING(nvmlDeviceGetDriverModel)
MISSING(nvmlDeviceGetNvLinkRemoteDeviceType)
MISSING(nvmlDeviceGetNvLinkRemotePciInfo_v2)

NVML_EXPORT nvmlDeviceGetTotalEnergyConsumption(nvml_abi_device device, uint64_t *mj) {
    NVML_ENTER_GPU("nvmlDeviceGetTotalEnergyConsumption", device, gpu);
    struct sim_gpu_state state;
    if (!mj) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_gpu_state(gpu, &state);
    if (result == NVML_ABI_SUCCESS) *mj = state.energy_mj;
    return result;
}
/* Sensor 0 is the GPU core. */
NVML_EXPORT nvmlDeviceGetTemperature(nvml_abi_device device, unsigned sensor, unsigned *celsius) {
    NVML_ENTER_GPU("nvmlDeviceGetTemperature", device, gpu);
    struct sim_gpu_state state;
    if (!celsius || sensor != 0) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_gpu_state(gpu, &state);
    if (result == NVML_ABI_SUCCESS) *celsius = state.temperature_c;
    return result;
}
/* Clocks: 0 graphics, 1 SM, 2 memory, 3 video. */
NVML_EXPORT nvmlDeviceGetClockInfo(nvml_abi_device device, unsigned type, unsigned *mhz) {
    NVML_ENTER_GPU("nvmlDeviceGetClockInfo", device, gpu);
    struct sim_gpu_state state;
    if (!mhz || type > 3) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = nvml_gpu_state(gpu, &state);
    if (result == NVML_ABI_SUCCESS) *mhz = type == 2 ? state.memory_mhz : state.sm_mhz;
    return result;
}
NVML_EXPORT nvmlDeviceGetMaxClockInfo(nvml_abi_device device, unsigned type, unsigned *mhz) {
    NVML_ENTER_GPU("nvmlDeviceGetMaxClockInfo", device, gpu);
    if (!mhz || type > 3) return NVML_ABI_INVALID_ARGUMENT;
    *mhz = type == 2 ? nvml_facts->gpus[gpu].memory_mhz : nvml_facts->gpus[gpu].sm_mhz;
    return NVML_ABI_SUCCESS;
}
static nvml_abi_return codec(unsigned *percent, unsigned *period_us) {
    if (!percent || !period_us) return NVML_ABI_INVALID_ARGUMENT;
    *percent = 0;
    *period_us = 167000;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetEncoderUtilization(nvml_abi_device device, unsigned *percent, unsigned *period_us) {
    NVML_ENTER_GPU("nvmlDeviceGetEncoderUtilization", device, gpu);
    NVML_UNDIVIDED(gpu);
    return codec(percent, period_us);
}
NVML_EXPORT nvmlDeviceGetDecoderUtilization(nvml_abi_device device, unsigned *percent, unsigned *period_us) {
    NVML_ENTER_GPU("nvmlDeviceGetDecoderUtilization", device, gpu);
    NVML_UNDIVIDED(gpu);
    return codec(percent, period_us);
}
NVML_EXPORT nvmlDeviceGetCudaComputeCapability(nvml_abi_device device, int *major, int *minor) {
    NVML_ENTER_GPU("nvmlDeviceGetCudaComputeCapability", device, gpu);
    if (!major || !minor) return NVML_ABI_INVALID_ARGUMENT;
    *major = (int)nvml_facts->gpus[gpu].cc_major;
    *minor = (int)nvml_facts->gpus[gpu].cc_minor;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetPcieThroughput(nvml_abi_device device, unsigned counter, unsigned *kb_per_second) {
    NVML_ENTER_GPU("nvmlDeviceGetPcieThroughput", device, gpu);
    if (!kb_per_second || counter > 1) return NVML_ABI_INVALID_ARGUMENT;
    *kb_per_second = 0;
    return NVML_ABI_SUCCESS;
}
