/* Memory by handle. Physical memory is charged when it is created and lives as long as any handle or mapping of it
 * does, so references are counted for both; memory that another process owns is tracked at no charge. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

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

/* ---- memory that comes back to the process that exported it ---- */

/* The driver does not tell that an imported handle is memory that this process has already, so the exported file is
 * marked: who would get a signal of it, and which. Both belong to the open file, whatever descriptor leads to it, and
 * mean nothing as long as nobody asks for signals. A later export takes over the mark of the 64th before it. */

/* A handle that has ended may be another's now. */
static void unmark(abi_vmm_handle handle) {
    if (atomic_load_explicit(&cot->marks.next, memory_order_relaxed) == 0) return;
    pthread_mutex_lock(&cot->marks.lock);
    for (uint32_t i = 0; i < COT_MARKS; i++) {
        if (cot->marks.handle[i] == handle) cot->marks.handle[i] = 0;
    }
    pthread_mutex_unlock(&cot->marks.lock);
}

void cot_handle_drop(abi_vmm_handle handle) {
    struct cot_block block;
    uint32_t left;
    while (handle && cot_blocks_refer(handle, COT_VMM, -1, &block, &left) && left == 0) {
        unmark(handle);
        if (block.bytes) cot_release(block.card, block.bytes);
        handle = block.root;
    }
}

bool cot_handle_hold(abi_vmm_handle handle) {
    struct cot_block block;
    uint32_t left;
    return cot_blocks_refer(handle, COT_VMM, 1, &block, &left);
}

/* One more handle: of memory that is `root`, held by the caller, or of another process's (0), which costs nothing. */
static void add_alias(abi_vmm_handle handle, abi_vmm_handle root) {
    struct cot_block block = {.key = handle, .kind = COT_VMM, .references = 1, .root = root};
    if (!cot_blocks_add(&block) && root) cot_handle_drop(root);
}

static void mark(int file, abi_vmm_handle handle) {
    pthread_mutex_lock(&cot->marks.lock);
    uint32_t which = cot->marks.next++ % COT_MARKS;
    cot->marks.handle[which] = handle;
    pthread_mutex_unlock(&cot->marks.lock);
    if (fcntl(file, F_SETSIG, (int)which + 1) == 0) fcntl(file, F_SETOWN, getpid());
}

abi_vmm_handle cot_handle_of_file(int file) {
    abi_vmm_handle handle = 0;
    int which = fcntl(file, F_GETOWN) == getpid() ? fcntl(file, F_GETSIG) : 0;
    if (which < 1 || which > (int)COT_MARKS) return 0;
    pthread_mutex_lock(&cot->marks.lock);
    handle = cot->marks.handle[which - 1];
    pthread_mutex_unlock(&cot->marks.lock);
    return handle && cot_handle_hold(handle) ? handle : 0;
}

abi_result cot_cuMemExportToShareableHandle(void *out, abi_vmm_handle handle, int type, unsigned long long flags) {
    abi_result result = CALL_REAL(cuMemExportToShareableHandle, (void *, abi_vmm_handle, int, unsigned long long), out,
                                  handle, type, flags);
    if (result == ABI_SUCCESS && type == ABI_HANDLE_POSIX_FD && cot_attached()) mark(*(const int *)out, handle);
    return result;
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
    if (result != ABI_SUCCESS || !cot_attached() || cot_handle_hold(*handle)) return result;
    /* The driver may answer with another handle than the one that was mapped; both stand for one memory. */
    if (mapping_at((abi_devptr)(uintptr_t)address, &known) && cot_handle_hold(known)) add_alias(*handle, known);
    return result;
}

abi_result cot_cuMemImportFromShareableHandle(abi_vmm_handle *handle, void *os_handle, int type) {
    abi_result result =
        CALL_REAL(cuMemImportFromShareableHandle, (abi_vmm_handle *, void *, int), handle, os_handle, type);
    if (result != ABI_SUCCESS || !cot_attached() || cot_handle_hold(*handle)) return result;
    add_alias(*handle, type == ABI_HANDLE_POSIX_FD ? cot_handle_of_file((int)(intptr_t)os_handle) : 0);
    return result;
}
