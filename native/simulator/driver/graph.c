/* Graphs: lists of steps in the order in which they were added, which is an order that their dependencies allow. A
 * launch does one after the other on its stream; what runs beside what on a card is not simulated. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define GRAPH_MAGIC 0x47524121u
#define NODE_MAGIC 0x4e4f4421u
#define EXEC_MAGIC 0x47455821u

struct node {
    uint32_t magic;
    struct sim_step step;
    struct node *next;
};

struct sim_graph {
    uint32_t magic;
    bool owned; /* by the node of another graph */
    struct node *first, *last;
    size_t count;
    struct exec *exec; /* of a graph with memory nodes: the only executable one that there may be */
};

struct exec {
    uint32_t magic;
    struct sim_graph *graph; /* NULL once that was destroyed */
    bool auto_free;
    struct sim_step *steps;
    size_t count;
};

static struct sim_graph *graph_of(abi_graph handle) {
    struct sim_graph *graph = (struct sim_graph *)handle;
    return graph && graph->magic == GRAPH_MAGIC ? graph : NULL;
}
static struct node *node_of(abi_graph_node handle) {
    struct node *node = (struct node *)handle;
    return node && node->magic == NODE_MAGIC ? node : NULL;
}
static struct exec *exec_of(abi_graph_exec handle) {
    struct exec *exec = (struct exec *)handle;
    return exec && exec->magic == EXEC_MAGIC ? exec : NULL;
}

struct sim_graph *sim_graph_new(void) {
    struct sim_graph *graph = calloc(1, sizeof *graph);
    if (graph) graph->magic = GRAPH_MAGIC;
    return graph;
}

void sim_graph_end(struct sim_graph *graph) {
    for (struct node *node = graph->first, *next; node; node = next) {
        next = node->next;
        if (node->step.memory) sim_graph_memory_drop(node->step.memory);
        if (node->step.child) sim_graph_end(node->step.child);
        node->magic = 0;
        free(node);
    }
    if (graph->exec) graph->exec->graph = NULL;
    graph->magic = 0;
    free(graph);
}

int sim_graph_add(struct sim_graph *graph, const struct sim_step *step, abi_graph_node *out) {
    struct node *node = calloc(1, sizeof *node);
    if (!node) return ABI_ERROR_OUT_OF_MEMORY;
    *node = (struct node){.magic = NODE_MAGIC, .step = *step};
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
    *step = (struct sim_step){.type = ABI_NODE_MEM_ALLOC};
    return sim_graph_memory_new(device, bytes, &step->memory);
}

int sim_graph_free_step(abi_devptr pointer, struct sim_step *step) {
    struct sim_region *region = sim_region_at(pointer);
    if (!region || region->kind != SIM_GRAPH || pointer != sim_region_address(region)) return ABI_ERROR_INVALID_VALUE;
    *step = (struct sim_step){.type = ABI_NODE_MEM_FREE, .memory = region->graph_memory};
    sim_graph_memory_keep(step->memory);
    return ABI_SUCCESS;
}

/* ---- making and reading graphs ---- */

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
    struct sim_graph *graph = graph_of(handle);
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
        step->item =
            (struct sim_item){.kind = SIM_ITEM_KERNEL, .duration_ns = function->duration_ns, .error = function->error};
        return ABI_SUCCESS;
    case ABI_NODE_MEMSET:
        step->fill = params->memset;
        return step->fill.element == 1 || step->fill.element == 2 || step->fill.element == 4 ? ABI_SUCCESS
                                                                                             : ABI_ERROR_INVALID_VALUE;
    case ABI_NODE_MEM_ALLOC: {
        abi_alloc_node *alloc = &params->alloc;
        if (alloc->pool.alloc_type != ABI_ALLOCATION_PINNED || alloc->pool.location.type != ABI_LOCATION_DEVICE)
            return ABI_ERROR_NOT_SUPPORTED;
        if (alloc->pool.location.id < 0 || alloc->pool.location.id >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
        int result = sim_graph_alloc_step(alloc->pool.location.id, alloc->bytes, step);
        if (result == ABI_SUCCESS) alloc->pointer = sim_graph_memory_address(step->memory);
        return result;
    }
    case ABI_NODE_MEM_FREE: return sim_graph_free_step(params->free, step);
    case ABI_NODE_GRAPH: {
        struct sim_graph *child = graph_of(params->child.graph);
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
    struct sim_graph *graph = graph_of(handle);
    struct sim_step step;
    if (!graph || !out || !params) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    int result = step_of(params, &step);
    if (result == ABI_SUCCESS) result = sim_graph_add(graph, &step, out);
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuGraphAddNode(abi_graph_node *out, abi_graph graph, const abi_graph_node *after, size_t count,
                                     abi_node_params *params) {
    SIM_ENTER("cuGraphAddNode");
    (void)after;
    (void)count;
    return add(out, graph, params);
}
SIM_EXPORT abi_result cuGraphAddNode_v2(abi_graph_node *out, abi_graph graph, const abi_graph_node *after,
                                        const void *edges, size_t count, abi_node_params *params) {
    SIM_ENTER("cuGraphAddNode_v2");
    (void)after;
    (void)edges;
    (void)count;
    return add(out, graph, params);
}
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
    struct sim_graph *graph = graph_of(handle);
    if (!graph || !count) return ABI_ERROR_INVALID_VALUE;
    if (nodes) {
        size_t room = *count, k = 0;
        for (struct node *node = graph->first; node && k < room; node = node->next) nodes[k++] = (abi_graph_node)node;
        for (size_t rest = k; rest < room; rest++) nodes[rest] = NULL;
        *count = k;
    } else {
        *count = graph->count;
    }
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphNodeGetType(abi_graph_node handle, int *type) {
    SIM_ENTER("cuGraphNodeGetType");
    struct node *node = node_of(handle);
    if (!node || !type) return ABI_ERROR_INVALID_VALUE;
    *type = node->step.type;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphMemAllocNodeGetParams(abi_graph_node handle, abi_alloc_node *alloc) {
    SIM_ENTER("cuGraphMemAllocNodeGetParams");
    struct node *node = node_of(handle);
    if (!node || !alloc || node->step.type != ABI_NODE_MEM_ALLOC) return ABI_ERROR_INVALID_VALUE;
    const struct sim_graph_memory *memory = node->step.memory;
    *alloc = (abi_alloc_node){.pool = {.alloc_type = ABI_ALLOCATION_PINNED,
                                       .location = {ABI_LOCATION_DEVICE, sim_graph_memory_device(memory)}},
                              .bytes = sim_graph_memory_bytes(memory),
                              .pointer = sim_graph_memory_address(memory)};
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphMemFreeNodeGetParams(abi_graph_node handle, abi_devptr *pointer) {
    SIM_ENTER("cuGraphMemFreeNodeGetParams");
    struct node *node = node_of(handle);
    if (!node || !pointer || node->step.type != ABI_NODE_MEM_FREE) return ABI_ERROR_INVALID_VALUE;
    *pointer = sim_graph_memory_address(node->step.memory);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuGraphChildGraphNodeGetGraph(abi_graph_node handle, abi_graph *graph) {
    SIM_ENTER("cuGraphChildGraphNodeGetGraph");
    struct node *node = node_of(handle);
    if (!node || !graph || !node->step.child) return ABI_ERROR_INVALID_VALUE;
    *graph = (abi_graph)node->step.child;
    return ABI_SUCCESS;
}

/* ---- executable graphs ---- */

static size_t count_steps(const struct sim_graph *graph, bool *memory) {
    size_t count = 0;
    for (const struct node *node = graph->first; node; node = node->next) {
        *memory = *memory || node->step.memory;
        count += node->step.child ? count_steps(node->step.child, memory) : 1;
    }
    return count;
}

/* `room` is what count_steps counted. */
static void copy_steps(const struct sim_graph *graph, struct exec *exec, size_t room) {
    for (const struct node *node = graph->first; node && exec->count < room; node = node->next) {
        if (node->step.child) {
            copy_steps(node->step.child, exec, room);
            continue;
        }
        exec->steps[exec->count++] = node->step;
        if (node->step.type == ABI_NODE_MEM_ALLOC) sim_graph_memory_claim(node->step.memory);
        else if (node->step.memory) sim_graph_memory_keep(node->step.memory);
    }
}

/* Under sim.lock. */
static int back_all(struct exec *exec) {
    int result = ABI_SUCCESS;
    for (size_t i = 0; i < exec->count && result == ABI_SUCCESS; i++) {
        if (exec->steps[i].type == ABI_NODE_MEM_ALLOC) result = sim_graph_memory_back(exec->steps[i].memory);
    }
    return result;
}

/* Under sim.lock. */
static void exec_end(struct exec *exec) {
    for (size_t i = 0; i < exec->count; i++) {
        struct sim_step *step = &exec->steps[i];
        if (step->type == ABI_NODE_MEM_ALLOC) sim_graph_memory_leave(step->memory);
        else if (step->memory) sim_graph_memory_drop(step->memory);
    }
    if (exec->graph && exec->graph->exec == exec) exec->graph->exec = NULL;
    exec->magic = 0;
    free(exec->steps);
    free(exec);
}

static int instantiate(abi_graph_exec *out, abi_graph handle, uint64_t flags) {
    struct sim_graph *graph = graph_of(handle);
    struct sim_context *context;
    int result = sim_current(&context);
    if (result != ABI_SUCCESS) return result;
    if (!out || !graph || flags & ~(uint64_t)(ABI_INSTANTIATE_AUTO_FREE | ABI_INSTANTIATE_UPLOAD))
        return ABI_ERROR_INVALID_VALUE;
    bool memory = false;
    pthread_mutex_lock(&sim.lock);
    size_t count = count_steps(graph, &memory);
    struct exec *exec = calloc(1, sizeof *exec);
    struct sim_step *steps = calloc(count ? count : 1, sizeof *steps);
    if (!exec || !steps || (memory && graph->exec)) {
        result = !exec || !steps ? ABI_ERROR_OUT_OF_MEMORY : ABI_ERROR_NOT_SUPPORTED;
        free(exec);
        free(steps);
    } else {
        *exec = (struct exec){.magic = EXEC_MAGIC, .auto_free = flags & ABI_INSTANTIATE_AUTO_FREE, .steps = steps};
        copy_steps(graph, exec, count);
        if (memory) {
            exec->graph = graph;
            graph->exec = exec;
        }
        if (flags & ABI_INSTANTIATE_UPLOAD) result = back_all(exec);
        if (result == ABI_SUCCESS) *out = (abi_graph_exec)exec;
        else exec_end(exec);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuGraphInstantiate(abi_graph_exec *out, abi_graph graph, abi_graph_node *error, char *log,
                                         size_t log_bytes) {
    SIM_ENTER("cuGraphInstantiate");
    (void)error;
    if (log && log_bytes) *log = 0;
    return instantiate(out, graph, 0);
}
SIM_EXPORT abi_result cuGraphInstantiate_v2(abi_graph_exec *out, abi_graph graph, abi_graph_node *error, char *log,
                                            size_t log_bytes) {
    SIM_ENTER("cuGraphInstantiate_v2");
    (void)error;
    if (log && log_bytes) *log = 0;
    return instantiate(out, graph, 0);
}
SIM_EXPORT abi_result cuGraphInstantiateWithFlags(abi_graph_exec *out, abi_graph graph, unsigned long long flags) {
    SIM_ENTER("cuGraphInstantiateWithFlags");
    return flags & ABI_INSTANTIATE_UPLOAD ? ABI_ERROR_INVALID_VALUE : instantiate(out, graph, flags);
}
SIM_EXPORT abi_result cuGraphInstantiateWithParams(abi_graph_exec *out, abi_graph graph,
                                                   abi_instantiate_params *params) {
    SIM_ENTER("cuGraphInstantiateWithParams");
    if (!params) return ABI_ERROR_INVALID_VALUE;
    abi_result result = instantiate(out, graph, params->flags);
    params->result = result == ABI_SUCCESS ? 0 : 1;
    return result;
}
SIM_EXPORT abi_result cuGraphInstantiateWithParams_ptsz(abi_graph_exec *out, abi_graph graph,
                                                        abi_instantiate_params *params) {
    return cuGraphInstantiateWithParams(out, graph, params);
}

SIM_EXPORT abi_result cuGraphExecDestroy(abi_graph_exec handle) {
    SIM_ENTER("cuGraphExecDestroy");
    struct exec *exec = exec_of(handle);
    if (!exec) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    exec_end(exec);
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGraphUpload(abi_graph_exec handle, abi_stream stream) {
    SIM_ENTER("cuGraphUpload");
    struct exec *exec = exec_of(handle);
    struct sim_context *context;
    struct sim_stream *object;
    int result = sim_stream_context(stream, &context, &object);
    if (result != ABI_SUCCESS) return result;
    if (!exec) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    result = back_all(exec);
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_EXPORT abi_result cuGraphUpload_ptsz(abi_graph_exec exec, abi_stream stream) {
    return cuGraphUpload(exec, stream);
}

/* Under sim.lock: what a launch allocated and nobody freed must be freed before the next one. */
static int begin_all(struct exec *exec) {
    for (size_t i = 0; i < exec->count; i++) {
        struct sim_graph_memory *memory = exec->steps[i].memory;
        if (exec->steps[i].type != ABI_NODE_MEM_ALLOC || !sim_graph_memory_live(memory)) continue;
        if (!exec->auto_free) return ABI_ERROR_INVALID_VALUE;
        sim_graph_memory_free(memory, sim_graph_memory_address(memory));
    }
    return back_all(exec);
}

static int take_step(struct sim_context *context, struct sim_stream *stream, struct sim_step *step, uint64_t *number) {
    int result = ABI_SUCCESS;
    switch (step->type) {
    case ABI_NODE_KERNEL: return sim_submit(context, stream, &step->item, number);
    case ABI_NODE_MEMCPY: return sim_copy_now(step->to, step->from, step->bytes);
    case ABI_NODE_MEMSET: return sim_fill_now(&step->fill);
    case ABI_NODE_MEM_ALLOC:
    case ABI_NODE_MEM_FREE:
        pthread_mutex_lock(&sim.lock);
        if (step->type == ABI_NODE_MEM_ALLOC) sim_graph_memory_begin(step->memory);
        else result = sim_graph_memory_free(step->memory, sim_graph_memory_address(step->memory));
        pthread_mutex_unlock(&sim.lock);
        return result;
    default: return ABI_SUCCESS;
    }
}

SIM_EXPORT abi_result cuGraphLaunch(abi_graph_exec handle, abi_stream stream_handle) {
    SIM_ENTER("cuGraphLaunch");
    struct exec *exec = exec_of(handle);
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(stream_handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (!exec) return ABI_ERROR_INVALID_VALUE;
    if (stream && stream->capture) return ABI_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&sim.lock);
    result = begin_all(exec);
    pthread_mutex_unlock(&sim.lock);
    uint64_t number = 0;
    for (size_t i = 0; i < exec->count && result == ABI_SUCCESS; i++)
        result = take_step(context, stream, &exec->steps[i], &number);
    pthread_mutex_lock(&sim.lock);
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->steps[i].memory) sim_graph_memory_busy(exec->steps[i].memory, number);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_EXPORT abi_result cuGraphLaunch_ptsz(abi_graph_exec exec, abi_stream stream) {
    return cuGraphLaunch(exec, stream);
}
