/* Arrays and mipmapped arrays. The layout is the simulator's own: rows are padded to 64 bytes, and in arrays with a
 * height their number to a multiple of 8; levels follow each other, and the whole has its own granules. Sparse and
 * deferred-mapping arrays have no memory until memory by handle is mapped. Contents are ordinary host memory; copies
 * reach the first level and slice. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arrays.h"

#define ROW_BYTES 64u
#define ROW_COUNT 8u
#define MAX_WIDTH 131072u
#define MAX_SLICES 16384u
#define MAX_LAYERS 2048u
#define MAX_FLAGS 0x1ffu /* all that exist */
#define ALIGNMENT 65536u

static struct sim_array *arrays;

static size_t extent(size_t whole, unsigned level) {
    return whole == 0 ? 0 : whole >> level ? whole >> level : 1;
}

static abi_array3d_shape level_shape(const abi_array3d_shape *shape, unsigned level) {
    abi_array3d_shape at = *shape;
    at.width = extent(shape->width, level);
    at.height = extent(shape->height, level);
    if (!(shape->flags & (ABI_ARRAY_LAYERED | ABI_ARRAY_CUBEMAP))) at.depth = extent(shape->depth, level);
    return at;
}

static size_t row_bytes(const abi_array3d_shape *shape) {
    abi_array_element element = abi_array_element_of(shape->format, shape->channels);
    size_t blocks = (shape->width + element.side - 1) / element.side;
    return (blocks * element.bits + 7) / 8;
}

static uint64_t pitch_of(const abi_array3d_shape *shape) {
    return (row_bytes(shape) + ROW_BYTES - 1) / ROW_BYTES * ROW_BYTES;
}

static uint64_t layout_bytes(const abi_array3d_shape *shape, unsigned levels) {
    unsigned side = abi_array_element_of(shape->format, shape->channels).side;
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels; level++) {
        abi_array3d_shape at = level_shape(shape, level);
        uint64_t rows = at.height ? ((at.height + side - 1) / side + ROW_COUNT - 1) / ROW_COUNT * ROW_COUNT : 1;
        sum += pitch_of(&at) * rows * (at.depth ? at.depth : 1);
    }
    return sum;
}

static bool is_valid(const abi_array3d_shape *shape) {
    if (shape->width == 0 || shape->width > MAX_WIDTH || shape->height > MAX_WIDTH || shape->depth > MAX_SLICES)
        return false;
    if (shape->flags > MAX_FLAGS || (shape->flags & ABI_ARRAY_GATHER && shape->depth)) return false;
    if (shape->channels == 3 && shape->format <= ABI_FORMAT_FLOAT) return false;
    if (shape->channels == 0 || shape->channels > 4 || abi_array_element_of(shape->format, shape->channels).bits == 0)
        return false;
    bool layered = shape->flags & ABI_ARRAY_LAYERED;
    if (layered && shape->depth > MAX_LAYERS) return false;
    if (shape->flags & ABI_ARRAY_CUBEMAP)
        return shape->width == shape->height && (layered ? shape->depth && shape->depth % 6 == 0 : shape->depth == 6);
    return layered ? shape->depth > 0 : shape->depth == 0 || shape->height > 0;
}

static void add(struct sim_array *array) {
    array->next = arrays;
    arrays = array;
}

static struct sim_array **place_of(const void *handle) {
    struct sim_array **place = &arrays;
    while (*place && *place != handle) place = &(*place)->next;
    return place;
}
struct sim_array *sim_array_of(const void *handle) {
    return *place_of(handle);
}

/* Under sim.lock. `levels` 0: not mipmapped. */
static int array_new(struct sim_context *context, const abi_array3d_shape *shape, unsigned levels, bool takes,
                     struct sim_array **out) {
    if (!is_valid(shape)) return ABI_ERROR_INVALID_VALUE;
    int result = sim_usable(context); /* another thread may have ended it before this one got the lock */
    if (result != ABI_SUCCESS) return result;
    struct sim_array *array = calloc(1, sizeof *array);
    if (!array) return ABI_ERROR_OUT_OF_MEMORY;
    unsigned most = abi_array_most_levels(shape);
    *array = (struct sim_array){.context = context, .shape = *shape, .levels = levels < most ? levels : most};
    array->bytes = layout_bytes(shape, array->levels ? array->levels : 1);
    if (takes && sim_array_has_memory(array)) {
        result = sim_simple(SIM_ALLOCATE, context->gpu, array->bytes, SIM_KIND_ARRAY, &array->block);
        if (result == ABI_SUCCESS) {
            void *map =
                mmap(NULL, array->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (map != MAP_FAILED) array->contents = map;
            else sim_simple(SIM_RELEASE, context->gpu, array->block, 0, NULL);
            if (map == MAP_FAILED) result = ABI_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result != ABI_SUCCESS) {
        free(array);
        return result;
    }
    add(array);
    *out = array;
    return ABI_SUCCESS;
}

void sim_array_unmap(struct sim_array_part **place) {
    struct sim_array_part *mapping = *place;
    *place = mapping->next;
    mapping->physical->maps--;
    sim_physical_end_if_unused(mapping->physical);
    free(mapping);
}

/* Ends the array at *place, but not its levels. */
static void array_end(struct sim_array **place) {
    struct sim_array *array = *place;
    *place = array->next;
    while (array->mappings) sim_array_unmap(&array->mappings);
    if (array->block) sim_simple(SIM_RELEASE, array->context->gpu, array->block, 0, NULL);
    if (array->contents && !array->part) munmap(array->contents, array->bytes);
    free(array);
}

static void drop_parts(const struct sim_array *whole) {
    for (struct sim_array **place = &arrays; *place;) {
        if ((*place)->whole == whole) array_end(place);
        else place = &(*place)->next;
    }
}

static void release(struct sim_context *context) {
    for (struct sim_array **place = &arrays; *place;) {
        if ((*place)->context == context) array_end(place);
        else place = &(*place)->next;
    }
}

static void inherit(struct sim_context *from, struct sim_context *to) {
    for (struct sim_array *array = arrays; array; array = array->next) {
        if (array->context == from) array->context = to;
    }
}
SIM_ON_CONTEXT_END(.inherit = inherit, .release = release)

static int create(void **out, const abi_array3d_shape *shape, unsigned levels) {
    struct sim_array *array;
    SIM_CURRENT(context);
    if (!out || !shape) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    int result = array_new(context, shape, levels, true, &array);
    pthread_mutex_unlock(&sim.lock);
    if (result == ABI_SUCCESS) *out = array;
    return result;
}

int sim_array_view(struct sim_context *context, const abi_array3d_shape *shape, unsigned levels, uint64_t capacity,
                   abi_mipmapped *out) {
    struct sim_array *array;
    if (levels == 0) return ABI_ERROR_INVALID_VALUE;
    SIM_TRY(array_new(context, shape, levels, false, &array));
    if (array->bytes > capacity) {
        array_end(&arrays);
        return ABI_ERROR_INVALID_VALUE;
    }
    *out = (abi_mipmapped)array;
    return ABI_SUCCESS;
}

size_t sim_array_element_bytes(void *handle) {
    pthread_mutex_lock(&sim.lock);
    struct sim_array *array = sim_array_of(handle);
    unsigned bits = array ? abi_array_element_of(array->shape.format, array->shape.channels).bits : 8;
    pthread_mutex_unlock(&sim.lock);
    return bits < 8 ? 1 : bits / 8;
}

bool sim_array_rows(void *handle, char **rows, size_t *pitch, size_t *width_bytes, size_t *height) {
    pthread_mutex_lock(&sim.lock);
    struct sim_array *array = sim_array_of(handle);
    bool usable = array && array->levels == 0 && array->contents;
    if (usable) {
        unsigned side = abi_array_element_of(array->shape.format, array->shape.channels).side;
        *rows = array->contents;
        *pitch = pitch_of(&array->shape);
        *width_bytes = row_bytes(&array->shape);
        *height = array->shape.height ? (array->shape.height + side - 1) / side : 1;
    }
    pthread_mutex_unlock(&sim.lock);
    return usable;
}

static abi_array3d_shape flat(size_t width, size_t height, int format, unsigned channels) {
    return (abi_array3d_shape){width, height, 0, format, channels, 0};
}

SIM_EXPORT abi_result cuArrayCreate_v2(abi_array *out, const abi_array_shape *shape) {
    SIM_ENTER("cuArrayCreate_v2");
    SIM_LATER_FORM();
    if (!shape) return ABI_ERROR_INVALID_VALUE;
    abi_array3d_shape whole = flat(shape->width, shape->height, shape->format, shape->channels);
    return create((void **)out, &whole, 0);
}
SIM_EXPORT abi_result cuArrayCreate(abi_array *out, const abi_array_shape_v1 *shape) {
    SIM_ENTER("cuArrayCreate");
    if (!shape) return ABI_ERROR_INVALID_VALUE;
    abi_array3d_shape whole = flat(shape->width, shape->height, shape->format, shape->channels);
    return create((void **)out, &whole, 0);
}
SIM_EXPORT abi_result cuArray3DCreate_v2(abi_array *out, const abi_array3d_shape *shape) {
    SIM_ENTER("cuArray3DCreate_v2");
    SIM_LATER_FORM();
    return create((void **)out, shape, 0);
}
SIM_EXPORT abi_result cuArray3DCreate(abi_array *out, const abi_array3d_shape_v1 *shape) {
    SIM_ENTER("cuArray3DCreate");
    if (!shape) return ABI_ERROR_INVALID_VALUE;
    abi_array3d_shape whole = {shape->width, shape->height, shape->depth, shape->format, shape->channels, shape->flags};
    return create((void **)out, &whole, 0);
}
SIM_ROW(cuMipmappedArrayCreate, (abi_mipmapped * out, const abi_array3d_shape *shape, unsigned levels),
        create((void **)out, shape, levels ? levels : 1))

static int destroy(void *handle, bool chain) {
    pthread_mutex_lock(&sim.lock);
    struct sim_array *array = *place_of(handle);
    bool fits = array && !array->part && (array->levels > 0) == chain;
    if (fits) {
        drop_parts(array);
        array_end(place_of(handle));
    }
    pthread_mutex_unlock(&sim.lock);
    return fits ? ABI_SUCCESS : ABI_ERROR_INVALID_HANDLE;
}

SIM_ROW(cuArrayDestroy, (abi_array array), destroy(array, false))
SIM_ROW(cuMipmappedArrayDestroy, (abi_mipmapped array), destroy(array, true))

/* Returns the same array for the same level each time. */
SIM_EXPORT abi_result cuMipmappedArrayGetLevel(abi_array *out, abi_mipmapped handle, unsigned level) {
    SIM_ENTER("cuMipmappedArrayGetLevel");
    if (!out) return ABI_ERROR_INVALID_VALUE;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    struct sim_array *whole = sim_array_of(handle), *part = arrays;
    if (!whole || whole->levels == 0) result = ABI_ERROR_INVALID_HANDLE;
    else if (level >= whole->levels) result = ABI_ERROR_INVALID_VALUE;
    while (result == ABI_SUCCESS && part && !(part->whole == whole && part->level == level)) part = part->next;
    if (result == ABI_SUCCESS && !part) {
        part = calloc(1, sizeof *part);
        if (part) {
            *part = (struct sim_array){.context = whole->context,
                                       .shape = level_shape(&whole->shape, level),
                                       .part = true,
                                       .whole = whole,
                                       .level = level};
            if (whole->contents) part->contents = whole->contents + layout_bytes(&whole->shape, level);
            part->bytes = layout_bytes(&part->shape, 1);
            add(part);
        } else {
            result = ABI_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    if (result == ABI_SUCCESS) *out = (abi_array)part;
    return result;
}

static int describe(void *handle, abi_array3d_shape *shape) {
    pthread_mutex_lock(&sim.lock);
    struct sim_array *array = sim_array_of(handle);
    bool found = array && array->levels == 0;
    if (found) *shape = array->shape;
    pthread_mutex_unlock(&sim.lock);
    return found ? ABI_SUCCESS : ABI_ERROR_INVALID_HANDLE;
}

SIM_EXPORT abi_result cuArray3DGetDescriptor_v2(abi_array3d_shape *out, abi_array array) {
    SIM_ENTER("cuArray3DGetDescriptor_v2");
    return out ? describe(array, out) : ABI_ERROR_INVALID_VALUE;
}
SIM_EXPORT abi_result cuArray3DGetDescriptor(abi_array3d_shape_v1 *out, abi_array array) {
    SIM_ENTER("cuArray3DGetDescriptor");
    abi_array3d_shape shape;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    int result = describe(array, &shape);
    if (result == ABI_SUCCESS)
        *out = (abi_array3d_shape_v1){(unsigned)shape.width, (unsigned)shape.height, (unsigned)shape.depth,
                                      shape.format,          shape.channels,         shape.flags};
    return result;
}
SIM_EXPORT abi_result cuArrayGetDescriptor_v2(abi_array_shape *out, abi_array array) {
    SIM_ENTER("cuArrayGetDescriptor_v2");
    abi_array3d_shape shape;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    int result = describe(array, &shape);
    if (result == ABI_SUCCESS) *out = (abi_array_shape){shape.width, shape.height, shape.format, shape.channels};
    return result;
}
SIM_EXPORT abi_result cuArrayGetDescriptor(abi_array_shape_v1 *out, abi_array array) {
    SIM_ENTER("cuArrayGetDescriptor");
    abi_array3d_shape shape;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    int result = describe(array, &shape);
    if (result == ABI_SUCCESS)
        *out = (abi_array_shape_v1){(unsigned)shape.width, (unsigned)shape.height, shape.format, shape.channels};
    return result;
}

/* Supported for deferred-mapping arrays only, as by the real driver. */
static int requirements(void *handle, bool chain, abi_array_requirements *out) {
    int result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_array *array = sim_array_of(handle);
    if (!array) result = ABI_ERROR_INVALID_HANDLE;
    if (array && out && (array->levels > 0) == chain && (array->shape.flags & ABI_ARRAY_DEFERRED)) {
        *out = (abi_array_requirements){.size = (array->bytes + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE,
                                        .alignment = ALIGNMENT};
        result = ABI_SUCCESS;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_EXPORT abi_result cuArrayGetMemoryRequirements(abi_array_requirements *out, abi_array array, abi_device device) {
    SIM_ENTER("cuArrayGetMemoryRequirements");
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    return requirements(array, false, out);
}
SIM_EXPORT abi_result cuMipmappedArrayGetMemoryRequirements(abi_array_requirements *out, abi_mipmapped array,
                                                            abi_device device) {
    SIM_ENTER("cuMipmappedArrayGetMemoryRequirements");
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    return requirements(array, true, out);
}
