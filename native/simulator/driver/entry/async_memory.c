/* Entry points of stream-ordered allocation: in a pool, or as a node of a captured graph. */
#include "../memory/pool.h"

/* Captures forbid the legacy default stream. */
#define ALLOWED_STREAM(handle, context, object) \
    SIM_STREAM(handle, context, object);        \
    if (!object) SIM_TRY(sim_capture_forbids_legacy(context))

static int alloc_async(abi_devptr *pointer, size_t bytes, abi_stream stream) {
    ALLOWED_STREAM(stream, context, object);
    int result = ABI_SUCCESS;
    if (sim_capture_alloc(object, bytes, pointer, &result)) return result;
    return sim_pool_allocate(NULL, context->device, bytes, pointer);
}

SIM_ROW(cuMemAllocAsync, (abi_devptr * pointer, size_t bytes, abi_stream stream), alloc_async(pointer, bytes, stream))
SIM_ROW(cuMemAllocAsync_ptsz, (abi_devptr * pointer, size_t bytes, abi_stream stream),
        alloc_async(pointer, bytes, sim_own(stream)))
SIM_EXPORT abi_result cuMemAllocFromPoolAsync(abi_devptr *pointer, size_t bytes, abi_pool pool, abi_stream stream) {
    SIM_ENTER("cuMemAllocFromPoolAsync");
    ALLOWED_STREAM(stream, context, object);
    int result = ABI_SUCCESS;
    if (sim_capture_alloc(object, bytes, pointer, &result)) return result;
    if (!pool) return ABI_ERROR_INVALID_VALUE;
    return sim_pool_allocate((struct sim_pool *)pool, context->device, bytes, pointer);
}
SIM_SAME(cuMemAllocFromPoolAsync_ptsz, (abi_devptr * pointer, size_t bytes, abi_pool pool, abi_stream stream),
         cuMemAllocFromPoolAsync(pointer, bytes, pool, sim_own(stream)))
SIM_EXPORT abi_result cuMemFreeAsync(abi_devptr pointer, abi_stream stream) {
    SIM_ENTER("cuMemFreeAsync");
    ALLOWED_STREAM(stream, context, object);
    int result = ABI_SUCCESS;
    if (pointer == 0 || sim_capture_free(object, pointer, &result)) return result;
    struct sim_item free_here = {.kind = SIM_ITEM_STAMP, .cell = SIM_CELLS};
    uint64_t reached;
    SIM_TRY(sim_submit(context, object, &free_here, &reached));
    pthread_mutex_lock(&sim.lock);
    struct sim_region *region = sim_region_at(pointer);
    result = region && region->kind == SIM_CHUNK                      ? sim_pool_free(region, pointer, context, object)
             : region && region->kind == SIM_OPENED && region->pooled ? sim_close(region)
             : region && region->kind == SIM_GRAPH
                 ? sim_graph_memory_free(region->graph_memory, pointer)
                 : sim_linear_free_ordered(pointer, context, sim_queue_of(context, object), reached);
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_SAME(cuMemFreeAsync_ptsz, (abi_devptr pointer, abi_stream stream), cuMemFreeAsync(pointer, sim_own(stream)))
