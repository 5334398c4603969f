/* Contexts that programs create and destroy themselves. */
#include <pthread.h>

#include "contexts.h"

/* `device` is the last argument of every version; the rest goes to the driver as it came. */
#define CREATE(symbol, parameters, types, ...)                                                 \
    abi_result cot_##symbol parameters {                                                       \
        struct cot_context_room room;                                                          \
        if (!out) return CALL_REAL(symbol, types, __VA_ARGS__);                                \
        abi_result result = cot_context_room(device, 1, &room);                                \
        if (result != ABI_SUCCESS) return result;                                              \
        bool turn = cot_context_turn(false);                                                   \
        result = CALL_REAL(symbol, types, __VA_ARGS__);                                        \
        cot_context_settle(result, result == ABI_SUCCESS ? *out : NULL, device, &room, false); \
        cot_context_turn_end(turn);                                                            \
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

static void after_destroy(void *handle) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = handle ? cot_context_find(handle) : NULL;
    uint32_t gpu = entry ? entry->gpu : COT_NO_GPU;
    if (entry) cot_context_forget(entry);
    pthread_mutex_unlock(&cot->contexts.lock);
    cot_context_after_end(gpu);
}

#define DESTROY(symbol)                                                      \
    abi_result cot_##symbol(abi_context context) {                           \
        bool turn = cot_context_turn(true);                                  \
        struct cot_gates *paused = cot_hooks.pause_completions();            \
        abi_result result = CALL_REAL(symbol, (abi_context), context);       \
        if (result == ABI_SUCCESS && cot_attached()) after_destroy(context); \
        cot_hooks.resume_completions(paused);                                \
        cot_context_turn_end(turn);                                          \
        return result;                                                       \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Attaching adds a use to the current context, detaching takes one away; the last one ends it. */
abi_result cot_cuCtxAttach(abi_context *out, unsigned flags) {
    return CALL_REAL(cuCtxAttach, (abi_context *, unsigned), out, flags);
}
abi_result cot_cuCtxDetach(abi_context context) {
    unsigned version;
    bool turn = cot_context_turn(true);
    struct cot_gates *paused = cot_hooks.pause_completions();
    abi_result result = CALL_REAL(cuCtxDetach, (abi_context), context);
    if (result == ABI_SUCCESS && cot_attached() && context &&
        CALL_DRIVER("cuCtxGetApiVersion", (abi_context, unsigned *), context, &version) != ABI_SUCCESS) {
        after_destroy(context);
    }
    cot_hooks.resume_completions(paused);
    cot_context_turn_end(turn);
    return result;
}
