/* Maps memory by handle to sparse and deferred-mapping arrays. */
#include <stdlib.h>
#include <string.h>

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

/* CUDA_ARRAY_SPARSE_PROPERTIES */
struct properties {
    unsigned tile[3], first_tail_level;
    unsigned long long tail_bytes;
    unsigned flags, reserved[4];
};

/* Tiles of 64 KiB, in the shapes that the Vulkan specification calls standard ("Standard Sparse Image Block Shapes"):
 * assumption, as CUDA documents none. */
static void set_tile(const abi_array3d_shape *shape, unsigned tile[3]) {
    static const unsigned FLAT[5][3] = {{256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
    static const unsigned DEEP[5][3] = {{64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
    abi_array_element element = abi_array_element_of(shape->format, shape->channels);
    bool deep = shape->depth && !(shape->flags & (ABI_ARRAY_LAYERED | ABI_ARRAY_CUBEMAP));
    unsigned row = 0;
    while (row < 4 && 8u << row < element.bits) row++;
    memcpy(tile, deep ? DEEP[row] : FLAT[row], sizeof FLAT[row]);
    tile[0] *= element.side;
    tile[1] *= element.side;
}

/* The tail begins with the first level that is smaller than a tile; what is not mipmapped has none. */
static int properties_of(struct properties *out, void *handle, bool chain) {
    pthread_mutex_lock(&sim.lock);
    const struct sim_array *array = sim_array_of(handle);
    bool fits = out && array && array->shape.flags & ABI_ARRAY_SPARSE && !array->part && (array->levels > 0) == chain;
    if (fits) {
        *out = (struct properties){0};
        set_tile(&array->shape, out->tile);
        while (out->first_tail_level < array->levels && array->shape.width >> out->first_tail_level >= out->tile[0] &&
               array->shape.height >> out->first_tail_level >= out->tile[1])
            out->first_tail_level++;
        out->tail_bytes = out->first_tail_level < array->levels ? 65536 : 0;
    }
    pthread_mutex_unlock(&sim.lock);
    return fits ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}
SIM_ROW(cuArrayGetSparseProperties, (struct properties * out, void *array), properties_of(out, array, false))
SIM_ROW(cuMipmappedArrayGetSparseProperties, (struct properties * out, void *array), properties_of(out, array, true))

enum { FIRST_PLANAR = 0x53 };
SIM_EXPORT abi_result cuArrayGetPlane(void **plane, void *handle, unsigned index) {
    SIM_ENTER("cuArrayGetPlane");
    pthread_mutex_lock(&sim.lock);
    const struct sim_array *array = sim_array_of(handle);
    bool planes = array && array->shape.format >= FIRST_PLANAR && index < 3;
    pthread_mutex_unlock(&sim.lock);
    return plane && planes ? ABI_ERROR_NOT_SUPPORTED : ABI_ERROR_INVALID_VALUE;
}
