/* Granules: the pieces in which a GPU gives out memory (2 MiB). Small allocations share one, so what an allocation
 * costs depends on where it lies. */
#pragma once

#include "../core/engine.h"

#pragma GCC visibility push(hidden)

/* Whole granules in `bytes`. A granule is a power of two on every known GPU; a shift takes a tenth of a division. */
static inline uint64_t cot_granule_count(uint64_t bytes, uint64_t granule) {
    return granule & (granule - 1) ? bytes / granule : bytes >> __builtin_ctzll(granule);
}
/* Does the driver pack a request of this size with others? Above 1 MiB it gets granules of its own (observed on an
 * H100, step rounding.linear of test/gpu/observed/h100-580.159.04.json). */
static inline bool cot_is_packed(uint64_t bytes, uint64_t granule) {
    return bytes <= 1u << 20 && bytes < granule;
}
/* Bytes by which this process's granules of a GPU grow when [at, at + bytes) is added, or shrink when it is removed. */
uint64_t cot_granules_add_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule);
uint64_t cot_granules_remove_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule);
static inline bool cot_granules_are_whole(uint64_t at, uint64_t bytes, uint64_t granule) {
    return __builtin_expect(((at | bytes | granule) & (granule - 1)) == 0 && at + bytes >= at, 1);
}
static inline uint64_t cot_granules_add(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return cot_granules_are_whole(at, bytes, granule) ? bytes : cot_granules_add_ragged(gpu, at, bytes, granule);
}
static inline uint64_t cot_granules_remove(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return cot_granules_are_whole(at, bytes, granule) ? bytes : cot_granules_remove_ragged(gpu, at, bytes, granule);
}
/* Is there a free gap of `bytes` in a granule that small allocations of this context share? Slow: walks all blocks. */
bool cot_granules_have_gap(uint32_t gpu, const void *context, uint64_t bytes, uint64_t granule);

/* ---- granule_gaps.c: the one request of this process that must fit into such a gap ---- */

bool cot_gap_begin(uint32_t gpu); /* false: another request has been at it for too long */
/* Announced, or charged, bytes that their request no longer needs go to that request. False: there is none. */
bool cot_gap_donate_announced(uint32_t gpu, uint64_t bytes);
bool cot_gap_donate_held(uint32_t gpu, uint64_t bytes);
uint64_t cot_gap_donated(void);
uint64_t cot_gap_end(void); /* returns what was given: it stays announced, and is the caller's */

#pragma GCC visibility pop
