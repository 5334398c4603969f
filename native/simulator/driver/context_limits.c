/* Limits of a context. Heap, printf buffer, stacks and what the device runtime keeps take memory of the GPU beyond
 * their defaults; the stack limit counts for every thread that the GPU can run at once. Heap and printf buffer are
 * taken when a module that uses them is loaded: so NVIDIA's CUDA C++ Programming Guide says of the heap, and setting
 * either took nothing on an H100 (test/gpu/observed/h100-580.159.04.json, step residuals). A launch of such a kernel
 * fixes the limit: the reference of cuCtxSetLimit. Assumption: from then on,
 * and all others, at once when a limit is set, in whole granules, and released when it is lowered; 1 MiB of each SM for
 * a level of synchronization (NVIDIA's guide says up to 150 MB of a GPU), its largest parameters and 256 bytes for a
 * pending launch. */
#include "sim.h"

#define WITH_MEMORY (ABI_LIMIT_DEVICE_RUNTIME_PENDING_LAUNCHES + 1)

/* Bytes of the GPU for a limit of `value`, beyond its default. */
static uint64_t cost(const struct sim_context *context, int limit, uint64_t value) {
    struct sim_context fresh = {0};
    sim_limits_begin(&fresh);
    uint64_t sms = sim.facts->gpus[context->gpu].sm_count;
    uint64_t each = limit == ABI_LIMIT_STACK_SIZE                        ? sms * SIM_THREADS_PER_SM
                    : limit == ABI_LIMIT_DEVICE_RUNTIME_SYNC_DEPTH       ? sms << 20
                    : limit == ABI_LIMIT_DEVICE_RUNTIME_PENDING_LAUNCHES ? 4096 + 256
                                                                         : 1;
    return value > fresh.limits[limit] ? (value - fresh.limits[limit]) * each : 0;
}

static bool is_taken(const struct sim_context *context, int limit) {
    return limit == ABI_LIMIT_MALLOC_HEAP_SIZE   ? context->uses_heap
           : limit == ABI_LIMIT_PRINTF_FIFO_SIZE ? context->uses_printf
                                                 : limit < WITH_MEMORY;
}

static int take(struct sim_context *context, int limit, bool *uses) {
    uint64_t bytes = *uses ? 0 : cost(context, limit, context->limits[limit]);
    int result = bytes ? sim_simple(SIM_ALLOCATE, context->gpu, bytes, SIM_KIND_LIMITS, &context->limit_blocks[limit])
                       : ABI_SUCCESS;
    *uses |= result == ABI_SUCCESS;
    return result == ABI_SUCCESS ? result : ABI_ERROR_SHARED_OBJECT_INIT_FAILED;
}

int sim_limits_use(struct sim_context *context, bool heap, bool printf_buffer) {
    pthread_mutex_lock(&sim.lock);
    context = sim_root(context);
    int result = heap ? take(context, ABI_LIMIT_MALLOC_HEAP_SIZE, &context->uses_heap) : ABI_SUCCESS;
    if (result == ABI_SUCCESS && printf_buffer)
        result = take(context, ABI_LIMIT_PRINTF_FIFO_SIZE, &context->uses_printf);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

void sim_limits_fix(struct sim_context *context, unsigned limits) {
    pthread_mutex_lock(&sim.lock);
    sim_root(context)->fixed_limits |= limits;
    pthread_mutex_unlock(&sim.lock);
}

/* Under sim.lock. The old memory is released first, and allocated again if the new size does not fit. */
static int resize(struct sim_context *context, int limit, uint64_t value) {
    uint64_t *block = &context->limit_blocks[limit], before = cost(context, limit, context->limits[limit]),
             bytes = cost(context, limit, value);
    if (bytes == before) return ABI_SUCCESS;
    if (*block) sim_simple(SIM_RELEASE, context->gpu, *block, 0, NULL);
    *block = 0;
    int result = bytes ? sim_simple(SIM_ALLOCATE, context->gpu, bytes, SIM_KIND_LIMITS, block) : ABI_SUCCESS;
    if (result != ABI_SUCCESS) {
        *block = 0;
        if (before && sim_simple(SIM_ALLOCATE, context->gpu, before, SIM_KIND_LIMITS, block) != ABI_SUCCESS) *block = 0;
    }
    return result;
}

/* Synchronization on the device ended with compute capability 9.0. */
static bool is_supported(const struct sim_context *context, int limit) {
    return limit >= 0 && limit <= ABI_LIMIT_PERSISTING_L2 &&
           (limit != ABI_LIMIT_DEVICE_RUNTIME_SYNC_DEPTH || sim.facts->gpus[context->gpu].cc_major < 9);
}

static void release(struct sim_context *context) {
    for (int limit = 0; limit < WITH_MEMORY; limit++) {
        if (context->limit_blocks[limit]) sim_simple(SIM_RELEASE, context->gpu, context->limit_blocks[limit], 0, NULL);
    }
}
SIM_ON_CONTEXT_END(.release = release)

SIM_EXPORT abi_result cuCtxGetLimit(size_t *value, int limit) {
    SIM_ENTER("cuCtxGetLimit");
    SIM_CURRENT(context);
    if (!value) return ABI_ERROR_INVALID_VALUE;
    if (!is_supported(context, limit)) return ABI_ERROR_UNSUPPORTED_LIMIT;
    pthread_mutex_lock(&sim.lock);
    *value = sim_root(context)->limits[limit];
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuCtxSetLimit(int limit, size_t value) {
    SIM_ENTER("cuCtxSetLimit");
    struct sim_context *context;
    int result = sim_current(&context);
    if (result != ABI_SUCCESS) return result;
    if (!is_supported(context, limit)) return ABI_ERROR_UNSUPPORTED_LIMIT;
    if (limit == ABI_LIMIT_STACK_SIZE && value > 512u << 10) return ABI_ERROR_INVALID_VALUE;
    if (limit == ABI_LIMIT_STACK_SIZE) value = (value + 15) / 16 * 16;
    size_t most_persisting = (size_t)sim.facts->gpus[context->gpu].l2_kib * 768;
    if (limit == ABI_LIMIT_PERSISTING_L2 && value > most_persisting) value = most_persisting; /* a hint */
    pthread_mutex_lock(&sim.lock);
    context = sim_root(context);
    if (context->fixed_limits >> limit & 1) result = ABI_ERROR_INVALID_VALUE;
    else if (is_taken(context, limit)) result = resize(context, limit, value);
    if (result == ABI_SUCCESS) context->limits[limit] = value;
    pthread_mutex_unlock(&sim.lock);
    return result;
}
