/* Stream objects: creation, and the look-up of a handle's stream and context. */
#include <stdlib.h>

#include "sim.h"

/* Handles 0, 1 and 2 are the default streams; *object is NULL for them. */
int sim_stream_context(abi_stream handle, struct sim_context **context, struct sim_stream **object) {
    *object = NULL;
    if ((uintptr_t)handle <= (uintptr_t)ABI_STREAM_PER_THREAD) return sim_current(context);
    struct sim_stream *stream = (struct sim_stream *)handle;
    if (stream->magic != SIM_STREAM_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    *object = stream;
    *context = stream->context;
    return sim_usable(stream->context);
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
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_stream)stream;
    return ABI_SUCCESS;
}
