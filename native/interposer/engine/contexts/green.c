/* Green contexts: each is charged as a context of its own and keeps the primary context alive. What is allocated while
 * its view is current belongs to the primary context after its end, as no driver promises to free it. */
#include <pthread.h>

#include "contexts.h"

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
        *known = cot_context_use_primary(device);
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
        known = cot_context_use_primary(device);
    }
    result = CALL_REAL(cuGreenCtxCreate, (abi_green_context *, abi_resource_desc, abi_device, unsigned), out, desc,
                       device, flags);
    cot_context_settle(result, result == ABI_SUCCESS ? *out : NULL, device, room, false);
    if (result == ABI_SUCCESS) learn_view(*out);
    bool released = primary && CALL_REAL(cuDevicePrimaryCtxRelease_v2, (abi_device), device) == ABI_SUCCESS;
    if (known) cot_context_leave_primary(device, NULL, released);
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
    if (leaves) cot_hooks.pass_context(view->handle, heir);
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
    bool known = entry && cot_context_use_primary(device);
    abi_result result = CALL_REAL(cuGreenCtxDestroy, (abi_green_context), green);
    if (result != ABI_SUCCESS) {
        if (known) cot_context_leave_primary(device, NULL, false);
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
    if (known) cot_context_leave_primary(device, NULL, true);
    return result;
}

abi_result cot_cuGreenCtxDestroy(abi_green_context green) {
    bool turn = cot_context_turn(true);
    struct cot_gates *paused = cot_hooks.pause_completions();
    abi_result result = destroy_green(green);
    cot_hooks.resume_completions(paused);
    cot_context_turn_end(turn);
    return result;
}
