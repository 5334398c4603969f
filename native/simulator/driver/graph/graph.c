/* Graphs: lists of steps in the order of their addition, which their dependencies allow. exec.c executes them. */
#include <stdlib.h>

#include "graph.h"

#define GRAPH_MAGIC 0x47524121u
#define NODE_MAGIC 0x4e4f4421u

struct sim_graph *sim_graph_of(abi_graph handle) {
    struct sim_graph *graph = (struct sim_graph *)handle;
    return graph && graph->magic == GRAPH_MAGIC ? graph : NULL;
}
static struct sim_graph_node *node_of(abi_graph_node handle) {
    struct sim_graph_node *node = (struct sim_graph_node *)handle;
    return node && node->magic == NODE_MAGIC ? node : NULL;
}

struct sim_graph *sim_graph_new(void) {
    struct sim_graph *graph = calloc(1, sizeof *graph);
    if (graph) graph->magic = GRAPH_MAGIC;
    return graph;
}

void sim_graph_end(struct sim_graph *graph) {
    for (struct sim_graph_node *node = graph->first, *next; node; node = next) {
        next = node->next;
        if (node->step.memory) sim_graph_memory_release(node->step.memory);
        if (node->step.child) sim_graph_end(node->step.child);
        node->magic = 0;
        free(node);
    }
    if (graph->exec) graph->exec->graph = NULL;
    graph->magic = 0;
    free(graph);
}

int sim_graph_add(struct sim_graph *graph, const struct sim_step *step, abi_graph_node *out) {
    struct sim_graph_node *node = calloc(1, sizeof *node);
    if (!node) return ABI_ERROR_OUT_OF_MEMORY;
    *node = (struct sim_graph_node){.magic = NODE_MAGIC, .step = *step};
    if (graph->last) graph->last->next = node;
    else graph->first = node;
    graph->last = node;
    graph->count++;
    if (out) *out = (abi_graph_node)node;
    return ABI_SUCCESS;
}

abi_graph_node *sim_graph_last(struct sim_graph *graph) {
    return (abi_graph_node *)&graph->last;
}

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

/* ---- create and query ---- */

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

static int step_of(abi_node_params *params, struct sim_step *step) {
    *step = (struct sim_step){.type = params->type};
    struct sim_function *function = (struct sim_function *)params->kernel.function;
    switch (params->type) {
    case ABI_NODE_EMPTY: return ABI_SUCCESS;
    case ABI_NODE_KERNEL:
        if (!function) function = params->kernel.kernel;
        if (!function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_VALUE;
        if (params->kernel.parameters && params->kernel.extra) return ABI_ERROR_INVALID_VALUE;
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
        if (params->child.ownership != ABI_CHILD_MOVE) return ABI_ERROR_NOT_SUPPORTED;
        child->owned = true;
        step->child = child;
        return ABI_SUCCESS;
    }
    default: return ABI_ERROR_NOT_SUPPORTED;
    }
}

static int add(abi_graph_node *out, abi_graph handle, abi_node_params *params) {
    struct sim_graph *graph = sim_graph_of(handle);
    struct sim_step step;
    if (!graph || !out || !params) return ABI_ERROR_INVALID_VALUE;
    if (params->reserved[0] || params->reserved[1] || params->reserved[2]) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    int result = step_of(params, &step);
    if (result == ABI_SUCCESS) result = sim_graph_add(graph, &step, out);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_ROW(cuGraphAddNode,
        (abi_graph_node * out, abi_graph graph, const abi_graph_node *after, size_t count, abi_node_params *params),
        add(out, graph, params))
SIM_ROW(cuGraphAddNode_v2,
        (abi_graph_node * out, abi_graph graph, const abi_graph_node *after, const void *edges, size_t count,
         abi_node_params *params),
        add(out, graph, params))
SIM_EXPORT abi_result cuGraphAddEmptyNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                          size_t count) {
    SIM_ENTER("cuGraphAddEmptyNode");
    (void)after;
    (void)count;
    abi_node_params params = {.type = ABI_NODE_EMPTY};
    return add(out, graph, &params);
}
SIM_EXPORT abi_result cuGraphAddKernelNode_v2(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                              size_t count, const abi_kernel_node *kernel) {
    SIM_ENTER("cuGraphAddKernelNode_v2");
    (void)after;
    (void)count;
    if (!kernel) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_KERNEL, .kernel = *kernel};
    return add(out, graph, &params);
}
SIM_EXPORT abi_result cuGraphAddKernelNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                           size_t count, const abi_kernel_node *kernel) {
    SIM_ENTER("cuGraphAddKernelNode");
    (void)after;
    (void)count;
    if (!kernel) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_KERNEL, .kernel.function = kernel->function};
    return add(out, graph, &params);
}
SIM_EXPORT abi_result cuGraphAddMemsetNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                           size_t count, const abi_memset_node *fill, abi_context context) {
    SIM_ENTER("cuGraphAddMemsetNode");
    (void)after;
    (void)count;
    (void)context;
    if (!fill) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_MEMSET, .memset = *fill};
    return add(out, graph, &params);
}
SIM_EXPORT abi_result cuGraphAddHostNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                         size_t count, const abi_host_node *host) {
    SIM_ENTER("cuGraphAddHostNode");
    (void)after;
    (void)count;
    if (!host) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_HOST, .host = *host};
    return add(out, graph, &params);
}
SIM_EXPORT abi_result cuGraphAddMemAllocNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                             size_t count, abi_alloc_node *alloc) {
    SIM_ENTER("cuGraphAddMemAllocNode");
    (void)after;
    (void)count;
    if (!alloc) return ABI_ERROR_INVALID_VALUE;
    abi_node_params params = {.type = ABI_NODE_MEM_ALLOC, .alloc = *alloc};
    int result = add(out, graph, &params);
    if (result == ABI_SUCCESS) alloc->pointer = params.alloc.pointer;
    return result;
}
SIM_EXPORT abi_result cuGraphAddMemFreeNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                            size_t count, abi_devptr pointer) {
    SIM_ENTER("cuGraphAddMemFreeNode");
    (void)after;
    (void)count;
    abi_node_params params = {.type = ABI_NODE_MEM_FREE, .free = pointer};
    return add(out, graph, &params);
}

SIM_EXPORT abi_result cuGraphGetNodes(abi_graph handle, abi_graph_node *nodes, size_t *count) {
    SIM_ENTER("cuGraphGetNodes");
    struct sim_graph *graph = sim_graph_of(handle);
    if (!graph || !count) return ABI_ERROR_INVALID_VALUE;
    if (nodes) {
        size_t capacity = *count, k = 0;
        for (struct sim_graph_node *node = graph->first; node && k < capacity; node = node->next)
            nodes[k++] = (abi_graph_node)node;
        for (size_t rest = k; rest < capacity; rest++) nodes[rest] = NULL;
        *count = k;
    } else {
        *count = graph->count;
    }
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphNodeGetType(abi_graph_node handle, int *type) {
    SIM_ENTER("cuGraphNodeGetType");
    struct sim_graph_node *node = node_of(handle);
    if (!node || !type) return ABI_ERROR_INVALID_VALUE;
    *type = node->step.type;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphMemAllocNodeGetParams(abi_graph_node handle, abi_alloc_node *alloc) {
    SIM_ENTER("cuGraphMemAllocNodeGetParams");
    struct sim_graph_node *node = node_of(handle);
    if (!node || !alloc || node->step.type != ABI_NODE_MEM_ALLOC) return ABI_ERROR_INVALID_VALUE;
    const struct sim_graph_memory *memory = node->step.memory;
    *alloc = (abi_alloc_node){.pool = {.alloc_type = ABI_ALLOCATION_PINNED, .location = node->step.location},
                              .bytes = sim_graph_memory_bytes(memory),
                              .pointer = sim_graph_memory_address(memory)};
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphMemFreeNodeGetParams(abi_graph_node handle, abi_devptr *pointer) {
    SIM_ENTER("cuGraphMemFreeNodeGetParams");
    struct sim_graph_node *node = node_of(handle);
    if (!node || !pointer || node->step.type != ABI_NODE_MEM_FREE) return ABI_ERROR_INVALID_VALUE;
    *pointer = sim_graph_memory_address(node->step.memory);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphChildGraphNodeGetGraph(abi_graph_node handle, abi_graph *graph) {
    SIM_ENTER("cuGraphChildGraphNodeGetGraph");
    struct sim_graph_node *node = node_of(handle);
    if (!node || !graph || !node->step.child) return ABI_ERROR_INVALID_VALUE;
    *graph = (abi_graph)node->step.child;
    return ABI_SUCCESS;
}
