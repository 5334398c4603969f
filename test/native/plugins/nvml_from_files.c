/* A management library with one GPU of 16 GiB, which lists the processes whose PIDs are in the file beside
 * the library that is named like it with ".pids", one behind the other with spaces, each with as many bytes as its
 * place there. The file with ".uses" says how they use it: a code of NVML to fail with, 0 for none, and rows of pid,
 * percent of SMs, wall clock in microseconds, and percent of memory, encoder and decoder, all of which are reported
 * whatever was seen already. The file with ".raw" is an answer byte by byte: a line with the ending of the name that
 * answers so ("-" for none), its code, count and how many bytes it writes, then those; all other names of the list are
 * not there then. The file with ".readings" has the figures of the GPU: total, used and free bytes, and the two
 * percentages of its use. Where there is a fifo with ".late", the list is given once a process has opened it to write,
 * and closed it, as it was when it was asked for. Where there is one with ".nameless", the GPU's UUID is empty. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../../native/abi/nvml.h"

#define LISTED_BYTES (16ull << 30)

#define EXPORT __attribute__((visibility("default")))

static char gpu;

EXPORT int nvmlInit_v2(void) {
    return NVML_ABI_SUCCESS;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return NVML_ABI_SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_abi_device *device) {
    *device = (nvml_abi_device)&gpu;
    return NVML_ABI_SUCCESS;
}
static FILE *beside(const char *ending) {
    char path[4096];
    Dl_info own;
    dladdr(&gpu, &own);
    snprintf(path, sizeof path, "%s.%s", own.dli_fname, ending);
    return fopen(path, "re");
}

EXPORT int nvmlDeviceGetUUID(nvml_abi_device device, char *uuid, unsigned size) {
    FILE *file = beside("nameless");
    snprintf(uuid, size, file ? "" : "GPU-0");
    if (file) fclose(file);
    return NVML_ABI_SUCCESS;
}

static void readings(struct nvml_abi_memory_v1 *memory, struct nvml_abi_utilization *use) {
    *memory = (struct nvml_abi_memory_v1){.total = LISTED_BYTES, .free = LISTED_BYTES};
    *use = (struct nvml_abi_utilization){0};
    FILE *file = beside("readings");
    if (!file) return;
    unsigned long long total, used, left;
    if (fscanf(file, "%llu %llu %llu %u %u", &total, &used, &left, &use->gpu, &use->memory) == 5)
        *memory = (struct nvml_abi_memory_v1){.total = total, .used = used, .free = left};
    fclose(file);
}
EXPORT int nvmlDeviceGetMemoryInfo(nvml_abi_device device, struct nvml_abi_memory_v1 *memory) {
    struct nvml_abi_utilization use;
    readings(memory, &use);
    return NVML_ABI_SUCCESS;
}
EXPORT int nvmlDeviceGetUtilizationRates(nvml_abi_device device, struct nvml_abi_utilization *use) {
    struct nvml_abi_memory_v1 memory;
    readings(&memory, use);
    return NVML_ABI_SUCCESS;
}

EXPORT int nvmlDeviceGetProcessUtilization(nvml_abi_device device, struct nvml_abi_process_utilization *rows,
                                           unsigned *count, unsigned long long last_seen) {
    FILE *file = beside("uses");
    if (!file) return NVML_ABI_NOT_SUPPORTED;
    unsigned there = 0, pid, percent, memory, encoder, decoder;
    unsigned long long at;
    int code = NVML_ABI_UNKNOWN;
    bool more = fscanf(file, "%d", &code) == 1;
    for (; more && there < *count &&
           fscanf(file, "%u %u %llu %u %u %u", &pid, &percent, &at, &memory, &encoder, &decoder) == 6;
         there++) {
        rows[there] = (struct nvml_abi_process_utilization){
            .pid = pid, .timestamp_us = at, .sm = percent, .memory = memory, .encoder = encoder, .decoder = decoder};
    }
    fclose(file);
    *count = there;
    if (code == NVML_ABI_SUCCESS && there == 0) code = NVML_ABI_NOT_FOUND;
    return code;
}
static int raw(FILE *file, const char *own, unsigned *count, void *entries) {
    char name[8];
    int code = NVML_ABI_UNKNOWN;
    unsigned reported = 0;
    size_t bytes = 0;
    if (fscanf(file, "%7s %d %u %zu", name, &code, &reported, &bytes) != 4 || strcmp(name, own) != 0)
        code = NVML_ABI_FUNCTION_NOT_FOUND;
    else if (fgetc(file) != '\n' || fread(entries, 1, bytes, file) != bytes) code = NVML_ABI_UNKNOWN;
    fclose(file);
    *count = reported;
    return code;
}

static int listed(unsigned *count, void *entries) {
    FILE *file = beside("pids");
    if (!file) return NVML_ABI_NOT_FOUND;
    unsigned there = 0, pid;
    for (; there < *count && fscanf(file, "%u", &pid) == 1; there++) {
        const uint64_t entry[3] = {pid, there + 1, 0};
        memcpy((char *)entries + there * sizeof entry, entry, sizeof entry);
    }
    fclose(file);
    *count = there;
    FILE *late = beside("late");
    if (late) {
        fgetc(late);
        fclose(late);
    }
    return NVML_ABI_SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(nvml_abi_device device, unsigned *count, void *entries) {
    FILE *file = beside("raw");
    return file ? raw(file, "_v3", count, entries) : listed(count, entries);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(nvml_abi_device device, unsigned *count, void *entries) {
    FILE *file = beside("raw");
    return file ? raw(file, "_v2", count, entries) : NVML_ABI_FUNCTION_NOT_FOUND;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(nvml_abi_device device, unsigned *count, void *entries) {
    FILE *file = beside("raw");
    return file ? raw(file, "-", count, entries) : NVML_ABI_FUNCTION_NOT_FOUND;
}
