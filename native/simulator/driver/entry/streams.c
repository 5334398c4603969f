/* Entry points of streams: create, wait, query. Waiting for a stream or a context also releases unused memory of pools
 * and linear memory that was freed in stream order. */
#include <stdlib.h>
#include <string.h>

#include "../sim.h"

int sim_wait_stream(abi_stream handle) {
    SIM_STREAM(handle, context, stream);
    SIM_TRY(sim_capture_forbids_sync(context, stream));
    return stream ? sim_wait(context, stream->queue, atomic_load(&stream->last)) : sim_wait_legacy(context);
}

void sim_release_unused(void) {
    pthread_mutex_lock(&sim.lock);
    sim_linear_collect();
    pthread_mutex_unlock(&sim.lock);
    sim_pools_trim();
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
    sim_release_unused();
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
    struct sim_event *awaited = (struct sim_event *)event;
    if (result != ABI_SUCCESS) return result;
    if (!event || awaited->magic != SIM_EVENT_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (flags > ABI_EVENT_WAIT_EXTERNAL) return ABI_ERROR_INVALID_VALUE;
    if (!stream) result = sim_capture_forbids_legacy(context);
    if (result != ABI_SUCCESS || sim_capture_wait(stream, awaited, flags, &result)) return result;
    if (flags) return ABI_ERROR_INVALID_VALUE; /* outside of a capture */
    return sim_event_await(awaited, context, stream);
}
SIM_SAME(cuStreamWaitEvent_ptsz, (abi_stream handle, abi_event event, unsigned flags),
         cuStreamWaitEvent(sim_own(handle), event, flags))
/* What a stream reports of itself; `stream` is NULL for a default one. */
#define STREAM_VALUE(name, type, value)                        \
    SIM_EXPORT abi_result name(abi_stream handle, type *out) { \
        SIM_ENTER(#name);                                      \
        SIM_STREAM(handle, context, stream);                   \
        if (!out) return ABI_ERROR_INVALID_VALUE;              \
        *out = (type)(value);                                  \
        return ABI_SUCCESS;                                    \
    }
STREAM_VALUE(cuStreamGetPriority, int, stream ? stream->priority : 0)
STREAM_VALUE(cuStreamGetFlags, unsigned, stream ? stream->flags : 0)
STREAM_VALUE(cuStreamGetCtx, abi_context, context)
STREAM_VALUE(cuStreamGetId, unsigned long long, stream ? stream->id : (uintptr_t)ABI_STREAM_LEGACY)
STREAM_VALUE(cuStreamGetDevice, abi_device, context->device)

SIM_EXPORT abi_result cuCtxSynchronize(void) {
    SIM_ENTER("cuCtxSynchronize");
    struct sim_context *context;
    int result = sim_current(&context);
    if (result == ABI_SUCCESS) result = sim_capture_forbids_context(context);
    if (result == ABI_SUCCESS) result = sim_wait_context(context);
    sim_release_unused();
    return result;
}

/* ---- attributes: kept, without effect ---- */
static unsigned char *attribute_of(struct sim_stream *stream, int attribute) {
    static const int KEPT[SIM_STREAM_ATTRIBUTES] = {1, 3, 9, 10}; /* access window, synchronization, memory domains */
    for (unsigned i = 0; stream && i < SIM_STREAM_ATTRIBUTES; i++) {
        if (KEPT[i] == attribute) return stream->attributes[i];
    }
    return NULL;
}
static int copy_attribute(abi_stream handle, int attribute, void *out, const void *in) {
    SIM_STREAM(handle, context, stream);
    unsigned char *kept = attribute_of(stream, attribute);
    if (!kept || (!in && !out)) return ABI_ERROR_INVALID_VALUE;
    memcpy(in ? kept : out, in ? in : kept, sizeof stream->attributes[0]);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamSetAttribute(abi_stream stream, int attribute, const void *value) {
    SIM_ENTER("cuStreamSetAttribute");
    return value ? copy_attribute(stream, attribute, NULL, value) : ABI_ERROR_INVALID_VALUE;
}
SIM_EXPORT abi_result cuStreamSetAttribute_ptsz(abi_stream stream, int attribute, const void *value) {
    return cuStreamSetAttribute(sim_own(stream), attribute, value);
}
SIM_EXPORT abi_result cuStreamGetAttribute(abi_stream stream, int attribute, void *value) {
    SIM_ENTER("cuStreamGetAttribute");
    return copy_attribute(stream, attribute, value, NULL);
}
SIM_EXPORT abi_result cuStreamGetAttribute_ptsz(abi_stream stream, int attribute, void *value) {
    return cuStreamGetAttribute(sim_own(stream), attribute, value);
}
SIM_EXPORT abi_result cuStreamCopyAttributes(abi_stream to, abi_stream from) {
    SIM_ENTER("cuStreamCopyAttributes");
    SIM_STREAM(to, context, target);
    SIM_STREAM(from, other, source);
    if (!target || !source || context != other) return ABI_ERROR_INVALID_VALUE;
    memcpy(target->attributes, source->attributes, sizeof target->attributes);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamCopyAttributes_ptsz(abi_stream to, abi_stream from) {
    return cuStreamCopyAttributes(sim_own(to), sim_own(from));
}
