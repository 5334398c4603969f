/* Pools of memory: properties and places. */
#define SUBJECT "pool-creation"
#include "../memory.h"

static CUmemoryPool pool_of(int type, int id, int handles) {
    CUmemPoolProps props = {
        .alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED, .handle_types = handles, .location = {.type = type, .id = id}};
    CUmemoryPool pool = NULL;
    return cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS ? pool : NULL;
}

static CUresult create(int alloc_type, int handles, CUmemLocation location, size_t most) {
    CUmemPoolProps props = {.alloc_type = alloc_type, .handle_types = handles, .location = location, .max_size = most};
    CUmemoryPool pool;
    return cuMemPoolCreate(&pool, &props);
}

static uint64_t value_of(CUmemoryPool pool, int attribute) {
    uint64_t value = 0;
    return cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS ? value : (uint64_t)-1;
}

/* Null arguments are invalid values. */
RULE(create_null, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate", .calls = "cuMemPoolCreate") {
    primary_context();
    CUmemPoolProps props = {.alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(NULL, &props));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, NULL));
}

/* A pool is of pinned or managed memory and of nothing else. */
RULE(create_types, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate", .calls = "cuInit") {
    primary_context();
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(CU_MEM_ALLOCATION_TYPE_INVALID, 0, device, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(99, 0, device, 0));
}

/* A type of location that does not exist is an invalid value. */
RULE(create_unknown_location, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate",
     .calls = "cuInit") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(CU_MEM_ALLOCATION_TYPE_PINNED, 0, (CUmemLocation){.type = 99}, 0));
}

/* A device that does not exist has no pools. */
RULE(create_unknown_device, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate",
     .calls = "cuInit") {
    primary_context();
    CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 100};
    ONE_OF(create(CU_MEM_ALLOCATION_TYPE_PINNED, 0, nowhere, 0), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE);
}

/* A pool of host memory is not shared between processes. */
RULE(create_host, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate", .calls = "cuInit") {
    primary_context();
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 77};
    OK(create(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_NONE, host, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           create(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, host, 0));
}

/* A pool of a host node names the node. */
RULE(create_host_numa, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate", .calls = "cuInit") {
    primary_context();
    OK(create(CU_MEM_ALLOCATION_TYPE_PINNED, 0, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0}, 0));
}

/* The node of the current thread is no location of a pool. */
RULE(create_current_node, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate", .calls = "cuInit") {
    primary_context();
    CUmemLocation node = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT};
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(CU_MEM_ALLOCATION_TYPE_PINNED, 0, node, 0));
}

/* The invisible location is an answer and not a place to make a pool in. */
RULE(create_invisible, .source = DRIVER_API "Data types, int", .calls = "cuInit") {
    primary_context();
    FAILS(create(CU_MEM_ALLOCATION_TYPE_PINNED, 0, (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_INVISIBLE}, 0));
}

/* With a single domain, a pool of domain 0 is a pool of the device. */
RULE(create_locality_domain, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate",
     .calls = "cuMemPoolCreate cuMemPoolGetAttribute") {
    primary_context();
    CUmemPoolProps props = {.alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN}};
    CUmemoryPool pool;
    int type = -9;
    NEEDS(driver_version() >= 13050, "needs CUDA 13.5");
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT) == 1,
          "the device attribute LOCALITY_DOMAIN_COUNT is not 1");
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_LOCATION_TYPE, &type));
    TRUE(type == CU_MEM_LOCATION_TYPE_DEVICE);
}

/* A managed pool has no handles and no size. */
RULE(create_managed, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate", .calls = "cuInit") {
    primary_context();
    CUmemLocation none = {.type = CU_MEM_LOCATION_TYPE_NONE};
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 1,
          "the device attribute CONCURRENT_MANAGED_ACCESS is not 1");
    OK(create(CU_MEM_ALLOCATION_TYPE_MANAGED, 0, none, 0));
    FAILS(create(CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, none, 0));
    FAILS(create(CU_MEM_ALLOCATION_TYPE_MANAGED, 0, none, 64 * MIB));
}

/* Memory of a managed pool is managed memory. */
RULE(managed_memory, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate",
     .calls = "cuMemPoolCreate cuMemAllocFromPoolAsync cuStreamSynchronize cuPointerGetAttribute") {
    primary_context();
    CUmemPoolProps props = {.alloc_type = CU_MEM_ALLOCATION_TYPE_MANAGED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_NONE}};
    CUmemoryPool pool;
    CUdeviceptr p;
    unsigned is = 0;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 1,
          "the device attribute CONCURRENT_MANAGED_ACCESS is not 1");
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
    TRUE(*(unsigned char *)&is == 1);
}

/* Memory of a host pool is used by the program and is no device memory. */
RULE(host_memory, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate",
     .calls = "cuMemGetInfo_v2 cuMemAllocFromPoolAsync cuStreamSynchronize cuMemFreeAsync") {
    primary_context();
    CUmemoryPool pool = pool_of(CU_MEM_LOCATION_TYPE_HOST, 0, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr p;
    size_t before, after, total;
    TRUE(pool);
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    ((char *)(uintptr_t)p)[64 * MIB - 1] = 1;
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(after + 4 * MIB >= before);
    OK(cuMemFreeAsync(p, NULL));
}

/* A pool does not grow beyond its largest size. */
RULE(largest_size, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolCreate",
     .calls = "cuMemPoolCreate cuMemAllocFromPoolAsync") {
    primary_context();
    CUmemPoolProps props = {.alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                            .max_size = 64 * MIB};
    CUmemoryPool pool;
    CUdeviceptr p;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&p, 32 * MIB, pool, NULL));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&p, 512 * MIB, pool, NULL));
}

/* The largest size is reported, and may have been rounded up. */
RULE(largest_size_reported, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute",
     .calls = "cuMemPoolCreate") {
    primary_context();
    CUmemPoolProps props = {.alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                            .max_size = 64 * MIB};
    CUmemoryPool pool;
    NEEDS(driver_version() >= 13050, "needs CUDA 13.5");
    OK(cuMemPoolCreate(&pool, &props));
    uint64_t most = value_of(pool, CU_MEMPOOL_ATTR_MAX_POOL_SIZE);
    TRUE(most >= 64 * MIB && most != (uint64_t)-1);
}
