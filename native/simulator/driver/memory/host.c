/* Page-locked memory of the host, and what the driver says about any address. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "pool.h"

enum { PORTABLE = 1, MAPPED = 2, WRITE_COMBINED = 4, IO_MEMORY = 4, READ_ONLY = 8 }; /* flags; two share a value */

struct host_block {
    char *at;
    size_t bytes;
    bool registered;
    unsigned flags;
    struct sim_context *context;
    struct host_block *next;
};
static struct host_block *host_blocks;

/* Under sim.lock: a block that shares a byte with the range, or NULL. */
static struct host_block *block_in(const char *at, size_t bytes) {
    struct host_block *block = host_blocks;
    while (block && (at + bytes <= block->at || block->at + block->bytes <= at)) block = block->next;
    return block;
}

bool sim_is_page_locked(abi_devptr pointer) {
    return SIM_LOCKED(block_in((const char *)pointer, 1) != NULL);
}

static int host_add(void *at, size_t bytes, unsigned flags, bool registered, struct sim_context *context) {
    struct host_block *block = malloc(sizeof *block);
    if (!block) return ABI_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim.lock);
    bool taken = registered && block_in(at, bytes);
    if (!taken) {
        *block = (struct host_block){at, bytes, registered, flags, context, host_blocks};
        host_blocks = block;
    }
    pthread_mutex_unlock(&sim.lock);
    if (taken) free(block);
    return taken ? ABI_ERROR_HOST_MEMORY_ALREADY_REGISTERED : ABI_SUCCESS;
}

static bool host_remove(void *at, bool registered) {
    pthread_mutex_lock(&sim.lock);
    struct host_block *found = NULL;
    for (struct host_block **place = &host_blocks; *place; place = &(*place)->next) {
        if ((*place)->at == at && (*place)->registered == registered) {
            found = *place;
            *place = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    if (found && !registered) {
        if (sim_is_host_work_pending()) sim_wait_all(found->context); /* it may use the memory */
        munmap(found->at, found->bytes);
    }
    free(found);
    return found != NULL;
}

static int host_alloc(void **pointer, size_t bytes, unsigned flags) {
    SIM_CURRENT(context);
    if (!pointer || bytes == 0 || flags & ~(unsigned)(PORTABLE | MAPPED | WRITE_COMBINED))
        return ABI_ERROR_INVALID_VALUE;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return ABI_ERROR_OUT_OF_MEMORY;
    *pointer = map;
    return host_add(map, bytes, flags, false, context);
}
SIM_ROW(cuMemAllocHost_v2, (void **pointer, size_t bytes), host_alloc(pointer, bytes, 0))
SIM_ROW(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags), host_alloc(pointer, bytes, flags))
SIM_EXPORT abi_result cuMemFreeHost(void *pointer) {
    SIM_ENTER("cuMemFreeHost");
    return host_remove(pointer, false) ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}
/* No simulated device registers memory that it may only read. */
SIM_EXPORT abi_result cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    SIM_ENTER("cuMemHostRegister_v2");
    SIM_CURRENT(context);
    if (!pointer || bytes == 0 || flags & ~(unsigned)(PORTABLE | MAPPED | IO_MEMORY | READ_ONLY))
        return ABI_ERROR_INVALID_VALUE;
    if (flags & READ_ONLY) return ABI_ERROR_NOT_SUPPORTED;
    return host_add(pointer, bytes, flags, true, context);
}
SIM_EXPORT abi_result cuMemHostUnregister(void *pointer) {
    SIM_ENTER("cuMemHostUnregister");
    return host_remove(pointer, true) ? ABI_SUCCESS : ABI_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
SIM_EXPORT abi_result cuMemHostGetDevicePointer_v2(abi_devptr *device, void *pointer, unsigned flags) {
    SIM_ENTER("cuMemHostGetDevicePointer_v2");
    if (!device || flags || !sim_is_page_locked((abi_devptr)pointer)) return ABI_ERROR_INVALID_VALUE;
    *device = (abi_devptr)pointer;
    return ABI_SUCCESS;
}
/* With unified addressing all page-locked memory is portable and mapped. */
SIM_EXPORT abi_result cuMemHostGetFlags(unsigned *flags, void *pointer) {
    SIM_ENTER("cuMemHostGetFlags");
    pthread_mutex_lock(&sim.lock);
    const struct host_block *block = block_in(pointer, 1);
    if (block && flags) *flags = block->flags | MAPPED;
    pthread_mutex_unlock(&sim.lock);
    return block && flags ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

/* ---- attributes of an address ---- */
enum {
    SYNC_MEMOPS = 6,
    IPC_CAPABLE = 10,
    HANDLE_TYPES = 14,
    RDMA_CAPABLE = 15,
    ACCESS_FLAGS = 16,
    POOL = 17,
    MOST_ATTRIBUTE = 22,
};
#define SET(type, value) (*(type *)data = (type)(value), ABI_SUCCESS)

/* Under sim.lock. */
static int attribute_of_host(void *data, int attribute, abi_devptr pointer, const struct host_block *block) {
    switch (attribute) {
    case ABI_POINTER_CONTEXT: return SET(void *, block->context);
    case ABI_POINTER_MEMORY_TYPE: return SET(unsigned, ABI_MEMORY_HOST);
    case ABI_POINTER_DEVICE_POINTER:
    case ABI_POINTER_HOST_POINTER: return SET(abi_devptr, pointer);
    case ABI_POINTER_BUFFER_ID: return SET(uint64_t, (uintptr_t)block);
    case ABI_POINTER_IS_MANAGED: return SET(unsigned, 0);
    case ABI_POINTER_DEVICE_ORDINAL: return SET(int, block->context->device);
    case ABI_POINTER_RANGE_START: return SET(abi_devptr, (uintptr_t)block->at);
    case ABI_POINTER_RANGE_SIZE: return SET(size_t, block->bytes);
    case ABI_POINTER_MAPPED: return SET(unsigned, 1);
    case IPC_CAPABLE: return SET(unsigned, 0);
    case POOL: return SET(void *, NULL);
    default: return ABI_ERROR_NOT_SUPPORTED;
    }
}

static int handle_types(const struct sim_region *region, const struct sim_physical *physical) {
    if (region->kind == SIM_CHUNK) return region->pool->handle_types;
    return physical ? physical->prop.requested_handle_types : 0;
}

/* Under sim.lock. Several small allocations share a block, in which each begins at another unit. */
static int attribute_of_region(void *data, int attribute, abi_devptr pointer, struct sim_region *region) {
    abi_devptr start = sim_region_address(region);
    uint64_t bytes = region->bytes;
    struct sim_physical *physical = region->kind == SIM_RESERVED ? region->mapped[(pointer - start) / SIM_PAGE] : NULL;
    bool mapped = region->kind != SIM_RESERVED || physical;
    bool on_host = region->kind == SIM_CHUNK && region->pool->device == SIM_HOST;
    bool managed = region->kind == SIM_MANAGED || (region->kind == SIM_CHUNK && region->pool->managed);
    if (region->kind == SIM_SMALLS && !sim_small_range(region, pointer, &start, &bytes)) return ABI_ERROR_INVALID_VALUE;
    if (region->kind == SIM_CHUNK && !sim_chunk_range(region, pointer, &start, &bytes)) return ABI_ERROR_INVALID_VALUE;
    switch (attribute) {
    case ABI_POINTER_CONTEXT: return SET(void *, region->context);
    case ABI_POINTER_MEMORY_TYPE: return SET(unsigned, on_host ? ABI_MEMORY_HOST : ABI_MEMORY_DEVICE);
    case ABI_POINTER_DEVICE_POINTER: return SET(abi_devptr, pointer);
    case ABI_POINTER_HOST_POINTER: return managed || on_host ? SET(abi_devptr, pointer) : ABI_ERROR_INVALID_VALUE;
    case ABI_POINTER_BUFFER_ID:
        start = (start - sim_region_address(region)) / SIM_SMALL_UNIT;
        return SET(uint64_t, region->serial << 32 | (region->unit_ids ? region->unit_ids[start] : start));
    case ABI_POINTER_IS_MANAGED: return SET(unsigned, managed);
    case ABI_POINTER_DEVICE_ORDINAL: return SET(int, region->device);
    case ABI_POINTER_RANGE_START: return SET(abi_devptr, start);
    case ABI_POINTER_RANGE_SIZE: return SET(size_t, bytes);
    case ABI_POINTER_MAPPED: return SET(unsigned, mapped);
    case SYNC_MEMOPS: return SET(unsigned, region->sync_memops);
    case IPC_CAPABLE: return SET(unsigned, region->kind == SIM_LARGE || region->kind == SIM_SMALLS);
    case HANDLE_TYPES: return SET(uint64_t, handle_types(region, physical));
    case POOL: return SET(void *, region->kind == SIM_CHUNK ? region->pool : NULL);
    default: return attribute > 0 && attribute <= MOST_ATTRIBUTE ? ABI_ERROR_NOT_SUPPORTED : ABI_ERROR_INVALID_VALUE;
    }
}

static int attribute_of(void *data, int attribute, abi_devptr pointer) {
    if (!data) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    struct host_block *block = region ? NULL : block_in((const char *)pointer, 1);
    int result = region  ? attribute_of_region(data, attribute, pointer, region)
                 : block ? attribute_of_host(data, attribute, pointer, block)
                         : ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_ROW(cuPointerGetAttribute, (void *data, int attribute, abi_devptr pointer), attribute_of(data, attribute, pointer))

/* An address that CUDA does not know is no error here: its attributes are null. */
SIM_EXPORT abi_result cuPointerGetAttributes(unsigned count, const int *attributes, void **data, abi_devptr pointer) {
    SIM_ENTER("cuPointerGetAttributes");
    if (!attributes || !data) return ABI_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!data[i] || attributes[i] <= 0 || attributes[i] > MOST_ATTRIBUTE) return ABI_ERROR_INVALID_VALUE;
        bool narrow = attributes[i] == ABI_POINTER_MEMORY_TYPE || attributes[i] == SYNC_MEMOPS ||
                      attributes[i] == ABI_POINTER_DEVICE_ORDINAL || attributes[i] == ABI_POINTER_IS_MANAGED ||
                      attributes[i] == IPC_CAPABLE || attributes[i] == ABI_POINTER_MAPPED ||
                      attributes[i] == RDMA_CAPABLE || attributes[i] == ACCESS_FLAGS || attributes[i] > POOL;
        if (attribute_of(data[i], attributes[i], pointer) == ABI_SUCCESS) continue;
        memset(data[i], 0, narrow ? sizeof(unsigned) : sizeof(uint64_t));
    }
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuPointerSetAttribute(const void *value, int attribute, abi_devptr pointer) {
    SIM_ENTER("cuPointerSetAttribute");
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    bool fits = value && region && attribute == SYNC_MEMOPS;
    if (fits) region->sync_memops = *(const unsigned *)value != 0;
    pthread_mutex_unlock(&sim.lock);
    return fits ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}
