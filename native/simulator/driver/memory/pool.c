/* Stream-ordered memory: pools reserve chunks of the GPU, sub-allocate from them and keep freed memory until they are
 * trimmed or the process synchronizes. Assumption, not measured yet: a chunk is the request rounded up to the GPU's
 * granule. As work runs in submission order, freed memory can be reused at once; but a pool releases nothing to the GPU
 * before the streams of the frees have reached them. A destroyed pool keeps all its memory until then, and until its
 * last allocation is freed, as CUDA's documentation says. */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define PIECE 512u

struct sim_segment {
    uint64_t offset, bytes;
    bool taken;
    struct sim_segment *next;
};

static struct sim_pool *pools, *ending, *current_pool[SIM_MAX_GPUS], *default_pool[SIM_MAX_GPUS];

struct sim_pool *sim_pool_new(int device) {
    struct sim_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    *pool = (struct sim_pool){.magic = SIM_POOL_MAGIC, .device = device, .reuses = {true, true, true}, .next = pools};
    pools = pool;
    return pool;
}

struct sim_pool *sim_default_pool(int device) {
    if (!default_pool[device]) {
        default_pool[device] = sim_pool_new(device);
        if (default_pool[device]) default_pool[device]->is_default = true;
    }
    return default_pool[device];
}

bool sim_is_pool(const struct sim_pool *pool) {
    for (const struct sim_pool *known = pools; known; known = known->next) {
        if (known == pool) return true;
    }
    return false;
}

static int chunk_new(struct sim_pool *pool, uint64_t bytes, struct sim_region **out) {
    uint32_t gpu = sim.gpu_of[pool->device];
    uint64_t granule = sim.facts->gpus[gpu].granule_bytes;
    if (bytes > UINT64_MAX - granule) return ABI_ERROR_OUT_OF_MEMORY;
    bytes = (bytes + granule - 1) / granule * granule;
    if (pool->max_bytes && (bytes > pool->max_bytes || pool->reserved > pool->max_bytes - bytes))
        return ABI_ERROR_OUT_OF_MEMORY;
    uint64_t block;
    SIM_TRY(sim_simple(SIM_ALLOCATE, gpu, bytes, SIM_KIND_POOL, &block));
    struct sim_segment *segment = calloc(1, sizeof *segment);
    struct sim_region *chunk;
    int result = segment ? sim_region_new(SIM_CHUNK, bytes, granule, &chunk) : ABI_ERROR_OUT_OF_MEMORY;
    if (result != ABI_SUCCESS) {
        sim_simple(SIM_RELEASE, gpu, block, 0, NULL);
        free(segment);
        return result;
    }
    *segment = (struct sim_segment){.bytes = bytes};
    chunk->block = block;
    chunk->device = pool->device;
    chunk->pool = pool;
    chunk->segments = segment;
    chunk->next_chunk = pool->chunks;
    pool->chunks = chunk;
    pool->reserved += bytes;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    *out = chunk;
    return ABI_SUCCESS;
}

static struct sim_segment *carve(struct sim_region *chunk, uint64_t bytes) {
    for (struct sim_segment *segment = chunk->segments; segment; segment = segment->next) {
        if (segment->taken || segment->bytes < bytes) continue;
        if (segment->bytes > bytes) {
            struct sim_segment *rest = calloc(1, sizeof *rest);
            if (!rest) return NULL;
            *rest = (struct sim_segment){
                .offset = segment->offset + bytes, .bytes = segment->bytes - bytes, .next = segment->next};
            segment->bytes = bytes;
            segment->next = rest;
        }
        segment->taken = true;
        return segment;
    }
    return NULL;
}

static int pool_alloc(struct sim_pool *pool, uint64_t bytes, abi_devptr *pointer) {
    if (pool->imported) return ABI_ERROR_INVALID_VALUE;
    if (bytes == 0) {
        *pointer = 0;
        return ABI_SUCCESS;
    }
    if (bytes > UINT64_MAX - PIECE) return ABI_ERROR_OUT_OF_MEMORY;
    bytes = (bytes + PIECE - 1) / PIECE * PIECE;
    struct sim_segment *segment = NULL;
    struct sim_region *chunk;
    for (chunk = pool->chunks; chunk; chunk = chunk->next_chunk) {
        segment = carve(chunk, bytes);
        if (segment) break;
    }
    if (!segment) {
        int result = chunk_new(pool, bytes, &chunk);
        if (result != ABI_SUCCESS) return result;
        segment = carve(chunk, bytes);
        if (!segment) return ABI_ERROR_OUT_OF_MEMORY;
    }
    pool->used += bytes;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    *pointer = sim_region_address(chunk) + segment->offset;
    return ABI_SUCCESS;
}

static struct sim_segment *segment_at(const struct sim_region *chunk, uint64_t offset) {
    struct sim_segment *segment = chunk->segments;
    while (segment && offset >= segment->offset + segment->bytes) segment = segment->next;
    return segment;
}

bool sim_chunk_range(const struct sim_region *region, abi_devptr pointer, abi_devptr *start, uint64_t *bytes) {
    struct sim_segment *segment = segment_at(region, pointer - sim_region_address(region));
    if (!segment || !segment->taken) return false;
    *start = sim_region_address(region) + segment->offset;
    *bytes = segment->bytes;
    return true;
}

static void coalesce(struct sim_region *chunk) {
    for (struct sim_segment *segment = chunk->segments; segment;) {
        struct sim_segment *next = segment->next;
        if (next && !segment->taken && !next->taken) {
            segment->bytes += next->bytes;
            segment->next = next->next;
            free(next);
        } else {
            segment = next;
        }
    }
}

static struct sim_pool *unlink_pool(struct sim_pool **list, struct sim_pool *pool) {
    while (*list && *list != pool) list = &(*list)->next;
    if (*list) *list = pool->next;
    return pool;
}

static void chunk_end(struct sim_pool *pool, struct sim_region **place) {
    struct sim_region *chunk = *place;
    *place = chunk->next_chunk;
    pool->reserved -= chunk->bytes;
    for (struct sim_segment *segment = chunk->segments, *next; segment; segment = next) {
        next = segment->next;
        if (segment->taken) pool->used -= segment->bytes;
        free(segment);
    }
    sim_simple(SIM_RELEASE, sim.gpu_of[pool->device], chunk->block, 0, NULL);
    sim_region_end(chunk);
}

static bool has_pending_frees(const struct sim_pool *pool) {
    for (int device = 0; device < sim.device_count; device++) {
        uint32_t gpu = sim.gpu_of[device];
        if (sim.channel[gpu] && atomic_load(&sim.channel[gpu]->completed) < pool->freed_after[gpu]) return true;
    }
    return false;
}

/* For a pool that is in no list. */
static void pool_end(struct sim_pool *pool) {
    while (pool->chunks) chunk_end(pool, &pool->chunks);
    free(pool);
}

int sim_chunk_free(struct sim_region *region, abi_devptr pointer) {
    uint64_t offset = pointer - sim_region_address(region);
    struct sim_segment *segment = segment_at(region, offset);
    if (!segment || !segment->taken || segment->offset != offset) return ABI_ERROR_INVALID_VALUE;
    struct sim_pool *pool = region->pool;
    segment->taken = false;
    pool->used -= segment->bytes;
    coalesce(region);
    if (pool->destroyed && pool->used == 0 && !has_pending_frees(pool)) pool_end(unlink_pool(&ending, pool));
    return ABI_SUCCESS;
}

int sim_pool_free(struct sim_region *region, abi_devptr pointer, struct sim_context *context,
                  struct sim_stream *stream) {
    uint64_t *after = &region->pool->freed_after[context->gpu], before = *after;
    uint64_t last = atomic_load(stream ? &stream->last : &sim.channel[context->gpu]->put);
    if (last > before) *after = last;
    int result = sim_chunk_free(region, pointer);
    if (result != ABI_SUCCESS) *after = before;
    return result;
}

/* Releases unused chunks while more than `keep` is reserved. */
static void trim(struct sim_pool *pool, uint64_t keep) {
    if (has_pending_frees(pool)) return;
    for (struct sim_region **place = &pool->chunks; *place;) {
        struct sim_region *chunk = *place;
        bool empty = !chunk->segments->taken && !chunk->segments->next;
        if (empty && pool->reserved > keep && pool->reserved - chunk->bytes >= keep) chunk_end(pool, place);
        else place = &chunk->next_chunk;
    }
}

/* No context is left on the GPU: its pools release everything. */
static void release_device(int device) {
    for (struct sim_pool *pool = pools; pool; pool = pool->next) {
        while (pool->device == device && pool->chunks) chunk_end(pool, &pool->chunks);
    }
    for (struct sim_pool *pool = ending, *next; pool; pool = next) {
        next = pool->next;
        if (pool->device == device) pool_end(unlink_pool(&ending, pool));
    }
}

SIM_ON_CONTEXT_END(.release_device = release_device)

void sim_pools_trim(void) {
    pthread_mutex_lock(&sim.lock);
    for (struct sim_pool *pool = pools; pool; pool = pool->next) trim(pool, pool->release_threshold);
    for (struct sim_pool *pool = ending, *next; pool; pool = next) {
        next = pool->next;
        if (pool->used == 0 && !has_pending_frees(pool)) pool_end(unlink_pool(&ending, pool));
    }
    pthread_mutex_unlock(&sim.lock);
}

int sim_pool_allocate(struct sim_pool *pool, int device, uint64_t bytes, abi_devptr *pointer) {
    if (!pointer) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (!pool) pool = current_pool[device] ? current_pool[device] : sim_default_pool(device);
    int result = sim_is_pool(pool) ? pool_alloc(pool, bytes, pointer) : ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemPoolCreate(abi_pool *out, const abi_pool_props *props) {
    SIM_ENTER("cuMemPoolCreate");
    if (!out || !props || props->alloc_type != ABI_ALLOCATION_PINNED) return ABI_ERROR_INVALID_VALUE;
    int device = sim_device_of_location(&props->location);
    if (device == SIM_UNKNOWN_LOCATION || props->location.type == ABI_LOCATION_HOST_NUMA_CURRENT)
        return ABI_ERROR_INVALID_VALUE;
    if (device == SIM_HOST || (props->handle_types & ~ABI_HANDLE_POSIX_FD)) return ABI_ERROR_NOT_SUPPORTED;
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    struct sim_pool *pool = sim_pool_new(device);
    if (pool) pool->max_bytes = props->max_size;
    if (pool) pool->exportable = props->handle_types & ABI_HANDLE_POSIX_FD;
    pthread_mutex_unlock(&sim.lock);
    if (!pool) return ABI_ERROR_OUT_OF_MEMORY;
    *out = (abi_pool)pool;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuMemPoolDestroy(abi_pool handle) {
    SIM_ENTER("cuMemPoolDestroy");
    struct sim_pool *pool = (struct sim_pool *)handle;
    int result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (sim_is_pool(pool) && !pool->is_default) {
        unlink_pool(&pools, pool);
        if (current_pool[pool->device] == pool) current_pool[pool->device] = NULL;
        if (pool->used == 0 && !has_pending_frees(pool)) {
            pool_end(pool);
        } else {
            pool->destroyed = true;
            pool->next = ending;
            ending = pool;
        }
        result = ABI_SUCCESS;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemPoolTrimTo(abi_pool handle, size_t keep) {
    SIM_ENTER("cuMemPoolTrimTo");
    struct sim_pool *pool = (struct sim_pool *)handle;
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_pool(pool);
    if (known) trim(pool, keep);
    pthread_mutex_unlock(&sim.lock);
    return known ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

/* Attributes that can only be read, of CUDA 13.0 and later. */
enum { ALLOCATION_TYPE = 9, HANDLE_TYPES = 10, LOCATION_ID = 11, LOCATION_TYPE = 12, MAX_SIZE = 13 };

SIM_EXPORT abi_result cuMemPoolGetAttribute(abi_pool handle, int attribute, void *value) {
    SIM_ENTER("cuMemPoolGetAttribute");
    struct sim_pool *pool = (struct sim_pool *)handle;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!value || !sim_is_pool(pool)) result = ABI_ERROR_INVALID_VALUE;
    else if (attribute >= ABI_POOL_REUSE_FOLLOW_EVENTS && attribute <= ABI_POOL_REUSE_INTERNAL)
        *(int *)value = pool->reuses[attribute - ABI_POOL_REUSE_FOLLOW_EVENTS];
    else if (attribute == ABI_POOL_RELEASE_THRESHOLD) *(uint64_t *)value = pool->release_threshold;
    else if (attribute == ABI_POOL_RESERVED_CURRENT) *(uint64_t *)value = pool->reserved;
    else if (attribute == ABI_POOL_RESERVED_HIGH) *(uint64_t *)value = pool->reserved_high;
    else if (attribute == ABI_POOL_USED_CURRENT) *(uint64_t *)value = pool->used;
    else if (attribute == ABI_POOL_USED_HIGH) *(uint64_t *)value = pool->used_high;
    else if (attribute == ALLOCATION_TYPE) *(int *)value = ABI_ALLOCATION_PINNED;
    else if (attribute == HANDLE_TYPES) *(int *)value = pool->exportable && !pool->imported ? ABI_HANDLE_POSIX_FD : 0;
    else if (attribute == LOCATION_ID) *(int *)value = pool->device;
    else if (attribute == LOCATION_TYPE) *(int *)value = ABI_LOCATION_DEVICE;
    else if (attribute == MAX_SIZE) *(uint64_t *)value = pool->max_bytes;
    else result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemPoolSetAttribute(abi_pool handle, int attribute, void *value) {
    SIM_ENTER("cuMemPoolSetAttribute");
    struct sim_pool *pool = (struct sim_pool *)handle;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!value || !sim_is_pool(pool)) result = ABI_ERROR_INVALID_VALUE;
    else if (attribute == ABI_POOL_RELEASE_THRESHOLD) pool->release_threshold = *(uint64_t *)value;
    else if (attribute >= ABI_POOL_REUSE_FOLLOW_EVENTS && attribute <= ABI_POOL_REUSE_INTERNAL)
        pool->reuses[attribute - ABI_POOL_REUSE_FOLLOW_EVENTS] = *(int *)value != 0;
    else if (*(uint64_t *)value != 0) result = ABI_ERROR_INVALID_VALUE; /* high-water marks can be reset alone */
    else if (attribute == ABI_POOL_RESERVED_HIGH) pool->reserved_high = pool->reserved;
    else if (attribute == ABI_POOL_USED_HIGH) pool->used_high = pool->used;
    else result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemPoolSetAccess(abi_pool pool, const abi_access_desc *map, size_t count) {
    SIM_ENTER("cuMemPoolSetAccess");
    struct sim_pool *known = (struct sim_pool *)pool;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!sim_is_pool(known) || (count && !map)) result = ABI_ERROR_INVALID_VALUE;
    for (size_t i = 0; result == ABI_SUCCESS && i < count; i++) {
        int device = sim_device_of_location(&map[i].location);
        if (device < 0) result = device == SIM_NO_DEVICE ? ABI_ERROR_INVALID_DEVICE : ABI_ERROR_INVALID_VALUE;
        else if (device == known->device && map[i].flags != ABI_ACCESS_READ_WRITE) result = ABI_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* No two simulated devices reach each other's memory. */
SIM_EXPORT abi_result cuMemPoolGetAccess(int *flags, abi_pool pool, const abi_location *location) {
    SIM_ENTER("cuMemPoolGetAccess");
    const struct sim_pool *known = (const struct sim_pool *)pool;
    if (!flags || !location || !SIM_LOCKED(sim_is_pool(known))) return ABI_ERROR_INVALID_VALUE;
    int device = sim_device_of_location(location);
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    *flags = device == known->device ? ABI_ACCESS_READ_WRITE : ABI_ACCESS_NONE;
    return ABI_SUCCESS;
}

static int pool_of_device(abi_pool *out, abi_device device, bool by_default) {
    if (!out) return ABI_ERROR_INVALID_VALUE;
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    struct sim_pool *pool = !by_default && current_pool[device] ? current_pool[device] : sim_default_pool(device);
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_pool)pool;
    return pool ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
}

SIM_ROW(cuDeviceGetDefaultMemPool, (abi_pool * pool, abi_device device), pool_of_device(pool, device, true))
SIM_ROW(cuDeviceGetMemPool, (abi_pool * pool, abi_device device), pool_of_device(pool, device, false))
SIM_EXPORT abi_result cuDeviceSetMemPool(abi_device device, abi_pool handle) {
    SIM_ENTER("cuDeviceSetMemPool");
    struct sim_pool *pool = (struct sim_pool *)handle;
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    bool fits = sim_is_pool(pool) && pool->device == device && !pool->imported;
    if (fits) current_pool[device] = pool;
    pthread_mutex_unlock(&sim.lock);
    return fits ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

/* The pool of a location: only devices have pools here, of pinned memory. */
static int device_of_pool(const abi_location *location, int type, int *device) {
    if (!location) return ABI_ERROR_INVALID_VALUE;
    *device = sim_device_of_location(location);
    bool managed = type == ABI_ALLOCATION_MANAGED;
    if (*device == SIM_UNKNOWN_LOCATION || location->type == ABI_LOCATION_HOST_NUMA_CURRENT ||
        (type != ABI_ALLOCATION_PINNED && !managed))
        return ABI_ERROR_INVALID_VALUE;
    if (*device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    return managed || *device == SIM_HOST ? ABI_ERROR_NOT_SUPPORTED : ABI_SUCCESS;
}
SIM_EXPORT abi_result cuMemGetDefaultMemPool(abi_pool *pool, const abi_location *location, int type) {
    SIM_ENTER("cuMemGetDefaultMemPool");
    int device;
    SIM_TRY(device_of_pool(location, type, &device));
    return pool_of_device(pool, device, true);
}
SIM_EXPORT abi_result cuMemGetMemPool(abi_pool *pool, const abi_location *location, int type) {
    SIM_ENTER("cuMemGetMemPool");
    int device;
    SIM_TRY(device_of_pool(location, type, &device));
    return pool_of_device(pool, device, false);
}
/* Location and type must be those of the pool, which is a device's, of pinned memory. */
SIM_EXPORT abi_result cuMemSetMemPool(const abi_location *location, int type, abi_pool pool) {
    SIM_ENTER("cuMemSetMemPool");
    int device, result = device_of_pool(location, type, &device);
    if (result == ABI_ERROR_NOT_SUPPORTED) return ABI_ERROR_INVALID_VALUE;
    return result == ABI_SUCCESS ? cuDeviceSetMemPool(device, pool) : result;
}
