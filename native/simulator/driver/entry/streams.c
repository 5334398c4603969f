/* Entry points of streams: create, wait, query. Waiting for a stream or a context also releases the unused memory of
 * pools. */
#include <stdlib.h>

#include "../sim.h"

int sim_wait_stream(abi_stream handle) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if ((result = sim_capture_forbids_sync(context, stream)) != ABI_SUCCESS) return result;
    return stream ? sim_wait(context, stream->queue, atomic_load(&stream->last)) : sim_wait_legacy(context);
}

static int stream_new(abi_stream *out, unsigned flags, int priority) {
    struct sim_context *context;
    int result = sim_current(&context);
    return result == ABI_SUCCESS ? sim_stream_new(context, out, flags, priority) : result;
}

SIM_EXPORT abi_result cuStreamCreate(abi_stream *out, unsigned flags) {
    SIM_ENTER("cuStreamCreate");
    return stream_new(out, flags, 0);
}
SIM_EXPORT abi_result cuStreamCreateWithPriority(abi_stream *out, unsigned flags, int priority) {
    SIM_ENTER("cuStreamCreateWithPriority");
    return stream_new(out, flags, priority);
}
SIM_EXPORT abi_result cuStreamDestroy_v2(abi_stream handle) {
    SIM_ENTER("cuStreamDestroy_v2");
    struct sim_stream *stream = (struct sim_stream *)handle;
    if ((uintptr_t)handle <= (uintptr_t)ABI_STREAM_PER_THREAD || stream->magic != SIM_STREAM_MAGIC)
        return ABI_ERROR_INVALID_HANDLE;
    sim_capture_end_with_stream(stream);
    sim_stream_end(stream);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamDestroy(abi_stream handle) {
    return cuStreamDestroy_v2(handle);
}
SIM_EXPORT abi_result cuStreamSynchronize(abi_stream handle) {
    SIM_ENTER("cuStreamSynchronize");
    int result = sim_wait_stream(handle);
    sim_pools_trim();
    return result;
}
SIM_EXPORT abi_result cuStreamSynchronize_ptsz(abi_stream handle) {
    return cuStreamSynchronize(sim_own(handle));
}
SIM_EXPORT abi_result cuStreamQuery(abi_stream handle) {
    SIM_ENTER("cuStreamQuery");
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if ((result = sim_capture_forbids_sync(context, stream)) != ABI_SUCCESS) return result;
    bool done = stream ? sim_is_done(context, stream->queue, atomic_load(&stream->last)) : sim_is_legacy_done(context);
    if (done) return ABI_SUCCESS;
    sim_ring_doorbell(); /* the time line only advances on demand */
    return ABI_ERROR_NOT_READY;
}
SIM_EXPORT abi_result cuStreamQuery_ptsz(abi_stream handle) {
    return cuStreamQuery(sim_own(handle));
}
SIM_EXPORT abi_result cuStreamWaitEvent(abi_stream handle, abi_event event, unsigned flags) {
    SIM_ENTER("cuStreamWaitEvent");
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    const struct sim_event *awaited = (const struct sim_event *)event;
    if (result != ABI_SUCCESS) return result;
    if (!event || awaited->magic != SIM_EVENT_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (!stream) result = sim_capture_forbids_legacy(context);
    if (result != ABI_SUCCESS || sim_capture_wait(stream, awaited, flags, &result)) return result;
    if (!awaited->item) return ABI_SUCCESS; /* never recorded */
    struct sim_item item = {.kind = SIM_ITEM_WAIT,
                            .wait_gpu = (uint16_t)awaited->context->gpu,
                            .wait_queue = (uint16_t)awaited->queue,
                            .wait_number = awaited->item};
    return sim_submit(context, stream, &item, NULL);
}
SIM_EXPORT abi_result cuStreamWaitEvent_ptsz(abi_stream handle, abi_event event, unsigned flags) {
    return cuStreamWaitEvent(sim_own(handle), event, flags);
}
static int stream_read(abi_stream handle, struct sim_stream *copy) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    copy->context = context;
    copy->flags = stream ? stream->flags : 0;
    copy->priority = stream ? stream->priority : 0;
    copy->id = stream ? stream->id : (uint64_t)(uintptr_t)handle;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamGetPriority(abi_stream handle, int *priority) {
    SIM_ENTER("cuStreamGetPriority");
    struct sim_stream copy = {0};
    int result = stream_read(handle, &copy);
    if (result == ABI_SUCCESS && priority) *priority = copy.priority;
    return result;
}
SIM_EXPORT abi_result cuStreamGetFlags(abi_stream handle, unsigned *flags) {
    SIM_ENTER("cuStreamGetFlags");
    struct sim_stream copy = {0};
    int result = stream_read(handle, &copy);
    if (result == ABI_SUCCESS && flags) *flags = copy.flags;
    return result;
}
SIM_EXPORT abi_result cuStreamGetCtx(abi_stream handle, abi_context *context) {
    SIM_ENTER("cuStreamGetCtx");
    struct sim_stream copy = {0};
    int result = stream_read(handle, &copy);
    if (result == ABI_SUCCESS && context) *context = (abi_context)copy.context;
    return result;
}
SIM_EXPORT abi_result cuStreamGetId(abi_stream handle, unsigned long long *id) {
    SIM_ENTER("cuStreamGetId");
    struct sim_stream copy = {0};
    int result = stream_read(handle, &copy);
    if (result == ABI_SUCCESS && id) *id = copy.id;
    return result;
}

SIM_EXPORT abi_result cuCtxSynchronize(void) {
    SIM_ENTER("cuCtxSynchronize");
    struct sim_context *context;
    int result = sim_current(&context);
    if (result == ABI_SUCCESS) result = sim_capture_forbids_context(context);
    if (result == ABI_SUCCESS) result = sim_wait_all(context);
    sim_pools_trim();
    return result;
}
