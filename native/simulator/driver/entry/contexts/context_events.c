/* Events of a whole context (CUDA Driver API, cuCtxRecordEvent and cuCtxWaitEvent, and the same of green contexts): a
 * record takes in the work of all of its streams, and a wait holds all of them, also streams that are made later; those
 * of a primary context also what belongs to its green ones. */
#include "../../captures.h"

/* Under no lock: has `stream` wait for the work of all queues of the context. */
static int await_all(struct sim_context *context, struct sim_stream *stream) {
    struct sim_queue *queues = sim.queues[context->gpu];
    for (uint32_t queue = 0; queue < SIM_QUEUES; queue++) {
        uint64_t last = atomic_load(&queues[queue].last);
        if (!sim_comprises(context, &queues[queue]) || queue == stream->queue || sim_is_done(context, queue, last))
            continue;
        struct sim_item item = {.kind = SIM_ITEM_WAIT,
                                .wait_gpu = (uint16_t)context->gpu,
                                .wait_queue = (uint16_t)queue,
                                .wait_number = last};
        SIM_TRY(sim_submit(context, stream, &item, NULL));
    }
    return ABI_SUCCESS;
}

static int event_of(struct sim_context *context, abi_event handle, struct sim_event **event) {
    if (!SIM_LOCKED(sim_is_context(context))) return ABI_ERROR_INVALID_CONTEXT;
    *event = (struct sim_event *)handle;
    if (!*event || (*event)->magic != SIM_EVENT_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    SIM_TRY(sim_usable(context));
    return sim_capture_forbids_context(context);
}

static int record(struct sim_context *context, abi_event handle) {
    struct sim_event *event;
    struct sim_stream *stream;
    SIM_TRY(event_of(context, handle, &event));
    if (sim_root(event->context) != sim_root(context)) return ABI_ERROR_INVALID_HANDLE;
    SIM_TRY(sim_stream_new(context, (abi_stream *)&stream, ABI_STREAM_NON_BLOCKING, 0));
    int result = await_all(context, stream);
    event->capture = 0;
    if (result == ABI_SUCCESS) result = sim_event_record(event, context, stream);
    sim_stream_end(stream); /* what it waits for goes on */
    return result;
}

/* The streams of a context, one after the other; under sim.lock. */
static struct sim_stream *next_stream(const struct sim_context *context, struct sim_stream *stream) {
    while (stream && stream->context != context) stream = stream->next;
    return stream;
}

static int wait_in(struct sim_context *context, const struct sim_event *event) {
    if (!context->awaits) SIM_TRY(sim_stream_new(context, (abi_stream *)&context->awaits, ABI_STREAM_NON_BLOCKING, 0));
    int result = sim_event_await(event, context, NULL);
    pthread_mutex_lock(&sim.lock);
    for (struct sim_stream *stream = next_stream(context, sim.streams); stream && result == ABI_SUCCESS;
         stream = next_stream(context, stream->next))
        result = sim_event_await(event, context, stream);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

static int wait(struct sim_context *context, abi_event handle) {
    struct sim_event *event;
    SIM_TRY(event_of(context, handle, &event));
    if (SIM_LOCKED(sim_capture_by_id(event->capture) != NULL)) return ABI_ERROR_CAPTURE_ISOLATION;
    int result = wait_in(context, event);
    pthread_mutex_lock(&sim.lock);
    struct sim_context *other = context->primary ? sim.contexts : NULL; /* contexts are never freed */
    pthread_mutex_unlock(&sim.lock);
    for (; other && result == ABI_SUCCESS; other = other->next) {
        if (other->green && other->alive && other->device == context->device) result = wait_in(other, event);
    }
    return result;
}

SIM_ROW(cuCtxRecordEvent, (abi_context context, abi_event event), record((struct sim_context *)context, event))
SIM_ROW(cuCtxWaitEvent, (abi_context context, abi_event event), wait((struct sim_context *)context, event))
SIM_ROW(cuGreenCtxRecordEvent, (abi_green_context green, abi_event event), record((struct sim_context *)green, event))
SIM_ROW(cuGreenCtxWaitEvent, (abi_green_context green, abi_event event), wait((struct sim_context *)green, event))
