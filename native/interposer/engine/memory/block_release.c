/* Blocks that leave the table together with their charge: their context has ended, they were freed unseen, or in
 * the order of a stream. */
#include "../accounting/exported.h"
#include "../accounting/granules.h"
#include "../accounting/quota.h"
#include "blocks/blocks.h"
#include "virtual/vmm.h"

void cot_block_release(const struct cot_block *block) {
    struct cot_gpu_limits limits;
    cot_read_limits(block->gpu, &limits);
    uint64_t bytes = block->kind == COT_LINEAR
                         ? cot_granules_remove(block->gpu, block->key, block->bytes, limits.granule_bytes)
                         : block->bytes;
    if (block->kind == COT_MANAGED) __atomic_fetch_sub(&cot_own_row(block->gpu)->managed, bytes, __ATOMIC_RELAXED);
    if (block->kind == COT_LINEAR && block->references > 1) cot_exported_release(block->gpu, bytes, -1, 0);
    else if (bytes) cot_release(block->gpu, bytes);
    if (block->root) cot_memory_unref(block->root);
}

void cot_blocks_drop_context(void *context) {
    unsigned shard = 0;
    uint32_t entry = 0;
    struct cot_block block;
    while (cot_blocks_take_of_context(context, &shard, &entry, &block)) cot_block_release(&block);
}

bool cot_blocks_drop(const struct cot_block *block) {
    struct cot_block found;
    if (!cot_blocks_take(block->key, block->kind, &found)) return false;
    cot_block_release(&found);
    return true;
}

bool cot_blocks_drop_duplicate(const struct cot_block *block, bool others) {
    struct cot_block taken;
    if (!cot_blocks_take_duplicate(block, others, &taken)) return false;
    cot_block_release(&taken);
    return true;
}
