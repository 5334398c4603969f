/* Graphs and their nodes. edges.c lists and changes edges, nodes.c adds nodes, exec.c executes them. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct sim_graph *sim_graph_new(void) {
    struct sim_graph *graph = calloc(1, sizeof *graph);
    if (graph) graph->magic = SIM_GRAPH_MAGIC;
    return graph;
}

static void step_drop(struct sim_step *step) {
    if (step->memory) sim_graph_memory_release(step->memory);
    if (step->child) sim_graph_end(step->child);
}

void sim_node_end(struct sim_graph_node *node) {
    if (node->step.type == ABI_NODE_MEM_FREE) sim_graph_memory_drop_free(node->step.memory, node->graph);
    if (node->step.type == ABI_NODE_MEM_ALLOC) sim_graph_memory_set_graph(node->step.memory, NULL);
    step_drop(&node->step);
    node->magic = 0;
    free(node->after);
    free(node);
}

void sim_graph_end(struct sim_graph *graph) {
    for (struct sim_graph_node *node = graph->first, *next; node; node = next) {
        next = node->next;
        sim_node_end(node);
    }
    if (graph->exec) graph->exec->graph = NULL;
    sim_objects_release(&graph->objects);
    graph->magic = 0;
    free(graph);
}

bool sim_graph_can_follow(const struct sim_graph *graph, const abi_graph_node *after, size_t count) {
    uint64_t visit = ++sim.next_id;
    if (count && !after) return false;
    for (size_t i = 0; i < count; i++) {
        struct sim_graph_node *node = sim_node_of(after[i]);
        if (!node || node->graph != graph || node->visit == visit) return false;
        node->visit = visit;
    }
    return true;
}

/* Memory is freed once in a graph, and either in its own graph or in others. */
static bool can_free(const struct sim_graph *graph, const struct sim_step *step) {
    for (const struct sim_graph_node *node = graph->first; node; node = node->next)
        if (node->step.type == ABI_NODE_MEM_FREE && node->step.memory == step->memory) return false;
    return sim_graph_memory_add_free(step->memory, graph);
}

int sim_graph_add(struct sim_graph *graph, struct sim_step *step, const abi_graph_node *after, size_t count,
                  abi_graph_node *out) {
    struct sim_graph_node *node = calloc(1, sizeof *node), **list = calloc(count ? count : 1, sizeof *list);
    int result = !node || !list                                              ? ABI_ERROR_OUT_OF_MEMORY
                 : !sim_graph_can_follow(graph, after, count)                ? ABI_ERROR_INVALID_VALUE
                 : step->type == ABI_NODE_MEM_FREE && !can_free(graph, step) ? ABI_ERROR_INVALID_VALUE
                                                                             : ABI_SUCCESS;
    if (result != ABI_SUCCESS) {
        step_drop(step);
        free(node);
        free(list);
        return result;
    }
    if (count) memcpy(list, after, count * sizeof *list);
    *node = (struct sim_graph_node){.magic = SIM_NODE_MAGIC,
                                    .graph = graph,
                                    .id = ++sim.next_id,
                                    .step = *step,
                                    .after = list,
                                    .after_count = count};
    if (step->type == ABI_NODE_MEM_ALLOC) sim_graph_memory_set_graph(step->memory, graph);
    node->step.node = node->id;
    if (graph->last) graph->last->next = node;
    else graph->first = node;
    graph->last = node;
    graph->count++;
    if (out) *out = (abi_graph_node)node;
    return ABI_SUCCESS;
}

/* ---- walks ---- */

static bool is_ready(const struct sim_graph_node *node, uint64_t visit) {
    for (size_t i = 0; i < node->after_count; i++)
        if (node->after[i]->visit != visit) return false;
    return node->visit != visit;
}

bool sim_graph_walk(struct sim_graph *graph, void (*visit)(struct sim_graph_node *, void *), void *data) {
    uint64_t walk = ++sim.next_id;
    size_t left = graph->count, before;
    do {
        before = left;
        for (struct sim_graph_node *node = graph->first; node; node = node->next) {
            if (!is_ready(node, walk)) continue;
            node->visit = walk;
            node->place = graph->count - left--;
            visit(node, data);
        }
    } while (left && left < before);
    return !left;
}

static bool reaches(struct sim_graph_node *node, const struct sim_graph_node *other, uint64_t walk) {
    if (node == other) return true;
    if (node->visit == walk) return false;
    node->visit = walk;
    for (size_t i = 0; i < node->after_count; i++)
        if (reaches(node->after[i], other, walk)) return true;
    return false;
}
bool sim_node_depends_on(struct sim_graph_node *node, const struct sim_graph_node *other) {
    return reaches(node, other, ++sim.next_id);
}

/* ---- clones ---- */

bool sim_graph_is_fixed(const struct sim_graph *graph) {
    for (const struct sim_graph_node *node = graph->first; node; node = node->next)
        if (node->step.memory || node->step.type == ABI_NODE_CONDITIONAL ||
            (node->step.child && sim_graph_is_fixed(node->step.child)))
            return true;
    return false;
}

struct sim_graph *sim_graph_clone(const struct sim_graph *graph) {
    struct sim_graph *clone = sim_graph_new();
    for (struct sim_graph_node *node = graph->first; clone && node; node = node->next) {
        struct sim_step step = node->step;
        if (step.child && (step.child = sim_graph_clone(step.child))) step.child->owned = true;
        bool copied = !node->step.child == !step.child && sim_graph_add(clone, &step, NULL, 0, NULL) == ABI_SUCCESS;
        struct sim_graph_node *twin = copied ? clone->last : NULL;
        if (twin && node->after_count) twin->after = calloc(node->after_count, sizeof *twin->after);
        if (!twin || (node->after_count && !twin->after)) {
            sim_graph_end(clone);
            return NULL;
        }
        node->twin = twin;
        twin->origin = node->id;
    }
    for (const struct sim_graph_node *node = graph->first; clone && node; node = node->next)
        for (size_t i = 0; i < node->after_count; i++)
            node->twin->after[node->twin->after_count++] = node->after[i]->twin;
    if (clone) sim_objects_copy(&clone->objects, graph->objects);
    return clone;
}

SIM_EXPORT abi_result cuGraphClone(abi_graph *out, abi_graph handle) {
    SIM_ENTER("cuGraphClone");
    const struct sim_graph *graph = sim_graph_of(handle);
    if (!out || !graph) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool fixed = sim_graph_is_fixed(graph);
    struct sim_graph *clone = fixed ? NULL : sim_graph_clone(graph);
    pthread_mutex_unlock(&sim.lock);
    if (clone) *out = (abi_graph)clone;
    return clone ? ABI_SUCCESS : fixed ? ABI_ERROR_NOT_SUPPORTED : ABI_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT abi_result cuGraphNodeFindInClone(abi_graph_node *out, abi_graph_node original, abi_graph handle) {
    SIM_ENTER("cuGraphNodeFindInClone");
    const struct sim_graph_node *node = sim_node_of(original), *twin = NULL;
    const struct sim_graph *clone = sim_graph_of(handle);
    if (!out || !node || !clone) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    for (twin = clone->first; twin && twin->origin != node->id;) twin = twin->next;
    pthread_mutex_unlock(&sim.lock);
    if (twin) *out = (abi_graph_node)twin;
    return twin ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

/* ---- create and end ---- */

SIM_EXPORT abi_result cuGraphCreate(abi_graph *out, unsigned flags) {
    SIM_ENTER("cuGraphCreate");
    if (!out || flags) return ABI_ERROR_INVALID_VALUE;
    struct sim_graph *graph = sim_graph_new();
    if (!graph) return ABI_ERROR_OUT_OF_MEMORY;
    *out = (abi_graph)graph;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGraphDestroy(abi_graph handle) {
    SIM_ENTER("cuGraphDestroy");
    struct sim_graph *graph = sim_graph_of(handle);
    if (!graph || graph->owned) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    sim_graph_end(graph);
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}
