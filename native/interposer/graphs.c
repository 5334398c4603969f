/* Graphs with memory nodes. What such a graph needs is read from it when it is instantiated, and must fit; the card
 * gives it at the first launch or upload, from a pool of its own that keeps what graphs no longer use. The charge is
 * what the driver says that this pool has reserved, read back after every call that can change it.
 *
 * Launches pass here only once a graph with memory nodes exists in the process: until then, and in most processes for
 * ever, cuGraphLaunch jumps straight to the driver. */
#include <pthread.h>
#include <sys/mman.h>

#include "cot.h"

#define MOST_GRAPHS 1024
#define DEEPEST 64 /* graphs within graphs */

struct need {
    uint64_t bytes[COT_MAX_CARDS];
    bool any;
    uint32_t epoch; /* when it was reserved */
};

/* ---- executable graphs with memory nodes ---- */

struct known_graph {
    struct need need;
    abi_stream stream; /* of its last launch */
    uint32_t epoch;    /* what it needs was there then; 0 = never launched */
};
static pthread_mutex_t graphs_lock = PTHREAD_MUTEX_INITIALIZER;
static abi_graph_exec handles[MOST_GRAPHS]; /* apart from the rest, for every launch searches them */
static struct known_graph graphs[MOST_GRAPHS];
static uint32_t graphs_used;       /* no entry at or above it was ever taken */
static _Atomic uint32_t epoch = 1; /* grows before memory that graphs keep may be taken from them */

/* Under the lock. */
static struct known_graph *find(abi_graph_exec handle) {
    for (uint32_t i = 0; i < graphs_used; i++) {
        if (handles[i] == handle) return &graphs[i];
    }
    return NULL;
}

static abi_result launch_legacy(abi_graph_exec handle, abi_stream stream);
static abi_result launch_per_thread(abi_graph_exec handle, abi_stream stream);

/* A full table loses sight of the graph; what it takes is the agent's to see. */
static void remember(abi_graph_exec handle, const struct need *need) {
    shim_divert("cuGraphLaunch", (void *)launch_legacy);
    shim_divert("cuGraphLaunch_ptsz", (void *)launch_per_thread);
    pthread_mutex_lock(&graphs_lock);
    struct known_graph *free_one = find(NULL);
    if (!free_one && graphs_used < MOST_GRAPHS) free_one = &graphs[graphs_used++];
    if (free_one) {
        *free_one = (struct known_graph){.need = *need};
        handles[free_one - graphs] = handle;
    }
    pthread_mutex_unlock(&graphs_lock);
}

static bool take(abi_graph_exec handle, struct need *need) {
    pthread_mutex_lock(&graphs_lock);
    struct known_graph *known = handle ? find(handle) : NULL;
    if (known) {
        *need = known->need;
        handles[known - graphs] = NULL;
    }
    pthread_mutex_unlock(&graphs_lock);
    return known;
}

/* What it needs is there now. */
static void mark(abi_graph_exec handle, abi_stream stream, uint32_t now) {
    pthread_mutex_lock(&graphs_lock);
    struct known_graph *known = find(handle);
    if (known) {
        known->stream = stream;
        known->epoch = now;
    }
    pthread_mutex_unlock(&graphs_lock);
}

/* ---- what the driver has reserved ---- */

static pthread_mutex_t charge_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t charged;
    uint32_t version; /* grows with each change, so that an answer that is older than the charge is asked for again */
} cards[COT_MAX_CARDS];

static bool device_of(uint32_t card, abi_device *device) {
    for (*device = 0; *device < (abi_device)COT_MAX_CARDS; (*device)++) {
        if (cot_card_of(*device) == card) return true;
    }
    return false;
}

/* Under the lock. */
static void set_charge(uint32_t card, uint64_t now) {
    uint64_t before = cards[card].charged;
    cards[card].charged = now;
    cards[card].version++;
    cot_touch(card);
    __atomic_fetch_add(&cot_own(card)->pool, now - before, __ATOMIC_RELAXED);
    if (now > before) cot_charge(card, now - before);
    if (now < before) cot_release(card, before - now);
}

static void read_back(uint32_t card) {
    abi_device device;
    uint64_t now = 0;
    bool set = !device_of(card, &device);
    while (!set) {
        pthread_mutex_lock(&charge_lock);
        uint32_t version = cards[card].version;
        pthread_mutex_unlock(&charge_lock);
        if (CALL_DRIVER("cuDeviceGetGraphMemAttribute", (abi_device, int, void *), device, ABI_GRAPH_MEMORY_RESERVED,
                        &now) != ABI_SUCCESS)
            return;
        pthread_mutex_lock(&charge_lock);
        set = cards[card].version == version;
        if (set) set_charge(card, now);
        pthread_mutex_unlock(&charge_lock);
    }
}

static uint64_t charged(uint32_t card) {
    pthread_mutex_lock(&charge_lock);
    uint64_t bytes = cards[card].charged;
    pthread_mutex_unlock(&charge_lock);
    return bytes;
}

void cot_graphs_trim(uint32_t card) {
    abi_device device;
    if (charged(card) == 0 || !device_of(card, &device)) return;
    atomic_fetch_add(&epoch, 1);
    CALL_REAL(cuDeviceGraphMemTrim, (abi_device), device);
    read_back(card);
}

void cot_graphs_forget(uint32_t card) {
    atomic_fetch_add(&epoch, 1);
    pthread_mutex_lock(&graphs_lock);
    for (uint32_t i = 0; i < graphs_used; i++) {
        if (handles[i] && graphs[i].need.bytes[card]) handles[i] = NULL;
    }
    pthread_mutex_unlock(&graphs_lock);
    pthread_mutex_lock(&charge_lock);
    if (cards[card].charged) set_charge(card, 0);
    pthread_mutex_unlock(&charge_lock);
}

/* ---- what a graph needs ---- */

static abi_result add_node(abi_graph_node node, struct need *need) {
    abi_alloc_node alloc;
    abi_result result = CALL_DRIVER("cuGraphMemAllocNodeGetParams", (abi_graph_node, abi_alloc_node *), node, &alloc);
    if (result != ABI_SUCCESS || alloc.pool.location.type != ABI_LOCATION_DEVICE) return result;
    uint32_t card = cot_card_of(alloc.pool.location.id);
    if (card == COT_NO_CARD) return ABI_ERROR_OUT_OF_MEMORY; /* a card that this container was not granted */
    struct cot_limits limits;
    cot_limits(card, &limits);
    uint64_t whole = UINT64_MAX, granule = limits.granule_bytes;
    if (alloc.bytes <= UINT64_MAX - granule) whole = (alloc.bytes + granule - 1) / granule * granule;
    if (__builtin_add_overflow(need->bytes[card], whole, &need->bytes[card])) need->bytes[card] = UINT64_MAX;
    need->any = true;
    return ABI_SUCCESS;
}

/* Sums up the memory nodes of a graph and of those within it, whichever call made them. */
static abi_result add_graph(abi_graph graph, int depth, struct need *need) {
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

static void rollback(const struct need *need) {
    for (uint32_t card = 0; card < cot_card_count(); card++) {
        if (need->bytes[card]) cot_rollback(card, need->bytes[card]);
    }
}

static bool reserve(const struct need *need) {
    for (uint32_t card = 0; card < cot_card_count(); card++) {
        if (!need->bytes[card] || cot_reserve(card, need->bytes[card])) continue;
        cot_deny(card);
        while (card-- > 0) {
            if (need->bytes[card]) cot_rollback(card, need->bytes[card]);
        }
        return false;
    }
    return true;
}

/* After a call for which `announced` was reserved: charges what it came to on the cards of `need`. */
static void settle(const struct need *need, const struct need *announced) {
    for (uint32_t card = 0; card < cot_card_count(); card++) {
        if (need->bytes[card]) read_back(card);
    }
    rollback(announced);
}

/* ---- instantiation ---- */

static abi_result begin(abi_graph graph, struct need *need) {
    *need = (struct need){0};
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = add_graph(graph, 0, need);
    if (result == ABI_SUCCESS && need->any && !reserve(need)) result = ABI_ERROR_OUT_OF_MEMORY;
    need->epoch = atomic_load(&epoch);
    return result;
}

static void finish(abi_result result, abi_graph_exec handle, const struct need *need) {
    if (!need->any) return;
    if (result == ABI_SUCCESS) remember(handle, need);
    settle(need, need);
}

/* The driver's own upload at instantiation, if it was asked for. */
static void note_upload(abi_result result, abi_graph_exec handle, const abi_instantiate_params *params,
                        const struct need *need) {
    if (result == ABI_SUCCESS && need->any && params && params->flags & ABI_INSTANTIATE_UPLOAD)
        mark(handle, params->upload_stream, need->epoch);
}

#define INSTANTIATE(symbol, parameters, types, upload, ...)               \
    abi_result cot_##symbol parameters {                                  \
        struct need need;                                                 \
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
    struct need need;
    if (!cot_attached() || !take(handle, &need)) return CALL_REAL(cuGraphExecDestroy, (abi_graph_exec), handle);
    abi_result result = CALL_REAL(cuGraphExecDestroy, (abi_graph_exec), handle);
    if (result != ABI_SUCCESS) remember(handle, &need);
    settle(&need, &(struct need){0});
    return result;
}

abi_result cot_cuDeviceGraphMemTrim(abi_device device) {
    atomic_fetch_add(&epoch, 1);
    abi_result result = CALL_REAL(cuDeviceGraphMemTrim, (abi_device), device);
    uint32_t card = cot_attached() ? cot_card_of(device) : COT_NO_CARD;
    if (result == ABI_SUCCESS && card != COT_NO_CARD) read_back(card);
    return result;
}

/* ---- launch and upload ---- */

/* By how much a launch can make the pool grow: the first one by all that its graph needs. A later one, on another
 * stream or after the pool was trimmed, by no more than what all graphs need beyond what is reserved. Under the lock.
 */
static void growth(const struct known_graph *known, struct need *announced) {
    *announced = known->need;
    for (uint32_t card = 0; known->epoch && card < cot_card_count(); card++) {
        uint64_t all = 0, held = charged(card);
        for (uint32_t i = 0; announced->bytes[card] && i < graphs_used; i++) {
            if (handles[i] && __builtin_add_overflow(all, graphs[i].need.bytes[card], &all)) all = UINT64_MAX;
        }
        uint64_t most = all > held ? all - held : 0;
        if (announced->bytes[card] > most) announced->bytes[card] = most;
    }
}

enum standing { STRANGER, SETTLED, UNSETTLED };

static enum standing standing(abi_graph_exec handle, abi_stream stream, uint32_t now, struct need *need,
                              struct need *announced) {
    enum standing answer = STRANGER;
    pthread_mutex_lock(&graphs_lock);
    const struct known_graph *known = handle ? find(handle) : NULL;
    if (known && known->epoch == now && known->stream == stream) {
        answer = SETTLED;
    } else if (known) {
        answer = UNSETTLED;
        *need = known->need;
        growth(known, announced);
    }
    pthread_mutex_unlock(&graphs_lock);
    return answer;
}

typedef abi_result (*stream_call)(abi_graph_exec, abi_stream);

static abi_result run(stream_call real, abi_graph_exec handle, abi_stream stream) {
    struct need need, announced;
    if (!real) return (abi_result)shim_missing();
    if (!cot_attached()) return real(handle, stream);
    uint32_t now = atomic_load(&epoch);
    enum standing known = standing(handle, stream, now, &need, &announced);
    if (known == STRANGER) return real(handle, stream);
    if (known == SETTLED) {
        abi_result result = real(handle, stream);
        /* Trimmed at the same time: then the launch may have taken it anew. */
        if (atomic_load(&epoch) != now && standing(handle, stream, 0, &need, &announced) == UNSETTLED)
            settle(&need, &(struct need){0});
        return result;
    }
    if (cot_is_capturing(stream)) return real(handle, stream);
    if (!reserve(&announced)) return ABI_ERROR_OUT_OF_MEMORY;
    now = atomic_load(&epoch); /* reserving may have trimmed */
    abi_result result = real(handle, stream);
    settle(&need, &announced);
    if (result == ABI_SUCCESS) mark(handle, stream, now);
    return result;
}

/* The gate has been passed when these are entered. */
static abi_result launch_legacy(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)DRIVER("cuGraphLaunch"), handle, stream);
}
static abi_result launch_per_thread(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)DRIVER("cuGraphLaunch_ptsz"), handle, stream);
}
abi_result cot_cuGraphUpload(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)shim_real(COT_AT_cuGraphUpload), handle, stream);
}
abi_result cot_cuGraphUpload_ptsz(abi_graph_exec handle, abi_stream stream) {
    return run((stream_call)shim_real(COT_AT_cuGraphUpload_ptsz), handle, stream);
}
