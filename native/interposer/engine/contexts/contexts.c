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

void cot_context_leave(const void *view, void *heir) {
    cot_blocks_pass_context(view, heir);
    cot_tiles_pass_context(view, heir);
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
    cot_gates_forget(old.handle);
    if (old.green) {
        const struct cot_known_context *primary = cot_context_primary(old.device);
        cot_context_leave(old.handle, primary ? primary->handle : NULL);
    }
    cot_blocks_drop_context(old.handle);
    cot_tiles_drop_context(old.handle);
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
    cot_pools_read_back();
    if (last) cot_pools_end(gpu);
    cot_graphs_read_back(gpu);
}

/* Whether a context is its device's primary one, which CUDA's runtime may have made behind the exported names. */
static abi_result ask_primary(void *handle, abi_device device, bool *primary) {
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
    cot_gates_forget(old.handle);
    cot_blocks_drop_context(old.handle);
    cot_tiles_drop_context(old.handle);
    if (!more) return;
    __atomic_fetch_sub(&cot_own(old.gpu)->context, more, __ATOMIC_RELAXED);
    cot_release(old.gpu, more);
}

static bool is_known(void *handle) {
    pthread_mutex_lock(&cot->contexts.lock);
    bool known = cot_context_find(handle) != NULL;
    pthread_mutex_unlock(&cot->contexts.lock);
    return known;
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

static abi_result learn_current(void *handle, uint32_t *gpu) {
    abi_device device;
    bool primary;
    abi_result result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), &device);
    if (result != ABI_SUCCESS) return result;
    *gpu = cot_gpu_of(device);
    if (is_known(handle)) return ABI_SUCCESS;
    bool turn = cot_context_turn(true);
    result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), &device); /* it may have ended meanwhile */
    if (result == ABI_SUCCESS) result = ask_primary(handle, device, &primary);
    if (result == ABI_SUCCESS) cot_context_note(handle, device, *gpu, primary);
    cot_context_turn_end(turn);
    return result;
}

static __attribute__((noinline)) abi_result current_slow(void *handle, uint32_t *gpu) {
    struct cot_thread *recent = cot_thread();
    abi_result result = learn_current(handle, gpu);
    if (result != ABI_SUCCESS) return result;
    recent->context = handle;
    recent->gpu = *gpu;
    recent->epoch = atomic_load_explicit(&cot->contexts.epoch, memory_order_acquire);
    return ABI_SUCCESS;
}

/* Whether memory by bytes is there. A driver that does not answer is asked twice. */
static bool is_there(const struct cot_block *block) {
    abi_devptr base;
    size_t bytes;
    for (int tries = 0; tries < 2; tries++) {
        if (CALL_DRIVER("cuMemGetAddressRange_v2", (abi_devptr *, size_t *, abi_devptr), &base, &bytes, block->key) ==
            ABI_SUCCESS)
            return base == block->key;
    }
    return false;
}

enum fate { SAME, ENDED, ANOTHER };

/* Whether the block's context was the view of a green context, which has ended since the thread saw it current. Where
 * several have, it is taken for one of them: that charges for too long at worst. */
static bool was_view(const struct cot_block *block) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_ended_views views = cot->views;
    pthread_mutex_unlock(&cot->contexts.lock);
    return (int32_t)(views.ended - block->epoch) > 0 &&
           (views.last == block->context || (int32_t)(views.before - block->epoch) > 0);
}

static abi_device device_of(uint32_t gpu) {
    for (abi_device device = 0; device < cot->at.device_count; device++)
        if (cot->at.gpu_of[device] == gpu) return device;
    return -1;
}

/* Under the turn, of a block whose view has ended: the heir has it. Where another context has the view's handle by now,
 * it goes with none, and stays charged until it is freed. False: nothing is left. */
static bool leave_late(const struct cot_block *block, bool another) {
    struct cot_block own;
    void *heir;
    if (!another) {
        if (!cot_context_heir(device_of(block->gpu), &heir)) return false;
        cot_context_leave(block->context, heir);
    } else if (cot_blocks_take(block->key, block->kind, &own)) {
        own.context = NULL;
        cot_blocks_add(&own);
    }
    return true;
}

/* What became of a context since an epoch. */
static enum fate fate_since(void *context, uint32_t then) {
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *entry = cot_context_find(context);
    enum fate fate = SAME;
    if (!entry && free_one()) fate = ENDED; /* a full table has lost sight of some that are there */
    if (entry && (int32_t)(cot->born[entry - cot->contexts.known] - then) > 0) fate = ANOTHER;
    pthread_mutex_unlock(&cot->contexts.lock);
    return fate;
}

/* The thread has seen the block's context current at an epoch that is over. If the context is, too, whoever ended it
 * may have looked for its blocks before this one was there; and if another one has its handle by now, this block may be
 * of either. The driver tells; and as others may be about to note what they were given at the same address, they are
 * made to look as well. What is there of an address that the driver has given to this thread has ended. */
static __attribute__((noinline)) void recheck_slow(const struct cot_block *block) {
    bool linear = block->kind == COT_LINEAR || block->kind == COT_MANAGED;
    if (fate_since(block->context, block->epoch) == SAME) {
        cot_blocks_drop_twin(block, true);
        return;
    }
    bool turn = cot_context_turn(false); /* whoever makes a context has noted it then */
    enum fate fate = fate_since(block->context, block->epoch);
    if (fate == ENDED && !(was_view(block) && leave_late(block, false))) {
        cot_blocks_drop_context(block->context);
        cot_tiles_drop_context(block->context);
    } else if (fate != ENDED) {
        atomic_fetch_add(&cot->contexts.epoch, 1);
        if (linear && !is_there(block)) cot_blocks_drop(block);
        else cot_blocks_drop_twin(block, linear);
        if (was_view(block)) leave_late(block, true);
    }
    cot_context_turn_end(turn);
}

void cot_context_put_back(const struct cot_block *block) {
    cot_blocks_add(block);
    if (fate_since(block->context, block->epoch) == SAME || !was_view(block)) return;
    bool turn = cot_context_turn(false);
    leave_late(block, fate_since(block->context, block->epoch) == ANOTHER);
    cot_context_turn_end(turn);
}

void cot_context_recheck(const struct cot_block *block) {
    if (__builtin_expect(atomic_load(&cot->contexts.epoch) != block->epoch, 0)) recheck_slow(block);
}

abi_result cot_current(uint32_t *gpu, void **context) {
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

/* ---- explicit contexts ---- */

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
        struct cot_gates *paused = cot_gates_pause();                        \
        abi_result result = CALL_REAL(symbol, (abi_context), context);       \
        if (result == ABI_SUCCESS && cot_attached()) after_destroy(context); \
        cot_gates_resume(paused);                                            \
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
    struct cot_gates *paused = cot_gates_pause();
    abi_result result = CALL_REAL(cuCtxDetach, (abi_context), context);
    if (result == ABI_SUCCESS && cot_attached() && context &&
        CALL_DRIVER("cuCtxGetApiVersion", (abi_context, unsigned *), context, &version) != ABI_SUCCESS) {
        after_destroy(context);
    }
    cot_gates_resume(paused);
    cot_context_turn_end(turn);
    return result;
}
