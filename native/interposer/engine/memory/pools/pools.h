/* Memory pools and the memory of graphs: both keep memory that is charged although nothing uses it. */
#pragma once

#include "../../core/engine.h"

#pragma GCC visibility push(hidden)

/* ---- pools.c ---- */
void cot_pools_trim(uint32_t gpu); /* trims all known pools of a GPU and updates their charge */
/* Updates the charge: the driver returns a pool's unused memory when a stream synchronizes. */
void cot_pools_read_back(void);
void cot_pools_end(uint32_t gpu); /* the GPU has no context left, and so no memory of destroyed pools */

/* Under the lock of the table of pools. */
struct cot_known_pool *cot_pool_find(abi_pool handle);
struct cot_known_pool *cot_pool_find_or_add(abi_pool handle, uint32_t gpu); /* NULL: the table is full */
/* Sets the charge to what the driver says that the pool has reserved; if it does not answer, adds `more`. */
void cot_pool_read_back(struct cot_known_pool *pool, uint64_t more);
/* Frees `unwanted` (0: nothing), an allocation that no work uses, and trims the pool's unused memory to `keep` bytes;
 * also while this thread captures a stream. */
void cot_pool_trim(struct cot_known_pool *pool, uint64_t keep, abi_devptr unwanted);

/* ---- holes.c ---- */
struct cot_freed_piece {
    abi_pool pool;
    const void *stream;
    uint64_t bytes;
};
/* Before cuMemFreeAsync: describes the piece that it will free. False: it need not be remembered. */
bool cot_hole_of(abi_devptr pointer, abi_stream stream, struct cot_freed_piece *piece);
void cot_hole_add(const struct cot_freed_piece *piece); /* after cuMemFreeAsync succeeded */
/* Before a request to the pool: can a freed piece serve it, so that the pool does not grow? Takes `bytes` from the
 * pool's pieces in any case. */
bool cot_hole_take(abi_pool pool, abi_stream stream, uint64_t bytes);
void cot_holes_drop(abi_pool pool); /* under the lock: the pool may have given memory back */

/* ---- pools.c, takes the lock ---- */
bool cot_pool_is_on_host(abi_pool pool);
/* A failing query is repeated once. */
abi_result cot_pool_default(abi_device device, abi_pool *pool);

/* ---- graphs.c ---- */
void cot_graphs_trim(uint32_t gpu);      /* trims what graphs have reserved and do not use, and updates the charge */
void cot_graphs_read_back(uint32_t gpu); /* after contexts have ended, and perhaps graphs with them */

#pragma GCC visibility pop
