/* Primary contexts, which have many users, and green ones, which keep them alive and leave to them what they had. */
#include <pthread.h>

#include "contexts.h"

/* ---- primary contexts: charged as long as any call is under way that may end it or make it anew ---- */

/* False: none is known. */
bool cot_context_use_primary(abi_device device) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = cot_context_primary(device);
    if (entry) entry->users++;
    pthread_mutex_unlock(&cot->contexts.lock);
    return entry;
}

/* A driver that does not answer is asked twice; then it is taken for there. */
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

/* The end of a use: what is `now` the device's primary context (NULL: not told), and whether it may have `ended`. The
 * last user looks whether it has, and looks again if anybody came and went meanwhile. */
void cot_context_leave_primary(abi_device device, void *now, bool ended) {
    bool asked = false, active = true, done = false;
    uint32_t turns = 0, gpu = COT_NO_GPU;
    while (!done) {
        if (asked) active = is_active(device);
        pthread_mutex_lock(&cot->contexts.lock);
        struct cot_known_context *entry = cot_context_primary(device);
        if (entry && now && entry->handle != now) cot_context_succeed(entry, now);
        now = NULL;
        if (entry && ended) entry->unsure = true;
        done = !entry || entry->users > 1 || !entry->unsure || (asked && entry->turns == turns);
        if (entry && done) {
            if (entry->users > 0) entry->users--;
            entry->turns++;
            if (asked && entry->users == 0) entry->unsure = false;
            if (!active && entry->users == 0) {
                gpu = entry->gpu;
                cot_context_forget(entry);
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
    struct cot_context_room room;
    abi_result result;
    bool turn = cot_context_turn(false);
    if (cot_context_use_primary(device)) {
        result = CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), out, device);
        cot_context_leave_primary(device, result == ABI_SUCCESS ? *out : NULL, false);
        cot_context_turn_end(turn);
        return result;
    }
    cot_context_turn_end(turn);
    result = cot_context_room(device, 1, &room);
    if (result != ABI_SUCCESS) return result;
    turn = cot_context_turn(false);
    result = CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), out, device);
    cot_context_settle(result, result == ABI_SUCCESS ? *out : NULL, device, &room, true);
    cot_context_turn_end(turn);
    return result;
}

#define AFTER_PRIMARY(symbol)                                                      \
    abi_result cot_##symbol(abi_device device) {                                   \
        bool turn = cot_context_turn(true);                                        \
        struct cot_gates *paused = cot_hooks.pause_completions();                  \
        bool known = cot_attached() && cot_context_use_primary(device);            \
        abi_result result = CALL_REAL(symbol, (abi_device), device);               \
        if (known) cot_context_leave_primary(device, NULL, result == ABI_SUCCESS); \
        cot_hooks.resume_completions(paused);                                      \
        cot_context_turn_end(turn);                                                \
        return result;                                                             \
    }
AFTER_PRIMARY(cuDevicePrimaryCtxRelease)
AFTER_PRIMARY(cuDevicePrimaryCtxRelease_v2)
AFTER_PRIMARY(cuDevicePrimaryCtxReset)
AFTER_PRIMARY(cuDevicePrimaryCtxReset_v2)

bool cot_context_heir(abi_device device, void **heir) {
    abi_context primary = NULL;
    *heir = NULL;
    if (!is_active(device)) return false;
    for (int tries = 0; tries < 2 && !primary; tries++) {
        if (CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &primary, device) == ABI_SUCCESS)
            CALL_REAL(cuDevicePrimaryCtxRelease_v2, (abi_device), device);
        else primary = NULL;
    }
    if (primary) cot_context_note(primary, device, cot_gpu_of(device), true);
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *known = cot_context_primary(device);
    *heir = primary || !known ? primary : known->handle;
    pthread_mutex_unlock(&cot->contexts.lock);
    return true;
}
