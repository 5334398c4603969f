/* What the rules of graphs begin with. */
#pragma once

#include "../rules.h"

#define ONE_THREAD .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1, .block_y = 1, .block_z = 1

static CUdeviceptr word;
static int calls;
static inline void count_call(void *data) {
    calls++;
}

static inline CUgraph new_graph(void) {
    CUgraph graph = NULL;
    primary_context();
    if (!word) word = new_memory(64);
    OK(cuGraphCreate(&graph, 0));
    return graph;
}

static inline CUgraphNode empty_node(CUgraph graph, const CUgraphNode *after, size_t count) {
    CUgraphNode node = NULL;
    OK(cuGraphAddEmptyNode(&node, graph, after, count));
    TRUE(node != NULL);
    return node;
}

static inline CUgraphNode memset_node(CUgraph graph, unsigned value) {
    CUDA_MEMSET_NODE_PARAMS params = {.to = word, .value = value, .element_size = 4, .width = 1, .height = 1};
    CUgraphNode node = NULL;
    OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &params, current_context()));
    return node;
}

static inline CUgraphNode kernel_node(CUgraph graph) {
    CUDA_KERNEL_NODE_PARAMS params = {.function = kernel("nothing"), ONE_THREAD};
    CUgraphNode node = NULL;
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
    return node;
}

static inline CUgraphNode host_node(CUgraph graph) {
    CUDA_HOST_NODE_PARAMS params = {count_call, NULL};
    CUgraphNode node = NULL;
    OK(cuGraphAddHostNode(&node, graph, NULL, 0, &params));
    return node;
}

static inline int type_of(CUgraphNode node) {
    int type = -1;
    OK(cuGraphNodeGetType(node, &type));
    return type;
}

static inline size_t nodes_of(CUgraph graph) {
    size_t count = 99;
    OK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

static inline size_t edges_of(CUgraph graph) {
    size_t count = 99;
    OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    return count;
}

static inline CUgraphExec instantiated(CUgraph graph) {
    CUgraphExec exec = NULL;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static inline void run(CUgraphExec exec) {
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
}

static inline unsigned value_there(void) {
    unsigned value = 0;
    OK(cuMemcpyDtoH_v2(&value, word, 4));
    return value;
}
