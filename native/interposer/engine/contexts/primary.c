/* Primary contexts: retained and released by many users, they stay charged while any call is in progress that may
 * end or create one. */
#include <pthread.h>

#include "contexts.h"

bool cot_context_use_primary(abi_device device) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = cot_context_primary(device);
    if (entry) entry->users++;
    pthread_mutex_unlock(&cot->contexts.lock);
    return entry;
}

/* A failing query is repeated once; after that the context counts as active. */
static bool is_active(abi_device device) {
    unsigned flags;
    int active = 1;
    for (int tries = 0; tries < 2; tries++) {
        if (CALL_DRIVER("cuDevicePrimaryCtxGetState", (abi_device, unsigned *, int *), device, &flags, &active) ==
            ABI_SUCCESS)
            return active;
    }
    return true;
}

/* The last user asks the driver whether the context has ended, and asks again if other users came and went
 * meanwhile. */
void cot_context_release_primary(abi_device device, void *now, bool ended) {
    bool asked = false, active = true, done = false;
    uint32_t turns = 0, gpu = COT_NO_GPU;
    while (!done) {
        if (asked) active = is_active(device);
        pthread_mutex_lock(&cot->contexts.lock);
        struct cot_known_context *entry = cot_context_primary(device);
        if (entry && now && entry->handle != now) cot_context_replace_primary(entry, now);
        now = NULL;
        if (entry && ended) entry->unsure = true;
        done = !entry || entry->users > 1 || !entry->unsure || (asked && entry->turns == turns);
        if (entry && done) {
            if (entry->users > 0) entry->users--;
            entry->turns++;
            if (asked && entry->users == 0) entry->unsure = false;
            if (!active && entry->users == 0) {
                gpu = entry->gpu;
                cot_context_remove(entry);
            }
        } else if (entry) {
            turns = entry->turns;
            asked = true;
        }
        pthread_mutex_unlock(&cot->contexts.lock);
    }
    cot_context_after_end(gpu);
}

abi_result cot_cuDevicePrimaryCtxRetain(abi_context *out, abi_device device) {
    if (!out) return CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), out, device);
    struct cot_context_reservation room;
    abi_result result;
    bool locked = cot_lifecycle_lock(false);
    if (cot_context_use_primary(device)) {
        result = CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), out, device);
        cot_context_release_primary(device, result == ABI_SUCCESS ? *out : NULL, false);
        cot_lifecycle_unlock(locked);
        return result;
    }
    cot_lifecycle_unlock(locked);
    result = cot_context_reserve(device, &room);
    if (result != ABI_SUCCESS) return result;
    locked = cot_lifecycle_lock(false);
    result = CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), out, device);
    cot_context_finish(result, result == ABI_SUCCESS ? *out : NULL, device, &room, true);
    cot_lifecycle_unlock(locked);
    return result;
}

#define AFTER_PRIMARY(symbol)                                                        \
    abi_result cot_##symbol(abi_device device) {                                     \
        bool locked = cot_lifecycle_lock(true);                                      \
        struct cot_gates *paused = cot_hooks.pause_queries();                        \
        bool known = cot_attached() && cot_context_use_primary(device);              \
        abi_result result = CALL_REAL(symbol, (abi_device), device);                 \
        if (known) cot_context_release_primary(device, NULL, result == ABI_SUCCESS); \
        cot_hooks.resume_queries(paused);                                            \
        cot_lifecycle_unlock(locked);                                                \
        return result;                                                               \
    }
AFTER_PRIMARY(cuDevicePrimaryCtxRelease)
AFTER_PRIMARY(cuDevicePrimaryCtxRelease_v2)
AFTER_PRIMARY(cuDevicePrimaryCtxReset)
AFTER_PRIMARY(cuDevicePrimaryCtxReset_v2)

bool cot_context_successor(abi_device device, void **successor) {
    abi_context primary = NULL;
    *successor = NULL;
    if (!is_active(device)) return false;
    for (int tries = 0; tries < 2 && !primary; tries++) {
        if (CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &primary, device) == ABI_SUCCESS)
            CALL_REAL(cuDevicePrimaryCtxRelease_v2, (abi_device), device);
        else primary = NULL;
    }
    if (primary) cot_context_discover(primary, device, cot_gpu_of(device), true);
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *known = cot_context_primary(device);
    *successor = primary || !known ? primary : known->handle;
    pthread_mutex_unlock(&cot->contexts.lock);
    return true;
}
