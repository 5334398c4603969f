/* Memory by bytes, by IPC, and in pools. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker.h"

#define UNIT 512u

static uint64_t some_bytes(const struct step *step) {
    uint64_t number = step->random[1];
    switch (step->random[0] % 8) {
    case 0: return 1 + number % 4096;
    case 1: return 1 + number % (64u << 10);
    case 2:
    case 3: return 1 + number % (1u << 20);
    case 4: return PAGE * (1 + number % 8);
    case 5: return 1 + number % (48u << 20);
    default: return 1 + number % (8u << 20);
    }
}

static bool packed(int device, uint64_t bytes) {
    return bytes <= 1u << 20 && bytes < shared->granule[gpu_of[device]];
}

/* Is there free memory in a row beside what small requests of this context took? */
static bool has_gap(const struct lane *lane, int device, uint64_t bytes) {
    uint64_t granule = shared->granule[gpu_of[device]], units = (bytes + UNIT - 1) / UNIT;
    for (unsigned i = 0; i < lane->blocks.count; i++) {
        const struct block *first = &lane->blocks.at[i];
        if (first->kind != LINEAR || first->context != lane->current || !packed(device, first->bytes)) continue;
        uint64_t start = first->at / granule * granule, run = 0;
        for (uint64_t unit = 0; unit < granule / UNIT; unit++) {
            bool taken = false;
            for (unsigned k = 0; k < lane->blocks.count; k++) {
                const struct block *block = &lane->blocks.at[k];
                uint64_t at = start + unit * UNIT;
                if (at < block->at || at >= block->at + (block->bytes + UNIT - 1) / UNIT * UNIT) continue;
                unit = (block->at + block->bytes - 1 - start) / UNIT;
                taken = true;
                break;
            }
            run = taken ? 0 : run + 1;
            if (run >= units) return true;
        }
    }
    return false;
}

static bool granted_linear(struct lane *lane, abi_result result, uint64_t bytes) {
    int device = current_device(lane);
    uint64_t need = device < 0 ? 0 : whole(device, bytes);
    if (result == ABI_ERROR_OUT_OF_MEMORY && device >= 0 && packed(device, bytes) && has_gap(lane, device, bytes))
        need = 0;
    return granted(lane, result, device, need);
}

static void keep(struct lane *lane, abi_devptr at, uint64_t bytes, enum block_kind kind) {
    ADD(lane->blocks, (struct block){at, bytes, current_device(lane), lane->current, kind});
}

static abi_stream some_stream(const struct lane *lane, uint64_t number) {
    const struct stream *stream = ANY(lane->streams, number / 4);
    switch (number % 4) {
    case 0: return NULL;
    case 1: return ABI_STREAM_LEGACY;
    case 2: return ABI_STREAM_PER_THREAD;
    default: return stream ? stream->handle : NULL;
    }
}

void verb_alloc(struct lane *lane, const struct step *step) {
    abi_devptr at = 0;
    unsigned old = 0;
    uint64_t bytes = some_bytes(step);
    if (FULL(lane->blocks)) return;
    if (step->random[2] % 16 == 0) { /* the form of old: no address of the simulated GPU fits into it */
        lane->answer.result = CU("cuMemAlloc", (unsigned *, unsigned), &old, (unsigned)bytes);
        return;
    }
    abi_result result = CU("cuMemAlloc_v2", (abi_devptr *, size_t), &at, (size_t)bytes);
    if (granted_linear(lane, result, bytes)) keep(lane, at, bytes, LINEAR);
}

void verb_pitch(struct lane *lane, const struct step *step) {
    abi_devptr at = 0;
    size_t pitch = 0, width = 1 + step->random[0] % 5000, height = 1 + step->random[1] % 4000;
    if (FULL(lane->blocks)) return;
    abi_result result = CU("cuMemAllocPitch_v2", (abi_devptr *, size_t *, size_t, size_t, unsigned), &at, &pitch, width,
                           height, 4u << step->random[2] % 3);
    if (granted_linear(lane, result, (width + 511) / 512 * 512 * height)) keep(lane, at, pitch * height, LINEAR);
}

void verb_managed(struct lane *lane, const struct step *step) {
    abi_devptr at = 0;
    uint64_t bytes = some_bytes(step), piece = 64u << 10;
    if (FULL(lane->blocks)) return;
    abi_result result = CU("cuMemAllocManaged", (abi_devptr *, size_t, unsigned), &at, (size_t)bytes,
                           1u + (unsigned)(step->random[2] % 2));
    if (granted(lane, result, current_device(lane), (bytes + piece - 1) / piece * piece))
        keep(lane, at, bytes, MANAGED);
}

void verb_free(struct lane *lane, const struct step *step) {
    struct block *block = ANY(lane->blocks, step->random[0]);
    if (!block) return;
    lane->answer.result = block->kind == OPENED ? CU("cuIpcCloseMemHandle", (abi_devptr), block->at)
                                                : CU("cuMemFree_v2", (abi_devptr), block->at);
    if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->blocks, INDEX(lane->blocks, block));
}

/* The GPU has it back at a synchronization. */
void verb_free_ordered(struct lane *lane, const struct step *step) {
    struct block *block = ANY(lane->blocks, step->random[0]);
    abi_stream stream = some_stream(lane, step->random[1]);
    if (!block || block->kind != LINEAR) return;
    lane->answer.result = step->random[2] % 3 ? CU("cuMemFreeAsync", (abi_devptr, abi_stream), block->at, stream)
                                              : CU("cuMemFreeAsync_ptsz", (abi_devptr, abi_stream), block->at, stream);
    if (lane->answer.result != ABI_SUCCESS) return;
    lane->answer.stale = lane->ordered_left = true;
    REMOVE(lane->blocks, INDEX(lane->blocks, block));
}

/* What is no beginning of an allocation, or of another kind. */
void verb_free_wrong(struct lane *lane, const struct step *step) {
    const struct block *block = ANY(lane->blocks, step->random[0]);
    const struct range *range = ANY(lane->ranges, step->random[0]);
    abi_devptr at = step->random[1] % 3 == 0 && range ? range->at : block ? block->at + 3ull * UNIT : 512;
    for (unsigned i = 0; i < lane->blocks.count; i++) {
        if (lane->blocks.at[i].at == at) return;
    }
    if (lane->lanes > 1) at = 0; /* another lane's, perhaps */
    lane->answer.result = CU("cuMemFree_v2", (abi_devptr), at);
}

void verb_info(struct lane *lane, const struct step *step) {
    size_t left = 0, total = 0;
    int device = current_device(lane);
    (void)step;
    if (device < 0) return;
    lane->answer.result = CU("cuMemGetInfo_v2", (size_t *, size_t *), &left, &total);
    if (lane->answer.result != ABI_SUCCESS || worker_injected()) return;
    lane->answer.informed = true;
    lane->answer.gpu = (uint32_t)gpu_of[device];
    lane->answer.free_bytes = left;
    lane->answer.total_bytes = total;
    CU("cuDeviceTotalMem_v2", (size_t *, abi_device), &total, device);
    if (total != lane->answer.total_bytes && !worker_injected()) lane->answer.total_bytes = 0;
}

/* ---- IPC ---- */

void verb_share(struct lane *lane, const struct step *step) {
    const struct block *block = ANY(lane->blocks, step->random[0]);
    abi_ipc_handle handle;
    if (!block || block->kind != LINEAR || lane->lanes > 1) return;
    lane->answer.result = CU("cuIpcGetMemHandle", (abi_ipc_handle *, abi_devptr), &handle, block->at);
    if (lane->answer.result == ABI_SUCCESS)
        letter_put(step->random[1], IPC_LETTER, -1, block->bytes, handle.bytes, sizeof handle.bytes);
}

void verb_open(struct lane *lane, const struct step *step) {
    struct letter letter;
    int none;
    abi_ipc_handle handle;
    abi_devptr at = 0;
    if (FULL(lane->blocks) || lane->lanes > 1 || !letter_any(IPC_LETTER, step->random[0], &letter, &none)) return;
    memcpy(handle.bytes, letter.text, sizeof handle);
    lane->answer.result = step->random[1] % 2
                              ? CU("cuIpcOpenMemHandle_v2", (abi_devptr *, abi_ipc_handle, unsigned), &at, handle, 1u)
                              : CU("cuIpcOpenMemHandle", (abi_devptr *, abi_ipc_handle, unsigned), &at, handle, 1u);
    if (lane->answer.result == ABI_SUCCESS) keep(lane, at, letter.bytes, OPENED);
}

/* ---- pools ---- */

static int device_of_stream(const struct lane *lane, abi_stream handle) {
    for (unsigned i = 0; i < lane->streams.count; i++) {
        if (lane->streams.at[i].handle == handle) return lane->streams.at[i].device;
    }
    return current_device(lane);
}

static uint64_t attribute(abi_pool pool, int which) {
    uint64_t value = 0;
    CU("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, which, &value);
    return value;
}

void verb_pool_alloc(struct lane *lane, const struct step *step) {
    abi_stream stream = some_stream(lane, step->random[2]);
    const struct pool *pool = step->random[3] % 2 ? ANY(lane->pools, step->random[3] / 2) : NULL;
    int device = pool ? pool->device : device_of_stream(lane, stream);
    abi_devptr at = 0;
    abi_pool from = pool ? pool->handle : NULL;
    size_t bytes = some_bytes(step);
    bool per_thread = step->random[4] % 2;
    if (FULL(lane->pieces) || device < 0) return;
    if (!pool && CU("cuDeviceGetMemPool", (abi_pool *, abi_device), &from, device) != ABI_SUCCESS) return;
    typedef abi_result (*from_call)(abi_devptr *, size_t, abi_pool, abi_stream);
    typedef abi_result (*call)(abi_devptr *, size_t, abi_stream);
    abi_result result =
        pool ? ((from_call)driver_find(per_thread ? "cuMemAllocFromPoolAsync_ptsz" : "cuMemAllocFromPoolAsync"))(
                   &at, bytes, from, stream)
             : ((call)driver_find(per_thread ? "cuMemAllocAsync_ptsz" : "cuMemAllocAsync"))(&at, bytes, stream);
    if (result == ABI_ERROR_OUT_OF_MEMORY) { /* what it keeps in one piece is not for us to know */
        uint64_t kept = attribute(from, ABI_POOL_RESERVED_CURRENT) - attribute(from, ABI_POOL_USED_CURRENT);
        lane->answer.unjudged = kept >= bytes;
    }
    if (granted(lane, result, device, whole(device, bytes)))
        ADD(lane->pieces, (struct piece){.at = at, .device = device, .pool = from});
}

void verb_pool_free(struct lane *lane, const struct step *step) {
    struct piece *piece = ANY(lane->pieces, step->random[0]);
    abi_stream stream = some_stream(lane, step->random[1]);
    if (!piece) return;
    switch (step->random[2] % 3) {
    case 0: lane->answer.result = CU("cuMemFreeAsync", (abi_devptr, abi_stream), piece->at, stream); break;
    case 1: lane->answer.result = CU("cuMemFreeAsync_ptsz", (abi_devptr, abi_stream), piece->at, stream); break;
    default: lane->answer.result = CU("cuMemFree_v2", (abi_devptr), piece->at);
    }
    if (lane->answer.result != ABI_SUCCESS) return;
    if (piece->left) lane->answer.stale = true;
    REMOVE(lane->pieces, INDEX(lane->pieces, piece));
}

void verb_pool_create(struct lane *lane, const struct step *step) {
    int device = other_device(lane, step->random[0]);
    bool exportable = step->random[1] % 2;
    int types = exportable ? ABI_HANDLE_POSIX_FD : ABI_HANDLE_NONE;
    if (exportable && gpu_of[device] == FABRIC_GPU) types |= ABI_HANDLE_FABRIC;
    abi_pool_props props = {
        .alloc_type = ABI_ALLOCATION_PINNED, .handle_types = types, .location = {ABI_LOCATION_DEVICE, device}};
    abi_pool handle = NULL;
    if (FULL(lane->pools)) return;
    lane->answer.result = CU("cuMemPoolCreate", (abi_pool *, const abi_pool_props *), &handle, &props);
    if (lane->answer.result == ABI_SUCCESS)
        ADD(lane->pools, (struct pool){.handle = handle, .device = device, .exportable = exportable});
}

void verb_pool_destroy(struct lane *lane, const struct step *step) {
    struct pool *pool = ANY(lane->pools, step->random[0]);
    if (!pool || pool->lent) return;
    abi_pool handle = pool->handle;
    lane->answer.result = CU("cuMemPoolDestroy", (abi_pool), handle);
    if (lane->answer.result != ABI_SUCCESS) return;
    REMOVE(lane->pools, INDEX(lane->pools, pool));
    lane->pool_left = true;
    for (unsigned i = lane->pieces.count; i-- > 0;) {
        if (lane->pieces.at[i].pool == handle) lane->pieces.at[i].left = true;
    }
}

/* How much it keeps, which one is the device's own, or another device's own named as a pool. */
void verb_pool_set(struct lane *lane, const struct step *step) {
    struct pool *pool = ANY(lane->pools, step->random[0]);
    uint64_t keep_bytes = step->random[1] % 2 ? UINT64_MAX : step->random[1] % (16u << 20);
    int device = (int)(step->random[2] % GPUS);
    abi_pool handle = NULL;
    if (step->random[3] % 3 == 0 && !FULL(lane->pools)) {
        if (CU("cuDeviceGetDefaultMemPool", (abi_pool *, abi_device), &handle, device) != ABI_SUCCESS) return;
        for (unsigned i = 0; i < lane->pools.count; i++) {
            if (lane->pools.at[i].handle == handle) return;
        }
        ADD(lane->pools, (struct pool){.handle = handle, .device = device, .lent = true});
    } else if (pool && step->random[3] % 3 == 1 && lane->lanes == 1 && !pool->imported) {
        lane->answer.result = CU("cuDeviceSetMemPool", (abi_device, abi_pool), pool->device, pool->handle);
    } else if (pool) {
        lane->answer.result = CU("cuMemPoolSetAttribute", (abi_pool, int, void *), pool->handle,
                                 (int)ABI_POOL_RELEASE_THRESHOLD, (void *)&keep_bytes);
    }
}

void verb_pool_trim(struct lane *lane, const struct step *step) {
    const struct pool *pool = ANY(lane->pools, step->random[0]);
    abi_pool handle = NULL;
    if (pool) handle = pool->handle;
    else if (CU("cuDeviceGetDefaultMemPool", (abi_pool *, abi_device), &handle, (int)(step->random[0] % GPUS))) return;
    lane->answer.result = CU("cuMemPoolTrimTo", (abi_pool, size_t), handle, (size_t)(step->random[1] % (32u << 20)));
}

/* What a pool and a pointer into it are for others: with a descriptor, or with what a fabric handle is. */
struct pooled {
    abi_pool_pointer pointer;
    unsigned char fabric[64];
};

void verb_pool_share(struct lane *lane, const struct step *step) {
    const struct piece *piece = ANY(lane->pieces, step->random[0]);
    struct pooled out = {0};
    int fd = -1, type = step->random[2] % 2 ? ABI_HANDLE_FABRIC : ABI_HANDLE_POSIX_FD;
    if (!piece || !piece->pool || piece->left || lane->lanes > 1) return;
    void *to = type == ABI_HANDLE_FABRIC ? (void *)out.fabric : &fd;
    lane->answer.result = CU("cuMemPoolExportToShareableHandle", (void *, abi_pool, int, unsigned long long), to,
                             piece->pool, type, 0ull);
    if (lane->answer.result != ABI_SUCCESS) return;
    lane->answer.result = CU("cuMemPoolExportPointer", (abi_pool_pointer *, abi_devptr), &out.pointer, piece->at);
    if (lane->answer.result == ABI_SUCCESS) letter_put(step->random[1], POOL_LETTER, fd, 0, &out, sizeof out);
    else if (fd >= 0) close(fd);
}

void verb_pool_open(struct lane *lane, const struct step *step) {
    struct letter letter;
    struct pooled from;
    abi_pool pool = NULL;
    abi_devptr at = 0;
    int fd = -1;
    if (FULL(lane->pieces) || FULL(lane->pools) || lane->lanes > 1) return;
    if (!letter_any(POOL_LETTER, step->random[0], &letter, &fd)) return;
    bool by_file = letter.fd >= 0;
    /* Imports have to be freed before the memory is, which no process here can do for another. In the process that owns
     * the pool the import keeps the memory on the GPU, and the ledger has it no more once the pool has given it back.
     */
    if (letter.pid == getpid()) {
        if (by_file) close(fd);
        return;
    }
    memcpy(&from, letter.text, sizeof from);
    lane->answer.result =
        CU("cuMemPoolImportFromShareableHandle", (abi_pool *, void *, int, unsigned long long), &pool,
           by_file ? (void *)(intptr_t)fd : from.fabric, by_file ? ABI_HANDLE_POSIX_FD : ABI_HANDLE_FABRIC, 0ull);
    if (by_file) close(fd);
    if (lane->answer.result != ABI_SUCCESS) return;
    ADD(lane->pools, (struct pool){.handle = pool, .device = -1, .imported = true});
    lane->answer.result =
        CU("cuMemPoolImportPointer", (abi_devptr *, abi_pool, abi_pool_pointer *), &at, pool, &from.pointer);
    /* It ends with the context that was current. */
    if (lane->answer.result == ABI_SUCCESS && !FULL(lane->blocks)) keep(lane, at, 0, VIEW);
}

/* ---- streams ---- */

/* Pools give back what they do not use; the ledger hears of it with the next change of theirs. */
void verb_synchronize(struct lane *lane, const struct step *step) {
    abi_stream stream = some_stream(lane, step->random[1]);
    lane->answer.stale = true;
    switch (step->random[0] % 3) {
    case 0: lane->answer.result = CU("cuCtxSynchronize", (void)); break;
    case 1: lane->answer.result = CU("cuStreamSynchronize", (abi_stream), stream); break;
    default: lane->answer.result = CU("cuStreamSynchronize_ptsz", (abi_stream), stream);
    }
    settle(lane);
}

void verb_stream(struct lane *lane, const struct step *step) {
    struct stream *old = ANY(lane->streams, step->random[0]);
    abi_stream handle = NULL;
    if (old && (FULL(lane->streams) || step->random[1] % 4 == 0)) {
        lane->answer.result = CU("cuStreamDestroy_v2", (abi_stream), old->handle);
        if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->streams, INDEX(lane->streams, old));
        return;
    }
    lane->answer.result = CU("cuStreamCreate", (abi_stream *, unsigned), &handle, (unsigned)(step->random[2] % 2));
    if (lane->answer.result == ABI_SUCCESS)
        ADD(lane->streams, (struct stream){handle, lane->current, current_device(lane)});
}
