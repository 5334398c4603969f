/* Entry points that list nodes and edges of graphs, and change edges. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

enum { EDGE_BYTES = 8 }; /* CUgraphEdgeData: zeros, for plain edges */

/* Where a list goes: how many there are, if there is no place; else as many as fit, and NULL beyond the last. */
struct list {
    abi_graph_node *one, *other;
    size_t room, found;
};

static void put(struct list *list, const struct sim_graph_node *one, const struct sim_graph_node *other) {
    if (list->one && list->found < list->room) list->one[list->found] = (abi_graph_node)one;
    if (list->other && list->found < list->room) list->other[list->found] = (abi_graph_node)other;
    list->found++;
}

static int finish(const struct list *list, size_t *count, void *edges) {
    bool asked = !list->one && !list->other;
    for (size_t i = list->found; !asked && i < list->room; i++) {
        if (list->one) list->one[i] = NULL;
        if (list->other) list->other[i] = NULL;
    }
    *count = asked || list->found < list->room ? list->found : list->room;
    if (edges) memset(edges, 0, *count * EDGE_BYTES);
    return ABI_SUCCESS;
}

static int list_nodes(abi_graph handle, abi_graph_node *nodes, size_t *count, bool roots) {
    const struct sim_graph *graph = sim_graph_of(handle);
    if (!graph || !count) return ABI_ERROR_INVALID_VALUE;
    struct list list = {.one = nodes, .room = *count};
    for (const struct sim_graph_node *node = graph->first; node; node = node->next)
        if (!roots || !node->after_count) put(&list, node, NULL);
    return finish(&list, count, NULL);
}
SIM_ROW(cuGraphGetNodes, (abi_graph graph, abi_graph_node *nodes, size_t *count),
        SIM_LOCKED(list_nodes(graph, nodes, count, false)))
SIM_ROW(cuGraphGetRootNodes, (abi_graph graph, abi_graph_node *nodes, size_t *count),
        SIM_LOCKED(list_nodes(graph, nodes, count, true)))

static int list_edges(abi_graph handle, abi_graph_node *from, abi_graph_node *to, void *edges, size_t *count) {
    const struct sim_graph *graph = sim_graph_of(handle);
    if (!graph || !count || !from != !to) return ABI_ERROR_INVALID_VALUE;
    struct list list = {.one = from, .other = to, .room = *count};
    for (const struct sim_graph_node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->after_count; i++) put(&list, node->after[i], node);
    return finish(&list, count, edges);
}
SIM_ROW(cuGraphGetEdges, (abi_graph graph, abi_graph_node *from, abi_graph_node *to, size_t *count),
        SIM_LOCKED(list_edges(graph, from, to, NULL, count)))
SIM_ROW(cuGraphGetEdges_v2, (abi_graph graph, abi_graph_node *from, abi_graph_node *to, void *edges, size_t *count),
        SIM_LOCKED(list_edges(graph, from, to, edges, count)))

static int list_dependencies(abi_graph_node handle, abi_graph_node *nodes, void *edges, size_t *count) {
    const struct sim_graph_node *node = sim_node_of(handle);
    if (!node || !count) return ABI_ERROR_INVALID_VALUE;
    struct list list = {.one = nodes, .room = *count};
    for (size_t i = 0; i < node->after_count; i++) put(&list, node->after[i], NULL);
    return finish(&list, count, edges);
}
SIM_ROW(cuGraphNodeGetDependencies, (abi_graph_node node, abi_graph_node *nodes, size_t *count),
        SIM_LOCKED(list_dependencies(node, nodes, NULL, count)))
SIM_ROW(cuGraphNodeGetDependencies_v2, (abi_graph_node node, abi_graph_node *nodes, void *edges, size_t *count),
        SIM_LOCKED(list_dependencies(node, nodes, edges, count)))

static int list_dependents(abi_graph_node handle, abi_graph_node *nodes, void *edges, size_t *count) {
    const struct sim_graph_node *node = sim_node_of(handle);
    if (!node || !count) return ABI_ERROR_INVALID_VALUE;
    struct list list = {.one = nodes, .room = *count};
    for (const struct sim_graph_node *other = node->graph->first; other; other = other->next)
        for (size_t i = 0; i < other->after_count; i++)
            if (other->after[i] == node) put(&list, other, NULL);
    return finish(&list, count, edges);
}
SIM_ROW(cuGraphNodeGetDependentNodes, (abi_graph_node node, abi_graph_node *nodes, size_t *count),
        SIM_LOCKED(list_dependents(node, nodes, NULL, count)))
SIM_ROW(cuGraphNodeGetDependentNodes_v2, (abi_graph_node node, abi_graph_node *nodes, void *edges, size_t *count),
        SIM_LOCKED(list_dependents(node, nodes, edges, count)))

/* ---- changes ---- */
/* Among those that a node depends on. */
static size_t place_of(const struct sim_graph_node *dependent, const struct sim_graph_node *dependency) {
    size_t i = 0;
    while (i < dependent->after_count && dependent->after[i] != dependency) i++;
    return i;
}

static bool is_memory(const struct sim_graph_node *node) {
    return node->step.memory;
}

/* All edges are checked before the first one is changed. */
static int change(abi_graph handle, const abi_graph_node *from, const abi_graph_node *to, size_t count, bool more) {
    const struct sim_graph *graph = sim_graph_of(handle);
    if (!graph || (count && (!from || !to))) return ABI_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const struct sim_graph_node *first = sim_node_of(from[i]), *second = sim_node_of(to[i]);
        if (!first || !second || first->graph != graph || second->graph != graph || first == second)
            return ABI_ERROR_INVALID_VALUE;
        if ((place_of(second, first) < second->after_count) == more) return ABI_ERROR_INVALID_VALUE;
        if (!more && (is_memory(first) || is_memory(second))) return ABI_ERROR_NOT_SUPPORTED;
    }
    for (size_t i = 0; i < count; i++) {
        struct sim_graph_node *first = sim_node_of(from[i]), *second = sim_node_of(to[i]);
        if (!more) {
            second->after[place_of(second, first)] = second->after[second->after_count - 1];
            second->after_count--;
            continue;
        }
        struct sim_graph_node **after = realloc(second->after, (second->after_count + 1) * sizeof *after);
        if (!after) return ABI_ERROR_OUT_OF_MEMORY;
        second->after = after;
        after[second->after_count++] = first;
    }
    return ABI_SUCCESS;
}
SIM_ROW(cuGraphAddDependencies, (abi_graph graph, const abi_graph_node *from, const abi_graph_node *to, size_t count),
        SIM_LOCKED(change(graph, from, to, count, true)))
SIM_ROW(cuGraphAddDependencies_v2,
        (abi_graph graph, const abi_graph_node *from, const abi_graph_node *to, const void *edges, size_t count),
        SIM_LOCKED(change(graph, from, to, count, true)))
SIM_ROW(cuGraphRemoveDependencies,
        (abi_graph graph, const abi_graph_node *from, const abi_graph_node *to, size_t count),
        SIM_LOCKED(change(graph, from, to, count, false)))
SIM_ROW(cuGraphRemoveDependencies_v2,
        (abi_graph graph, const abi_graph_node *from, const abi_graph_node *to, const void *edges, size_t count),
        SIM_LOCKED(change(graph, from, to, count, false)))

static int destroy_node(abi_graph_node handle) {
    struct sim_graph_node *node = sim_node_of(handle), *before = NULL;
    if (!node) return ABI_ERROR_INVALID_VALUE;
    if (is_memory(node)) return ABI_ERROR_NOT_SUPPORTED;
    struct sim_graph *graph = node->graph;
    for (struct sim_graph_node *other = graph->first; other; other = other->next) {
        size_t place = place_of(other, node);
        if (other->next == node) before = other;
        if (place == other->after_count) continue;
        other->after[place] = other->after[other->after_count - 1];
        other->after_count--;
    }
    if (before) before->next = node->next;
    else graph->first = node->next;
    if (graph->last == node) graph->last = before;
    graph->count--;
    sim_node_end(node);
    return ABI_SUCCESS;
}
SIM_ROW(cuGraphDestroyNode, (abi_graph_node node), SIM_LOCKED(destroy_node(node)))
