/* Stream capture: calls on a capturing stream become steps of a graph instead of being executed. A stream joins the
 * capture of an event that it waits for. What captures forbid is in capture_rules.c. */
#include "../captures.h"

#include <stdlib.h>
#include <string.h>

/* Takes the lock and finds the capture; false: the stream does not capture, and the lock is not held. */
static bool enter(struct sim_stream *stream, struct capture **capture) {
    if (!stream || !atomic_load_explicit(&stream->capture, memory_order_relaxed)) return false;
    pthread_mutex_lock(&sim.lock);
    *capture = sim_capture_of(stream);
    if (!*capture) pthread_mutex_unlock(&sim.lock);
    return *capture;
}

static void unlink_capture(struct capture *capture) {
    for (struct capture **place = &sim_captures; *place; place = &(*place)->next) {
        if (*place == capture) {
            *place = capture->next;
            atomic_fetch_sub(&sim_capture_count, 1);
            break;
        }
    }
}

bool sim_capture_step(struct sim_stream *stream, const struct sim_step *step, int *result) {
    struct capture *capture;
    if (!enter(stream, &capture)) return false;
    *result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : sim_graph_add(capture->graph, step, NULL);
    pthread_mutex_unlock(&sim.lock);
    return true;
}

bool sim_capture_alloc(struct sim_stream *stream, uint64_t bytes, abi_devptr *pointer, int *result) {
    struct capture *capture;
    struct sim_step step;
    if (!enter(stream, &capture)) return false;
    *result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED
              : pointer        ? sim_graph_alloc_step(stream->context->device, bytes, &step)
                               : ABI_ERROR_INVALID_VALUE;
    if (*result == ABI_SUCCESS) {
        *pointer = sim_graph_memory_address(step.memory);
        *result = sim_graph_add(capture->graph, &step, NULL);
    }
    pthread_mutex_unlock(&sim.lock);
    return true;
}

bool sim_capture_free(struct sim_stream *stream, abi_devptr pointer, int *result) {
    struct capture *capture;
    struct sim_step step;
    if (!enter(stream, &capture)) return false;
    *result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : sim_graph_free_step(pointer, &step);
    if (*result == ABI_SUCCESS) *result = sim_graph_add(capture->graph, &step, NULL);
    pthread_mutex_unlock(&sim.lock);
    return true;
}

bool sim_capture_event(struct sim_stream *stream, struct sim_event *event, int *result) {
    struct capture *capture;
    event->capture = 0;
    if (!enter(stream, &capture)) return false;
    *result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : ABI_SUCCESS;
    event->capture = capture->id;
    event->item = 0;
    pthread_mutex_unlock(&sim.lock);
    return true;
}

bool sim_capture_wait(struct sim_stream *stream, const struct sim_event *event, unsigned flags, int *result) {
    if (atomic_load(&sim_capture_count) == 0) return false;
    pthread_mutex_lock(&sim.lock);
    struct capture *own = stream ? sim_capture_of(stream) : NULL, *of_event = sim_capture_by_id(event->capture);
    bool captured = true;
    if (own && own->invalid) *result = ABI_ERROR_CAPTURE_INVALIDATED;
    else if (own && of_event && own != of_event) *result = sim_capture_end_both(own, of_event);
    else if (own && !of_event && !(flags & ABI_EVENT_WAIT_EXTERNAL))
        *result = sim_capture_break(own, ABI_ERROR_CAPTURE_ISOLATION);
    else if (!own && of_event && !stream) *result = sim_capture_break(of_event, ABI_ERROR_CAPTURE_IMPLICIT);
    else if (!own && of_event) {
        atomic_store_explicit(&stream->capture, of_event->id, memory_order_relaxed);
        of_event->blocking = of_event->blocking || !(stream->flags & ABI_STREAM_NON_BLOCKING);
    } else captured = own != NULL;
    pthread_mutex_unlock(&sim.lock);
    return captured;
}

void sim_capture_end_with_stream(struct sim_stream *stream) {
    struct capture *capture;
    if (!enter(stream, &capture)) return;
    if (capture->origin == stream) {
        unlink_capture(capture);
        sim_graph_end(capture->graph);
        free(capture);
    }
    pthread_mutex_unlock(&sim.lock);
}

static int begin(abi_stream handle, int mode) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (mode < ABI_CAPTURE_GLOBAL || mode > ABI_CAPTURE_RELAXED) return ABI_ERROR_INVALID_VALUE;
    if (!stream) return ABI_ERROR_CAPTURE_UNSUPPORTED; /* the default streams */
    struct capture *capture = calloc(1, sizeof *capture);
    struct sim_graph *graph = sim_graph_new();
    pthread_mutex_lock(&sim.lock);
    if (!capture || !graph) {
        result = ABI_ERROR_OUT_OF_MEMORY;
    } else if (sim_capture_of(stream)) {
        result = ABI_ERROR_ILLEGAL_STATE;
    } else {
        *capture = (struct capture){.id = ++sim.next_id,
                                    .graph = graph,
                                    .origin = stream,
                                    .context = context,
                                    .mode = mode,
                                    .thread = sim_capture_thread(),
                                    .blocking = !(stream->flags & ABI_STREAM_NON_BLOCKING),
                                    .next = sim_captures};
        sim_captures = capture;
        atomic_fetch_add(&sim_capture_count, 1);
        atomic_store_explicit(&stream->capture, capture->id, memory_order_relaxed);
    }
    pthread_mutex_unlock(&sim.lock);
    if (result != ABI_SUCCESS) {
        free(capture);
        free(graph);
    }
    return result;
}

SIM_ROW(cuStreamBeginCapture_v2, (abi_stream stream, int mode), begin(stream, mode))
SIM_SAME(cuStreamBeginCapture_v2_ptsz, (abi_stream stream, int mode), cuStreamBeginCapture_v2(sim_own(stream), mode))
SIM_ROW(cuStreamBeginCapture, (abi_stream stream), begin(stream, ABI_CAPTURE_GLOBAL))
SIM_SAME(cuStreamBeginCapture_ptsz, (abi_stream stream), cuStreamBeginCapture(sim_own(stream)))

SIM_EXPORT abi_result cuStreamEndCapture(abi_stream handle, abi_graph *out) {
    SIM_ENTER("cuStreamEndCapture");
    struct sim_context *context;
    struct sim_stream *stream;
    struct capture *capture;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    if (!enter(stream, &capture)) return ABI_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        result = ABI_ERROR_CAPTURE_UNMATCHED;
    } else if (capture->mode != ABI_CAPTURE_RELAXED && capture->thread != sim_capture_thread()) {
        result = ABI_ERROR_CAPTURE_WRONG_THREAD;
    } else {
        unlink_capture(capture);
        atomic_store_explicit(&stream->capture, 0, memory_order_relaxed);
        result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : ABI_SUCCESS;
        if (capture->invalid) sim_graph_end(capture->graph);
        *out = capture->invalid ? NULL : (abi_graph)capture->graph;
        free(capture);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_SAME(cuStreamEndCapture_ptsz, (abi_stream stream, abi_graph *out), cuStreamEndCapture(sim_own(stream), out))

struct information {
    int status;
    uint64_t id;
    abi_graph graph;
    const abi_graph_node *last;
    size_t last_count;
};

static int inform(abi_stream handle, struct information *information) {
    struct sim_context *context;
    struct sim_stream *stream;
    struct capture *capture;
    *information = (struct information){.status = ABI_CAPTURE_NONE};
    int result = sim_stream_context(handle, &context, &stream);
    if (result == ABI_SUCCESS && !stream && sim_capture_is_implicit(context)) return ABI_ERROR_CAPTURE_IMPLICIT;
    if (result != ABI_SUCCESS || !enter(stream, &capture)) return result;
    const abi_graph_node *last = sim_graph_last(capture->graph);
    *information = (struct information){
        .status = capture->invalid ? ABI_CAPTURE_INVALIDATED : ABI_CAPTURE_ACTIVE,
        .id = capture->id,
        .graph = (abi_graph)capture->graph,
        .last = last,
        .last_count = *last ? 1 : 0,
    };
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuStreamIsCapturing(abi_stream stream, int *status) {
    SIM_ENTER("cuStreamIsCapturing");
    struct information information;
    if (!status) return ABI_ERROR_INVALID_VALUE;
    int result = inform(stream, &information);
    if (result == ABI_SUCCESS) *status = information.status;
    return result;
}
SIM_SAME(cuStreamIsCapturing_ptsz, (abi_stream stream, int *status), cuStreamIsCapturing(sim_own(stream), status))

static int answer_info(abi_stream stream, int *status, uint64_t *id, abi_graph *graph, const abi_graph_node **last,
                       size_t *count) {
    struct information information;
    if (!status) return ABI_ERROR_INVALID_VALUE;
    SIM_TRY(inform(stream, &information));
    *status = information.status;
    if (id) *id = information.id;
    if (graph) *graph = information.graph;
    if (last) *last = information.last;
    if (count) *count = information.last_count;
    return ABI_SUCCESS;
}
SIM_ROW(cuStreamGetCaptureInfo, (abi_stream stream, int *status, uint64_t *id),
        answer_info(stream, status, id, NULL, NULL, NULL))
SIM_SAME(cuStreamGetCaptureInfo_ptsz, (abi_stream stream, int *status, uint64_t *id),
         cuStreamGetCaptureInfo(sim_own(stream), status, id))
SIM_ROW(cuStreamGetCaptureInfo_v2,
        (abi_stream stream, int *status, uint64_t *id, abi_graph *graph, const abi_graph_node **last, size_t *count),
        answer_info(stream, status, id, graph, last, count))
SIM_SAME(cuStreamGetCaptureInfo_v2_ptsz,
         (abi_stream stream, int *status, uint64_t *id, abi_graph *graph, const abi_graph_node **last, size_t *count),
         cuStreamGetCaptureInfo_v2(sim_own(stream), status, id, graph, last, count))
SIM_EXPORT abi_result cuStreamGetCaptureInfo_v3(abi_stream stream, int *status, uint64_t *id, abi_graph *graph,
                                                const abi_graph_node **last, const void **edges, size_t *count) {
    SIM_ENTER("cuStreamGetCaptureInfo_v3");
    if (edges) *edges = NULL; /* plain edges only */
    return answer_info(stream, status, id, graph, last, count);
}
SIM_SAME(cuStreamGetCaptureInfo_v3_ptsz,
         (abi_stream stream, int *status, uint64_t *id, abi_graph *graph, const abi_graph_node **last,
          const void **edges, size_t *count),
         cuStreamGetCaptureInfo_v3(sim_own(stream), status, id, graph, last, edges, count))
