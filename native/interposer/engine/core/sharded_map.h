/* A hash table in shards, each behind a spin lock. Its memory comes from mmap: it may run inside the program's own
 * allocator. */
#pragma once

#include <string.h>
#include <sys/mman.h>

#include "spin_lock.h"

#define LEAST_CAPACITY ROW
#define TOMBSTONE 1ull

static inline uint64_t mix(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    return key ^ key >> 29;
}

#define ROW 64u /* places in a row; divides every capacity */

/* ---- one shard: open addressing, inlined where the size of an entry is known. Every entry begins with its key, 0:
 * free. A copy of the keys stands behind all entries, deleted ones as TOMBSTONE, as a search reads many keys. The
 * next place to probe is in the next row, and from the last row the next place in the first ---- */
#define INLINE static inline __attribute__((always_inline))

INLINE uint64_t *keys_of(const struct cot_shard *shard, size_t size) {
    return (uint64_t *)(shard->entries + shard->capacity * size);
}
INLINE uint64_t *entry_at(const struct cot_shard *shard, size_t size, uint32_t i) {
    return (uint64_t *)(shard->entries + i * size);
}
INLINE uint32_t first_place(const struct cot_shard *shard, uint64_t hash) {
    return (uint32_t)(hash >> 8) & (shard->capacity - 1);
}

INLINE uint32_t place_after(const struct cot_shard *shard, uint32_t i) {
    return __builtin_expect(i + ROW < shard->capacity, 1) ? i + ROW : (i + 1) % ROW;
}
INLINE uint32_t place_before(const struct cot_shard *shard, uint32_t i) {
    return __builtin_expect(i >= ROW, 1) ? i - ROW : shard->capacity - ROW + (i - 1) % ROW;
}

INLINE void *probe(const struct cot_shard *shard, size_t size, uint64_t key, uint64_t hash) {
    if (shard->capacity == 0) return NULL;
    const uint64_t *keys = keys_of(shard, size);
    for (uint32_t i = first_place(shard, hash);; i = place_after(shard, i)) {
        if (keys[i] == key) return entry_at(shard, size, i);
        if (keys[i] == 0) return NULL;
    }
}

INLINE void place(struct cot_shard *shard, size_t size, uint64_t hash, const void *entry) {
    uint64_t *keys = keys_of(shard, size);
    uint32_t i = first_place(shard, hash);
    while (keys[i] > TOMBSTONE) i = place_after(shard, i);
    shard->filled += keys[i] == 0;
    keys[i] = *(const uint64_t *)entry;
    memcpy(entry_at(shard, size, i), entry, size);
}

/* No search goes on beyond a place that a free one follows, so such a place is freed, with the tombstones before
 * it: addresses that are new each time then leave nothing to clean up. */
INLINE void erase(struct cot_shard *shard, size_t size, void *entry) {
    uint64_t *keys = keys_of(shard, size);
    uint32_t i = (uint32_t)((size_t)((char *)entry - shard->entries) / size);
    *(uint64_t *)entry = 0;
    keys[i] = TOMBSTONE;
    if (keys[place_after(shard, i)] != 0) return;
    for (; keys[i] == TOMBSTONE; i = place_before(shard, i)) {
        keys[i] = 0;
        shard->filled--;
    }
}

static __attribute__((noinline)) bool grow(struct cot_shard *shard, size_t size, uint64_t (*hash)(uint64_t)) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < shard->capacity; i++) live += *entry_at(shard, size, i) != 0;
    uint32_t capacity = LEAST_CAPACITY;
    while (capacity < live * 2) capacity *= 2;
    char *entries =
        mmap(NULL, capacity * (size + sizeof(uint64_t)), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (entries == MAP_FAILED) return false;
    struct cot_shard grown = {.capacity = capacity, .entries = entries};
    for (uint32_t i = 0; i < shard->capacity; i++) {
        const uint64_t *entry = entry_at(shard, size, i);
        if (*entry != 0) place(&grown, size, hash(*entry), entry);
    }
    if (shard->entries) munmap(shard->entries, shard->capacity * (size + sizeof(uint64_t)));
    shard->capacity = grown.capacity;
    shard->filled = grown.filled;
    shard->entries = grown.entries;
    return true;
}

INLINE bool has_room(const struct cot_shard *shard) {
    return __builtin_expect(shard->filled < shard->capacity / 4 * 3, 1);
}
