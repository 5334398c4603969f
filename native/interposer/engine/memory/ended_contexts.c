/* Blocks whose context ended while another thread allocated or freed them: the end of a context removes all its blocks
 * from the table, but may have come before the block was added, or between two contexts of the same handle. */
#include <pthread.h>

#include "../contexts/contexts.h"
#include "blocks/blocks.h"
#include "virtual/sparse_arrays.h"

/* Is linear memory still allocated? A failing query is repeated once. */
static bool is_allocated(const struct cot_block *block) {
    abi_devptr base;
    size_t bytes;
    for (int tries = 0; tries < 2; tries++) {
        if (CALL_DRIVER("cuMemGetAddressRange_v2", (abi_devptr *, size_t *, abi_devptr), &base, &bytes, block->key) ==
            ABI_SUCCESS)
            return base == block->key;
    }
    return false;
}

static abi_device device_of(uint32_t gpu) {
    for (abi_device device = 0; device < cot->at.device_count; device++)
        if (cot->at.gpu_of[device] == gpu) return device;
    return -1;
}

void cot_memory_reassign_context(const void *view, void *successor) {
    cot_blocks_reassign_context(view, successor);
    cot_sparse_reassign_context(view, successor);
}

void cot_memory_drop_context(void *context) {
    cot_blocks_drop_context(context);
    cot_sparse_drop_context(context);
}

/* Under the lifecycle lock: the view that the block was allocated in has ended, so the primary context gets it. If
 * another context has the view's handle by now, the block belongs to no context and stays charged until it is
 * freed. False: no memory is left. */
static bool reassign_late(const struct cot_block *block, bool another) {
    struct cot_block own;
    void *successor;
    if (!another) {
        if (!cot_context_successor(device_of(block->gpu), &successor)) return false;
        cot_memory_reassign_context(block->context, successor);
    } else if (cot_blocks_take(block->key, block->kind, &own)) {
        own.context = NULL;
        cot_blocks_add(&own);
    }
    return true;
}

/* The context table has changed since the thread found the block's context current. If the context ended, its
 * blocks may have been removed before this one was added; if another context has its handle by now, the block may
 * belong to either. The driver decides; and as other threads may be about to add what they got at the same address,
 * a new epoch makes them check as well. An older block at an address that the driver gave to this thread has ended. */
static __attribute__((noinline)) void recheck_slow(const struct cot_block *block) {
    bool linear = block->kind == COT_LINEAR || block->kind == COT_MANAGED;
    if (cot_context_fate_since(block->context, block->epoch) == COT_CONTEXT_SAME) {
        cot_blocks_drop_duplicate(block, true);
        return;
    }
    bool locked = cot_lifecycle_lock(false); /* a context that is being created is in the table by then */
    enum cot_context_fate fate = cot_context_fate_since(block->context, block->epoch);
    if (fate == COT_CONTEXT_ENDED &&
        !(cot_context_was_view(block->context, block->epoch) && reassign_late(block, false))) {
        cot_memory_drop_context(block->context);
    } else if (fate != COT_CONTEXT_ENDED) {
        atomic_fetch_add(&cot->contexts.epoch, 1);
        if (linear && !is_allocated(block)) cot_blocks_drop(block);
        else cot_blocks_drop_duplicate(block, linear);
        if (cot_context_was_view(block->context, block->epoch)) reassign_late(block, true);
    }
    cot_lifecycle_unlock(locked);
}

void cot_block_recheck(const struct cot_block *block) {
    if (__builtin_expect(atomic_load(&cot->contexts.epoch) != block->epoch, 0)) recheck_slow(block);
}

void cot_block_restore(const struct cot_block *block) {
    cot_blocks_add(block);
    if (cot_context_fate_since(block->context, block->epoch) == COT_CONTEXT_SAME ||
        !cot_context_was_view(block->context, block->epoch))
        return;
    bool locked = cot_lifecycle_lock(false);
    reassign_late(block, cot_context_fate_since(block->context, block->epoch) == COT_CONTEXT_REPLACED);
    cot_lifecycle_unlock(locked);
}
