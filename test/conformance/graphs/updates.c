/* Updates of executable graphs, nodes that allocate and free, and conditional nodes. */
#define SUBJECT "graph_updates"
#include "../rules.h"

static CUdeviceptr word;

static CUgraph new_graph(void) {
    CUgraph graph = NULL;
    primary_context();
    if (!word) word = new_memory(64);
    OK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraphNode memset_node(CUgraph graph, const CUgraphNode *after, size_t count, unsigned value) {
    CUDA_MEMSET_NODE_PARAMS params = {.to = word, .value = value, .element_size = 4, .width = 1, .height = 1};
    CUgraphNode node = NULL;
    OK(cuGraphAddMemsetNode(&node, graph, after, count, &params, current_context()));
    return node;
}

static CUgraphExec instantiated(CUgraph graph) {
    CUgraphExec exec = NULL;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static void run(CUgraphExec exec) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
}

static unsigned value_there(void) {
    unsigned value = 0;
    OK(cuMemcpyDtoH_v2(&value, word, 4));
    return value;
}

/* ---- updates ---- */
static void expect_refused(CUgraphExec exec, CUgraph graph, int why) {
    CUgraphExecUpdateResultInfo info = {.result = 99};
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, graph, &info));
    SAME(why, info.result);
}

RULE(update_of_parameters, .source = DRIVER_API "cuGraphExecUpdate", .calls = "cuGraphExecUpdate_v2") {
    CUgraphExecUpdateResultInfo info = {.result = 99};
    CUgraph first = new_graph(), second = new_graph();
    memset_node(first, NULL, 0, 1);
    memset_node(second, NULL, 0, 2);
    CUgraphExec exec = instantiated(first);
    OK(cuGraphExecUpdate_v2(exec, second, &info));
    SAME(CU_GRAPH_EXEC_UPDATE_SUCCESS, info.result);
    run(exec);
    SAME(2, value_there());
}

RULE(a_node_stays_disabled_through_an_update, .source = DRIVER_API "cuGraphNodeSetEnabled",
     .calls = "cuGraphExecUpdate_v2 cuGraphNodeSetEnabled") {
    CUgraphExecUpdateResultInfo info = {.result = 99};
    CUgraph first = new_graph(), second = new_graph();
    CUgraphNode node = memset_node(first, NULL, 0, 1);
    memset_node(second, NULL, 0, 2);
    CUgraphExec exec = instantiated(first);
    OK(cuMemsetD32_v2(word, 9, 1));
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuGraphExecUpdate_v2(exec, second, &info));
    run(exec);
    SAME(9, value_there());
    OK(cuGraphNodeSetEnabled(exec, node, 1));
    run(exec);
    SAME(2, value_there());
}

RULE(update_with_more_nodes, .source = DRIVER_API "cuGraphExecUpdate", .calls = "cuGraphExecUpdate_v2") {
    CUgraphExecUpdateResultInfo info = {.result = 99, .error_node = (CUgraphNode)1};
    CUgraph first = new_graph(), second = new_graph();
    memset_node(first, NULL, 0, 1);
    memset_node(second, NULL, 0, 1);
    memset_node(second, NULL, 0, 1);
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(instantiated(first), second, &info));
    SAME(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.result);
    TRUE(info.error_node == NULL);
}

RULE(update_with_other_edges, .source = DRIVER_API "cuGraphExecUpdate", .calls = "cuGraphExecUpdate_v2") {
    CUgraph first = new_graph(), second = new_graph();
    CUgraphNode node = memset_node(first, NULL, 0, 1);
    memset_node(first, &node, 1, 2);
    memset_node(second, NULL, 0, 1);
    memset_node(second, NULL, 0, 2);
    expect_refused(instantiated(first), second, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

RULE(update_with_another_type, .source = DRIVER_API "cuGraphExecUpdate", .calls = "cuGraphExecUpdate_v2") {
    CUgraphNode node = NULL;
    CUgraph first = new_graph(), second = new_graph();
    memset_node(first, NULL, 0, 1);
    OK(cuGraphAddEmptyNode(&node, second, NULL, 0));
    expect_refused(instantiated(first), second, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
}

RULE(a_refused_update_changes_nothing, .source = DRIVER_API "cuGraphExecUpdate", .calls = "cuGraphExecUpdate_v2") {
    CUgraph first = new_graph(), second = new_graph();
    memset_node(first, NULL, 0, 4);
    memset_node(second, NULL, 0, 5);
    memset_node(second, NULL, 0, 5);
    CUgraphExec exec = instantiated(first);
    expect_refused(exec, second, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    run(exec);
    SAME(4, value_there());
}

RULE(update_of_the_first_form, .source = DRIVER_API "cuGraphExecUpdate", .calls = "cuGraphExecUpdate") {
    CUgraphNode node = (CUgraphNode)1;
    int result = 99;
    CUgraph first = new_graph(), second = new_graph();
    memset_node(first, NULL, 0, 1);
    memset_node(second, NULL, 0, 2);
    OK(cuGraphExecUpdate(instantiated(first), second, &node, &result));
    SAME(CU_GRAPH_EXEC_UPDATE_SUCCESS, result);
}

/* ---- memory ---- */
static CUdeviceptr there;
static CUgraphNode allocation(CUgraph graph) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.pool = {.alloc_type = 1, .location = {1, 0}}, .bytes = 1 << 20};
    CUgraphNode node = NULL;
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    there = params.pointer;
    TRUE(there != 0);
    return node;
}
static CUgraphNode release(CUgraph graph, CUgraphNode after) {
    CUgraphNode node = NULL;
    OK(cuGraphAddMemFreeNode(&node, graph, &after, 1, there));
    return node;
}
static CUgraph freeing_graph(void) {
    CUgraph graph = new_graph();
    release(graph, allocation(graph));
    return graph;
}

RULE(allocation_and_free_run, .source = DRIVER_API "cuGraphAddMemAllocNode",
     .calls = "cuGraphAddMemAllocNode cuGraphAddMemFreeNode") {
    CUgraphExec exec = instantiated(freeing_graph());
    run(exec);
    run(exec);
}

RULE(free_twice_in_one_graph, .source = DRIVER_API "cuGraphAddMemFreeNode", .calls = "cuGraphAddMemFreeNode") {
    CUgraphNode node = NULL;
    CUgraph graph = freeing_graph();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, NULL, 0, there));
}

RULE(free_of_other_memory, .source = DRIVER_API "cuGraphAddMemFreeNode", .calls = "cuGraphAddMemFreeNode") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, NULL, 0, word));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, NULL, 0, 0));
}

RULE(freed_in_its_graph_not_in_another, .source = DRIVER_API "cuGraphAddMemAllocNode",
     .calls = "cuGraphAddMemAllocNode cuGraphAddMemFreeNode") {
    CUgraphNode node = NULL;
    freeing_graph();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, new_graph(), NULL, 0, there));
}

RULE(freed_in_another_graph_not_in_its_own, .source = DRIVER_API "cuGraphAddMemAllocNode",
     .calls = "cuGraphAddMemAllocNode cuGraphAddMemFreeNode") {
    CUgraphNode node = NULL;
    CUgraph owner = new_graph();
    allocation(owner);
    OK(cuGraphAddMemFreeNode(&node, new_graph(), NULL, 0, there));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, owner, NULL, 0, there));
}

#define WITH_MEMORY(name, text, call)                                                                                  \
    RULE(with_memory_##name, .source = DRIVER_API "cuGraphAddMemAllocNode", .calls = "cuGraphAddMemAllocNode " text) { \
        CUgraph graph = new_graph(), other = NULL;                                                                     \
        CUgraphNode first = allocation(graph), second = release(graph, first), node = NULL;                            \
        CUgraphExec exec = NULL;                                                                                       \
        CUresult got = call;                                                                                           \
        TRUE(got != CUDA_SUCCESS && first && second);                                                                  \
        TRUE(got == CUDA_ERROR_NOT_SUPPORTED || got == CUDA_ERROR_INVALID_VALUE);                                      \
        TRUE(!other && !node && !exec);                                                                                \
    }
WITH_MEMORY(a_node_cannot_go, "cuGraphDestroyNode", cuGraphDestroyNode(second))
WITH_MEMORY(an_edge_cannot_go, "cuGraphRemoveDependencies", cuGraphRemoveDependencies(graph, &first, &second, 1))
WITH_MEMORY(no_clone, "cuGraphClone", cuGraphClone(&other, graph))
WITH_MEMORY(no_child, "cuGraphAddChildGraphNode", cuGraphAddChildGraphNode(&node, new_graph(), NULL, 0, graph))

RULE(with_memory_one_executable, .source = DRIVER_API "cuGraphInstantiate",
     .calls = "cuGraphAddMemAllocNode cuGraphInstantiateWithFlags") {
    CUgraphExec second = NULL;
    CUgraph graph = freeing_graph();
    CUgraphExec exec = instantiated(graph);
    TRUE(cuGraphInstantiateWithFlags(&second, graph, 0) != CUDA_SUCCESS);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiateWithFlags(&second, graph, 0));
}

RULE(unfreed_prevents_the_next_launch, .source = DRIVER_API "cuGraphLaunch",
     .calls = "cuGraphAddMemAllocNode cuGraphLaunch") {
    CUgraph graph = new_graph();
    allocation(graph);
    CUgraphExec exec = instantiated(graph);
    run(exec);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, new_stream(0)));
    OK(cuMemFreeAsync(there, NULL));
    OK(cuCtxSynchronize());
    run(exec);
}

RULE(unfreed_is_freed_at_the_next_launch_on_demand, .source = DRIVER_API "cuGraphInstantiate",
     .calls = "cuGraphAddMemAllocNode cuGraphLaunch") {
    CUgraphExec exec = NULL;
    CUgraph graph = new_graph();
    allocation(graph);
    OK(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    run(exec);
    run(exec);
}

RULE(memory_lives_after_the_launch, .source = DRIVER_API "cuGraphAddMemAllocNode",
     .calls = "cuGraphAddMemAllocNode cuMemFree_v2") {
    unsigned value = 0;
    CUgraph graph = new_graph();
    allocation(graph);
    run(instantiated(graph));
    OK(cuMemsetD32_v2(there, 11, 1));
    OK(cuMemcpyDtoH_v2(&value, there, 4));
    SAME(11, value);
    OK(cuMemFree_v2(there));
}

RULE(its_address_stays, .source = DRIVER_API "cuGraphAddMemAllocNode",
     .calls = "cuGraphAddMemAllocNode cuGraphMemAllocNodeGetParams") {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytes = 0};
    CUgraph graph = new_graph();
    CUgraphNode node = allocation(graph);
    release(graph, node);
    run(instantiated(graph));
    OK(cuGraphMemAllocNodeGetParams(node, &params));
    TRUE(params.pointer == there);
}

/* ---- conditional nodes ---- */
static CUgraphNodeParams conditional(CUgraph graph, int type) {
    uint64_t handle = 0;
    OK(cuGraphConditionalHandleCreate(&handle, graph, current_context(), 0, 1 /* the default at each launch */));
    return (CUgraphNodeParams){
        .type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
        .conditional = {.handle = handle, .type = type, .size = 1, .context = current_context()}};
}

RULE(conditional_node_has_a_body, .source = DRIVER_API "CUDA_CONDITIONAL_NODE_PARAMS",
     .calls = "cuGraphConditionalHandleCreate cuGraphAddNode") {
    CUgraphNode node = NULL;
    int type = -1;
    CUgraph graph = new_graph();
    CUgraphNodeParams params = conditional(graph, 0);
    OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
    OK(cuGraphNodeGetType(node, &type));
    SAME(CU_GRAPH_NODE_TYPE_CONDITIONAL, type);
    TRUE(params.conditional.bodies && params.conditional.bodies[0]);
}

RULE(a_condition_that_is_zero_skips_the_body, .source = GUIDE "Conditional IF Nodes",
     .calls = "cuGraphConditionalHandleCreate cuGraphAddNode", .recalled = true) {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph();
    OK(cuMemsetD32_v2(word, 1, 1));
    CUgraphNodeParams params = conditional(graph, 0);
    OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
    memset_node(params.conditional.bodies[0], NULL, 0, 2);
    run(instantiated(graph));
    SAME(1, value_there());
}

RULE(with_a_condition_no_clone, .source = DRIVER_API "cuGraphClone",
     .calls = "cuGraphConditionalHandleCreate cuGraphAddNode cuGraphClone") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph(), clone = NULL;
    CUgraphNodeParams params = conditional(graph, 0);
    OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
    TRUE(cuGraphClone(&clone, graph) != CUDA_SUCCESS);
}

RULE(node_of_any_type, .source = DRIVER_API "cuGraphAddNode", .calls = "cuGraphAddNode") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph();
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
    params = (CUgraphNodeParams){.type = 99};
    TRUE(cuGraphAddNode(&node, graph, NULL, 0, &params) != CUDA_SUCCESS);
}

RULE(node_with_unused_bytes_set, .source = DRIVER_API "cuGraphAddNode", .calls = "cuGraphAddNode") {
    CUgraphNode node = NULL;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY, .reserved = {1}};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, new_graph(), NULL, 0, &params));
}
