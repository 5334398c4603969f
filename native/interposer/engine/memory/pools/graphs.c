/* Graphs with memory nodes. What a graph needs is read from its nodes when it is instantiated, and must fit into
 * the grant; the GPU allocates it at the first launch or upload, from a pool that keeps what graphs no longer use.
 * The charge is what the driver reports as reserved by that pool, read back after every call that can change it.
 *
 * Launches come here only once the process has a graph with memory nodes; until then cuGraphLaunch jumps straight
 * to the driver. */
#include <pthread.h>
#include <sys/mman.h>

#include "../../accounting/quota.h"
#include "../../core/driver_calls.h"
#include "../../launch/capture.h"
#include "pools.h"

#define MAX_DEPTH 64 /* graphs within graphs */

/* Never 0. */
static uint32_t epoch_now(void) {
    return atomic_load(&cot->graphs.epoch) + 1;
}

/* ---- executable graphs with memory nodes ---- */

/* Under the lock. */
static struct cot_known_graph *find(abi_graph_exec handle) {
    for (uint32_t i = 0; i < cot->graphs.used; i++) {
        if (cot->graphs.handles[i] == handle) return &cot->graphs.known[i];
    }
    return NULL;
}

/* Under the lock: how much of the pool the ended graph leaves reserved is unknown. */
static void note_graph_end(const struct cot_graph_need *need) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++)
        atomic_fetch_add(&cot->graph_launches.ended[gpu], need->bytes[gpu]);
}

/* If the table is full the graph is not known, and the agent charges its memory as residual. */
static void remember(abi_graph_exec handle, const struct cot_graph_need *need) {
    cot_services->divert("cuGraphLaunch");
    cot_services->divert("cuGraphLaunch_ptsz");
    pthread_mutex_lock(&cot->graphs.lock);
    struct cot_known_graph *free_one = find(handle); /* of a graph that ended with its context */
    if (free_one) note_graph_end(&free_one->need);
    if (!free_one) free_one = find(NULL);
    if (!free_one && cot->graphs.used < COT_MAX_GRAPHS) free_one = &cot->graphs.known[cot->graphs.used++];
    if (free_one) {
        *free_one = (struct cot_known_graph){.need = *need};
        cot->graphs.handles[free_one - cot->graphs.known] = handle;
    } else {
        note_graph_end(need);
    }
    pthread_mutex_unlock(&cot->graphs.lock);
}

static bool take_graph(abi_graph_exec handle, struct cot_graph_need *need) {
    pthread_mutex_lock(&cot->graphs.lock);
    struct cot_known_graph *known = handle ? find(handle) : NULL;
    if (known) {
        *need = known->need;
        note_graph_end(need);
        cot->graphs.handles[known - cot->graphs.known] = NULL;
    }
    pthread_mutex_unlock(&cot->graphs.lock);
    return known;
}

/* Its memory is reserved now. */
static void mark_reserved(abi_graph_exec handle, abi_stream stream, uint32_t now) {
    pthread_mutex_lock(&cot->graphs.lock);
    struct cot_known_graph *known = find(handle);
    if (known) {
        known->stream = stream;
        known->epoch = now;
    }
    pthread_mutex_unlock(&cot->graphs.lock);
}

/* ---- the charge: what the driver has reserved for graphs ---- */

static bool device_of(uint32_t gpu, abi_device *device) {
    for (*device = 0; *device < (abi_device)COT_MAX_GPUS; (*device)++) {
        if (cot_gpu_of(*device) == gpu) return true;
    }
    return false;
}

/* Under the lock. */
static void set_charge(uint32_t gpu, uint64_t now) {
    uint64_t before = cot->graphs.gpus[gpu].charged;
    cot->graphs.gpus[gpu].charged = now;
    cot->graphs.gpus[gpu].version++;
    if (now == 0) atomic_store(&cot->graph_launches.ended[gpu], 0);
    __atomic_fetch_add(&cot_own_row(gpu)->pool, now - before, __ATOMIC_RELAXED);
    if (now > before) cot_charge(gpu, now - before);
    if (now < before) cot_release(gpu, before - now);
}

/* Makes the charge what the driver reports; if it does not, adds `more` to it. */
static void read_back(uint32_t gpu, uint64_t more) {
    abi_device device;
    uint64_t now = 0;
    bool set = !device_of(gpu, &device);
    while (!set) {
        pthread_mutex_lock(&cot->graphs.charge_lock);
        uint32_t version = cot->graphs.gpus[gpu].version;
        pthread_mutex_unlock(&cot->graphs.charge_lock);
        bool said = CALL_DRIVER("cuDeviceGetGraphMemAttribute", (abi_device, int, void *), device,
                                ABI_GRAPH_MEMORY_RESERVED, &now) == ABI_SUCCESS;
        pthread_mutex_lock(&cot->graphs.charge_lock);
        if (!said) now = cot->graphs.gpus[gpu].charged + more;
        set = cot->graphs.gpus[gpu].version == version;
        bool skip = now < cot->graphs.gpus[gpu].charged && atomic_load(&cot->graph_launches.in_flight) > 0;
        if (skip) atomic_store(&cot->graph_launches.read_back_skipped, 1);
        else if (set) set_charge(gpu, now);
        pthread_mutex_unlock(&cot->graphs.charge_lock);
    }
}

static uint64_t charged(uint32_t gpu) {
    pthread_mutex_lock(&cot->graphs.charge_lock);
    uint64_t bytes = cot->graphs.gpus[gpu].charged;
    pthread_mutex_unlock(&cot->graphs.charge_lock);
    return bytes;
}

/* A new epoch before and after: what launches note meanwhile is void. */
static abi_result trim(abi_device device) {
    atomic_fetch_add(&cot->graphs.epoch, 1);
    abi_result result = CALL_REAL(cuDeviceGraphMemTrim, (abi_device), device);
    atomic_fetch_add(&cot->graphs.epoch, 1);
    return result;
}

void cot_graphs_trim(uint32_t gpu) {
    abi_device device;
    if (charged(gpu) == 0 || !device_of(gpu, &device)) return;
    trim(device);
    read_back(gpu, 0);
}

void cot_graphs_read_back(uint32_t gpu) {
    atomic_fetch_add(&cot->graphs.epoch, 1);
    if (charged(gpu)) read_back(gpu, 0);
}

/* ---- what a graph needs ---- */

static abi_result add_node(abi_graph_node node, struct cot_graph_need *need) {
    abi_alloc_node alloc;
    abi_result result = CALL_DRIVER("cuGraphMemAllocNodeGetParams", (abi_graph_node, abi_alloc_node *), node, &alloc);
    if (result != ABI_SUCCESS || cot_is_host_location(&alloc.pool.location)) return result;
    uint32_t gpu;
    result = cot_find_gpu_of_location(&alloc.pool.location, &gpu);
    if (result != ABI_SUCCESS) return result;
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    uint64_t whole = UINT64_MAX, granule = limits.granule_bytes;
    if (alloc.bytes <= UINT64_MAX - granule) whole = (alloc.bytes + granule - 1) / granule * granule;
    if (__builtin_add_overflow(need->bytes[gpu], whole, &need->bytes[gpu])) need->bytes[gpu] = UINT64_MAX;
    need->any = true;
    return ABI_SUCCESS;
}

/* Adds up the memory nodes of a graph and of its child graphs. */
static abi_result add_graph(abi_graph graph, int depth, struct cot_graph_need *need) {
    size_t count = 0;
    abi_result result =
        CALL_DRIVER("cuGraphGetNodes", (abi_graph, abi_graph_node *, size_t *), graph, (abi_graph_node *)NULL, &count);
    if (result != ABI_SUCCESS || count == 0) return result;
    if (depth == MAX_DEPTH) return ABI_ERROR_NOT_SUPPORTED;
    size_t bytes = count * sizeof(abi_graph_node);
    abi_graph_node *nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED) return ABI_ERROR_OUT_OF_MEMORY;
    result = CALL_DRIVER("cuGraphGetNodes", (abi_graph, abi_graph_node *, size_t *), graph, nodes, &count);
    for (size_t i = 0; i < count && result == ABI_SUCCESS; i++) {
        int type = ABI_NODE_EMPTY;
        abi_graph child;
        result = CALL_DRIVER("cuGraphNodeGetType", (abi_graph_node, int *), nodes[i], &type);
        if (result == ABI_SUCCESS && type == ABI_NODE_MEM_ALLOC) result = add_node(nodes[i], need);
        if (result != ABI_SUCCESS || type != ABI_NODE_GRAPH) continue;
        result = CALL_DRIVER("cuGraphChildGraphNodeGetGraph", (abi_graph_node, abi_graph *), nodes[i], &child);
        if (result == ABI_SUCCESS) result = add_graph(child, depth + 1, need);
    }
    munmap(nodes, bytes);
    return result;
}

static void rollback(const struct cot_graph_need *need) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (need->bytes[gpu]) cot_rollback(gpu, need->bytes[gpu]);
    }
}

/* Returns COT_NO_GPU, or the GPU on which it does not fit. */
static uint32_t reserve(const struct cot_graph_need *need) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (!need->bytes[gpu] || cot_reserve(gpu, need->bytes[gpu])) continue;
        for (uint32_t i = 0; i < gpu; i++) {
            if (need->bytes[i]) cot_rollback(i, need->bytes[i]);
        }
        return gpu;
    }
    return COT_NO_GPU;
}

/* After a call for which `announced` was reserved: updates the charge of the GPUs in `need`. */
static void update_charge(const struct cot_graph_need *need, const struct cot_graph_need *announced) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (!need->bytes[gpu]) continue;
        cot_mark_changed(gpu); /* it may have grown by as much as it gave back unnoticed */
        read_back(gpu, announced->bytes[gpu]);
    }
    rollback(announced);
}

/* ---- instantiation ---- */

static abi_result begin_instantiate(abi_graph graph, struct cot_graph_need *need) {
    *need = (struct cot_graph_need){0};
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = add_graph(graph, 0, need);
    uint32_t full = result == ABI_SUCCESS && need->any ? reserve(need) : COT_NO_GPU;
    if (full != COT_NO_GPU) {
        cot_count_denied(full);
        result = ABI_ERROR_OUT_OF_MEMORY;
    }
    need->epoch = epoch_now();
    return result;
}

static void finish_instantiate(abi_result result, abi_graph_exec handle, const struct cot_graph_need *need) {
    if (!need->any) return;
    if (result == ABI_SUCCESS) remember(handle, need);
    update_charge(need, need);
}

/* The driver uploads at instantiation if the program asked for it. */
static void note_upload(abi_result result, abi_graph_exec handle, const abi_instantiate_params *params,
                        const struct cot_graph_need *need) {
    if (result == ABI_SUCCESS && need->any && params && params->flags & ABI_INSTANTIATE_UPLOAD)
        mark_reserved(handle, params->upload_stream, need->epoch);
}

#define INSTANTIATE(symbol, parameters, types, upload, ...)               \
    abi_result cot_##symbol parameters {                                  \
        struct cot_graph_need need;                                       \
        if (!out || !graph) return CALL_REAL(symbol, types, __VA_ARGS__); \
        abi_result result = begin_instantiate(graph, &need);              \
        if (result != ABI_SUCCESS) return result;                         \
        result = CALL_REAL(symbol, types, __VA_ARGS__);                   \
        finish_instantiate(result, *out, &need);                          \
        note_upload(result, *out, upload, &need);                         \
        return result;                                                    \
    }
INSTANTIATE(cuGraphInstantiate,
            (abi_graph_exec * out, abi_graph graph, abi_graph_node *error, char *log, size_t log_bytes),
            (abi_graph_exec *, abi_graph, abi_graph_node *, char *, size_t), NULL, out, graph, error, log, log_bytes)
INSTANTIATE(cuGraphInstantiate_v2,
            (abi_graph_exec * out, abi_graph graph, abi_graph_node *error, char *log, size_t log_bytes),
            (abi_graph_exec *, abi_graph, abi_graph_node *, char *, size_t), NULL, out, graph, error, log, log_bytes)
INSTANTIATE(cuGraphInstantiateWithFlags, (abi_graph_exec * out, abi_graph graph, unsigned long long flags),
            (abi_graph_exec *, abi_graph, unsigned long long), NULL, out, graph, flags)
INSTANTIATE(cuGraphInstantiateWithParams, (abi_graph_exec * out, abi_graph graph, abi_instantiate_params *params),
            (abi_graph_exec *, abi_graph, abi_instantiate_params *), params, out, graph, params)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (abi_graph_exec * out, abi_graph graph, abi_instantiate_params *params),
            (abi_graph_exec *, abi_graph, abi_instantiate_params *), params, out, graph, params)

abi_result cot_cuGraphExecDestroy(abi_graph_exec handle) {
    struct cot_graph_need need;
    if (!cot_attached() || !take_graph(handle, &need)) return CALL_REAL(cuGraphExecDestroy, (abi_graph_exec), handle);
    abi_result result = CALL_REAL(cuGraphExecDestroy, (abi_graph_exec), handle);
    if (result != ABI_SUCCESS) remember(handle, &need);
    update_charge(&need, &(struct cot_graph_need){0});
    return result;
}

abi_result cot_cuDeviceGraphMemTrim(abi_device device) {
    abi_result result = trim(device);
    uint32_t gpu = cot_attached() ? cot_gpu_of(device) : COT_NO_GPU;
    if (result == ABI_SUCCESS && gpu != COT_NO_GPU) read_back(gpu, 0);
    return result;
}

/* ---- launch and upload ---- */

/* The most by which the pool can grow at a launch that is not its graph's first: what all graphs need beyond what
 * is reserved for them. False: it is the first launch. */
static bool max_growth(abi_graph_exec handle, struct cot_graph_need *most) {
    pthread_mutex_lock(&cot->graphs.lock);
    const struct cot_known_graph *known = find(handle);
    bool later = known && known->epoch;
    for (uint32_t gpu = 0; later && gpu < cot_gpu_count(); gpu++) {
        uint64_t all = 0, reserved = charged(gpu), ended = atomic_load(&cot->graph_launches.ended[gpu]);
        for (uint32_t i = 0; most->bytes[gpu] && i < cot->graphs.used; i++) {
            if (cot->graphs.handles[i] && __builtin_add_overflow(all, cot->graphs.known[i].need.bytes[gpu], &all))
                all = UINT64_MAX;
        }
        reserved = reserved > ended ? reserved - ended : 0;
        all = all > reserved ? all - reserved : 0;
        if (most->bytes[gpu] > all) most->bytes[gpu] = all;
    }
    pthread_mutex_unlock(&cot->graphs.lock);
    return later;
}

enum reservation_state { UNKNOWN, RESERVED, MAYBE_NOT_RESERVED };

static enum reservation_state reservation_state(abi_graph_exec handle, abi_stream stream, uint32_t now,
                                                struct cot_graph_need *need) {
    enum reservation_state answer = UNKNOWN;
    pthread_mutex_lock(&cot->graphs.lock);
    const struct cot_known_graph *known = handle ? find(handle) : NULL;
    if (known && known->epoch == now && known->stream == stream) {
        answer = RESERVED;
    } else if (known) {
        answer = MAYBE_NOT_RESERVED;
        *need = known->need;
    }
    pthread_mutex_unlock(&cot->graphs.lock);
    return answer;
}

/* After the last launch in flight: if a trim lowered the reservation meanwhile, the charge is read back now. */
static void launch_ended(void) {
    if (atomic_fetch_sub(&cot->graph_launches.in_flight, 1) != 1 ||
        !atomic_load(&cot->graph_launches.read_back_skipped))
        return;
    if (!atomic_exchange(&cot->graph_launches.read_back_skipped, 0)) return;
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (charged(gpu)) read_back(gpu, 0);
    }
}

typedef abi_result (*stream_call)(abi_graph_exec, abi_stream);

static abi_result launch_or_upload(stream_call real, abi_graph_exec handle, abi_stream stream) {
    struct cot_graph_need need;
    if (!real) return (abi_result)cot_missing();
    if (!cot_attached()) return real(handle, stream);
    atomic_fetch_add(&cot->graph_launches.in_flight, 1);
    uint32_t now = epoch_now();
    enum reservation_state known = reservation_state(handle, stream, now, &need);
    if (known == RESERVED) {
        abi_result result = real(handle, stream);
        launch_ended();
        return result;
    }
    launch_ended();
    if (known == UNKNOWN) return real(handle, stream);
    if (cot_is_recording(stream)) return real(handle, stream);
    struct cot_graph_need announced = need;
    uint32_t full = reserve(&announced);
    bool bounded = full != COT_NO_GPU;
    if (bounded) {
        atomic_fetch_add(&cot->graph_launches.in_flight, 1);
        if (max_growth(handle, &announced)) full = reserve(&announced);
    }
    if (full != COT_NO_GPU) {
        launch_ended();
        cot_count_denied(full);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    now = epoch_now(); /* reserving may have trimmed */
    abi_result result = real(handle, stream);
    if (bounded) launch_ended();
    update_charge(&need, &announced);
    if (result == ABI_SUCCESS) mark_reserved(handle, stream, now);
    return result;
}

/* The launch gate has already admitted the launch. */
abi_result cot_cuGraphLaunch(abi_graph_exec handle, abi_stream stream) {
    return launch_or_upload((stream_call)DRIVER("cuGraphLaunch"), handle, stream);
}
abi_result cot_cuGraphLaunch_ptsz(abi_graph_exec handle, abi_stream stream) {
    return launch_or_upload((stream_call)DRIVER("cuGraphLaunch_ptsz"), handle, stream ? stream : ABI_STREAM_PER_THREAD);
}
abi_result cot_cuGraphUpload(abi_graph_exec handle, abi_stream stream) {
    return launch_or_upload((stream_call)cot_real(COT_REAL_cuGraphUpload), handle, stream);
}
abi_result cot_cuGraphUpload_ptsz(abi_graph_exec handle, abi_stream stream) {
    return launch_or_upload((stream_call)cot_real(COT_REAL_cuGraphUpload_ptsz), handle,
                            stream ? stream : ABI_STREAM_PER_THREAD);
}
