/* References to physical memory (cuMemCreate): its charge is released with the last one. */
#include "../../accounting/exported.h"
#include "../../accounting/quota.h"
#include "../blocks/blocks.h"
#include "vmm.h"

bool cot_memory_ref(uint64_t memory) {
    struct cot_block block;
    uint32_t left;
    return memory && cot_blocks_change_references(memory, COT_VMM, 1, &block, &left);
}

static void forget_fabric_handles(uint64_t memory) {
    struct cot_block last, one = {0};
    while (cot_blocks_take(memory, COT_FABRIC, &last)) {
        for (uint64_t key = last.root; cot_blocks_take(key, COT_FABRIC, &one); key = one.bytes) continue;
    }
}

void cot_memory_unref(uint64_t memory) {
    struct cot_block block;
    uint32_t left;
    if (!memory || !cot_blocks_change_references(memory, COT_VMM, -1, &block, &left) || left) return;
    if (block.root) forget_fabric_handles(memory);
    if (block.bytes && block.root)
        cot_exported_release(block.gpu, block.bytes, COT_EXPORT_FILE(block.root), COT_EXPORT_MARK(block.root));
    else if (block.bytes) cot_release(block.gpu, block.bytes);
}
