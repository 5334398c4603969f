/* Shared by the functions for NVML: the real entry point, the GPU of the grant behind a handle, the container's
 * processes. */
#pragma once

#include "../generated/nvml_verbs.h"
#include "../symbols/symbols.h"
#include "grant_view.h"

#define REAL(symbol, types) ((nvml_abi_return(*) types)shim_real(COT_AT_##symbol))
#define CALL_REAL(symbol, types, ...)                                 \
    ({                                                                \
        nvml_abi_return(*real_) types = REAL(symbol, types);          \
        real_ ? real_(__VA_ARGS__) : (nvml_abi_return)shim_missing(); \
    })

/* Capacity for a list of which the driver reports so many entries; a larger count than this is not believed. */
#define NVML_MAX_ENTRIES 65536u
static inline unsigned nvml_capacity_for(unsigned reported) {
    return reported < NVML_MAX_ENTRIES / 2 ? reported * 2 + 8 : NVML_MAX_ENTRIES;
}
/* Entries that are there, whatever the driver reports. */
static inline unsigned nvml_entries(unsigned reported, unsigned capacity) {
    return reported < capacity ? reported : capacity;
}

/* False: the GPU is not granted, or the grant cannot be read. */
bool nvml_gpu_of(nvml_abi_device device, uint32_t *gpu);

/* The container's processes, for one call of NVML; `gpu` as for grant_processes. */
struct nvml_own {
    struct grant_process *list;
    uint32_t count;
};
/* False: out of memory. Must be followed by nvml_own_end. */
bool nvml_own_begin(struct nvml_own *own, uint32_t gpu);
void nvml_own_end(struct nvml_own *own);
/* NULL: the PID of another container's process. */
const struct grant_process *nvml_own_find(const struct nvml_own *own, uint32_t pid);
