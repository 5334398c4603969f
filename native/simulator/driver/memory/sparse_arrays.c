/* Maps memory by handle to sparse and deferred-mapping arrays. */
#include <stdlib.h>

#include "arrays.h"

static void read_part(const struct sim_array *array, const abi_array_map *entry, struct sim_array_part *part) {
    *part = (struct sim_array_part){.to = {1, 1, 1}, .type = entry->part_type};
    if (array->shape.flags & ABI_ARRAY_DEFERRED) { /* such an array has one part, whatever the entry says */
        part->type = ABI_TILES_LEVEL;
    } else if (entry->part_type == ABI_TILES_MIP_TAIL) {
        part->layer = entry->part.tail.layer;
        part->from[0] = entry->part.tail.offset;
        part->to[0] = part->from[0] + entry->part.tail.size;
    } else {
        unsigned at[3] = {entry->part.tiles.x, entry->part.tiles.y, entry->part.tiles.z};
        unsigned size[3] = {entry->part.tiles.width, entry->part.tiles.height, entry->part.tiles.depth};
        part->level = entry->part.tiles.level;
        part->layer = entry->part.tiles.layer;
        for (int i = 0; i < 3; i++) {
            part->from[i] = at[i];
            part->to[i] = (uint64_t)at[i] + size[i];
        }
    }
}

static bool overlap(const struct sim_array_part *a, const struct sim_array_part *b) {
    if (a->type != b->type || a->level != b->level || a->layer != b->layer) return false;
    for (int i = 0; i < 3; i++) {
        uint64_t from = a->from[i] > b->from[i] ? a->from[i] : b->from[i];
        if (from >= a->to[i] || from >= b->to[i]) return false;
    }
    return true;
}

static int add_mapping(struct sim_array *array, const struct sim_array_part *part) {
    struct sim_array_part *mapping = calloc(1, sizeof *mapping);
    if (!mapping) return ABI_ERROR_OUT_OF_MEMORY;
    *mapping = *part;
    mapping->next = array->mappings;
    array->mappings = mapping;
    mapping->physical->maps++;
    return ABI_SUCCESS;
}

/* Splits a mapping at both ends of the part along one axis; what is outside of the part becomes a mapping of its
 * own. */
static int split(struct sim_array *array, struct sim_array_part *mapping, const struct sim_array_part *part, int axis) {
    int result = ABI_SUCCESS;
    struct sim_array_part before = *mapping, after = *mapping;
    before.to[axis] = after.from[axis] = 0;
    if (mapping->from[axis] < part->from[axis]) {
        before.to[axis] = mapping->from[axis] = part->from[axis];
        result = add_mapping(array, &before);
    }
    if (result == ABI_SUCCESS && mapping->to[axis] > part->to[axis]) {
        after.from[axis] = mapping->to[axis] = part->to[axis];
        result = add_mapping(array, &after);
    }
    return result;
}

static int unmap_part(struct sim_array *array, const struct sim_array_part *part) {
    bool any = false;
    for (struct sim_array_part **place = &array->mappings; *place;) {
        struct sim_array_part *mapping = *place;
        if (!overlap(mapping, part)) {
            place = &mapping->next;
            continue;
        }
        for (int axis = 0; axis < 3; axis++) {
            int result = split(array, mapping, part, axis);
            if (result != ABI_SUCCESS) return result;
        }
        place = &array->mappings; /* new mappings may precede it now */
        while (*place != mapping) place = &(*place)->next;
        sim_array_unmap(place);
        any = true;
    }
    return any ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

static int map_one(const abi_array_map *entry) {
    struct sim_array *array = sim_array_of(entry->resource);
    struct sim_array_part part;
    if (!array || sim_array_has_memory(array) || array->part || entry->flags) return ABI_ERROR_INVALID_VALUE;
    if ((array->levels > 0) != (entry->resource_type == ABI_RESOURCE_MIPMAPPED)) return ABI_ERROR_INVALID_VALUE;
    read_part(array, entry, &part);
    if (entry->operation == ABI_TILES_UNMAP) return unmap_part(array, &part);
    part.physical = sim_physical_of(entry->handle);
    if (entry->operation != ABI_TILES_MAP || !part.physical || entry->offset >= part.physical->bytes)
        return ABI_ERROR_INVALID_VALUE;
    if (!overlap(&part, &part)) return ABI_ERROR_INVALID_VALUE; /* the part is empty */
    for (struct sim_array_part *known = array->mappings; known; known = known->next) {
        if (overlap(known, &part)) return ABI_ERROR_INVALID_VALUE;
    }
    return add_mapping(array, &part);
}

static int map_all(const abi_array_map *list, unsigned count, abi_stream stream) {
    struct sim_context *context;
    struct sim_stream *object;
    int result = sim_stream_context(stream, &context, &object);
    if (result == ABI_SUCCESS && (!list || count == 0)) result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    for (unsigned i = 0; i < count && result == ABI_SUCCESS; i++) result = map_one(&list[i]);
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_ROW(cuMemMapArrayAsync, (abi_array_map * list, unsigned count, abi_stream stream), map_all(list, count, stream))
SIM_ROW(cuMemMapArrayAsync_ptsz, (abi_array_map * list, unsigned count, abi_stream stream),
        map_all(list, count, stream))

/* The shape of tiles is not simulated: what is not sparse, or has no planes, is refused as documented. */
enum { FIRST_PLANAR = 0x53 };
SIM_EXPORT abi_result cuArrayGetSparseProperties(void *properties, void *handle) {
    SIM_ENTER("cuArrayGetSparseProperties");
    pthread_mutex_lock(&sim.lock);
    const struct sim_array *array = sim_array_of(handle);
    bool sparse = array && array->shape.flags & ABI_ARRAY_SPARSE;
    pthread_mutex_unlock(&sim.lock);
    return properties && sparse ? ABI_ERROR_NOT_SUPPORTED : ABI_ERROR_INVALID_VALUE;
}
SIM_EXPORT abi_result cuArrayGetPlane(void **plane, void *handle, unsigned index) {
    SIM_ENTER("cuArrayGetPlane");
    pthread_mutex_lock(&sim.lock);
    const struct sim_array *array = sim_array_of(handle);
    bool planes = array && array->shape.format >= FIRST_PLANAR && index < 3;
    pthread_mutex_unlock(&sim.lock);
    return plane && planes ? ABI_ERROR_NOT_SUPPORTED : ABI_ERROR_INVALID_VALUE;
}
