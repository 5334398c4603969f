/* Linear and managed memory of one process, allocated as by the real driver: large requests have pages of their own,
 * small ones share a block of one granule. The daemon decides whether they fit; arena.c assigns addresses. Contents are
 * ordinary host memory, so copies move real data. */
#include <stdlib.h>
#include <string.h>

#include "../sim.h"

static struct sim_region *smalls[SIM_MAX_GPUS]; /* per ordinal, newest block first */

static uint64_t granule_of(const struct sim_context *context) {
    return sim.facts->gpus[context->gpu].granule_bytes;
}

/* Under sim.lock: allocates a region with memory of the GPU. The caller looked up the context before it had the lock,
 * and another thread may have ended it since: memory allocated for an ended context would never be released. */
static int allocate_region(struct sim_context *context, enum sim_region_kind kind, uint64_t bytes,
                           uint32_t accounted_as, struct sim_region **out) {
    struct sim_request request = {.op = SIM_ALLOCATE, .gpu = context->gpu, .arg = {bytes, accounted_as}};
    struct sim_reply reply;
    SIM_TRY(sim_usable(context));
    SIM_TRY(sim_request(&request, -1, &reply, NULL));
    int result = sim_region_new(kind, bytes, granule_of(context), out);
    if (result != ABI_SUCCESS) {
        sim_simple(SIM_RELEASE, context->gpu, reply.arg[0], 0, NULL);
        return result;
    }
    (*out)->block = reply.arg[0];
    (*out)->context = context;
    (*out)->device = context->device;
    return ABI_SUCCESS;
}

static bool unit_taken(const struct sim_region *block, uint32_t unit) {
    return block->used[unit / 64] >> (unit % 64) & 1;
}

static void mark_units(struct sim_region *block, uint32_t first, uint32_t count, bool taken) {
    for (uint32_t unit = first; unit < first + count;) {
        uint32_t bit = unit % 64, run = 64 - bit < first + count - unit ? 64 - bit : first + count - unit;
        uint64_t mask = (run == 64 ? ~0ull : (1ull << run) - 1) << bit;
        if (taken) block->used[unit / 64] |= mask;
        else block->used[unit / 64] &= ~mask;
        unit += run;
    }
}

static void take_units(struct sim_region *block, uint32_t first, uint32_t count) {
    mark_units(block, first, count, true);
    block->units[first] = (uint16_t)count;
    block->unit_ids[first] = ++block->ids_given;
    block->units_used += count;
    if (first == block->hint) block->hint = first + count;
}

/* First fit from the block's hint on; no unit below the hint is free. */
static bool carve(struct sim_region *block, uint32_t count, uint32_t *first) {
    if (block->unit_count - block->units_used < count) return false;
    for (uint32_t unit = block->hint; unit + count <= block->unit_count;) {
        if (unit % 64 == 0 && block->used[unit / 64] == ~0ull) {
            unit += 64;
            continue;
        }
        uint32_t run = 0;
        while (run < count && !unit_taken(block, unit + run)) run++;
        if (run == count) {
            take_units(block, unit, count);
            *first = unit;
            return true;
        }
        unit += run + 1;
    }
    return false;
}

static int small_alloc(struct sim_context *context, uint64_t bytes, abi_devptr *pointer) {
    uint32_t count = (uint32_t)((bytes + SIM_SMALL_UNIT - 1) / SIM_SMALL_UNIT), first;
    for (struct sim_region *block = smalls[context->device]; block; block = block->next_small) {
        if (block->context != context || !carve(block, count, &first)) continue;
        *pointer = sim_region_address(block) + (uint64_t)first * SIM_SMALL_UNIT;
        return ABI_SUCCESS;
    }
    uint64_t granule = granule_of(context);
    struct sim_region *block;
    SIM_TRY(allocate_region(context, SIM_SMALLS, granule, SIM_KIND_LINEAR, &block));
    block->unit_count = (uint32_t)(granule / SIM_SMALL_UNIT);
    block->units = calloc(block->unit_count, sizeof *block->units);
    block->unit_ids = calloc(block->unit_count, sizeof *block->unit_ids);
    block->used = calloc(block->unit_count / 64, sizeof *block->used);
    if (!block->units || !block->unit_ids || !block->used) {
        sim_simple(SIM_RELEASE, context->gpu, block->block, 0, NULL);
        sim_region_end(block);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    block->next_small = smalls[context->device];
    smalls[context->device] = block;
    take_units(block, 0, count);
    *pointer = sim_region_address(block);
    return ABI_SUCCESS;
}

static void release_region(struct sim_region *region) {
    sim_simple(SIM_RELEASE, sim.gpu_of[region->device], region->block, 0, NULL);
    sim_region_end(region);
}

static void drop_small_block(struct sim_region *block) {
    for (struct sim_region **place = &smalls[block->device]; *place; place = &(*place)->next_small) {
        if (*place == block) {
            *place = block->next_small;
            break;
        }
    }
    release_region(block);
}

static int linear_alloc(struct sim_context *context, uint64_t bytes, abi_devptr *pointer) {
    if (bytes == 0) return ABI_ERROR_INVALID_VALUE;
    /* Above 1 MiB a request gets pages of its own; with a smaller granule, from one granule on. */
    if (bytes <= 1u << 20 && bytes < granule_of(context)) return small_alloc(context, bytes, pointer);
    struct sim_region *region;
    int result = allocate_region(context, SIM_LARGE, bytes, SIM_KIND_LINEAR, &region);
    if (result == ABI_SUCCESS) *pointer = sim_region_address(region);
    return result;
}

/* Ends a small allocation; its units stay taken. 0: none starts there; else their number. */
static uint32_t take_small(struct sim_region *block, abi_devptr pointer, uint32_t *unit) {
    uint64_t offset = pointer - sim_region_address(block);
    *unit = (uint32_t)(offset / SIM_SMALL_UNIT);
    if (offset % SIM_SMALL_UNIT || *unit >= block->unit_count) return 0;
    uint32_t count = block->units[*unit];
    block->units[*unit] = 0;
    return count;
}

static void give_units(struct sim_region *block, uint32_t unit, uint32_t count) {
    mark_units(block, unit, count, false);
    block->units_used -= count;
    if (unit < block->hint) block->hint = unit;
    if (block->units_used == 0) drop_small_block(block);
}

static int linear_free(abi_devptr pointer) {
    struct sim_region *region = sim_region_at(pointer);
    if (!region) return ABI_ERROR_INVALID_VALUE;
    switch (region->kind) {
    case SIM_LARGE:
    case SIM_MANAGED:
        if (pointer != sim_region_address(region)) return ABI_ERROR_INVALID_VALUE;
        release_region(region);
        return ABI_SUCCESS;
    case SIM_SMALLS: {
        uint32_t unit, count = take_small(region, pointer, &unit);
        if (!count) return ABI_ERROR_INVALID_VALUE;
        give_units(region, unit, count);
        return ABI_SUCCESS;
    }
    case SIM_CHUNK: return sim_chunk_free(region, pointer);
    case SIM_GRAPH: return sim_graph_memory_free(region->graph_memory, pointer);
    case SIM_VIEW:
        if (pointer != sim_region_address(region)) return ABI_ERROR_INVALID_VALUE;
        sim_region_end(region);
        return ABI_SUCCESS;
    case SIM_OPENED: return region->pooled ? sim_close(region) : ABI_ERROR_INVALID_VALUE;
    default: return ABI_ERROR_INVALID_VALUE;
    }
}

/* ---- freed in the order of a stream: the GPU has it back at a synchronization after the stream has reached the free.
 * NVIDIA's developer blog on the stream-ordered allocator, part 1, "Interoperability with cudaMalloc and cudaFree" ----
 */

static struct ordered_free {
    struct ordered_free *next;
    struct sim_context *context; /* of the stream */
    uint32_t queue;
    uint64_t reached; /* number of its item */
    struct sim_region *region;
    uint32_t unit, count; /* of a small allocation */
} *ordered_frees;

int sim_linear_free_ordered(abi_devptr pointer, struct sim_context *context, uint32_t queue, uint64_t reached) {
    struct sim_region *region = sim_region_at(pointer);
    bool large = region && region->kind == SIM_LARGE && pointer == sim_region_address(region);
    struct ordered_free *one = malloc(sizeof *one);
    if (!one) return ABI_ERROR_OUT_OF_MEMORY;
    *one = (struct ordered_free){ordered_frees, context, queue, reached, region, 0, 0};
    if (region && region->kind == SIM_SMALLS) one->count = take_small(region, pointer, &one->unit);
    if (!large && !one->count) {
        free(one);
        return ABI_ERROR_INVALID_VALUE;
    }
    if (large) region->kind = SIM_FREED;
    ordered_frees = one;
    return ABI_SUCCESS;
}

void sim_linear_collect(void) {
    for (struct ordered_free **place = &ordered_frees, *one; (one = *place);) {
        if (!sim_is_done(one->context, one->queue, one->reached)) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        if (one->count) give_units(one->region, one->unit, one->count);
        else release_region(one->region);
        free(one);
    }
}

static void drop_ordered(const struct sim_context *context) {
    for (struct ordered_free **place = &ordered_frees, *one; (one = *place);) {
        if (one->region->context == context) {
            *place = one->next;
            free(one);
        } else {
            place = &one->next;
        }
    }
}

static void inherit(struct sim_context *from, struct sim_context *to) {
    uint32_t index = 0;
    for (struct sim_region *region; (region = sim_region_next(&index));) {
        if (region->context == from) region->context = to;
    }
}

static void release(struct sim_context *context) {
    uint32_t index = 0;
    sim_linear_collect(); /* its streams have come to their end */
    drop_ordered(context);
    for (struct sim_region *region; (region = sim_region_next(&index));) {
        if (region->context != context) continue;
        if (region->kind == SIM_SMALLS) drop_small_block(region);
        else if (region->kind == SIM_LARGE || region->kind == SIM_FREED || region->kind == SIM_MANAGED ||
                 region->kind == SIM_OPENED)
            release_region(region);
        else if (region->kind == SIM_VIEW) sim_region_end(region);
    }
}
SIM_ON_CONTEXT_END(.inherit = inherit, .release = release)

static int alloc_in_current(uint64_t bytes, abi_devptr *pointer) {
    SIM_LATER_FORM();
    SIM_CURRENT(context);
    if (!pointer) return ABI_ERROR_INVALID_VALUE;
    return SIM_LOCKED(linear_alloc(context, bytes, pointer));
}

SIM_EXPORT abi_result cuMemAlloc_v2(abi_devptr *pointer, size_t bytes) {
    SIM_ENTER("cuMemAlloc_v2");
    SIM_TRY(sim_capture_forbids_unsafe());
    return alloc_in_current(bytes, pointer);
}

/* The old 32-bit form cannot return an address above 4 GiB, so it never finds memory. */
SIM_EXPORT abi_result cuMemAlloc(unsigned *pointer, unsigned bytes) {
    SIM_ENTER("cuMemAlloc");
    (void)pointer;
    (void)bytes;
    return ABI_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT abi_result cuMemAllocPitch_v2(abi_devptr *pointer, size_t *pitch, size_t width, size_t height,
                                         unsigned element) {
    SIM_ENTER("cuMemAllocPitch_v2");
    if (!pitch || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return ABI_ERROR_INVALID_VALUE;
    size_t unit = sim.facts->pitch_bytes;
    if (width > SIZE_MAX - unit) return ABI_ERROR_OUT_OF_MEMORY;
    size_t row = (width + unit - 1) / unit * unit;
    if (row > SIZE_MAX / height) return ABI_ERROR_OUT_OF_MEMORY;
    abi_result result = alloc_in_current(row * height, pointer);
    if (result == ABI_SUCCESS) *pitch = row;
    return result;
}

SIM_EXPORT abi_result cuMemAllocManaged(abi_devptr *pointer, size_t bytes, unsigned flags) {
    SIM_ENTER("cuMemAllocManaged");
    SIM_CURRENT(context);
    if (!pointer || bytes == 0 || (flags != 1 && flags != 2)) return ABI_ERROR_INVALID_VALUE;
    struct sim_region *region;
    pthread_mutex_lock(&sim.lock);
    int result = allocate_region(context, SIM_MANAGED, bytes, SIM_KIND_MANAGED, &region);
    if (result == ABI_SUCCESS) *pointer = sim_region_address(region);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* Work that may use the memory comes to its end first, but for memory of a pool, as the reference says. */
static void wait_for_users(abi_devptr pointer) {
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    struct sim_context *context = region && region->kind != SIM_CHUNK ? region->context : NULL;
    pthread_mutex_unlock(&sim.lock);
    if (context && sim_is_host_work_pending()) sim_wait_all(context);
}

SIM_EXPORT abi_result cuMemFree_v2(abi_devptr pointer) {
    SIM_ENTER("cuMemFree_v2");
    if (pointer == 0) return ABI_SUCCESS;
    SIM_LATER_FORM();
    wait_for_users(pointer);
    return SIM_LOCKED(linear_free(pointer));
}

/* Nor has it anything to free, but for a null pointer. */
SIM_ROW(cuMemFree, (unsigned pointer), pointer ? ABI_ERROR_INVALID_VALUE : ABI_SUCCESS)

/* Either pointer may be missing: OptiX passes the second alone (Project-HAMi/HAMi-core#321, with driver 580). */
SIM_EXPORT abi_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    SIM_ENTER("cuMemGetInfo_v2");
    size_t unused[2];
    if (!free_bytes) free_bytes = &unused[0];
    if (!total) total = &unused[1];
    SIM_LATER_FORM();
    SIM_CURRENT(context);
    const struct sim_gpu_facts *facts = &sim.facts->gpus[context->gpu];
    *total = facts->total_bytes - facts->reserved_bytes;
    *free_bytes = *total - atomic_load(&facts->used_bytes);
    if (!atomic_load(&sim.facts->limits)) return ABI_SUCCESS;
    struct sim_request request = {.op = SIM_MEMORY, .gpu = context->gpu};
    struct sim_reply reply;
    SIM_TRY(sim_request(&request, -1, &reply, NULL));
    *free_bytes = reply.arg[1];
    *total = reply.arg[2];
    return ABI_SUCCESS;
}

/* Of a reserved range: the mapping that the address is in. */
static bool mapping_around(const struct sim_region *region, abi_devptr pointer, abi_devptr *start, uint64_t *bytes) {
    uint64_t page = (pointer - sim_region_address(region)) / SIM_PAGE;
    if (!region->mapped[page]) return false;
    uint64_t first = page, end = page + 1;
    while (!region->starts[first]) first--;
    while (end < region->pages && region->mapped[end] && !region->starts[end]) end++;
    *start = sim_region_address(region) + first * SIM_PAGE;
    *bytes = (end - first) * SIM_PAGE;
    return true;
}

SIM_EXPORT abi_result cuMemGetAddressRange_v2(abi_devptr *base, size_t *size, abi_devptr pointer) {
    SIM_ENTER("cuMemGetAddressRange_v2");
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    abi_devptr start = 0;
    uint64_t bytes = 0;
    bool found = region && region->kind != SIM_FREED;
    if (found) {
        start = sim_region_address(region);
        bytes = region->bytes;
        if (region->kind == SIM_SMALLS) found = sim_small_range(region, pointer, &start, &bytes);
        if (region->kind == SIM_CHUNK) found = sim_chunk_range(region, pointer, &start, &bytes);
        if (region->kind == SIM_RESERVED) found = mapping_around(region, pointer, &start, &bytes);
    }
    pthread_mutex_unlock(&sim.lock);
    if (!found) return ABI_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (size) *size = bytes;
    return ABI_SUCCESS;
}
