/* Contexts that programs create and destroy themselves. */
#include <pthread.h>

#include "contexts.h"

/* `device` is the last argument of every version; the arguments are passed on as they came. */
#define CREATE(symbol, parameters, types, ...)                                                 \
    abi_result cot_##symbol parameters {                                                       \
        struct cot_context_reservation room;                                                   \
        if (!out) return CALL_REAL(symbol, types, __VA_ARGS__);                                \
        abi_result result = cot_context_reserve(device, &room);                                \
        if (result != ABI_SUCCESS) return result;                                              \
        bool locked = cot_lifecycle_lock(false);                                               \
        result = CALL_REAL(symbol, types, __VA_ARGS__);                                        \
        cot_context_finish(result, result == ABI_SUCCESS ? *out : NULL, device, &room, false); \
        cot_lifecycle_unlock(locked);                                                          \
        return result;                                                                         \
    }
CREATE(cuCtxCreate, (abi_context * out, unsigned flags, abi_device device), (abi_context *, unsigned, abi_device), out,
       flags, device)
CREATE(cuCtxCreate_v2, (abi_context * out, unsigned flags, abi_device device), (abi_context *, unsigned, abi_device),
       out, flags, device)
CREATE(cuCtxCreate_v3, (abi_context * out, void *affinity, int count, unsigned flags, abi_device device),
       (abi_context *, void *, int, unsigned, abi_device), out, affinity, count, flags, device)
CREATE(cuCtxCreate_v4, (abi_context * out, void *parameters, unsigned flags, abi_device device),
       (abi_context *, void *, unsigned, abi_device), out, parameters, flags, device)

static void remove_destroyed(void *handle) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = handle ? cot_context_find(handle) : NULL;
    uint32_t gpu = entry ? entry->gpu : COT_NO_GPU;
    if (entry) cot_context_remove(entry);
    pthread_mutex_unlock(&cot->contexts.lock);
    cot_context_after_end(gpu);
}

#define DESTROY(symbol)                                                         \
    abi_result cot_##symbol(abi_context context) {                              \
        bool locked = cot_lifecycle_lock(true);                                 \
        struct cot_gates *paused = cot_hooks.pause_queries();                   \
        abi_result result = CALL_REAL(symbol, (abi_context), context);          \
        if (result == ABI_SUCCESS && cot_attached()) remove_destroyed(context); \
        cot_hooks.resume_queries(paused);                                       \
        cot_lifecycle_unlock(locked);                                           \
        return result;                                                          \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Attaching adds a use to the current context, detaching removes one; the last one ends the context. */
abi_result cot_cuCtxAttach(abi_context *out, unsigned flags) {
    return CALL_REAL(cuCtxAttach, (abi_context *, unsigned), out, flags);
}
abi_result cot_cuCtxDetach(abi_context context) {
    unsigned version;
    bool locked = cot_lifecycle_lock(true);
    struct cot_gates *paused = cot_hooks.pause_queries();
    abi_result result = CALL_REAL(cuCtxDetach, (abi_context), context);
    if (result == ABI_SUCCESS && cot_attached() && context &&
        CALL_DRIVER("cuCtxGetApiVersion", (abi_context, unsigned *), context, &version) != ABI_SUCCESS) {
        remove_destroyed(context);
    }
    cot_hooks.resume_queries(paused);
    cot_lifecycle_unlock(locked);
    return result;
}
