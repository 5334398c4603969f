/* The table of blocks: what this process has allocated, by pointer or handle. */
#include "blocks.h"

#include "../../core/sharded_map.h"

/* The low 6 bits choose the shard, bits from the 8th on the place in it. Consecutive addresses of device memory lie
 * in one row, so that few searches of a large table miss the processor's caches. */
static inline uint64_t hash_block(uint64_t key) {
    return __builtin_expect(key % 512 == 0, 1) ? mix(key >> 15) ^ (key >> 1 & (ROW - 1) << 8) : mix(key);
}

/* A key may have several blocks: one for each reference to a handle, or several kinds. */
INLINE struct cot_block *probe_kind(const struct cot_shard *shard, uint64_t key, uint64_t hash, uint32_t kind) {
    if (shard->capacity == 0) return NULL;
    const uint64_t *keys = keys_of(shard, sizeof(struct cot_block));
    for (uint32_t i = first_place(shard, hash);; i = place_after(shard, i)) {
        struct cot_block *entry = (struct cot_block *)entry_at(shard, sizeof *entry, i);
        if (keys[i] == key && __builtin_expect(entry->kind == kind, 1)) return entry;
        if (keys[i] == 0) return NULL;
    }
}

static __attribute__((noinline)) bool add_slow(const struct cot_block *block) {
    uint64_t hash = hash_block(block->key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    cot_spin_lock(&shard->lock);
    bool room = has_room(shard) || grow(shard, sizeof *block, hash_block);
    if (room) place(shard, sizeof *block, hash, block);
    cot_spin_unlock(&shard->lock);
    return room;
}

bool cot_blocks_add(const struct cot_block *block) {
    uint64_t hash = hash_block(block->key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    if (!cot_spin_try_lock(&shard->lock)) return add_slow(block);
    if (!has_room(shard)) {
        cot_spin_unlock(&shard->lock);
        return add_slow(block);
    }
    place(shard, sizeof *block, hash, block);
    cot_spin_unlock(&shard->lock);
    return true;
}

INLINE bool take_locked(struct cot_shard *shard, uint64_t hash, uint64_t key, uint32_t kind, struct cot_block *block) {
    struct cot_block *entry = probe_kind(shard, key, hash, kind);
    bool found = entry != NULL;
    if (found) {
        *block = *entry;
        erase(shard, sizeof *entry, entry);
    }
    cot_spin_unlock(&shard->lock);
    return found;
}

static __attribute__((noinline)) bool take_slow(uint64_t key, uint32_t kind, struct cot_block *block) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    cot_spin_lock(&shard->lock);
    return take_locked(shard, hash, key, kind, block);
}

bool cot_blocks_take(uint64_t key, uint32_t kind, struct cot_block *block) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    if (key <= TOMBSTONE) return false;
    if (!cot_spin_try_lock(&shard->lock)) return take_slow(key, kind, block);
    return take_locked(shard, hash, key, kind, block);
}

/* Kinds whose keys are addresses of the same space. */
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
    cot_spin_lock(&shard->lock);
    for (uint32_t i = first_place(shard, hash); (entry = next_at(shard, key, kind, &i));) {
        if (!latest || (int32_t)(entry->epoch - latest->epoch) > 0) latest = entry;
    }
    if (latest) {
        *block = *latest;
        erase(shard, sizeof *latest, latest);
    }
    cot_spin_unlock(&shard->lock);
    return latest;
}

bool cot_blocks_change_references(uint64_t key, uint32_t kind, int change, struct cot_block *block, uint32_t *left) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    if (key <= TOMBSTONE) return false;
    cot_spin_lock(&shard->lock);
    struct cot_block *entry = probe_kind(shard, key, hash, kind);
    bool found = entry && (change > 0 || entry->references > 0);
    if (found) {
        entry->references += (uint32_t)change;
        *block = *entry;
        *left = entry->references;
        if (*left == 0) erase(shard, sizeof *entry, entry);
    }
    cot_spin_unlock(&shard->lock);
    return found;
}

bool cot_blocks_find_mapping(uint64_t address, struct cot_block *block) {
    bool found = false;
    for (unsigned i = 0; i < COT_SHARDS && !found; i++) {
        struct cot_shard *shard = &cot->blocks[i];
        cot_spin_lock(&shard->lock);
        for (uint32_t k = 0; k < shard->capacity && !found; k++) {
            const struct cot_block *entry = (const struct cot_block *)shard->entries + k;
            found = entry->key > TOMBSTONE && entry->kind == COT_MAPPING && address >= entry->key &&
                    address - entry->key < entry->bytes;
            if (found) *block = *entry;
        }
        cot_spin_unlock(&shard->lock);
    }
    return found;
}

bool cot_blocks_set_root(uint64_t key, uint32_t kind, uint64_t root, uint64_t *before) {
    uint64_t hash = hash_block(key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    if (key <= TOMBSTONE) return false;
    cot_spin_lock(&shard->lock);
    struct cot_block *entry = probe_kind(shard, key, hash, kind);
    if (entry) {
        *before = entry->root;
        entry->root = root;
    }
    cot_spin_unlock(&shard->lock);
    return entry;
}

void cot_blocks_reassign_context(const void *context, void *successor) {
    for (unsigned i = 0; i < COT_SHARDS; i++) {
        struct cot_shard *shard = &cot->blocks[i];
        cot_spin_lock(&shard->lock);
        for (uint32_t k = 0; k < shard->capacity; k++) {
            struct cot_block *entry = (struct cot_block *)shard->entries + k;
            if (entry->key > TOMBSTONE && entry->context == context && entry->kind != COT_VMM)
                entry->context = successor;
        }
        cot_spin_unlock(&shard->lock);
    }
}

/* Blocks of a context; or, where there is a range, mappings in it. */
struct selection {
    const void *context;
    uint64_t from, end;
};

static bool is_selected(const struct cot_block *entry, const struct selection *selection) {
    if (entry->key <= TOMBSTONE || entry->kind == COT_VMM) return false;
    if (selection->end == 0) return entry->context == selection->context;
    return entry->kind == COT_MAPPING && entry->key >= selection->from && entry->key < selection->end &&
           entry->bytes <= selection->end - entry->key;
}

static bool take_selected(const struct selection *selection, unsigned *shard_at, uint32_t *entry_at,
                          struct cot_block *block) {
    for (; *shard_at < COT_SHARDS; (*shard_at)++, *entry_at = 0) {
        struct cot_shard *shard = &cot->blocks[*shard_at];
        struct cot_block *found = NULL;
        cot_spin_lock(&shard->lock);
        for (; *entry_at < shard->capacity && !found; (*entry_at)++) {
            struct cot_block *entry = (struct cot_block *)shard->entries + *entry_at;
            if (is_selected(entry, selection)) found = entry;
        }
        if (found) {
            *block = *found;
            erase(shard, sizeof *found, found);
        }
        cot_spin_unlock(&shard->lock);
        if (found) return true;
    }
    return false;
}

bool cot_blocks_take_of_context(const void *context, unsigned *shard_at, uint32_t *entry_at, struct cot_block *block) {
    return take_selected(&(struct selection){.context = context}, shard_at, entry_at, block);
}

bool cot_blocks_take_mapping_in(uint64_t from, uint64_t end, unsigned *shard_at, uint32_t *entry_at,
                                struct cot_block *block) {
    return end > from && take_selected(&(struct selection){.from = from, .end = end}, shard_at, entry_at, block);
}

bool cot_blocks_take_duplicate(const struct cot_block *block, bool others, struct cot_block *taken) {
    uint64_t hash = hash_block(block->key);
    struct cot_shard *shard = &cot->blocks[hash % COT_SHARDS];
    struct cot_block *own = NULL, *other = NULL, *entry;
    cot_spin_lock(&shard->lock);
    for (uint32_t i = first_place(shard, hash); (entry = next_at(shard, block->key, space_of(block->kind), &i));) {
        bool same = entry->kind == block->kind && entry->bytes == block->bytes && entry->context == block->context &&
                    entry->epoch == block->epoch;
        if (same && !own) own = entry;
        else other = entry;
    }
    bool found = own && other;
    if (found) {
        struct cot_block *goes = others ? other : own;
        *taken = *goes;
        erase(shard, sizeof *goes, goes);
    }
    cot_spin_unlock(&shard->lock);
    return found;
}
