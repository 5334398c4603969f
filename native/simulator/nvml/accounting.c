/* Process accounting, and the ring of samples of the GPU as a whole. */
#include "nvml.h"

/* As many running processes as the driver keeps. */
#define MOST_ACCOUNTED 3872u

NVML_VALUE(nvmlDeviceGetAccountingMode, int, 1)
NVML_VALUE(nvmlDeviceGetAccountingBufferSize, unsigned, MOST_ACCOUNTED)

NVML_EXPORT nvmlDeviceGetAccountingPids(nvml_abi_device device, unsigned *count, unsigned *pids) {
    NVML_ENTER_GPU(count);
    static _Thread_local struct sim_process found[SIM_MAX_PAYLOAD / sizeof(struct sim_process)];
    struct sim_reply reply;
    NVML_TRY(
        nvml_ask(SIM_PROCESSES, gpu, SIM_TYPE_COMPUTE | SIM_TYPE_GRAPHICS | SIM_TYPE_MPS, &reply, found, sizeof found));
    unsigned have = reply.payload_bytes / (unsigned)sizeof *found;
    NVML_TRY(nvml_list(count, have, pids));
    for (unsigned i = 0; i < have; i++) pids[i] = found[i].pid;
    return NVML_ABI_SUCCESS;
}

static nvml_abi_return stats_of(uint32_t gpu, unsigned pid, struct sim_accounting *stats) {
    struct sim_reply reply;
    return nvml_ask(SIM_ACCOUNTING, gpu, pid, &reply, stats, sizeof *stats);
}
NVML_EXPORT nvmlDeviceGetAccountingStats(nvml_abi_device device, unsigned pid, struct nvml_abi_accounting_v1 *out) {
    NVML_ENTER_GPU(out);
    struct sim_accounting stats;
    NVML_TRY(stats_of(gpu, pid, &stats));
    *out = (struct nvml_abi_accounting_v1){.gpu_percent = stats.sm_percent,
                                           .max_bytes = stats.max_bytes,
                                           .start_us = stats.start_us,
                                           .running = stats.running};
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetAccountingStats_v2(nvml_abi_device device, struct nvml_abi_accounting_v2 *out) {
    NVML_ENTER_GPU(out);
    struct sim_accounting stats;
    NVML_TRY(stats_of(gpu, out->pid, &stats));
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
    NVML_ENTER_GPU(value_type && count && (!out || *count > 0) && type >= NVML_ABI_SAMPLES_POWER);
    NVML_REQUIRE(type <= NVML_ABI_SAMPLES_MEMORY, NVML_ABI_NOT_SUPPORTED);
    struct sim_ring_sample ring[SIM_SAMPLES_MAX];
    struct sim_reply reply;
    *value_type = NVML_ABI_VALUE_UNSIGNED;
    if (!out) {
        *count = SIM_SAMPLES_MAX;
        return NVML_ABI_SUCCESS;
    }
    unsigned power_mw = NVML_STATE.power_mw;
    NVML_TRY(nvml_ask(SIM_RING, gpu, last_seen, &reply, ring, sizeof ring));
    unsigned have = reply.payload_bytes / (unsigned)sizeof *ring;
    NVML_TRY(nvml_list(count, have, out));
    for (unsigned i = 0; i < have; i++) {
        uint64_t percent = type == NVML_ABI_SAMPLES_GPU ? ring[i].percent : ring[i].percent / 2;
        out[i] = (struct nvml_abi_sample){.timestamp_us = ring[i].timestamp_us,
                                          .value = type == NVML_ABI_SAMPLES_POWER ? power_mw : percent};
    }
    return have ? NVML_ABI_SUCCESS : NVML_ABI_NOT_FOUND;
}
