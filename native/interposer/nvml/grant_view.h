/* What the NVML object knows of the container: the grant and what is held, both read-only. It shares no state with the
 * CUDA object: a monitoring tool may load NVML alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../abi/nvml.h"
#include "../../shared-memory/ledger.h"

#define VIEW_NO_GPU UINT32_MAX

struct view_gpu {
    uint64_t memory_bytes, held_bytes;
    bool isolate;
};
struct view_process {
    uint32_t pid; /* as the caller counts pids */
    uint64_t bytes;
};

/* False: there is no readable grant beside this object, and nothing may be told about the GPU's memory. */
bool view_ready(void);
uint32_t view_gpu_count(void);
bool view_uuid_of(uint32_t gpu, char *text); /* "GPU-..." of a granted GPU, 41 bytes */
/* The GPU of the grant with this identifier; false: not granted. */
bool view_find(const char *uuid, uint32_t *gpu);
void view_gpu_now(uint32_t gpu, struct view_gpu *out);

/* The most entries that view_processes writes. */
uint32_t view_most_processes(void);
/* The container's living processes that this one can see, each once, with what they count for on `gpu`
 * (VIEW_NO_GPU: with 0); their number. */
uint32_t view_processes(uint32_t gpu, struct view_process *out);
