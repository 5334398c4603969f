/* Streams, events and launches. Everything that a process submits to a GPU goes through one ring in order, whatever
 * the stream: a kernel is alone on the GPU anyway, and in-order completion makes every wait a comparison of numbers. A
 * submission costs a clock read and one cache line; the daemon is woken only when it sleeps or somebody waits. */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void ring_doorbell(void) {
    uint64_t one = 1;
    (void)!write(sim.doorbell, &one, sizeof one);
}

static int channel_wait(struct sim_channel *channel, uint64_t number) {
    for (;;) {
        uint32_t seen = atomic_load_explicit(&channel->completed_futex, memory_order_acquire);
        if (atomic_load_explicit(&channel->completed, memory_order_acquire) >= number) break;
        uint64_t wanted = atomic_load(&channel->wait_for);
        while ((wanted == 0 || wanted > number) && !atomic_compare_exchange_weak(&channel->wait_for, &wanted, number)) {
        }
        if (atomic_load(&channel->completed) >= number) break;
        ring_doorbell();
        /* The time-out only guards against a node that was stopped. */
        struct timespec limit = {.tv_sec = 1};
        syscall(SYS_futex, &channel->completed_futex, FUTEX_WAIT, seen, &limit, NULL, 0);
    }
    return atomic_load_explicit(&channel->error, memory_order_relaxed);
}

int sim_submit(struct sim_context *context, struct sim_stream *stream, struct sim_item *item, uint64_t *number) {
    struct sim_channel *channel = sim.channel[context->gpu];
    pthread_mutex_t *lock = &sim.queue_lock[context->gpu];
    item->submit_ns = now_ns();
    pthread_mutex_lock(lock);
    uint64_t put = atomic_load_explicit(&channel->put, memory_order_relaxed);
    while (put - atomic_load_explicit(&channel->completed, memory_order_acquire) >= SIM_RING_ENTRIES - 1) {
        channel_wait(channel, put - SIM_RING_ENTRIES / 2);
    }
    channel->ring[put % SIM_RING_ENTRIES] = *item;
    atomic_store_explicit(&channel->put, put + 1, memory_order_seq_cst);
    if (stream) atomic_store_explicit(&stream->last, put + 1, memory_order_relaxed);
    pthread_mutex_unlock(lock);
    if (number) *number = put + 1;
    if (atomic_load_explicit(&channel->sleeping, memory_order_seq_cst) && atomic_exchange(&channel->sleeping, 0))
        ring_doorbell();
    return ABI_SUCCESS;
}

int sim_wait(struct sim_context *context, uint64_t number) {
    struct sim_channel *channel = sim.channel[context->gpu];
    return channel ? channel_wait(channel, number) : ABI_SUCCESS;
}

int sim_wait_all(struct sim_context *context) {
    struct sim_channel *channel = sim.channel[context->gpu];
    return channel ? channel_wait(channel, atomic_load(&channel->put)) : ABI_SUCCESS;
}

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

int sim_wait_stream(abi_stream handle) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (sim_capture_breaks(stream)) return ABI_ERROR_CAPTURE_UNSUPPORTED;
    return stream ? sim_wait(context, atomic_load(&stream->last)) : sim_wait_all(context);
}

/* ---- streams ---- */

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
    sim_capture_stream_gone(stream);
    stream->magic = 0; /* its queued work goes on, as the real one's does */
    free(stream);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamDestroy(abi_stream handle) {
    return cuStreamDestroy_v2(handle);
}
SIM_EXPORT abi_result cuStreamSynchronize(abi_stream handle) {
    SIM_ENTER("cuStreamSynchronize");
    int result = sim_wait_stream(handle);
    sim_pools_settle();
    return result;
}
SIM_EXPORT abi_result cuStreamSynchronize_ptsz(abi_stream handle) {
    return cuStreamSynchronize(handle);
}
SIM_EXPORT abi_result cuStreamQuery(abi_stream handle) {
    SIM_ENTER("cuStreamQuery");
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (sim_capture_breaks(stream)) return ABI_ERROR_CAPTURE_UNSUPPORTED;
    struct sim_channel *channel = sim.channel[context->gpu];
    uint64_t last = stream ? atomic_load(&stream->last) : atomic_load(&channel->put);
    if (atomic_load_explicit(&channel->completed, memory_order_acquire) >= last) return ABI_SUCCESS;
    ring_doorbell(); /* the time line is moved when somebody asks */
    return ABI_ERROR_NOT_READY;
}
SIM_EXPORT abi_result cuStreamQuery_ptsz(abi_stream handle) {
    return cuStreamQuery(handle);
}
/* In-order completion: whatever was recorded before this call is done before whatever is submitted after it. */
SIM_EXPORT abi_result cuStreamWaitEvent(abi_stream handle, abi_event event, unsigned flags) {
    SIM_ENTER("cuStreamWaitEvent");
    (void)flags;
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (!event || ((struct sim_event *)event)->magic != SIM_EVENT_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    sim_capture_joins(stream, (struct sim_event *)event);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamWaitEvent_ptsz(abi_stream handle, abi_event event, unsigned flags) {
    return cuStreamWaitEvent(handle, event, flags);
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
/* ---- events ---- */

static bool cell_take(uint32_t gpu, uint32_t *cell) {
    bool found = true;
    pthread_mutex_lock(&sim.queue_lock[gpu]);
    if (sim.cell_free_count[gpu] > 0) *cell = sim.cell_free[gpu][--sim.cell_free_count[gpu]];
    else if (sim.cell_next[gpu] < SIM_CELLS) *cell = sim.cell_next[gpu]++;
    else found = false;
    if (found && !sim.cell_free[gpu]) sim.cell_free[gpu] = calloc(SIM_CELLS, sizeof **sim.cell_free);
    found = found && sim.cell_free[gpu];
    pthread_mutex_unlock(&sim.queue_lock[gpu]);
    return found;
}

static struct sim_event *events; /* all of them: who holds one may keep it where nobody looks */

SIM_EXPORT abi_result cuEventCreate(abi_event *out, unsigned flags) {
    SIM_ENTER("cuEventCreate");
    struct sim_context *context;
    int result = sim_current(&context);
    if (result != ABI_SUCCESS) return result;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    struct sim_event *event = calloc(1, sizeof *event);
    if (!event || !cell_take(context->gpu, &event->cell)) {
        free(event);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    event->magic = SIM_EVENT_MAGIC;
    event->context = context;
    event->flags = flags;
    pthread_mutex_lock(&sim.lock);
    event->next = events;
    event->place = &events;
    if (events) events->place = &event->next;
    events = event;
    pthread_mutex_unlock(&sim.lock);
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
    uint32_t gpu = event->context->gpu;
    /* A cell that the GPU has yet to write must not be handed out again. */
    if (event->item) sim_wait(event->context, event->item);
    pthread_mutex_lock(&sim.queue_lock[gpu]);
    sim.cell_free[gpu][sim.cell_free_count[gpu]++] = event->cell;
    pthread_mutex_unlock(&sim.queue_lock[gpu]);
    pthread_mutex_lock(&sim.lock);
    *event->place = event->next;
    if (event->next) event->next->place = event->place;
    pthread_mutex_unlock(&sim.lock);
    event->magic = 0;
    free(event);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuEventDestroy(abi_event handle) {
    return cuEventDestroy_v2(handle);
}

SIM_EXPORT abi_result cuEventRecord(abi_event handle, abi_stream stream_handle) {
    SIM_ENTER("cuEventRecord");
    struct sim_event *event;
    struct sim_context *context;
    struct sim_stream *stream;
    int result = event_of(handle, &event);
    if (result == ABI_SUCCESS) result = sim_stream_context(stream_handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (context->gpu != event->context->gpu) return ABI_ERROR_INVALID_HANDLE;
    if (event->item) sim_wait(context, event->item);
    if (sim_captured_event(stream, event)) return ABI_SUCCESS;
    atomic_store_explicit(&sim.channel[context->gpu]->cells[event->cell], 0, memory_order_relaxed);
    struct sim_item item = {.kind = SIM_ITEM_STAMP, .cell = event->cell};
    return sim_submit(context, stream, &item, &event->item);
}
SIM_EXPORT abi_result cuEventRecord_ptsz(abi_event event, abi_stream stream) {
    return cuEventRecord(event, stream);
}
SIM_EXPORT abi_result cuEventRecordWithFlags(abi_event event, abi_stream stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}
SIM_EXPORT abi_result cuEventRecordWithFlags_ptsz(abi_event event, abi_stream stream, unsigned flags) {
    (void)flags;
    return cuEventRecord(event, stream);
}

static bool event_done(const struct sim_event *event) {
    const struct sim_channel *channel = sim.channel[event->context->gpu];
    return atomic_load_explicit(&channel->completed, memory_order_acquire) >= event->item;
}

SIM_EXPORT abi_result cuEventQuery(abi_event handle) {
    SIM_ENTER("cuEventQuery");
    struct sim_event *event;
    int result = event_of(handle, &event);
    if (result == ABI_SUCCESS && event->capture) return ABI_ERROR_CAPTURED_EVENT;
    if (result != ABI_SUCCESS || event_done(event)) return result;
    ring_doorbell();
    return ABI_ERROR_NOT_READY;
}
SIM_EXPORT abi_result cuEventSynchronize(abi_event handle) {
    SIM_ENTER("cuEventSynchronize");
    struct sim_event *event;
    int result = event_of(handle, &event);
    if (result == ABI_SUCCESS && event->capture) return ABI_ERROR_CAPTURED_EVENT;
    if (result == ABI_SUCCESS) result = sim_wait(event->context, event->item);
    sim_pools_settle();
    return result;
}

static int elapsed(float *ms, abi_event start, abi_event end) {
    struct sim_event *first, *second;
    int result = event_of(start, &first);
    if (result == ABI_SUCCESS) result = event_of(end, &second);
    if (result != ABI_SUCCESS) return result;
    if (!ms) return ABI_ERROR_INVALID_VALUE;
    if (!first->item || !second->item || (first->flags | second->flags) & ABI_EVENT_DISABLE_TIMING ||
        first->context->gpu != second->context->gpu)
        return ABI_ERROR_INVALID_HANDLE;
    if (!event_done(first) || !event_done(second)) return ABI_ERROR_NOT_READY;
    struct sim_channel *channel = sim.channel[first->context->gpu];
    *ms = (float)((double)(int64_t)(atomic_load(&channel->cells[second->cell]) -
                                    atomic_load(&channel->cells[first->cell])) /
                  1e6);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuEventElapsedTime_v2(float *ms, abi_event start, abi_event end) {
    SIM_ENTER("cuEventElapsedTime_v2");
    return elapsed(ms, start, end);
}
SIM_EXPORT abi_result cuEventElapsedTime(float *ms, abi_event start, abi_event end) {
    SIM_ENTER("cuEventElapsedTime");
    return elapsed(ms, start, end);
}

/* ---- launches ---- */

static int launch(struct sim_function *function, uint64_t blocks, uint64_t threads, abi_stream handle) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (!function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (blocks == 0 || threads == 0 || threads > 1024) return ABI_ERROR_INVALID_VALUE;
    struct sim_item item = sim_kernel(function, blocks);
    struct sim_step step = {.type = ABI_NODE_KERNEL, .item = item};
    if (sim_captured(stream, &step, &result)) return result;
    return sim_submit(context, stream, &item, NULL);
}

SIM_EXPORT abi_result cuLaunchKernel(struct sim_function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                     unsigned by, unsigned bz, unsigned shared, abi_stream stream, void **parameters,
                                     void **extra) {
    SIM_ENTER("cuLaunchKernel");
    (void)shared;
    (void)parameters;
    (void)extra;
    return launch(function, (uint64_t)gx * gy * gz, (uint64_t)bx * by * bz, stream);
}
SIM_EXPORT abi_result cuLaunchKernel_ptsz(struct sim_function *function, unsigned gx, unsigned gy, unsigned gz,
                                          unsigned bx, unsigned by, unsigned bz, unsigned shared, abi_stream stream,
                                          void **parameters, void **extra) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
SIM_EXPORT abi_result cuLaunchKernelEx(const abi_launch_config *config, struct sim_function *function,
                                       void **parameters, void **extra) {
    SIM_ENTER("cuLaunchKernelEx");
    (void)parameters;
    (void)extra;
    if (!config) return ABI_ERROR_INVALID_VALUE;
    return launch(function, (uint64_t)config->grid_x * config->grid_y * config->grid_z,
                  (uint64_t)config->block_x * config->block_y * config->block_z, config->stream);
}
SIM_EXPORT abi_result cuLaunchKernelEx_ptsz(const abi_launch_config *config, struct sim_function *function,
                                            void **parameters, void **extra) {
    return cuLaunchKernelEx(config, function, parameters, extra);
}
SIM_EXPORT abi_result cuLaunchCooperativeKernel(struct sim_function *function, unsigned gx, unsigned gy, unsigned gz,
                                                unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                                abi_stream stream, void **parameters) {
    SIM_ENTER("cuLaunchCooperativeKernel");
    (void)shared;
    (void)parameters;
    return launch(function, (uint64_t)gx * gy * gz, (uint64_t)bx * by * bz, stream);
}
SIM_EXPORT abi_result cuLaunchCooperativeKernel_ptsz(struct sim_function *function, unsigned gx, unsigned gy,
                                                     unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                                     unsigned shared, abi_stream stream, void **parameters) {
    return cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters);
}
