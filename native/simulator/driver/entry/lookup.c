/* cuGetProcAddress in its two forms, over the table of entry points: the newest row that is not above the requested
 * version. The second form refuses a version above the driver's own, and says by the status alone that nothing was
 * found: NVIDIA's documentation, and an H100 with driver 580.159.04 (test/gpu/observed/h100-580.159.04.json, step
 * identity). Assumption: the first form takes any version, as its documentation names no such error. */
#include <string.h>

#include "../../../abi/generated/cuda_symbols.h"
#include "newer.h"

#define DECLARE(index, symbol) extern abi_result symbol(void);
ABI_CUDA_SYMBOLS(DECLARE)
#undef DECLARE

static const struct {
    const char *base;
    int version, per_thread;
    void *function;
} ROWS[] = {
#define ROW(base, version, per_thread, symbol) {base, version, per_thread, (void *)symbol},
    ABI_CUDA_VERSION_ROWS(ROW)
#undef ROW
        {"cuLaunchKernel", 14000, 0, (void *)cuLaunchKernel_v2},
    {"cuLaunchKernel", 14000, 1, (void *)cuLaunchKernel_v2_ptsz},
    {"cuMemAlloc", 14000, 0, (void *)cuMemAlloc_v3},
    {"cuTensorHeapCreate", 14000, 0, (void *)cuTensorHeapCreate},
    {"cuTensorHeapDestroy", 14000, 0, (void *)cuTensorHeapDestroy},
};

static bool are_arguments(const char *base, void *const *function, uint64_t flags) {
    return base && function && !(flags & ~(uint64_t)(ABI_GPA_LEGACY_STREAM | ABI_GPA_PER_THREAD_STREAM));
}

/* Returns the status. */
static int look_up(const char *base, void **function, int version, uint64_t flags) {
    *function = NULL;
    int best = -1, exists = 0;
    for (int i = 0; i < (int)(sizeof ROWS / sizeof *ROWS); i++) {
        if (strcmp(ROWS[i].base, base) != 0 || ROWS[i].version > sim_library_cuda) continue;
        exists = 1;
        if (ROWS[i].version > version || (ROWS[i].per_thread && !(flags & ABI_GPA_PER_THREAD_STREAM))) continue;
        /* Newest first; of two with the same version the per-thread form, which is only returned on request. */
        if (best < 0 || ROWS[i].version > ROWS[best].version ||
            (ROWS[i].version == ROWS[best].version && ROWS[i].per_thread))
            best = i;
    }
    if (best < 0) return exists ? ABI_GPA_VERSION_NOT_SUFFICIENT : ABI_GPA_SYMBOL_NOT_FOUND;
    *function = ROWS[best].function;
    return ABI_GPA_FOUND;
}

SIM_EXPORT abi_result look_up_v2(const char *base, void **function, int version, uint64_t flags,
                                 int *status) __asm__("cuGetProcAddress_v2");
SIM_EXPORT abi_result look_up_v2(const char *base, void **function, int version, uint64_t flags, int *status) {
    if (!are_arguments(base, function, flags) || version > sim_library_cuda) return ABI_ERROR_INVALID_VALUE;
    int found = look_up(base, function, version, flags);
    if (status) *status = found;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result look_up_v1(const char *base, void **function, int version,
                                 uint64_t flags) __asm__("cuGetProcAddress");
SIM_EXPORT abi_result look_up_v1(const char *base, void **function, int version, uint64_t flags) {
    if (!are_arguments(base, function, flags)) return ABI_ERROR_INVALID_VALUE;
    return look_up(base, function, version, flags) == ABI_GPA_FOUND ? ABI_SUCCESS : ABI_ERROR_NOT_FOUND;
}
