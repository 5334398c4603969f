/* Stream capture: calls on a capturing stream become steps of a graph instead of being executed. A stream joins the
 * capture of an event that it waits for. What a capture forbids elsewhere in the process (its mode) is not
 * simulated. */
#include <stdlib.h>
#include <string.h>

#include "../sim.h"

struct capture {
    uint64_t id;
    struct sim_graph *graph;
    const struct sim_stream *origin;
    bool invalid;
    struct capture *next;
};
static struct capture *captures; /* under sim.lock */

/* Under sim.lock: the stream's capture, or NULL; its origin may have ended it. */
static struct capture *capture_of(struct sim_stream *stream) {
    uint64_t id = stream ? atomic_load_explicit(&stream->capture, memory_order_relaxed) : 0;
    struct capture *capture = id ? captures : NULL;
    while (capture && capture->id != id) capture = capture->next;
    if (id && !capture) atomic_store_explicit(&stream->capture, 0, memory_order_relaxed);
    return capture;
}

static void unlink_capture(struct capture *capture) {
    for (struct capture **place = &captures; *place; place = &(*place)->next) {
        if (*place == capture) {
            *place = capture->next;
            break;
        }
    }
}

/* Takes the lock and finds the capture; false: the stream does not capture, and the lock is not held. */
static bool enter(struct sim_stream *stream, struct capture **capture) {
    if (!stream || !atomic_load_explicit(&stream->capture, memory_order_relaxed)) return false;
    pthread_mutex_lock(&sim.lock);
    *capture = capture_of(stream);
    if (!*capture) pthread_mutex_unlock(&sim.lock);
    return *capture;
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

bool sim_capture_event(struct sim_stream *stream, struct sim_event *event) {
    struct capture *capture;
    event->capture = 0;
    if (!enter(stream, &capture)) return false;
    event->capture = capture->id;
    event->item = 0;
    pthread_mutex_unlock(&sim.lock);
    return true;
}

void sim_capture_join(struct sim_stream *stream, const struct sim_event *event) {
    if (stream && event->capture) atomic_store_explicit(&stream->capture, event->capture, memory_order_relaxed);
}

bool sim_capture_invalidate(struct sim_stream *stream) {
    struct capture *capture;
    if (!enter(stream, &capture)) return false;
    capture->invalid = true;
    pthread_mutex_unlock(&sim.lock);
    return true;
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
    } else if (capture_of(stream)) {
        result = ABI_ERROR_ILLEGAL_STATE;
    } else {
        *capture = (struct capture){.id = ++sim.next_id, .graph = graph, .origin = stream, .next = captures};
        captures = capture;
        atomic_store_explicit(&stream->capture, capture->id, memory_order_relaxed);
    }
    pthread_mutex_unlock(&sim.lock);
    if (result != ABI_SUCCESS) {
        free(capture);
        free(graph);
    }
    return result;
}

SIM_EXPORT abi_result cuStreamBeginCapture_v2(abi_stream stream, int mode) {
    SIM_ENTER("cuStreamBeginCapture_v2");
    return begin(stream, mode);
}
SIM_EXPORT abi_result cuStreamBeginCapture_v2_ptsz(abi_stream stream, int mode) {
    return cuStreamBeginCapture_v2(stream, mode);
}
SIM_EXPORT abi_result cuStreamBeginCapture(abi_stream stream) {
    SIM_ENTER("cuStreamBeginCapture");
    return begin(stream, ABI_CAPTURE_GLOBAL);
}
SIM_EXPORT abi_result cuStreamBeginCapture_ptsz(abi_stream stream) {
    return cuStreamBeginCapture(stream);
}

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
SIM_EXPORT abi_result cuStreamEndCapture_ptsz(abi_stream stream, abi_graph *out) {
    return cuStreamEndCapture(stream, out);
}

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
SIM_EXPORT abi_result cuStreamIsCapturing_ptsz(abi_stream stream, int *status) {
    return cuStreamIsCapturing(stream, status);
}

static int answer_info(abi_stream stream, int *status, uint64_t *id, abi_graph *graph, const abi_graph_node **last,
                       size_t *count) {
    struct information information;
    if (!status) return ABI_ERROR_INVALID_VALUE;
    int result = inform(stream, &information);
    if (result != ABI_SUCCESS) return result;
    *status = information.status;
    if (id) *id = information.id;
    if (graph) *graph = information.graph;
    if (last) *last = information.last;
    if (count) *count = information.last_count;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamGetCaptureInfo(abi_stream stream, int *status, uint64_t *id) {
    SIM_ENTER("cuStreamGetCaptureInfo");
    return answer_info(stream, status, id, NULL, NULL, NULL);
}
SIM_EXPORT abi_result cuStreamGetCaptureInfo_ptsz(abi_stream stream, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo(stream, status, id);
}
SIM_EXPORT abi_result cuStreamGetCaptureInfo_v2(abi_stream stream, int *status, uint64_t *id, abi_graph *graph,
                                                const abi_graph_node **last, size_t *count) {
    SIM_ENTER("cuStreamGetCaptureInfo_v2");
    return answer_info(stream, status, id, graph, last, count);
}
SIM_EXPORT abi_result cuStreamGetCaptureInfo_v2_ptsz(abi_stream stream, int *status, uint64_t *id, abi_graph *graph,
                                                     const abi_graph_node **last, size_t *count) {
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, last, count);
}
SIM_EXPORT abi_result cuStreamGetCaptureInfo_v3(abi_stream stream, int *status, uint64_t *id, abi_graph *graph,
                                                const abi_graph_node **last, const void **edges, size_t *count) {
    SIM_ENTER("cuStreamGetCaptureInfo_v3");
    if (edges) *edges = NULL; /* plain edges only */
    return answer_info(stream, status, id, graph, last, count);
}
SIM_EXPORT abi_result cuStreamGetCaptureInfo_v3_ptsz(abi_stream stream, int *status, uint64_t *id, abi_graph *graph,
                                                     const abi_graph_node **last, const void **edges, size_t *count) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, last, edges, count);
}

SIM_EXPORT abi_result cuThreadExchangeStreamCaptureMode(int *mode) {
    SIM_ENTER("cuThreadExchangeStreamCaptureMode");
    static _Thread_local int current = ABI_CAPTURE_GLOBAL;
    if (!mode || *mode < ABI_CAPTURE_GLOBAL || *mode > ABI_CAPTURE_RELAXED) return ABI_ERROR_INVALID_VALUE;
    int before = current;
    current = *mode;
    *mode = before;
    return ABI_SUCCESS;
}
