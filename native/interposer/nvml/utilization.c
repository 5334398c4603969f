/* Utilization and accounting inside a container: rows of its own processes only, and the part of the GPU's
 * utilization that is theirs, in percent of the whole GPU. Samples of the whole GPU's utilization do not say which
 * process caused it, so a grant has none. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "answers.h"

#define PERIOD_US 1000000u /* the driver's own period is 1/6 to 1 s */
#define FIRST_ROWS 128u

/* ---- by process ---- */

typedef struct nvml_abi_process_utilization row;

static nvml_abi_return real_rows(nvml_abi_device device, row *rows, unsigned *count, unsigned long long last_seen) {
    return CALL_REAL(nvmlDeviceGetProcessUtilization, (nvml_abi_device, row *, unsigned *, unsigned long long), device,
                     rows, count, last_seen);
}

/* The container's own rows, in our own memory. *rows must be freed, also after an error. */
static nvml_abi_return own_rows(nvml_abi_device device, unsigned long long last_seen, row **rows, unsigned *kept) {
    nvml_abi_return result = NVML_ABI_INSUFFICIENT_SIZE;
    unsigned room = FIRST_ROWS, have = 0;
    struct nvml_own own;
    *rows = NULL;
    *kept = 0;
    for (int tries = 0; tries < 4 && result == NVML_ABI_INSUFFICIENT_SIZE; tries++) {
        if (tries) room = nvml_capacity_for(have);
        free(*rows);
        *rows = calloc(room, sizeof **rows);
        if (!*rows) return NVML_ABI_MEMORY;
        have = room;
        result = real_rows(device, *rows, &have, last_seen);
    }
    if (result != NVML_ABI_SUCCESS) return result;
    have = nvml_entries(have, room);
    if (nvml_own_begin(&own, GRANT_NO_GPU)) {
        for (unsigned i = 0; i < have; i++) {
            if (nvml_own_find(&own, (*rows)[i].pid)) (*rows)[(*kept)++] = (*rows)[i];
        }
        if (*kept == 0) result = NVML_ABI_NOT_FOUND;
    } else {
        result = NVML_ABI_MEMORY;
    }
    nvml_own_end(&own);
    return result;
}

nvml_abi_return cot_nvmlDeviceGetProcessUtilization(nvml_abi_device device, row *out, unsigned *count,
                                                    unsigned long long last_seen) {
    row *rows;
    unsigned kept;
    if (!out || !count || !grant_is_readable()) return real_rows(device, out, count, last_seen);
    nvml_abi_return result = own_rows(device, last_seen, &rows, &kept);
    if (result == NVML_ABI_SUCCESS || result == NVML_ABI_NOT_FOUND) {
        unsigned room = *count;
        *count = kept;
        if (kept > room) result = NVML_ABI_INSUFFICIENT_SIZE;
        else memcpy(out, rows, kept * sizeof *rows);
    }
    free(rows);
    return result;
}

static nvml_abi_return real_table(nvml_abi_device device, struct nvml_abi_processes_utilization *table) {
    return CALL_REAL(nvmlDeviceGetProcessesUtilizationInfo, (nvml_abi_device, struct nvml_abi_processes_utilization *),
                     device, table);
}

/* A structure of an unknown version would be filled beyond what we know, so it is refused. */
nvml_abi_return cot_nvmlDeviceGetProcessesUtilizationInfo(nvml_abi_device device,
                                                          struct nvml_abi_processes_utilization *out) {
    if (!out || !grant_is_readable()) return real_table(device, out);
    struct nvml_abi_processes_utilization whole = {
        .version = NVML_ABI_STRUCT_VERSION(struct nvml_abi_processes_utilization, 1), .count = FIRST_ROWS};
    bool known = out->version == whole.version;
    nvml_abi_return result = NVML_ABI_INSUFFICIENT_SIZE;
    unsigned kept = 0, room = FIRST_ROWS;
    for (int tries = 0; tries < 4 && result == NVML_ABI_INSUFFICIENT_SIZE; tries++) {
        if (tries) room = nvml_capacity_for(whole.count);
        free(whole.entries);
        whole.entries = calloc(room, sizeof *whole.entries);
        if (!whole.entries) return NVML_ABI_MEMORY;
        whole.count = room;
        whole.last_seen_us = known ? out->last_seen_us : 0;
        result = real_table(device, &whole);
    }
    struct nvml_own own;
    if (result != NVML_ABI_SUCCESS && result != NVML_ABI_NOT_FOUND) {
        free(whole.entries);
        return result;
    }
    whole.count = result == NVML_ABI_NOT_FOUND ? 0 : nvml_entries(whole.count, room);
    if (!known) {
        result = NVML_ABI_ARGUMENT_VERSION_MISMATCH;
    } else if (!nvml_own_begin(&own, GRANT_NO_GPU)) {
        result = NVML_ABI_MEMORY;
    } else {
        for (unsigned i = 0; i < whole.count; i++) {
            if (nvml_own_find(&own, whole.entries[i].pid)) whole.entries[kept++] = whole.entries[i];
        }
        nvml_own_end(&own);
        unsigned offered = out->count;
        out->count = kept;
        if (kept == 0) result = NVML_ABI_NOT_FOUND;
        else if (kept > offered || !out->entries) result = NVML_ABI_INSUFFICIENT_SIZE;
        else memcpy(out->entries, whole.entries, kept * sizeof *whole.entries);
    }
    free(whole.entries);
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
    nvml_abi_return result =
        CALL_REAL(nvmlDeviceGetUtilizationRates, (nvml_abi_device, struct nvml_abi_utilization *), device, out);
    uint32_t gpu;
    row *rows;
    unsigned count;
    if (result != NVML_ABI_SUCCESS || !nvml_gpu_of(device, &gpu)) return result;
    nvml_abi_return found = own_rows(device, now_us() - PERIOD_US, &rows, &count);
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
    nvml_abi_return result = CALL_REAL(
        nvmlDeviceGetSamples, (nvml_abi_device, int, unsigned long long, int *, unsigned *, struct nvml_abi_sample *),
        device, type, last_seen, value_type, hidden && count ? &most : count, hidden ? NULL : out);
    return hidden && result == NVML_ABI_SUCCESS ? NVML_ABI_NOT_SUPPORTED : result;
}

/* GPM counters of the GPU do not say which process's work they counted. */
nvml_abi_return cot_nvmlGpmQueryDeviceSupport(nvml_abi_device device, struct nvml_abi_gpm_support *out) {
    nvml_abi_return result =
        CALL_REAL(nvmlGpmQueryDeviceSupport, (nvml_abi_device, struct nvml_abi_gpm_support *), device, out);
    uint32_t gpu;
    if (result == NVML_ABI_SUCCESS && nvml_gpu_of(device, &gpu)) out->supported = 0;
    return result;
}

nvml_abi_return cot_nvmlGpmSampleGet(nvml_abi_device device, void *sample) {
    nvml_abi_return (*real)(nvml_abi_device, void *) = REAL(nvmlGpmSampleGet, (nvml_abi_device, void *));
    uint32_t gpu;
    if (!real) return (nvml_abi_return)shim_missing();
    return nvml_gpu_of(device, &gpu) ? NVML_ABI_NOT_SUPPORTED : real(device, sample);
}

nvml_abi_return cot_nvmlGpmMigSampleGet(nvml_abi_device device, unsigned gpu_instance, void *sample) {
    nvml_abi_return (*real)(nvml_abi_device, unsigned, void *) =
        REAL(nvmlGpmMigSampleGet, (nvml_abi_device, unsigned, void *));
    uint32_t gpu;
    if (!real) return (nvml_abi_return)shim_missing();
    return nvml_gpu_of(device, &gpu) ? NVML_ABI_NOT_SUPPORTED : real(device, gpu_instance, sample);
}

/* ---- accounting ---- */

/* Running processes only: of an ended one it is unknown which container it belonged to. */
nvml_abi_return cot_nvmlDeviceGetAccountingPids(nvml_abi_device device, unsigned *count, unsigned *out) {
    nvml_abi_return (*real)(nvml_abi_device, unsigned *, unsigned *) =
        REAL(nvmlDeviceGetAccountingPids, (nvml_abi_device, unsigned *, unsigned *));
    nvml_abi_return result = NVML_ABI_INSUFFICIENT_SIZE;
    unsigned have = 0, room = FIRST_ROWS, kept = 0, *pids = NULL;
    struct nvml_own own;
    if (!real) return (nvml_abi_return)shim_missing();
    if (!count || !grant_is_readable()) return real(device, count, out);
    for (int tries = 0; tries < 4 && result == NVML_ABI_INSUFFICIENT_SIZE; tries++) {
        if (tries) room = nvml_capacity_for(have);
        free(pids);
        pids = calloc(room, sizeof *pids);
        if (!pids) return NVML_ABI_MEMORY;
        have = room;
        result = real(device, &have, pids);
    }
    have = nvml_entries(have, room);
    if (result == NVML_ABI_SUCCESS && nvml_own_begin(&own, GRANT_NO_GPU)) {
        for (unsigned i = 0; i < have; i++) {
            if (nvml_own_find(&own, pids[i])) pids[kept++] = pids[i];
        }
        nvml_own_end(&own);
        unsigned offered = *count;
        *count = kept;
        if (kept > offered) result = NVML_ABI_INSUFFICIENT_SIZE;
        else if (kept && !out) result = NVML_ABI_INVALID_ARGUMENT;
        else if (kept) memcpy(out, pids, kept * sizeof *pids);
    } else if (result == NVML_ABI_SUCCESS) {
        result = NVML_ABI_MEMORY;
    }
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
    nvml_abi_return result =
        CALL_REAL(nvmlDeviceGetAccountingStats, (nvml_abi_device, unsigned, struct nvml_abi_accounting_v1 *), device,
                  pid, out ? &stats : NULL);
    if (result != NVML_ABI_SUCCESS || !out) return result;
    if (grant_is_readable() && !is_own(pid)) return NVML_ABI_NOT_FOUND;
    *out = stats;
    return result;
}

nvml_abi_return cot_nvmlDeviceGetAccountingStats_v2(nvml_abi_device device, struct nvml_abi_accounting_v2 *out) {
    struct nvml_abi_accounting_v2 stats = {.pid = out ? out->pid : 0};
    nvml_abi_return result = CALL_REAL(nvmlDeviceGetAccountingStats_v2,
                                       (nvml_abi_device, struct nvml_abi_accounting_v2 *), device, out ? &stats : NULL);
    if (result != NVML_ABI_SUCCESS || !out) return result;
    if (grant_is_readable() && !is_own(stats.pid)) return NVML_ABI_NOT_FOUND;
    *out = stats;
    return result;
}
