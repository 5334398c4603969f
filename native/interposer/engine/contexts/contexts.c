/* Contexts: each is charged what the agent measured for this GPU, and gives everything back when it ends. Contexts
 * that a runtime makes behind the exported names (by the driver's own tables) are charged when they first appear.
 * Here are the table of all of them, what a thread has current, and contexts that programs make themselves. */
#include <pthread.h>
#include <string.h>

#include "contexts.h"

struct cot_known_context *cot_context_find(void *handle) {
    for (int i = 0; i < (int)cot->contexts.used; i++) {
        if (cot->contexts.known[i].handle == handle) return &cot->contexts.known[i];
    }
    return NULL;
}

static struct cot_known_context *free_one(void) {
    struct cot_known_context *freed = cot_context_find(NULL);
    if (freed || cot->contexts.used >= COT_MOST_CONTEXTS) return freed;
    return &cot->contexts.known[cot->contexts.used];
}

/* Under the lock: no thread that saw a context of this handle before saw this one. */
static void begin_epoch(const struct cot_known_context *entry) {
    uint32_t epoch = atomic_fetch_add(&cot->contexts.epoch, 1) + 1;
    if (entry) cot->born[entry - cot->contexts.known] = epoch;
}

/* Under the lock. A full table loses sight of the context, not of its charge. */
void cot_context_remember(void *handle, abi_device device, uint32_t gpu, uint64_t charged, bool primary) {
    struct cot_known_context *entry = free_one();
    uint32_t used = cot->contexts.used;
    if (entry && used < COT_MOST_CONTEXTS && entry == &cot->contexts.known[used]) cot->contexts.used++;
    if (entry)
        *entry = (struct cot_known_context){
            .handle = handle, .device = device, .gpu = gpu, .charged = charged, .primary = primary};
    if (gpu != COT_NO_GPU && charged) __atomic_fetch_add(&cot_own(gpu)->context, charged, __ATOMIC_RELAXED);
    begin_epoch(entry);
}

/* Under the lock. What a limit of the view costs the primary context costs from then on, if it costs no more already.
 * Without one that is known it stays charged. */
static void leave_limits(struct cot_known_context *view, struct cot_known_context *primary) {
    for (int i = 0; i < COT_LIMITS; i++) {
        const struct cot_limit *old = &view->limits[i];
        struct cot_limit *limit = primary ? &primary->limits[i] : NULL;
        uint64_t most = limit ? limit->charged : 0, more = old->charged > most ? old->charged - most : 0;
        view->charged -= more;
        if (!limit || old->version == 0) continue;
        if (limit->version == 0) limit->base = old->base;
        limit->charged += more;
        limit->version++;
        primary->charged += more;
    }
}

/* Under the lock. What is still a view's leaves to the primary context that is known. */
void cot_context_forget(struct cot_known_context *entry) {
    if (entry->green && entry->gpu != COT_NO_GPU) leave_limits(entry, cot_context_primary(entry->device));
    struct cot_known_context old = *entry;
    *entry = (struct cot_known_context){0};
    uint32_t epoch = atomic_fetch_add(&cot->contexts.epoch, 1) + 1;
    if (old.green) cot->views = (struct cot_ended_views){old.handle, epoch, cot->views.ended};
    if (old.gpu == COT_NO_GPU) return;
    if (old.green) {
        const struct cot_known_context *primary = cot_context_primary(old.device);
        cot_hooks.pass_context(old.handle, primary ? primary->handle : NULL);
    }
    cot_hooks.end_context(old.handle);
    if (!old.charged) return;
    __atomic_fetch_sub(&cot_own(old.gpu)->context, old.charged, __ATOMIC_RELAXED);
    cot_release(old.gpu, old.charged);
}

/* Pools and graphs lose what they have with the last context of their GPU; which one that is the driver knows. */
void cot_context_after_end(uint32_t gpu) {
    if (gpu == COT_NO_GPU) return;
    bool last = true;
    pthread_mutex_lock(&cot->contexts.lock);
    for (int i = 0; i < (int)cot->contexts.used; i++)
        last = last && !(cot->contexts.known[i].handle && cot->contexts.known[i].gpu == gpu);
    pthread_mutex_unlock(&cot->contexts.lock);
    cot_hooks.contexts_ended(gpu, last);
}

struct cot_known_context *cot_context_primary(abi_device device) {
    for (int i = 0; i < (int)cot->contexts.used; i++) {
        if (cot->contexts.known[i].handle && cot->contexts.known[i].primary && cot->contexts.known[i].device == device)
            return &cot->contexts.known[i];
    }
    return NULL;
}

/* Under the lock: a device has one primary context, so that the known one has ended and this one has its charge, but
 * for what limits added. */
void cot_context_succeed(struct cot_known_context *entry, void *handle) {
    struct cot_known_context old = *entry;
    uint64_t more = 0;
    for (int i = 0; i < COT_LIMITS; i++) more += old.limits[i].charged;
    memset(entry->limits, 0, sizeof entry->limits);
    entry->handle = handle;
    entry->charged -= more;
    begin_epoch(entry);
    if (old.gpu == COT_NO_GPU) return;
    cot_hooks.end_context(old.handle);
    if (!more) return;
    __atomic_fetch_sub(&cot_own(old.gpu)->context, more, __ATOMIC_RELAXED);
    cot_release(old.gpu, more);
}

enum cot_context_fate cot_context_fate_since(void *context, uint32_t since) {
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *entry = cot_context_find(context);
    enum cot_context_fate fate = COT_CONTEXT_SAME;
    if (!entry && free_one()) fate = COT_CONTEXT_ENDED; /* a full table has lost sight of some that are there */
    if (entry && (int32_t)(cot->born[entry - cot->contexts.known] - since) > 0) fate = COT_CONTEXT_REPLACED;
    pthread_mutex_unlock(&cot->contexts.lock);
    return fate;
}

bool cot_context_was_view(const void *context, uint32_t since) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_ended_views views = cot->views;
    pthread_mutex_unlock(&cot->contexts.lock);
    return (int32_t)(views.ended - since) > 0 && (views.last == context || (int32_t)(views.before - since) > 0);
}

void cot_context_note(void *handle, abi_device device, uint32_t gpu, bool primary) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *before = primary ? cot_context_primary(device) : NULL;
    if (before && before->handle != handle) {
        cot_context_succeed(before, handle);
    } else if (!cot_context_find(handle)) {
        struct cot_limits limits = {0};
        if (gpu != COT_NO_GPU) {
            cot_limits(gpu, &limits);
            if (limits.context_bytes) cot_charge(gpu, limits.context_bytes);
        }
        cot_context_remember(handle, device, gpu, limits.context_bytes, primary);
    }
    pthread_mutex_unlock(&cot->contexts.lock);
}

abi_result cot_context_room(abi_device device, unsigned count, struct cot_context_room *room) {
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    *room = (struct cot_context_room){.gpu = cot_gpu_of(device), .epoch = atomic_load(&cot->contexts.epoch)};
    if (room->gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY; /* a GPU that this container was not granted */
    struct cot_limits limits;
    cot_limits(room->gpu, &limits);
    bool fits = count == 1 ? cot_reserve_certain(room->gpu, limits.context_bytes, &room->charged)
                           : cot_reserve(room->gpu, count * limits.context_bytes);
    if (!fits) {
        cot_deny(room->gpu);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    room->bytes = limits.context_bytes;
    return ABI_SUCCESS;
}

void cot_context_settle(abi_result result, void *handle, abi_device device, const struct cot_context_room *room,
                        bool primary) {
    uint32_t gpu = room->gpu;
    if (result != ABI_SUCCESS) {
        cot_rollback_certain(gpu, room->bytes, room->charged);
        return;
    }
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *known = primary ? cot_context_primary(device) : NULL;
    struct cot_known_context *like = cot_context_find(handle);
    if (like && like != known) { /* it ended unseen; or the program was called back, and had this one current */
        bool is_old = (int32_t)(cot->born[like - cot->contexts.known] - room->epoch) <= 0;
        if (primary || is_old) cot_context_forget(like);
        else known = like;
    }
    if (known) { /* or another thread retained the same one meanwhile */
        if (known->handle != handle) cot_context_succeed(known, handle);
        known->turns++;
        cot_rollback_certain(gpu, room->bytes, room->charged);
    } else {
        cot_commit_certain(gpu, room->bytes, room->charged);
        cot_context_remember(handle, device, gpu, room->bytes, primary);
    }
    pthread_mutex_unlock(&cot->contexts.lock);
}
