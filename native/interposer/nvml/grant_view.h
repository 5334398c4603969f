/* The grant and its usage as libcotenant-nvml.so reads them. It shares no state with libcotenant.so: a monitoring
 * tool may load NVML alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../abi/nvml.h"
#include "../../shared-memory/ledger.h"

#define GRANT_NO_GPU UINT32_MAX

struct grant_gpu {
    uint64_t memory_bytes, held_bytes;
    bool isolate;
};
struct grant_process {
    uint32_t pid; /* in the caller's PID namespace */
    uint64_t bytes;
};

/* False: there is no readable grant beside this object, and the driver's answers are passed on. */
bool grant_is_readable(void);
uint32_t grant_gpu_count(void);
bool grant_gpu_uuid(uint32_t gpu, char *text); /* "GPU-..." of a granted GPU, 41 bytes */
/* The GPU of the grant with this UUID; false: not granted. */
bool grant_find_gpu(const char *uuid, uint32_t *gpu);
void grant_gpu_usage(uint32_t gpu, struct grant_gpu *out);

/* The most entries that grant_processes writes. */
uint32_t grant_max_processes(void);
/* The container's running processes that are visible from this one, each once, with their charge on `gpu`
 * (GRANT_NO_GPU: 0). Returns their number. */
uint32_t grant_processes(uint32_t gpu, struct grant_process *out);
