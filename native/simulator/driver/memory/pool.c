/* Stream-ordered memory: pools reserve chunks of the GPU, sub-allocate from them and keep freed memory until they are
 * trimmed or the process synchronizes. A chunk is the request rounded up to the GPU's pool step. Chunks of a host pool
 * are memory of the process, of which the GPU has nothing. As work runs in submission order, freed memory can be reused
 * at once; but a pool releases nothing to the GPU before the streams of the frees have reached them. A destroyed pool
 * keeps all its memory until then, and until its last allocation is freed, as CUDA's documentation says. */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define PIECE 512u

struct sim_segment {
    uint64_t offset, bytes, asked; /* asked: by the program, where it is taken */
    bool taken;
    struct sim_segment *next;
};

static struct sim_pool *ending;

/* The GPU's memory for a chunk; *bytes is rounded up. Host pools take none of it. */
static int back_chunk(const struct sim_pool *pool, uint64_t *bytes, uint64_t *block) {
    bool host = pool->device == SIM_HOST;
    const struct sim_gpu_facts *gpu = host ? NULL : &sim.facts->gpus[sim.gpu_of[pool->device]];
    uint64_t step = host ? SIM_PAGE : gpu->pool_step_bytes;
    if (*bytes > UINT64_MAX - step) return ABI_ERROR_OUT_OF_MEMORY;
    *bytes = (*bytes + step - 1) / step * step;
    if (pool->max_bytes && (*bytes > pool->max_bytes || pool->reserved > pool->max_bytes - *bytes))
        return ABI_ERROR_OUT_OF_MEMORY;
    *block = 0;
    uint32_t kind = pool->managed ? SIM_KIND_MANAGED : SIM_KIND_POOL;
    return host ? ABI_SUCCESS : sim_simple(SIM_ALLOCATE, sim.gpu_of[pool->device], *bytes, kind, block);
}

static int chunk_new(struct sim_pool *pool, uint64_t bytes, struct sim_region **out) {
    uint64_t block;
    SIM_TRY(back_chunk(pool, &bytes, &block));
    struct sim_segment *segment = calloc(1, sizeof *segment);
    struct sim_region *chunk;
    uint64_t alignment = block ? sim.facts->gpus[sim.gpu_of[pool->device]].granule_bytes : SIM_PAGE;
    int result = segment ? sim_region_new(SIM_CHUNK, bytes, alignment, &chunk) : ABI_ERROR_OUT_OF_MEMORY;
    if (result != ABI_SUCCESS) {
        if (block) sim_simple(SIM_RELEASE, 0, block, 0, NULL);
        free(segment);
        return result;
    }
    *segment = (struct sim_segment){.bytes = bytes};
    chunk->block = block;
    chunk->device = pool->device == SIM_HOST ? 0 : pool->device;
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
    uint64_t asked = bytes;
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
    segment->asked = asked;
    pool->used += asked;
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
        if (segment->taken) pool->used -= segment->asked;
        free(segment);
    }
    if (chunk->block) sim_simple(SIM_RELEASE, 0, chunk->block, 0, NULL);
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
    pool->used -= segment->asked;
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
    for (struct sim_pool *pool = sim_pools; pool; pool = pool->next) {
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
    for (struct sim_pool *pool = sim_pools; pool; pool = pool->next) trim(pool, pool->release_threshold);
    for (struct sim_pool *pool = ending, *next; pool; pool = next) {
        next = pool->next;
        if (pool->used == 0 && !has_pending_frees(pool)) pool_end(unlink_pool(&ending, pool));
    }
    pthread_mutex_unlock(&sim.lock);
}

int sim_pool_allocate(struct sim_pool *pool, int device, uint64_t bytes, abi_devptr *pointer) {
    if (!pointer) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (!pool) pool = sim_current_pool(&(abi_location){ABI_LOCATION_DEVICE, device});
    if (sim_is_pool(pool) && pool->device == SIM_NO_DEVICE) pool->device = device;
    int result = sim_is_pool(pool) ? pool_alloc(pool, bytes, pointer) : ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* Managed memory may be anywhere; a location is where it is preferred. It has neither handles nor a largest size. */
static int create_managed(abi_pool *out, const abi_pool_props *props) {
    int device = sim_device_of_location(&props->location);
    bool none = props->location.type == ABI_LOCATION_NONE || device == SIM_HOST;
    if (props->handle_types || props->max_size || (device == SIM_UNKNOWN_LOCATION && !none))
        return ABI_ERROR_INVALID_VALUE;
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    struct sim_pool *pool = sim_pool_new(none ? SIM_NO_DEVICE : device, &props->location);
    if (pool) pool->managed = true;
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_pool)pool;
    return pool ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT abi_result cuMemPoolCreate(abi_pool *out, const abi_pool_props *props) {
    SIM_ENTER("cuMemPoolCreate");
    if (!out || !props) return ABI_ERROR_INVALID_VALUE;
    if (props->alloc_type == ABI_ALLOCATION_MANAGED) return create_managed(out, props);
    if (props->alloc_type != ABI_ALLOCATION_PINNED) return ABI_ERROR_INVALID_VALUE;
    int device = sim_device_of_location(&props->location);
    if (device == SIM_UNKNOWN_LOCATION || props->location.type == ABI_LOCATION_HOST_NUMA_CURRENT)
        return ABI_ERROR_INVALID_VALUE;
    if (device == SIM_HOST && (props->handle_types || !sim_is_host_node(&props->location)))
        return ABI_ERROR_INVALID_VALUE;
    if (props->handle_types & ~(ABI_HANDLE_POSIX_FD | ABI_HANDLE_FABRIC)) return ABI_ERROR_NOT_SUPPORTED;
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    if (props->handle_types & ABI_HANDLE_FABRIC) SIM_TRY(sim_fabric_allowed(device));
    pthread_mutex_lock(&sim.lock);
    struct sim_pool *pool = sim_pool_new(device, &props->location);
    if (pool) pool->max_bytes = props->max_size;
    if (pool) pool->handle_types = props->handle_types;
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
        unlink_pool(&sim_pools, pool);
        sim_unset_pool(pool);
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
