/* cuGetProcAddress in its two forms, over the table of entry points: returns the newest row that is not above the
 * requested version (and the driver's own). */
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

static abi_result look_up(const char *base, void **function, int version, uint64_t flags, int *status) {
    if (!base || !function || flags & ~(uint64_t)(ABI_GPA_LEGACY_STREAM | ABI_GPA_PER_THREAD_STREAM))
        return ABI_ERROR_INVALID_VALUE;
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
    if (best >= 0) *function = ROWS[best].function;
    if (status)
        *status = best >= 0 ? ABI_GPA_FOUND : exists ? ABI_GPA_VERSION_NOT_SUFFICIENT : ABI_GPA_SYMBOL_NOT_FOUND;
    return best >= 0 ? ABI_SUCCESS : ABI_ERROR_NOT_FOUND;
}

SIM_EXPORT abi_result look_up_v2(const char *base, void **function, int version, uint64_t flags,
                                 int *status) __asm__("cuGetProcAddress_v2");
SIM_EXPORT abi_result look_up_v2(const char *base, void **function, int version, uint64_t flags, int *status) {
    return look_up(base, function, version, flags, status);
}
SIM_EXPORT abi_result look_up_v1(const char *base, void **function, int version,
                                 uint64_t flags) __asm__("cuGetProcAddress");
SIM_EXPORT abi_result look_up_v1(const char *base, void **function, int version, uint64_t flags) {
    return look_up(base, function, version, flags, NULL);
}
