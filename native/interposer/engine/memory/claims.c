/* Requests that the driver serves with granules of their own in the current context: room is claimed before the call,
 * and the claim becomes a block or is given up after it. */
#include "claims.h"
#include "../accounting/granules.h"
#include "../accounting/quota.h"
#include "../contexts/current.h"
#include "blocks.h"
#include "vmm.h"

abi_result cot_claim(uint64_t bytes, struct cot_claim *claim) {
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = cot_current(&claim->gpu, &claim->context);
    if (result != ABI_SUCCESS) return result;
    if (claim->gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    struct cot_limits limits;
    cot_limits(claim->gpu, &limits);
    uint64_t granule = limits.granule_bytes;
    claim->root = 0;
    claim->bytes = bytes > UINT64_MAX - granule ? UINT64_MAX : cot_granules(bytes + granule - 1, granule) * granule;
    claim->charged = false;
    if (claim->bytes == 0 || cot_reserve_certain(claim->gpu, claim->bytes, &claim->charged)) return ABI_SUCCESS;
    cot_deny(claim->gpu);
    return ABI_ERROR_OUT_OF_MEMORY;
}

void cot_claim_end(const struct cot_claim *claim, abi_result result, const void *key, uint32_t kind) {
    if (result != ABI_SUCCESS) {
        if (claim->bytes) cot_rollback_certain(claim->gpu, claim->bytes, claim->charged);
        if (claim->root) cot_memory_drop(claim->root);
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
    if (claim->bytes) cot_commit_certain(claim->gpu, claim->bytes, claim->charged);
    cot_context_recheck(&block);
}

void cot_claim_released(abi_result result, const struct cot_block *block) {
    if (result == ABI_SUCCESS) {
        if (block->bytes) cot_release(block->gpu, block->bytes);
        if (block->root) cot_memory_drop(block->root);
        return;
    }
    struct cot_block again = *block;
    again.references = 1;
    cot_context_put_back(&again);
}
