/* Utilization and accounting inside a container: rows of its own processes only, and the part of the GPU's
 * utilization that is theirs, in percent of the whole GPU. Samples of the whole GPU's utilization do not say which
 * process caused it, so a grant has none. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "answers.h"

#define PERIOD_US 1000000u /* the driver's own period is 1/6 to 1 s */

/* Rows of a list of the driver's, in our own memory. */
struct rows_query {
    nvml_abi_device device;
    unsigned long long last_seen;
};

/* Reduces rows to those of the container's own processes. */
static nvml_abi_return keep_own(void *rows, size_t row_bytes, size_t pid_at, unsigned *count) {
    struct nvml_own own;
    unsigned kept = 0;
    bool known = nvml_own_begin(&own, GRANT_NO_GPU);
    for (unsigned i = 0; known && i < *count; i++) {
        uint32_t pid;
        char *row = (char *)rows + i * row_bytes;
        memcpy(&pid, row + pid_at, sizeof pid);
        if (nvml_own_find(&own, pid)) memmove((char *)rows + kept++ * row_bytes, row, row_bytes);
    }
    nvml_own_end(&own);
    *count = kept;
    return known ? NVML_ABI_SUCCESS : NVML_ABI_MEMORY;
}

/* ---- by process ---- */

typedef struct nvml_abi_process_utilization row;

nvml_abi_return cot_nvmlDeviceGetProcessUtilization(nvml_abi_device device, row *out, unsigned *count,
                                                    unsigned long long last_seen);

static nvml_abi_return ask_rows(const void *call, unsigned *count, void *rows) {
    const struct rows_query *query = call;
    return CALL_REAL(nvmlDeviceGetProcessUtilization, query->device, rows, count, query->last_seen);
}

/* The container's own rows, which must be freed, also after an error. */
static row *own_rows(nvml_abi_device device, unsigned long long last_seen, unsigned *kept, nvml_abi_return *result) {
    struct rows_query query = {device, last_seen};
    unsigned have = 0;
    row *rows = nvml_read_list(ask_rows, &query, sizeof *rows, &have, result);
    *kept = 0;
    if (*result != NVML_ABI_SUCCESS) return rows;
    *result = keep_own(rows, sizeof *rows, offsetof(row, pid), &have);
    if (*result == NVML_ABI_SUCCESS && have == 0) *result = NVML_ABI_NOT_FOUND;
    *kept = have;
    return rows;
}

nvml_abi_return cot_nvmlDeviceGetProcessUtilization(nvml_abi_device device, row *out, unsigned *count,
                                                    unsigned long long last_seen) {
    unsigned kept;
    nvml_abi_return result;
    if (!out || !count || !grant_is_readable())
        return CALL_REAL(nvmlDeviceGetProcessUtilization, device, out, count, last_seen);
    row *rows = own_rows(device, last_seen, &kept, &result);
    if (result == NVML_ABI_SUCCESS) result = nvml_copy_list(rows, sizeof *rows, kept, count, out);
    else if (result == NVML_ABI_NOT_FOUND) *count = 0;
    free(rows);
    return result;
}

#define TABLE_VERSION NVML_ABI_STRUCT_VERSION(struct nvml_abi_processes_utilization, 1)
nvml_abi_return cot_nvmlDeviceGetProcessesUtilizationInfo(nvml_abi_device device,
                                                          struct nvml_abi_processes_utilization *out);

static nvml_abi_return ask_table(const void *call, unsigned *count, void *rows) {
    const struct rows_query *query = call;
    struct nvml_abi_processes_utilization table = {
        .version = TABLE_VERSION, .count = *count, .last_seen_us = query->last_seen, .entries = rows};
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetProcessesUtilizationInfo, query->device, &table);
    *count = result == NVML_ABI_NOT_FOUND ? 0 : table.count;
    return result == NVML_ABI_NOT_FOUND ? NVML_ABI_SUCCESS : result;
}

/* A structure of an unknown version would be filled beyond what we know, so it is refused. */
nvml_abi_return cot_nvmlDeviceGetProcessesUtilizationInfo(nvml_abi_device device,
                                                          struct nvml_abi_processes_utilization *out) {
    if (!out || !grant_is_readable()) return CALL_REAL(nvmlDeviceGetProcessesUtilizationInfo, device, out);
    bool known = out->version == TABLE_VERSION;
    struct rows_query query = {device, known ? out->last_seen_us : 0};
    struct nvml_abi_processes_utilization_entry *rows;
    nvml_abi_return result;
    unsigned kept = 0;
    rows = nvml_read_list(ask_table, &query, sizeof *rows, &kept, &result);
    if (result == NVML_ABI_SUCCESS && !known) result = NVML_ABI_ARGUMENT_VERSION_MISMATCH;
    if (result == NVML_ABI_SUCCESS)
        result = keep_own(rows, sizeof *rows, offsetof(struct nvml_abi_processes_utilization_entry, pid), &kept);
    if (result == NVML_ABI_SUCCESS) {
        result = nvml_copy_list(rows, sizeof *rows, kept, &out->count, out->entries);
        if (result != NVML_ABI_SUCCESS) result = NVML_ABI_INSUFFICIENT_SIZE;
        else if (kept == 0) result = NVML_ABI_NOT_FOUND;
    }
    free(rows);
    return result;
}

/* ---- by GPU ---- */

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Where the driver has no figures of processes (MIG), its figure of the GPU is passed on. */
nvml_abi_return cot_nvmlDeviceGetUtilizationRates(nvml_abi_device device, struct nvml_abi_utilization *out) {
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetUtilizationRates, device, out);
    uint32_t gpu;
    nvml_abi_return found;
    unsigned count;
    if (result != NVML_ABI_SUCCESS || !nvml_gpu_of(device, &gpu)) return result;
    row *rows = own_rows(device, now_us() - PERIOD_US, &count, &found);
    if (found == NVML_ABI_SUCCESS || found == NVML_ABI_NOT_FOUND) {
        struct nvml_abi_utilization own = {0};
        for (unsigned i = 0; i < count; i++) {
            own.gpu += rows[i].sm < 100 ? rows[i].sm : 100;
            own.memory += rows[i].memory < 100 ? rows[i].memory : 100;
        }
        out->gpu = own.gpu < 100 ? own.gpu : 100;
        out->memory = own.memory < 100 ? own.memory : 100;
    }
    free(rows);
    return result;
}

static bool is_of_all_tenants(int type) {
    return type == NVML_ABI_SAMPLES_GPU || type == NVML_ABI_SAMPLES_MEMORY || type == NVML_ABI_SAMPLES_ENCODER ||
           type == NVML_ABI_SAMPLES_DECODER || type == NVML_ABI_SAMPLES_JPEG || type == NVML_ABI_SAMPLES_OFA;
}

nvml_abi_return cot_nvmlDeviceGetSamples(nvml_abi_device device, int type, unsigned long long last_seen,
                                         int *value_type, unsigned *count, struct nvml_abi_sample *out) {
    uint32_t gpu;
    bool hidden = is_of_all_tenants(type) && nvml_gpu_of(device, &gpu);
    unsigned most;
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetSamples, device, type, last_seen, value_type,
                                       hidden && count ? &most : count, hidden ? NULL : out);
    return hidden && result == NVML_ABI_SUCCESS ? NVML_ABI_NOT_SUPPORTED : result;
}

/* GPM counters of the GPU do not say which process's work they counted. */
nvml_abi_return cot_nvmlGpmQueryDeviceSupport(nvml_abi_device device, struct nvml_abi_gpm_support *out) {
    nvml_abi_return result = CALL_REAL(nvmlGpmQueryDeviceSupport, device, out);
    uint32_t gpu;
    if (result == NVML_ABI_SUCCESS && nvml_gpu_of(device, &gpu)) out->supported = 0;
    return result;
}

nvml_abi_return cot_nvmlGpmSampleGet(nvml_abi_device device, void *sample) {
    uint32_t gpu;
    bool hidden = REAL(nvmlGpmSampleGet) && nvml_gpu_of(device, &gpu);
    return hidden ? NVML_ABI_NOT_SUPPORTED : CALL_REAL(nvmlGpmSampleGet, device, sample);
}

nvml_abi_return cot_nvmlGpmMigSampleGet(nvml_abi_device device, unsigned gpu_instance, void *sample) {
    uint32_t gpu;
    bool hidden = REAL(nvmlGpmMigSampleGet) && nvml_gpu_of(device, &gpu);
    return hidden ? NVML_ABI_NOT_SUPPORTED : CALL_REAL(nvmlGpmMigSampleGet, device, gpu_instance, sample);
}

/* ---- accounting ---- */

nvml_abi_return cot_nvmlDeviceGetAccountingPids(nvml_abi_device device, unsigned *count, unsigned *out);

static nvml_abi_return ask_pids(const void *call, unsigned *count, void *pids) {
    const struct rows_query *query = call;
    return CALL_REAL(nvmlDeviceGetAccountingPids, query->device, count, pids);
}

/* Running processes only: of an ended one it is unknown which container it belonged to. */
nvml_abi_return cot_nvmlDeviceGetAccountingPids(nvml_abi_device device, unsigned *count, unsigned *out) {
    if (!count || !grant_is_readable()) return CALL_REAL(nvmlDeviceGetAccountingPids, device, count, out);
    struct rows_query query = {.device = device};
    nvml_abi_return result;
    unsigned kept = 0;
    unsigned *pids = nvml_read_list(ask_pids, &query, sizeof *pids, &kept, &result);
    if (result == NVML_ABI_SUCCESS) result = keep_own(pids, sizeof *pids, 0, &kept);
    if (result == NVML_ABI_SUCCESS) result = nvml_copy_list(pids, sizeof *pids, kept, count, out);
    free(pids);
    return result;
}

static bool is_own(uint32_t pid) {
    struct nvml_own own;
    bool found = nvml_own_begin(&own, GRANT_NO_GPU) && nvml_own_find(&own, pid);
    nvml_own_end(&own);
    return found;
}

/* The figures are the driver's: the ledger has no peak or time of a process. */
nvml_abi_return cot_nvmlDeviceGetAccountingStats(nvml_abi_device device, unsigned pid,
                                                 struct nvml_abi_accounting_v1 *out) {
    struct nvml_abi_accounting_v1 stats;
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetAccountingStats, device, pid, out ? &stats : NULL);
    if (result != NVML_ABI_SUCCESS || !out) return result;
    if (grant_is_readable() && !is_own(pid)) return NVML_ABI_NOT_FOUND;
    *out = stats;
    return result;
}

nvml_abi_return cot_nvmlDeviceGetAccountingStats_v2(nvml_abi_device device, struct nvml_abi_accounting_v2 *out) {
    struct nvml_abi_accounting_v2 stats = {.pid = out ? out->pid : 0};
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetAccountingStats_v2, device, out ? &stats : NULL);
    if (result != NVML_ABI_SUCCESS || !out) return result;
    if (grant_is_readable() && !is_own(stats.pid)) return NVML_ABI_NOT_FOUND;
    *out = stats;
    return result;
}
