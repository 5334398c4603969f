/* Texture and surface objects: what they were made of, checked as the CUDA Driver API says (Texture Object Management,
 * Surface Object Management). They take no memory, and no simulated kernel reads through them. */
#include <stdlib.h>

#include "../memory/arrays.h"

enum { OF_ARRAY, OF_MIPMAPPED_ARRAY, OF_LINEAR, OF_PITCHED };
enum { PITCH_ALIGNMENT = 32, LINEAR_ALIGNMENT = 512 }; /* the device attributes 51 and 14 */

/* CUDA_RESOURCE_DESC (144 bytes), CUDA_TEXTURE_DESC (104) and CUDA_RESOURCE_VIEW_DESC (112) */
struct resource {
    int type;
    union {
        void *array;
        struct {
            abi_devptr at;
            int format;
            unsigned channels;
            size_t bytes_or_width, height, pitch;
        } memory;
        int reserved[32];
    };
    unsigned flags;
};
struct sampling {
    int words[26];
};
struct view {
    int words[28];
};

struct object {
    struct object *next;
    uint64_t handle;
    bool surface, viewed;
    struct resource resource;
    struct sampling sampling;
    struct view view;
};
static struct object *objects; /* under sim.lock */

static bool is_memory(const struct resource *resource) {
    bool pitched = resource->type == OF_PITCHED, device;
    unsigned channels = resource->memory.channels;
    if (channels != 1 && channels != 2 && channels != 4) return false;
    if (abi_array_element_of(resource->memory.format, channels).bits == 0) return false;
    if (!resource->memory.bytes_or_width || resource->memory.at % LINEAR_ALIGNMENT) return false;
    if (pitched && (!resource->memory.height || resource->memory.pitch % PITCH_ALIGNMENT)) return false;
    uint64_t bytes = pitched ? resource->memory.pitch * resource->memory.height : resource->memory.bytes_or_width;
    return sim_check_range(resource->memory.at, bytes, &device) == ABI_SUCCESS;
}

static bool is_array(const struct resource *resource) {
    pthread_mutex_lock(&sim.lock);
    const struct sim_array *array = sim_array_of(resource->array);
    bool fits = array && (array->levels > 0) == (resource->type == OF_MIPMAPPED_ARRAY);
    pthread_mutex_unlock(&sim.lock);
    return fits;
}

static bool is_resource(const struct resource *resource, bool surface) {
    if (!resource || resource->flags || resource->type < OF_ARRAY || resource->type > OF_PITCHED) return false;
    if (surface && resource->type != OF_ARRAY) return false;
    return resource->type >= OF_LINEAR ? is_memory(resource) : is_array(resource);
}

static int create(uint64_t *out, const struct resource *resource, const struct sampling *sampling,
                  const struct view *view) {
    SIM_CURRENT(context);
    if (!out || !is_resource(resource, !sampling)) return ABI_ERROR_INVALID_VALUE;
    if (view && resource->type >= OF_LINEAR) return ABI_ERROR_INVALID_VALUE;
    struct object *object = calloc(1, sizeof *object);
    if (!object) return ABI_ERROR_OUT_OF_MEMORY;
    object->resource = *resource;
    object->surface = !sampling;
    object->viewed = view;
    if (sampling) object->sampling = *sampling;
    if (view) object->view = *view;
    pthread_mutex_lock(&sim.lock);
    object->handle = *out = ++sim.next_id;
    object->next = objects;
    objects = object;
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

/* Under sim.lock. */
static struct object **place_of(uint64_t handle, bool surface) {
    struct object **place = &objects;
    while (*place && !((*place)->handle == handle && (*place)->surface == surface)) place = &(*place)->next;
    return place;
}

static int destroy(uint64_t handle, bool surface) {
    pthread_mutex_lock(&sim.lock);
    struct object **place = place_of(handle, surface), *object = *place;
    if (object) *place = object->next;
    pthread_mutex_unlock(&sim.lock);
    free(object);
    return object ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

SIM_ROW(cuTexObjectCreate,
        (uint64_t *out, const struct resource *resource, const struct sampling *sampling, const struct view *view),
        sampling ? create(out, resource, sampling, view) : ABI_ERROR_INVALID_VALUE)
SIM_ROW(cuTexObjectDestroy, (uint64_t texture), destroy(texture, false))
SIM_ROW(cuSurfObjectCreate, (uint64_t *out, const struct resource *resource), create(out, resource, NULL, NULL))
SIM_ROW(cuSurfObjectDestroy, (uint64_t surface), destroy(surface, true))

/* One of the descriptions that an object was made of. */
#define DESCRIPTION(name, is_surface, type, member, has)             \
    SIM_EXPORT abi_result name(type *out, uint64_t handle) {         \
        SIM_ENTER(#name);                                            \
        pthread_mutex_lock(&sim.lock);                               \
        const struct object *object = *place_of(handle, is_surface); \
        bool found = out && object && (has);                         \
        if (found) *out = object->member;                            \
        pthread_mutex_unlock(&sim.lock);                             \
        return found ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;        \
    }
DESCRIPTION(cuTexObjectGetResourceDesc, false, struct resource, resource, true)
DESCRIPTION(cuTexObjectGetTextureDesc, false, struct sampling, sampling, true)
DESCRIPTION(cuTexObjectGetResourceViewDesc, false, struct view, view, object->viewed)
DESCRIPTION(cuSurfObjectGetResourceDesc, true, struct resource, resource, true)

_Static_assert(sizeof(struct resource) == 144 && sizeof(struct sampling) == 104, "CUDA's descriptions");
