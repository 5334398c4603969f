/* Fabric handles of memory by handle: which allocation of this process is behind 64 bytes that come back as an import.
 * The table of blocks has one for each handle, whose root is the memory and whose bytes are the key of the handle
 * before it, and one by the memory, whose root is the key of the last handle. They go with the memory (memory_refs.c):
 * the driver imports no handle of memory that is gone.
 *
 * NVIDIA's cuda.core documents that such a handle does not keep the memory, unlike a descriptor, and that an import
 * does. */
#include "../../accounting/exported.h"
#include "../blocks/blocks.h"
#include "vmm.h"

static uint64_t key_of(const void *fabric_handle) {
    uint64_t key = 0xcbf29ce484222325u; /* FNV-1a */
    for (const unsigned char *byte = fabric_handle; byte < (const unsigned char *)fabric_handle + 64; byte++)
        key = (key ^ *byte) * 0x100000001b3u;
    return key & ~COT_MEMORY_BIT;
}

uint64_t cot_memory_of_fabric(const void *fabric_handle) {
    struct cot_block block;
    uint32_t left;
    return fabric_handle && cot_blocks_change_references(key_of(fabric_handle), COT_FABRIC, 0, &block, &left) &&
                   cot_memory_ref(block.root)
               ? block.root
               : 0;
}

void cot_fabric_exported(const void *fabric_handle, uint64_t memory) {
    struct cot_block block = {0}, known;
    uint32_t left;
    uint64_t key = key_of(fabric_handle), before;
    bool charged = cot_blocks_change_references(memory, COT_VMM, 0, &block, &left) && block.bytes;
    if (charged && !cot_blocks_change_references(key, COT_FABRIC, 0, &known, &left)) {
        struct cot_block last = {.key = memory, .kind = COT_FABRIC, .references = 1};
        cot_blocks_take(memory, COT_FABRIC, &last);
        struct cot_block one = {.key = key, .bytes = last.root, .kind = COT_FABRIC, .root = memory, .references = 1};
        last.root = key;
        if (cot_blocks_add(&one)) cot_blocks_add(&last);
    }
    /* A descriptor by which it was exported, too, says more. */
    if (charged && !block.root && cot_blocks_set_root(memory, COT_VMM, COT_EXPORTED_AS(-1, 0), &before) && !before)
        cot_exported_add(block.gpu, block.bytes);
}
