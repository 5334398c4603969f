/* Stream-ordered allocation. A pool serves a request from what it keeps unused, or grows; the driver says afterwards by
 * how much. So what the pool may grow by is announced, and what it has grown by is charged. Near a full grant a pool
 * that keeps a piece for the request (holes.c) is asked with nothing announced, as its memory is charged already. If a
 * pool has grown beyond what was announced and the grant cannot hold it, the allocation is taken back. */
#include <pthread.h>

#include "../../accounting/quota.h"
#include "../../contexts/current.h"
#include "../../core/driver_calls.h"
#include "../../launch/capture.h"
#include "pools.h"

/* Announced where it fits, until a GPU's step is known: test/gpu/observed/h100-580.159.04.json, rounding.pools. */
#define COMMON_STEP (32ull << 20)
#define MOST_TRIES 4

/* Stream-ordered allocation from `pool`, or from the current one of the stream's device. */
struct request {
    void *real;
    bool from_pool;
    size_t bytes;
    abi_pool pool;
    abi_stream stream;
};

typedef abi_result (*alloc_call)(abi_devptr *, size_t, abi_stream);
typedef abi_result (*alloc_from_call)(abi_devptr *, size_t, abi_pool, abi_stream);

static abi_result call(const struct request *request, abi_devptr *pointer) {
    if (!request->real) return (abi_result)cot_missing();
    return request->from_pool
               ? ((alloc_from_call)request->real)(pointer, request->bytes, request->pool, request->stream)
               : ((alloc_call)request->real)(pointer, request->bytes, request->stream);
}

/* ---- where ---- */

/* Where a pool of a GPU is; drivers of CUDA 13.0 and later say it. Managed memory without a preferred GPU is nowhere.
 */
static bool place_of_pool(abi_pool pool, abi_location *place) {
    return CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, ABI_POOL_LOCATION_TYPE, &place->type) ==
               ABI_SUCCESS &&
           CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, ABI_POOL_LOCATION_ID, &place->id) ==
               ABI_SUCCESS &&
           place->type != ABI_LOCATION_NONE && !cot_is_host_location(place);
}

/* A pool allocates on its own device, whatever stream orders it. An unknown pool may be some device's default pool.
 * If the driver does not say which, its error is the answer, as another GPU would be charged otherwise. */
static abi_result gpu_of_pool(abi_pool pool, abi_device otherwise, uint32_t *gpu) {
    pthread_mutex_lock(&cot->pools.lock);
    const struct cot_known_pool *known = pool ? cot_pool_find(pool) : NULL;
    if (known) *gpu = known->gpu;
    pthread_mutex_unlock(&cot->pools.lock);
    if (known) return ABI_SUCCESS;
    abi_location place;
    if (place_of_pool(pool, &place)) return cot_find_gpu_of_location(&place, gpu);
    *gpu = cot_gpu_of(otherwise);
    for (abi_device device = 0; device < (abi_device)COT_MAX_GPUS; device++) {
        abi_pool own = NULL;
        if (cot_gpu_of(device) == COT_NO_GPU) continue;
        abi_result result = cot_pool_default(device, &own);
        if (result != ABI_SUCCESS && result != ABI_ERROR_NOT_SUPPORTED) return result;
        if (result != ABI_SUCCESS || own != pool) continue;
        *gpu = cot_gpu_of(device);
        break;
    }
    return ABI_SUCCESS;
}

/* ---- how much ---- */

/* The smallest step, a power of two, by which the pools of a GPU have been seen to grow; 0: unknown. */
static _Atomic uint64_t steps[COT_MAX_GPUS];

static uint64_t round_up(uint64_t bytes, uint64_t step) {
    return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) / step * step;
}

static uint64_t step_of(uint32_t gpu) {
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    uint64_t step = atomic_load(&steps[gpu]);
    return step > limits.granule_bytes ? step : limits.granule_bytes;
}

/* A pool has grown by `grown` for a request. */
static void learn_step(uint32_t gpu, uint64_t bytes, uint64_t grown) {
    uint64_t step = step_of(gpu);
    while (step < grown && round_up(bytes, step) != grown) step *= 2;
    if (round_up(bytes, step) == grown) atomic_store(&steps[gpu], step);
}

static bool keeps_unused(abi_pool pool, uint64_t bytes) {
    uint64_t reserved = 0, used = 0;
    return CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, ABI_POOL_RESERVED_CURRENT, &reserved) ==
               ABI_SUCCESS &&
           CALL_DRIVER("cuMemPoolGetAttribute", (abi_pool, int, void *), pool, ABI_POOL_USED_CURRENT, &used) ==
               ABI_SUCCESS &&
           reserved > used && reserved - used >= bytes;
}

/* Makes room for a request. `hole`: the pool keeps a piece that serves it, as far as known. */
static bool announce(const struct request *request, uint32_t gpu, bool hole, uint64_t *announced) {
    uint64_t least = round_up(request->bytes, step_of(gpu));
    uint64_t most = atomic_load(&steps[gpu]) ? least : round_up(request->bytes, COMMON_STEP);
    *announced = most;
    if (cot_reserve_at_once(gpu, most)) return true;
    *announced = 0;
    if (hole && keeps_unused(request->pool, request->bytes)) return true;
    *announced = least;
    return cot_reserve(gpu, least);
}

/* Charges what the pool has grown by for the allocation `at` (0: the driver refused it). False: the grant cannot hold
 * it, and the allocation was taken back. Under the lock. */
static bool charge(const struct request *request, struct cot_known_pool *pool, uint64_t announced, abi_devptr at) {
    uint32_t gpu = pool->gpu;
    uint64_t before = pool->charged;
    cot_mark_changed(gpu); /* the pool may have grown by as much as it gave back unnoticed */
    cot_pool_read_back(pool, at ? round_up(request->bytes, step_of(gpu)) : 0);
    cot_rollback(gpu, announced);
    uint64_t grown = pool->charged > before ? pool->charged - before : 0;
    if (grown >= request->bytes) learn_step(gpu, request->bytes, grown);
    if (!at || grown <= announced || !cot_exceeds_limit(gpu)) return true;
    cot_pool_trim(pool, before, at);
    return false;
}

/* The same for a pool that may be unknown. It becomes known with its first allocation. */
static bool charge_known(const struct request *request, uint32_t gpu, uint64_t announced, abi_devptr at) {
    pthread_mutex_lock(&cot->pools.lock);
    struct cot_known_pool *known = at              ? cot_pool_find_or_add(request->pool, gpu)
                                   : request->pool ? cot_pool_find(request->pool)
                                                   : NULL;
    bool kept = known ? charge(request, known, announced, at) : !at;
    pthread_mutex_unlock(&cot->pools.lock);
    if (known) return kept;
    cot_rollback(gpu, announced);
    if (at) CALL_REAL(cuMemFree_v2, (abi_devptr), at); /* other pools filled the table meanwhile */
    return kept;
}

static bool has_entry(abi_pool pool) {
    pthread_mutex_lock(&cot->pools.lock);
    bool has = cot_pool_find(pool) || cot_pool_find(NULL);
    pthread_mutex_unlock(&cot->pools.lock);
    return has;
}

/* `request->pool` is named also where the program did not. */
static abi_result allocate_charged(const struct request *request, uint32_t gpu, abi_devptr *pointer) {
    bool room = has_entry(request->pool), hole = cot_hole_take(request->pool, request->stream, request->bytes);
    for (int tries = 0; room && tries < MOST_TRIES; tries++) {
        uint64_t announced;
        abi_devptr at = 0;
        if (!announce(request, gpu, hole, &announced)) break;
        abi_result result = call(request, &at);
        if (result != ABI_SUCCESS) at = 0;
        if (charge_known(request, gpu, announced, at)) {
            if (result == ABI_SUCCESS) *pointer = at;
            return result;
        }
        hole = false;
    }
    cot_count_denied(gpu);
    return ABI_ERROR_OUT_OF_MEMORY;
}

/* ---- the entry points ---- */

static abi_result allocate_in_current(struct request *request, abi_devptr *pointer) {
    abi_device device;
    void *context;
    uint32_t gpu;
    abi_result result = cot_current_context(&gpu, &context);
    if (result == ABI_SUCCESS) result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), &device);
    if (result != ABI_SUCCESS) return result;
    if (request->from_pool && cot_pool_is_on_host(request->pool)) return call(request, pointer);
    gpu = cot_gpu_of(device);
    if (request->from_pool) result = gpu_of_pool(request->pool, device, &gpu);
    if (result != ABI_SUCCESS) return result;
    if (gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    if (!request->from_pool)
        result = CALL_DRIVER("cuDeviceGetMemPool", (abi_pool *, abi_device), &request->pool, device);
    if (result != ABI_SUCCESS) return result; /* not supported: the device has no pools */
    return allocate_charged(request, gpu, pointer);
}

/* Default streams belong to the current context. A created one needs none to be current: its own is, meanwhile. */
static abi_result allocate(struct request request, abi_devptr *pointer) {
    bool created = (uintptr_t)request.stream > (uintptr_t)ABI_STREAM_PER_THREAD;
    abi_context owner;
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    /* During a capture it is recorded, and belongs to the graph. */
    if (!pointer || request.bytes == 0 || cot_is_recording(request.stream)) return call(&request, pointer);
    if (created) result = CALL_DRIVER("cuStreamGetCtx", (abi_stream, abi_context *), request.stream, &owner);
    if (created && result == ABI_SUCCESS) result = CALL_DRIVER("cuCtxPushCurrent_v2", (abi_context), owner);
    if (result != ABI_SUCCESS) return result;
    result = allocate_in_current(&request, pointer);
    if (created) cot_context_pop();
    return result;
}

static abi_stream per_thread(abi_stream stream) {
    return stream ? stream : ABI_STREAM_PER_THREAD;
}

abi_result cot_cuMemAllocAsync(abi_devptr *pointer, size_t bytes, abi_stream stream) {
    return allocate((struct request){cot_real(COT_REAL_cuMemAllocAsync), false, bytes, NULL, stream}, pointer);
}
abi_result cot_cuMemAllocAsync_ptsz(abi_devptr *pointer, size_t bytes, abi_stream stream) {
    return allocate((struct request){cot_real(COT_REAL_cuMemAllocAsync_ptsz), false, bytes, NULL, per_thread(stream)},
                    pointer);
}
abi_result cot_cuMemAllocFromPoolAsync(abi_devptr *pointer, size_t bytes, abi_pool pool, abi_stream stream) {
    return allocate((struct request){cot_real(COT_REAL_cuMemAllocFromPoolAsync), true, bytes, pool, stream}, pointer);
}
abi_result cot_cuMemAllocFromPoolAsync_ptsz(abi_devptr *pointer, size_t bytes, abi_pool pool, abi_stream stream) {
    return allocate(
        (struct request){cot_real(COT_REAL_cuMemAllocFromPoolAsync_ptsz), true, bytes, pool, per_thread(stream)},
        pointer);
}
