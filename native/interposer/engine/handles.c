/* Memory by handle. Physical memory is charged when it is created and lives as long as any handle or mapping of it
 * does, so references are counted for both; memory that another process owns is tracked at no charge. */
#include <pthread.h>
#include <stdlib.h>

#include "cot.h"

/* ---- which handle lies behind which addresses ---- */
static bool mapping_add(abi_devptr at, uint64_t bytes, abi_vmm_handle handle) {
    pthread_mutex_lock(&cot->mappings.lock);
    bool room = cot->mappings.count < cot->mappings.capacity;
    if (!room) {
        size_t capacity = cot->mappings.capacity ? cot->mappings.capacity * 2 : 256;
        struct cot_mapping *grown = realloc(cot->mappings.list, capacity * sizeof *grown);
        room = grown != NULL;
        if (grown) {
            cot->mappings.list = grown;
            cot->mappings.capacity = capacity;
        }
    }
    if (room) cot->mappings.list[cot->mappings.count++] = (struct cot_mapping){at, bytes, handle};
    pthread_mutex_unlock(&cot->mappings.lock);
    return room;
}

/* Takes one mapping that lies in the range out; false: none left. */
static bool mapping_take(abi_devptr at, uint64_t bytes, abi_vmm_handle *handle) {
    bool found = false;
    pthread_mutex_lock(&cot->mappings.lock);
    for (size_t i = 0; i < cot->mappings.count && !found; i++) {
        if (cot->mappings.list[i].at < at || cot->mappings.list[i].at - at >= bytes) continue;
        *handle = cot->mappings.list[i].handle;
        cot->mappings.list[i] = cot->mappings.list[--cot->mappings.count];
        found = true;
    }
    pthread_mutex_unlock(&cot->mappings.lock);
    return found;
}

/* Takes back what mapping_add put there: not whatever else is mapped in its place. */
static void mapping_undo(abi_devptr at, uint64_t bytes, abi_vmm_handle handle) {
    bool found = false;
    pthread_mutex_lock(&cot->mappings.lock);
    for (size_t i = cot->mappings.count; i-- > 0 && !found;) {
        found = cot->mappings.list[i].at == at && cot->mappings.list[i].bytes == bytes &&
                cot->mappings.list[i].handle == handle;
        if (found) cot->mappings.list[i] = cot->mappings.list[--cot->mappings.count];
    }
    pthread_mutex_unlock(&cot->mappings.lock);
}

static bool mapping_at(abi_devptr at, abi_vmm_handle *handle) {
    bool found = false;
    pthread_mutex_lock(&cot->mappings.lock);
    for (size_t i = 0; i < cot->mappings.count && !found; i++) {
        found = at >= cot->mappings.list[i].at && at - cot->mappings.list[i].at < cot->mappings.list[i].bytes;
        if (found) *handle = cot->mappings.list[i].handle;
    }
    pthread_mutex_unlock(&cot->mappings.lock);
    return found;
}

void cot_handle_drop(abi_vmm_handle handle) {
    struct cot_block block;
    uint32_t left;
    if (cot_blocks_refer(handle, COT_VMM, -1, &block, &left) && left == 0 && block.bytes)
        cot_release(block.card, block.bytes);
}

bool cot_handle_hold(abi_vmm_handle handle) {
    struct cot_block block;
    uint32_t left;
    return cot_blocks_refer(handle, COT_VMM, 1, &block, &left);
}

abi_result cot_cuMemCreate(abi_vmm_handle *handle, size_t bytes, const abi_vmm_prop *prop, unsigned long long flags) {
#define CREATE()                                                                                                      \
    CALL_REAL(cuMemCreate, (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), handle, bytes, prop, \
              flags)
    if (!handle || !prop || prop->location.type != ABI_LOCATION_DEVICE) return CREATE();
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    uint32_t card = cot_card_of(prop->location.id);
    if (card == COT_NO_CARD) return ABI_ERROR_OUT_OF_MEMORY;
    struct cot_limits limits;
    cot_limits(card, &limits);
    if (bytes > UINT64_MAX - limits.granule_bytes) return CREATE();
    uint64_t charge = (bytes + limits.granule_bytes - 1) / limits.granule_bytes * limits.granule_bytes;
    if (!cot_reserve(card, charge)) {
        cot_deny(card);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    result = CREATE();
#undef CREATE
    if (result != ABI_SUCCESS) {
        cot_rollback(card, charge);
        return result;
    }
    struct cot_block block = {.key = *handle, .bytes = charge, .card = card, .kind = COT_VMM, .references = 1};
    cot_blocks_add(&block);
    cot_commit(card, charge, charge);
    return ABI_SUCCESS;
}

abi_result cot_cuMemRelease(abi_vmm_handle handle) {
    abi_result result = CALL_REAL(cuMemRelease, (abi_vmm_handle), handle);
    if (result == ABI_SUCCESS && cot_attached()) cot_handle_drop(handle);
    return result;
}

abi_result cot_cuMemMap(abi_devptr at, size_t bytes, size_t offset, abi_vmm_handle handle, unsigned long long flags) {
    /* Referenced before the driver maps it: a release on another thread must not let the charge go in between. */
    bool counted = cot_attached() && cot_handle_hold(handle);
    if (counted && !mapping_add(at, bytes, handle)) {
        cot_handle_drop(handle);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    abi_result result = CALL_REAL(cuMemMap, (abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long), at, bytes,
                                  offset, handle, flags);
    if (result != ABI_SUCCESS && counted) {
        mapping_undo(at, bytes, handle);
        cot_handle_drop(handle);
    }
    return result;
}

abi_result cot_cuMemUnmap(abi_devptr at, size_t bytes) {
    abi_result result = CALL_REAL(cuMemUnmap, (abi_devptr, size_t), at, bytes);
    abi_vmm_handle handle;
    while (result == ABI_SUCCESS && cot_attached() && mapping_take(at, bytes, &handle)) cot_handle_drop(handle);
    return result;
}

abi_result cot_cuMemRetainAllocationHandle(abi_vmm_handle *handle, void *address) {
    abi_result result = CALL_REAL(cuMemRetainAllocationHandle, (abi_vmm_handle *, void *), handle, address);
    abi_vmm_handle known;
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    /* The driver may answer with another handle than the one that was mapped; both stand for one memory. */
    if (!cot_handle_hold(*handle) && mapping_at((abi_devptr)(uintptr_t)address, &known) && known != *handle) {
        struct cot_block block = {.key = *handle, .bytes = 0, .kind = COT_VMM, .references = 1};
        cot_blocks_add(&block);
    }
    return result;
}

abi_result cot_cuMemImportFromShareableHandle(abi_vmm_handle *handle, void *os_handle, int type) {
    abi_result result =
        CALL_REAL(cuMemImportFromShareableHandle, (abi_vmm_handle *, void *, int), handle, os_handle, type);
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    struct cot_block block = {.key = *handle, .bytes = 0, .kind = COT_VMM, .references = 1};
    if (!cot_handle_hold(*handle)) cot_blocks_add(&block);
    return result;
}
