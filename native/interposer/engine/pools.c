/* Stream-ordered memory. A pool holds what it has reserved from the card, used or not, and the driver says how much
 * that is; so the charge of a pool is its reserved bytes, read back after every call that can change them. A request is
 * announced as if the pool had nothing left. */
#include <pthread.h>

#include "cot.h"

static struct cot_known_pool *find(abi_pool handle) {
    for (int i = 0; i < COT_MOST_POOLS; i++) {
        if (cot->pools.known[i].handle == handle) return &cot->pools.known[i];
    }
    return NULL;
}

static struct cot_known_pool *find_or_add(abi_pool handle, uint32_t card) {
    struct cot_known_pool *pool = find(handle);
    if (!pool && (pool = find(NULL))) *pool = (struct cot_known_pool){.handle = handle, .card = card};
    return pool;
}

static abi_result attribute(abi_pool pool, int which, uint64_t *value) {
    *value = 0;
    return CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, which, value);
}

/* Under the lock: makes the charge what the pool reserves now; where the driver does not say, `more` than it was.
 * False: it did not say. */
static bool read_back(struct cot_known_pool *pool, uint64_t more) {
    uint64_t before = pool->charged, now;
    bool said = attribute(pool->handle, ABI_POOL_RESERVED_CURRENT, &now) == ABI_SUCCESS;
    if (!said) now = before + more;
    pool->charged = now;
    cot_touch(pool->card);
    struct cot_slot_card *own = cot_own(pool->card);
    __atomic_fetch_add(&own->pool, now - before, __ATOMIC_RELAXED);
    if (now > before) cot_charge(pool->card, now - before);
    if (now < before) cot_release(pool->card, before - now);
    return said;
}

void cot_pools_trim(uint32_t card) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MOST_POOLS; i++) {
        if (!cot->pools.known[i].handle || cot->pools.known[i].card != card) continue;
        CALL_REAL(cuMemPoolTrimTo, (abi_pool, size_t), cot->pools.known[i].handle, 0);
        read_back(&cot->pools.known[i], 0);
    }
    pthread_mutex_unlock(&cot->pools.lock);
}

void cot_pools_forget(uint32_t card) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MOST_POOLS; i++) {
        if (!cot->pools.known[i].handle || cot->pools.known[i].card != card) continue;
        uint64_t charged = cot->pools.known[i].charged;
        cot->pools.known[i].charged = 0;
        __atomic_fetch_sub(&cot_own(card)->pool, charged, __ATOMIC_RELAXED);
        if (charged) cot_release(card, charged);
    }
    pthread_mutex_unlock(&cot->pools.lock);
}

bool cot_is_capturing(abi_stream stream) {
    int status = ABI_CAPTURE_NONE;
    return CALL_DRIVER("cuStreamIsCapturing", (abi_stream, int *), stream, &status) == ABI_SUCCESS &&
           status == ABI_CAPTURE_ACTIVE;
}

/* The device of a stream's context; default streams belong to the current one. */
static abi_result device_of(abi_stream stream, abi_device *device) {
    if ((uintptr_t)stream > (uintptr_t)ABI_STREAM_PER_THREAD) {
        abi_context context, popped;
        abi_result result = CALL_DRIVER("cuStreamGetCtx", (abi_stream, abi_context *), stream, &context);
        if (result != ABI_SUCCESS) return result;
        result = CALL_DRIVER("cuCtxPushCurrent", (abi_context), context);
        if (result != ABI_SUCCESS) return result;
        result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), device);
        CALL_DRIVER("cuCtxPopCurrent", (abi_context *), &popped);
        return result;
    }
    return CALL_DRIVER("cuCtxGetDevice", (abi_device *), device);
}

/* A pool gives memory of its own device, whatever stream orders it. One that nobody made here is some device's own. */
static uint32_t card_of_pool(abi_pool pool, abi_device otherwise) {
    pthread_mutex_lock(&cot->pools.lock);
    const struct cot_known_pool *known = pool ? find(pool) : NULL;
    uint32_t card = known ? known->card : COT_NO_CARD;
    pthread_mutex_unlock(&cot->pools.lock);
    if (known) return card;
    for (abi_device device = 0; device < (abi_device)COT_MAX_CARDS; device++) {
        abi_pool own;
        if (cot_card_of(device) != COT_NO_CARD &&
            CALL_DRIVER("cuDeviceGetDefaultMemPool", (abi_pool *, abi_device), &own, device) == ABI_SUCCESS &&
            own == pool)
            return cot_card_of(device);
    }
    return cot_card_of(otherwise);
}

/* Stream-ordered allocation from `pool` (NULL: the device's current one) by calling `real` with its own arguments. */
typedef abi_result (*alloc_call)(abi_devptr *, size_t, abi_stream);
typedef abi_result (*alloc_from_call)(abi_devptr *, size_t, abi_pool, abi_stream);

static abi_result call(void *real, bool from_pool, abi_devptr *pointer, size_t bytes, abi_pool pool,
                       abi_stream stream) {
    if (!real) return (abi_result)cot_missing();
    return from_pool ? ((alloc_from_call)real)(pointer, bytes, pool, stream)
                     : ((alloc_call)real)(pointer, bytes, stream);
}

static abi_result free_again(abi_devptr pointer, abi_stream stream) {
    return CALL_REAL(cuMemFreeAsync, (abi_devptr, abi_stream), pointer, stream);
}

static abi_result allocate(void *real, bool from_pool, abi_devptr *pointer, size_t bytes, abi_pool pool,
                           abi_stream stream) {
    abi_device device;
    void *context;
    uint32_t card;
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    /* Recorded, not run: the graph's memory is the graph's. */
    if (!pointer || bytes == 0 || cot_is_capturing(stream)) return call(real, from_pool, pointer, bytes, pool, stream);
    result = device_of(stream, &device);
    if (result == ABI_SUCCESS) result = cot_current(&card, &context);
    if (result != ABI_SUCCESS) return result;
    card = from_pool ? card_of_pool(pool, device) : cot_card_of(device);
    if (card == COT_NO_CARD) return ABI_ERROR_OUT_OF_MEMORY;
    abi_pool from = pool;
    if (!from_pool && CALL_DRIVER("cuDeviceGetMemPool", (abi_pool *, abi_device), &from, device) != ABI_SUCCESS)
        return ABI_ERROR_OUT_OF_MEMORY;

    struct cot_limits limits;
    cot_limits(card, &limits);
    uint64_t whole = (bytes + limits.granule_bytes - 1) / limits.granule_bytes * limits.granule_bytes, reserved;
    if (bytes > UINT64_MAX - limits.granule_bytes) whole = UINT64_MAX;
    reserved = whole;
    bool from_kept = false;
    if (!cot_reserve(card, reserved)) {
        /* The grant is full; what the pool keeps unused is charged already and may serve. */
        uint64_t kept, used;
        if (attribute(from, ABI_POOL_RESERVED_CURRENT, &kept) != ABI_SUCCESS ||
            attribute(from, ABI_POOL_USED_CURRENT, &used) != ABI_SUCCESS || kept < used || kept - used < bytes) {
            cot_deny(card);
            return ABI_ERROR_OUT_OF_MEMORY;
        }
        reserved = 0;
        from_kept = true;
    }
    result = call(real, from_pool, pointer, bytes, pool, stream);
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = find_or_add(from, card);
    uint64_t before = known ? known->charged : 0;
    if (known) read_back(known, result == ABI_SUCCESS ? whole : 0);
    bool grew = known && known->charged > before;
    pthread_mutex_unlock(&cot->pools.lock);
    cot_rollback(card, reserved); /* read_back has charged what it came to */
    if (result == ABI_SUCCESS && from_kept && grew) {
        free_again(*pointer, stream);
        cot_pools_trim(card);
        cot_deny(card);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

abi_result cot_cuMemAllocAsync(abi_devptr *pointer, size_t bytes, abi_stream stream) {
    return allocate(cot_real(COT_AT_cuMemAllocAsync), false, pointer, bytes, NULL, stream);
}
abi_result cot_cuMemAllocAsync_ptsz(abi_devptr *pointer, size_t bytes, abi_stream stream) {
    return allocate(cot_real(COT_AT_cuMemAllocAsync_ptsz), false, pointer, bytes, NULL, stream);
}
abi_result cot_cuMemAllocFromPoolAsync(abi_devptr *pointer, size_t bytes, abi_pool pool, abi_stream stream) {
    return allocate(cot_real(COT_AT_cuMemAllocFromPoolAsync), true, pointer, bytes, pool, stream);
}
abi_result cot_cuMemAllocFromPoolAsync_ptsz(abi_devptr *pointer, size_t bytes, abi_pool pool, abi_stream stream) {
    return allocate(cot_real(COT_AT_cuMemAllocFromPoolAsync_ptsz), true, pointer, bytes, pool, stream);
}

void cot_pools_read_back(void) {
    pthread_mutex_lock(&cot->pools.lock);
    for (int i = 0; i < COT_MOST_POOLS; i++) {
        if (cot->pools.known[i].handle && cot->pools.known[i].charged) read_back(&cot->pools.known[i], 0);
    }
    pthread_mutex_unlock(&cot->pools.lock);
}

/* A free gives memory to the pool; the pool gives it to the card at a later synchronisation, which the next read-back
 * sees (whoever asks what is free makes one), or the agent. */
static abi_result after_free(abi_result result) {
    if (result == ABI_SUCCESS && cot_attached()) cot_pools_read_back();
    return result;
}
abi_result cot_cuMemFreeAsync(abi_devptr pointer, abi_stream stream) {
    return after_free(CALL_REAL(cuMemFreeAsync, (abi_devptr, abi_stream), pointer, stream));
}
abi_result cot_cuMemFreeAsync_ptsz(abi_devptr pointer, abi_stream stream) {
    return after_free(CALL_REAL(cuMemFreeAsync_ptsz, (abi_devptr, abi_stream), pointer, stream));
}

abi_result cot_cuMemPoolCreate(abi_pool *out, const abi_pool_props *props) {
    abi_result result = CALL_REAL(cuMemPoolCreate, (abi_pool *, const abi_pool_props *), out, props);
    if (result != ABI_SUCCESS || !cot_attached() || props->location.type != ABI_LOCATION_DEVICE) return result;
    uint32_t card = cot_card_of(props->location.id);
    if (card == COT_NO_CARD) return result; /* nothing can be allocated from it */
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = find_or_add(*out, card);
    if (known) read_back(known, 0);
    pthread_mutex_unlock(&cot->pools.lock);
    return result;
}

abi_result cot_cuMemPoolDestroy(abi_pool pool) {
    abi_result result = CALL_REAL(cuMemPoolDestroy, (abi_pool), pool);
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = find(pool);
    if (known) {
        uint64_t charged = known->charged;
        uint32_t card = known->card;
        *known = (struct cot_known_pool){0};
        __atomic_fetch_sub(&cot_own(card)->pool, charged, __ATOMIC_RELAXED);
        if (charged) cot_release(card, charged);
    }
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
