/* Shared by the functions for NVML: the real entry point, the GPU of the grant behind a handle, the container's
 * processes. */
#pragma once

#include "../generated/nvml_verbs.h"
#include "../symbols/symbols.h"
#include "grant_view.h"

/* The driver's function of this name, with the type of ours. */
#define REAL(symbol) ((__typeof__(&cot_##symbol))shim_real(COT_AT_##symbol))
#define CALL_REAL(symbol, ...)                                        \
    ({                                                                \
        __typeof__(&cot_##symbol) real_ = REAL(symbol);               \
        real_ ? real_(__VA_ARGS__) : (nvml_abi_return)shim_missing(); \
    })

/* A whole list of the driver's, in our own memory, which must be freed, also after an error. `ask` calls the driver
 * with an array of *count rows. What the driver did not write is NVML_FILL. */
#define NVML_FILL 0xaa
typedef nvml_abi_return nvml_list_call(const void *query, unsigned *count, void *rows);
void *nvml_read_list(nvml_list_call *ask, const void *query, size_t row_bytes, unsigned *count,
                     nvml_abi_return *result);
/* As the driver does it: the count is always set, too small an array is an error, an empty list is a success. */
nvml_abi_return nvml_copy_list(const void *rows, size_t row_bytes, unsigned have, unsigned *count, void *out);

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
