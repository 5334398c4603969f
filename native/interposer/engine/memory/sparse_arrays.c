/* Memory by handle that lies under parts of sparse arrays, or under all of a deferred one. It was charged when it was
 * made; a mapping is one more reference to it, which goes when all of the mapped part is unmapped, or with the array.
 */
#include <pthread.h>
#include <stdlib.h>

#include "../../../abi/cuda_arrays.h"
#include "../accounting/grant.h"
#include "../core/driver_calls.h"
#include "blocks.h"
#include "sparse_arrays.h"
#include "vmm.h"

static bool is_empty(const struct cot_box *box) {
    return box->from[0] >= box->to[0] || box->from[1] >= box->to[1] || box->from[2] >= box->to[2];
}

static bool meet(const struct cot_box *a, const struct cot_box *b) {
    bool both = a->type == b->type && a->level == b->level && a->layer == b->layer;
    for (int i = 0; i < 3; i++) both = both && a->from[i] < b->to[i] && b->from[i] < a->to[i];
    return both;
}

static bool add(const struct cot_tile *tile) {
    if (cot->tiles.count == cot->tiles.capacity) {
        size_t capacity = cot->tiles.capacity ? cot->tiles.capacity * 2 : 64;
        struct cot_tile *grown = realloc(cot->tiles.list, capacity * sizeof *grown);
        if (!grown) return false;
        cot->tiles.list = grown;
        cot->tiles.capacity = capacity;
    }
    cot->tiles.list[cot->tiles.count++] = *tile;
    return true;
}

/* Under the lock. */
static void end(size_t index) {
    uint64_t memory = cot->tiles.list[index].memory;
    cot->tiles.list[index] = cot->tiles.list[--cot->tiles.count];
    cot_memory_drop(memory);
}

/* What is left of a tile are up to six boxes around the part that is cut out, each a mapping with a reference of its
 * own. Where there is no memory for one its reference stays: it counts too long, never too short. */
static void cut(struct cot_tile tile, const struct cot_box *part) {
    for (int i = 0; i < 3; i++) {
        struct cot_tile below = tile, above = tile;
        if (below.box.to[i] > part->from[i]) below.box.to[i] = part->from[i];
        if (above.box.from[i] < part->to[i]) above.box.from[i] = part->to[i];
        if (!is_empty(&below.box) && cot_memory_keep(tile.memory)) add(&below);
        if (!is_empty(&above.box) && cot_memory_keep(tile.memory)) add(&above);
        if (tile.box.from[i] < part->from[i]) tile.box.from[i] = part->from[i];
        if (tile.box.to[i] > part->to[i]) tile.box.to[i] = part->to[i];
    }
}

static void unmap(const struct cot_tile *part) {
    for (size_t i = cot->tiles.count; i-- > 0;) {
        if (cot->tiles.list[i].array != part->array || cot->tiles.list[i].leaving ||
            !meet(&cot->tiles.list[i].box, &part->box))
            continue;
        cut(cot->tiles.list[i], &part->box);
        end(i);
    }
}

void cot_tiles_leave(void *array) {
    pthread_mutex_lock(&cot->tiles.lock);
    for (size_t i = 0; i < cot->tiles.count; i++) {
        if (cot->tiles.list[i].array == array) cot->tiles.list[i].leaving = true;
    }
    pthread_mutex_unlock(&cot->tiles.lock);
}

void cot_tiles_left(void *array, bool gone) {
    pthread_mutex_lock(&cot->tiles.lock);
    for (size_t i = cot->tiles.count; i-- > 0;) {
        if (cot->tiles.list[i].array != array || !cot->tiles.list[i].leaving) continue;
        if (gone) end(i);
        else cot->tiles.list[i].leaving = false;
    }
    pthread_mutex_unlock(&cot->tiles.lock);
}

void cot_tiles_pass_context(const void *context, void *heir) {
    pthread_mutex_lock(&cot->tiles.lock);
    for (size_t i = 0; i < cot->tiles.count; i++) {
        if (cot->tiles.list[i].context == context) cot->tiles.list[i].context = heir;
    }
    pthread_mutex_unlock(&cot->tiles.lock);
}

void cot_tiles_drop_context(void *context) {
    pthread_mutex_lock(&cot->tiles.lock);
    for (size_t i = cot->tiles.count; i-- > 0;) {
        if (cot->tiles.list[i].context == context) end(i);
    }
    pthread_mutex_unlock(&cot->tiles.lock);
}

/* What an entry of the driver's list is about. False: no array of ours, or nothing that the driver will take. */
static bool read_part(const abi_array_map *entry, struct cot_tile *tile) {
    struct cot_block block;
    uint32_t left;
    uint64_t key = (uintptr_t)entry->resource;
    *tile = (struct cot_tile){.array = entry->resource};
    if (cot_blocks_refer(key, COT_DEFERRED, 0, &block, &left)) {
        tile->box = (struct cot_box){.to = {1, 1, 1}}; /* the driver ignores the part: it is the whole */
    } else if (!cot_blocks_refer(key, COT_SPARSE, 0, &block, &left)) {
        return false;
    } else if (entry->part_type == ABI_TILES_MIP_TAIL) {
        uint64_t offset = entry->part.tail.offset;
        tile->box = (struct cot_box){.type = entry->part_type,
                                     .layer = entry->part.tail.layer,
                                     .from = {offset},
                                     .to = {offset + entry->part.tail.size, 1, 1}};
    } else {
        uint64_t x = entry->part.tiles.x, y = entry->part.tiles.y, z = entry->part.tiles.z;
        tile->box = (struct cot_box){
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
    struct cot_tile tile;
};

/* Memory is held before the driver maps it: a release on another thread must not let the charge go in
 * between. */
static void prepare(const abi_array_map *entry, struct step *step) {
    if (!read_part(entry, &step->tile)) return;
    if (entry->operation == ABI_TILES_MAP && (step->tile.memory = cot_memory_hold(entry->handle)))
        step->operation = ABI_TILES_MAP;
    if (entry->operation == ABI_TILES_UNMAP) step->operation = ABI_TILES_UNMAP;
}

/* Now: a view that was current when the array was made may have left it to the primary one. */
static void *context_of(const struct cot_tile *tile) {
    struct cot_block block;
    uint32_t left;
    uint64_t key = (uintptr_t)tile->array;
    bool known =
        cot_blocks_refer(key, COT_DEFERRED, 0, &block, &left) || cot_blocks_refer(key, COT_SPARSE, 0, &block, &left);
    return known ? block.context : tile->context;
}

/* Under the lock. Where there is no memory to remember a mapping its reference stays: it counts too long, never too
 * short. */
static void settle(const struct step *step, bool done) {
    struct cot_tile tile = step->tile;
    tile.context = context_of(&tile);
    if (done && step->operation == ABI_TILES_MAP) add(&tile);
    if (done && step->operation == ABI_TILES_UNMAP) unmap(&step->tile);
    if (!done && step->operation == ABI_TILES_MAP) cot_memory_drop(step->tile.memory);
}

static abi_result map_arrays(void *real, abi_array_map *list, unsigned count, abi_stream stream) {
    typedef abi_result (*call)(abi_array_map *, unsigned, abi_stream);
    if (!real) return (abi_result)cot_missing();
    if (!list || !count || !cot_attached()) return ((call)real)(list, count, stream);
    struct step *steps = calloc(count, sizeof *steps);
    abi_array_map *copy = calloc(count, sizeof *copy);
    abi_result result = ABI_ERROR_OUT_OF_MEMORY;
    if (steps && copy) {
        for (unsigned i = 0; i < count; i++) copy[i] = list[i]; /* the caller's own may change */
        result = ABI_SUCCESS;
        /* One by one: of a list that it refuses the driver has done some, and does not tell which. */
        for (unsigned i = 0; i < count && result == ABI_SUCCESS; i++) {
            prepare(&copy[i], &steps[i]);
            result = ((call)real)(&copy[i], 1, stream);
            pthread_mutex_lock(&cot->tiles.lock);
            settle(&steps[i], result == ABI_SUCCESS);
            pthread_mutex_unlock(&cot->tiles.lock);
        }
    }
    free(copy);
    free(steps);
    return result;
}

abi_result cot_cuMemMapArrayAsync(abi_array_map *list, unsigned count, abi_stream stream) {
    return map_arrays(cot_real(COT_REAL_cuMemMapArrayAsync), list, count, stream);
}
abi_result cot_cuMemMapArrayAsync_ptsz(abi_array_map *list, unsigned count, abi_stream stream) {
    return map_arrays(cot_real(COT_REAL_cuMemMapArrayAsync_ptsz), list, count, stream);
}
