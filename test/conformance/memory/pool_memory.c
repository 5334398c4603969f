/* What a pool keeps of memory that was freed, and what it says of it. */
#define SUBJECT "pool-memory"
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

/* Used memory is what the program has, reserved memory what backs it. */
RULE(used_counts, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute",
     .calls = "cuMemAllocFromPoolAsync cuStreamSynchronize cuMemFreeAsync") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p, q;
    OK(cuMemAllocFromPoolAsync(&p, 2 * MIB, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&q, 4 * MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 6 * MIB);
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 6 * MIB);
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 4 * MIB);
}

/* The high-water marks stay until they are reset to zero. */
RULE(high_water, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute, cuMemPoolSetAttribute",
     .calls = "cuMemAllocFromPoolAsync cuMemFreeAsync cuStreamSynchronize cuMemPoolSetAttribute "
              "cuMemPoolTrimTo") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    uint64_t zero = 0;
    OK(cuMemAllocFromPoolAsync(&p, 8 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 8 * MIB);
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= 8 * MIB);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);
}

/* A high-water mark cannot be set to anything but zero. */
RULE(high_not_zero, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAttribute",
     .calls = "cuMemPoolSetAttribute") {
    primary_context();
    CUmemoryPool pool = device_pool();
    uint64_t one = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &one));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
}

/* What a pool uses and reserves cannot be set. */
RULE(current_not_set, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAttribute",
     .calls = "cuMemPoolSetAttribute") {
    primary_context();
    CUmemoryPool pool = device_pool();
    uint64_t zero = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &zero));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero));
}

/* The release threshold is 0 at first. */
RULE(threshold_default, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAttribute",
     .calls = "cuInit") {
    primary_context();
    TRUE(value_of(device_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == 0);
}

/* With threshold 0 free memory goes back at the next synchronization. */
RULE(threshold_releases, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAttribute",
     .calls = "cuMemAllocFromPoolAsync cuMemFreeAsync cuStreamSynchronize") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

/* Memory goes back at the synchronization with an event too. */
RULE(threshold_event, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAttribute",
     .calls = "cuEventCreate cuMemAllocFromPoolAsync cuMemFreeAsync cuEventRecord cuEventSynchronize") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    CUevent e;
    OK(cuEventCreate(&e, 0));
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuEventRecord(e, NULL));
    OK(cuEventSynchronize(e));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

/* Memory goes back at the synchronization of the context too. */
RULE(threshold_context, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAttribute",
     .calls = "cuMemAllocFromPoolAsync cuMemFreeAsync cuCtxSynchronize") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuCtxSynchronize());
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

/* Below the threshold the pool keeps free memory at a synchronization. */
RULE(threshold_keeps, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolSetAttribute",
     .calls = "cuMemPoolSetAttribute cuMemAllocFromPoolAsync cuMemFreeAsync cuStreamSynchronize") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    uint64_t all = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == all);
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 64 * MIB);
}

/* Trimming gives back what is free, down to what is to be kept. */
RULE(trim, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolTrimTo",
     .calls = "cuMemPoolSetAttribute cuMemAllocFromPoolAsync cuMemFreeAsync cuStreamSynchronize "
              "cuMemPoolTrimTo") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    uint64_t all = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolTrimTo(pool, 256 * MIB));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 64 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

/* After trimming at least what is to be kept is still reserved. */
RULE(trim_at_least, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolTrimTo",
     .calls = "cuMemPoolSetAttribute cuMemAllocFromPoolAsync cuMemFreeAsync cuStreamSynchronize "
              "cuMemPoolTrimTo") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p, q;
    uint64_t all = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&q, 64 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuMemFreeAsync(q, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolTrimTo(pool, 32 * MIB));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 32 * MIB);
}

/* Memory that was not freed is not given back. */
RULE(trim_spares_used, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolTrimTo",
     .calls = "cuMemAllocFromPoolAsync cuStreamSynchronize cuMemPoolTrimTo cuMemsetD8_v2") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 64 * MIB);
    OK(cuMemsetD8_v2(p, 1, 64 * MIB));
}

/* Memory that a pool gave back is free on the device. */
RULE(returns_to_device, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolTrimTo",
     .calls = "cuMemGetInfo_v2 cuMemAllocFromPoolAsync cuStreamSynchronize cuMemFreeAsync cuMemPoolTrimTo") {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    size_t before, held, after, total;
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemGetInfo_v2(&held, &total));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(held + 64 * MIB <= before && after >= held + 64 * MIB);
}

/* Memory freed before in the same stream serves the next request without more being reserved. */
RULE(reuse_same_stream, .source = GUIDE "Stream Ordered Memory Allocator, Physical Page Caching Behavior",
     .calls = "cuMemAllocFromPoolAsync cuMemFreeAsync", .recalled = true) {
    primary_context();
    CUmemoryPool pool = device_pool();
    CUdeviceptr p;
    for (int i = 0; i < 20; i++) {
        OK(cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, NULL));
        OK(cuMemFreeAsync(p, NULL));
    }
    TRUE(value_of(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) < 128 * MIB);
}

/* The three ways of reuse are enabled at first, and each can be disabled. */
RULE(reuse_policies, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute",
     .calls = "cuMemPoolGetAttribute cuMemPoolSetAttribute") {
    primary_context();
    CUmemoryPool pool = device_pool();
    static const int ways[] = {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                               CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                               CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES};
    for (int i = 0; i < 3; i++) {
        int value = -1, off = 0;
        OK(cuMemPoolGetAttribute(pool, ways[i], &value));
        TRUE(value == 1);
        OK(cuMemPoolSetAttribute(pool, ways[i], &off));
        OK(cuMemPoolGetAttribute(pool, ways[i], &value));
        TRUE(value == 0);
    }
}

/* An attribute that does not exist is an invalid value. */
RULE(unknown_attribute, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute",
     .calls = "cuMemPoolGetAttribute cuMemPoolSetAttribute") {
    primary_context();
    uint64_t value = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(device_pool(), 999, &value));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(device_pool(), 999, &value));
}

/* A null place for the value is an invalid value. */
RULE(null_value, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute",
     .calls = "cuMemPoolGetAttribute") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(device_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, NULL));
}

/* What a pool was made with is reported, of a default pool too. */
RULE(properties, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute",
     .calls = "cuDeviceGetDefaultMemPool cuMemPoolGetAttribute") {
    primary_context();
    NEEDS(driver_version() >= 13050, "needs CUDA 13.5");
    CUmemoryPool pools[2] = {device_pool()};
    OK(cuDeviceGetDefaultMemPool(&pools[1], 0));
    for (int i = 0; i < 2; i++) {
        int value = -9;
        OK(cuMemPoolGetAttribute(pools[i], CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &value));
        TRUE(value == CU_MEM_ALLOCATION_TYPE_PINNED);
        OK(cuMemPoolGetAttribute(pools[i], CU_MEMPOOL_ATTR_LOCATION_TYPE, &value));
        TRUE(value == CU_MEM_LOCATION_TYPE_DEVICE);
        OK(cuMemPoolGetAttribute(pools[i], CU_MEMPOOL_ATTR_LOCATION_ID, &value));
        TRUE(value == 0);
    }
}
