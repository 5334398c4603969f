/* The virtual memory management API. Physical memory is charged by cuMemCreate and lives as long as any handle or
 * mapping of it; memory that another process owns is tracked at no charge. Each allocation has a number of its own
 * that is never reused: a handle may be, while its memory lives on in a mapping or an import. The table of blocks
 * has a block for each of the driver's references to a handle, and one for each allocation, which counts its
 * references. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../accounting/exported.h"
#include "../../accounting/quota.h"
#include "../../core/driver_calls.h"
#include "../blocks/blocks.h"
#include "vmm.h"

/* ---- which memory is mapped at which addresses: a block for each mapping, by its first address ---- */

/* If this fails the memory stays charged: too long, never too short. */
static void mapping_add(abi_devptr at, uint64_t bytes, uint64_t memory) {
    struct cot_block block = {.key = at, .bytes = bytes, .kind = COT_MAPPING, .root = memory, .references = 1};
    cot_blocks_add(&block);
}

/* The allocation that is mapped there, with a reference for the caller; 0: none. */
static uint64_t mapping_hold(abi_devptr at) {
    struct cot_block block;
    uint32_t left;
    bool found = cot_blocks_change_references(at, COT_MAPPING, 0, &block, &left) || cot_blocks_find_mapping(at, &block);
    return found && cot_memory_ref(block.root) ? block.root : 0;
}

/* ---- allocations ---- */

/* A new allocation with one reference; 0: no memory to remember it. */
static uint64_t memory_new(uint32_t gpu, uint64_t bytes, void *mark) {
    uint64_t number = atomic_fetch_add(&cot->exports.memories, 1);
    struct cot_block block = {
        .key =
            COT_MEMORY_BIT | number << 9, /* spread like addresses, so that each has a place of its own in the table */
        .bytes = bytes,
        .gpu = gpu,
        .kind = COT_VMM,
        .context = mark,
        .references = 1};
    return cot_blocks_add(&block) ? block.key : 0;
}

/* Adds a block for a reference to a handle. It takes over the caller's reference to the memory. */
static void handle_add(abi_vmm_handle handle, uint64_t memory) {
    struct cot_block block = {.key = handle, .kind = COT_VMM, .root = memory, .references = 1};
    cot_blocks_add(&block); /* if this fails the memory stays charged: too long, never too short */
}

uint64_t cot_memory_of_handle(abi_vmm_handle handle) {
    struct cot_block block;
    uint32_t left;
    return cot_blocks_change_references(handle, COT_VMM, 0, &block, &left) && cot_memory_ref(block.root) ? block.root
                                                                                                         : 0;
}

/* ---- memory that is imported by the process that exported it ---- */

/* The driver does not say that an imported handle is memory this process has already, so the exported file is
 * marked: by the owner and the number of its I/O signal (F_SETOWN, F_SETSIG). Both belong to the open file,
 * whatever descriptor leads to it, and have no effect as long as signals are not requested. A process that imports
 * the file keeps the mark, and puts it on what it exports of that memory. Each export reuses the mark of the 64th
 * export before it. */
struct mark {
    int owner; /* PID as this process sees it; 0: no mark */
    int which; /* from 1 on */
};

static struct mark mark_of_file(int file) {
    struct mark mark = {fcntl(file, F_GETOWN), fcntl(file, F_GETSIG)};
    return mark.owner > 0 && mark.which >= 1 && mark.which <= (int)COT_EXPORT_MARKS ? mark : (struct mark){0, 0};
}

/* Kept as the context of memory that another process owns, which belongs to no context here. */
static void *packed(struct mark mark) {
    return (void *)((uintptr_t)mark.owner * (COT_EXPORT_MARKS + 1) + (uintptr_t)mark.which);
}
static struct mark unpacked(const void *context) {
    return (struct mark){(int)((uintptr_t)context / (COT_EXPORT_MARKS + 1)),
                         (int)((uintptr_t)context % (COT_EXPORT_MARKS + 1))};
}

static void mark_file(int file, abi_vmm_handle handle) {
    struct cot_block block = {0};
    uint32_t left;
    uint64_t memory = cot_memory_of_handle(handle);
    if (!cot_blocks_change_references(memory, COT_VMM, 0, &block, &left)) return;
    struct mark mark = unpacked(block.context);
    if (block.bytes) {
        pthread_mutex_lock(&cot->exports.lock);
        uint32_t place = cot->exports.next++ % COT_EXPORT_MARKS;
        cot->exports.memory[place] = memory;
        pthread_mutex_unlock(&cot->exports.lock);
        mark = (struct mark){getpid(), (int)place + 1};
        uint64_t before;
        if (cot_blocks_set_root(memory, COT_VMM, COT_EXPORTED_AS(file, mark.which), &before) && !before)
            cot_exported_add(block.gpu, block.bytes);
    }
    cot_memory_unref(memory);
    if (mark.owner && fcntl(file, F_SETSIG, mark.which) == 0) fcntl(file, F_SETOWN, mark.owner);
}

uint64_t cot_memory_of_file(int file) {
    struct mark mark = mark_of_file(file);
    if (!mark.which || mark.owner != getpid()) return 0;
    pthread_mutex_lock(&cot->exports.lock);
    uint64_t memory = cot->exports.memory[mark.which - 1];
    pthread_mutex_unlock(&cot->exports.lock);
    return cot_memory_ref(memory) ? memory : 0;
}

abi_result cot_cuMemExportToShareableHandle(void *out, abi_vmm_handle handle, int type, unsigned long long flags) {
    abi_result result = CALL_REAL(cuMemExportToShareableHandle, (void *, abi_vmm_handle, int, unsigned long long), out,
                                  handle, type, flags);
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    if (type == ABI_HANDLE_POSIX_FD) mark_file(*(const int *)out, handle);
    if (type == ABI_HANDLE_FABRIC) {
        uint64_t memory = cot_memory_of_handle(handle);
        cot_fabric_exported(out, memory);
        cot_memory_unref(memory);
    }
    return result;
}

/* The reference is taken before the driver's call, so that no release drops the charge in between. */
abi_result cot_cuMemImportFromShareableHandle(abi_vmm_handle *handle, void *os_handle, int type) {
    bool counted = handle && cot_attached();
    int file = type == ABI_HANDLE_POSIX_FD ? (int)(intptr_t)os_handle : -1;
    uint64_t memory = !counted                    ? 0
                      : type == ABI_HANDLE_FABRIC ? cot_memory_of_fabric(os_handle)
                                                  : cot_memory_of_file(file);
    void *mark = packed(mark_of_file(file));
    abi_result result =
        CALL_REAL(cuMemImportFromShareableHandle, (abi_vmm_handle *, void *, int), handle, os_handle, type);
    if (result != ABI_SUCCESS) cot_memory_unref(memory);
    else if (counted) handle_add(*handle, memory ? memory : memory_new(0, 0, mark));
    return result;
}

abi_result cot_cuMemRetainAllocationHandle(abi_vmm_handle *handle, void *address) {
    uint64_t memory = handle && cot_attached() ? mapping_hold((abi_devptr)(uintptr_t)address) : 0;
    abi_result result = CALL_REAL(cuMemRetainAllocationHandle, (abi_vmm_handle *, void *), handle, address);
    if (result != ABI_SUCCESS) cot_memory_unref(memory);
    else if (memory) handle_add(*handle, memory);
    return result;
}

/* ---- creation, release, mapping ---- */

abi_result cot_cuMemCreate(abi_vmm_handle *handle, size_t bytes, const abi_vmm_prop *prop, unsigned long long flags) {
#define CREATE()                                                                                                      \
    CALL_REAL(cuMemCreate, (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), handle, bytes, prop, \
              flags)
    if (!handle || !prop || cot_is_host_location(&prop->location)) return CREATE();
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    uint32_t gpu;
    result = cot_find_gpu_of_location(&prop->location, &gpu);
    if (result != ABI_SUCCESS) return result;
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    if (bytes > UINT64_MAX - limits.granule_bytes) return CREATE();
    uint64_t charge = (bytes + limits.granule_bytes - 1) / limits.granule_bytes * limits.granule_bytes;
    bool charged;
    if (!cot_reserve_exact(gpu, charge, &charged)) {
        cot_count_denied(gpu);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    result = CREATE();
#undef CREATE
    if (result != ABI_SUCCESS) {
        cot_rollback_exact(gpu, charge, charged);
        return result;
    }
    handle_add(*handle, memory_new(gpu, charge, NULL));
    cot_commit_exact(gpu, charge, charged);
    return ABI_SUCCESS;
}

/* Removed from the table before the driver's call, as the handle may be reused after it; charged until after the
 * call. */
abi_result cot_cuMemRelease(abi_vmm_handle handle) {
    struct cot_block block;
    bool known = cot_attached() && cot_blocks_take(handle, COT_VMM, &block);
    abi_result result = CALL_REAL(cuMemRelease, (abi_vmm_handle), handle);
    if (known && result == ABI_SUCCESS) cot_memory_unref(block.root);
    else if (known) handle_add(handle, block.root);
    return result;
}

abi_result cot_cuMemMap(abi_devptr at, size_t bytes, size_t offset, abi_vmm_handle handle, unsigned long long flags) {
    /* The reference is taken before the driver maps: a release on another thread must not drop the charge in
     * between. */
    uint64_t memory = cot_attached() ? cot_memory_of_handle(handle) : 0;
    abi_result result = CALL_REAL(cuMemMap, (abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long), at, bytes,
                                  offset, handle, flags);
    /* Of memory that is not known, too: what is mapped behind it may be unmapped together with it. */
    if (result == ABI_SUCCESS && cot_attached()) mapping_add(at, bytes, memory);
    else cot_memory_unref(memory);
    return result;
}

struct mappings {
    struct cot_block few[8], *list;
    size_t count, capacity;
};

/* A place for one more; NULL: no memory for it, and the rest stays charged. */
static struct cot_block *room_for_mapping(struct mappings *taken) {
    if (taken->count == taken->capacity) {
        struct cot_block *grown = malloc(taken->capacity * 2 * sizeof *grown);
        if (!grown) return NULL;
        memcpy(grown, taken->list, taken->count * sizeof *grown);
        if (taken->list != taken->few) free(taken->list);
        taken->list = grown;
        taken->capacity *= 2;
    }
    return &taken->list[taken->count];
}

/* The mappings of a range: one after another, and from the first gap on by a search, for drivers unmap what lies behind
 * gaps, too (580.159.04). */
static void take_mappings(struct mappings *taken, abi_devptr at, size_t bytes) {
    uint64_t done = 0;
    struct cot_block *block;
    while (done < bytes && (block = room_for_mapping(taken)) && cot_blocks_take(at + done, COT_MAPPING, block)) {
        done += block->bytes;
        taken->count++;
    }
    unsigned shard = 0;
    uint32_t entry = 0;
    while (done < bytes && (block = room_for_mapping(taken)) &&
           cot_blocks_take_mapping_in(at + done, at + bytes, &shard, &entry, block))
        taken->count++;
}

/* Blocks are taken before the driver's call, as the addresses may be reused after it. */
abi_result cot_cuMemUnmap(abi_devptr at, size_t bytes) {
    struct mappings taken = {.list = taken.few, .capacity = sizeof taken.few / sizeof *taken.few};
    if (cot_attached()) take_mappings(&taken, at, bytes);
    abi_result result = CALL_REAL(cuMemUnmap, (abi_devptr, size_t), at, bytes);
    for (size_t i = 0; i < taken.count; i++) {
        if (result == ABI_SUCCESS) cot_memory_unref(taken.list[i].root);
        else cot_blocks_add(&taken.list[i]);
    }
    if (taken.list != taken.few) free(taken.list);
    return result;
}
