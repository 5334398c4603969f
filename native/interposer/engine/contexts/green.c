/* Green contexts: each keeps the primary context alive, which is charged. What the driver takes for one beside it is
 * small, and known by the agent's measurements alone: 4 MiB on an H100 with driver 580.159.04
 * (test/gpu/observed/h100-580.159.04.json, step green). What is allocated while its view is current belongs to the
 * primary context after its end. */
#include <pthread.h>

#include "contexts.h"

/* The view's handle can be that of the green context itself. */
static void add_view(void *handle, abi_green_context green) {
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *owner = cot_context_find(green);
    if (owner && !cot_context_find(handle)) cot_context_add(handle, owner->device, owner->gpu, 0, false);
    struct cot_known_context *view = owner ? cot_context_find(handle) : NULL;
    if (view && !view->primary) view->green = green;
    pthread_mutex_unlock(&cot->contexts.lock);
}

/* Adds the view at once: a program can also get it from a stream. */
static void add_own_view(abi_green_context green) {
    abi_context view = NULL;
    if (CALL_REAL(cuCtxFromGreenCtx, (abi_context *, abi_green_context), &view, green) == ABI_SUCCESS && view)
        add_view(view, green);
}

static abi_result create_green(abi_green_context *out, abi_resource_desc desc, abi_device device, unsigned flags) {
    struct cot_context_reservation free_of_charge = {0};
    abi_result result = cot_find_gpu_of_device(device, &free_of_charge.gpu);
    if (result != ABI_SUCCESS) return result;
    bool locked = cot_lifecycle_lock(false);
    free_of_charge.epoch = atomic_load(&cot->contexts.epoch);
    result = CALL_REAL(cuGreenCtxCreate, (abi_green_context *, abi_resource_desc, abi_device, unsigned), out, desc,
                       device, flags);
    cot_context_finish(result, result == ABI_SUCCESS ? *out : NULL, device, &free_of_charge, false);
    if (result == ABI_SUCCESS) add_own_view(*out);
    cot_lifecycle_unlock(locked);
    return result;
}

abi_result cot_cuGreenCtxCreate(abi_green_context *out, abi_resource_desc desc, abi_device device, unsigned flags) {
    if (!out)
        return CALL_REAL(cuGreenCtxCreate, (abi_green_context *, abi_resource_desc, abi_device, unsigned), out, desc,
                         device, flags);
    abi_context primary; /* retained meanwhile, so that it is charged, and its handle known */
    abi_result result = cot_cuDevicePrimaryCtxRetain(&primary, device);
    if (result != ABI_SUCCESS) return result;
    result = create_green(out, desc, device, flags);
    cot_cuDevicePrimaryCtxRelease_v2(device);
    return result;
}

abi_result cot_cuCtxFromGreenCtx(abi_context *out, abi_green_context green) {
    bool locked = cot_lifecycle_lock(false);
    abi_result result = CALL_REAL(cuCtxFromGreenCtx, (abi_context *, abi_green_context), out, green);
    if (result == ABI_SUCCESS && cot_attached()) add_view(*out, green);
    cot_lifecycle_unlock(locked);
    return result;
}

/* Under the lock. */
static void remove_view(struct cot_known_context *view, bool leaves, void *successor) {
    if (leaves) cot_hooks.reassign_context(view->handle, successor);
    else view->green = NULL;
    cot_context_remove(view);
}

static abi_result destroy_green(abi_green_context green) {
    if (!green || !cot_attached()) return CALL_REAL(cuGreenCtxDestroy, (abi_green_context), green);
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = cot_context_find(green);
    abi_device device = entry ? entry->device : -1;
    uint32_t gpu = entry ? entry->gpu : COT_NO_GPU;
    pthread_mutex_unlock(&cot->contexts.lock);
    bool known = entry && cot_context_use_primary(device);
    abi_result result = CALL_REAL(cuGreenCtxDestroy, (abi_green_context), green);
    if (result != ABI_SUCCESS) {
        if (known) cot_context_release_primary(device, NULL, false);
        return result;
    }
    void *successor = NULL;
    bool leaves = entry && cot_context_successor(device, &successor);
    pthread_mutex_lock(&cot->contexts.lock);
    for (int i = 0; i < (int)cot->contexts.used; i++) {
        if (cot->contexts.known[i].handle && cot->contexts.known[i].green == green)
            remove_view(&cot->contexts.known[i], leaves, successor);
    }
    entry = cot_context_find(green);
    if (entry) cot_context_remove(entry);
    pthread_mutex_unlock(&cot->contexts.lock);
    cot_context_after_end(gpu);
    if (known) cot_context_release_primary(device, NULL, true);
    return result;
}

abi_result cot_cuGreenCtxDestroy(abi_green_context green) {
    bool locked = cot_lifecycle_lock(true);
    struct cot_gates *paused = cot_hooks.pause_queries();
    abi_result result = destroy_green(green);
    cot_hooks.resume_queries(paused);
    cot_lifecycle_unlock(locked);
    return result;
}
