/* Process accounting, and the ring of samples of the GPU as a whole. */
#include <string.h>

#include "nvml.h"

/* As many running processes as the driver keeps. */
#define MOST_ACCOUNTED 3872u

NVML_EXPORT nvmlDeviceGetAccountingMode(nvml_abi_device device, int *mode) {
    NVML_ENTER_GPU("nvmlDeviceGetAccountingMode", device, gpu);
    if (!mode) return NVML_ABI_INVALID_ARGUMENT;
    *mode = 1;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetAccountingBufferSize(nvml_abi_device device, unsigned *size) {
    NVML_ENTER_GPU("nvmlDeviceGetAccountingBufferSize", device, gpu);
    if (!size) return NVML_ABI_INVALID_ARGUMENT;
    *size = MOST_ACCOUNTED;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetAccountingPids(nvml_abi_device device, unsigned *count, unsigned *pids) {
    NVML_ENTER_GPU("nvmlDeviceGetAccountingPids", device, gpu);
    static _Thread_local struct sim_process found[SIM_MAX_PAYLOAD / sizeof(struct sim_process)];
    struct sim_reply reply;
    if (!count) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result =
        nvml_ask(SIM_PROCESSES, gpu, SIM_TYPE_COMPUTE | SIM_TYPE_GRAPHICS | SIM_TYPE_MPS, &reply, found, sizeof found);
    if (result != NVML_ABI_SUCCESS) return result;
    unsigned have = reply.payload_bytes / (unsigned)sizeof *found, capacity = *count;
    *count = have;
    if (have == 0) return NVML_ABI_SUCCESS;
    if (capacity < have) return NVML_ABI_INSUFFICIENT_SIZE;
    if (!pids) return NVML_ABI_INVALID_ARGUMENT;
    for (unsigned i = 0; i < have; i++) pids[i] = found[i].pid;
    return NVML_ABI_SUCCESS;
}

static nvml_abi_return stats_of(uint32_t gpu, unsigned pid, struct sim_accounting *stats) {
    struct sim_reply reply;
    return nvml_ask(SIM_ACCOUNTING, gpu, pid, &reply, stats, sizeof *stats);
}
NVML_EXPORT nvmlDeviceGetAccountingStats(nvml_abi_device device, unsigned pid, struct nvml_abi_accounting_v1 *out) {
    NVML_ENTER_GPU("nvmlDeviceGetAccountingStats", device, gpu);
    struct sim_accounting stats;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = stats_of(gpu, pid, &stats);
    if (result != NVML_ABI_SUCCESS) return result;
    *out = (struct nvml_abi_accounting_v1){.gpu_percent = stats.sm_percent,
                                           .max_bytes = stats.max_bytes,
                                           .start_us = stats.start_us,
                                           .running = stats.running};
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetAccountingStats_v2(nvml_abi_device device, struct nvml_abi_accounting_v2 *out) {
    NVML_ENTER_GPU("nvmlDeviceGetAccountingStats_v2", device, gpu);
    struct sim_accounting stats;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    nvml_abi_return result = stats_of(gpu, out->pid, &stats);
    if (result != NVML_ABI_SUCCESS) return result;
    *out = (struct nvml_abi_accounting_v2){.pid = out->pid,
                                           .running = stats.running,
                                           .gpu_percent = stats.sm_percent,
                                           .max_bytes = stats.max_bytes,
                                           .start_us = stats.start_us};
    return NVML_ABI_SUCCESS;
}

/* Without an array, returns how many entries there can be. Clocks and engines that are not simulated have none. */
NVML_EXPORT nvmlDeviceGetSamples(nvml_abi_device device, int type, unsigned long long last_seen, int *value_type,
                                 unsigned *count, struct nvml_abi_sample *out) {
    NVML_ENTER_GPU("nvmlDeviceGetSamples", device, gpu);
    struct sim_ring_sample ring[SIM_SAMPLES_MAX];
    struct sim_gpu_state state;
    struct sim_reply reply;
    if (!value_type || !count || type < NVML_ABI_SAMPLES_POWER) return NVML_ABI_INVALID_ARGUMENT;
    if (type > NVML_ABI_SAMPLES_MEMORY) return NVML_ABI_NOT_SUPPORTED;
    *value_type = NVML_ABI_VALUE_UNSIGNED;
    if (!out) {
        *count = SIM_SAMPLES_MAX;
        return NVML_ABI_SUCCESS;
    }
    nvml_abi_return result = nvml_ask(SIM_GPU_STATE, gpu, 0, &reply, &state, sizeof state);
    if (result == NVML_ABI_SUCCESS) result = nvml_ask(SIM_RING, gpu, last_seen, &reply, ring, sizeof ring);
    if (result != NVML_ABI_SUCCESS) return result;
    unsigned have = reply.payload_bytes / (unsigned)sizeof *ring, capacity = *count;
    *count = have;
    if (have == 0) return NVML_ABI_NOT_FOUND;
    if (capacity < have) return NVML_ABI_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++) {
        uint64_t percent = type == NVML_ABI_SAMPLES_GPU ? ring[i].percent : ring[i].percent / 2;
        out[i] = (struct nvml_abi_sample){.timestamp_us = ring[i].timestamp_us,
                                          .value = type == NVML_ABI_SAMPLES_POWER ? state.power_mw : percent};
    }
    return NVML_ABI_SUCCESS;
}
