/* Graphs: nodes and edges, lists of them, clones and children. */
#define SUBJECT "graphs"
#include "graph.h"

RULE(created_is_empty, .source = DRIVER_API "cuGraphCreate", .calls = "cuGraphCreate cuGraphGetNodes") {
    CUgraph graph = new_graph();
    SAME(0, nodes_of(graph));
    SAME(0, edges_of(graph));
}

RULE(create_takes_no_flags, .source = DRIVER_API "cuGraphCreate", .calls = "cuGraphCreate") {
    CUgraph graph = NULL;
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&graph, 1));
}

RULE(create_without_place, .source = DRIVER_API "cuGraphCreate", .calls = "cuGraphCreate") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(NULL, 0));
}

RULE(destroy_of_none, .source = DRIVER_API "cuGraphDestroy", .calls = "cuGraphDestroy") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(NULL));
}

RULE(types_of_nodes, .source = DRIVER_API "cuGraphNodeGetType", .calls = "cuGraphNodeGetType cuGraphAddHostNode") {
    CUgraph graph = new_graph();
    SAME(CU_GRAPH_NODE_TYPE_EMPTY, type_of(empty_node(graph, NULL, 0)));
    SAME(CU_GRAPH_NODE_TYPE_MEMSET, type_of(memset_node(graph, 1)));
    SAME(CU_GRAPH_NODE_TYPE_KERNEL, type_of(kernel_node(graph)));
    SAME(CU_GRAPH_NODE_TYPE_HOST, type_of(host_node(graph)));
}

RULE(type_of_a_child, .source = DRIVER_API "cuGraphAddChildGraphNode", .calls = "cuGraphAddChildGraphNode") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph(), child = new_graph();
    OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    SAME(CU_GRAPH_NODE_TYPE_GRAPH, type_of(node));
}

RULE(types_of_event_nodes, .source = DRIVER_API "cuGraphAddEventRecordNode",
     .calls = "cuGraphAddEventRecordNode cuGraphAddEventWaitNode") {
    CUgraphNode record = NULL, wait = NULL;
    CUgraph graph = new_graph();
    CUevent event = new_event(0);
    OK(cuGraphAddEventRecordNode(&record, graph, NULL, 0, event));
    OK(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, event));
    SAME(CU_GRAPH_NODE_TYPE_EVENT_RECORD, type_of(record));
    SAME(CU_GRAPH_NODE_TYPE_WAIT_EVENT, type_of(wait));
}

RULE(memset_of_a_wrong_element, .source = DRIVER_API "cuGraphAddMemsetNode", .calls = "cuGraphAddMemsetNode") {
    CUgraph graph = new_graph();
    CUDA_MEMSET_NODE_PARAMS params = {.to = word, .value = 1, .element_size = 3, .width = 1, .height = 1};
    CUgraphNode node = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemsetNode(&node, graph, NULL, 0, &params, current_context()));
}

RULE(kernel_node_with_arguments_of_two_kinds, .source = DRIVER_API "cuGraphAddKernelNode",
     .calls = "cuGraphAddKernelNode_v2") {
    CUdeviceptr argument = 0;
    size_t size = sizeof(argument);
    void *parameters[] = {&argument}, *extra[] = {(void *)1, &argument, (void *)2, &size, NULL};
    CUgraph graph = new_graph();
    CUDA_KERNEL_NODE_PARAMS params = {
        .function = kernel("one_argument"), ONE_THREAD, .parameters = parameters, .extra = extra};
    CUgraphNode node = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
}

RULE(kernel_node_of_no_function, .source = DRIVER_API "cuGraphAddKernelNode", .calls = "cuGraphAddKernelNode_v2") {
    CUgraph graph = new_graph();
    CUDA_KERNEL_NODE_PARAMS params = {ONE_THREAD};
    CUgraphNode node = NULL;
    ONE_OF(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE,
           CUDA_ERROR_INVALID_HANDLE);
}

RULE(node_in_no_graph, .source = DRIVER_API "cuGraphAddEmptyNode", .calls = "cuGraphAddEmptyNode") {
    CUgraphNode node = NULL;
    new_graph();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, NULL, NULL, 0));
}

RULE(node_after_a_node_of_another_graph, .source = DRIVER_API "cuGraphAddEmptyNode", .calls = "cuGraphAddEmptyNode",
     .recalled = true) {
    CUgraphNode node = NULL, other = empty_node(new_graph(), NULL, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, new_graph(), &other, 1));
}

RULE(dependencies_without_duplicates, .source = DRIVER_API "cuGraphAddEmptyNode", .calls = "cuGraphAddEmptyNode") {
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), twice[] = {first, first}, node = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, graph, twice, 2));
}

/* ---- lists ---- */
RULE(nodes_beyond_the_last_are_null, .source = DRIVER_API "cuGraphGetNodes", .calls = "cuGraphGetNodes") {
    CUgraphNode nodes[3] = {(CUgraphNode)1, (CUgraphNode)1, (CUgraphNode)1};
    size_t count = 3;
    CUgraph graph = new_graph();
    CUgraphNode only = empty_node(graph, NULL, 0);
    OK(cuGraphGetNodes(graph, nodes, &count));
    SAME(1, count);
    TRUE(nodes[0] == only);
    TRUE(nodes[1] == NULL && nodes[2] == NULL);
}

RULE(nodes_into_a_short_list, .source = DRIVER_API "cuGraphGetNodes", .calls = "cuGraphGetNodes") {
    CUgraphNode nodes[2] = {NULL, (CUgraphNode)1};
    size_t count = 1;
    CUgraph graph = new_graph();
    empty_node(graph, NULL, 0);
    empty_node(graph, NULL, 0);
    OK(cuGraphGetNodes(graph, nodes, &count));
    SAME(1, count);
    TRUE(nodes[0] != NULL);
    TRUE(nodes[1] == (CUgraphNode)1);
}

RULE(roots_have_no_dependencies, .source = DRIVER_API "cuGraphGetRootNodes", .calls = "cuGraphGetRootNodes") {
    CUgraphNode roots[2] = {NULL, NULL};
    size_t count = 2;
    CUgraph graph = new_graph();
    CUgraphNode root = empty_node(graph, NULL, 0);
    empty_node(graph, &root, 1);
    OK(cuGraphGetRootNodes(graph, roots, &count));
    SAME(1, count);
    TRUE(roots[0] == root && roots[1] == NULL);
}

RULE(edges_go_from_dependency_to_dependent, .source = DRIVER_API "cuGraphGetEdges", .calls = "cuGraphGetEdges") {
    CUgraphNode from = NULL, to = NULL;
    size_t count = 1;
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), second = empty_node(graph, &first, 1);
    OK(cuGraphGetEdges(graph, &from, &to, &count));
    SAME(1, count);
    TRUE(from == first && to == second);
}

RULE(dependencies_of_a_node, .source = DRIVER_API "cuGraphNodeGetDependencies",
     .calls = "cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes") {
    CUgraphNode one = NULL;
    size_t count = 99;
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), second = empty_node(graph, &first, 1);
    OK(cuGraphNodeGetDependencies(second, NULL, &count));
    SAME(1, count);
    OK(cuGraphNodeGetDependencies(second, &one, &count));
    TRUE(one == first);
    OK(cuGraphNodeGetDependentNodes(first, &one, &count));
    SAME(1, count);
    TRUE(one == second);
    OK(cuGraphNodeGetDependencies(first, NULL, &count));
    SAME(0, count);
}

RULE(dependencies_of_no_node, .source = DRIVER_API "cuGraphNodeGetDependencies",
     .calls = "cuGraphNodeGetDependencies cuGraphNodeGetDependentNodes") {
    size_t count = 99;
    new_graph();
    FAILS(cuGraphNodeGetDependencies(NULL, NULL, &count));
    FAILS(cuGraphNodeGetDependentNodes(NULL, NULL, &count));
}

RULE(an_edge_added, .source = DRIVER_API "cuGraphAddDependencies", .calls = "cuGraphAddDependencies") {
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), second = empty_node(graph, NULL, 0);
    SAME(0, edges_of(graph));
    OK(cuGraphAddDependencies(graph, &first, &second, 1));
    SAME(1, edges_of(graph));
}

RULE(an_edge_added_twice, .source = DRIVER_API "cuGraphAddDependencies", .calls = "cuGraphAddDependencies") {
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), second = empty_node(graph, &first, 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &first, &second, 1));
}

RULE(an_edge_to_another_graph, .source = DRIVER_API "cuGraphAddDependencies", .calls = "cuGraphAddDependencies") {
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), other = empty_node(new_graph(), NULL, 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &first, &other, 1));
}

RULE(no_edges_added, .source = DRIVER_API "cuGraphAddDependencies", .calls = "cuGraphAddDependencies") {
    OK(cuGraphAddDependencies(new_graph(), NULL, NULL, 0));
}

RULE(a_circle_is_not_instantiated, .source = DRIVER_API "cuGraphInstantiate",
     .calls = "cuGraphAddDependencies cuGraphInstantiateWithFlags") {
    CUgraphExec exec = NULL;
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), second = empty_node(graph, &first, 1);
    CUresult added = cuGraphAddDependencies(graph, &second, &first, 1);
    /* Validated here, or at the latest at instantiation. */
    TRUE(added != CUDA_SUCCESS || cuGraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS);
}

RULE(an_edge_removed, .source = DRIVER_API "cuGraphRemoveDependencies", .calls = "cuGraphRemoveDependencies") {
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), second = empty_node(graph, &first, 1);
    OK(cuGraphRemoveDependencies(graph, &first, &second, 1));
    SAME(0, edges_of(graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(graph, &first, &second, 1));
}

RULE(a_node_removed_takes_its_edges, .source = DRIVER_API "cuGraphDestroyNode", .calls = "cuGraphDestroyNode") {
    CUgraph graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0), second = empty_node(graph, &first, 1);
    empty_node(graph, &second, 1);
    OK(cuGraphDestroyNode(second));
    SAME(2, nodes_of(graph));
    SAME(0, edges_of(graph));
}

/* ---- clones and children ---- */
RULE(a_clone_is_a_copy, .source = DRIVER_API "cuGraphClone", .calls = "cuGraphClone") {
    CUgraph clone = NULL, graph = new_graph();
    CUgraphNode first = empty_node(graph, NULL, 0);
    empty_node(graph, &first, 1);
    OK(cuGraphClone(&clone, graph));
    empty_node(graph, NULL, 0);
    SAME(2, nodes_of(clone));
    SAME(1, edges_of(clone));
    OK(cuGraphDestroy(graph));
    SAME(2, nodes_of(clone));
}

RULE(a_node_is_found_in_a_clone, .source = DRIVER_API "cuGraphNodeFindInClone", .calls = "cuGraphNodeFindInClone") {
    CUgraphNode found = NULL;
    CUgraph clone = NULL, graph = new_graph();
    CUgraphNode node = memset_node(graph, 1);
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphNodeFindInClone(&found, node, clone));
    TRUE(found != NULL && found != node);
    SAME(CU_GRAPH_NODE_TYPE_MEMSET, type_of(found));
}

RULE(a_later_node_is_not_in_a_clone, .source = DRIVER_API "cuGraphNodeFindInClone", .calls = "cuGraphNodeFindInClone") {
    CUgraphNode found = NULL;
    CUgraph clone = NULL, graph = new_graph();
    OK(cuGraphClone(&clone, graph));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&found, empty_node(graph, NULL, 0), clone));
}

RULE(a_child_is_cloned, .source = DRIVER_API "cuGraphAddChildGraphNode",
     .calls = "cuGraphAddChildGraphNode cuGraphChildGraphNodeGetGraph") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph(), child = new_graph(), inside = NULL;
    empty_node(child, NULL, 0);
    OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    OK(cuGraphChildGraphNodeGetGraph(node, &inside));
    TRUE(inside != child);
    empty_node(child, NULL, 0);
    SAME(1, nodes_of(inside));
    OK(cuGraphDestroy(child));
    SAME(1, nodes_of(inside));
}

RULE(a_child_can_be_changed, .source = DRIVER_API "cuGraphChildGraphNodeGetGraph",
     .calls = "cuGraphChildGraphNodeGetGraph") {
    CUgraphNode node = NULL;
    CUgraph graph = new_graph(), inside = NULL;
    OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, new_graph()));
    OK(cuGraphChildGraphNodeGetGraph(node, &inside));
    memset_node(inside, 77);
    run(instantiated(graph));
    SAME(77, value_there());
}

RULE(child_of_another_type, .source = DRIVER_API "cuGraphChildGraphNodeGetGraph",
     .calls = "cuGraphChildGraphNodeGetGraph") {
    CUgraph inside = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphChildGraphNodeGetGraph(empty_node(new_graph(), NULL, 0), &inside));
}
