/* Stream capture: calls on a capturing stream become steps of a graph instead of being executed. A stream joins the
 * capture of an event that it waits for. What captures forbid is in capture_rules.c. */
#include "../captures.h"
#include "graph.h"

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

/* ---- what a stream's next node comes after: all under the lock ---- */

static bool has(const struct sim_nodes *nodes, abi_graph_node node) {
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->list[i] == node) return true;
    return false;
}

static int join(struct sim_nodes *nodes, const abi_graph_node *more, size_t count) {
    abi_graph_node *list = realloc(nodes->list, (nodes->count + count + 1) * sizeof *list);
    if (!list) return ABI_ERROR_OUT_OF_MEMORY;
    nodes->list = list;
    for (size_t i = 0; i < count; i++)
        if (!has(nodes, more[i])) list[nodes->count++] = more[i];
    return ABI_SUCCESS;
}

static int replace(struct sim_nodes *nodes, const struct sim_nodes *by) {
    nodes->count = 0;
    return join(nodes, by->list, by->count);
}

static int add(struct capture *capture, struct sim_stream *stream, struct sim_step *step) {
    abi_graph_node node;
    SIM_TRY(sim_graph_add(capture->graph, step, stream->after.list, stream->after.count, &node));
    stream->after.count = 0;
    return join(&stream->after, &node, 1);
}

/* ---- calls that are recorded ---- */

bool sim_capture_step(struct sim_stream *stream, struct sim_step *step, int *result) {
    struct capture *capture;
    if (!enter(stream, &capture)) return false;
    *result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : add(capture, stream, step);
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
        *result = add(capture, stream, &step);
    }
    pthread_mutex_unlock(&sim.lock);
    return true;
}

bool sim_capture_free(struct sim_stream *stream, abi_devptr pointer, int *result) {
    struct capture *capture;
    struct sim_step step;
    if (!enter(stream, &capture)) return false;
    *result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : sim_graph_free_step(pointer, &step);
    if (*result == ABI_SUCCESS) *result = add(capture, stream, &step);
    pthread_mutex_unlock(&sim.lock);
    return true;
}

bool sim_capture_event(struct sim_stream *stream, struct sim_event *event, int *result) {
    struct capture *capture;
    event->capture = 0;
    if (!enter(stream, &capture)) return false;
    *result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : replace(&event->after, &stream->after);
    event->capture = capture->id;
    event->item = 0;
    pthread_mutex_unlock(&sim.lock);
    return true;
}

/* In a stream that captures. */
static int wait_inside(struct capture *own, struct capture *of_event, struct sim_stream *stream,
                       struct sim_event *event, unsigned flags) {
    struct sim_step step = {.type = ABI_NODE_WAIT_EVENT, .event = event};
    if (own->invalid) return ABI_ERROR_CAPTURE_INVALIDATED;
    if (flags & ABI_EVENT_WAIT_EXTERNAL) return add(own, stream, &step);
    if (!of_event) return sim_capture_break(own, ABI_ERROR_CAPTURE_ISOLATION);
    if (own != of_event) return sim_capture_end_both(own, of_event);
    return join(&stream->after, event->after.list, event->after.count);
}

bool sim_capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags, int *result) {
    if (atomic_load(&sim_capture_count) == 0) return false;
    pthread_mutex_lock(&sim.lock);
    struct capture *own = stream ? sim_capture_of(stream) : NULL, *of_event = sim_capture_by_id(event->capture);
    if (own) *result = wait_inside(own, of_event, stream, event, flags);
    else if (of_event && !stream) *result = sim_capture_break(of_event, ABI_ERROR_CAPTURE_IMPLICIT);
    else if (of_event) {
        *result = replace(&stream->after, &event->after);
        atomic_store_explicit(&stream->capture, of_event->id, memory_order_relaxed);
        of_event->blocking = of_event->blocking || !(stream->flags & ABI_STREAM_NON_BLOCKING);
    }
    pthread_mutex_unlock(&sim.lock);
    return own || of_event;
}

void sim_capture_end_with_stream(struct sim_stream *stream) {
    struct capture *capture;
    if (!enter(stream, &capture)) return;
    if (capture->origin == stream) {
        unlink_capture(capture);
        if (!capture->given) sim_graph_end(capture->graph);
        free(capture);
    }
    pthread_mutex_unlock(&sim.lock);
}

static int begin(abi_stream handle, int mode, struct sim_graph *given, const struct sim_nodes *after) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (mode < ABI_CAPTURE_GLOBAL || mode > ABI_CAPTURE_RELAXED) return ABI_ERROR_INVALID_VALUE;
    if (!stream) return ABI_ERROR_CAPTURE_UNSUPPORTED; /* the default streams */
    struct capture *capture = calloc(1, sizeof *capture);
    struct sim_graph *graph = given ? given : sim_graph_new();
    pthread_mutex_lock(&sim.lock);
    if (!capture || !graph) {
        result = ABI_ERROR_OUT_OF_MEMORY;
    } else if (sim_capture_of(stream)) {
        result = ABI_ERROR_ILLEGAL_STATE;
    } else if ((result = replace(&stream->after, after)) == ABI_SUCCESS) {
        *capture = (struct capture){.id = ++sim.next_id,
                                    .graph = graph,
                                    .given = given,
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
        if (!given) free(graph);
    }
    return result;
}

/* All are nodes of the graph. */
static bool are_of(const struct sim_graph *graph, const abi_graph_node *nodes, size_t count) {
    bool all = nodes || !count;
    for (size_t i = 0; all && i < count; i++) {
        const struct sim_graph_node *node = sim_node_of(nodes[i]);
        all = node && node->graph == graph;
    }
    return all;
}

SIM_EXPORT abi_result cuStreamBeginCaptureToGraph(abi_stream stream, abi_graph handle, const abi_graph_node *after,
                                                  const void *edges, size_t count, int mode) {
    SIM_ENTER("cuStreamBeginCaptureToGraph");
    (void)edges;
    struct sim_graph *graph = sim_graph_of(handle);
    if (!graph || !are_of(graph, after, count)) return ABI_ERROR_INVALID_VALUE;
    return begin(stream, mode, graph, &(struct sim_nodes){(abi_graph_node *)after, count});
}
SIM_SAME(cuStreamBeginCaptureToGraph_ptsz,
         (abi_stream stream, abi_graph graph, const abi_graph_node *after, const void *edges, size_t count, int mode),
         cuStreamBeginCaptureToGraph(sim_own(stream), graph, after, edges, count, mode))

static const struct sim_nodes NO_NODES;
SIM_ROW(cuStreamBeginCapture_v2, (abi_stream stream, int mode), begin(stream, mode, NULL, &NO_NODES))
SIM_SAME(cuStreamBeginCapture_v2_ptsz, (abi_stream stream, int mode), cuStreamBeginCapture_v2(sim_own(stream), mode))
SIM_ROW(cuStreamBeginCapture, (abi_stream stream), begin(stream, ABI_CAPTURE_GLOBAL, NULL, &NO_NODES))
SIM_SAME(cuStreamBeginCapture_ptsz, (abi_stream stream), cuStreamBeginCapture(sim_own(stream)))

/* Whether all that other streams captured comes before what the origin goes on after. */
static bool is_joined(const struct capture *capture) {
    const struct sim_nodes *end = &capture->origin->after;
    for (struct sim_stream *stream = sim.streams; stream; stream = stream->next) {
        if (stream == capture->origin || stream->capture != capture->id) continue;
        for (size_t i = 0; i < stream->after.count; i++) {
            bool before = false;
            for (size_t k = 0; k < end->count && !before; k++)
                before = sim_node_depends_on(sim_node_of(end->list[k]), sim_node_of(stream->after.list[i]));
            if (!before) return false;
        }
    }
    return true;
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
    } else if (capture->mode != ABI_CAPTURE_RELAXED && capture->thread != sim_capture_thread()) {
        result = ABI_ERROR_CAPTURE_WRONG_THREAD;
    } else {
        unlink_capture(capture);
        atomic_store_explicit(&stream->capture, 0, memory_order_relaxed);
        result = capture->invalid     ? ABI_ERROR_CAPTURE_INVALIDATED
                 : is_joined(capture) ? ABI_SUCCESS
                                      : ABI_ERROR_CAPTURE_UNJOINED;
        *out = result == ABI_SUCCESS ? (abi_graph)capture->graph : NULL;
        if (result != ABI_SUCCESS && !capture->given) sim_graph_end(capture->graph);
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
    *information = (struct information){
        .status = capture->invalid ? ABI_CAPTURE_INVALIDATED : ABI_CAPTURE_ACTIVE,
        .id = capture->id,
        .graph = (abi_graph)capture->graph,
        .last = stream->after.list,
        .last_count = stream->after.count,
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

enum { ADD_DEPENDENCIES = 0, SET_DEPENDENCIES = 1 };
static int update_dependencies(abi_stream handle, const abi_graph_node *nodes, size_t count, unsigned flags) {
    struct sim_context *context;
    struct sim_stream *stream;
    struct capture *capture;
    SIM_TRY(sim_stream_context(handle, &context, &stream));
    if (!enter(stream, &capture)) return ABI_ERROR_ILLEGAL_STATE;
    int result = capture->invalid ? ABI_ERROR_CAPTURE_INVALIDATED : ABI_ERROR_INVALID_VALUE;
    if (!capture->invalid && flags <= SET_DEPENDENCIES && are_of(capture->graph, nodes, count)) {
        if (flags == SET_DEPENDENCIES) stream->after.count = 0;
        result = join(&stream->after, nodes, count);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_ROW(cuStreamUpdateCaptureDependencies,
        (abi_stream stream, const abi_graph_node *nodes, size_t count, unsigned flags),
        update_dependencies(stream, nodes, count, flags))
SIM_SAME(cuStreamUpdateCaptureDependencies_ptsz,
         (abi_stream stream, const abi_graph_node *nodes, size_t count, unsigned flags),
         cuStreamUpdateCaptureDependencies(sim_own(stream), nodes, count, flags))
SIM_ROW(cuStreamUpdateCaptureDependencies_v2,
        (abi_stream stream, const abi_graph_node *nodes, const void *edges, size_t count, unsigned flags),
        update_dependencies(stream, nodes, count, flags))
SIM_SAME(cuStreamUpdateCaptureDependencies_v2_ptsz,
         (abi_stream stream, const abi_graph_node *nodes, const void *edges, size_t count, unsigned flags),
         cuStreamUpdateCaptureDependencies_v2(sim_own(stream), nodes, edges, count, flags))
