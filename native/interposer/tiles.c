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
    uint64_t at[3], size[3];
};
struct tile {
    void *array, *context;
    abi_vmm_handle handle;
    struct box box;
    uint64_t left; /* of the box, still mapped */
    bool leaving;  /* its array is being destroyed */
};
static pthread_mutex_t tiles_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tile *tiles;
static size_t tile_count, tile_capacity;

static uint64_t volume(const struct box *box) {
    return box->size[0] * box->size[1] * box->size[2];
}

static uint64_t common(const struct box *a, const struct box *b) {
    uint64_t product = 1;
    if (a->type != b->type || a->level != b->level || a->layer != b->layer) return 0;
    for (int i = 0; i < 3; i++) {
        uint64_t from = a->at[i] > b->at[i] ? a->at[i] : b->at[i];
        uint64_t a_end = a->at[i] + a->size[i], b_end = b->at[i] + b->size[i], end = a_end < b_end ? a_end : b_end;
        if (end <= from) return 0;
        product *= end - from;
    }
    return product;
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

static void unmap(const struct tile *part) {
    for (size_t i = tile_count; i-- > 0;) {
        if (tiles[i].array != part->array || tiles[i].leaving) continue;
        uint64_t less = common(&tiles[i].box, &part->box);
        if (less < tiles[i].left) tiles[i].left -= less;
        else if (less) end(i);
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
        tile->box = (struct box){.size = {1, 1, 1}}; /* the driver ignores the part: it is the whole */
    } else if (!cot_blocks_refer(key, COT_SPARSE, 0, &block, &left)) {
        return false;
    } else if (entry->part_type == ABI_TILES_MIP_TAIL) {
        tile->box = (struct box){.type = entry->part_type,
                                 .layer = entry->part.tail.layer,
                                 .at = {entry->part.tail.offset},
                                 .size = {entry->part.tail.size, 1, 1}};
    } else {
        tile->box = (struct box){.level = entry->part.tiles.level,
                                 .layer = entry->part.tiles.layer,
                                 .at = {entry->part.tiles.x, entry->part.tiles.y, entry->part.tiles.z},
                                 .size = {entry->part.tiles.width, entry->part.tiles.height, entry->part.tiles.depth}};
    }
    tile->context = block.context;
    tile->left = volume(&tile->box);
    return tile->left > 0;
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
