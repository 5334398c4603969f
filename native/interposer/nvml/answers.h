/* What the answers share: the real entry point of a name, and the grant's GPU behind a handle. */
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

/* Room for the whole list when the driver has told how many entries it has; a driver that tells more than this is
 * wrong, and is not followed. */
#define NVML_MOST_ENTRIES 65536u
static inline unsigned nvml_room_for(unsigned told) {
    return told < NVML_MOST_ENTRIES / 2 ? told * 2 + 8 : NVML_MOST_ENTRIES;
}
/* Entries that are there, whatever the driver tells. */
static inline unsigned nvml_entries(unsigned told, unsigned room) {
    return told < room ? told : room;
}

/* False: not a granted GPU, or there is no grant that could be read. */
bool nvml_gpu_of(nvml_abi_device device, uint32_t *gpu);

/* The container's processes, as one call of NVML needs them; `gpu` as of view_processes. */
struct nvml_own {
    struct view_process *list;
    uint32_t count;
};
/* False: there is no memory for it. Must be followed by nvml_own_end. */
bool nvml_own_begin(struct nvml_own *own, uint32_t gpu);
void nvml_own_end(struct nvml_own *own);
/* NULL: a pid of somebody else. */
const struct view_process *nvml_own_find(const struct nvml_own *own, uint32_t pid);
