/* Pools of stream-ordered memory. A pool keeps what it has reserved from the GPU, used or not, and the driver reports
 * how much that is: the charge of a pool is its reserved bytes, read back after every call that can change them. Pools
 * of host memory are not charged.
 *
 * A destroyed pool keeps its memory until all of it is freed in stream order, and the driver reports nothing of it
 * any more. So if a pool still has memory when the program destroys it, it is only marked: it is still read back
 * and trimmed, and destroyed once it has none. */
#include <pthread.h>

#include "../../accounting/quota.h"
#include "../../core/driver_calls.h"
#include "pools.h"

/* Marks the handle of a pool that the program has destroyed and that still has memory: no address has this bit. */
#define DESTROYED (1ull << 63)

static bool is_destroyed(const struct cot_known_pool *pool) {
    return (uintptr_t)pool->handle & DESTROYED;
}

static abi_pool handle_of(const struct cot_known_pool *pool) {
    return (abi_pool)((uintptr_t)pool->handle & ~DESTROYED);
}

struct cot_known_pool *cot_pool_find(abi_pool handle) {
    for (int i = 0; i < COT_MAX_POOLS; i++) {
        if (handle_of(&cot->pools.known[i]) == handle) return &cot->pools.known[i];
    }
    return NULL;
}

static bool is_managed(abi_pool pool) {
    int type = ABI_ALLOCATION_PINNED;
    CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, ABI_POOL_ALLOCATION_TYPE, &type);
    return type == ABI_ALLOCATION_MANAGED;
}

struct cot_known_pool *cot_pool_find_or_add(abi_pool handle, uint32_t gpu) {
    struct cot_known_pool *pool = cot_pool_find(handle);
    if (!pool && (pool = cot_pool_find(NULL)))
        *pool = (struct cot_known_pool){.handle = handle, .gpu = gpu, .managed = is_managed(handle)};
    return pool;
}

/* Where its charge is counted. The driver reports managed memory for no process, and the agent compares its figures
 * with the rest: what is held, without `managed`. */
static uint64_t *part_of(const struct cot_known_pool *pool) {
    struct cot_slot_gpu *own = cot_own_row(pool->gpu);
    return pool->managed ? &own->managed : &own->pool;
}

abi_result cot_pool_default(abi_device device, abi_pool *pool) {
    abi_result result = ABI_ERROR_UNKNOWN;
    for (int tries = 0; tries < 2 && result != ABI_SUCCESS; tries++)
        result = CALL_DRIVER("cuDeviceGetDefaultMemPool", (abi_pool *, abi_device), pool, device);
    return result;
}

/* Under the lock. */
static void forget_pool(struct cot_known_pool *known) {
    struct cot_known_pool old = *known;
    *known = (struct cot_known_pool){0};
    __atomic_fetch_sub(part_of(&old), old.charged, __ATOMIC_RELAXED);
    if (old.charged) cot_release(old.gpu, old.charged);
}

void cot_pool_read_back(struct cot_known_pool *pool, uint64_t more) {
    uint64_t before = pool->charged, now = 0;
    if (CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), handle_of(pool), ABI_POOL_RESERVED_CURRENT,
                    &now) != ABI_SUCCESS)
        now = before + more;
    pool->charged = now;
    __atomic_fetch_add(part_of(pool), now - before, __ATOMIC_RELAXED);
    if (now > before) cot_charge(pool->gpu, now - before);
    if (now < before) cot_release(pool->gpu, before - now);
}

void cot_pool_trim(struct cot_known_pool *pool, uint64_t keep, abi_devptr unwanted) {
    int mode = ABI_CAPTURE_RELAXED;
    if (CALL_DRIVER("cuThreadExchangeStreamCaptureMode", (int *), &mode) != ABI_SUCCESS) return;
    if (unwanted) CALL_REAL(cuMemFree_v2, (abi_devptr), unwanted);
    CALL_REAL(cuMemPoolTrimTo, (abi_pool, size_t), handle_of(pool), keep);
    CALL_DRIVER("cuThreadExchangeStreamCaptureMode", (int *), &mode);
    cot_holes_drop(handle_of(pool));
    cot_pool_read_back(pool, 0);
}

/* Under the lock, for a pool that the program has destroyed. */
static void try_to_destroy(struct cot_known_pool *pool) {
    cot_pool_trim(pool, 0, 0);
    if (pool->charged == 0 && CALL_REAL(cuMemPoolDestroy, (abi_pool), handle_of(pool)) == ABI_SUCCESS)
        forget_pool(pool);
}

void cot_pools_trim(uint32_t gpu) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MAX_POOLS; i++) {
        struct cot_known_pool *known = &cot->pools.known[i];
        if (!known->handle || known->gpu != gpu) continue;
        if (is_destroyed(known)) try_to_destroy(known);
        else cot_pool_trim(known, 0, 0);
    }
    pthread_mutex_unlock(&cot->pools.lock);
}

void cot_pools_read_back(void) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MAX_POOLS; i++) {
        struct cot_known_pool *known = &cot->pools.known[i];
        if (!known->handle) continue;
        if (is_destroyed(known)) try_to_destroy(known);
        else if (known->charged) cot_pool_read_back(known, 0);
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

/* ---- pools of host memory ---- */

/* Some of them. A cache: drivers of CUDA 13.0 and later say where a pool is. Managed memory that is preferred on the
 * host can be moved to the GPU, and is none of it. */
static abi_pool host_pools[64];

/* Under the lock. */
static abi_pool *find_host(abi_pool pool) {
    for (size_t i = 0; i < sizeof host_pools / sizeof *host_pools; i++) {
        if (host_pools[i] == pool) return &host_pools[i];
    }
    return NULL;
}

static void add_host(abi_pool pool) {
    abi_pool *place = find_host(pool);
    if (!place && (place = find_host(NULL))) *place = pool;
}

bool cot_pool_is_on_host(abi_pool pool) {
    abi_location location = {0};
    pthread_mutex_lock(&cot->pools.lock);
    bool known = !pool || cot_pool_find(pool), on_host = !known && find_host(pool);
    if (!known && !on_host &&
        CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, ABI_POOL_LOCATION_TYPE, &location.type) ==
            ABI_SUCCESS &&
        cot_is_host_location(&location) && !is_managed(pool)) {
        on_host = true;
        add_host(pool);
    }
    pthread_mutex_unlock(&cot->pools.lock);
    return on_host;
}

/* ---- creation and destruction ---- */

abi_result cot_cuMemPoolCreate(abi_pool *out, const abi_pool_props *props) {
    bool away = props && cot_is_host_location(&props->location);
    bool on_host = away && props->alloc_type != ABI_ALLOCATION_MANAGED;
    /* A managed pool may name no location, or the host as the preferred one: allocations from it are charged to the
     * GPU of the stream. */
    bool on_gpu = props && cot_attached() && props->location.type != ABI_LOCATION_NONE && !away;
    uint32_t gpu = COT_NO_GPU; /* not granted: nothing can be allocated from the pool */
    abi_result found = on_gpu ? cot_find_gpu_of_location(&props->location, &gpu) : ABI_SUCCESS;
    if (found == ABI_ERROR_NOT_SUPPORTED) return found; /* a place on an unknown GPU */
    abi_result result = CALL_REAL(cuMemPoolCreate, (abi_pool *, const abi_pool_props *), out, props);
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = cot_pool_find(*out);
    abi_pool *host = find_host(*out);
    if (known) forget_pool(known); /* of a pool that ended unnoticed */
    if (host) *host = NULL;
    if (on_host) add_host(*out);
    known = gpu == COT_NO_GPU ? NULL : cot_pool_find_or_add(*out, gpu);
    if (known) cot_pool_read_back(known, 0);
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
        abi_result result = cot_pool_default(device, &own);
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
    cot_pool_trim(pool, 0, 0);
    if (pool->charged) return mark_destroyed(pool);
    abi_result result = CALL_REAL(cuMemPoolDestroy, (abi_pool), handle_of(pool));
    if (result == ABI_SUCCESS) forget_pool(pool);
    return result;
}

abi_result cot_cuMemPoolDestroy(abi_pool pool) {
    if (!pool || !cot_attached()) return CALL_REAL(cuMemPoolDestroy, (abi_pool), pool);
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = cot_pool_find(pool);
    abi_pool *host = find_host(pool);
    abi_result result = known ? destroy(known) : CALL_REAL(cuMemPoolDestroy, (abi_pool), pool);
    if (host && result == ABI_SUCCESS) *host = NULL;
    pthread_mutex_unlock(&cot->pools.lock);
    return result;
}

abi_result cot_cuMemPoolTrimTo(abi_pool pool, size_t keep) {
    abi_result result = CALL_REAL(cuMemPoolTrimTo, (abi_pool, size_t), pool, keep);
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = pool ? cot_pool_find(pool) : NULL;
    if (pool) cot_holes_drop(pool);
    if (known) cot_pool_read_back(known, 0);
    pthread_mutex_unlock(&cot->pools.lock);
    return result;
}
