/* Entry points of streams: create, wait, query. Waiting for a stream or a context also releases the unused memory of
 * pools. */
#include <stdlib.h>

#include "../sim.h"

int sim_wait_stream(abi_stream handle) {
    SIM_STREAM(handle, context, stream);
    SIM_TRY(sim_capture_forbids_sync(context, stream));
    return stream ? sim_wait(context, stream->queue, atomic_load(&stream->last)) : sim_wait_legacy(context);
}

static int stream_new(abi_stream *out, unsigned flags, int priority) {
    SIM_CURRENT(context);
    return sim_stream_new(context, out, flags, priority);
}

SIM_ROW(cuStreamCreate, (abi_stream * out, unsigned flags), stream_new(out, flags, 0))
SIM_ROW(cuStreamCreateWithPriority, (abi_stream * out, unsigned flags, int priority), stream_new(out, flags, priority))
SIM_EXPORT abi_result cuStreamDestroy_v2(abi_stream handle) {
    SIM_ENTER("cuStreamDestroy_v2");
    struct sim_stream *stream = (struct sim_stream *)handle;
    if ((uintptr_t)handle <= (uintptr_t)ABI_STREAM_PER_THREAD || stream->magic != SIM_STREAM_MAGIC)
        return ABI_ERROR_INVALID_HANDLE;
    sim_capture_end_with_stream(stream);
    sim_stream_end(stream);
    return ABI_SUCCESS;
}
SIM_SAME(cuStreamDestroy, (abi_stream handle), cuStreamDestroy_v2(handle))
SIM_EXPORT abi_result cuStreamSynchronize(abi_stream handle) {
    SIM_ENTER("cuStreamSynchronize");
    int result = sim_wait_stream(handle);
    sim_pools_trim();
    return result;
}
SIM_SAME(cuStreamSynchronize_ptsz, (abi_stream handle), cuStreamSynchronize(sim_own(handle)))
SIM_EXPORT abi_result cuStreamQuery(abi_stream handle) {
    SIM_ENTER("cuStreamQuery");
    SIM_STREAM(handle, context, stream);
    SIM_TRY(sim_capture_forbids_sync(context, stream));
    bool done = stream ? sim_is_done(context, stream->queue, atomic_load(&stream->last)) : sim_is_legacy_done(context);
    if (done) return ABI_SUCCESS;
    sim_ring_doorbell(); /* the time line only advances on demand */
    return ABI_ERROR_NOT_READY;
}
SIM_SAME(cuStreamQuery_ptsz, (abi_stream handle), cuStreamQuery(sim_own(handle)))
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
SIM_SAME(cuStreamWaitEvent_ptsz, (abi_stream handle, abi_event event, unsigned flags),
         cuStreamWaitEvent(sim_own(handle), event, flags))
/* What a stream reports of itself; `stream` is NULL for a default one. */
#define STREAM_VALUE(name, type, value)                        \
    SIM_EXPORT abi_result name(abi_stream handle, type *out) { \
        SIM_ENTER(#name);                                      \
        SIM_STREAM(handle, context, stream);                   \
        if (out) *out = (type)(value);                         \
        return ABI_SUCCESS;                                    \
    }
STREAM_VALUE(cuStreamGetPriority, int, stream ? stream->priority : 0)
STREAM_VALUE(cuStreamGetFlags, unsigned, stream ? stream->flags : 0)
STREAM_VALUE(cuStreamGetCtx, abi_context, context)
STREAM_VALUE(cuStreamGetId, unsigned long long, stream ? stream->id : (uintptr_t)handle)

SIM_EXPORT abi_result cuCtxSynchronize(void) {
    SIM_ENTER("cuCtxSynchronize");
    struct sim_context *context;
    int result = sim_current(&context);
    if (result == ABI_SUCCESS) result = sim_capture_forbids_context(context);
    if (result == ABI_SUCCESS) result = sim_wait_all(context);
    sim_pools_trim();
    return result;
}
