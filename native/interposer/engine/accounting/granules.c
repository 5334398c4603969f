/* How many blocks share each page of the GPU's granule, and where the driver has room left in one. */
#include "granules.h"

#include "../core/sharded_map.h"

static bool page_join(uint32_t gpu, uint64_t number, bool small) {
    uint64_t key = number + 2, hash = mix(key);
    struct cot_shard *shard = &cot->pages[hash % COT_SHARDS];
    cot_spin_lock(&shard->lock);
    struct cot_shared_page *page = probe(shard, sizeof *page, key, hash);
    bool fresh = page == NULL;
    if (page) {
        page->users++;
        page->small = page->small || small;
    } else if (has_room(shard) || grow(shard, sizeof *page, mix)) {
        struct cot_shared_page first = {.key = key, .gpu = (uint16_t)gpu, .small = small, .users = 1};
        place(shard, sizeof first, hash, &first);
    }
    cot_spin_unlock(&shard->lock);
    return fresh;
}

static bool page_part(uint64_t number) {
    uint64_t key = number + 2, hash = mix(key);
    struct cot_shard *shard = &cot->pages[hash % COT_SHARDS];
    bool last = false;
    cot_spin_lock(&shard->lock);
    struct cot_shared_page *page = probe(shard, sizeof *page, key, hash);
    if (page && --page->users == 0) {
        erase(shard, sizeof *page, page);
        last = true;
    }
    cot_spin_unlock(&shard->lock);
    return last;
}

static uint32_t page_users(uint64_t key) {
    uint64_t hash = mix(key);
    struct cot_shard *shard = &cot->pages[hash % COT_SHARDS];
    cot_spin_lock(&shard->lock);
    const struct cot_shared_page *page = probe(shard, sizeof *page, key, hash);
    uint32_t users = page ? page->users : 0;
    cot_spin_unlock(&shard->lock);
    return users;
}

/* Pages that an allocation covers whole are nobody else's and need no entry; only its ragged ends are shared. */
static uint64_t change(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule, bool add) {
    uint64_t end = at + bytes, first = cot_granules(at, granule), last = cot_granules(end - 1, granule);
    uint64_t whole_first, whole_end, changed = 0;
    if (bytes == 0 || end < at) return 0;
    whole_first = cot_granules(at + granule - 1, granule);
    whole_end = cot_granules(end, granule);
    if (whole_end > whole_first) changed = (whole_end - whole_first) * granule;
    bool ragged_head = first < whole_first, ragged_tail = last >= whole_end, small = cot_is_packed(bytes, granule);
    if (ragged_head && (add ? page_join(gpu, first, small) : page_part(first))) changed += granule;
    if (ragged_tail && !(ragged_head && last == first) && (add ? page_join(gpu, last, small) : page_part(last)))
        changed += granule;
    return changed;
}

uint64_t cot_pages_add_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return change(gpu, at, bytes, granule, true);
}

uint64_t cot_pages_remove_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return change(gpu, at, bytes, granule, false);
}

#define UNIT 512u
#define MOST_UNITS (1u << 17) /* of a page: a granule of 64 MiB */

/* Marks in `taken` what the blocks of one page take of it; true if `units` free ones lie in a row. A page of which
 * something is on its way (its users are more than its blocks) counts as full, for the driver may not have it back yet;
 * and so does one that a large request has got since a small one left it, which may be noted in the other order. */
static bool page_has_gap(const struct cot_shared_page *page, const void *context, uint64_t granule, uint64_t units,
                         uint64_t *taken) {
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
    if (blocks != page->users || page_users(page->key) != blocks) return false;
    for (uint64_t unit = 0; unit < count; unit++) {
        run = taken[unit / 64] >> (unit % 64) & 1 ? 0 : run + 1;
        if (run >= units) return true;
    }
    return false;
}

/* A page of the GPU in shard `i`, from entry *k on; false: none left. */
static bool next_page(unsigned i, uint32_t *k, uint32_t gpu, struct cot_shared_page *found) {
    found->key = 0;
    cot_spin_lock(&cot->pages[i].lock);
    while (*k < cot->pages[i].capacity && !found->key) {
        const struct cot_shared_page *page = (const struct cot_shared_page *)cot->pages[i].entries + (*k)++;
        if (page->key > TOMBSTONE && page->gpu == gpu && page->small) *found = *page;
    }
    cot_spin_unlock(&cot->pages[i].lock);
    return found->key;
}

bool cot_pages_have_gap(uint32_t gpu, const void *context, uint64_t bytes, uint64_t granule) {
    uint64_t units = (bytes + UNIT - 1) / UNIT;
    struct cot_shared_page page;
    bool found = false;
    if (granule / UNIT > MOST_UNITS) return false;
    size_t size = granule / UNIT / 8 + 8;
    void *taken = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED) return false;
    for (unsigned i = 0; i < COT_SHARDS && !found; i++) {
        for (uint32_t k = 0; !found && next_page(i, &k, gpu, &page);)
            found = page_has_gap(&page, context, granule, units, taken);
    }
    munmap(taken, size);
    return found;
}
