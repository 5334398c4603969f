/* Graphs, and what contexts are and hold. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker.h"

/* ---- graphs ---- */

static void graph_keep(struct lane *lane, const struct graph *graph) {
    ADD(lane->graphs, *graph);
}

static abi_result add_memory(struct graph *graph, abi_graph in, int device, uint64_t bytes, bool general) {
    abi_alloc_node alloc = {.pool = {.alloc_type = ABI_ALLOCATION_PINNED, .location = {ABI_LOCATION_DEVICE, device}},
                            .bytes = bytes};
    abi_node_params params = {.type = ABI_NODE_MEM_ALLOC, .alloc = alloc};
    abi_graph_node node = NULL;
    abi_result result =
        general ? CU("cuGraphAddNode_v2",
                     (abi_graph_node *, abi_graph, const abi_graph_node *, const void *, size_t, abi_node_params *),
                     &node, in, NULL, NULL, (size_t)0, &params)
                : CU("cuGraphAddMemAllocNode",
                     (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, abi_alloc_node *), &node, in, NULL,
                     (size_t)0, &alloc);
    if (result != ABI_SUCCESS) return result;
    graph->need[gpu_of[device]] += whole(device, bytes);
    graph->memory[graph->memories++] = general ? params.alloc.pointer : alloc.pointer;
    return result;
}

/* Some memory, some of it freed again, and perhaps a graph within. */
void verb_graph(struct lane *lane, const struct step *step) {
    struct graph graph = {0}, within = {0};
    abi_graph child = NULL;
    unsigned count = (unsigned)(step->random[0] % 4);
    if (FULL(lane->graphs)) return;
    lane->answer.result = CU("cuGraphCreate", (abi_graph *, unsigned), &graph.graph, 0u);
    if (lane->answer.result != ABI_SUCCESS) return;
    if (step->random[1] % 3 == 0 && CU("cuGraphCreate", (abi_graph *, unsigned), &child, 0u) != ABI_SUCCESS)
        child = NULL;
    abi_result result = ABI_SUCCESS;
    for (unsigned i = 0; i < count && result == ABI_SUCCESS; i++) {
        uint64_t number = step->random[2] >> i * 8;
        uint64_t bytes = 1 + number % (number % 3 ? 6u << 20 : 4096);
        result = add_memory(&graph, child && i == 0 ? child : graph.graph, other_device(lane, step->random[3] >> i),
                            bytes, step->random[4] >> i & 1);
        if (child && i == 0) within = graph;
        abi_graph_node node;
        if (result == ABI_SUCCESS && step->random[5] >> i & 1 && !(child && i == 0))
            CU("cuGraphAddMemFreeNode", (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, abi_devptr),
               &node, graph.graph, NULL, (size_t)0, graph.memory[graph.memories - 1]);
    }
    if (child) {
        abi_node_params params = {.type = ABI_NODE_GRAPH, .child = {child, ABI_CHILD_MOVE}};
        abi_graph_node node;
        if (CU("cuGraphAddNode", (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, abi_node_params *),
               &node, graph.graph, NULL, (size_t)0, &params) != ABI_SUCCESS) {
            for (unsigned gpu = 0; gpu < GPUS; gpu++) graph.need[gpu] -= within.need[gpu];
            CU("cuGraphDestroy", (abi_graph), child);
        }
    }
    graph_keep(lane, &graph);
}

void verb_capture(struct lane *lane, const struct step *step) {
    const struct stream *stream = ANY(lane->streams, step->random[0]);
    struct graph graph = {0};
    abi_devptr at = 0;
    uint64_t bytes = 1 + step->random[1] % (8u << 20);
    if (!stream || FULL(lane->graphs)) return;
    lane->answer.result = CU("cuStreamBeginCapture_v2", (abi_stream, int), stream->handle, ABI_CAPTURE_RELAXED);
    if (lane->answer.result != ABI_SUCCESS) return;
    abi_result result = CU("cuMemAllocAsync", (abi_devptr *, size_t, abi_stream), &at, (size_t)bytes, stream->handle);
    bool recorded = result == ABI_SUCCESS;
    if (recorded && step->random[2] % 2) CU("cuMemFreeAsync", (abi_devptr, abi_stream), at, stream->handle);
    for (int tries = 0; tries < 3; tries++) {
        lane->answer.result = CU("cuStreamEndCapture", (abi_stream, abi_graph *), stream->handle, &graph.graph);
        if (lane->answer.result == ABI_SUCCESS) break;
    }
    if (lane->answer.result != ABI_SUCCESS || !graph.graph) return;
    if (recorded) {
        graph.memory[graph.memories++] = at;
        graph.need[gpu_of[stream->device]] = whole(stream->device, bytes);
    }
    graph_keep(lane, &graph);
}

static struct graph *some_graph(struct lane *lane, uint64_t number, bool executable) {
    for (unsigned i = 0; i < lane->graphs.count; i++) {
        struct graph *graph = &lane->graphs.at[(number + i) % lane->graphs.count];
        if (!graph->dead && !graph->exec != executable) return graph;
    }
    return NULL;
}

/* A graph can take of several GPUs; it is refused if it does not fit on one of them. */
static bool graph_granted(struct lane *lane, abi_result result, const struct graph *graph) {
    lane->answer.result = result;
    if (result == ABI_ERROR_OUT_OF_MEMORY && !worker_injected()) {
        lane->answer.refused = true;
        lane->answer.refusals++;
        memcpy(lane->answer.need, graph->need, sizeof lane->answer.need);
    }
    return result == ABI_SUCCESS;
}

void verb_instantiate(struct lane *lane, const struct step *step) {
    struct graph *graph = some_graph(lane, step->random[0], false);
    abi_graph_exec exec = NULL;
    abi_result result;
    uint64_t flags = step->random[2] % 2 ? ABI_INSTANTIATE_AUTO_FREE : 0;
    abi_instantiate_params params = {.flags = flags | (step->random[3] % 2 ? ABI_INSTANTIATE_UPLOAD : 0)};
    if (!graph || !graph->graph) return;
    switch (step->random[1] % 5) {
    case 0:
        result = CU("cuGraphInstantiate", (abi_graph_exec *, abi_graph, abi_graph_node *, char *, size_t), &exec,
                    graph->graph, NULL, NULL, (size_t)0);
        break;
    case 1:
        result = CU("cuGraphInstantiate_v2", (abi_graph_exec *, abi_graph, abi_graph_node *, char *, size_t), &exec,
                    graph->graph, NULL, NULL, (size_t)0);
        break;
    case 2:
        result = CU("cuGraphInstantiateWithFlags", (abi_graph_exec *, abi_graph, unsigned long long), &exec,
                    graph->graph, flags);
        break;
    case 3:
        result = CU("cuGraphInstantiateWithParams", (abi_graph_exec *, abi_graph, abi_instantiate_params *), &exec,
                    graph->graph, &params);
        break;
    default:
        result = CU("cuGraphInstantiateWithParams_ptsz", (abi_graph_exec *, abi_graph, abi_instantiate_params *), &exec,
                    graph->graph, &params);
    }
    if (graph_granted(lane, result, graph)) graph->exec = exec;
}

void verb_launch(struct lane *lane, const struct step *step) {
    static const char *const FORMS[] = {"cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload", "cuGraphUpload_ptsz"};
    const struct graph *graph = some_graph(lane, step->random[0], true);
    const struct stream *stream = step->random[1] % 2 ? ANY(lane->streams, step->random[1]) : NULL;
    if (!graph) return;
    typedef abi_result (*call)(abi_graph_exec, abi_stream);
    call form = (call)driver_find(FORMS[step->random[2] % 4]);
    graph_granted(lane, form(graph->exec, stream ? stream->handle : NULL), graph);
}

void verb_graph_destroy(struct lane *lane, const struct step *step) {
    struct graph *graph = ANY(lane->graphs, step->random[0]);
    if (!graph) return;
    if (graph->exec) {
        lane->answer.result = CU("cuGraphExecDestroy", (abi_graph_exec), graph->exec);
        if (lane->answer.result == ABI_SUCCESS) graph->exec = NULL;
    } else if (graph->graph) {
        lane->answer.result = CU("cuGraphDestroy", (abi_graph), graph->graph);
        if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->graphs, INDEX(lane->graphs, graph));
    }
}

/* What a launch allocated and left. */
void verb_graph_free(struct lane *lane, const struct step *step) {
    const struct graph *graph = ANY(lane->graphs, step->random[0]);
    if (!graph || graph->memories == 0) return;
    abi_devptr at = graph->memory[step->random[1] % graph->memories];
    lane->answer.result = step->random[2] % 2 ? CU("cuMemFree_v2", (abi_devptr), at)
                                              : CU("cuMemFreeAsync", (abi_devptr, abi_stream), at, NULL);
}

void verb_graph_trim(struct lane *lane, const struct step *step) {
    lane->answer.result = CU("cuDeviceGraphMemTrim", (abi_device), (int)(step->random[0] % GPUS));
}

/* ---- contexts ---- */

static void came(struct lane *lane, abi_context handle, int device, enum context_kind kind, abi_green_context green) {
    ADD(lane->contexts, (struct context){handle, device, kind, green});
}

void verb_context(struct lane *lane, const struct step *step) {
    int device = (int)(step->random[0] % GPUS);
    abi_context handle = NULL, popped;
    abi_result result;
    if (FULL(lane->contexts)) return;
    switch (step->random[1] % 4) {
    case 0: result = CU("cuCtxCreate", (abi_context *, unsigned, abi_device), &handle, 0u, device); break;
    case 1: result = CU("cuCtxCreate_v2", (abi_context *, unsigned, abi_device), &handle, 0u, device); break;
    case 2:
        result = CU("cuCtxCreate_v3", (abi_context *, void *, int, unsigned, abi_device), &handle, NULL, 0, 0u, device);
        break;
    default: result = CU("cuCtxCreate_v4", (abi_context *, void *, unsigned, abi_device), &handle, NULL, 0u, device);
    }
    if (!granted(lane, result, device, shared->context[gpu_of[device]])) return;
    came(lane, handle, device, MADE, NULL);
    if (CU("cuCtxPopCurrent_v2", (abi_context *), &popped) != ABI_SUCCESS) lane->current = handle;
    else if (step->random[2] % 2) go_to(lane, handle);
}

static struct context *primary(struct lane *lane, int device) {
    for (unsigned i = 0; i < lane->contexts.count; i++) {
        struct context *context = &lane->contexts.at[i];
        if (context->kind == PRIMARY && context->device == device) return context;
    }
    return NULL;
}

void verb_primary(struct lane *lane, const struct step *step) {
    int device = (int)(step->random[0] % GPUS);
    abi_context handle = NULL;
    if (FULL(lane->contexts) || primary(lane, device)) return;
    abi_result result = CU("cuDevicePrimaryCtxRetain", (abi_context *, abi_device), &handle, device);
    if (!granted(lane, result, device, shared->context[gpu_of[device]])) return;
    came(lane, handle, device, PRIMARY, NULL);
    if (!lane->current || step->random[1] % 2) go_to(lane, handle);
}

/* Made as a runtime makes it, behind the exported names, then used. */
void verb_hidden(struct lane *lane, const struct step *step) {
    int device = (int)(step->random[0] % GPUS);
    abi_context handle = NULL;
    abi_devptr at = 0;
    if (FULL(lane->contexts) || primary(lane, device)) return;
    if (shared->left[gpu_of[device]] < shared->context[gpu_of[device]]) return; /* nothing would refuse it */
    typedef abi_result (*call)(abi_context *, abi_device);
    if (((call)driver_behind("cuDevicePrimaryCtxRetain"))(&handle, device) != ABI_SUCCESS) return;
    came(lane, handle, device, PRIMARY, NULL);
    go_to(lane, handle);
    abi_result result = CU("cuMemAlloc_v2", (abi_devptr *, size_t), &at, (size_t)PAGE);
    if (granted(lane, result, device, whole(device, PAGE)) && !FULL(lane->blocks))
        ADD(lane->blocks, (struct block){at, PAGE, device, lane->current, LINEAR});
    else if (result == ABI_SUCCESS) CU("cuMemFree_v2", (abi_devptr), at);
}

void verb_context_end(struct lane *lane, const struct step *step) {
    struct context *context = ANY(lane->contexts, step->random[0]);
    abi_result result = ABI_SUCCESS;
    if (!context) return;
    abi_context handle = context->handle;
    bool old = step->random[1] % 2;
    int active = 1;
    unsigned flags;
    switch (context->kind) {
    case MADE:
        result = old ? CU("cuCtxDestroy", (abi_context), handle) : CU("cuCtxDestroy_v2", (abi_context), handle);
        break;
    case GREEN: result = CU("cuGreenCtxDestroy", (abi_green_context), context->green); break;
    case PRIMARY:
        result = old ? CU("cuDevicePrimaryCtxRelease", (abi_device), context->device)
                     : CU("cuDevicePrimaryCtxRelease_v2", (abi_device), context->device);
        if (result != ABI_SUCCESS) break;
        /* Green contexts keep it alive. */
        for (int tries = 0; tries < 3; tries++) {
            if (!CU("cuDevicePrimaryCtxGetState", (abi_device, unsigned *, int *), context->device, &flags, &active))
                break;
        }
    }
    lane->answer.result = result;
    if (result != ABI_SUCCESS) return;
    if (context->kind == PRIMARY && active) {
        /* What is in it lives on; this lane just does not use it any more. */
        if (lane->current == handle) go_to(lane, NULL);
        context->handle = NULL;
    }
    /* Without the primary one this lane loses sight of it. */
    const struct context *successor = context->kind == GREEN ? primary(lane, context->device) : NULL;
    if (successor) context_left(lane, handle, successor->handle);
    context_gone(lane, handle);
    for (unsigned i = lane->contexts.count; i-- > 0;) {
        if (lane->contexts.at[i].handle == NULL) REMOVE(lane->contexts, i);
    }
}

void verb_reset(struct lane *lane, const struct step *step) {
    int device = (int)(step->random[0] % GPUS);
    struct context *known = primary(lane, device);
    lane->answer.result = step->random[1] % 2 ? CU("cuDevicePrimaryCtxReset", (abi_device), device)
                                              : CU("cuDevicePrimaryCtxReset_v2", (abi_device), device);
    if (lane->answer.result == ABI_SUCCESS && known) context_gone(lane, known->handle);
}

void verb_enter(struct lane *lane, const struct step *step) {
    const struct context *context = ANY(lane->contexts, step->random[0]);
    if (context) go_to(lane, step->random[1] % 16 ? context->handle : NULL);
}

void verb_green(struct lane *lane, const struct step *step) {
    int device = (int)(step->random[0] % GPUS), gpu = gpu_of[device];
    abi_resource all, group;
    abi_resource_desc desc;
    abi_green_context green = NULL;
    abi_context view = NULL;
    unsigned count = 1, flags;
    int active = 1;
    if (lane->contexts.count + 1 > sizeof lane->contexts.at / sizeof *lane->contexts.at - 1) return;
    if (CU("cuDeviceGetDevResource", (abi_device, abi_resource *, int), device, &all, (int)ABI_RESOURCE_SM) ||
        CU("cuDevSmResourceSplitByCount",
           (abi_resource *, unsigned *, const abi_resource *, abi_resource *, unsigned, unsigned), &group, &count, &all,
           NULL, 0u, 4u) ||
        CU("cuDevResourceGenerateDesc", (abi_resource_desc *, abi_resource *, unsigned), &desc, &group, 1u) ||
        CU("cuDevicePrimaryCtxGetState", (abi_device, unsigned *, int *), device, &flags, &active))
        return;
    abi_result result = CU("cuGreenCtxCreate", (abi_green_context *, abi_resource_desc, abi_device, unsigned), &green,
                           desc, device, (unsigned)ABI_GREEN_DEFAULT_STREAM);
    if (!granted(lane, result, device, active ? 0 : shared->context[gpu])) return;
    for (int tries = 0; tries < 3 && !view; tries++)
        CU("cuCtxFromGreenCtx", (abi_context *, abi_green_context), &view, green);
    came(lane, view, device, GREEN, green);
    if (step->random[1] % 2) go_to(lane, view);
}

void verb_limit(struct lane *lane, const struct step *step) {
    static const struct {
        int limit;
        size_t value;
    } VALUES[] = {
        {ABI_LIMIT_STACK_SIZE, 1024},    {ABI_LIMIT_STACK_SIZE, 1100},  {ABI_LIMIT_STACK_SIZE, 1152},
        {ABI_LIMIT_STACK_SIZE, 1 << 20}, {ABI_LIMIT_MAX_L2_FETCH, 128},
    }; /* heap and printf buffer are charged before the driver takes them: runtime-limits.test.ts has them */
    unsigned which = (unsigned)(step->random[0] % (sizeof VALUES / sizeof *VALUES));
    int device = current_device(lane);
    abi_result result = CU("cuCtxSetLimit", (int, size_t), VALUES[which].limit, VALUES[which].value);
    lane->answer.unjudged = true; /* how much more it is depends on what the limit was */
    granted(lane, result, device, 0);
}

/* ---- what happens to the process as a whole ---- */

static abi_result checkpoint(const char *name) {
    return ((abi_result (*)(int, void *))driver_find(name))(getpid(), NULL);
}

/* Away by one step, back by a later one. */
void verb_checkpoint(struct lane *lane, const struct step *step) {
    (void)step;
    if (!lane->answer.away) {
        lane->answer.result = checkpoint("cuCheckpointProcessLock");
        if (lane->answer.result != ABI_SUCCESS) return;
        lane->answer.result = checkpoint("cuCheckpointProcessCheckpoint");
        lane->answer.away = lane->answer.result == ABI_SUCCESS;
        if (lane->answer.away) return;
    } else {
        abi_result result = checkpoint("cuCheckpointProcessRestore");
        lane->answer.unjudged = true; /* what left is the conductor's to know */
        granted(lane, result, 0, 0);
        if (result != ABI_SUCCESS) return;
        lane->answer.away = false;
    }
    for (int tries = 0; tries < 3 && checkpoint("cuCheckpointProcessUnlock") != ABI_SUCCESS; tries++) {
    }
}

void verb_module(struct lane *lane, const struct step *step) {
    static const char TEXT[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work()\n{\n ret;\n}\n";
    abi_module *old = ANY(lane->modules, step->random[0]), made = NULL;
    if (old && (FULL(lane->modules) || step->random[1] % 2)) {
        lane->answer.result = CU("cuModuleUnload", (abi_module), *old);
        if (lane->answer.result == ABI_SUCCESS) REMOVE(lane->modules, INDEX(lane->modules, old));
        return;
    }
    lane->answer.result = CU("cuModuleLoadData", (abi_module *, const void *), &made, TEXT);
    if (lane->answer.result == ABI_SUCCESS) ADD(lane->modules, made);
}

/* A forked child has no CUDA, and nothing that it tries counts. */
void verb_fork(struct lane *lane, const struct step *step) {
    const struct block *block = ANY(lane->blocks, step->random[0]);
    pid_t child = step->random[1] % 2 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child != 0) {
        if (child > 0) waitpid(child, NULL, 0); /* ends with ECHILD: children are not waited for here */
        return;
    }
    abi_devptr at;
    abi_context handle;
    bool wrong = CU("cuMemAlloc_v2", (abi_devptr *, size_t), &at, (size_t)PAGE) == ABI_SUCCESS;
    wrong = CU("cuDevicePrimaryCtxRetain", (abi_context *, abi_device), &handle, 0) == ABI_SUCCESS || wrong;
    if (block) CU("cuMemFree_v2", (abi_devptr), block->at);
    if (wrong) atomic_fetch_add(&shared->wrong_forks, 1);
    _exit(0);
}
