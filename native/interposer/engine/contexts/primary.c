/* Primary contexts, which have many users, and green ones, which keep them alive and leave to them what they had. */
#include <pthread.h>

#include "contexts.h"

/* ---- primary contexts: charged as long as any call is under way that may end it or make it anew ---- */

/* False: none is known. */
static bool use_primary(abi_device device) {
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
static void leave_primary(abi_device device, void *now, bool ended) {
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
    if (use_primary(device)) {
        result = CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), out, device);
        leave_primary(device, result == ABI_SUCCESS ? *out : NULL, false);
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

#define AFTER_PRIMARY(symbol)                                          \
    abi_result cot_##symbol(abi_device device) {                       \
        bool turn = cot_context_turn(true);                            \
        struct cot_gates *paused = cot_gates_pause();                  \
        bool known = cot_attached() && use_primary(device);            \
        abi_result result = CALL_REAL(symbol, (abi_device), device);   \
        if (known) leave_primary(device, NULL, result == ABI_SUCCESS); \
        cot_gates_resume(paused);                                      \
        cot_context_turn_end(turn);                                    \
        return result;                                                 \
    }
AFTER_PRIMARY(cuDevicePrimaryCtxRelease)
AFTER_PRIMARY(cuDevicePrimaryCtxRelease_v2)
AFTER_PRIMARY(cuDevicePrimaryCtxReset)
AFTER_PRIMARY(cuDevicePrimaryCtxReset_v2)

/* ---- green contexts: each a context of its own, which keeps the primary one alive. What is allocated with its view
 * current is the primary context's after it: no driver promises that it goes with the green one ---- */

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

static bool is_known(abi_device device) {
    pthread_mutex_lock(&cot->contexts.lock);
    bool known = cot_context_primary(device) != NULL;
    pthread_mutex_unlock(&cot->contexts.lock);
    return known;
}

/* Room for a green context, and for a primary one where none is known; the turn is the caller's then, and a use of the
 * primary one, if it is `known`. */
static abi_result green_room(abi_device device, struct cot_context_room *room, bool *known, bool *turn) {
    for (unsigned count = is_known(device) ? 1 : 2;; count = 2) {
        abi_result result = cot_context_room(device, count, room);
        if (result != ABI_SUCCESS) return result;
        *turn = cot_context_turn(true); /* the primary one that it holds meanwhile */
        *known = use_primary(device);
        if (*known && count == 2) cot_rollback(room->gpu, room->bytes);
        if (*known || count == 2) return ABI_SUCCESS;
        cot_context_turn_end(*turn); /* it has ended meanwhile */
        cot_rollback_certain(room->gpu, room->bytes, room->charged);
    }
}

/* The view is not charged: the green context is. */
static void note_view(void *handle, abi_green_context green) {
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *owner = cot_context_find(green);
    if (owner && !cot_context_find(handle)) cot_context_remember(handle, owner->device, owner->gpu, 0, false);
    struct cot_known_context *view = owner ? cot_context_find(handle) : NULL;
    if (view && !view->primary) view->green = green;
    pthread_mutex_unlock(&cot->contexts.lock);
}

/* Streams lead to it, too. */
static void learn_view(abi_green_context green) {
    abi_context view = NULL;
    if (CALL_REAL(cuCtxFromGreenCtx, (abi_context *, abi_green_context), &view, green) == ABI_SUCCESS && view)
        note_view(view, green);
}

static abi_result create_green(abi_green_context *out, abi_resource_desc desc, abi_device device, unsigned flags,
                               const struct cot_context_room *room, bool known) {
    abi_context primary = NULL; /* held meanwhile, so that it is known by its handle */
    abi_result result;
    if (!known) {
        result = CALL_REAL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &primary, device);
        cot_context_settle(result, primary, device, room, true);
        if (result != ABI_SUCCESS) {
            cot_rollback(room->gpu, room->bytes);
            return result;
        }
        known = use_primary(device);
    }
    result = CALL_REAL(cuGreenCtxCreate, (abi_green_context *, abi_resource_desc, abi_device, unsigned), out, desc,
                       device, flags);
    cot_context_settle(result, result == ABI_SUCCESS ? *out : NULL, device, room, false);
    if (result == ABI_SUCCESS) learn_view(*out);
    bool released = primary && CALL_REAL(cuDevicePrimaryCtxRelease_v2, (abi_device), device) == ABI_SUCCESS;
    if (known) leave_primary(device, NULL, released);
    return result;
}

abi_result cot_cuGreenCtxCreate(abi_green_context *out, abi_resource_desc desc, abi_device device, unsigned flags) {
    struct cot_context_room room;
    bool known, turn;
    if (!out)
        return CALL_REAL(cuGreenCtxCreate, (abi_green_context *, abi_resource_desc, abi_device, unsigned), out, desc,
                         device, flags);
    abi_result result = green_room(device, &room, &known, &turn);
    if (result != ABI_SUCCESS) return result;
    result = create_green(out, desc, device, flags, &room, known);
    cot_context_turn_end(turn);
    return result;
}

abi_result cot_cuCtxFromGreenCtx(abi_context *out, abi_green_context green) {
    bool turn = cot_context_turn(false);
    abi_result result = CALL_REAL(cuCtxFromGreenCtx, (abi_context *, abi_green_context), out, green);
    if (result == ABI_SUCCESS && cot_attached()) note_view(*out, green);
    cot_context_turn_end(turn);
    return result;
}

/* Under the lock. */
static void end_view(struct cot_known_context *view, bool leaves, void *heir) {
    if (leaves) cot_context_leave(view->handle, heir);
    else view->green = NULL;
    cot_context_forget(view);
}

static abi_result destroy_green(abi_green_context green) {
    if (!green || !cot_attached()) return CALL_REAL(cuGreenCtxDestroy, (abi_green_context), green);
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = cot_context_find(green);
    abi_device device = entry ? entry->device : -1;
    uint32_t gpu = entry ? entry->gpu : COT_NO_GPU;
    pthread_mutex_unlock(&cot->contexts.lock);
    bool known = entry && use_primary(device);
    abi_result result = CALL_REAL(cuGreenCtxDestroy, (abi_green_context), green);
    if (result != ABI_SUCCESS) {
        if (known) leave_primary(device, NULL, false);
        return result;
    }
    void *heir = NULL;
    bool leaves = entry && cot_context_heir(device, &heir);
    pthread_mutex_lock(&cot->contexts.lock);
    for (int i = 0; i < (int)cot->contexts.used; i++) {
        if (cot->contexts.known[i].handle && cot->contexts.known[i].green == green)
            end_view(&cot->contexts.known[i], leaves, heir);
    }
    entry = cot_context_find(green);
    if (entry) cot_context_forget(entry);
    pthread_mutex_unlock(&cot->contexts.lock);
    cot_context_after_end(gpu);
    if (known) leave_primary(device, NULL, true);
    return result;
}

abi_result cot_cuGreenCtxDestroy(abi_green_context green) {
    bool turn = cot_context_turn(true);
    struct cot_gates *paused = cot_gates_pause();
    abi_result result = destroy_green(green);
    cot_gates_resume(paused);
    cot_context_turn_end(turn);
    return result;
}
