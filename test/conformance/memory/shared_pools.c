/* Pools of memory that other processes import. */
#define SUBJECT "shared-pools"
#include "../memory.h"

#include <string.h>

static CUmemoryPool pool_of(int type, int id, int handles) {
    CUmemPoolProps props = {
        .alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED, .handle_types = handles, .location = {.type = type, .id = id}};
    CUmemoryPool pool = NULL;
    return cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS ? pool : NULL;
}

static CUmemoryPool device_pool(void) {
    return pool_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_NONE);
}

/* A pool made for descriptors is exported and imported by one. */
RULE(export, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolExportToShareableHandle",
     .calls = "cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle") {
    primary_context();
    CUmemoryPool pool = pool_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), other = NULL;
    int fd = -1;
    TRUE(pool);
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    TRUE(fd >= 0);
    OK(cuMemPoolImportFromShareableHandle(&other, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    TRUE(other);
}

/* A pool that was not made for descriptors is not exported. */
RULE(export_refused, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolExportToShareableHandle",
     .calls = "cuMemPoolExportToShareableHandle") {
    primary_context();
    int fd = -1;
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemPoolExportToShareableHandle(&fd, device_pool(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/* Its flags must be 0. */
RULE(export_flags, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolExportToShareableHandle",
     .calls = "cuMemPoolExportToShareableHandle") {
    primary_context();
    CUmemoryPool pool = pool_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int fd = -1;
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
}

/* A default pool is not exported. */
RULE(export_default, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolExportToShareableHandle",
     .calls = "cuDeviceGetDefaultMemPool cuMemPoolExportToShareableHandle") {
    primary_context();
    CUmemoryPool pool;
    int fd = -1;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static CUmemoryPool imported(CUmemoryPool *mine) {
    CUmemoryPool other = NULL;
    int fd = -1;
    *mine = pool_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (cuMemPoolExportToShareableHandle(&fd, *mine, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) return NULL;
    cuMemPoolImportFromShareableHandle(&other, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return other;
}

/* An imported pool makes no new allocations. */
RULE(imported_allocates_nothing,
     .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolImportFromShareableHandle",
     .calls = "cuMemAllocFromPoolAsync") {
    primary_context();
    CUmemoryPool mine, other = imported(&mine);
    CUdeviceptr p;
    TRUE(other);
    FAILS(cuMemAllocFromPoolAsync(&p, MIB, other, NULL));
}

/* An imported pool cannot be a device's current pool. */
RULE(imported_not_current, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolImportFromShareableHandle",
     .calls = "cuDeviceSetMemPool") {
    primary_context();
    CUmemoryPool mine, other = imported(&mine);
    TRUE(other);
    FAILS(cuDeviceSetMemPool(0, other));
}

/* An imported pool is not exported again. */
RULE(imported_not_exported, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolGetAttribute",
     .calls = "cuMemPoolGetAttribute cuMemPoolExportToShareableHandle") {
    primary_context();
    CUmemoryPool mine, other = imported(&mine);
    int types = -9, fd;
    TRUE(other);
    if (driver_version() >= 13050) {
        OK(cuMemPoolGetAttribute(other, CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES, &types));
        TRUE(types == CU_MEM_HANDLE_TYPE_NONE);
    }
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemPoolExportToShareableHandle(&fd, other, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/* An allocation of an exported pool is read through the imported one. */
RULE(pointer_export,
     .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolExportPointer, cuMemPoolImportPointer",
     .calls = "cuMemAllocFromPoolAsync cuMemsetD8Async cuStreamSynchronize cuMemPoolExportPointer "
              "cuMemPoolImportPointer cuMemcpyDtoH_v2 cuMemFree_v2 cuMemFreeAsync") {
    primary_context();
    CUmemoryPool mine, other = imported(&mine);
    CUmemPoolPtrExportData data;
    CUdeviceptr p, q = 0;
    char back = 0;
    TRUE(other);
    OK(cuMemAllocFromPoolAsync(&p, MIB, mine, NULL));
    OK(cuMemsetD8Async(p, 9, MIB, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolExportPointer(&data, p));
    OK(cuMemPoolImportPointer(&q, other, &data));
    OK(cuMemcpyDtoH_v2(&back, q + 100, 1));
    TRUE(back == 9);
    OK(cuMemFree_v2(q));
    OK(cuMemFreeAsync(p, NULL));
}

/* Memory of no pool is not exported by its address. */
RULE(pointer_not_pooled, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolExportPointer",
     .calls = "cuMemAlloc_v2 cuMemPoolExportPointer") {
    primary_context();
    CUmemPoolPtrExportData data;
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, p));
}

/* A descriptor that is no pool is not imported. */
RULE(import_bad_descriptor, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolImportFromShareableHandle",
     .calls = "cuMemPoolImportFromShareableHandle") {
    primary_context();
    CUmemoryPool pool;
    FAILS(cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    FAILS(
        cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)999, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

/* ---- by fabric handles ---- */

static CUmemoryPool fabric_pool(int handles) {
    CUmemPoolProps props = {.alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handle_types = handles,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool = NULL;
    primary_context();
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) & CU_MEM_HANDLE_TYPE_FABRIC,
          "no pools with fabric handles");
    CUresult result = cuMemPoolCreate(&pool, &props);
    NEEDS(result != CUDA_ERROR_NOT_PERMITTED, "no IMEX channel");
    OK(result);
    return pool;
}

#define POOL_SHARING "cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle"

/* A pool made for fabric handles is exported and imported by 64 bytes, and its memory read through the import. */
RULE(fabric_export, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolExportToShareableHandle",
     .calls = POOL_SHARING " cuMemPoolExportPointer cuMemPoolImportPointer") {
    CUmemoryPool pool = fabric_pool(CU_MEM_HANDLE_TYPE_FABRIC), other = NULL;
    struct {
        CUmemFabricHandle handle;
        unsigned char behind[64];
    } out;
    CUmemPoolPtrExportData data;
    CUdeviceptr p, q;
    unsigned char back = 0;
    memset(&out, 0xee, sizeof out);
    OK(cuMemPoolExportToShareableHandle(&out, pool, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    for (unsigned i = 0; i < sizeof out.behind; i++) SAME(0xee, out.behind[i]);
    OK(cuMemPoolImportFromShareableHandle(&other, &out.handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
    OK(cuMemsetD8Async(p, 41, MIB, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolExportPointer(&data, p));
    OK(cuMemPoolImportPointer(&q, other, &data));
    OK(cuMemcpyDtoH_v2(&back, q + 100, 1));
    SAME(41, back);
    OK(cuMemFree_v2(q));
    OK(cuMemFreeAsync(p, NULL));
}

/* A pool is exported by the types of handles alone that it was made for. */
RULE(fabric_not_asked_for, .source = GUIDE "Creating and Sharing IPC Memory Pools", .calls = POOL_SHARING) {
    CUmemFabricHandle handle;
    int fd;
    FAILS(cuMemPoolExportToShareableHandle(&fd, fabric_pool(CU_MEM_HANDLE_TYPE_FABRIC),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    FAILS(cuMemPoolExportToShareableHandle(&handle, fabric_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                           CU_MEM_HANDLE_TYPE_FABRIC, 0));
}

/* Types of handles are bits: a pool may be made for both. */
RULE(fabric_beside_a_descriptor, .source = DRIVER_API "Stream Ordered Memory Allocator, CUmemPoolProps",
     .calls = POOL_SHARING) {
    int both = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC, fd = -1;
    CUmemoryPool pool = fabric_pool(both), other;
    CUmemFabricHandle handle;
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportToShareableHandle(&handle, pool, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemPoolImportFromShareableHandle(&other, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolImportFromShareableHandle(&other, &handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
}

/* By the attribute of a pointer a program finds how its memory may be exported: a pool's as the pool. */
RULE(fabric_pointer_types, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuMemAllocFromPoolAsync cuPointerGetAttribute") {
    CUmemoryPool pool = fabric_pool(CU_MEM_HANDLE_TYPE_FABRIC);
    unsigned long long types = 0;
    CUdeviceptr p;
    OK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
    SAME(CU_MEM_HANDLE_TYPE_FABRIC, types);
}

/* A handle that is none is not imported. */
RULE(fabric_forged, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemPoolImportFromShareableHandle",
     .calls = POOL_SHARING) {
    CUmemFabricHandle handle;
    CUmemoryPool other;
    OK(cuMemPoolExportToShareableHandle(&handle, fabric_pool(CU_MEM_HANDLE_TYPE_FABRIC), CU_MEM_HANDLE_TYPE_FABRIC, 0));
    for (unsigned i = 0; i < sizeof handle.data; i++) handle.data[i] = (unsigned char)~handle.data[i];
    FAILS(cuMemPoolImportFromShareableHandle(&other, &handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
}
