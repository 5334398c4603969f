/* Processes on a GPU: lists in the layouts of different driver versions, utilization from the ring. */
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

/* Drivers 530 and 535.43 to 535.86 wrote 32-byte entries through the _v3 symbol, all others 24-byte ones. */
static bool long_v3_entries(void) {
    int major = atoi(nvml_facts->driver_version);
    const char *dot = strchr(nvml_facts->driver_version, '.');
    int minor = dot ? atoi(dot + 1) : 0;
    return major == 530 || (major == 535 && minor >= 43 && minor <= 86);
}

#define MOST_FOUND (SIM_MAX_PAYLOAD / sizeof(struct sim_process))

/* Appends the processes of one GPU or instance. */
static nvml_abi_return add_processes(uint32_t gpu, uint64_t type, struct sim_process *found, unsigned *have) {
    struct sim_reply reply;
    NVML_TRY(nvml_ask(SIM_PROCESSES, gpu, type, &reply, found + *have, (uint32_t)(MOST_FOUND - *have) * sizeof *found));
    *have += reply.payload_bytes / (unsigned)sizeof *found;
    return NVML_ABI_SUCCESS;
}

/* Fills the caller's array with entries of `stride` bytes. A GPU divided by MIG has the processes of its instances. */
static nvml_abi_return list(uint32_t gpu, uint64_t type, unsigned *count, void *entries, size_t stride) {
    static _Thread_local struct sim_process found[MOST_FOUND];
    unsigned have = 0;
    NVML_TRY(add_processes(gpu, type, found, &have));
    for (uint32_t i = 0; i < nvml_facts->gpu_count; i++) {
        if (nvml_facts->gpus[i].parent == gpu + 1) NVML_TRY(add_processes(i, type, found, &have));
    }
    NVML_TRY(nvml_list(count, have, entries));
    for (unsigned i = 0; i < have; i++) {
        const struct sim_gpu_facts *facts = &nvml_facts->gpus[found[i].gpu];
        struct nvml_abi_process_535 entry = {
            .pid = found[i].pid,
            .bytes = found[i].bytes,
            .gpu_instance = facts->parent ? facts->gpu_instance : NVML_ABI_NO_INSTANCE,
            .compute_instance = facts->parent ? facts->compute_instance : NVML_ABI_NO_INSTANCE,
        };
        memcpy((char *)entries + i * stride, &entry, stride);
    }
    return NVML_ABI_SUCCESS;
}

#define LIST(name, type, stride)                                               \
    NVML_EXPORT name(nvml_abi_device device, unsigned *count, void *entries) { \
        NVML_ENTER_ANY(count);                                                 \
        return list(gpu, type, count, entries, stride);                        \
    }
#define LISTS(name, type)     \
    LIST(name, type, 16)      \
    LIST(name##_v2, type, 24) \
    LIST(name##_v3, type, long_v3_entries() ? 32 : 24)
LISTS(nvmlDeviceGetComputeRunningProcesses, SIM_TYPE_COMPUTE)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, SIM_TYPE_GRAPHICS)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, SIM_TYPE_MPS)

/* Modes: 0 compute, 1 graphics, 2 MPS. */
NVML_EXPORT nvmlDeviceGetRunningProcessDetailList(nvml_abi_device device, struct nvml_abi_process_detail_list *out) {
    NVML_ENTER_GPU(true);
    NVML_REQUIRE(NVML_FACTS->cc_major >= 9, NVML_ABI_NOT_SUPPORTED);
    NVML_REQUIRE(out && out->mode <= 2, NVML_ABI_INVALID_ARGUMENT);
    NVML_REQUIRE(out->version == NVML_ABI_STRUCT_VERSION(struct nvml_abi_process_detail_list, 1),
                 NVML_ABI_ARGUMENT_VERSION_MISMATCH);
    return list(gpu, 1ull << out->mode, &out->count, out->entries, 32);
}

static nvml_abi_return utilization(uint32_t gpu, uint64_t last_seen, unsigned *count,
                                   struct sim_process_utilization *rows) {
    struct sim_reply reply;
    NVML_TRY(nvml_ask(SIM_UTILIZATION, gpu, last_seen, &reply, rows, SIM_SAMPLES_MAX * sizeof *rows));
    *count = reply.payload_bytes / (unsigned)sizeof *rows;
    return NVML_ABI_SUCCESS;
}
/* A row in either of NVML's layouts. */
#define NVML_ROW(layout, row)                     \
    ((layout){.pid = (row).pid,                   \
              .timestamp_us = (row).timestamp_us, \
              .sm = (row).sm_percent,             \
              .memory = (row).memory_percent,     \
              .encoder = (row).encoder_percent,   \
              .decoder = (row).decoder_percent})

/* NOT_FOUND means that no process ran: it is not a failure. */
NVML_EXPORT nvmlDeviceGetProcessUtilization(nvml_abi_device device, struct nvml_abi_process_utilization *out,
                                            unsigned *count, unsigned long long last_seen) {
    NVML_ENTER_GPU(true);
    NVML_UNDIVIDED();
    NVML_REQUIRE(count, NVML_ABI_INVALID_ARGUMENT);
    struct sim_process_utilization rows[SIM_SAMPLES_MAX];
    unsigned have;
    if (!out) {
        *count = SIM_SAMPLES_MAX;
        return NVML_ABI_INSUFFICIENT_SIZE;
    }
    NVML_TRY(utilization(gpu, last_seen, &have, rows));
    NVML_TRY(nvml_list(count, have, out));
    for (unsigned i = 0; i < have; i++) out[i] = NVML_ROW(struct nvml_abi_process_utilization, rows[i]);
    return have ? NVML_ABI_SUCCESS : NVML_ABI_NOT_FOUND;
}

NVML_EXPORT nvmlDeviceGetProcessesUtilizationInfo(nvml_abi_device device, struct nvml_abi_processes_utilization *out) {
    NVML_ENTER_GPU(true);
    NVML_UNDIVIDED();
    NVML_REQUIRE(out, NVML_ABI_INVALID_ARGUMENT);
    NVML_REQUIRE(out->version == NVML_ABI_STRUCT_VERSION(struct nvml_abi_processes_utilization, 1),
                 NVML_ABI_ARGUMENT_VERSION_MISMATCH);
    struct sim_process_utilization rows[SIM_SAMPLES_MAX];
    unsigned have;
    NVML_TRY(utilization(gpu, out->last_seen_us, &have, rows));
    if (nvml_list(&out->count, have, out->entries)) return NVML_ABI_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++)
        out->entries[i] = NVML_ROW(struct nvml_abi_processes_utilization_entry, rows[i]);
    return have ? NVML_ABI_SUCCESS : NVML_ABI_NOT_FOUND;
}
