/* A CUDA driver whose entry points return at once: what remains of a call through the interposer is then the
 * interposer's own. Only what the measured programs and the interposer ask for; one GPU, one context per process.
 *
 * Memory comes from an address range that is handed out round and round, so that no two allocations that live at once
 * share an address. */
#include <stddef.h>
#include <string.h>

#include "../../../native/abi/cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define BASE 0x7f0000000000ull
#define REACH (1ull << 38)
#define ALIGNMENT 512ull

static uint64_t next;
static char context;

EXPORT abi_result cuInit(unsigned flags) {
    return ABI_SUCCESS;
}
EXPORT abi_result cuDeviceGetCount(int *count) {
    *count = 1;
    return ABI_SUCCESS;
}
EXPORT abi_result cuDeviceGetUuid(abi_uuid *uuid, abi_device device) {
    memset(uuid, 0xce, sizeof *uuid);
    return ABI_SUCCESS;
}
EXPORT abi_result cuDevicePrimaryCtxRetain(abi_context *out, abi_device device) {
    *out = (abi_context)&context;
    return ABI_SUCCESS;
}
EXPORT abi_result cuCtxSetCurrent(abi_context to) {
    return ABI_SUCCESS;
}
EXPORT abi_result cuCtxGetCurrent(abi_context *out) {
    *out = (abi_context)&context;
    return ABI_SUCCESS;
}
EXPORT abi_result cuCtxGetDevice(abi_device *device) {
    *device = 0;
    return ABI_SUCCESS;
}
EXPORT abi_result cuCtxSynchronize(void) {
    return ABI_SUCCESS;
}
EXPORT abi_result cuModuleLoadData(abi_module *module, const void *image) {
    *module = (abi_module)&context;
    return ABI_SUCCESS;
}
EXPORT abi_result cuModuleGetFunction(abi_function *function, abi_module module, const char *name) {
    *function = (abi_function)&context;
    return ABI_SUCCESS;
}
EXPORT abi_result cuLaunchKernel(abi_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, abi_stream stream, void **parameters, void **extra) {
    return ABI_SUCCESS;
}
EXPORT abi_result cuMemAlloc_v2(abi_devptr *at, size_t bytes) {
    *at = BASE + next;
    next = (next + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) % REACH;
    return ABI_SUCCESS;
}
EXPORT abi_result cuMemFree_v2(abi_devptr at) {
    return ABI_SUCCESS;
}

EXPORT abi_result cuMemCreate(abi_vmm_handle *handle, size_t bytes, const abi_vmm_prop *prop,
                              unsigned long long flags) {
    *handle = (abi_vmm_handle)(uintptr_t)&context;
    return ABI_SUCCESS;
}
EXPORT abi_result cuMemRelease(abi_vmm_handle handle) {
    return ABI_SUCCESS;
}
EXPORT abi_result cuMemMap(abi_devptr at, size_t bytes, size_t offset, abi_vmm_handle handle,
                           unsigned long long flags) {
    return ABI_SUCCESS;
}
EXPORT abi_result cuMemUnmap(abi_devptr at, size_t bytes) {
    return ABI_SUCCESS;
}

/* What the measured programs ask for by its base name. */
EXPORT abi_result cuGetProcAddress_v2(const char *base, void **address, int version, uint64_t flags, int *status) {
    *address = !strcmp(base, "cuMemAlloc")       ? (void *)cuMemAlloc_v2
               : !strcmp(base, "cuMemFree")      ? (void *)cuMemFree_v2
               : !strcmp(base, "cuLaunchKernel") ? (void *)cuLaunchKernel
                                                 : NULL;
    if (status) *status = *address ? ABI_GPA_FOUND : ABI_GPA_SYMBOL_NOT_FOUND;
    return *address ? ABI_SUCCESS : ABI_ERROR_NOT_FOUND;
}
EXPORT abi_result cuDriverGetVersion(int *version) {
    *version = 13000;
    return ABI_SUCCESS;
}
