/* Stream objects: creation, and the look-up of a handle's stream and context. */
#include <stdio.h>
#include <stdlib.h>

#include "sim.h"

/* Has a new stream wait for what all streams of its context await (entry/contexts/context_events.c). */
static int await_context(struct sim_context *context, struct sim_stream *stream) {
    const struct sim_stream *awaits = context->awaits;
    uint64_t last = awaits ? atomic_load(&awaits->last) : 0;
    if (!last || awaits == stream || sim_is_done(context, awaits->queue, last)) return ABI_SUCCESS;
    struct sim_item item = {.kind = SIM_ITEM_WAIT,
                            .wait_gpu = (uint16_t)context->gpu,
                            .wait_queue = (uint16_t)awaits->queue,
                            .wait_number = last};
    return sim_submit(context, stream, &item, NULL);
}

int sim_stream_new(struct sim_context *context, abi_stream *out, unsigned flags, int priority) {
    if (!out || flags > ABI_STREAM_NON_BLOCKING) return ABI_ERROR_INVALID_VALUE;
    struct sim_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return ABI_ERROR_OUT_OF_MEMORY;
    stream->magic = SIM_STREAM_MAGIC;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    pthread_mutex_lock(&sim.lock);
    stream->id = ++sim.next_id;
    stream->queue = sim_queue_take(context, false);
    stream->next = sim.streams;
    if (stream->next) stream->next->before = stream;
    sim.streams = stream;
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_stream)stream;
    return await_context(context, stream);
}

/* Then the driver ends who uses a destroyed stream: what the real one does is not documented. */
static bool is_strict(void) {
    return getenv("COTENANT_SIM_STRICT") != NULL;
}

static int not_a_stream(void) {
    if (!is_strict()) return ABI_ERROR_INVALID_HANDLE;
    fprintf(stderr, "simulated driver: a stream is used that was destroyed, or never was one\n");
    abort();
}

void sim_stream_end(struct sim_stream *stream) {
    pthread_mutex_lock(&sim.lock);
    sim.queues[stream->context->gpu][stream->queue].streams--;
    if (stream->next) stream->next->before = stream->before;
    *(stream->before ? &stream->before->next : &sim.streams) = stream->next;
    pthread_mutex_unlock(&sim.lock);
    stream->magic = 0; /* its queued work continues, as with the real driver */
    free(stream->after.list);
    if (!is_strict()) free(stream); /* else a new one could have its address */
}

/* The calling thread's own default streams, one for each context. */
static _Thread_local struct sim_stream *own_streams;

static int own_stream(struct sim_context *context, struct sim_stream **object) {
    for (*object = own_streams; *object; *object = (*object)->next_own) {
        if ((*object)->context == context) return ABI_SUCCESS;
    }
    SIM_TRY(sim_stream_new(context, (abi_stream *)object, 0, 0));
    (*object)->next_own = own_streams;
    own_streams = *object;
    return ABI_SUCCESS;
}

/* Handles 0 and 1 are the legacy default stream; *object is NULL for them. */
int sim_stream_context(abi_stream handle, struct sim_context **context, struct sim_stream **object) {
    *object = NULL;
    if ((uintptr_t)handle <= (uintptr_t)ABI_STREAM_PER_THREAD) {
        int result = sim_current(context);
        return result == ABI_SUCCESS && handle == ABI_STREAM_PER_THREAD ? own_stream(*context, object) : result;
    }
    struct sim_stream *stream = (struct sim_stream *)handle;
    if (stream->magic != SIM_STREAM_MAGIC) return not_a_stream();
    *object = stream;
    *context = stream->context;
    if (stream->context->green && !stream->context->alive && sim_library_cuda >= 13010)
        return ABI_ERROR_STREAM_DETACHED;
    return sim_usable(stream->context);
}
