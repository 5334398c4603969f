/* What this process allocated: blocks by pointer or handle, and how many of them share each page of the card's granule.
 * Both are sharded hash tables in memory of their own (no malloc: this runs inside the tenant's allocator's callers at
 * worst), each shard behind a lock of two instructions that is never held across a driver call. */
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "cot.h"

#define LEAST_CAPACITY ROW
#define TOMBSTONE 1ull

static inline bool try_lock(struct cot_lock *lock) {
    return __builtin_expect(!atomic_exchange_explicit(&lock->word, 1, memory_order_acquire), 1);
}
static void lock(struct cot_lock *lock) {
    for (unsigned tries = 0; !try_lock(lock); tries++) {
        if (tries > 64) sched_yield();
    }
}
static inline void unlock(struct cot_lock *lock) {
    atomic_store_explicit(&lock->word, 0, memory_order_release);
}

static inline uint64_t mix(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    return key ^ key >> 29;
}

#define ROW 64u /* places in a row; divides every capacity */

/* Of a block: the low 6 bits choose the shard, those from the 8th on the place in it. Addresses of device memory that
 * follow one another lie in one row, so that a table too large for the processor's caches costs few of them a miss. */
static inline uint64_t hash_block(uint64_t key) {
    return __builtin_expect(key % 512 == 0, 1) ? mix(key >> 15) ^ (key >> 1 & (ROW - 1) << 8) : mix(key);
}

/* ---- one shard: open addressing, inlined where the size of an entry is known. Every entry begins with its key, 0 =
 * free. The keys stand once more behind all entries, TOMBSTONE among them, for a search reads many of them. A place
 * that is taken leads to the one in the next row, and from the last row to the next one in the first ---- */
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

/* A block: of one key there may be several, each reference to a handle one, or of several kinds. */
INLINE struct cot_block *probe_kind(const struct cot_shard *shard, uint64_t key, uint64_t hash, uint32_t kind) {
    if (shard->capacity == 0) return NULL;
    const uint64_t *keys = keys_of(shard, sizeof(struct cot_block));
    for (uint32_t i = first_place(shard, hash);; i = place_after(shard, i)) {
        struct cot_block *entry = (struct cot_block *)entry_at(shard, sizeof *entry, i);
        if (keys[i] == key && __builtin_expect(entry->kind == kind, 1)) return entry;
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

/* No search goes on past a place that a free one follows, so it is freed itself, with the tombstones before it:
 * addresses that are new each time then leave nothing to clean up. */
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

/* ---- blocks ---- */

static __attribute__((noinline)) bool add_slow(const struct cot_block *block) {
    uint64_t hash = hash_block(block->key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    lock(&shard->lock);
    bool room = has_room(shard) || grow(shard, sizeof *block, hash_block);
    if (room) place(shard, sizeof *block, hash, block);
    unlock(&shard->lock);
    return room;
}

bool cot_blocks_add(const struct cot_block *block) {
    uint64_t hash = hash_block(block->key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    if (!try_lock(&shard->lock)) return add_slow(block);
    if (!has_room(shard)) {
        unlock(&shard->lock);
        return add_slow(block);
    }
    place(shard, sizeof *block, hash, block);
    unlock(&shard->lock);
    return true;
}

INLINE bool take_locked(struct cot_shard *shard, uint64_t hash, uint64_t key, uint32_t kind, struct cot_block *block) {
    struct cot_block *entry = probe_kind(shard, key, hash, kind);
    bool found = entry != NULL;
    if (found) {
        *block = *entry;
        erase(shard, sizeof *entry, entry);
    }
    unlock(&shard->lock);
    return found;
}

static __attribute__((noinline)) bool take_slow(uint64_t key, uint32_t kind, struct cot_block *block) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    lock(&shard->lock);
    return take_locked(shard, hash, key, kind, block);
}

bool cot_blocks_take(uint64_t key, uint32_t kind, struct cot_block *block) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    if (key <= TOMBSTONE) return false;
    if (!try_lock(&shard->lock)) return take_slow(key, kind, block);
    return take_locked(shard, hash, key, kind, block);
}

/* Kinds whose keys are addresses of one space. */
static uint32_t space_of(uint32_t kind) {
    return kind == COT_MANAGED ? COT_LINEAR : kind == COT_SPARSE || kind == COT_DEFERRED ? COT_ARRAY : kind;
}

/* The next block of this address from place *i of its shard on; NULL: none. */
static struct cot_block *next_at(const struct cot_shard *shard, uint64_t key, uint32_t space, uint32_t *i) {
    if (shard->capacity == 0) return NULL;
    const uint64_t *keys = keys_of(shard, sizeof(struct cot_block));
    while (keys[*i] != 0) {
        struct cot_block *entry = (struct cot_block *)entry_at(shard, sizeof *entry, *i);
        bool found = keys[*i] == key && space_of(entry->kind) == space;
        *i = place_after(shard, *i);
        if (found) return entry;
    }
    return NULL;
}

bool cot_blocks_take_latest(uint64_t key, uint32_t kind, struct cot_block *block) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    struct cot_block *latest = NULL, *entry;
    if (key <= TOMBSTONE) return false;
    lock(&shard->lock);
    for (uint32_t i = first_place(shard, hash); (entry = next_at(shard, key, kind, &i));) {
        if (!latest || (int32_t)(entry->epoch - latest->epoch) > 0) latest = entry;
    }
    if (latest) {
        *block = *latest;
        erase(shard, sizeof *latest, latest);
    }
    unlock(&shard->lock);
    return latest;
}

bool cot_blocks_refer(uint64_t key, uint32_t kind, int change, struct cot_block *block, uint32_t *left) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    if (key <= TOMBSTONE) return false;
    lock(&shard->lock);
    struct cot_block *entry = probe_kind(shard, key, hash, kind);
    bool found = entry && (change > 0 || entry->references > 0);
    if (found) {
        entry->references += (uint32_t)change;
        *block = *entry;
        *left = entry->references;
        if (*left == 0) erase(shard, sizeof *entry, entry);
    }
    unlock(&shard->lock);
    return found;
}

/* What was charged for a block that is out of the table. */
static void release(const struct cot_block *block) {
    struct cot_limits limits;
    cot_limits(block->card, &limits);
    uint64_t bytes = block->kind == COT_LINEAR
                         ? cot_pages_remove(block->card, block->key, block->bytes, limits.granule_bytes)
                         : block->bytes;
    if (block->kind == COT_MANAGED) __atomic_fetch_sub(&cot_own(block->card)->managed, bytes, __ATOMIC_RELAXED);
    if (bytes) cot_release(block->card, bytes);
    if (block->root) cot_memory_drop(block->root);
}

void cot_blocks_drop_context(void *context) {
    for (unsigned i = 0; i < COT_SHARDS; i++) {
        for (uint32_t k = 0;; k++) {
            struct cot_shard *shard = &cot->blocks[i];
            struct cot_block found = {0};
            lock(&shard->lock);
            while (k < shard->capacity) {
                struct cot_block *entry = (struct cot_block *)shard->entries + k;
                if (entry->key > TOMBSTONE && entry->context == context && entry->kind != COT_VMM) {
                    found = *entry;
                    erase(shard, sizeof *entry, entry);
                    break;
                }
                k++;
            }
            unlock(&shard->lock);
            if (!found.key) break;
            release(&found);
        }
    }
}

bool cot_blocks_drop(const struct cot_block *block) {
    struct cot_block found;
    if (!cot_blocks_take(block->key, block->kind, &found)) return false;
    release(&found);
    return true;
}

bool cot_blocks_drop_twin(const struct cot_block *block, bool others) {
    uint64_t hash = hash_block(block->key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    struct cot_block *own = NULL, *other = NULL, *entry, dropped;
    lock(&shard->lock);
    for (uint32_t i = first_place(shard, hash); (entry = next_at(shard, block->key, space_of(block->kind), &i));) {
        bool same = entry->kind == block->kind && entry->bytes == block->bytes && entry->context == block->context &&
                    entry->epoch == block->epoch;
        if (same && !own) own = entry;
        else other = entry;
    }
    bool found = own && other;
    if (found) {
        struct cot_block *goes = others ? other : own;
        dropped = *goes;
        erase(shard, sizeof *goes, goes);
    }
    unlock(&shard->lock);
    if (found) release(&dropped);
    return found;
}

/* ---- pages ---- */

static bool page_join(uint32_t card, uint64_t number, bool small) {
    uint64_t key = number + 2, hash = mix(key);
    struct cot_shard *shard = &cot->pages[hash % COT_SHARDS];
    lock(&shard->lock);
    struct cot_shared_page *page = probe(shard, sizeof *page, key, hash);
    bool fresh = page == NULL;
    if (page) {
        page->users++;
        page->small = page->small || small;
    } else if (has_room(shard) || grow(shard, sizeof *page, mix)) {
        struct cot_shared_page first = {.key = key, .card = (uint16_t)card, .small = small, .users = 1};
        place(shard, sizeof first, hash, &first);
    }
    unlock(&shard->lock);
    return fresh;
}

static bool page_part(uint64_t number) {
    uint64_t key = number + 2, hash = mix(key);
    struct cot_shard *shard = &cot->pages[hash % COT_SHARDS];
    bool last = false;
    lock(&shard->lock);
    struct cot_shared_page *page = probe(shard, sizeof *page, key, hash);
    if (page && --page->users == 0) {
        erase(shard, sizeof *page, page);
        last = true;
    }
    unlock(&shard->lock);
    return last;
}

static uint32_t page_users(uint64_t key) {
    uint64_t hash = mix(key);
    struct cot_shard *shard = &cot->pages[hash % COT_SHARDS];
    lock(&shard->lock);
    const struct cot_shared_page *page = probe(shard, sizeof *page, key, hash);
    uint32_t users = page ? page->users : 0;
    unlock(&shard->lock);
    return users;
}

/* Pages that an allocation covers whole are nobody else's and need no entry; only its ragged ends are shared. */
static uint64_t change(uint32_t card, uint64_t at, uint64_t bytes, uint64_t granule, bool add) {
    uint64_t end = at + bytes, first = cot_granules(at, granule), last = cot_granules(end - 1, granule);
    uint64_t whole_first, whole_end, changed = 0;
    if (bytes == 0 || end < at) return 0;
    whole_first = cot_granules(at + granule - 1, granule);
    whole_end = cot_granules(end, granule);
    if (whole_end > whole_first) changed = (whole_end - whole_first) * granule;
    bool ragged_head = first < whole_first, ragged_tail = last >= whole_end, small = cot_is_packed(bytes, granule);
    if (ragged_head && (add ? page_join(card, first, small) : page_part(first))) changed += granule;
    if (ragged_tail && !(ragged_head && last == first) && (add ? page_join(card, last, small) : page_part(last)))
        changed += granule;
    return changed;
}

uint64_t cot_pages_add_ragged(uint32_t card, uint64_t at, uint64_t bytes, uint64_t granule) {
    return change(card, at, bytes, granule, true);
}

uint64_t cot_pages_remove_ragged(uint32_t card, uint64_t at, uint64_t bytes, uint64_t granule) {
    return change(card, at, bytes, granule, false);
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
        lock(&cot->blocks[i].lock);
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
        unlock(&cot->blocks[i].lock);
    }
    if (blocks != page->users || page_users(page->key) != blocks) return false;
    for (uint64_t unit = 0; unit < count; unit++) {
        run = taken[unit / 64] >> (unit % 64) & 1 ? 0 : run + 1;
        if (run >= units) return true;
    }
    return false;
}

/* A page of the card in shard `i`, from entry *k on; false: none left. */
static bool next_page(unsigned i, uint32_t *k, uint32_t card, struct cot_shared_page *found) {
    found->key = 0;
    lock(&cot->pages[i].lock);
    while (*k < cot->pages[i].capacity && !found->key) {
        const struct cot_shared_page *page = (const struct cot_shared_page *)cot->pages[i].entries + (*k)++;
        if (page->key > TOMBSTONE && page->card == card && page->small) *found = *page;
    }
    unlock(&cot->pages[i].lock);
    return found->key;
}

bool cot_pages_have_gap(uint32_t card, const void *context, uint64_t bytes, uint64_t granule) {
    uint64_t units = (bytes + UNIT - 1) / UNIT;
    struct cot_shared_page page;
    bool found = false;
    if (granule / UNIT > MOST_UNITS) return false;
    size_t size = granule / UNIT / 8 + 8;
    void *taken = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (taken == MAP_FAILED) return false;
    for (unsigned i = 0; i < COT_SHARDS && !found; i++) {
        for (uint32_t k = 0; !found && next_page(i, &k, card, &page);)
            found = page_has_gap(&page, context, granule, units, taken);
    }
    munmap(taken, size);
    return found;
}
