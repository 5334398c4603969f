/* Calls of the differential fuzzer whose arguments are structures, or too many for the table. */
#pragma once

#include "differential_handles.h"

static abi_location location(void) {
    static const int TYPES[] = {ABI_LOCATION_DEVICE, ABI_LOCATION_DEVICE,    ABI_LOCATION_DEVICE, ABI_LOCATION_DEVICE,
                                ABI_LOCATION_HOST,   ABI_LOCATION_HOST_NUMA, ABI_LOCATION_NONE,   99};
    return (abi_location){TYPES[chance(sizeof TYPES / sizeof *TYPES)], chance(8) ? 0 : 5};
}
static void made(char letter, abi_result result, const void *value) {
    step.result = result;
    step.made = letter;
    memcpy(&step.value, value, sizeof step.value);
}

static void create_memory(void) {
    abi_vmm_prop prop = {.type = chance(8) ? ABI_ALLOCATION_PINNED : 0, .location = location()};
    abi_vmm_handle handle = 0;
    made('v',
         CALL(cuMemCreate, (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), &handle,
              (size_t)(chance(8) ? chance(40) * 2 * MIB : bytes_of_chance()), &prop, 0ull),
         &handle);
}
static void reserve_addresses(void) {
    abi_devptr at = 0;
    made('r',
         CALL(cuMemAddressReserve, (abi_devptr *, size_t, size_t, abi_devptr, unsigned long long), &at,
              (size_t)ADDRESSES, (size_t)0, (abi_devptr)0, 0ull),
         &at);
}
static void map_memory(void) {
    uint64_t at = pick('r'), slot = chance(32);
    step.result =
        CALL(cuMemMap, (abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long),
             (abi_devptr)(at ? at + slot * 2 * MIB : 0), (size_t)(2 * MIB), (size_t)0, (abi_vmm_handle)pick('v'), 0ull);
}
static void unmap_memory(void) {
    uint64_t at = pick('r'), slot = chance(32);
    step.result = CALL(cuMemUnmap, (abi_devptr, size_t), (abi_devptr)(at ? at + slot * 2 * MIB : 0), (size_t)(2 * MIB));
}
static void retain_mapped(void) {
    abi_vmm_handle handle = 0;
    uint64_t at = pick('r'), slot = chance(32);
    made('v',
         CALL(cuMemRetainAllocationHandle, (abi_vmm_handle *, void *), &handle,
              (void *)(uintptr_t)(at ? at + slot * 2 * MIB : 0)),
         &handle);
}
static void set_access(void) {
    uint64_t at = pick('r'), slot = chance(32);
    abi_access_desc access = {.location = location(), .flags = (int)chance(5)};
    step.result = CALL(cuMemSetAccess, (abi_devptr, size_t, const abi_access_desc *, size_t),
                       (abi_devptr)(at ? at + slot * 2 * MIB : 0), (size_t)(2 * MIB), &access, (size_t)1);
}
static void granularity(void) {
    abi_vmm_prop prop = {.type = ABI_ALLOCATION_PINNED, .location = location()};
    size_t size = 0;
    step.result =
        CALL(cuMemGetAllocationGranularity, (size_t *, const abi_vmm_prop *, int), &size, &prop, (int)chance(3));
    note(&size, sizeof size);
}
static void create_pool(void) {
    abi_pool_props props = {.alloc_type = chance(8) ? ABI_ALLOCATION_PINNED : (int)chance(4),
                            .location = location(),
                            .max_size = chance(4) ? 0 : 64 * MIB};
    abi_pool pool = NULL;
    made('P', CALL(cuMemPoolCreate, (abi_pool *, const abi_pool_props *), &pool, &props), &pool);
}
static void pool_of_location(void) {
    abi_location place = location();
    abi_pool pool = NULL;
    step.result = CALL(cuMemGetDefaultMemPool, (abi_pool *, const abi_location *, int), &pool, &place, (int)chance(3));
}
static void current_pool_of_location(void) {
    abi_location place = location();
    abi_pool pool = NULL;
    step.result = CALL(cuMemGetMemPool, (abi_pool *, const abi_location *, int), &pool, &place, (int)chance(3));
}
static void pool_access(void) {
    abi_location place = location();
    int flags = 0;
    step.result = CALL(cuMemPoolGetAccess, (int *, abi_pool, const abi_location *), &flags,
                       (abi_pool)(uintptr_t)pick('P'), &place);
    note(&flags, sizeof flags);
}
static void set_pool_access(void) {
    abi_access_desc access = {.location = location(), .flags = (int)chance(5)};
    step.result = CALL(cuMemPoolSetAccess, (abi_pool, const abi_access_desc *, size_t), (abi_pool)(uintptr_t)pick('P'),
                       &access, (size_t)1);
}
static void create_array(void) {
    abi_array_shape shape = {chance(2000), chance(2000), (int)chance(40), (unsigned)chance(6)};
    void *array = NULL;
    made('a', CALL(cuArrayCreate_v2, (void **, const abi_array_shape *), &array, &shape), &array);
}
static void create_array3d(void) {
    abi_array3d_shape shape = {chance(300), chance(300), chance(60), (int)chance(40), (unsigned)chance(6), 0};
    void *array = NULL;
    made('a', CALL(cuArray3DCreate_v2, (void **, const abi_array3d_shape *), &array, &shape), &array);
}
static void create_mipmap(void) {
    abi_array3d_shape shape = {chance(3000), chance(3000), 0, (int)chance(40), (unsigned)chance(6), 0};
    void *array = NULL;
    made('M',
         CALL(cuMipmappedArrayCreate, (void **, const abi_array3d_shape *, unsigned), &array, &shape,
              (unsigned)chance(8)),
         &array);
}
#define LAUNCH(symbol)                                                                                               \
    static void launch_##symbol(void) {                                                                              \
        step.result = CALL(symbol,                                                                                   \
                           (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,      \
                            abi_stream, void **, void **),                                                           \
                           (abi_function)(uintptr_t)pick('f'), (unsigned)chance(4), 1u, 1u, (unsigned)chance(3), 1u, \
                           1u, 0u, (abi_stream)(uintptr_t)pick('s'), NULL, NULL);                                    \
    }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)
static void launch_cooperative(void) {
    step.result =
        CALL(cuLaunchCooperativeKernel,
             (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi_stream, void **),
             (abi_function)(uintptr_t)pick('f'), 1u, 1u, 1u, (unsigned)chance(3), 1u, 1u, 0u,
             (abi_stream)(uintptr_t)pick('s'), NULL);
}
static void launch_ex(void) {
    abi_launch_config config = {
        (unsigned)chance(3), 1, 1, (unsigned)chance(3), 1, 1, 0, (abi_stream)(uintptr_t)pick('s'), NULL, 0};
    step.result = CALL(cuLaunchKernelEx, (const abi_launch_config *, abi_function, void **, void **), &config,
                       (abi_function)(uintptr_t)pick('f'), NULL, NULL);
}
static void add_alloc_node(void) {
    abi_alloc_node node = {.pool = {.alloc_type = ABI_ALLOCATION_PINNED, .location = location()},
                           .bytes = bytes_of_chance()};
    abi_graph_node out = NULL;
    made('n',
         CALL(cuGraphAddMemAllocNode, (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, abi_alloc_node *),
              &out, (abi_graph)(uintptr_t)pick('g'), NULL, (size_t)0, &node),
         &out);
}
static void add_memset_node(void) {
    abi_memset_node node = {
        .to = (abi_devptr)pick('p'), .pitch = 0, .value = 1, .element = 1, .width = 256, .height = 1};
    abi_graph_node out = NULL;
    abi_context current = NULL;
    CALL(cuCtxGetCurrent, (abi_context *), &current);
    made('n',
         CALL(cuGraphAddMemsetNode,
              (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, const abi_memset_node *, abi_context), &out,
              (abi_graph)(uintptr_t)pick('g'), NULL, (size_t)0, &node, current),
         &out);
}
static void instantiate_with_params(void) {
    abi_instantiate_params params = {.flags = chance(3) ? 0 : ABI_INSTANTIATE_UPLOAD,
                                     .upload_stream = (abi_stream)(uintptr_t)pick('s')};
    abi_graph_exec out = NULL;
    made('x',
         CALL(cuGraphInstantiateWithParams, (abi_graph_exec *, abi_graph, abi_instantiate_params *), &out,
              (abi_graph)(uintptr_t)pick('g'), &params),
         &out);
}
static void load_library(void) {
    void *library = NULL;
    made('l',
         CALL(cuLibraryLoadData, (void **, const void *, int *, void **, unsigned, int *, void **, unsigned), &library,
              CODE, NULL, NULL, 0u, NULL, NULL, 0u),
         &library);
}
static void set_limit(void) {
    static const size_t VALUES[] = {0, 1024, 4096, 65536, 1 << 20, 16 << 20, 64 << 20};
    int limit = (int)chance(7);
    step.limit = limit + 1;
    CALL(cuCtxGetLimit, (size_t *, int), &step.before, limit);
    step.result = CALL(cuCtxSetLimit, (int, size_t), limit, VALUES[chance(7)]);
}
static void host_function(void *data) {
    (void)data;
}
static void launch_host(void) {
    step.result = CALL(cuLaunchHostFunc, (abi_stream, void (*)(void *), void *), (abi_stream)(uintptr_t)pick('s'),
                       host_function, NULL);
}
static void register_host(void) {
    size_t bytes = (size_t)chance(3) * 4096;
    step.result = CALL(cuMemHostRegister_v2, (void *, size_t, unsigned), host, bytes, 0u);
}
static void unregister_host(void) {
    step.result = CALL(cuMemHostUnregister, (void *), host);
}
static void retain_primary(void) {
    abi_context context = NULL;
    step.result = CALL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &context, (abi_device)0);
    if (step.result == ABI_SUCCESS) CALL(cuDevicePrimaryCtxRelease_v2, (abi_device), (abi_device)0);
}

static const struct special {
    const char *name;
    void (*run)(void);
    unsigned weight;
} SPECIAL[] = {
    {"cuMemCreate", create_memory, 3},
    {"cuMemAddressReserve", reserve_addresses, 1},
    {"cuMemMap", map_memory, 3},
    {"cuMemUnmap", unmap_memory, 2},
    {"cuMemRetainAllocationHandle", retain_mapped, 1},
    {"cuMemSetAccess", set_access, 1},
    {"cuMemGetAllocationGranularity", granularity, 1},
    {"cuMemPoolCreate", create_pool, 3},
    {"cuMemGetDefaultMemPool", pool_of_location, 1},
    {"cuMemGetMemPool", current_pool_of_location, 1},
    {"cuMemPoolGetAccess", pool_access, 1},
    {"cuMemPoolSetAccess", set_pool_access, 1},
    {"cuArrayCreate_v2", create_array, 1},
    {"cuArray3DCreate_v2", create_array3d, 1},
    {"cuMipmappedArrayCreate", create_mipmap, 1},
    {"cuLaunchKernel", launch_cuLaunchKernel, 3},
    {"cuLaunchKernel_ptsz", launch_cuLaunchKernel_ptsz, 1},
    {"cuLaunchCooperativeKernel", launch_cooperative, 1},
    {"cuLaunchKernelEx", launch_ex, 1},
    {"cuGraphAddMemAllocNode", add_alloc_node, 3},
    {"cuGraphAddMemsetNode", add_memset_node, 1},
    {"cuGraphInstantiateWithParams", instantiate_with_params, 2},
    {"cuLibraryLoadData", load_library, 1},
    {"cuCtxSetLimit", set_limit, 2},
    {"cuLaunchHostFunc", launch_host, 1},
    {"cuMemHostRegister_v2", register_host, 1},
    {"cuMemHostUnregister", unregister_host, 1},
    {"cuDevicePrimaryCtxRetain", retain_primary, 1},
};
#define SPECIAL_COUNT (sizeof SPECIAL / sizeof *SPECIAL)
