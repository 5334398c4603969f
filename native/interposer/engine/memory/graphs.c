/* Graphs with memory nodes. What such a graph needs is read from it when it is instantiated, and must fit; the GPU
 * gives it at the first launch or upload, from a pool of its own that keeps what graphs no longer use. The charge is
 * what the driver says that this pool has reserved, read back after every call that can change it.
 *
 * Launches pass here only once a graph with memory nodes exists in the process: until then, and in most processes for
 * ever, cuGraphLaunch jumps straight to the driver. */
#include <pthread.h>
#include <sys/mman.h>

#include "../accounting/quota.h"
#include "../core/driver_calls.h"
#include "../launch/capture.h"
#include "pools.h"

#define DEEPEST 64 /* graphs within graphs */

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

/* Under the lock: nothing is known any more of what it has reserved. */
static void note_end(const struct cot_graph_need *need) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) atomic_fetch_add(&cot->launches.ended[gpu], need->bytes[gpu]);
}

/* A full table loses sight of the graph; what it takes is the agent's to see. */
static void remember(abi_graph_exec handle, const struct cot_graph_need *need) {
    cot_services->divert("cuGraphLaunch");
    cot_services->divert("cuGraphLaunch_ptsz");
    pthread_mutex_lock(&cot->graphs.lock);
    struct cot_known_graph *free_one = find(handle); /* one that ended with its context */
    if (free_one) note_end(&free_one->need);
    if (!free_one) free_one = find(NULL);
    if (!free_one && cot->graphs.used < COT_MOST_GRAPHS) free_one = &cot->graphs.known[cot->graphs.used++];
    if (free_one) {
        *free_one = (struct cot_known_graph){.need = *need};
        cot->graphs.handles[free_one - cot->graphs.known] = handle;
    } else {
        note_end(need);
    }
    pthread_mutex_unlock(&cot->graphs.lock);
}

static bool take(abi_graph_exec handle, struct cot_graph_need *need) {
    pthread_mutex_lock(&cot->graphs.lock);
    struct cot_known_graph *known = handle ? find(handle) : NULL;
    if (known) {
        *need = known->need;
        note_end(need);
        cot->graphs.handles[known - cot->graphs.known] = NULL;
    }
    pthread_mutex_unlock(&cot->graphs.lock);
    return known;
}

/* What it needs is there now. */
static void mark(abi_graph_exec handle, abi_stream stream, uint32_t now) {
    pthread_mutex_lock(&cot->graphs.lock);
    struct cot_known_graph *known = find(handle);
    if (known) {
        known->stream = stream;
        known->epoch = now;
    }
    pthread_mutex_unlock(&cot->graphs.lock);
}

/* ---- what the driver has reserved ---- */

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
    if (now == 0) atomic_store(&cot->launches.ended[gpu], 0);
    __atomic_fetch_add(&cot_own(gpu)->pool, now - before, __ATOMIC_RELAXED);
    if (now > before) cot_charge(gpu, now - before);
    if (now < before) cot_release(gpu, before - now);
}

/* Makes the charge what the driver says now; where it does not say, `more` than it was. */
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
        bool skip = now < cot->graphs.gpus[gpu].charged && atomic_load(&cot->launches.under_way) > 0;
        if (skip) atomic_store(&cot->launches.skipped, 1);
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

/* What launches find out meanwhile is void afterwards, too. */
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
    struct cot_limits limits;
    cot_limits(gpu, &limits);
    uint64_t whole = UINT64_MAX, granule = limits.granule_bytes;
    if (alloc.bytes <= UINT64_MAX - granule) whole = (alloc.bytes + granule - 1) / granule * granule;
    if (__builtin_add_overflow(need->bytes[gpu], whole, &need->bytes[gpu])) need->bytes[gpu] = UINT64_MAX;
    need->any = true;
    return ABI_SUCCESS;
}

/* Sums up the memory nodes of a graph and of those within it, whichever call made them. */
static abi_result add_graph(abi_graph graph, int depth, struct cot_graph_need *need) {
    size_t count = 0;
    abi_result result =
        CALL_DRIVER("cuGraphGetNodes", (abi_graph, abi_graph_node *, size_t *), graph, (abi_graph_node *)NULL, &count);
    if (result != ABI_SUCCESS || count == 0) return result;
    if (depth == DEEPEST) return ABI_ERROR_NOT_SUPPORTED;
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

/* COT_NO_GPU, or the GPU on which it does not fit. */
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

/* After a call for which `announced` was reserved: charges what it came to on the GPUs of `need`. */
static void settle(const struct cot_graph_need *need, const struct cot_graph_need *announced) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (!need->bytes[gpu]) continue;
        cot_touch(gpu); /* it may have grown by what it had given back unseen */
        read_back(gpu, announced->bytes[gpu]);
    }
    rollback(announced);
}

/* ---- instantiation ---- */

static abi_result begin(abi_graph graph, struct cot_graph_need *need) {
    *need = (struct cot_graph_need){0};
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = add_graph(graph, 0, need);
    uint32_t full = result == ABI_SUCCESS && need->any ? reserve(need) : COT_NO_GPU;
    if (full != COT_NO_GPU) {
        cot_deny(full);
        result = ABI_ERROR_OUT_OF_MEMORY;
    }
    need->epoch = epoch_now();
    return result;
}

static void finish(abi_result result, abi_graph_exec handle, const struct cot_graph_need *need) {
    if (!need->any) return;
    if (result == ABI_SUCCESS) remember(handle, need);
    settle(need, need);
}

/* The driver's own upload at instantiation, if it was asked for. */
static void note_upload(abi_result result, abi_graph_exec handle, const abi_instantiate_params *params,
                        const struct cot_graph_need *need) {
    if (result == ABI_SUCCESS && need->any && params && params->flags & ABI_INSTANTIATE_UPLOAD)
        mark(handle, params->upload_stream, need->epoch);
}

#define INSTANTIATE(symbol, parameters, types, upload, ...)               \
    abi_result cot_##symbol parameters {                                  \
        struct cot_graph_need need;                                       \
        if (!out || !graph) return CALL_REAL(symbol, types, __VA_ARGS__); \
        abi_result result = begin(graph, &need);                          \
        if (result != ABI_SUCCESS) return result;                         \
        result = CALL_REAL(symbol, types, __VA_ARGS__);                   \
        finish(result, *out, &need);                                      \
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
    if (!cot_attached() || !take(handle, &need)) return CALL_REAL(cuGraphExecDestroy, (abi_graph_exec), handle);
    abi_result result = CALL_REAL(cuGraphExecDestroy, (abi_graph_exec), handle);
    if (result != ABI_SUCCESS) remember(handle, &need);
    settle(&need, &(struct cot_graph_need){0});
    return result;
}

abi_result cot_cuDeviceGraphMemTrim(abi_device device) {
    abi_result result = trim(device);
    uint32_t gpu = cot_attached() ? cot_gpu_of(device) : COT_NO_GPU;
    if (result == ABI_SUCCESS && gpu != COT_NO_GPU) read_back(gpu, 0);
    return result;
}

/* ---- launch and upload ---- */

/* The most by which a launch makes the pool grow that is not its graph's first one: what all graphs need beyond what is
 * reserved for them. False: it is the first one. */
static bool growth(abi_graph_exec handle, struct cot_graph_need *most) {
    pthread_mutex_lock(&cot->graphs.lock);
    const struct cot_known_graph *known = find(handle);
    bool later = known && known->epoch;
    for (uint32_t gpu = 0; later && gpu < cot_gpu_count(); gpu++) {
        uint64_t all = 0, reserved = charged(gpu), ended = atomic_load(&cot->launches.ended[gpu]);
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

enum standing { STRANGER, SETTLED, UNSETTLED };

static enum standing standing(abi_graph_exec handle, abi_stream stream, uint32_t now, struct cot_graph_need *need) {
    enum standing answer = STRANGER;
    pthread_mutex_lock(&cot->graphs.lock);
    const struct cot_known_graph *known = handle ? find(handle) : NULL;
    if (known && known->epoch == now && known->stream == stream) {
        answer = SETTLED;
    } else if (known) {
        answer = UNSETTLED;
        *need = known->need;
    }
    pthread_mutex_unlock(&cot->graphs.lock);
    return answer;
}

/* Trimmed at the same time: the launch may have taken it anew, and what was left charged for it may go. */
static void launch_ended(void) {
    if (atomic_fetch_sub(&cot->launches.under_way, 1) != 1 || !atomic_load(&cot->launches.skipped)) return;
    if (!atomic_exchange(&cot->launches.skipped, 0)) return;
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (charged(gpu)) read_back(gpu, 0);
    }
}

typedef abi_result (*stream_call)(abi_graph_exec, abi_stream);

static abi_result run(stream_call real, abi_graph_exec handle, abi_stream stream) {
    struct cot_graph_need need;
    if (!real) return (abi_result)cot_missing();
    if (!cot_attached()) return real(handle, stream);
    atomic_fetch_add(&cot->launches.under_way, 1);
    uint32_t now = epoch_now();
    enum standing known = standing(handle, stream, now, &need);
    if (known == SETTLED) {
        abi_result result = real(handle, stream);
        launch_ended();
        return result;
    }
    launch_ended();
    if (known == STRANGER) return real(handle, stream);
    if (cot_is_capturing(stream)) return real(handle, stream);
    struct cot_graph_need announced = need;
    uint32_t full = reserve(&announced);
    bool bounded = full != COT_NO_GPU;
    if (bounded) {
        atomic_fetch_add(&cot->launches.under_way, 1);
        if (growth(handle, &announced)) full = reserve(&announced);
    }
    if (full != COT_NO_GPU) {
        launch_ended();
        cot_deny(full);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    now = epoch_now(); /* reserving may have trimmed */
    abi_result result = real(handle, stream);
    if (bounded) launch_ended();
    settle(&need, &announced);
    if (result == ABI_SUCCESS) mark(handle, stream, now);
    return result;
}

/* The gate has been passed when these are entered. */
abi_result cot_cuGraphLaunch(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)DRIVER("cuGraphLaunch"), handle, stream);
}
abi_result cot_cuGraphLaunch_ptsz(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)DRIVER("cuGraphLaunch_ptsz"), handle, stream);
}
abi_result cot_cuGraphUpload(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)cot_real(COT_REAL_cuGraphUpload), handle, stream);
}
abi_result cot_cuGraphUpload_ptsz(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)cot_real(COT_REAL_cuGraphUpload_ptsz), handle, stream);
}
