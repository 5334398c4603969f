/* A driver that returns the addresses and handles that a case has chosen, and runs another thread inside its calls. */
#pragma once

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../native/interposer/engine/contexts/contexts.h"

#define MIB (1ull << 20)
#define MOST 16
#define VIEW_OF 0x100 /* from a green context to its view */

static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t at, bytes;
    void *context;
} memory[MOST];
static void *alive[MOST];
static uint64_t next_address;
static void *next_handle;
static _Atomic unsigned allocations, ends;
static _Thread_local void *current;
static bool frees_nothing;
/* Once: before what the next call does, and after it, before it answers. */
static void (*_Atomic ahead)(void), (*_Atomic within)(void);

static void come_in_between(void (*_Atomic *moment)(void)) {
    void (*what)(void) = atomic_exchange(moment, NULL);
    if (what) what();
}

static void *run(void *what) {
    ((void (*)(void))what)();
    return NULL;
}
static pthread_t begin(void (*what)(void)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, (void *)what) != 0) exit(3);
    return thread;
}
static void wholly(void (*what)(void)) {
    pthread_join(begin(what), NULL);
}

static abi_result driver_alloc(abi_devptr *pointer, size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    come_in_between(&ahead);
    pthread_mutex_lock(&driver_lock);
    *pointer = next_address;
    int i = 0;
    while (memory[i].bytes) i++;
    memory[i].at = next_address;
    memory[i].bytes = bytes;
    memory[i].context = current;
    pthread_mutex_unlock(&driver_lock);
    come_in_between(&within);
    return ABI_SUCCESS;
}

static abi_result driver_free(abi_devptr pointer) {
    abi_result result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    for (int i = 0; i < MOST; i++) {
        if (frees_nothing || !memory[i].bytes || memory[i].at != pointer) continue;
        memory[i].bytes = 0;
        result = ABI_SUCCESS;
    }
    pthread_mutex_unlock(&driver_lock);
    come_in_between(&within);
    return result;
}

static abi_result driver_range(abi_devptr *base, size_t *bytes, abi_devptr pointer) {
    abi_result result = ABI_ERROR_NOT_FOUND;
    pthread_mutex_lock(&driver_lock);
    for (int i = 0; i < MOST; i++) {
        if (!memory[i].bytes || memory[i].at != pointer) continue;
        *base = pointer;
        *bytes = memory[i].bytes;
        result = ABI_SUCCESS;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

static abi_result driver_create(abi_context *out, unsigned flags, abi_device device) {
    pthread_mutex_lock(&driver_lock);
    int i = 0;
    while (alive[i]) i++;
    *out = alive[i] = current = next_handle;
    pthread_mutex_unlock(&driver_lock);
    come_in_between(&within);
    return ABI_SUCCESS;
}

static abi_result driver_destroy(abi_context context) {
    atomic_fetch_add(&ends, 1);
    pthread_mutex_lock(&driver_lock);
    for (int i = 0; i < MOST; i++) {
        if (alive[i] == context) alive[i] = NULL;
        if (memory[i].context == context) memory[i].bytes = 0;
    }
    pthread_mutex_unlock(&driver_lock);
    come_in_between(&within);
    return ABI_SUCCESS;
}

/* The primary context ends with the last that retains it; green ones do, and leave to it what they have. */
#define PRIMARY ((void *)0x3000)
static unsigned retained;

static abi_result driver_retain(abi_context *out, abi_device device) {
    retained++;
    *out = PRIMARY;
    return ABI_SUCCESS;
}
static abi_result driver_release(abi_device device) {
    if (--retained == 0) driver_destroy(PRIMARY);
    return ABI_SUCCESS;
}
static abi_result driver_green(abi_green_context *out, abi_resource_desc desc, abi_device device, unsigned flags) {
    retained++;
    *out = next_handle;
    return ABI_SUCCESS;
}
static abi_result driver_view(abi_context *out, abi_green_context green) {
    *out = (abi_context)((uintptr_t)green + VIEW_OF);
    return ABI_SUCCESS;
}
static abi_result driver_green_end(abi_green_context green) {
    const void *view = (char *)green + VIEW_OF;
    pthread_mutex_lock(&driver_lock);
    for (int i = 0; i < MOST; i++)
        if (memory[i].context == view) memory[i].context = PRIMARY;
    pthread_mutex_unlock(&driver_lock);
    return driver_release(0);
}

/* One heap, whatever context is current. */
static size_t heap = 2 * MIB;

static abi_result driver_limit(size_t *value, int limit) {
    *value = heap;
    return ABI_SUCCESS;
}
static abi_result driver_set_limit(int limit, size_t value) {
    heap = value;
    return ABI_SUCCESS;
}

/* One graph of one node, which allocates: its memory is reserved from a launch until a trim. */
#define GRAPH_BYTES (4 * MIB)
static _Atomic uint64_t graph_reserved;

static abi_result driver_nodes(abi_graph graph, abi_graph_node *nodes, size_t *count) {
    if (nodes) nodes[0] = (abi_graph_node)graph;
    *count = 1;
    return ABI_SUCCESS;
}
static abi_result driver_node_type(abi_graph_node node, int *type) {
    *type = ABI_NODE_MEM_ALLOC;
    return ABI_SUCCESS;
}
static abi_result driver_node(abi_graph_node node, abi_alloc_node *params) {
    *params = (abi_alloc_node){.pool.location = {ABI_LOCATION_DEVICE, 0}, .bytes = GRAPH_BYTES};
    return ABI_SUCCESS;
}
static abi_result driver_instantiate(abi_graph_exec *out, abi_graph graph, unsigned long long flags) {
    *out = (abi_graph_exec)graph;
    return ABI_SUCCESS;
}
static abi_result driver_launch(abi_graph_exec graph, abi_stream stream) {
    come_in_between(&ahead);
    atomic_store(&graph_reserved, GRAPH_BYTES);
    come_in_between(&within);
    return ABI_SUCCESS;
}
static abi_result driver_trim(abi_device device) {
    atomic_store(&graph_reserved, 0);
    return ABI_SUCCESS;
}
static abi_result driver_graph_memory(abi_device device, int attribute, void *value) {
    *(uint64_t *)value = atomic_load(&graph_reserved);
    return ABI_SUCCESS;
}
static abi_result driver_capturing(abi_stream stream, int *status) {
    *status = ABI_CAPTURE_NONE;
    return ABI_SUCCESS;
}

static abi_result driver_current(void **context) {
    *context = current;
    return ABI_SUCCESS;
}
static abi_result driver_device(abi_device *device) {
    *device = 0;
    return ABI_SUCCESS;
}
static abi_result driver_count(int *count) {
    *count = 1;
    return ABI_SUCCESS;
}
static abi_result driver_uuid(abi_uuid *uuid, abi_device device) {
    memset(uuid, 0x11, sizeof *uuid);
    return ABI_SUCCESS;
}
static abi_result driver_primary(abi_device device, unsigned *flags, int *active) {
    *flags = 0;
    *active = retained > 0;
    return ABI_SUCCESS;
}

/* ---- what the loader's half would give ---- */
static void *driver_function(const char *name) {
    static const struct {
        const char *name;
        void *function;
    } ALL[] = {{"cuMemAlloc_v2", (void *)driver_alloc},
               {"cuMemFree_v2", (void *)driver_free},
               {"cuMemGetAddressRange_v2", (void *)driver_range},
               {"cuCtxCreate_v2", (void *)driver_create},
               {"cuCtxDestroy_v2", (void *)driver_destroy},
               {"cuCtxGetCurrent", (void *)driver_current},
               {"cuCtxGetDevice", (void *)driver_device},
               {"cuDeviceGetCount", (void *)driver_count},
               {"cuDeviceGetUuid", (void *)driver_uuid},
               {"cuDevicePrimaryCtxGetState", (void *)driver_primary},
               {"cuDevicePrimaryCtxRetain", (void *)driver_retain},
               {"cuDevicePrimaryCtxRelease_v2", (void *)driver_release},
               {"cuGreenCtxCreate", (void *)driver_green},
               {"cuGreenCtxDestroy", (void *)driver_green_end},
               {"cuCtxFromGreenCtx", (void *)driver_view},
               {"cuGraphGetNodes", (void *)driver_nodes},
               {"cuGraphNodeGetType", (void *)driver_node_type},
               {"cuGraphMemAllocNodeGetParams", (void *)driver_node},
               {"cuGraphInstantiateWithFlags", (void *)driver_instantiate},
               {"cuGraphLaunch", (void *)driver_launch},
               {"cuDeviceGraphMemTrim", (void *)driver_trim},
               {"cuDeviceGetGraphMemAttribute", (void *)driver_graph_memory},
               {"cuStreamIsCapturing", (void *)driver_capturing},
               {"cuCtxGetLimit", (void *)driver_limit},
               {"cuCtxSetLimit", (void *)driver_set_limit}};
    for (unsigned i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        if (!strcmp(ALL[i].name, name)) return ALL[i].function;
    }
    return NULL;
}
