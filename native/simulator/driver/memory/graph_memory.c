/* Memory of graphs. A memory node has an address from its creation on, and memory of the GPU from the first launch or
 * upload of its executable graph on. Memory that a graph no longer needs stays reserved for the next one until it is
 * trimmed. Assumption: allocations of one graph never share memory, even if one is freed before the next. */
#include <stdlib.h>

#include "../sim.h"

struct reserved {
    uint64_t block, bytes; /* block ID of the daemon; 0 = none */
};

struct sim_graph_memory {
    struct sim_region *region;
    int device;
    uint64_t bytes;
    struct reserved backing;
    bool claimed, live;
    uint64_t busy_until;             /* number of the last item that may use it */
    unsigned references;             /* of graphs, of executable graphs, and one while it is live */
    const struct sim_graph *graph;   /* that allocates it */
    unsigned freed, freed_elsewhere; /* by nodes of that graph; by those of others */
    struct sim_graph_memory *next;
};

struct unused {
    struct reserved reserved;
    struct unused *next;
};

static struct sim_graph_memory *memories;
static struct {
    uint64_t used, used_high, reserved, reserved_high;
    struct unused *unused_list;
} gpus[SIM_MAX_GPUS]; /* per ordinal */

static void raise(uint64_t *high, uint64_t now) {
    if (now > *high) *high = now;
}

static uint64_t whole(int device, uint64_t bytes) {
    uint64_t granule = sim.facts->gpus[sim.gpu_of[device]].granule_bytes;
    return (bytes + granule - 1) / granule * granule;
}

int sim_graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out) {
    if (bytes == 0) return ABI_ERROR_INVALID_VALUE;
    if (bytes > 1ull << 50) return ABI_ERROR_OUT_OF_MEMORY;
    struct sim_graph_memory *memory = calloc(1, sizeof *memory);
    int result = memory ? sim_region_new(SIM_GRAPH, bytes, SIM_PAGE, &memory->region) : ABI_ERROR_OUT_OF_MEMORY;
    if (result != ABI_SUCCESS) {
        free(memory);
        return result;
    }
    memory->region->device = memory->device = device;
    memory->region->graph_memory = memory;
    memory->bytes = bytes;
    memory->references = 1;
    memory->next = memories;
    memories = memory;
    *out = memory;
    return ABI_SUCCESS;
}

abi_devptr sim_graph_memory_address(const struct sim_graph_memory *memory) {
    return sim_region_address(memory->region);
}
uint64_t sim_graph_memory_bytes(const struct sim_graph_memory *memory) {
    return memory->bytes;
}
bool sim_graph_memory_live(const struct sim_graph_memory *memory) {
    return memory->live;
}

static void give(int device, struct reserved *reserved) {
    if (!reserved->block) return;
    sim_simple(SIM_RELEASE, sim.gpu_of[device], reserved->block, 0, NULL);
    gpus[device].reserved -= reserved->bytes;
    *reserved = (struct reserved){0};
}

/* Keeps its backing memory for the next graph. */
static void unused(struct sim_graph_memory *memory) {
    if (!memory->backing.block) return;
    struct unused *unused = malloc(sizeof *unused);
    if (!unused) {
        give(memory->device, &memory->backing);
        return;
    }
    *unused = (struct unused){memory->backing, gpus[memory->device].unused_list};
    gpus[memory->device].unused_list = unused;
    memory->backing = (struct reserved){0};
}

void sim_graph_memory_retain(struct sim_graph_memory *memory) {
    memory->references++;
}

void sim_graph_memory_release(struct sim_graph_memory *memory) {
    if (--memory->references > 0) return;
    unused(memory);
    for (struct sim_graph_memory **place = &memories; *place; place = &(*place)->next) {
        if (*place == memory) {
            *place = memory->next;
            break;
        }
    }
    sim_region_end(memory->region);
    free(memory);
}

void sim_graph_memory_set_graph(struct sim_graph_memory *memory, const struct sim_graph *graph) {
    memory->graph = graph;
}
bool sim_graph_memory_add_free(struct sim_graph_memory *memory, const struct sim_graph *graph) {
    bool own = memory->graph == graph;
    if (memory->freed || (own && memory->freed_elsewhere)) return false;
    (*(own ? &memory->freed : &memory->freed_elsewhere))++;
    return true;
}
void sim_graph_memory_drop_free(struct sim_graph_memory *memory, const struct sim_graph *graph) {
    (*(memory->graph == graph ? &memory->freed : &memory->freed_elsewhere))--;
}

void sim_graph_memory_claim(struct sim_graph_memory *memory) {
    sim_graph_memory_retain(memory);
    memory->claimed = true;
}

void sim_graph_memory_unclaim(struct sim_graph_memory *memory) {
    memory->claimed = false;
    if (!memory->live) unused(memory);
    sim_graph_memory_release(memory);
}

int sim_graph_memory_ensure_backing(struct sim_graph_memory *memory) {
    int device = memory->device;
    uint64_t bytes = whole(device, memory->bytes);
    if (memory->backing.block) return ABI_SUCCESS;
    for (struct unused **place = &gpus[device].unused_list; *place; place = &(*place)->next) {
        struct unused *found = *place;
        if (found->reserved.bytes < bytes) continue;
        memory->backing = found->reserved;
        *place = found->next;
        free(found);
        return ABI_SUCCESS;
    }
    uint64_t block;
    SIM_TRY(sim_simple(SIM_ALLOCATE, sim.gpu_of[device], bytes, SIM_KIND_GRAPH, &block));
    memory->backing = (struct reserved){block, bytes};
    gpus[device].reserved += bytes;
    raise(&gpus[device].reserved_high, gpus[device].reserved);
    return ABI_SUCCESS;
}

void sim_graph_memory_begin(struct sim_graph_memory *memory) {
    if (memory->live) return;
    memory->live = true;
    sim_graph_memory_retain(memory);
    gpus[memory->device].used += memory->backing.bytes;
    raise(&gpus[memory->device].used_high, gpus[memory->device].used);
}

void sim_graph_memory_busy(struct sim_graph_memory *memory, uint64_t number) {
    if (number > memory->busy_until) memory->busy_until = number;
}

int sim_graph_memory_free(struct sim_graph_memory *memory, abi_devptr pointer) {
    if (!memory->live || pointer != sim_graph_memory_address(memory)) return ABI_ERROR_INVALID_VALUE;
    memory->live = false;
    gpus[memory->device].used -= memory->backing.bytes;
    if (!memory->claimed) unused(memory);
    sim_graph_memory_release(memory);
    return ABI_SUCCESS;
}

static void trim(int device) {
    const struct sim_channel *channel = sim.channel[sim.gpu_of[device]];
    uint64_t completed = channel ? atomic_load(&channel->completed) : UINT64_MAX;
    for (struct sim_graph_memory *memory = memories; memory; memory = memory->next) {
        if (memory->device == device && !memory->live && memory->busy_until <= completed)
            give(device, &memory->backing);
    }
    while (gpus[device].unused_list) {
        struct unused *first = gpus[device].unused_list;
        gpus[device].unused_list = first->next;
        give(device, &first->reserved);
        free(first);
    }
}

static void release_device(int device) {
    for (struct sim_graph_memory *memory = memories, *next; memory; memory = next) {
        next = memory->next;
        memory->busy_until = 0;
        if (memory->device == device && memory->live) sim_graph_memory_free(memory, sim_graph_memory_address(memory));
    }
    trim(device);
}
SIM_ON_CONTEXT_END(.release_device = release_device)

SIM_EXPORT abi_result cuDeviceGraphMemTrim(abi_device device) {
    SIM_ENTER("cuDeviceGraphMemTrim");
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    trim(device);
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDeviceGetGraphMemAttribute(abi_device device, int attribute, void *value) {
    SIM_ENTER("cuDeviceGetGraphMemAttribute");
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    int result = value ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (result != ABI_SUCCESS) {
    } else if (attribute == ABI_GRAPH_MEMORY_USED) *(uint64_t *)value = gpus[device].used;
    else if (attribute == ABI_GRAPH_MEMORY_USED_HIGH) *(uint64_t *)value = gpus[device].used_high;
    else if (attribute == ABI_GRAPH_MEMORY_RESERVED) *(uint64_t *)value = gpus[device].reserved;
    else if (attribute == ABI_GRAPH_MEMORY_RESERVED_HIGH) *(uint64_t *)value = gpus[device].reserved_high;
    else result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuDeviceSetGraphMemAttribute(abi_device device, int attribute, void *value) {
    SIM_ENTER("cuDeviceSetGraphMemAttribute");
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    if (!value || *(uint64_t *)value != 0)
        return ABI_ERROR_INVALID_VALUE; /* a high-water mark can only be reset to the current value */
    if (attribute != ABI_GRAPH_MEMORY_USED_HIGH && attribute != ABI_GRAPH_MEMORY_RESERVED_HIGH)
        return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (attribute == ABI_GRAPH_MEMORY_USED_HIGH) gpus[device].used_high = gpus[device].used;
    else gpus[device].reserved_high = gpus[device].reserved;
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}
