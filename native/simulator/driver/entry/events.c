/* Entry points of events: create, record, wait, elapsed time. */
#include <stdlib.h>

#include "../sim.h"

enum { INTERPROCESS = 4 }; /* a flag: must not measure time */

SIM_EXPORT abi_result cuEventCreate(abi_event *out, unsigned flags) {
    SIM_ENTER("cuEventCreate");
    SIM_CURRENT(context);
    if (!out || flags & ~7u || (flags & 4 && !(flags & ABI_EVENT_DISABLE_TIMING))) return ABI_ERROR_INVALID_VALUE;
    struct sim_event *event = calloc(1, sizeof *event);
    if (!event) return ABI_ERROR_OUT_OF_MEMORY;
    *event = (struct sim_event){.magic = SIM_EVENT_MAGIC, .context = context, .flags = flags, .shared_fd = -1};
    bool made = flags & INTERPROCESS ? sim_event_share(event) : sim_cell_take(context, &event->cell);
    if (!made) {
        free(event);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    sim_event_add(event);
    *out = (abi_event)event;
    return ABI_SUCCESS;
}

static int event_of(abi_event handle, struct sim_event **event) {
    *event = (struct sim_event *)handle;
    if (!handle || (*event)->magic != SIM_EVENT_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    return sim_usable((*event)->context);
}

SIM_EXPORT abi_result cuEventDestroy_v2(abi_event handle) {
    SIM_ENTER("cuEventDestroy_v2");
    struct sim_event *event = (struct sim_event *)handle;
    if (!handle || event->magic != SIM_EVENT_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (event->shared) sim_event_unshare(event);
    else sim_cell_leave(event);
    pthread_mutex_lock(&sim.lock);
    *event->place = event->next;
    if (event->next) event->next->place = event->place;
    pthread_mutex_unlock(&sim.lock);
    event->magic = 0;
    free(event->after.list);
    free(event);
    return ABI_SUCCESS;
}
SIM_SAME(cuEventDestroy, (abi_event handle), cuEventDestroy_v2(handle))

SIM_EXPORT abi_result cuEventRecord(abi_event handle, abi_stream stream_handle) {
    SIM_ENTER("cuEventRecord");
    struct sim_event *event;
    struct sim_context *context;
    struct sim_stream *stream;
    int result = event_of(handle, &event);
    if (result == ABI_SUCCESS) result = sim_stream_context(stream_handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (sim_root(context) != sim_root(event->context)) return ABI_ERROR_INVALID_HANDLE;
    if (!stream) result = sim_capture_forbids_legacy(context);
    if (result != ABI_SUCCESS || sim_capture_event(stream, event, &result)) return result;
    return sim_event_record(event, context, stream);
}
SIM_EXPORT abi_result cuEventRecord_ptsz(abi_event event, abi_stream stream) {
    return cuEventRecord(event, sim_own(stream));
}
SIM_EXPORT abi_result cuEventRecordWithFlags(abi_event event, abi_stream stream, unsigned flags) {
    SIM_ENTER("cuEventRecordWithFlags");
    SIM_STREAM(stream, context, object);
    struct sim_event *recorded;
    if (flags == 0) return cuEventRecord(event, stream);
    SIM_TRY(event_of(event, &recorded));
    /* As a node of a capture only. */
    int result = ABI_ERROR_INVALID_VALUE;
    struct sim_step step = {.type = ABI_NODE_EVENT_RECORD, .event = recorded};
    return flags == 1 && sim_capture_step(object, &step, &result) ? result : ABI_ERROR_INVALID_VALUE;
}
SIM_EXPORT abi_result cuEventRecordWithFlags_ptsz(abi_event event, abi_stream stream, unsigned flags) {
    return cuEventRecordWithFlags(event, sim_own(stream), flags);
}

SIM_EXPORT abi_result cuEventQuery(abi_event handle) {
    SIM_ENTER("cuEventQuery");
    struct sim_event *event;
    int result = event_of(handle, &event);
    if (result == ABI_SUCCESS) result = sim_capture_forbids_event(event);
    if (result != ABI_SUCCESS || sim_event_is_done(event)) return result;
    sim_ring_doorbell();
    return ABI_ERROR_NOT_READY;
}
SIM_EXPORT abi_result cuEventSynchronize(abi_event handle) {
    SIM_ENTER("cuEventSynchronize");
    struct sim_event *event;
    int result = event_of(handle, &event);
    if (result == ABI_SUCCESS) result = sim_capture_forbids_event(event);
    if (result == ABI_SUCCESS) result = sim_event_synchronize(event);
    sim_release_unused();
    return result;
}

static int elapsed(float *ms, abi_event start, abi_event end) {
    struct sim_event *first, *second;
    SIM_TRY(event_of(start, &first));
    SIM_TRY(event_of(end, &second));
    if (!ms) return ABI_ERROR_INVALID_VALUE;
    if (!first->item || !second->item || (first->flags | second->flags) & ABI_EVENT_DISABLE_TIMING ||
        first->context->gpu != second->context->gpu)
        return ABI_ERROR_INVALID_HANDLE;
    if (!sim_event_is_done(first) || !sim_event_is_done(second)) return ABI_ERROR_NOT_READY;
    struct sim_channel *channel = sim.channel[first->context->gpu];
    *ms = (float)((double)(int64_t)(atomic_load(&channel->cells[second->cell]) -
                                    atomic_load(&channel->cells[first->cell])) /
                  1e6);
    return ABI_SUCCESS;
}
SIM_ROW(cuEventElapsedTime_v2, (float *ms, abi_event start, abi_event end), elapsed(ms, start, end))
SIM_ROW(cuEventElapsedTime, (float *ms, abi_event start, abi_event end), elapsed(ms, start, end))
