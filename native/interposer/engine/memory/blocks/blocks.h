/* Blocks: what this process has allocated, by address or handle, with the context it belongs to and its charge. */
#pragma once

#include "../../core/engine.h"

#pragma GCC visibility push(hidden)

/* ---- blocks.c: the table ---- */

bool cot_blocks_add(const struct cot_block *block);
/* Removes a block from the table; its charge stays. */
bool cot_blocks_take(uint64_t key, uint32_t kind, struct cot_block *block);
/* The same for the newest block at an address: linear memory (COT_LINEAR), an array (COT_ARRAY) or an import
 * (COT_EXTERNAL). Older ones may still be there, of a context that is about to leave the table. */
bool cot_blocks_take_latest(uint64_t key, uint32_t kind, struct cot_block *block);
/* Before the driver's free of linear or managed memory, as the address may be reused after it; added again if the
 * driver refuses. */
static inline bool cot_blocks_take_linear(uint64_t pointer, struct cot_block *block) {
    if (__builtin_expect(atomic_load_explicit(&cot->lifecycle_owner, memory_order_acquire) != 0, 0))
        return cot_blocks_take_latest(pointer, COT_LINEAR, block);
    return cot_blocks_take(pointer, COT_LINEAR, block) || cot_blocks_take(pointer, COT_MANAGED, block);
}
/* Adds `change` to a block's references; *left gets what remains. False: no such block. At 0 it is removed. */
bool cot_blocks_change_references(uint64_t key, uint32_t kind, int change, struct cot_block *block, uint32_t *left);
/* The mapping that an address lies in, anywhere but at its start: looks at all blocks. False: none. */
bool cot_blocks_find_mapping(uint64_t address, struct cot_block *block);
/* Sets a block's root; *before gets what it was. False: no such block. */
bool cot_blocks_set_root(uint64_t key, uint32_t kind, uint64_t root, uint64_t *before);
/* Assigns all blocks of a context to another one. */
void cot_blocks_reassign_context(const void *context, void *successor);
/* Removes some block of a context, or some mapping between two addresses; *shard and *entry, which begin at 0, say
 * where the search goes on. False: none is left. Looks at all blocks once for all of them. */
bool cot_blocks_take_of_context(const void *context, unsigned *shard, uint32_t *entry, struct cot_block *block);
bool cot_blocks_take_mapping_in(uint64_t from, uint64_t end, unsigned *shard, uint32_t *entry, struct cot_block *block);
/* Several blocks may have one address, of which one is still allocated. Removes `block`, or one of the others. False:
 * there are no others. */
bool cot_blocks_take_duplicate(const struct cot_block *block, bool others, struct cot_block *taken);

/* ---- ../block_release.c: blocks that go with their charge ---- */

void cot_block_release(const struct cot_block *block); /* the charge of a block that has left the table */
void cot_blocks_drop_context(void *context);
bool cot_blocks_drop(const struct cot_block *block);
bool cot_blocks_drop_duplicate(const struct cot_block *block, bool others);

/* ---- ../ended_contexts.c: blocks whose context may have ended while they were allocated or freed ---- */

/* All memory that was allocated in a context: assigned to another one, or gone with it. */
void cot_memory_reassign_context(const void *view, void *successor);
void cot_memory_drop_context(void *context);
/* After a block was added to the table with the context that was current: was it still there? */
void cot_block_recheck(const struct cot_block *block);
/* Adds a block again that the driver did not free. The green context it was allocated in may have ended meanwhile. */
void cot_block_restore(const struct cot_block *block);

#pragma GCC visibility pop
