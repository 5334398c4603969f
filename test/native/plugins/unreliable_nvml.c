/* The simulated NVML library with failures. The first byte of the file beside it with ".mode" selects: "g", its lists
 * and utilization are mostly random; "h", a calling process hangs and cannot be ended (unkillable.h); else it works. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>

#include "../../../native/abi/nvml.h"
#include "unkillable.h"

#define EXPORT __attribute__((visibility("default")))
#define UNKNOWN 999

/* Any numbers will do. */
static uint32_t next(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static char mode(void) {
    char byte = 'n';
    const int fd = open(beside("mode"), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return byte;
    if (read(fd, &byte, 1) != 1) byte = 'n';
    close(fd);
    if (byte == 'h' && !is_released()) hold(NULL);
    return byte;
}

#define TRUE(name, types) ((nvml_abi_return(*) types)dlsym(RTLD_NEXT, name))

static nvml_abi_return spoil(nvml_abi_return result, unsigned *count, struct nvml_abi_process_v2 *rows) {
    if (result != NVML_ABI_SUCCESS || mode() != 'g') return result;
    struct nvml_abi_process_v2 *row = *count ? &rows[next() % *count] : NULL;
    switch (next() % 8) {
    case 0: return UNKNOWN;
    case 1: *count = 1u << 30; return NVML_ABI_INSUFFICIENT_SIZE;
    case 2: *count = 0; break;
    case 3:
        if (row) row->bytes = UINT64_MAX;
        break;
    case 4:
        if (row) row->bytes = 1ull << 60;
        break;
    case 5:
        if (row) row->pid = next() | 1u << 23;
        break;
    case 6:
        if (row) row->pid = 0;
        break;
    default: break;
    }
    return result;
}

#define LIST(kind)                                                                                           \
    EXPORT nvml_abi_return nvmlDeviceGet##kind##RunningProcesses_v3(nvml_abi_device device, unsigned *count, \
                                                                    struct nvml_abi_process_v2 *rows) {      \
        return spoil(TRUE("nvmlDeviceGet" #kind "RunningProcesses_v3",                                       \
                          (nvml_abi_device, unsigned *, struct nvml_abi_process_v2 *))(device, count, rows), \
                     count, rows);                                                                           \
    }
LIST(Compute)
LIST(Graphics)
LIST(MPSCompute)

EXPORT nvml_abi_return nvmlDeviceGetProcessesUtilizationInfo(nvml_abi_device device,
                                                             struct nvml_abi_processes_utilization *out) {
    const nvml_abi_return result = TRUE("nvmlDeviceGetProcessesUtilizationInfo",
                                        (nvml_abi_device, struct nvml_abi_processes_utilization *))(device, out);
    if (result != NVML_ABI_SUCCESS || out->count == 0 || mode() != 'g') return result;
    struct nvml_abi_processes_utilization_entry *row = &out->entries[next() % out->count];
    switch (next() % 4) {
    case 0: row->sm = UINT32_MAX; break;
    case 1: row->timestamp_us += 3600ull * 1000000; break;
    case 2: row->pid = UINT32_MAX; break;
    default: row->timestamp_us = 0; break;
    }
    return result;
}
