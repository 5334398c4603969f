/* Facts and readings of one GPU. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

nvml_abi_return nvml_gpu_state(uint32_t gpu, struct sim_gpu_state *state) {
    struct sim_reply reply;
    NVML_TRY(nvml_ask(SIM_GPU_STATE, gpu, 0, &reply, state, sizeof *state));
    for (uint32_t i = 0; i < nvml_facts->gpu_count; i++) {
        if (nvml_facts->gpus[i].parent == gpu + 1)
            state->used_bytes += atomic_load((_Atomic uint64_t *)&nvml_facts->gpus[i].used_bytes);
    }
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetName(nvml_abi_device device, char *name, unsigned length) {
    NVML_ENTER_ANY(true);
    return nvml_text(name, length, NVML_FACTS->name);
}
NVML_EXPORT nvmlDeviceGetUUID(nvml_abi_device device, char *uuid, unsigned length) {
    NVML_ENTER_ANY(true);
    char text[SIM_UUID_TEXT];
    sim_uuid_text(NVML_FACTS, text);
    return nvml_text(uuid, length, text);
}
NVML_EXPORT nvmlDeviceGetHandleByUUID(const char *uuid, nvml_abi_device *device) {
    NVML_ENTER(uuid && device);
    for (uint32_t gpu = 0; gpu < nvml_facts->gpu_count; gpu++) {
        char text[SIM_UUID_TEXT];
        sim_uuid_text(NVML_FACTS, text);
        uint32_t seen;
        if (strcmp(text, uuid) != 0 || nvml_gpu_or_instance(nvml_handle(gpu), &seen)) continue;
        *device = nvml_handle(gpu);
        return NVML_ABI_SUCCESS;
    }
    return NVML_ABI_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetHandleByUUIDV(const struct nvml_abi_uuid *uuid, nvml_abi_device *device) {
    NVML_ENTER(uuid && device);
    NVML_REQUIRE(uuid->version == NVML_ABI_STRUCT_VERSION(struct nvml_abi_uuid, 1), NVML_ABI_ARGUMENT_VERSION_MISMATCH);
    if (uuid->type == NVML_ABI_UUID_ASCII) return nvmlDeviceGetHandleByUUID(uuid->text, device);
    NVML_REQUIRE(uuid->type == NVML_ABI_UUID_BINARY, NVML_ABI_INVALID_ARGUMENT);
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
    NVML_ENTER_GPU(level >= 0);
    return nearest(gpu, count, devices);
}
NVML_EXPORT nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvml_abi_device *devices) {
    NVML_ENTER(true);
    return nearest(UINT32_MAX, count, devices);
}

void nvml_pci(const struct sim_gpu_facts *facts, struct nvml_abi_pci_v3 *pci) {
    *pci = (struct nvml_abi_pci_v3){
        .domain = facts->pci_domain, .bus = facts->pci_bus, .device = facts->pci_device, .device_id = facts->pci_id};
    snprintf(pci->legacy_id, sizeof pci->legacy_id, "%04X:%02X:%02X.0", facts->pci_domain & 0xffff,
             facts->pci_bus & 0xff, facts->pci_device & 0xff);
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.0", facts->pci_domain, facts->pci_bus, facts->pci_device);
}
NVML_EXPORT nvmlDeviceGetPciInfo_v3(nvml_abi_device device, struct nvml_abi_pci_v3 *pci) {
    NVML_ENTER_GPU(pci);
    nvml_pci(NVML_FACTS, pci);
    return NVML_ABI_SUCCESS;
}
/* Without a function, or without a domain. */
static bool is_bus_id(const char *id, unsigned *domain, unsigned *bus, unsigned *slot) {
    unsigned function;
    if (sscanf(id, "%x:%x:%x", domain, bus, slot) == 3) return true;
    *domain = 0;
    return sscanf(id, "%x:%x.%x", bus, slot, &function) == 3;
}

NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvml_abi_device *device) {
    unsigned domain = 0, bus = 0, slot = 0;
    NVML_ENTER(id && device && is_bus_id(id, &domain, &bus, &slot));
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
    NVML_ENTER(serial && device);
    return NVML_ABI_NOT_FOUND;
}

/* The first form counts the driver's own memory as used; the second reports it separately. */
NVML_EXPORT nvmlDeviceGetMemoryInfo(nvml_abi_device device, struct nvml_abi_memory_v1 *out) {
    NVML_ENTER_ANY(out);
    const struct sim_gpu_facts *facts = NVML_FACTS;
    uint64_t used = NVML_STATE.used_bytes + facts->reserved_bytes;
    *out = (struct nvml_abi_memory_v1){.total = facts->total_bytes, .used = used, .free = facts->total_bytes - used};
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetMemoryInfo_v2(nvml_abi_device device, struct nvml_abi_memory_v2 *out) {
    NVML_ENTER_ANY(out);
    /* An unknown version is no mismatch: 580.159.04 answers as if it lacked the function. */
    NVML_REQUIRE(out->version == NVML_ABI_STRUCT_VERSION(struct nvml_abi_memory_v2, 2), NVML_ABI_FUNCTION_NOT_FOUND);
    const struct sim_gpu_facts *facts = NVML_FACTS;
    out->total = facts->total_bytes;
    out->reserved = facts->reserved_bytes;
    out->used = NVML_STATE.used_bytes;
    out->free = out->total - out->reserved - out->used;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetBAR1MemoryInfo(nvml_abi_device device, uint64_t *total_free_used) {
    NVML_ENTER_GPU(total_free_used);
    total_free_used[0] = 256ull << 20;
    total_free_used[1] = 254ull << 20;
    total_free_used[2] = 2ull << 20;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetUtilizationRates(nvml_abi_device device, struct nvml_abi_utilization *out) {
    NVML_ENTER_GPU(true);
    NVML_UNDIVIDED();
    NVML_REQUIRE(out, NVML_ABI_INVALID_ARGUMENT);
    const struct sim_gpu_state state = NVML_STATE;
    *out = (struct nvml_abi_utilization){state.sm_percent, state.memory_percent};
    return NVML_ABI_SUCCESS;
}

static uint32_t index_of(uint32_t gpu) {
    uint32_t index = 0;
    while (nvml_gpus[index] != gpu) index++;
    return index;
}

NVML_VALUE(nvmlDeviceGetPowerUsage, unsigned, NVML_STATE.power_mw)
NVML_VALUE(nvmlDeviceGetTotalEnergyConsumption, uint64_t, NVML_STATE.energy_mj)
NVML_VALUE(nvmlDeviceGetIndex, unsigned, index_of(gpu))
NVML_VALUE(nvmlDeviceGetMinorNumber, unsigned, gpu)
NVML_VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, NVML_FACTS->power_limit_mw)
NVML_VALUE(nvmlDeviceGetPowerManagementLimit, unsigned, NVML_FACTS->power_limit_mw)
NVML_VALUE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, NVML_FACTS->power_limit_mw)
NVML_VALUE(nvmlDeviceGetPerformanceState, unsigned, 0)
NVML_VALUE(nvmlDeviceGetPersistenceMode, unsigned, 1)
NVML_VALUE(nvmlDeviceGetDisplayMode, unsigned, 0)
NVML_VALUE(nvmlDeviceGetDisplayActive, unsigned, 0)
NVML_VALUE(nvmlDeviceGetComputeMode, unsigned, 0)
NVML_VALUE(nvmlDeviceGetBrand, unsigned, 0)
NVML_VALUE(nvmlDeviceGetMemoryBusWidth, unsigned, NVML_FACTS->bus_bits)
NVML_VALUE(nvmlDeviceGetNumGpuCores, unsigned, NVML_FACTS->sm_count * 128)
NVML_VALUE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 4)
NVML_VALUE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
NVML_VALUE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 4)
NVML_VALUE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
NVML_PAIR(nvmlDeviceGetCudaComputeCapability, int, true, NVML_FACTS->cc_major, NVML_FACTS->cc_minor)
/* Percent, and the period in microseconds. */
NVML_PAIR(nvmlDeviceGetEncoderUtilization, unsigned, !NVML_FACTS->divided, 0, 167000)
NVML_PAIR(nvmlDeviceGetDecoderUtilization, unsigned, !NVML_FACTS->divided, 0, 167000)
/* Sensor 0 is the GPU core. */
NVML_CHOSEN(nvmlDeviceGetTemperature, which == 0, NVML_STATE.temperature_c)
/* Clocks: 0 graphics, 1 SM, 2 memory, 3 video. */
NVML_CHOSEN(nvmlDeviceGetClockInfo, which <= 3, which == 2 ? NVML_STATE.memory_mhz : NVML_STATE.sm_mhz)
NVML_CHOSEN(nvmlDeviceGetMaxClockInfo, which <= 3, which == 2 ? NVML_FACTS->memory_mhz : NVML_FACTS->sm_mhz)
NVML_CHOSEN(nvmlDeviceGetPcieThroughput, which <= 1, 0)

/* Calls that these GPUs do not support. */
#define MISSING(name)                          \
    NVML_EXPORT name(nvml_abi_device device) { \
        NVML_ENTER_GPU(true);                  \
        return NVML_ABI_NOT_SUPPORTED;         \
    }
MISSING(nvmlDeviceGetFanSpeed)
MISSING(nvmlDeviceGetSerial)
MISSING(nvmlDeviceGetCurrentDriverModel)
MISSING(nvmlDeviceGetDriverModel)
