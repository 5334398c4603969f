/* Granules that several allocations share: how many, and where the driver has room left in one. */
#include "granules.h"

#include "../core/sharded_map.h"

static bool add_user(uint32_t gpu, uint64_t number, bool small) {
    uint64_t key = number + 2, hash = mix(key);
    struct cot_shard *shard = &cot->granules[hash % COT_SHARDS];
    cot_spin_lock(&shard->lock);
    struct cot_shared_granule *page = probe(shard, sizeof *page, key, hash);
    bool fresh = page == NULL;
    if (page) {
        page->users++;
        page->small = page->small || small;
    } else if (has_room(shard) || grow(shard, sizeof *page, mix)) {
        struct cot_shared_granule first = {.key = key, .gpu = (uint16_t)gpu, .small = small, .users = 1};
        place(shard, sizeof first, hash, &first);
    }
    cot_spin_unlock(&shard->lock);
    return fresh;
}

static bool remove_user(uint64_t number) {
    uint64_t key = number + 2, hash = mix(key);
    struct cot_shard *shard = &cot->granules[hash % COT_SHARDS];
    bool last = false;
    cot_spin_lock(&shard->lock);
    struct cot_shared_granule *page = probe(shard, sizeof *page, key, hash);
    if (page && --page->users == 0) {
        erase(shard, sizeof *page, page);
        last = true;
    }
    cot_spin_unlock(&shard->lock);
    return last;
}

static uint32_t user_count(uint64_t key) {
    uint64_t hash = mix(key);
    struct cot_shard *shard = &cot->granules[hash % COT_SHARDS];
    cot_spin_lock(&shard->lock);
    const struct cot_shared_granule *page = probe(shard, sizeof *page, key, hash);
    uint32_t users = page ? page->users : 0;
    cot_spin_unlock(&shard->lock);
    return users;
}

/* Granules that an allocation covers whole need no entry; only those at its ends can be shared. */
static uint64_t change_users(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule, bool add) {
    uint64_t end = at + bytes, first = cot_granule_count(at, granule), last = cot_granule_count(end - 1, granule);
    uint64_t whole_first, whole_end, changed = 0;
    if (bytes == 0 || end < at) return 0;
    whole_first = cot_granule_count(at + granule - 1, granule);
    whole_end = cot_granule_count(end, granule);
    if (whole_end > whole_first) changed = (whole_end - whole_first) * granule;
    bool ragged_head = first < whole_first, ragged_tail = last >= whole_end, small = cot_is_packed(bytes, granule);
    if (ragged_head && (add ? add_user(gpu, first, small) : remove_user(first))) changed += granule;
    if (ragged_tail && !(ragged_head && last == first) && (add ? add_user(gpu, last, small) : remove_user(last)))
        changed += granule;
    return changed;
}

uint64_t cot_granules_add_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return change_users(gpu, at, bytes, granule, true);
}

uint64_t cot_granules_remove_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return change_users(gpu, at, bytes, granule, false);
}

#define UNIT 512u
#define MAX_UNITS (1u << 17) /* of a granule of 64 MiB */

/* Marks in `taken` what the blocks of a granule use; true if `units` free ones follow one another. A granule with
 * allocations in progress (more users than blocks) counts as full, as the driver may not have the memory back yet.
 * So does one that a large request has got since a small one left it: the two may have been noted in the other
 * order. */
static bool granule_has_gap(const struct cot_shared_granule *page, const void *context, uint64_t granule,
                            uint64_t units, uint64_t *taken) {
    uint64_t count = granule / UNIT, start = (page->key - 2) * granule, run = 0;
    uint32_t blocks = 0;
    memset(taken, 0, count / 8 + 8);
    for (unsigned i = 0; i < COT_SHARDS; i++) {
        cot_spin_lock(&cot->blocks[i].lock);
        for (uint32_t k = 0; k < cot->blocks[i].capacity; k++) {
            const struct cot_block *block = (const struct cot_block *)cot->blocks[i].entries + k;
            if (block->key <= TOMBSTONE || block->kind != COT_LINEAR || block->key + block->bytes <= start ||
                block->key >= start + granule)
                continue;
            uint64_t from = block->key > start ? (block->key - start) / UNIT : 0;
            uint64_t to = (block->key + block->bytes - start + UNIT - 1) / UNIT;
            for (uint64_t unit = from; unit < to && unit < count; unit++) taken[unit / 64] |= 1ull << (unit % 64);
            if (block->context == context && cot_is_packed(block->bytes, granule)) blocks++;
        }
        cot_spin_unlock(&cot->blocks[i].lock);
    }
    if (blocks != page->users || user_count(page->key) != blocks) return false;
    for (uint64_t unit = 0; unit < count; unit++) {
        run = taken[unit / 64] >> (unit % 64) & 1 ? 0 : run + 1;
        if (run >= units) return true;
    }
    return false;
}

/* The next shared granule of the GPU in shard `i`, from entry *k on; false: none left. */
static bool next_shared_granule(unsigned i, uint32_t *k, uint32_t gpu, struct cot_shared_granule *found) {
    found->key = 0;
    cot_spin_lock(&cot->granules[i].lock);
    while (*k < cot->granules[i].capacity && !found->key) {
        const struct cot_shared_granule *page = (const struct cot_shared_granule *)cot->granules[i].entries + (*k)++;
        if (page->key > TOMBSTONE && page->gpu == gpu && page->small) *found = *page;
    }
    cot_spin_unlock(&cot->granules[i].lock);
    return found->key;
}

bool cot_granules_have_gap(uint32_t gpu, const void *context, uint64_t bytes, uint64_t granule) {
    uint64_t units = (bytes + UNIT - 1) / UNIT;
    struct cot_shared_granule page;
    bool found = false;
    if (granule / UNIT > MAX_UNITS) return false;
    size_t size = granule / UNIT / 8 + 8;
    void *taken = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED) return false;
    for (unsigned i = 0; i < COT_SHARDS && !found; i++) {
        for (uint32_t k = 0; !found && next_shared_granule(i, &k, gpu, &page);)
            found = granule_has_gap(&page, context, granule, units, taken);
    }
    munmap(taken, size);
    return found;
}
