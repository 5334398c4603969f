/* The table of contexts. Each is charged what the agent measured for its GPU, and releases the charge with all its
 * memory when it ends. */
#include <pthread.h>
#include <string.h>

#include "contexts.h"

struct cot_known_context *cot_context_find(void *handle) {
    for (int i = 0; i < (int)cot->contexts.used; i++) {
        if (cot->contexts.known[i].handle == handle) return &cot->contexts.known[i];
    }
    return NULL;
}

static struct cot_known_context *find_free_entry(void) {
    struct cot_known_context *freed = cot_context_find(NULL);
    if (freed || cot->contexts.used >= COT_MAX_CONTEXTS) return freed;
    return &cot->contexts.known[cot->contexts.used];
}

/* Under the lock. A new epoch: no thread that found a context of this handle current before has seen this one. */
static void begin_epoch(const struct cot_known_context *entry) {
    uint32_t epoch = atomic_fetch_add(&cot->contexts.epoch, 1) + 1;
    if (entry) cot->context_began[entry - cot->contexts.known] = epoch;
}

/* Under the lock. If the table is full the context is not found again, but stays charged. */
void cot_context_add(void *handle, abi_device device, uint32_t gpu, uint64_t charged, bool primary) {
    struct cot_known_context *entry = find_free_entry();
    uint32_t used = cot->contexts.used;
    if (entry && used < COT_MAX_CONTEXTS && entry == &cot->contexts.known[used]) cot->contexts.used++;
    if (entry)
        *entry = (struct cot_known_context){
            .handle = handle, .device = device, .gpu = gpu, .charged = charged, .primary = primary};
    if (gpu != COT_NO_GPU && charged) __atomic_fetch_add(&cot_own_row(gpu)->context, charged, __ATOMIC_RELAXED);
    begin_epoch(entry);
}

struct cot_context_limit *cot_context_limit(struct cot_known_context *entry, unsigned which) {
    if (which < COT_CONTEXT_LIMITS) return &entry->limits[which];
    size_t place = (size_t)(entry - cot->contexts.known);
    struct cot_runtime_limits *more = &cot->runtime_limits[place];
    if (more->began != cot->context_began[place])
        *more = (struct cot_runtime_limits){.began = cot->context_began[place]};
    return &more->limits[which - COT_CONTEXT_LIMITS];
}

/* Under the lock. Memory that still belongs to a view passes to the primary context, if one is known. */
void cot_context_remove(struct cot_known_context *entry) {
    struct cot_known_context old = *entry;
    *entry = (struct cot_known_context){0};
    uint32_t epoch = atomic_fetch_add(&cot->contexts.epoch, 1) + 1;
    if (old.green) cot->ended_views = (struct cot_ended_views){old.handle, epoch, cot->ended_views.ended};
    if (old.gpu == COT_NO_GPU) return;
    if (old.green) {
        const struct cot_known_context *primary = cot_context_primary(old.device);
        cot_hooks.reassign_context(old.handle, primary ? primary->handle : NULL);
    }
    cot_hooks.end_context(old.handle);
    if (!old.charged) return;
    __atomic_fetch_sub(&cot_own_row(old.gpu)->context, old.charged, __ATOMIC_RELAXED);
    cot_release(old.gpu, old.charged);
}

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

/* Under the lock. A device has one primary context: the known one has ended, and this one takes over its charge,
 * except for its limits. */
void cot_context_replace_primary(struct cot_known_context *entry, void *handle) {
    struct cot_known_context old = *entry;
    uint64_t more = 0;
    for (unsigned i = 0; i < COT_ALL_LIMITS; i++) more += cot_context_limit(entry, i)->charged;
    memset(entry->limits, 0, sizeof entry->limits);
    entry->handle = handle;
    entry->charged -= more;
    begin_epoch(entry);
    if (old.gpu == COT_NO_GPU) return;
    cot_hooks.end_context(old.handle);
    if (!more) return;
    __atomic_fetch_sub(&cot_own_row(old.gpu)->context, more, __ATOMIC_RELAXED);
    cot_release(old.gpu, more);
}

enum cot_context_fate cot_context_fate_since(void *context, uint32_t since) {
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *entry = cot_context_find(context);
    enum cot_context_fate fate = COT_CONTEXT_SAME;
    if (!entry && find_free_entry()) fate = COT_CONTEXT_ENDED; /* a full table does not know all contexts */
    if (entry && (int32_t)(cot->context_began[entry - cot->contexts.known] - since) > 0) fate = COT_CONTEXT_REPLACED;
    pthread_mutex_unlock(&cot->contexts.lock);
    return fate;
}

bool cot_context_was_view(const void *context, uint32_t since) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_ended_views views = cot->ended_views;
    pthread_mutex_unlock(&cot->contexts.lock);
    return (int32_t)(views.ended - since) > 0 && (views.last == context || (int32_t)(views.before - since) > 0);
}

void cot_context_discover(void *handle, abi_device device, uint32_t gpu, bool primary) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *before = primary ? cot_context_primary(device) : NULL;
    if (before && before->handle != handle) {
        cot_context_replace_primary(before, handle);
    } else if (!cot_context_find(handle)) {
        struct cot_gpu_limits limits = {0};
        if (gpu != COT_NO_GPU) {
            cot_read_limits(gpu, &limits);
            if (limits.context_bytes) cot_charge(gpu, limits.context_bytes);
        }
        cot_context_add(handle, device, gpu, limits.context_bytes, primary);
    }
    pthread_mutex_unlock(&cot->contexts.lock);
}

abi_result cot_context_reserve(abi_device device, struct cot_context_reservation *room) {
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    *room = (struct cot_context_reservation){.epoch = atomic_load(&cot->contexts.epoch)};
    result = cot_find_gpu_of_device(device, &room->gpu);
    if (result != ABI_SUCCESS) return result;
    struct cot_gpu_limits limits;
    cot_read_limits(room->gpu, &limits);
    if (!cot_reserve_exact(room->gpu, limits.context_bytes, &room->charged)) {
        cot_count_denied(room->gpu);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    room->bytes = limits.context_bytes;
    return ABI_SUCCESS;
}

void cot_context_finish(abi_result result, void *handle, abi_device device, const struct cot_context_reservation *room,
                        bool primary) {
    uint32_t gpu = room->gpu;
    if (result != ABI_SUCCESS) {
        cot_rollback_exact(gpu, room->bytes, room->charged);
        return;
    }
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *known = primary ? cot_context_primary(device) : NULL;
    struct cot_known_context *like = cot_context_find(handle);
    if (like && like != known) { /* the old one ended unnoticed, or the driver called the program back and it made this
                                    one current */
        bool is_old = (int32_t)(cot->context_began[like - cot->contexts.known] - room->epoch) <= 0;
        if (primary || is_old) cot_context_remove(like);
        else known = like;
    }
    if (known) { /* or another thread retained the same one meanwhile */
        if (known->handle != handle) cot_context_replace_primary(known, handle);
        known->turns++;
        cot_rollback_exact(gpu, room->bytes, room->charged);
    } else {
        cot_commit_exact(gpu, room->bytes, room->charged);
        cot_context_add(handle, device, gpu, room->bytes, primary);
    }
    pthread_mutex_unlock(&cot->contexts.lock);
}
