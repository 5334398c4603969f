/* Memory by handle that lies under parts of sparse arrays, or under all of a deferred one. It was charged when it was
 * made; a mapping is one more reference to it, which goes when all of the mapped part is unmapped, or with the array.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cot.h"

/* A part: a box of elements of one level and layer, or a run of bytes of a mip tail. */
struct box {
    int type;
    unsigned level, layer;
    uint64_t from[3], to[3];
};
struct tile {
    void *array, *context;
    abi_vmm_handle handle;
    struct box box; /* mapped throughout */
    bool leaving;   /* its array is being destroyed */
};
static pthread_mutex_t tiles_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tile *tiles;
static size_t tile_count, tile_capacity;

static bool is_empty(const struct box *box) {
    return box->from[0] >= box->to[0] || box->from[1] >= box->to[1] || box->from[2] >= box->to[2];
}

static bool meet(const struct box *a, const struct box *b) {
    bool both = a->type == b->type && a->level == b->level && a->layer == b->layer;
    for (int i = 0; i < 3; i++) both = both && a->from[i] < b->to[i] && b->from[i] < a->to[i];
    return both;
}

static bool add(const struct tile *tile) {
    if (tile_count == tile_capacity) {
        size_t capacity = tile_capacity ? tile_capacity * 2 : 64;
        struct tile *grown = realloc(tiles, capacity * sizeof *grown);
        if (!grown) return false;
        tiles = grown;
        tile_capacity = capacity;
    }
    tiles[tile_count++] = *tile;
    return true;
}

/* Under the lock. */
static void end(size_t index) {
    abi_vmm_handle handle = tiles[index].handle;
    tiles[index] = tiles[--tile_count];
    cot_handle_drop(handle);
}

/* What is left of a tile are up to six boxes around the part that is cut out, each a mapping with a reference of its
 * own. Where there is no memory for one its reference stays: it counts too long, never too short. */
static void cut(struct tile tile, const struct box *part) {
    for (int i = 0; i < 3; i++) {
        struct tile below = tile, above = tile;
        if (below.box.to[i] > part->from[i]) below.box.to[i] = part->from[i];
        if (above.box.from[i] < part->to[i]) above.box.from[i] = part->to[i];
        if (!is_empty(&below.box) && cot_handle_hold(tile.handle)) add(&below);
        if (!is_empty(&above.box) && cot_handle_hold(tile.handle)) add(&above);
        if (tile.box.from[i] < part->from[i]) tile.box.from[i] = part->from[i];
        if (tile.box.to[i] > part->to[i]) tile.box.to[i] = part->to[i];
    }
}

static void unmap(const struct tile *part) {
    for (size_t i = tile_count; i-- > 0;) {
        if (tiles[i].array != part->array || tiles[i].leaving || !meet(&tiles[i].box, &part->box)) continue;
        cut(tiles[i], &part->box);
        end(i);
    }
}

void cot_tiles_leave(void *array) {
    pthread_mutex_lock(&tiles_lock);
    for (size_t i = 0; i < tile_count; i++) {
        if (tiles[i].array == array) tiles[i].leaving = true;
    }
    pthread_mutex_unlock(&tiles_lock);
}

void cot_tiles_left(void *array, bool gone) {
    pthread_mutex_lock(&tiles_lock);
    for (size_t i = tile_count; i-- > 0;) {
        if (tiles[i].array != array || !tiles[i].leaving) continue;
        if (gone) end(i);
        else tiles[i].leaving = false;
    }
    pthread_mutex_unlock(&tiles_lock);
}

void cot_tiles_drop_context(void *context) {
    pthread_mutex_lock(&tiles_lock);
    for (size_t i = tile_count; i-- > 0;) {
        if (tiles[i].context == context) end(i);
    }
    pthread_mutex_unlock(&tiles_lock);
}

/* What an entry of the driver's list is about. False: no array of ours, or nothing that the driver will take. */
static bool read_part(const abi_array_map *entry, struct tile *tile) {
    struct cot_block block;
    uint32_t left;
    uint64_t key = (uintptr_t)entry->resource;
    *tile = (struct tile){.array = entry->resource, .handle = entry->handle};
    if (cot_blocks_refer(key, COT_DEFERRED, 0, &block, &left)) {
        tile->box = (struct box){.to = {1, 1, 1}}; /* the driver ignores the part: it is the whole */
    } else if (!cot_blocks_refer(key, COT_SPARSE, 0, &block, &left)) {
        return false;
    } else if (entry->part_type == ABI_TILES_MIP_TAIL) {
        uint64_t offset = entry->part.tail.offset;
        tile->box = (struct box){.type = entry->part_type,
                                 .layer = entry->part.tail.layer,
                                 .from = {offset},
                                 .to = {offset + entry->part.tail.size, 1, 1}};
    } else {
        uint64_t x = entry->part.tiles.x, y = entry->part.tiles.y, z = entry->part.tiles.z;
        tile->box = (struct box){
            .level = entry->part.tiles.level,
            .layer = entry->part.tiles.layer,
            .from = {x, y, z},
            .to = {x + entry->part.tiles.width, y + entry->part.tiles.height, z + entry->part.tiles.depth}};
    }
    tile->context = block.context;
    return !is_empty(&tile->box);
}

struct step {
    int operation; /* 0: nothing to do */
    struct tile tile;
};

/* Handles are referenced before the driver maps them: a release on another thread must not let the charge go in
 * between. */
static void prepare(const abi_array_map *entry, struct step *step) {
    if (!read_part(entry, &step->tile)) return;
    if (entry->operation == ABI_TILES_MAP && cot_handle_hold(entry->handle)) step->operation = ABI_TILES_MAP;
    if (entry->operation == ABI_TILES_UNMAP) step->operation = ABI_TILES_UNMAP;
}

/* Under the lock. Where there is no memory to remember a mapping its reference stays: it counts too long, never too
 * short. */
static void settle(const struct step *step, bool done) {
    if (done && step->operation == ABI_TILES_MAP) add(&step->tile);
    if (done && step->operation == ABI_TILES_UNMAP) unmap(&step->tile);
    if (!done && step->operation == ABI_TILES_MAP) cot_handle_drop(step->tile.handle);
}

static abi_result map_arrays(void *real, abi_array_map *list, unsigned count, abi_stream stream) {
    typedef abi_result (*call)(abi_array_map *, unsigned, abi_stream);
    if (!real) return (abi_result)shim_missing();
    if (!list || !count || !cot_attached()) return ((call)real)(list, count, stream);
    struct step *steps = calloc(count, sizeof *steps);
    abi_array_map *copy = calloc(count, sizeof *copy);
    abi_result result = ABI_ERROR_OUT_OF_MEMORY;
    if (steps && copy) {
        for (unsigned i = 0; i < count; i++) {
            copy[i] = list[i]; /* the caller's own may change */
            prepare(&copy[i], &steps[i]);
        }
        result = ((call)real)(copy, count, stream);
        pthread_mutex_lock(&tiles_lock);
        for (unsigned i = 0; i < count; i++) settle(&steps[i], result == ABI_SUCCESS);
        pthread_mutex_unlock(&tiles_lock);
    }
    free(copy);
    free(steps);
    return result;
}

abi_result cot_cuMemMapArrayAsync(abi_array_map *list, unsigned count, abi_stream stream) {
    return map_arrays(shim_real(COT_AT_cuMemMapArrayAsync), list, count, stream);
}
abi_result cot_cuMemMapArrayAsync_ptsz(abi_array_map *list, unsigned count, abi_stream stream) {
    return map_arrays(shim_real(COT_AT_cuMemMapArrayAsync_ptsz), list, count, stream);
}
