/* Requests that the driver serves with granules of their own, in the current context: memory is reserved before the
 * driver's call; after it the claim becomes a block or is given up. */
#include "claims.h"
#include "../accounting/granules.h"
#include "../accounting/quota.h"
#include "../contexts/current.h"
#include "blocks/blocks.h"
#include "virtual/vmm.h"

abi_result cot_claim(uint64_t bytes, struct cot_claim *claim) {
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = cot_current_context(&claim->gpu, &claim->context);
    if (result != ABI_SUCCESS) return result;
    if (claim->gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    struct cot_gpu_limits limits;
    cot_read_limits(claim->gpu, &limits);
    uint64_t granule = limits.granule_bytes;
    claim->root = 0;
    claim->bytes =
        bytes > UINT64_MAX - granule ? UINT64_MAX : cot_granule_count(bytes + granule - 1, granule) * granule;
    claim->charged = false;
    if (claim->bytes == 0 || cot_reserve_exact(claim->gpu, claim->bytes, &claim->charged)) return ABI_SUCCESS;
    cot_count_denied(claim->gpu);
    return ABI_ERROR_OUT_OF_MEMORY;
}

void cot_claim_end(const struct cot_claim *claim, abi_result result, const void *key, uint32_t kind) {
    if (result != ABI_SUCCESS) {
        if (claim->bytes) cot_rollback_exact(claim->gpu, claim->bytes, claim->charged);
        if (claim->root) cot_memory_unref(claim->root);
        return;
    }
    struct cot_block block = {.key = (uintptr_t)key,
                              .bytes = claim->bytes,
                              .gpu = claim->gpu,
                              .kind = kind,
                              .context = claim->context,
                              .root = claim->root,
                              .references = 1,
                              .epoch = cot_thread()->epoch};
    cot_blocks_add(&block);
    if (claim->bytes) cot_commit_exact(claim->gpu, claim->bytes, claim->charged);
    cot_block_recheck(&block);
}

void cot_claim_released(abi_result result, const struct cot_block *block) {
    if (result == ABI_SUCCESS) {
        if (block->bytes) cot_release(block->gpu, block->bytes);
        if (block->root) cot_memory_unref(block->root);
        return;
    }
    struct cot_block again = *block;
    again.references = 1;
    cot_block_restore(&again);
}
