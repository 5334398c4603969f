/* Executable graphs. A launch executes one step after the other on its stream; concurrency of steps is not
 * simulated. */
#include <stdlib.h>

#include "graph.h"

#define EXEC_MAGIC 0x47455821u

struct sim_exec *sim_exec_of(abi_graph_exec handle) {
    struct sim_exec *exec = (struct sim_exec *)handle;
    return exec && exec->magic == EXEC_MAGIC ? exec : NULL;
}

struct collected {
    struct sim_exec *exec;
    size_t room;
    bool memory, circle, failed;
};

/* The edges of a node, whatever their order, by the places of what they come from. */
static uint64_t shape_of(const struct sim_graph_node *node) {
    uint64_t shape = node->after_count;
    for (size_t i = 0; i < node->after_count; i++) shape += (node->after[i]->place + 1) * 0x9e3779b97f4a7c15u;
    return shape;
}

/* A child's steps are in the place of its node; the body of a condition that is zero has none. */
static void collect(struct sim_graph_node *node, void *data) {
    struct collected *collected = data;
    struct sim_exec *exec = collected->exec;
    if (exec->count == collected->room) {
        size_t room = collected->room * 2 + 16;
        struct sim_step *steps = realloc(exec->steps, room * sizeof *steps);
        if (!steps) {
            collected->failed = true;
            return;
        }
        exec->steps = steps;
        collected->room = room;
    }
    struct sim_step *step = &exec->steps[exec->count++];
    *step = node->step;
    step->shape = shape_of(node);
    step->child = NULL;
    if (step->type == ABI_NODE_MEM_ALLOC) sim_graph_memory_claim(step->memory);
    else if (step->memory) sim_graph_memory_retain(step->memory);
    collected->memory = collected->memory || step->memory;
    struct sim_graph *child = node->step.child;
    if (!child || (step->type == ABI_NODE_CONDITIONAL && !step->bytes)) return;
    if (!sim_graph_walk(child, collect, data)) collected->circle = true;
}

/* Under sim.lock. */
static int back_all(struct sim_exec *exec) {
    int result = ABI_SUCCESS;
    for (size_t i = 0; i < exec->count && result == ABI_SUCCESS; i++) {
        if (exec->steps[i].type == ABI_NODE_MEM_ALLOC) result = sim_graph_memory_ensure_backing(exec->steps[i].memory);
    }
    return result;
}

/* Under sim.lock. */
void sim_exec_end(struct sim_exec *exec) {
    for (size_t i = 0; i < exec->count; i++) {
        struct sim_step *step = &exec->steps[i];
        if (step->type == ABI_NODE_MEM_ALLOC) sim_graph_memory_unclaim(step->memory);
        else if (step->memory) sim_graph_memory_release(step->memory);
    }
    if (exec->graph && exec->graph->exec == exec) exec->graph->exec = NULL;
    sim_objects_release(&exec->objects);
    exec->magic = 0;
    free(exec->steps);
    free(exec);
}

int sim_exec_new(struct sim_graph *graph, uint64_t flags, struct sim_exec **out) {
    struct sim_exec *exec = calloc(1, sizeof *exec);
    if (!exec) return ABI_ERROR_OUT_OF_MEMORY;
    *exec = (struct sim_exec){.magic = EXEC_MAGIC, .flags = flags};
    struct collected collected = {.exec = exec};
    bool whole = sim_graph_walk(graph, collect, &collected) && !collected.circle;
    int result = collected.failed                  ? ABI_ERROR_OUT_OF_MEMORY
                 : !whole                          ? ABI_ERROR_INVALID_VALUE
                 : collected.memory && graph->exec ? ABI_ERROR_NOT_SUPPORTED
                                                   : ABI_SUCCESS;
    if (result != ABI_SUCCESS) {
        sim_exec_end(exec);
        return result;
    }
    if (collected.memory) {
        exec->graph = graph;
        graph->exec = exec;
    }
    sim_objects_copy(&exec->objects, graph->objects);
    *out = exec;
    return ABI_SUCCESS;
}

static int instantiate(abi_graph_exec *out, abi_graph handle, uint64_t flags) {
    struct sim_graph *graph = sim_graph_of(handle);
    struct sim_context *context;
    int result = sim_current(&context);
    if (result != ABI_SUCCESS) return result;
    /* Priorities of nodes are taken, and change nothing. */
    if (!out || !graph ||
        flags & ~(uint64_t)(ABI_INSTANTIATE_AUTO_FREE | ABI_INSTANTIATE_UPLOAD | ABI_INSTANTIATE_NODE_PRIORITY))
        return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_exec *exec = NULL;
    result = sim_exec_new(graph, flags & ~(uint64_t)ABI_INSTANTIATE_UPLOAD, &exec);
    if (result == ABI_SUCCESS && flags & ABI_INSTANTIATE_UPLOAD) result = back_all(exec);
    if (result == ABI_SUCCESS) *out = (abi_graph_exec)exec;
    else if (exec) sim_exec_end(exec);
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
    params->error_node = NULL;
    return result;
}
SIM_SAME(cuGraphInstantiateWithParams_ptsz, (abi_graph_exec * out, abi_graph graph, abi_instantiate_params *params),
         cuGraphInstantiateWithParams(out, graph, params))

SIM_EXPORT abi_result cuGraphExecDestroy(abi_graph_exec handle) {
    SIM_ENTER("cuGraphExecDestroy");
    struct sim_exec *exec = sim_exec_of(handle);
    if (!exec) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    sim_exec_end(exec);
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGraphExecGetFlags(abi_graph_exec handle, uint64_t *flags) {
    SIM_ENTER("cuGraphExecGetFlags");
    const struct sim_exec *exec = sim_exec_of(handle);
    if (!exec || !flags) return ABI_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGraphUpload(abi_graph_exec handle, abi_stream stream) {
    SIM_ENTER("cuGraphUpload");
    struct sim_exec *exec = sim_exec_of(handle);
    SIM_STREAM(stream, context, object);
    if (!exec) return ABI_ERROR_INVALID_VALUE;
    return SIM_LOCKED(back_all(exec));
}
SIM_SAME(cuGraphUpload_ptsz, (abi_graph_exec exec, abi_stream stream), cuGraphUpload(exec, sim_own(stream)))

/* Under sim.lock: memory that a launch allocated and the program did not free must be freed before the next launch. */
static int begin_all(struct sim_exec *exec) {
    for (size_t i = 0; i < exec->count; i++) {
        struct sim_graph_memory *memory = exec->steps[i].memory;
        if (exec->steps[i].type != ABI_NODE_MEM_ALLOC || !sim_graph_memory_live(memory)) continue;
        if (!(exec->flags & ABI_INSTANTIATE_AUTO_FREE)) return ABI_ERROR_INVALID_VALUE;
        sim_graph_memory_free(memory, sim_graph_memory_address(memory));
    }
    return back_all(exec);
}

static int take_step(struct sim_context *context, struct sim_stream *stream, struct sim_step *step, uint64_t *number) {
    int result = ABI_SUCCESS;
    if (step->disabled) return ABI_SUCCESS;
    bool follows = sim_is_host_work_pending(); /* copies and fills come after it, with ranges that exist now */
    switch (step->type) {
    case ABI_NODE_KERNEL:
        if (step->fixed_limits) sim_limits_fix(context, step->fixed_limits);
        return sim_submit(context, stream, &step->item, number);
    case ABI_NODE_HOST: return sim_host_work(context, stream, step, number);
    case ABI_NODE_EVENT_RECORD: return sim_event_record(step->event, context, stream);
    case ABI_NODE_WAIT_EVENT: return sim_event_await(step->event, context, stream);
    case ABI_NODE_MEMCPY:
        if (!follows || step->bytes == 0) return sim_copy_now(step->to, step->from, step->bytes);
        SIM_TRY(sim_copy_usable(step->to, step->from, step->bytes));
        return sim_host_work(context, stream, step, number);
    case ABI_NODE_MEMSET:
        if (!follows) return sim_fill_now(&step->fill);
        SIM_TRY(sim_fill_usable(&step->fill));
        return sim_host_work(context, stream, step, number);
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

/* A launch waits for earlier ones of the same executable graph. */
static int follow_last(struct sim_context *context, struct sim_stream *stream, const struct sim_exec *exec) {
    uint32_t queue = sim_queue_of(context, stream);
    if (!exec->last_item || (exec->last_gpu == context->gpu && exec->last_queue == queue)) return ABI_SUCCESS;
    struct sim_item item = {.kind = SIM_ITEM_WAIT,
                            .wait_gpu = (uint16_t)exec->last_gpu,
                            .wait_queue = (uint16_t)exec->last_queue,
                            .wait_number = exec->last_item};
    return sim_submit(context, stream, &item, NULL);
}

SIM_EXPORT abi_result cuGraphLaunch(abi_graph_exec handle, abi_stream stream_handle) {
    SIM_ENTER("cuGraphLaunch");
    struct sim_exec *exec = sim_exec_of(handle);
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(stream_handle, &context, &stream);
    if (result != ABI_SUCCESS) return result;
    if (!exec) return ABI_ERROR_INVALID_VALUE;
    /* As 580.159.04 does: a graph is not launched into a capture. */
    if ((result = sim_capture_forbids_sync(context, stream)) != ABI_SUCCESS) return result;
    pthread_mutex_lock(&sim.lock);
    result = begin_all(exec);
    pthread_mutex_unlock(&sim.lock);
    uint64_t number = 0;
    if (result == ABI_SUCCESS) result = follow_last(context, stream, exec);
    for (size_t i = 0; i < exec->count && result == ABI_SUCCESS; i++)
        result = take_step(context, stream, &exec->steps[i], &number);
    if (number) {
        exec->last_gpu = context->gpu;
        exec->last_queue = sim_queue_of(context, stream);
        exec->last_item = number;
    }
    pthread_mutex_lock(&sim.lock);
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->steps[i].memory) sim_graph_memory_busy(exec->steps[i].memory, number);
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}
SIM_SAME(cuGraphLaunch_ptsz, (abi_graph_exec exec, abi_stream stream), cuGraphLaunch(exec, sim_own(stream)))
