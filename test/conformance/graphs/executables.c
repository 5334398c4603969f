/* Executable graphs: instantiation, launches, changes, and what ends with a graph. */
#define SUBJECT "graphs"
#include "graph.h"

/* ---- executable graphs ---- */
RULE(launch_runs_its_nodes, .source = DRIVER_API "cuGraphLaunch", .calls = "cuGraphLaunch") {
    CUgraph graph = new_graph();
    memset_node(graph, 5);
    run(instantiated(graph));
    SAME(5, value_there());
}

RULE(launch_twice, .source = DRIVER_API "cuGraphLaunch", .calls = "cuGraphLaunch cuGraphAddHostNode") {
    CUgraph graph = new_graph();
    host_node(graph);
    CUgraphExec exec = instantiated(graph);
    run(exec);
    run(exec);
    SAME(2, calls);
}

RULE(launches_of_one_are_in_order, .source = DRIVER_API "cuGraphLaunch", .calls = "cuGraphLaunch cuLaunchHostFunc") {
    CUgraph graph = new_graph();
    memset_node(graph, 5);
    CUgraphExec exec = instantiated(graph);
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING), other = new_stream(CU_STREAM_NON_BLOCKING);
    hold(busy);
    OK(cuGraphLaunch(exec, busy));
    OK(cuGraphLaunch(exec, other));
    NOT_YET(cuStreamQuery(other));
    release_all();
    OK(cuStreamSynchronize(other));
}

RULE(launches_of_one_on_two_devices_are_in_order, .source = DRIVER_API "cuGraphLaunch",
     .calls = "cuGraphLaunch cuLaunchHostFunc") {
    CUcontext second = NULL;
    CUgraph graph = new_graph();
    memset_node(graph, 5);
    CUgraphExec exec = instantiated(graph);
    NEEDS(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS, "needs two devices");
    OK(cuMemsetD32_v2(word, 1, 1));
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING);
    hold(busy);
    OK(cuGraphLaunch(exec, busy));
    OK(cuCtxSetCurrent(second));
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING), apart = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuGraphLaunch(exec, other));
    OK(cuMemsetD32Async(new_memory(4), 1, 1, apart));
    OK(cuStreamSynchronize(apart));
    SAME(1, value_there());
    release_all();
    OK(cuStreamSynchronize(other));
    SAME(5, value_there());
}

/* At one of the calls, whatever other streams do. */
RULE(fill_of_no_memory_is_refused, .source = DRIVER_API "cuGraphAddMemsetNode; cuGraphLaunch",
     .calls = "cuGraphAddMemsetNode cuGraphLaunch cuLaunchHostFunc") {
    CUgraph graph = new_graph();
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING), stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUDA_MEMSET_NODE_PARAMS params = {.to = 0, .value = 1, .element_size = 4, .width = 1, .height = 1};
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUresult result = cuGraphAddMemsetNode(&node, graph, NULL, 0, &params, current_context());
    if (result == CUDA_SUCCESS) result = cuGraphInstantiateWithFlags(&exec, graph, 0);
    hold(busy);
    if (result == CUDA_SUCCESS) result = cuGraphLaunch(exec, stream);
    release_all();
    if (result == CUDA_SUCCESS) result = cuStreamSynchronize(stream);
    FAILS(result);
}

RULE(launch_of_none, .source = DRIVER_API "cuGraphLaunch", .calls = "cuGraphLaunch") {
    primary_context();
    ONE_OF(cuGraphLaunch(NULL, NULL), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE);
}

RULE(the_graph_can_end_before, .source = DRIVER_API "cuGraphDestroy", .calls = "cuGraphDestroy cuGraphLaunch",
     .recalled = true) {
    CUgraph graph = new_graph();
    memset_node(graph, 6);
    CUgraphExec exec = instantiated(graph);
    OK(cuGraphDestroy(graph));
    run(exec);
    SAME(6, value_there());
}

RULE(changes_do_not_reach_it, .source = DRIVER_API "cuGraphInstantiate", .calls = "cuGraphInstantiateWithFlags",
     .recalled = true) {
    CUgraph graph = new_graph();
    memset_node(graph, 6);
    CUgraphExec exec = instantiated(graph);
    CUgraphNode host = host_node(graph);
    run(exec);
    SAME(0, calls);
    OK(cuGraphDestroyNode(host));
}

RULE(two_executables_of_one_graph, .source = DRIVER_API "cuGraphLaunch", .calls = "cuGraphInstantiateWithFlags") {
    CUgraph graph = new_graph();
    memset_node(graph, 6);
    TRUE(instantiated(graph) != instantiated(graph));
}

RULE(destroyed_in_flight, .source = DRIVER_API "cuGraphExecDestroy", .calls = "cuGraphExecDestroy cuLaunchHostFunc") {
    CUgraph graph = new_graph();
    memset_node(graph, 8);
    CUgraphExec exec = instantiated(graph);
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphExecDestroy(exec)); /* a driver that waits here hangs */
    release_all();
    OK(cuStreamSynchronize(stream));
    SAME(8, value_there());
}

RULE(upload_runs_nothing, .source = DRIVER_API "cuGraphUpload", .calls = "cuGraphUpload") {
    CUgraph graph = new_graph();
    host_node(graph);
    CUstream stream = new_stream(0);
    OK(cuGraphUpload(instantiated(graph), stream));
    OK(cuStreamSynchronize(stream));
    SAME(0, calls);
}

RULE(instantiate_with_unknown_flags, .source = DRIVER_API "cuGraphInstantiate",
     .calls = "cuGraphInstantiateWithFlags") {
    CUgraphExec exec = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, new_graph(), 0x100));
}

RULE(instantiate_with_flags_that_exclude_each_other, .source = DRIVER_API "cuGraphInstantiate",
     .calls = "cuGraphInstantiateWithFlags") {
    CUgraphExec exec = NULL;
    CUgraph graph = new_graph();
    memset_node(graph, 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, graph,
                                                                 CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                                                     CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
}

RULE(flags_are_answered, .source = DRIVER_API "cuGraphExecGetFlags", .calls = "cuGraphExecGetFlags") {
    CUgraphExec exec = NULL;
    uint64_t flags = 99;
    CUgraph graph = new_graph();
    OK(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
    OK(cuGraphExecGetFlags(exec, &flags));
    SAME(CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, flags);
}

RULE(flags_without_the_upload, .source = DRIVER_API "cuGraphExecGetFlags",
     .calls = "cuGraphExecGetFlags cuGraphInstantiateWithParams") {
    CUgraphExec exec = NULL;
    uint64_t flags = 99;
    CUgraph graph = new_graph();
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
                                            .upload_stream = new_stream(0),
                                            .error_node = (CUgraphNode)1,
                                            .result = 99};
    OK(cuGraphInstantiateWithParams(&exec, graph, &params));
    SAME(CUDA_GRAPH_INSTANTIATE_SUCCESS, params.result);
    TRUE(params.error_node == NULL);
    OK(cuGraphExecGetFlags(exec, &flags));
    SAME(0, flags);
}

RULE(a_disabled_node_does_nothing, .source = DRIVER_API "cuGraphNodeSetEnabled",
     .calls = "cuGraphNodeSetEnabled cuGraphNodeGetEnabled") {
    unsigned is_enabled = 9;
    CUgraph graph = new_graph();
    OK(cuMemsetD32_v2(word, 1, 1));
    CUgraphNode node = memset_node(graph, 9);
    CUgraphExec exec = instantiated(graph);
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuGraphNodeGetEnabled(exec, node, &is_enabled));
    SAME(0, is_enabled);
    run(exec);
    SAME(1, value_there());
    OK(cuGraphNodeSetEnabled(exec, node, 1));
    run(exec);
    SAME(9, value_there());
}

RULE(an_empty_node_cannot_be_disabled, .source = DRIVER_API "cuGraphNodeSetEnabled", .calls = "cuGraphNodeSetEnabled") {
    CUgraph graph = new_graph();
    CUgraphNode node = empty_node(graph, NULL, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetEnabled(instantiated(graph), node, 0));
}

RULE(parameters_of_an_executable, .source = DRIVER_API "cuGraphExecMemsetNodeSetParams",
     .calls = "cuGraphExecMemsetNodeSetParams") {
    CUgraph graph = new_graph();
    CUgraphNode node = memset_node(graph, 1);
    CUgraphExec exec = instantiated(graph);
    CUDA_MEMSET_NODE_PARAMS params = {.to = word, .value = 2, .element_size = 4, .width = 1, .height = 1};
    OK(cuGraphExecMemsetNodeSetParams(exec, node, &params, current_context()));
    run(exec);
    SAME(2, value_there());
    run(instantiated(graph));
    SAME(1, value_there());
}

RULE(event_nodes_record, .source = DRIVER_API "cuGraphAddEventRecordNode",
     .calls = "cuGraphAddEventRecordNode cuLaunchHostFunc") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph();
    CUevent event = new_event(0);
    OK(cuGraphAddEventRecordNode(&node, graph, NULL, 0, event));
    CUgraphExec exec = instantiated(graph);
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuEventQuery(event));
    hold(stream);
    OK(cuGraphLaunch(exec, stream));
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
}

RULE(event_nodes_wait, .source = DRIVER_API "cuGraphAddEventWaitNode",
     .calls = "cuGraphAddEventWaitNode cuLaunchHostFunc") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph();
    CUevent event = new_event(0);
    OK(cuGraphAddEventWaitNode(&node, graph, NULL, 0, event));
    CUgraphExec exec = instantiated(graph);
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING), stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(busy);
    OK(cuEventRecord(event, busy));
    OK(cuGraphLaunch(exec, stream));
    NOT_YET(cuStreamQuery(stream));
    release_all();
    OK(cuStreamSynchronize(stream));
}

/* ---- user objects ---- */
static int destroyed;
static void destroy_object(void *data) {
    destroyed++;
}
static CUuserObject new_object(unsigned count) {
    CUuserObject object = NULL;
    primary_context();
    OK(cuUserObjectCreate(&object, NULL, destroy_object, count, 1 /* no synchronization by the destructor */));
    return object;
}

RULE(user_object_ends_with_its_last_reference, .source = GUIDE "CUDA User Objects",
     .calls = "cuUserObjectCreate cuUserObjectRelease", .recalled = true) {
    CUuserObject object = new_object(2);
    OK(cuUserObjectRelease(object, 1));
    SAME(0, destroyed);
    OK(cuUserObjectRelease(object, 1));
    OK(cuCtxSynchronize());
    for (int i = 0; i < 1000000 && !*(volatile int *)&destroyed; i++) OK(cuCtxSynchronize());
    SAME(1, destroyed);
}

RULE(user_object_needs_its_flag, .source = DRIVER_API "cuUserObjectCreate", .calls = "cuUserObjectCreate",
     .recalled = true) {
    CUuserObject object = NULL;
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, NULL, destroy_object, 1, 0));
}

RULE(user_object_of_a_graph, .source = DRIVER_API "cuGraphRetainUserObject",
     .calls = "cuUserObjectCreate cuGraphRetainUserObject") {
    CUuserObject object = new_object(1);
    CUgraph graph = new_graph();
    OK(cuGraphRetainUserObject(graph, object, 1, 1 /* moved */));
    SAME(0, destroyed);
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 1000000 && !*(volatile int *)&destroyed; i++) OK(cuCtxSynchronize());
    SAME(1, destroyed);
}

RULE(user_object_retained_not_at_all, .source = DRIVER_API "cuGraphRetainUserObject",
     .calls = "cuGraphRetainUserObject") {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(new_graph(), new_object(1), 0, 0));
}
