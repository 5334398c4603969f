/* Entry points that add nodes to graphs, and what a node does when it is executed. */
#include <stdlib.h>

#include "graph.h"

int sim_graph_alloc_step(int device, uint64_t bytes, struct sim_step *step) {
    *step = (struct sim_step){.type = ABI_NODE_MEM_ALLOC, .location = {ABI_LOCATION_DEVICE, device}};
    return sim_graph_memory_new(device, bytes, &step->memory);
}

int sim_graph_free_step(abi_devptr pointer, struct sim_step *step) {
    struct sim_region *region = sim_region_at(pointer);
    if (!region || region->kind != SIM_GRAPH || pointer != sim_region_address(region)) return ABI_ERROR_INVALID_VALUE;
    *step = (struct sim_step){.type = ABI_NODE_MEM_FREE, .memory = region->graph_memory};
    sim_graph_memory_retain(step->memory);
    return ABI_SUCCESS;
}

/* Bodies are graphs of the node. Kernels compute nothing, so a condition keeps its value. */
struct condition {
    abi_graph body;
    bool runs;
};
enum { IF = 0, WHILE = 1, ASSIGN_DEFAULT = 1 };

static int conditional(abi_conditional_node *params, struct sim_step *step) {
    struct condition *condition = (struct condition *)(uintptr_t)params->handle;
    if (!condition || condition->body || params->size == 0) return ABI_ERROR_INVALID_VALUE;
    if (params->type > WHILE || params->size > 1) return ABI_ERROR_NOT_SUPPORTED;
    if (!(step->child = sim_graph_new())) return ABI_ERROR_OUT_OF_MEMORY;
    step->child->owned = true;
    step->bytes = condition->runs;
    condition->body = (abi_graph)step->child;
    params->bodies = &condition->body;
    return ABI_SUCCESS;
}

int sim_step_of(abi_node_params *params, struct sim_step *step) {
    *step = (struct sim_step){.type = params->type};
    struct sim_function *function = (struct sim_function *)params->kernel.function;
    switch (params->type) {
    case ABI_NODE_EMPTY: return ABI_SUCCESS;
    case ABI_NODE_KERNEL:
        if (!function) function = params->kernel.kernel;
        if (!function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_VALUE;
        if (params->kernel.parameters && params->kernel.extra) return ABI_ERROR_INVALID_VALUE;
        step->fixed_limits = function->fixed_limits;
        return sim_kernel(function, (uint64_t)params->kernel.grid_x * params->kernel.grid_y * params->kernel.grid_z,
                          params->kernel.parameters, &step->item);
    case ABI_NODE_HOST:
        step->function = params->host.function;
        step->data = params->host.data;
        return step->function ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
    case ABI_NODE_MEMSET:
        step->fill = params->memset;
        return step->fill.element == 1 || step->fill.element == 2 || step->fill.element == 4 ? ABI_SUCCESS
                                                                                             : ABI_ERROR_INVALID_VALUE;
    case ABI_NODE_MEM_ALLOC: {
        abi_alloc_node *alloc = &params->alloc;
        int device = sim_device_of_location(&alloc->pool.location);
        if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
        if (alloc->pool.alloc_type != ABI_ALLOCATION_PINNED || device < 0) return ABI_ERROR_NOT_SUPPORTED;
        int result = sim_graph_alloc_step(device, alloc->bytes, step);
        step->location = alloc->pool.location;
        if (result == ABI_SUCCESS) alloc->pointer = sim_graph_memory_address(step->memory);
        return result;
    }
    case ABI_NODE_MEM_FREE: return sim_graph_free_step(params->free, step);
    case ABI_NODE_GRAPH: {
        struct sim_graph *child = sim_graph_of(params->child.graph);
        if (!child || child->owned) return ABI_ERROR_INVALID_VALUE;
        if (params->child.ownership != ABI_CHILD_MOVE) {
            if (sim_graph_is_fixed(child)) return ABI_ERROR_NOT_SUPPORTED;
            child = sim_graph_clone(child);
        }
        if (!child) return ABI_ERROR_OUT_OF_MEMORY;
        child->owned = true;
        step->child = child;
        return ABI_SUCCESS;
    }
    case ABI_NODE_EVENT_RECORD:
    case ABI_NODE_WAIT_EVENT:
        step->event = (struct sim_event *)params->event;
        return step->event && step->event->magic == SIM_EVENT_MAGIC ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
    case ABI_NODE_CONDITIONAL: return conditional(&params->conditional, step);
    default: return ABI_ERROR_NOT_SUPPORTED;
    }
}

static int add(abi_graph_node *out, abi_graph handle, const abi_graph_node *after, size_t count,
               abi_node_params *params) {
    struct sim_graph *graph = sim_graph_of(handle);
    struct sim_step step;
    if (!graph || !out || !params) return ABI_ERROR_INVALID_VALUE;
    if (params->reserved[0] || params->reserved[1] || params->reserved[2]) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    /* First, for a child that is moved is lost with a node that fails. */
    int result = sim_graph_can_follow(graph, after, count) ? sim_step_of(params, &step) : ABI_ERROR_INVALID_VALUE;
    if (result == ABI_SUCCESS) result = sim_graph_add(graph, &step, after, count, out);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_ROW(cuGraphAddNode,
        (abi_graph_node * out, abi_graph graph, const abi_graph_node *after, size_t count, abi_node_params *params),
        add(out, graph, after, count, params))
SIM_ROW(cuGraphAddNode_v2,
        (abi_graph_node * out, abi_graph graph, const abi_graph_node *after, const void *edges, size_t count,
         abi_node_params *params),
        add(out, graph, after, count, params))
SIM_EXPORT abi_result cuGraphAddEmptyNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                          size_t count) {
    SIM_ENTER("cuGraphAddEmptyNode");
    abi_node_params params = {.type = ABI_NODE_EMPTY};
    return add(out, graph, after, count, &params);
}
SIM_EXPORT abi_result cuGraphAddKernelNode_v2(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                              size_t count, const abi_kernel_node *kernel) {
    SIM_ENTER("cuGraphAddKernelNode_v2");
    if (!kernel) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_KERNEL, .kernel = *kernel};
    return add(out, graph, after, count, &params);
}
SIM_EXPORT abi_result cuGraphAddKernelNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                           size_t count, const abi_kernel_node *kernel) {
    SIM_ENTER("cuGraphAddKernelNode");
    if (!kernel) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_KERNEL, .kernel.function = kernel->function};
    return add(out, graph, after, count, &params);
}
SIM_EXPORT abi_result cuGraphAddMemsetNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                           size_t count, const abi_memset_node *fill, abi_context context) {
    SIM_ENTER("cuGraphAddMemsetNode");
    (void)context;
    if (!fill) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_MEMSET, .memset = *fill};
    return add(out, graph, after, count, &params);
}
SIM_EXPORT abi_result cuGraphAddHostNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                         size_t count, const abi_host_node *host) {
    SIM_ENTER("cuGraphAddHostNode");
    if (!host) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_HOST, .host = *host};
    return add(out, graph, after, count, &params);
}
SIM_EXPORT abi_result cuGraphAddMemAllocNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                             size_t count, abi_alloc_node *alloc) {
    SIM_ENTER("cuGraphAddMemAllocNode");
    if (!alloc) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_MEM_ALLOC, .alloc = *alloc};
    int result = add(out, graph, after, count, &params);
    if (result == ABI_SUCCESS) alloc->pointer = params.alloc.pointer;
    return result;
}
SIM_EXPORT abi_result cuGraphAddMemFreeNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                            size_t count, abi_devptr pointer) {
    SIM_ENTER("cuGraphAddMemFreeNode");
    abi_node_params params = {.type = ABI_NODE_MEM_FREE, .free = pointer};
    return add(out, graph, after, count, &params);
}

SIM_EXPORT abi_result cuGraphAddChildGraphNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                               size_t count, abi_graph child) {
    SIM_ENTER("cuGraphAddChildGraphNode");
    abi_node_params params = {.type = ABI_NODE_GRAPH, .child = {child, ABI_CHILD_CLONE}};
    return add(out, graph, after, count, &params);
}
#define EVENT_NODE(name, kind)                                                                                  \
    SIM_EXPORT abi_result name(abi_graph_node *out, abi_graph graph, const abi_graph_node *after, size_t count, \
                               abi_event event) {                                                               \
        SIM_ENTER(#name);                                                                                       \
        abi_node_params params = {.type = kind, .event = event};                                                \
        return add(out, graph, after, count, &params);                                                          \
    }
EVENT_NODE(cuGraphAddEventRecordNode, ABI_NODE_EVENT_RECORD)
EVENT_NODE(cuGraphAddEventWaitNode, ABI_NODE_WAIT_EVENT)

/* It lives as long as the process: a handle has no end of its own. */
SIM_EXPORT abi_result cuGraphConditionalHandleCreate(uint64_t *out, abi_graph handle, abi_context context,
                                                     unsigned start, unsigned flags) {
    SIM_ENTER("cuGraphConditionalHandleCreate");
    (void)context;
    if (!out || !sim_graph_of(handle) || flags & ~(unsigned)ASSIGN_DEFAULT) return ABI_ERROR_INVALID_VALUE;
    struct condition *condition = calloc(1, sizeof *condition);
    if (!condition) return ABI_ERROR_OUT_OF_MEMORY;
    condition->runs = start && flags;
    *out = (uintptr_t)condition;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGraphNodeGetType(abi_graph_node handle, int *type) {
    SIM_ENTER("cuGraphNodeGetType");
    struct sim_graph_node *node = sim_node_of(handle);
    if (!node || !type) return ABI_ERROR_INVALID_VALUE;
    *type = node->step.type;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphMemAllocNodeGetParams(abi_graph_node handle, abi_alloc_node *alloc) {
    SIM_ENTER("cuGraphMemAllocNodeGetParams");
    struct sim_graph_node *node = sim_node_of(handle);
    if (!node || !alloc || node->step.type != ABI_NODE_MEM_ALLOC) return ABI_ERROR_INVALID_VALUE;
    const struct sim_graph_memory *memory = node->step.memory;
    *alloc = (abi_alloc_node){.pool = {.alloc_type = ABI_ALLOCATION_PINNED, .location = node->step.location},
                              .bytes = sim_graph_memory_bytes(memory),
                              .pointer = sim_graph_memory_address(memory)};
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphMemFreeNodeGetParams(abi_graph_node handle, abi_devptr *pointer) {
    SIM_ENTER("cuGraphMemFreeNodeGetParams");
    struct sim_graph_node *node = sim_node_of(handle);
    if (!node || !pointer || node->step.type != ABI_NODE_MEM_FREE) return ABI_ERROR_INVALID_VALUE;
    *pointer = sim_graph_memory_address(node->step.memory);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphChildGraphNodeGetGraph(abi_graph_node handle, abi_graph *graph) {
    SIM_ENTER("cuGraphChildGraphNodeGetGraph");
    struct sim_graph_node *node = sim_node_of(handle);
    if (!node || !graph || !node->step.child) return ABI_ERROR_INVALID_VALUE;
    *graph = (abi_graph)node->step.child;
    return ABI_SUCCESS;
}
