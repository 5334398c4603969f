/* Stream-ordered memory. A pool keeps what it has reserved from the GPU, used or not, and the driver reports how
 * much that is: the charge of a pool is its reserved bytes, read back after every call that can change them. A
 * request is announced as if the pool had nothing unused.
 *
 * A destroyed pool keeps its memory until all of it is freed in stream order, and the driver reports nothing of it
 * any more. So if a pool still has memory when the program destroys it, it is only marked: it is still read back
 * and trimmed, and destroyed once it has none. */
#include <pthread.h>

#include "../../accounting/quota.h"
#include "../../contexts/current.h"
#include "../../core/driver_calls.h"
#include "../../launch/capture.h"
#include "pools.h"

/* Marks the handle of a pool that the program has destroyed and that still has memory: no address has this bit. */
#define DESTROYED (1ull << 63)

static bool is_destroyed(const struct cot_known_pool *pool) {
    return (uintptr_t)pool->handle & DESTROYED;
}

static abi_pool handle_of(const struct cot_known_pool *pool) {
    return (abi_pool)((uintptr_t)pool->handle & ~DESTROYED);
}

static struct cot_known_pool *find(abi_pool handle) {
    for (int i = 0; i < COT_MAX_POOLS; i++) {
        if (handle_of(&cot->pools.known[i]) == handle) return &cot->pools.known[i];
    }
    return NULL;
}

static struct cot_known_pool *find_or_add(abi_pool handle, uint32_t gpu) {
    struct cot_known_pool *pool = find(handle);
    if (!pool && (pool = find(NULL))) *pool = (struct cot_known_pool){.handle = handle, .gpu = gpu};
    return pool;
}

/* Under the lock. */
static void forget_pool(struct cot_known_pool *known) {
    struct cot_known_pool old = *known;
    *known = (struct cot_known_pool){0};
    __atomic_fetch_sub(&cot_own_row(old.gpu)->pool, old.charged, __ATOMIC_RELAXED);
    if (old.charged) cot_release(old.gpu, old.charged);
}

/* Under the lock: makes the charge what the pool has reserved; if the driver does not say, adds `more` to it. */
static void read_back(struct cot_known_pool *pool, uint64_t more) {
    uint64_t before = pool->charged, now = 0;
    if (CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), handle_of(pool), ABI_POOL_RESERVED_CURRENT,
                    &now) != ABI_SUCCESS)
        now = before + more;
    pool->charged = now;
    struct cot_slot_gpu *own = cot_own_row(pool->gpu);
    __atomic_fetch_add(&own->pool, now - before, __ATOMIC_RELAXED);
    if (now > before) cot_charge(pool->gpu, now - before);
    if (now < before) cot_release(pool->gpu, before - now);
}

/* Under the lock: the pool gives back what it does not use. Allowed during a capture of this thread. */
static void trim(struct cot_known_pool *pool) {
    int mode = ABI_CAPTURE_RELAXED;
    if (CALL_DRIVER("cuThreadExchangeStreamCaptureMode", (int *), &mode) != ABI_SUCCESS) return;
    CALL_REAL(cuMemPoolTrimTo, (abi_pool, size_t), handle_of(pool), 0);
    CALL_DRIVER("cuThreadExchangeStreamCaptureMode", (int *), &mode);
    read_back(pool, 0);
}

/* Under the lock, for a pool that the program has destroyed. */
static void try_to_destroy(struct cot_known_pool *pool) {
    trim(pool);
    if (pool->charged == 0 && CALL_REAL(cuMemPoolDestroy, (abi_pool), handle_of(pool)) == ABI_SUCCESS)
        forget_pool(pool);
}

void cot_pools_trim(uint32_t gpu) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MAX_POOLS; i++) {
        struct cot_known_pool *known = &cot->pools.known[i];
        if (!known->handle || known->gpu != gpu) continue;
        if (is_destroyed(known)) try_to_destroy(known);
        else trim(known);
    }
    pthread_mutex_unlock(&cot->pools.lock);
}

/* The device of a stream's context. Default streams belong to the current context. */
static abi_result device_of(abi_stream stream, abi_device *device) {
    if ((uintptr_t)stream > (uintptr_t)ABI_STREAM_PER_THREAD) {
        abi_context context;
        abi_result result = CALL_DRIVER("cuStreamGetCtx", (abi_stream, abi_context *), stream, &context);
        if (result != ABI_SUCCESS) return result;
        result = CALL_DRIVER("cuCtxPushCurrent_v2", (abi_context), context);
        if (result != ABI_SUCCESS) return result;
        result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), device);
        cot_context_pop();
        return result;
    }
    return CALL_DRIVER("cuCtxGetDevice", (abi_device *), device);
}

/* A failing query is repeated once. */
static abi_result default_pool(abi_device device, abi_pool *pool) {
    abi_result result = ABI_ERROR_UNKNOWN;
    for (int tries = 0; tries < 2 && result != ABI_SUCCESS; tries++)
        result = CALL_DRIVER("cuDeviceGetDefaultMemPool", (abi_pool *, abi_device), pool, device);
    return result;
}

/* A pool allocates on its own device, whatever stream orders it. An unknown pool may be some device's default pool.
 * If the driver does not say which, its error is the answer, as another GPU would be charged otherwise. */
static abi_result gpu_of_pool(abi_pool pool, abi_device otherwise, uint32_t *gpu) {
    pthread_mutex_lock(&cot->pools.lock);
    const struct cot_known_pool *known = pool ? find(pool) : NULL;
    if (known) *gpu = known->gpu;
    pthread_mutex_unlock(&cot->pools.lock);
    if (known) return ABI_SUCCESS;
    *gpu = cot_gpu_of(otherwise);
    for (abi_device device = 0; device < (abi_device)COT_MAX_GPUS; device++) {
        abi_pool own = NULL;
        if (cot_gpu_of(device) == COT_NO_GPU) continue;
        abi_result result = default_pool(device, &own);
        if (result != ABI_SUCCESS && result != ABI_ERROR_NOT_SUPPORTED) return result;
        if (result != ABI_SUCCESS || own != pool) continue;
        *gpu = cot_gpu_of(device);
        break;
    }
    return ABI_SUCCESS;
}

/* Stream-ordered allocation from `pool` (NULL: the device's current one) by `real`. */
typedef abi_result (*alloc_call)(abi_devptr *, size_t, abi_stream);
typedef abi_result (*alloc_from_call)(abi_devptr *, size_t, abi_pool, abi_stream);

static abi_result call(void *real, bool from_pool, abi_devptr *pointer, size_t bytes, abi_pool pool,
                       abi_stream stream) {
    if (!real) return (abi_result)cot_missing();
    return from_pool ? ((alloc_from_call)real)(pointer, bytes, pool, stream)
                     : ((alloc_call)real)(pointer, bytes, stream);
}

static abi_result allocate(void *real, bool from_pool, abi_devptr *pointer, size_t bytes, abi_pool pool,
                           abi_stream stream) {
    abi_device device;
    void *context;
    uint32_t gpu;
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    /* During a capture it is recorded, and belongs to the graph. */
    if (!pointer || bytes == 0 || cot_is_capturing(stream)) return call(real, from_pool, pointer, bytes, pool, stream);
    result = device_of(stream, &device);
    if (result == ABI_SUCCESS) result = cot_current_context(&gpu, &context);
    if (result != ABI_SUCCESS) return result;
    gpu = cot_gpu_of(device);
    if (from_pool) result = gpu_of_pool(pool, device, &gpu);
    if (result != ABI_SUCCESS) return result;
    if (gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    abi_pool from = pool;
    if (!from_pool) result = CALL_DRIVER("cuDeviceGetMemPool", (abi_pool *, abi_device), &from, device);
    if (result != ABI_SUCCESS) return result; /* not supported: the device has no pools */

    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    uint64_t whole = (bytes + limits.granule_bytes - 1) / limits.granule_bytes * limits.granule_bytes;
    if (bytes > UINT64_MAX - limits.granule_bytes) whole = UINT64_MAX;
    /* What the pool keeps unused is charged already, but it may not serve in one piece: then the pool grows. */
    if (!cot_reserve(gpu, whole)) {
        cot_count_denied(gpu);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    result = call(real, from_pool, pointer, bytes, pool, stream);
    cot_mark_changed(gpu); /* the pool may have grown by as much as it gave back unnoticed */
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = find_or_add(from, gpu);
    if (known) read_back(known, result == ABI_SUCCESS ? whole : 0);
    pthread_mutex_unlock(&cot->pools.lock);
    cot_rollback(gpu, whole); /* read_back has charged it */
    return result;
}

abi_result cot_cuMemAllocAsync(abi_devptr *pointer, size_t bytes, abi_stream stream) {
    return allocate(cot_real(COT_REAL_cuMemAllocAsync), false, pointer, bytes, NULL, stream);
}
abi_result cot_cuMemAllocAsync_ptsz(abi_devptr *pointer, size_t bytes, abi_stream stream) {
    return allocate(cot_real(COT_REAL_cuMemAllocAsync_ptsz), false, pointer, bytes, NULL, stream);
}
abi_result cot_cuMemAllocFromPoolAsync(abi_devptr *pointer, size_t bytes, abi_pool pool, abi_stream stream) {
    return allocate(cot_real(COT_REAL_cuMemAllocFromPoolAsync), true, pointer, bytes, pool, stream);
}
abi_result cot_cuMemAllocFromPoolAsync_ptsz(abi_devptr *pointer, size_t bytes, abi_pool pool, abi_stream stream) {
    return allocate(cot_real(COT_REAL_cuMemAllocFromPoolAsync_ptsz), true, pointer, bytes, pool, stream);
}

void cot_pools_read_back(void) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MAX_POOLS; i++) {
        struct cot_known_pool *known = &cot->pools.known[i];
        if (!known->handle) continue;
        if (is_destroyed(known)) try_to_destroy(known);
        else if (known->charged) read_back(known, 0);
    }
    pthread_mutex_unlock(&cot->pools.lock);
}

void cot_pools_end(uint32_t gpu) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MAX_POOLS; i++) {
        struct cot_known_pool *known = &cot->pools.known[i];
        if (known->handle && is_destroyed(known) && known->gpu == gpu) forget_pool(known);
    }
    pthread_mutex_unlock(&cot->pools.lock);
}

/* A free returns memory to the pool. The pool returns it to the GPU at a later synchronization, which the next
 * read-back or the agent sees. */
#define FREE(symbol)                                                                      \
    abi_result cot_##symbol(abi_devptr pointer, abi_stream stream) {                      \
        abi_result result = CALL_REAL(symbol, (abi_devptr, abi_stream), pointer, stream); \
        if (result == ABI_SUCCESS && cot_attached()) cot_pools_read_back();               \
        return result;                                                                    \
    }
FREE(cuMemFreeAsync)
FREE(cuMemFreeAsync_ptsz)

abi_result cot_cuMemPoolCreate(abi_pool *out, const abi_pool_props *props) {
    /* A managed pool may name no location: allocations from it are charged to the GPU of the stream. */
    bool on_gpu =
        props && cot_attached() && props->location.type != ABI_LOCATION_NONE && !cot_is_host_location(&props->location);
    uint32_t gpu = COT_NO_GPU; /* not granted: nothing can be allocated from the pool */
    abi_result found = on_gpu ? cot_find_gpu_of_location(&props->location, &gpu) : ABI_SUCCESS;
    if (found != ABI_SUCCESS && found != ABI_ERROR_OUT_OF_MEMORY) return found;
    abi_result result = CALL_REAL(cuMemPoolCreate, (abi_pool *, const abi_pool_props *), out, props);
    if (result != ABI_SUCCESS || gpu == COT_NO_GPU) return result;
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = find(*out);
    if (known) forget_pool(known); /* of a pool that ended unnoticed */
    known = find_or_add(*out, gpu);
    if (known) read_back(known, 0);
    pthread_mutex_unlock(&cot->pools.lock);
    return result;
}

/* Under the lock: the program destroys a pool that still has memory. Does what the driver would do, except for the
 * end; first checks whether the driver would refuse, as for a device's default pool. */
static abi_result mark_destroyed(struct cot_known_pool *pool) {
    uint64_t keep = 0;
    abi_pool handle = handle_of(pool);
    for (abi_device device = 0; device < (abi_device)COT_MAX_GPUS; device++) {
        abi_pool own = NULL, current = NULL;
        if (cot_gpu_of(device) != pool->gpu) continue;
        abi_result result = default_pool(device, &own);
        if (result != ABI_SUCCESS) return result;
        if (own == handle) return CALL_REAL(cuMemPoolDestroy, (abi_pool), handle);
        if (CALL_DRIVER("cuDeviceGetMemPool", (abi_pool *, abi_device), &current, device) == ABI_SUCCESS &&
            current == handle)
            CALL_DRIVER("cuDeviceSetMemPool", (abi_device, abi_pool), device, own);
    }
    CALL_DRIVER("cuMemPoolSetAttribute", (abi_pool, int, void *), handle, ABI_POOL_RELEASE_THRESHOLD, &keep);
    pool->handle = (abi_pool)((uintptr_t)handle | DESTROYED);
    return ABI_SUCCESS;
}

/* Under the lock throughout, as the handle may be reused for a new pool of another thread. */
static abi_result destroy(struct cot_known_pool *pool) {
    if (is_destroyed(pool)) return ABI_ERROR_INVALID_VALUE;
    trim(pool);
    if (pool->charged) return mark_destroyed(pool);
    abi_result result = CALL_REAL(cuMemPoolDestroy, (abi_pool), handle_of(pool));
    if (result == ABI_SUCCESS) forget_pool(pool);
    return result;
}

abi_result cot_cuMemPoolDestroy(abi_pool pool) {
    if (!pool || !cot_attached()) return CALL_REAL(cuMemPoolDestroy, (abi_pool), pool);
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = find(pool);
    abi_result result = known ? destroy(known) : CALL_REAL(cuMemPoolDestroy, (abi_pool), pool);
    pthread_mutex_unlock(&cot->pools.lock);
    return result;
}

abi_result cot_cuMemPoolTrimTo(abi_pool pool, size_t keep) {
    abi_result result = CALL_REAL(cuMemPoolTrimTo, (abi_pool, size_t), pool, keep);
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = pool ? find(pool) : NULL;
    if (known) read_back(known, 0);
    pthread_mutex_unlock(&cot->pools.lock);
    return result;
}
