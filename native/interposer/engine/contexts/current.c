/* The current context of the calling thread. CUDA's runtime makes contexts through the driver's own tables, which the
 * interposer does not see: these are found and charged here, when they are first current in a call that takes memory.
 */
#include "current.h"

#include <pthread.h>

#include "contexts.h"

/* Is it its device's primary context? CUDA's runtime may have created it without a call the interposer sees. */
static abi_result is_primary_context(void *handle, abi_device device, bool *primary) {
    unsigned flags;
    int active = 0;
    abi_context own = NULL;
    abi_result result =
        CALL_DRIVER("cuDevicePrimaryCtxGetState", (abi_device, unsigned *, int *), device, &flags, &active);
    if (result == ABI_SUCCESS && active) {
        result = CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &own, device);
        if (result == ABI_SUCCESS) CALL_REAL(cuDevicePrimaryCtxRelease_v2, (abi_device), device);
    }
    *primary = own == handle;
    return result;
}

static bool is_known(void *handle) {
    pthread_mutex_lock(&cot->contexts.lock);
    bool known = cot_context_find(handle) != NULL;
    pthread_mutex_unlock(&cot->contexts.lock);
    return known;
}

static abi_result add_current(void *handle, uint32_t *gpu) {
    abi_device device;
    bool primary;
    abi_result result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), &device);
    if (result != ABI_SUCCESS) return result;
    *gpu = cot_gpu_of(device);
    if (is_known(handle)) return ABI_SUCCESS;
    bool locked = cot_lifecycle_lock(true);
    result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), &device); /* it may have ended meanwhile */
    if (result == ABI_SUCCESS) result = is_primary_context(handle, device, &primary);
    if (result == ABI_SUCCESS) cot_context_discover(handle, device, *gpu, primary);
    cot_lifecycle_unlock(locked);
    return result;
}

/* Why the driver gives no memory in a context that it does not know the device of: it may have been destroyed. */
static abi_result reason(abi_result otherwise) {
    size_t left, total;
    abi_result result = CALL_REAL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
    return result == ABI_SUCCESS ? otherwise : result;
}

static __attribute__((noinline)) abi_result current_slow(void *handle, uint32_t *gpu) {
    struct cot_thread *recent = cot_thread();
    abi_result result = add_current(handle, gpu);
    if (result != ABI_SUCCESS) return reason(result);
    recent->context = handle;
    recent->gpu = *gpu;
    recent->epoch = atomic_load_explicit(&cot->contexts.epoch, memory_order_acquire);
    return ABI_SUCCESS;
}

abi_result cot_current_context(uint32_t *gpu, void **context) {
    abi_result result = CALL_DRIVER("cuCtxGetCurrent", (void **), context);
    if (result != ABI_SUCCESS) return result;
    if (!*context) return ABI_ERROR_INVALID_CONTEXT;
    const struct cot_thread *recent = cot_thread();
    uint32_t now = atomic_load_explicit(&cot->contexts.epoch, memory_order_acquire);
    if (__builtin_expect(recent->context != *context || recent->epoch != now, 0)) return current_slow(*context, gpu);
    *gpu = recent->gpu;
    return ABI_SUCCESS;
}

void cot_context_pop(void) {
    abi_context popped;
    for (int tries = 0; tries < 2; tries++)
        if (CALL_DRIVER("cuCtxPopCurrent_v2", (abi_context *), &popped) == ABI_SUCCESS) return;
}
