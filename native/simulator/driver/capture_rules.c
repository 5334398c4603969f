/* What captures forbid, after the section "Prohibited and Unhandled Operations" of the CUDA C++ Programming Guide (CUDA
 * Graphs) and the driver API's cuThreadExchangeStreamCaptureMode, cuStreamIsCapturing and error codes 900 to 908. A
 * call that is refused makes the captures invalid that forbid it ("Invalidation" in the same guide). */
#include "captures.h"

struct capture *sim_captures;
_Atomic unsigned sim_capture_count;

static _Thread_local int thread_mode = ABI_CAPTURE_GLOBAL;

const void *sim_capture_thread(void) {
    return &thread_mode;
}

struct capture *sim_capture_by_id(uint64_t id) {
    struct capture *capture = id ? sim_captures : NULL;
    while (capture && capture->id != id) capture = capture->next;
    return capture;
}

struct capture *sim_capture_of(struct sim_stream *stream) {
    uint64_t id = atomic_load_explicit(&stream->capture, memory_order_relaxed);
    struct capture *capture = sim_capture_by_id(id);
    if (id && !capture) atomic_store_explicit(&stream->capture, 0, memory_order_relaxed);
    return capture;
}

int sim_capture_break(struct capture *capture, int result) {
    capture->invalid = true;
    return result;
}

int sim_capture_end_both(struct capture *one, struct capture *other) {
    sim_capture_break(one, 0);
    return sim_capture_break(other, ABI_ERROR_CAPTURE_MERGE);
}

static bool forbids_legacy(const struct capture *capture, const void *context) {
    return capture->blocking && capture->context == context;
}
static bool forbids_context(const struct capture *capture, const void *context) {
    return capture->context == context;
}
/* The calling thread's mode decides whose captures count. */
static bool forbids_unsafe(const struct capture *capture, const void *nothing) {
    (void)nothing;
    if (thread_mode == ABI_CAPTURE_RELAXED) return false;
    if (capture->thread == sim_capture_thread()) return capture->mode != ABI_CAPTURE_RELAXED;
    return thread_mode == ABI_CAPTURE_GLOBAL && capture->mode == ABI_CAPTURE_GLOBAL;
}

/* Makes those captures invalid; `result` if there is any. */
static int break_those(bool (*forbids)(const struct capture *capture, const void *about), const void *about,
                       int result) {
    bool any = false;
    if (atomic_load(&sim_capture_count) == 0) return ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    for (struct capture *capture = sim_captures; capture; capture = capture->next) {
        if (!forbids(capture, about)) continue;
        any = true;
        capture->invalid = true;
    }
    pthread_mutex_unlock(&sim.lock);
    return any ? result : ABI_SUCCESS;
}

int sim_capture_forbids_legacy(struct sim_context *context) {
    return break_those(forbids_legacy, context, ABI_ERROR_CAPTURE_IMPLICIT);
}

int sim_capture_forbids_context(struct sim_context *context) {
    return break_those(forbids_context, context, ABI_ERROR_CAPTURE_UNSUPPORTED);
}

int sim_capture_forbids_unsafe(void) {
    return break_those(forbids_unsafe, NULL, ABI_ERROR_CAPTURE_UNSUPPORTED);
}

int sim_capture_forbids_sync(struct sim_context *context, struct sim_stream *stream) {
    if (!stream) return sim_capture_forbids_legacy(context);
    if (!atomic_load_explicit(&stream->capture, memory_order_relaxed)) return ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    struct capture *capture = sim_capture_of(stream);
    int result = capture ? sim_capture_break(capture, ABI_ERROR_CAPTURE_UNSUPPORTED) : ABI_SUCCESS;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

int sim_capture_forbids_event(struct sim_event *event) {
    int result = ABI_SUCCESS;
    if (event->capture) {
        pthread_mutex_lock(&sim.lock);
        struct capture *capture = sim_capture_by_id(event->capture);
        if (capture) capture->invalid = true;
        pthread_mutex_unlock(&sim.lock);
        result = ABI_ERROR_CAPTURED_EVENT;
    }
    return result == ABI_SUCCESS ? sim_capture_forbids_unsafe() : result;
}

bool sim_capture_is_implicit(const struct sim_context *context) {
    bool any = false;
    if (atomic_load(&sim_capture_count) == 0) return false;
    pthread_mutex_lock(&sim.lock);
    for (const struct capture *capture = sim_captures; capture; capture = capture->next)
        any = any || forbids_legacy(capture, context);
    pthread_mutex_unlock(&sim.lock);
    return any;
}

SIM_EXPORT abi_result cuThreadExchangeStreamCaptureMode(int *mode) {
    SIM_ENTER("cuThreadExchangeStreamCaptureMode");
    if (!mode || *mode < ABI_CAPTURE_GLOBAL || *mode > ABI_CAPTURE_RELAXED) return ABI_ERROR_INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return ABI_SUCCESS;
}
