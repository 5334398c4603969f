/* Pools of memory: current and default ones, places, access and export. */
#define SUBJECT "pools"
#include "../memory.h"

static CUmemoryPool pool_of(int type, int id, int handles) {
    CUmemPoolProps props = {
        .alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED, .handle_types = handles, .location = {.type = type, .id = id}};
    CUmemoryPool pool = NULL;
    return cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS ? pool : NULL;
}

static CUmemoryPool device_pool(void) {
    return pool_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
}

static uint64_t value_of(CUmemoryPool pool, int attribute) {
    uint64_t value = 0;
    return cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS ? value : (uint64_t)-1;
}

/* A device's current pool is its default pool until another is set. */
RULE(default_is_current, .source = DRIVER_API "Device Management, cuDeviceGetMemPool",
     .calls = "cuDeviceGetMemPool cuDeviceGetDefaultMemPool") {
    primary_context();
    CUmemoryPool current_pool = NULL, standard = (CUmemoryPool)1;
    OK(cuDeviceGetMemPool(&current_pool, 0));
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    TRUE(current_pool && current_pool == standard);
}

/* Allocations without a pool come from the pool that was set. */
RULE(set_current, .source = DRIVER_API "Device Management, cuDeviceSetMemPool",
     .calls = "cuDeviceSetMemPool cuDeviceGetMemPool cuMemAllocAsync cuStreamSynchronize") {
    primary_context();
    CUmemoryPool mine = device_pool(), got = NULL;
    CUdeviceptr p;
    OK(cuDeviceSetMemPool(0, mine));
    OK(cuDeviceGetMemPool(&got, 0));
    TRUE(got == mine);
    OK(cuMemAllocAsync(&p, MIB, NULL));
    OK(cuStreamSynchronize(NULL));
    TRUE(value_of(mine, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= MIB);
}

/* A pool of host memory cannot be a device's current pool. */
RULE(set_not_local, .source = DRIVER_API "Device Management, cuDeviceSetMemPool", .calls = "cuDeviceSetMemPool") {
    primary_context();
    CUmemoryPool host = pool_of(CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_HANDLE_TYPE_NONE);
    NEEDS(host != NULL, "needs a pool of host memory");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, host));
}

/* A null place for the pool is an invalid value. */
RULE(get_null, .source = DRIVER_API "Device Management, cuDeviceGetMemPool",
     .calls = "cuDeviceGetMemPool cuDeviceGetDefaultMemPool") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetMemPool(NULL, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetDefaultMemPool(NULL, 0));
}

/* A device that does not exist has no pool. */
RULE(get_unknown_device, .source = DRIVER_API "Device Management, cuDeviceGetDefaultMemPool",
     .calls = "cuDeviceGetDefaultMemPool") {
    primary_context();
    CUmemoryPool pool;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDefaultMemPool(&pool, 100));
}

/* The pool of a device's location is the pool of the device. */
RULE(by_location, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemGetMemPool, cuMemGetDefaultMemPool",
     .calls = "cuDeviceGetDefaultMemPool cuMemGetDefaultMemPool cuMemGetMemPool") {
    primary_context();
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemoryPool a, b = NULL, c = NULL;
    OK(cuDeviceGetDefaultMemPool(&a, 0));
    OK(cuMemGetDefaultMemPool(&b, &device, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuMemGetMemPool(&c, &device, CU_MEM_ALLOCATION_TYPE_PINNED));
    TRUE(a == b && a == c);
}

/* The pool that was set for a device's location is the device's pool. */
RULE(set_by_location, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemSetMemPool",
     .calls = "cuMemSetMemPool cuDeviceGetMemPool") {
    primary_context();
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemoryPool mine = device_pool(), got = NULL;
    OK(cuMemSetMemPool(&device, CU_MEM_ALLOCATION_TYPE_PINNED, mine));
    OK(cuDeviceGetMemPool(&got, 0));
    TRUE(got == mine);
}

/* A pool of another kind of allocation is an invalid value. */
RULE(set_wrong_type, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemSetMemPool",
     .calls = "cuMemSetMemPool") {
    primary_context();
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&device, CU_MEM_ALLOCATION_TYPE_MANAGED, device_pool()));
}

/* A pool of another location is an invalid value. */
RULE(set_wrong_location, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemSetMemPool",
     .calls = "cuMemSetMemPool") {
    primary_context();
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, device_pool()));
}

/* The node of the current thread is no location of a pool. */
RULE(location_current_node, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemGetMemPool",
     .calls = "cuMemGetMemPool") {
    primary_context();
    CUmemLocation node = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT};
    CUmemoryPool pool;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemGetMemPool(&pool, &node, CU_MEM_ALLOCATION_TYPE_PINNED));
}

/* Managed memory has no pool of a locality domain. */
RULE(location_domain_managed, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemGetDefaultMemPool",
     .calls = "cuMemGetDefaultMemPool") {
    primary_context();
    CUmemLocation domain = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN};
    CUmemoryPool pool;
    FAILS(cuMemGetDefaultMemPool(&pool, &domain, CU_MEM_ALLOCATION_TYPE_MANAGED));
}

/* A device's default pool cannot be destroyed. */
RULE(destroy_default, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolDestroy",
     .calls = "cuDeviceGetDefaultMemPool cuMemPoolDestroy cuMemAllocFromPoolAsync") {
    primary_context();
    CUmemoryPool pool;
    CUdeviceptr p;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
    OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
}

/* The default pool is current again when the current one is destroyed. */
RULE(destroy_current, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolDestroy",
     .calls = "cuDeviceGetDefaultMemPool cuDeviceSetMemPool cuMemPoolDestroy cuDeviceGetMemPool") {
    primary_context();
    CUmemoryPool mine = device_pool(), standard, got = NULL;
    OK(cuDeviceGetDefaultMemPool(&standard, 0));
    OK(cuDeviceSetMemPool(0, mine));
    OK(cuMemPoolDestroy(mine));
    OK(cuDeviceGetMemPool(&got, 0));
    TRUE(got == standard);
}

/* Memory outlives its pool until it is freed. */
RULE(destroy_with_allocations, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolDestroy",
     .calls = "cuMemAllocFromPoolAsync cuStreamSynchronize cuMemPoolDestroy cuMemGetInfo_v2 cuMemsetD8_v2 "
              "cuMemcpyDtoH_v2 cuMemFreeAsync") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    size_t held, after, total;
    char back = 0;
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolDestroy(pool));
    OK(cuMemGetInfo_v2(&held, &total));
    OK(cuMemsetD8_v2(p, 3, 64 * MIB));
    OK(cuMemcpyDtoH_v2(&back, p + 64 * MIB - 1, 1));
    TRUE(back == 3);
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(after >= held + 64 * MIB);
}

/* A null pool is an invalid value. */
RULE(destroy_null, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolDestroy",
     .calls = "cuMemPoolDestroy") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(NULL));
}

/* A pool of a device can be accessed by the device at first. */
RULE(access_default, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate, cuMemPoolGetAccess",
     .calls = "cuMemPoolGetAccess") {
    primary_context();
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    int flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolGetAccess(&flags, device_pool(), &device));
    TRUE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* The device of a pool cannot be denied access. */
RULE(access_revoked, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAccess",
     .calls = "cuMemPoolSetAccess", .recalled = true) {
    primary_context();
    CUmemAccessDesc none = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    FAILS(cuMemPoolSetAccess(device_pool(), &none, 1));
}

/* A pool's location is given when it is made, so what a device is granted does not depend on what was allocated. */
RULE(access_after_allocation, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate",
     .calls = "cuMemPoolCreate cuMemPoolSetAccess cuMemAllocFromPoolAsync", .recalled = true) {
    primary_context();
    CUmemPoolProps props = {.alloc_type = CU_MEM_ALLOCATION_TYPE_MANAGED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}};
    CUmemAccessDesc read = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemoryPool pool = NULL;
    NEEDS(cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS, "needs a pool of managed memory");
    CUdeviceptr p;
    CUresult before = cuMemPoolSetAccess(pool, &read, 1);
    OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    EXPECT(before, cuMemPoolSetAccess(pool, &read, 1));
}

/* A device that does not exist is given no access. */
RULE(access_unknown_device, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAccess",
     .calls = "cuMemPoolSetAccess") {
    primary_context();
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 100},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    FAILS(cuMemPoolSetAccess(device_pool(), &desc, 1));
}

/* A null pool is an invalid value. */
RULE(null_pool, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocFromPoolAsync",
     .calls = "cuMemAllocFromPoolAsync") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, MIB, NULL, NULL));
}
