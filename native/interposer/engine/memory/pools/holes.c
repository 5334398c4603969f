/* Pieces that pools keep unused, where the grant may have no room for another one. The driver says how much a pool
 * keeps, but not whether it is in one piece, nor what it grows by if it is not. What was allocated in one piece and
 * freed is a piece, for requests on the stream of the free, until something else is allocated from the pool or the pool
 * gives memory back. */
#include <pthread.h>

#include "../../accounting/quota.h"
#include "../../core/driver_calls.h"
#include "../../launch/capture.h"
#include "pools.h"

#define HOLES 32
#define NEARLY_FULL_FRACTION 8u /* less than this fraction of the grant is left */
#define POINTER_POOL 17         /* CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE */

/* A cache: what an engine does not know is not counted on. Under the lock of the pools. */
static struct hole {
    abi_pool pool;
    const void *stream;
    uint64_t bytes;
} holes[HOLES];
static uint32_t next;
static _Atomic uint32_t any;

/* The per-thread stream is another one in each thread; the legacy stream has two handles. */
static const void *stream_of(abi_stream handle) {
    if (handle == ABI_STREAM_PER_THREAD) return cot_thread();
    return handle == ABI_STREAM_LEGACY ? NULL : handle;
}

/* What is left may not hold what a pool of this process keeps, or is little. */
static bool may_be_short(void) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_gpu_limits limits;
        cot_read_limits(gpu, &limits);
        if (!limits.isolate) continue;
        const struct cot_slot_gpu *own = cot_own_row(gpu);
        uint64_t usage = cot_container_usage(gpu), left = limits.memory_bytes > usage ? limits.memory_bytes - usage : 0;
        uint64_t in_pools =
            __atomic_load_n(&own->pool, __ATOMIC_RELAXED) + __atomic_load_n(&own->managed, __ATOMIC_RELAXED);
        if (left < limits.memory_bytes / NEARLY_FULL_FRACTION || left < in_pools) return true;
    }
    return false;
}

bool cot_hole_of(abi_devptr pointer, abi_stream stream, struct cot_freed_piece *piece) {
    size_t bytes = 0;
    *piece = (struct cot_freed_piece){.stream = stream_of(stream)};
    if (!pointer || !may_be_short() || cot_is_recording(stream)) return false;
    if (CALL_DRIVER("cuPointerGetAttribute", (void *, int, abi_devptr), &piece->pool, POINTER_POOL, pointer) !=
            ABI_SUCCESS ||
        CALL_DRIVER("cuMemGetAddressRange_v2", (abi_devptr *, size_t *, abi_devptr), NULL, &bytes, pointer) !=
            ABI_SUCCESS)
        return false;
    piece->bytes = bytes;
    return piece->pool && bytes;
}

void cot_hole_add(const struct cot_freed_piece *piece) {
    pthread_mutex_lock(&cot->pools.lock);
    struct hole *place = NULL;
    for (uint32_t i = 0; i < HOLES && !place; i++) {
        if (holes[i].pool == piece->pool && holes[i].stream == piece->stream) place = &holes[i];
    }
    if (!place) {
        place = &holes[next++ % HOLES];
        *place = (struct hole){.pool = piece->pool, .stream = piece->stream};
    }
    if (piece->bytes > place->bytes) place->bytes = piece->bytes;
    atomic_store(&any, 1);
    pthread_mutex_unlock(&cot->pools.lock);
}

void cot_holes_drop(abi_pool pool) {
    for (uint32_t i = 0; i < HOLES; i++) {
        if (holes[i].pool == pool) holes[i] = (struct hole){0};
    }
}

bool cot_hole_take(abi_pool pool, abi_stream stream, uint64_t bytes) {
    bool served = false;
    if (!atomic_load(&any)) return false;
    pthread_mutex_lock(&cot->pools.lock);
    for (uint32_t i = 0; i < HOLES; i++) {
        if (holes[i].pool != pool) continue;
        served |= holes[i].stream == stream_of(stream) && holes[i].bytes >= bytes;
        holes[i].bytes -= holes[i].bytes < bytes ? holes[i].bytes : bytes;
    }
    pthread_mutex_unlock(&cot->pools.lock);
    return served;
}
