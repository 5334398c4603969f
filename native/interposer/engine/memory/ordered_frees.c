/* Linear memory freed in the order of a stream (cuMemFreeAsync). The driver frees it once the stream has got there, and
 * the stream is synchronized after that: NVIDIA's developer blog on the stream-ordered allocator, part 1,
 * "Interoperability with cudaMalloc and cudaFree". A stream may not get there for hours, so the memory stays charged
 * until an event behind the free is complete. The event is asked where the grant is full, where a program asks how much
 * is free, and before a context ends.
 *
 * Where no event can be had, the memory stays charged until the context ends that it was allocated in. */
#include <pthread.h>
#include <stdlib.h>

#include "../accounting/quota.h"
#include "../contexts/contexts.h"
#include "../contexts/current.h"
#include "../launch/capture.h"
#include "blocks/blocks.h"
#include "ordered_frees.h"
#include "pools/pools.h"

#define FIRST_CAPACITY 16u

/* A capture of this thread, or a global one of another, forbids calls that create or ask, unless its mode is relaxed.
 * `mode` is that before; given back, it is restored. */
static bool exchange_mode(int *mode) {
    return CALL_DRIVER("cuThreadExchangeStreamCaptureMode", (int *), mode) == ABI_SUCCESS;
}

/* ---- an event behind a free ---- */

/* The primary context of a green one's view, which the view's streams accept events of: it outlives the view. */
static void *owner_of_events(void *context) {
    pthread_mutex_lock(&cot->contexts.lock);
    const struct cot_known_context *known = cot_context_find(context);
    if (known && known->green) known = cot_context_primary(known->device);
    if (known) context = known->handle;
    pthread_mutex_unlock(&cot->contexts.lock);
    return context;
}

static abi_event create_event(void *context) {
    abi_event event = NULL;
    if (CALL_DRIVER("cuCtxPushCurrent_v2", (abi_context), context) != ABI_SUCCESS) return NULL;
    if (CALL_DRIVER("cuEventCreate", (abi_event *, unsigned), &event, ABI_EVENT_DISABLE_TIMING) != ABI_SUCCESS)
        event = NULL;
    cot_context_pop();
    return event;
}

/* In the stream's context, which is current. */
static bool record_here(struct cot_ordered_free *entry, abi_stream stream) {
    int mode = ABI_CAPTURE_RELAXED;
    uint32_t gpu;
    void *context;
    if (cot_current_context(&gpu, &context) != ABI_SUCCESS || cot_is_capturing(stream)) return false;
    if (!exchange_mode(&mode)) return false;
    entry->context = owner_of_events(context);
    entry->reached = create_event(entry->context);
    bool recorded =
        entry->reached && CALL_DRIVER("cuEventRecord", (abi_event, abi_stream), entry->reached, stream) == ABI_SUCCESS;
    if (entry->reached && !recorded) CALL_DRIVER("cuEventDestroy_v2", (abi_event), entry->reached);
    exchange_mode(&mode);
    return recorded;
}

static bool record(struct cot_ordered_free *entry, abi_stream stream) {
    abi_context owner;
    if ((uintptr_t)stream <= (uintptr_t)ABI_STREAM_PER_THREAD) return record_here(entry, stream);
    if (CALL_DRIVER("cuStreamGetCtx", (abi_stream, abi_context *), stream, &owner) != ABI_SUCCESS ||
        CALL_DRIVER("cuCtxPushCurrent_v2", (abi_context), owner) != ABI_SUCCESS)
        return false;
    bool recorded = record_here(entry, stream);
    cot_context_pop();
    return recorded;
}

/* The query does not wait. Nor does the synchronization behind it, by which the driver frees the memory. */
static bool is_reached(const struct cot_ordered_free *entry) {
    return CALL_DRIVER("cuEventQuery", (abi_event), entry->reached) == ABI_SUCCESS &&
           CALL_DRIVER("cuEventSynchronize", (abi_event), entry->reached) == ABI_SUCCESS;
}

/* ---- the list; under its lock ---- */

static struct cot_ordered_free take_entry(struct cot_ordered_frees *all, size_t i) {
    struct cot_ordered_free taken = all->list[i];
    all->list[i] = all->list[all->count - 1];
    __atomic_store_n(&all->count, all->count - 1, __ATOMIC_RELEASE);
    return taken;
}

static void settle(struct cot_ordered_frees *all) {
    int mode = ABI_CAPTURE_RELAXED;
    if (all->count == 0 || all->paused || cot_is_checkpointed() || !exchange_mode(&mode)) return;
    for (size_t i = 0; i < all->count;) {
        if (!is_reached(&all->list[i])) {
            i++;
            continue;
        }
        struct cot_ordered_free done = take_entry(all, i);
        CALL_DRIVER("cuEventDestroy_v2", (abi_event), done.reached);
        cot_block_release(&done.block);
    }
    exchange_mode(&mode);
}

/* A list that is full is settled first: it grows with what is pending, not with what a program frees. */
static bool add(struct cot_ordered_frees *all, const struct cot_ordered_free *entry) {
    bool full = all->count == all->capacity;
    if (full) settle(all);
    if (full && all->count >= all->capacity / 2) {
        size_t capacity = all->capacity ? all->capacity * 2 : FIRST_CAPACITY;
        struct cot_ordered_free *grown = realloc(all->list, capacity * sizeof *grown);
        if (grown) all->list = grown;
        if (grown) all->capacity = capacity;
    }
    if (all->count == all->capacity) return false;
    all->list[all->count] = *entry;
    __atomic_store_n(&all->count, all->count + 1, __ATOMIC_RELEASE);
    return true;
}

/* Takes the entries of a context, or that of an event. */
static void drop(const void *context, abi_event reached) {
    struct cot_ordered_frees *all = &cot->ordered_frees;
    pthread_mutex_lock(&all->lock);
    for (size_t i = all->count; i-- > 0;) {
        const struct cot_ordered_free *entry = &all->list[i];
        bool of_context = context && (entry->context == context || entry->block.context == context);
        if (!of_context && entry->reached != reached) continue;
        struct cot_ordered_free gone = take_entry(all, i);
        cot_block_release(&gone.block);
    }
    pthread_mutex_unlock(&all->lock);
}

/* ---- the entry points ---- */

/* The driver took the free: the block, which has left the table, stays charged. A failing call is repeated once. */
static void remember(const struct cot_block *block, abi_stream stream) {
    struct cot_ordered_frees *all = &cot->ordered_frees;
    struct cot_ordered_free entry = {.block = *block};
    uint32_t epoch = atomic_load(&cot->contexts.epoch);
    bool kept = false;
    for (int tries = 0; tries < 2 && !kept; tries++) kept = record(&entry, stream);
    if (kept) {
        pthread_mutex_lock(&all->lock);
        kept = add(all, &entry);
        pthread_mutex_unlock(&all->lock);
    }
    if (!kept) cot_block_restore(block);
    else if (cot_context_fate_since(entry.context, epoch) != COT_CONTEXT_SAME) drop(NULL, entry.reached);
}

/* Of a pool's piece, which the pool keeps: it returns memory to the GPU at a later synchronization, which the next
 * read-back or the agent sees. */
#define FREE_ASYNC(symbol, default_stream)                                                        \
    abi_result cot_##symbol(abi_devptr pointer, abi_stream stream) {                              \
        struct cot_freed_piece piece;                                                             \
        struct cot_block block;                                                                   \
        if (!cot_attached()) return CALL_REAL(symbol, (abi_devptr, abi_stream), pointer, stream); \
        abi_stream on = stream ? stream : (default_stream);                                       \
        bool known = cot_blocks_take_linear(pointer, &block);                                     \
        bool hole = !known && cot_hole_of(pointer, on, &piece);                                   \
        abi_result result = CALL_REAL(symbol, (abi_devptr, abi_stream), pointer, stream);         \
        if (known && result == ABI_SUCCESS) remember(&block, on);                                 \
        else if (known) cot_block_restore(&block);                                                \
        else if (result == ABI_SUCCESS && hole) cot_hole_add(&piece);                             \
        if (!known && result == ABI_SUCCESS) cot_pools_read_back();                               \
        return result;                                                                            \
    }
FREE_ASYNC(cuMemFreeAsync, NULL)
FREE_ASYNC(cuMemFreeAsync_ptsz, ABI_STREAM_PER_THREAD)

/* ---- for others ---- */

void cot_ordered_frees_settle(void) {
    struct cot_ordered_frees *all = &cot->ordered_frees;
    if (__builtin_expect(!__atomic_load_n(&all->count, __ATOMIC_ACQUIRE), 1)) return;
    pthread_mutex_lock(&all->lock);
    settle(all);
    pthread_mutex_unlock(&all->lock);
}

void cot_ordered_frees_pause(void) {
    struct cot_ordered_frees *all = &cot->ordered_frees;
    pthread_mutex_lock(&all->lock);
    settle(all);
    all->paused++;
    pthread_mutex_unlock(&all->lock);
}

void cot_ordered_frees_resume(void) {
    pthread_mutex_lock(&cot->ordered_frees.lock);
    cot->ordered_frees.paused--;
    pthread_mutex_unlock(&cot->ordered_frees.lock);
}

void cot_ordered_frees_drop_context(const void *context) {
    drop(context, NULL);
}

void cot_ordered_frees_reassign_context(const void *view, void *successor) {
    struct cot_ordered_frees *all = &cot->ordered_frees;
    pthread_mutex_lock(&all->lock);
    for (size_t i = 0; i < all->count; i++) {
        if (all->list[i].block.context == view) all->list[i].block.context = successor;
    }
    pthread_mutex_unlock(&all->lock);
}
