/* Stream capture: what begins and ends it, what forks and joins, and what becomes of its work. */
#define SUBJECT "captures"
#include "capture.h"

/* ---- begin and end ---- */
RULE(status_before_during_and_after, .source = DRIVER_API "cuStreamIsCapturing", .calls = BEGIN_END) {
    primary_context();
    CUstream stream = new_stream(0);
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(stream));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE, status_of(stream));
    end_of(stream);
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(stream));
}

RULE(what_is_captured_does_not_run, .source = DRIVER_API "cuStreamBeginCapture", .calls = BEGIN_END) {
    unsigned value = 0;
    primary_context();
    word = new_memory(4);
    OK(cuMemsetD32_v2(word, 1, 1));
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill(stream);
    end_of(stream);
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&value, word, 4));
    SAME(1, value);
}

RULE(the_graph_runs_what_was_captured, .source = DRIVER_API "cuStreamEndCapture",
     .calls = BEGIN_END " cuGraphInstantiateWithFlags cuGraphLaunch") {
    unsigned value = 0;
    CUgraphExec exec = NULL;
    CUstream stream = capture();
    fill(stream);
    OK(cuGraphInstantiateWithFlags(&exec, end_of(stream), 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&value, word, 4));
    SAME(7, value);
}

RULE(nothing_captured_is_an_empty_graph, .source = DRIVER_API "cuStreamEndCapture", .calls = BEGIN_END) {
    SAME(0, nodes_of(end_of(capture())));
}

RULE(begin_on_the_legacy_stream, .source = DRIVER_API "cuStreamBeginCapture", .calls = BEGIN_END) {
    primary_context();
    ONE_OF(cuStreamBeginCapture_v2(CU_STREAM_LEGACY, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
           CUDA_ERROR_INVALID_VALUE);
    ONE_OF(cuStreamBeginCapture_v2(NULL, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_INVALID_VALUE);
}

RULE(begin_on_the_threads_stream, .source = DRIVER_API "cuStreamBeginCapture", .calls = BEGIN_END) {
    primary_context();
    OK(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    end_of(CU_STREAM_PER_THREAD);
}

RULE(begin_twice, .source = DRIVER_API "cuStreamBeginCapture", .calls = BEGIN_END) {
    ONE_OF(cuStreamBeginCapture_v2(capture(), 0), CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE);
}

RULE(begin_in_an_unknown_mode, .source = DRIVER_API "cuStreamBeginCapture", .calls = BEGIN_END) {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCapture_v2(new_stream(0), 9));
}

RULE(end_of_none, .source = DRIVER_API "cuStreamEndCapture", .calls = BEGIN_END) {
    CUgraph graph = NULL;
    primary_context();
    ONE_OF(cuStreamEndCapture(new_stream(0), &graph), CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE);
}

RULE(end_on_another_stream, .source = DRIVER_API "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", .calls = BEGIN_END) {
    CUgraph graph = NULL;
    CUstream other = fork_of(capture());
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
}

static CUresult answer;
static void end_in_thread(void) {
    CUgraph graph = NULL;
    primary_context();
    answer = cuStreamEndCapture(capturing, &graph);
}
RULE(end_in_another_thread, .source = DRIVER_API "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", .calls = BEGIN_END) {
    capture_in(0, CU_STREAM_CAPTURE_MODE_GLOBAL);
    in_thread(end_in_thread);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, answer);
}

RULE(end_in_another_thread_when_thread_local, .source = DRIVER_API "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     .calls = BEGIN_END) {
    capture_in(0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    in_thread(end_in_thread);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, answer);
}

RULE(end_in_another_thread_when_relaxed, .source = DRIVER_API "cuStreamEndCapture", .calls = BEGIN_END) {
    capture_in(0, CU_STREAM_CAPTURE_MODE_RELAXED);
    in_thread(end_in_thread);
    EXPECT(CUDA_SUCCESS, answer);
}

RULE(status_without_place, .source = DRIVER_API "cuStreamIsCapturing", .calls = "cuStreamIsCapturing") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamIsCapturing(new_stream(0), NULL));
}

/* ---- streams and events of a capture ---- */
RULE(a_wait_takes_another_stream_in, .source = CROSS, .calls = BEGIN_END, .recalled = true) {
    CUstream stream = capture(), other = fork_of(stream);
    SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE, status_of(other));
    SAME(id_of(stream), id_of(other));
}

RULE(a_fork_that_is_joined, .source = CROSS, .calls = BEGIN_END, .recalled = true) {
    CUstream stream = capture(), other = fork_of(stream);
    fill(other);
    OK(cuStreamWaitEvent(stream, recorded(other), 0));
    SAME(1, nodes_of(end_of(stream)));
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(other));
}

RULE(a_fork_that_is_joined_before_the_last_node, .source = CROSS, .calls = BEGIN_END, .recalled = true) {
    CUstream stream = capture(), other = fork_of(stream);
    fill(other);
    OK(cuStreamWaitEvent(stream, recorded(other), 0));
    fill(stream);
    fill(stream);
    SAME(3, nodes_of(end_of(stream)));
}

RULE(a_fork_that_is_not_joined, .source = DRIVER_API "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", .calls = BEGIN_END) {
    CUgraph graph = (CUgraph)1;
    CUstream stream = capture(), other = fork_of(stream);
    fill(other);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &graph));
    TRUE(graph == NULL);
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(stream));
}

RULE(the_end_ends_it_for_all_streams, .source = CROSS, .calls = BEGIN_END, .recalled = true) {
    CUstream stream = capture(), other = fork_of(stream);
    OK(cuStreamWaitEvent(stream, recorded(other), 0));
    end_of(stream);
    fill(other);
    OK(cuStreamSynchronize(other));
}

RULE(merge_of_two_captures, .source = DRIVER_API "CUDA_ERROR_STREAM_CAPTURE_MERGE", .calls = BEGIN_END) {
    CUstream first = capture(), second = new_stream(CU_STREAM_NON_BLOCKING);
    fill(first);
    CUevent event = recorded(first);
    OK(cuStreamBeginCapture_v2(second, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(second, event, 0));
}

RULE(wait_for_an_event_from_before, .source = DRIVER_API "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", .calls = BEGIN_END) {
    primary_context();
    CUevent event = recorded(new_stream(CU_STREAM_NON_BLOCKING));
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(stream, event, 0));
}

RULE(external_events_are_nodes, .source = DRIVER_API "cuEventRecordWithFlags",
     .calls = BEGIN_END " cuEventRecordWithFlags") {
    CUgraphNode nodes[2] = {NULL, NULL};
    size_t count = 2;
    int first = -1, second = -1;
    CUstream stream = capture();
    CUevent event = new_event(0);
    OK(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
    OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    CUgraph graph = end_of(stream);
    OK(cuGraphGetNodes(graph, nodes, &count));
    SAME(2, count);
    OK(cuGraphNodeGetType(nodes[0], &first));
    OK(cuGraphNodeGetType(nodes[1], &second));
    SAME(CU_GRAPH_NODE_TYPE_WAIT_EVENT + CU_GRAPH_NODE_TYPE_EVENT_RECORD, first + second);
}

RULE(two_captures_have_two_ids, .source = DRIVER_API "cuStreamGetCaptureInfo",
     .calls = BEGIN_END " cuStreamGetCaptureInfo_v2") {
    CUstream first = capture(), second = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(second, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TRUE(id_of(first) != id_of(second));
}

RULE(a_later_capture_has_another_id, .source = DRIVER_API "cuStreamGetCaptureInfo",
     .calls = BEGIN_END " cuStreamGetCaptureInfo_v2") {
    CUstream stream = capture();
    unsigned long long first = id_of(stream);
    end_of(stream);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TRUE(first != id_of(stream));
}

RULE(info_of_a_stream_that_does_not_capture, .source = DRIVER_API "cuStreamGetCaptureInfo",
     .calls = "cuStreamGetCaptureInfo_v2") {
    int status = -1;
    uint64_t id = 0;
    primary_context();
    OK(cuStreamGetCaptureInfo_v2(new_stream(0), &status, &id, NULL, NULL, NULL));
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status);
}

RULE(info_has_the_dependencies_of_the_next_node, .source = DRIVER_API "cuStreamGetCaptureInfo",
     .calls = BEGIN_END " cuStreamGetCaptureInfo_v2") {
    int status = -1, type = -1;
    CUgraph graph = NULL;
    const CUgraphNode *nodes = NULL;
    size_t count = 99;
    CUstream stream = capture();
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, &nodes, &count));
    TRUE(graph != NULL);
    SAME(0, count);
    fill(stream);
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, &nodes, &count));
    SAME(1, count);
    OK(cuGraphNodeGetType(nodes[0], &type));
    SAME(CU_GRAPH_NODE_TYPE_MEMSET, type);
}

RULE(info_has_the_graph_that_the_end_answers, .source = DRIVER_API "cuStreamGetCaptureInfo",
     .calls = BEGIN_END " cuStreamGetCaptureInfo_v2") {
    int status = -1;
    CUgraph graph = NULL;
    CUstream stream = capture();
    OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
    TRUE(graph == end_of(stream));
}

RULE(dependencies_of_no_capture, .source = DRIVER_API "cuStreamUpdateCaptureDependencies",
     .calls = "cuStreamUpdateCaptureDependencies") {
    primary_context();
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamUpdateCaptureDependencies(new_stream(0), NULL, 0, 0));
}

RULE(dependencies_can_be_set, .source = DRIVER_API "cuStreamUpdateCaptureDependencies",
     .calls = BEGIN_END " cuStreamUpdateCaptureDependencies") {
    size_t roots = 0;
    CUstream stream = capture();
    fill(stream);
    OK(cuStreamUpdateCaptureDependencies(stream, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    fill(stream);
    CUgraph graph = end_of(stream); /* the first one is not unjoined */
    SAME(2, nodes_of(graph));
    OK(cuGraphGetRootNodes(graph, NULL, &roots));
    SAME(2, roots);
}

RULE(dependencies_of_an_invalid_capture, .source = INVALIDATION,
     .calls = BEGIN_END " cuStreamUpdateCaptureDependencies") {
    CUstream stream = capture();
    fill(stream);
    FAILS(cuStreamSynchronize(stream));
    FAILS(cuStreamUpdateCaptureDependencies(stream, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    expect_invalidated(stream);
}

RULE(capture_into_a_graph, .source = DRIVER_API "cuStreamBeginCaptureToGraph",
     .calls = "cuStreamBeginCaptureToGraph cuStreamEndCapture") {
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    primary_context();
    word = new_memory(4);
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    OK(cuStreamBeginCaptureToGraph(stream, graph, &node, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill(stream);
    TRUE(end_of(stream) == graph);
    SAME(2, nodes_of(graph));
}

RULE(captured_into_is_not_instantiable, .source = DRIVER_API "cuStreamBeginCaptureToGraph",
     .calls = "cuStreamBeginCaptureToGraph cuGraphInstantiateWithFlags") {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuGraphCreate(&graph, 0));
    OK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    TRUE(cuGraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS);
    end_of(stream);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
}

static int captured_type(CUgraph graph) {
    CUgraphNode node = NULL;
    size_t count = 1;
    int type = -1;
    SAME(1, nodes_of(graph));
    OK(cuGraphGetNodes(graph, &node, &count));
    OK(cuGraphNodeGetType(node, &type));
    return type;
}
static void do_nothing(void *data) {}

#define CAPTURED(name, text, type, call)                                                         \
    RULE(captured_##name, .source = DRIVER_API "CUgraphNodeType", .calls = BEGIN_END " " text) { \
        CUstream stream = capture_in(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);    \
        OK(call);                                                                                \
        SAME(type, captured_type(end_of(stream)));                                               \
    }
CAPTURED(memset, "cuMemsetD32Async", CU_GRAPH_NODE_TYPE_MEMSET, cuMemsetD32Async(word, 7, 1, stream))
CAPTURED(copy, "cuMemcpyDtoDAsync_v2", CU_GRAPH_NODE_TYPE_MEMCPY, cuMemcpyDtoDAsync_v2(new_memory(4), word, 4, stream))
CAPTURED(kernel, "cuLaunchKernel", CU_GRAPH_NODE_TYPE_KERNEL,
         cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL))
CAPTURED(host_function, "cuLaunchHostFunc", CU_GRAPH_NODE_TYPE_HOST, cuLaunchHostFunc(stream, do_nothing, NULL))
static CUdeviceptr allocated;
CAPTURED(allocation, "cuMemAllocAsync", CU_GRAPH_NODE_TYPE_MEM_ALLOC, cuMemAllocAsync(&allocated, 4096, stream))
