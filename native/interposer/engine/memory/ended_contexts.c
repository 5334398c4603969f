/* Blocks whose context ended while another thread allocated or freed them: the end of a context removes all its blocks
 * from the table, but may have come before the block was added, or between two contexts of the same handle. */
#include <pthread.h>

#include "../contexts/contexts.h"
#include "blocks.h"
#include "sparse_arrays.h"

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

static abi_device device_of(uint32_t gpu) {
    for (abi_device device = 0; device < cot->at.device_count; device++)
        if (cot->at.gpu_of[device] == gpu) return device;
    return -1;
}

void cot_memory_pass_context(const void *view, void *heir) {
    cot_blocks_pass_context(view, heir);
    cot_tiles_pass_context(view, heir);
}

void cot_memory_drop_context(void *context) {
    cot_blocks_drop_context(context);
    cot_tiles_drop_context(context);
}

/* Under the turn, of a block whose view has ended: the heir has it. Where another context has the view's handle by now,
 * it goes with none, and stays charged until it is freed. False: nothing is left. */
static bool leave_late(const struct cot_block *block, bool another) {
    struct cot_block own;
    void *heir;
    if (!another) {
        if (!cot_context_heir(device_of(block->gpu), &heir)) return false;
        cot_memory_pass_context(block->context, heir);
    } else if (cot_blocks_take(block->key, block->kind, &own)) {
        own.context = NULL;
        cot_blocks_add(&own);
    }
    return true;
}

/* The thread has seen the block's context current at an epoch that is over. If the context is, too, whoever ended it
 * may have looked for its blocks before this one was there; and if another one has its handle by now, this block may be
 * of either. The driver tells; and as others may be about to note what they were given at the same address, they are
 * made to look as well. What is there of an address that the driver has given to this thread has ended. */
static __attribute__((noinline)) void recheck_slow(const struct cot_block *block) {
    bool linear = block->kind == COT_LINEAR || block->kind == COT_MANAGED;
    if (cot_context_fate_since(block->context, block->epoch) == COT_CONTEXT_SAME) {
        cot_blocks_drop_twin(block, true);
        return;
    }
    bool turn = cot_context_turn(false); /* whoever makes a context has noted it then */
    enum cot_context_fate fate = cot_context_fate_since(block->context, block->epoch);
    if (fate == COT_CONTEXT_ENDED &&
        !(cot_context_was_view(block->context, block->epoch) && leave_late(block, false))) {
        cot_memory_drop_context(block->context);
    } else if (fate != COT_CONTEXT_ENDED) {
        atomic_fetch_add(&cot->contexts.epoch, 1);
        if (linear && !is_there(block)) cot_blocks_drop(block);
        else cot_blocks_drop_twin(block, linear);
        if (cot_context_was_view(block->context, block->epoch)) leave_late(block, true);
    }
    cot_context_turn_end(turn);
}

void cot_context_recheck(const struct cot_block *block) {
    if (__builtin_expect(atomic_load(&cot->contexts.epoch) != block->epoch, 0)) recheck_slow(block);
}

void cot_context_put_back(const struct cot_block *block) {
    cot_blocks_add(block);
    if (cot_context_fate_since(block->context, block->epoch) == COT_CONTEXT_SAME ||
        !cot_context_was_view(block->context, block->epoch))
        return;
    bool turn = cot_context_turn(false);
    leave_late(block, cot_context_fate_since(block->context, block->epoch) == COT_CONTEXT_REPLACED);
    cot_context_turn_end(turn);
}
