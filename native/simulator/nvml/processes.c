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

static nvml_abi_return ask_list(uint32_t gpu, uint64_t type, struct sim_process *found, unsigned *more) {
    struct sim_reply reply;
    nvml_abi_return result = nvml_ask(SIM_PROCESSES, gpu, type, &reply, found, MOST_FOUND * sizeof *found);
    *more = result == NVML_ABI_SUCCESS ? reply.payload_bytes / (unsigned)sizeof *found : 0;
    return result;
}

static void write_entries(const struct sim_gpu_facts *facts, const struct sim_process *found, unsigned more,
                          void *entries, size_t stride) {
    for (unsigned i = 0; i < more; i++) {
        struct nvml_abi_process_535 entry = {.pid = found[i].pid,
                                             .bytes = found[i].bytes,
                                             .gpu_instance = facts->parent ? facts->gpu_instance : NVML_ABI_NO_INSTANCE,
                                             .compute_instance =
                                                 facts->parent ? facts->compute_instance : NVML_ABI_NO_INSTANCE};
        memcpy((char *)entries + i * stride, &entry, stride);
    }
}

/* Appends processes of one GPU or instance to `entries`, as far as they fit. */
static nvml_abi_return add_list(uint32_t gpu, uint64_t type, unsigned capacity, unsigned *have, void *entries,
                                size_t stride) {
    static _Thread_local struct sim_process found[MOST_FOUND];
    unsigned more, left = capacity > *have ? capacity - *have : 0;
    nvml_abi_return result = ask_list(gpu, type, found, &more);
    if (result != NVML_ABI_SUCCESS) return result;
    if (entries) {
        char *end = (char *)entries + *have * stride;
        write_entries(&nvml_facts->gpus[gpu], found, more < left ? more : left, end, stride);
    }
    *have += more;
    return NVML_ABI_SUCCESS;
}

/* How many there are on the GPU, including all instances. */
static nvml_abi_return add_lists(uint32_t gpu, uint64_t type, unsigned capacity, unsigned *have, void *entries,
                                 size_t stride) {
    nvml_abi_return result = add_list(gpu, type, capacity, have, entries, stride);
    for (uint32_t i = 0; result == NVML_ABI_SUCCESS && i < nvml_facts->gpu_count; i++) {
        if (nvml_facts->gpus[i].parent == gpu + 1) result = add_list(i, type, capacity, have, entries, stride);
    }
    return result;
}

/* Fills `count` entries of `stride` bytes in the caller's array, as NVML does: if the array is too small, returns an
 * error with the number of entries, and writes none. */
static nvml_abi_return list(uint32_t gpu, uint64_t type, unsigned *count, void *entries, size_t stride) {
    static _Thread_local struct sim_process found[MOST_FOUND];
    unsigned have = 0, capacity = *count;
    bool divided = nvml_facts->gpus[gpu].divided;
    nvml_abi_return result = divided ? add_lists(gpu, type, 0, &have, NULL, stride) : ask_list(gpu, type, found, &have);
    if (result != NVML_ABI_SUCCESS) return result;
    *count = have;
    if (have == 0) return NVML_ABI_SUCCESS;
    if (capacity < have) return NVML_ABI_INSUFFICIENT_SIZE;
    if (!entries) return NVML_ABI_INVALID_ARGUMENT;
    if (!divided) {
        write_entries(&nvml_facts->gpus[gpu], found, have, entries, stride);
        return NVML_ABI_SUCCESS;
    }
    have = 0;
    result = add_lists(gpu, type, capacity, &have, entries, stride);
    *count = have < capacity ? have : capacity;
    return result;
}

#define LISTS(kind, type)                                                                                          \
    NVML_EXPORT nvmlDeviceGet##kind##RunningProcesses(nvml_abi_device device, unsigned *count, void *entries) {    \
        NVML_ENTER_ANY("nvmlDeviceGet" #kind "RunningProcesses", device, gpu);                                     \
        return count ? list(gpu, type, count, entries, 16) : NVML_ABI_INVALID_ARGUMENT;                            \
    }                                                                                                              \
    NVML_EXPORT nvmlDeviceGet##kind##RunningProcesses_v2(nvml_abi_device device, unsigned *count, void *entries) { \
        NVML_ENTER_ANY("nvmlDeviceGet" #kind "RunningProcesses_v2", device, gpu);                                  \
        return count ? list(gpu, type, count, entries, 24) : NVML_ABI_INVALID_ARGUMENT;                            \
    }                                                                                                              \
    NVML_EXPORT nvmlDeviceGet##kind##RunningProcesses_v3(nvml_abi_device device, unsigned *count, void *entries) { \
        NVML_ENTER_ANY("nvmlDeviceGet" #kind "RunningProcesses_v3", device, gpu);                                  \
        return count ? list(gpu, type, count, entries, long_v3_entries() ? 32 : 24) : NVML_ABI_INVALID_ARGUMENT;   \
    }

LISTS(Compute, SIM_TYPE_COMPUTE)
LISTS(Graphics, SIM_TYPE_GRAPHICS)
LISTS(MPSCompute, SIM_TYPE_MPS)

/* Modes: 0 compute, 1 graphics, 2 MPS. */
NVML_EXPORT nvmlDeviceGetRunningProcessDetailList(nvml_abi_device device, struct nvml_abi_process_detail_list *out) {
    NVML_ENTER_GPU("nvmlDeviceGetRunningProcessDetailList", device, gpu);
    if (nvml_facts->gpus[gpu].cc_major < 9) return NVML_ABI_NOT_SUPPORTED;
    if (!out || out->mode > 2) return NVML_ABI_INVALID_ARGUMENT;
    if (out->version != NVML_ABI_STRUCT_VERSION(struct nvml_abi_process_detail_list, 1))
        return NVML_ABI_ARGUMENT_VERSION_MISMATCH;
    return list(gpu, 1ull << out->mode, &out->count, out->entries, 32);
}

static nvml_abi_return utilization(uint32_t gpu, uint64_t last_seen, unsigned *count,
                                   struct sim_process_utilization *rows) {
    struct sim_reply reply;
    nvml_abi_return result = nvml_ask(SIM_UTILIZATION, gpu, last_seen, &reply, rows, SIM_SAMPLES_MAX * sizeof *rows);
    if (result == NVML_ABI_SUCCESS) *count = reply.payload_bytes / (unsigned)sizeof *rows;
    return result;
}

/* NOT_FOUND means that no process ran: it is not a failure. */
NVML_EXPORT nvmlDeviceGetProcessUtilization(nvml_abi_device device, struct nvml_abi_process_utilization *out,
                                            unsigned *count, unsigned long long last_seen) {
    NVML_ENTER_GPU("nvmlDeviceGetProcessUtilization", device, gpu);
    NVML_UNDIVIDED(gpu);
    struct sim_process_utilization rows[SIM_SAMPLES_MAX];
    unsigned have, capacity;
    if (!count) return NVML_ABI_INVALID_ARGUMENT;
    if (!out) {
        *count = SIM_SAMPLES_MAX;
        return NVML_ABI_INSUFFICIENT_SIZE;
    }
    nvml_abi_return result = utilization(gpu, last_seen, &have, rows);
    if (result != NVML_ABI_SUCCESS) return result;
    capacity = *count;
    *count = have;
    if (have == 0) return NVML_ABI_NOT_FOUND;
    if (capacity < have) return NVML_ABI_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++) {
        out[i] = (struct nvml_abi_process_utilization){.pid = rows[i].pid,
                                                       .timestamp_us = rows[i].timestamp_us,
                                                       .sm = rows[i].sm_percent,
                                                       .memory = rows[i].memory_percent,
                                                       .encoder = rows[i].encoder_percent,
                                                       .decoder = rows[i].decoder_percent};
    }
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetProcessesUtilizationInfo(nvml_abi_device device, struct nvml_abi_processes_utilization *out) {
    NVML_ENTER_GPU("nvmlDeviceGetProcessesUtilizationInfo", device, gpu);
    NVML_UNDIVIDED(gpu);
    struct sim_process_utilization rows[SIM_SAMPLES_MAX];
    unsigned have, capacity;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    if (out->version != NVML_ABI_STRUCT_VERSION(struct nvml_abi_processes_utilization, 1))
        return NVML_ABI_ARGUMENT_VERSION_MISMATCH;
    nvml_abi_return result = utilization(gpu, out->last_seen_us, &have, rows);
    if (result != NVML_ABI_SUCCESS) return result;
    capacity = out->count;
    out->count = have;
    if (have == 0) return NVML_ABI_NOT_FOUND;
    if (capacity < have || !out->entries) return NVML_ABI_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++) {
        out->entries[i] = (struct nvml_abi_processes_utilization_entry){.timestamp_us = rows[i].timestamp_us,
                                                                        .pid = rows[i].pid,
                                                                        .sm = rows[i].sm_percent,
                                                                        .memory = rows[i].memory_percent,
                                                                        .encoder = rows[i].encoder_percent,
                                                                        .decoder = rows[i].decoder_percent};
    }
    return NVML_ABI_SUCCESS;
}
