/* Entry points that change executable graphs: the whole one by another graph, and single nodes. */
#include <stdlib.h>

#include "graph.h"

/* CUgraphExecUpdateResult */
enum { UPDATED = 0, FAILED = 1, TOPOLOGY_CHANGED = 2, TYPE_CHANGED = 3, PARAMETERS_CHANGED = 5 };
/* CUgraphExecUpdateResultInfo */
struct update_result {
    int result;
    abi_graph_node error_node, error_from_node;
};

static abi_graph_node node_by_id(struct sim_graph *graph, uint64_t id) {
    for (struct sim_graph_node *node = graph->first; node; node = node->next)
        if (node->id == id) return (abi_graph_node)node;
    return NULL;
}

/* Topology first; memory has its address from its node, which no update changes. */
static int compare(const struct sim_exec *exec, const struct sim_exec *other, uint64_t *node) {
    if (exec->count != other->count) return TOPOLOGY_CHANGED;
    for (size_t i = 0; i < exec->count; i++)
        if (exec->steps[i].shape != other->steps[i].shape) return TOPOLOGY_CHANGED;
    for (size_t i = 0; i < exec->count; i++) {
        *node = other->steps[i].node;
        if (exec->steps[i].type != other->steps[i].type) return TYPE_CHANGED;
        if (exec->steps[i].memory != other->steps[i].memory) return PARAMETERS_CHANGED;
    }
    *node = 0;
    return UPDATED;
}

/* After another one with its memory has ended. */
static void claim_again(const struct sim_exec *exec) {
    for (size_t i = 0; exec && i < exec->count; i++) {
        if (exec->steps[i].type != ABI_NODE_MEM_ALLOC) continue;
        sim_graph_memory_claim(exec->steps[i].memory);
        sim_graph_memory_release(exec->steps[i].memory);
    }
}

static int update(abi_graph_exec handle, abi_graph from, struct update_result *info) {
    struct sim_exec *exec = sim_exec_of(handle), *other = NULL;
    struct sim_graph *graph = sim_graph_of(from);
    uint64_t node = 0;
    *info = (struct update_result){.result = FAILED};
    if (!exec || !graph) return ABI_ERROR_INVALID_VALUE;
    struct sim_exec *own = graph->exec;
    graph->exec = NULL; /* a look at the graph is no second executable one */
    int result = sim_exec_new(graph, exec->flags, &other);
    if (result == ABI_SUCCESS) info->result = compare(exec, other, &node);
    if (result == ABI_SUCCESS && info->result != UPDATED) result = ABI_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    if (result == ABI_SUCCESS) {
        /* What a node was disabled by goes on, and its changes by the node of the first graph. */
        for (size_t i = 0; i < exec->count; i++) {
            other->steps[i].node = exec->steps[i].node;
            other->steps[i].disabled = exec->steps[i].disabled;
        }
        struct sim_step *steps = exec->steps;
        exec->steps = other->steps;
        other->steps = steps;
    }
    if (other) sim_exec_end(other);
    graph->exec = own;
    claim_again(exec);
    claim_again(own);
    info->error_node = info->result == UPDATED ? NULL : node_by_id(graph, node);
    return result;
}

SIM_EXPORT abi_result cuGraphExecUpdate_v2(abi_graph_exec exec, abi_graph graph, struct update_result *info) {
    SIM_ENTER("cuGraphExecUpdate_v2");
    return info ? SIM_LOCKED(update(exec, graph, info)) : ABI_ERROR_INVALID_VALUE;
}
SIM_EXPORT abi_result cuGraphExecUpdate(abi_graph_exec exec, abi_graph graph, abi_graph_node *node, int *reason) {
    SIM_ENTER("cuGraphExecUpdate");
    struct update_result info;
    if (!node || !reason) return ABI_ERROR_INVALID_VALUE;
    int result = SIM_LOCKED(update(exec, graph, &info));
    *node = info.error_node;
    *reason = info.result;
    return result;
}

/* ---- single nodes, named by those of the graph that the executable one was made of ---- */

/* Under sim.lock. */
static struct sim_step *step_of(abi_graph_exec handle, abi_graph_node of) {
    struct sim_exec *exec = sim_exec_of(handle);
    const struct sim_graph_node *node = sim_node_of(of);
    for (size_t i = 0; exec && node && i < exec->count; i++)
        if (exec->steps[i].node == node->id) return &exec->steps[i];
    return NULL;
}

static bool can_be_disabled(const struct sim_step *step) {
    return step && (step->type == ABI_NODE_KERNEL || step->type == ABI_NODE_MEMSET || step->type == ABI_NODE_MEMCPY);
}

static int set_enabled(abi_graph_exec exec, abi_graph_node node, unsigned enabled) {
    struct sim_step *step = step_of(exec, node);
    if (!can_be_disabled(step)) return ABI_ERROR_INVALID_VALUE;
    step->disabled = !enabled;
    return ABI_SUCCESS;
}
static int get_enabled(abi_graph_exec exec, abi_graph_node node, unsigned *enabled) {
    const struct sim_step *step = step_of(exec, node);
    if (!can_be_disabled(step) || !enabled) return ABI_ERROR_INVALID_VALUE;
    *enabled = !step->disabled;
    return ABI_SUCCESS;
}
SIM_ROW(cuGraphNodeSetEnabled, (abi_graph_exec exec, abi_graph_node node, unsigned enabled),
        SIM_LOCKED(set_enabled(exec, node, enabled)))
SIM_ROW(cuGraphNodeGetEnabled, (abi_graph_exec exec, abi_graph_node node, unsigned *enabled),
        SIM_LOCKED(get_enabled(exec, node, enabled)))

/* Kernels, fills and functions of the host; what else a node does stays as it was instantiated. */
static int set_parameters(abi_graph_exec exec, abi_graph_node node, abi_node_params *params) {
    struct sim_step *step = step_of(exec, node), changed;
    if (!step || step->type != params->type) return ABI_ERROR_INVALID_VALUE;
    if (params->type != ABI_NODE_KERNEL && params->type != ABI_NODE_MEMSET && params->type != ABI_NODE_HOST)
        return ABI_ERROR_NOT_SUPPORTED;
    SIM_TRY(sim_step_of(params, &changed));
    changed.node = step->node;
    changed.shape = step->shape;
    changed.disabled = step->disabled;
    *step = changed;
    return ABI_SUCCESS;
}
#define PARAMETERS(kind, member)                                \
    abi_node_params params;                                     \
    if (!given) return ABI_ERROR_INVALID_VALUE;                 \
    params = (abi_node_params){.type = kind, .member = *given}; \
    return SIM_LOCKED(set_parameters(exec, node, &params))
SIM_EXPORT abi_result cuGraphExecMemsetNodeSetParams(abi_graph_exec exec, abi_graph_node node,
                                                     const abi_memset_node *given, abi_context context) {
    SIM_ENTER("cuGraphExecMemsetNodeSetParams");
    (void)context;
    PARAMETERS(ABI_NODE_MEMSET, memset);
}
SIM_EXPORT abi_result cuGraphExecHostNodeSetParams(abi_graph_exec exec, abi_graph_node node,
                                                   const abi_host_node *given) {
    SIM_ENTER("cuGraphExecHostNodeSetParams");
    PARAMETERS(ABI_NODE_HOST, host);
}
SIM_EXPORT abi_result cuGraphExecKernelNodeSetParams_v2(abi_graph_exec exec, abi_graph_node node,
                                                        const abi_kernel_node *given) {
    SIM_ENTER("cuGraphExecKernelNodeSetParams_v2");
    PARAMETERS(ABI_NODE_KERNEL, kernel);
}
SIM_ROW(cuGraphExecNodeSetParams, (abi_graph_exec exec, abi_graph_node node, abi_node_params *params),
        params ? SIM_LOCKED(set_parameters(exec, node, params)) : ABI_ERROR_INVALID_VALUE)
