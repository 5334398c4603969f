/* Physical memory mapped under parts of sparse arrays, or under a whole array of deferred mapping
 * (cuMemMapArrayAsync). It was charged by cuMemCreate; a mapping is one more reference, which ends when all of the
 * mapped part is unmapped, or with the array. */
#include <pthread.h>
#include <stdlib.h>

#include "../../../../abi/cuda_arrays.h"
#include "../../accounting/grant.h"
#include "../../core/driver_calls.h"
#include "../blocks/blocks.h"
#include "sparse_arrays.h"
#include "vmm.h"

static bool is_empty(const struct cot_box *box) {
    return box->from[0] >= box->to[0] || box->from[1] >= box->to[1] || box->from[2] >= box->to[2];
}

static bool intersects(const struct cot_box *a, const struct cot_box *b) {
    bool both = a->type == b->type && a->level == b->level && a->layer == b->layer;
    for (int i = 0; i < 3; i++) both = both && a->from[i] < b->to[i] && b->from[i] < a->to[i];
    return both;
}

static bool add(const struct cot_sparse_mapping *mapping) {
    if (cot->sparse.count == cot->sparse.capacity) {
        size_t capacity = cot->sparse.capacity ? cot->sparse.capacity * 2 : 64;
        struct cot_sparse_mapping *grown = realloc(cot->sparse.list, capacity * sizeof *grown);
        if (!grown) return false;
        cot->sparse.list = grown;
        cot->sparse.capacity = capacity;
    }
    cot->sparse.list[cot->sparse.count++] = *mapping;
    return true;
}

/* Under the lock. */
static void remove_mapping(size_t index) {
    uint64_t memory = cot->sparse.list[index].memory;
    cot->sparse.list[index] = cot->sparse.list[--cot->sparse.count];
    cot_memory_unref(memory);
}

/* Cuts a part out of a mapping: up to six boxes around it remain, each a mapping with a reference of its own. If
 * there is no memory to remember one, its reference stays: it counts too long, never too short. */
static void cut(struct cot_sparse_mapping mapping, const struct cot_box *part) {
    for (int i = 0; i < 3; i++) {
        struct cot_sparse_mapping below = mapping, above = mapping;
        if (below.box.to[i] > part->from[i]) below.box.to[i] = part->from[i];
        if (above.box.from[i] < part->to[i]) above.box.from[i] = part->to[i];
        if (!is_empty(&below.box) && cot_memory_ref(mapping.memory)) add(&below);
        if (!is_empty(&above.box) && cot_memory_ref(mapping.memory)) add(&above);
        if (mapping.box.from[i] < part->from[i]) mapping.box.from[i] = part->from[i];
        if (mapping.box.to[i] > part->to[i]) mapping.box.to[i] = part->to[i];
    }
}

static void unmap(const struct cot_sparse_mapping *part) {
    for (size_t i = cot->sparse.count; i-- > 0;) {
        if (cot->sparse.list[i].array != part->array || cot->sparse.list[i].array_ending ||
            !intersects(&cot->sparse.list[i].box, &part->box))
            continue;
        cut(cot->sparse.list[i], &part->box);
        remove_mapping(i);
    }
}

void cot_sparse_array_ending(void *array) {
    pthread_mutex_lock(&cot->sparse.lock);
    for (size_t i = 0; i < cot->sparse.count; i++) {
        if (cot->sparse.list[i].array == array) cot->sparse.list[i].array_ending = true;
    }
    pthread_mutex_unlock(&cot->sparse.lock);
}

void cot_sparse_array_ended(void *array, bool gone) {
    pthread_mutex_lock(&cot->sparse.lock);
    for (size_t i = cot->sparse.count; i-- > 0;) {
        if (cot->sparse.list[i].array != array || !cot->sparse.list[i].array_ending) continue;
        if (gone) remove_mapping(i);
        else cot->sparse.list[i].array_ending = false;
    }
    pthread_mutex_unlock(&cot->sparse.lock);
}

void cot_sparse_reassign_context(const void *context, void *successor) {
    pthread_mutex_lock(&cot->sparse.lock);
    for (size_t i = 0; i < cot->sparse.count; i++) {
        if (cot->sparse.list[i].context == context) cot->sparse.list[i].context = successor;
    }
    pthread_mutex_unlock(&cot->sparse.lock);
}

void cot_sparse_drop_context(void *context) {
    pthread_mutex_lock(&cot->sparse.lock);
    for (size_t i = cot->sparse.count; i-- > 0;) {
        if (cot->sparse.list[i].context == context) remove_mapping(i);
    }
    pthread_mutex_unlock(&cot->sparse.lock);
}

/* The part of an array that an entry of the driver's list names. False: not a known array, or nothing that the
 * driver accepts. */
static bool read_part(const abi_array_map *entry, struct cot_sparse_mapping *mapping) {
    struct cot_block block;
    uint32_t left;
    uint64_t key = (uintptr_t)entry->resource;
    *mapping = (struct cot_sparse_mapping){.array = entry->resource};
    if (cot_blocks_change_references(key, COT_DEFERRED, 0, &block, &left)) {
        mapping->box = (struct cot_box){.to = {1, 1, 1}}; /* the driver ignores the part and maps the whole array */
    } else if (!cot_blocks_change_references(key, COT_SPARSE, 0, &block, &left)) {
        return false;
    } else if (entry->part_type == ABI_TILES_MIP_TAIL) {
        uint64_t offset = entry->part.tail.offset;
        mapping->box = (struct cot_box){.type = entry->part_type,
                                        .layer = entry->part.tail.layer,
                                        .from = {offset},
                                        .to = {offset + entry->part.tail.size, 1, 1}};
    } else {
        uint64_t x = entry->part.tiles.x, y = entry->part.tiles.y, z = entry->part.tiles.z;
        mapping->box = (struct cot_box){
            .level = entry->part.tiles.level,
            .layer = entry->part.tiles.layer,
            .from = {x, y, z},
            .to = {x + entry->part.tiles.width, y + entry->part.tiles.height, z + entry->part.tiles.depth}};
    }
    mapping->context = block.context;
    return !is_empty(&mapping->box);
}

struct step {
    int operation; /* 0: nothing to do */
    struct cot_sparse_mapping mapping;
};

/* Takes the reference before the driver maps: a release on another thread must not drop the charge in between. */
static void prepare_step(const abi_array_map *entry, struct step *step) {
    if (!read_part(entry, &step->mapping)) return;
    if (entry->operation == ABI_TILES_MAP && (step->mapping.memory = cot_memory_of_handle(entry->handle)))
        step->operation = ABI_TILES_MAP;
    if (entry->operation == ABI_TILES_UNMAP) step->operation = ABI_TILES_UNMAP;
}

/* Read after the call, as memory of an ended view may have passed to the primary context. */
static void *context_of(const struct cot_sparse_mapping *mapping) {
    struct cot_block block;
    uint32_t left;
    uint64_t key = (uintptr_t)mapping->array;
    bool known = cot_blocks_change_references(key, COT_DEFERRED, 0, &block, &left) ||
                 cot_blocks_change_references(key, COT_SPARSE, 0, &block, &left);
    return known ? block.context : mapping->context;
}

/* Under the lock. If there is no memory to remember a mapping, its reference stays: it counts too long, never too
 * short. */
static void finish_step(const struct step *step, bool done) {
    struct cot_sparse_mapping mapping = step->mapping;
    mapping.context = context_of(&mapping);
    if (done && step->operation == ABI_TILES_MAP) add(&mapping);
    if (done && step->operation == ABI_TILES_UNMAP) unmap(&step->mapping);
    if (!done && step->operation == ABI_TILES_MAP) cot_memory_unref(step->mapping.memory);
}

static abi_result map_arrays(void *real, abi_array_map *list, unsigned count, abi_stream stream) {
    typedef abi_result (*call)(abi_array_map *, unsigned, abi_stream);
    if (!real) return (abi_result)cot_missing();
    if (!list || !count || !cot_attached()) return ((call)real)(list, count, stream);
    struct step *steps = calloc(count, sizeof *steps);
    abi_array_map *copy = calloc(count, sizeof *copy);
    abi_result result = ABI_ERROR_OUT_OF_MEMORY;
    if (steps && copy) {
        for (unsigned i = 0; i < count; i++) copy[i] = list[i]; /* the program may change its own meanwhile */
        result = ABI_SUCCESS;
        /* One by one: if the driver refuses a list it does not say which entries it has done. */
        for (unsigned i = 0; i < count && result == ABI_SUCCESS; i++) {
            prepare_step(&copy[i], &steps[i]);
            result = ((call)real)(&copy[i], 1, stream);
            pthread_mutex_lock(&cot->sparse.lock);
            finish_step(&steps[i], result == ABI_SUCCESS);
            pthread_mutex_unlock(&cot->sparse.lock);
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
