/* What the driver says about an address. */
#define SUBJECT "pointers"
#include "../memory.h"

#include <stdlib.h>

/* Device memory has the type device. */
RULE(device_type, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute", .calls = "cuPointerGetAttribute") {
    primary_context();
    unsigned type = 0;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, new_memory(4096) + 100));
    TRUE(type == CU_MEMORYTYPE_DEVICE);
}

/* Page-locked memory has the type host. */
RULE(host_type, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuMemAllocHost_v2 cuPointerGetAttribute") {
    primary_context();
    void *p;
    unsigned type = 0;
    OK(cuMemAllocHost_v2(&p, 4096));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)p));
    TRUE(type == CU_MEMORYTYPE_HOST);
}

/* Memory belongs to the context in which it was allocated. */
RULE(context, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute", .calls = "cuPointerGetAttribute") {
    primary_context();
    CUcontext found = NULL;
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, new_memory(4096)));
    TRUE(found == current_context());
}

/* The context of memory does not depend on the current one. */
RULE(context_other, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuPointerGetAttribute") {
    primary_context();
    CUcontext mine = current_context(), found = NULL;
    CUdeviceptr p = new_memory(4096);
    new_context();
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    TRUE(found == mine);
}

/* The device's address of device memory is the address itself. */
RULE(device_pointer, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuPointerGetAttribute") {
    primary_context();
    CUdeviceptr p = new_memory(4096), found = 0;
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p + 8));
    TRUE(found == p + 8);
}

/* Device memory has no address for the program. */
RULE(no_host_pointer, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuPointerGetAttribute") {
    primary_context();
    void *found;
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_HOST_POINTER, new_memory(4096)));
}

/* Page-locked memory has the same address for the program. */
RULE(host_pointer, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuMemAllocHost_v2 cuPointerGetAttribute") {
    primary_context();
    void *p, *found = NULL;
    OK(cuMemAllocHost_v2(&p, 4096));
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_HOST_POINTER, (CUdeviceptr)(uintptr_t)p));
    TRUE(found == p);
}

/* What CUDA did not allocate has no context, type or flag of management. */
RULE(pointer_unknown, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuPointerGetAttribute") {
    primary_context();
    CUcontext context;
    unsigned value;
    CUdeviceptr heap = (CUdeviceptr)(uintptr_t)malloc(4096);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, heap));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, heap));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, heap));
}

/* Memory that was freed is no CUDA pointer any more. */
RULE(after_free, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuMemFree_v2 cuPointerGetAttribute") {
    primary_context();
    CUdeviceptr p = new_memory(32 * MIB);
    unsigned type;
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
}

/* Each allocation has an ID of its own that is not used again. */
RULE(buffer_id, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuPointerGetAttribute cuMemFree_v2") {
    primary_context();
    unsigned long long a = 0, b = 0, c = 0, inside = 0;
    CUdeviceptr p = new_memory(MIB), q = new_memory(MIB);
    OK(cuPointerGetAttribute(&a, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    OK(cuPointerGetAttribute(&inside, CU_POINTER_ATTRIBUTE_BUFFER_ID, p + 999));
    OK(cuPointerGetAttribute(&b, CU_POINTER_ATTRIBUTE_BUFFER_ID, q));
    OK(cuMemFree_v2(p));
    OK(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_BUFFER_ID, new_memory(MIB)));
    TRUE(a == inside && a != b && c != a && c != b);
}

/* Managed memory is distinguished from other memory. */
RULE(managed, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuMemAllocManaged cuPointerGetAttribute") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL));
    unsigned value = 0;
    OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
    TRUE(*(unsigned char *)&value == 1);
    value = 0;
    OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, new_memory(MIB)));
    TRUE(*(unsigned char *)&value == 0);
}

/* The device on which memory was allocated is reported. */
RULE(ordinal, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute", .calls = "cuPointerGetAttribute") {
    primary_context();
    int ordinal = -5;
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, new_memory(MIB)));
    TRUE(ordinal == 0);
}

/* Start and size are those of the allocation. */
RULE(range, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute", .calls = "cuPointerGetAttribute") {
    primary_context();
    CUdeviceptr p = new_memory(3 * MIB), start = 0;
    size_t size = 0;
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + MIB));
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + MIB));
    TRUE(start == p && size == 3 * MIB);
}

/* For virtual memory, start and size are those of the reservation. */
RULE(range_reserved, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuMemAddressReserve cuMemCreate cuMemMap cuPointerGetAttribute") {
    primary_context();
    CUdeviceptr p, start = 0;
    size_t size = 0;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    OK(cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0));
    OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
    OK(cuMemMap(p + 2 * MIB, 2 * MIB, 0, h, 0));
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 3 * MIB));
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 3 * MIB));
    TRUE(start == p && size == 8 * MIB);
}

/* Whether memory is mapped is reported. */
RULE(mapped, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute", .calls = "cuPointerGetAttribute") {
    primary_context();
    unsigned mapped = 0;
    OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, new_memory(MIB)));
    TRUE(*(unsigned char *)&mapped == 1);
}

/* Linear memory can be shared by IPC handles, virtual and pooled memory cannot. */
RULE(ipc_capable, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuPointerGetAttribute cuMemAllocAsync cuStreamSynchronize") {
    primary_context();
    unsigned value = 0;
    CUdeviceptr p;
    OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, new_memory(MIB)));
    TRUE(*(unsigned char *)&value == 1);
    OK(cuMemAllocAsync(&p, MIB, NULL));
    OK(cuStreamSynchronize(NULL));
    value = 1;
    OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    TRUE(*(unsigned char *)&value == 0);
}

/* The pool of stream-ordered memory is reported, and null for other memory. */
RULE(pool, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuDeviceGetDefaultMemPool cuMemAllocAsync cuPointerGetAttribute") {
    primary_context();
    CUmemoryPool pool, found = NULL;
    CUdeviceptr p;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&p, MIB, NULL));
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    TRUE(found == pool);
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, new_memory(MIB)));
    TRUE(found == NULL);
}

/* The handle types that virtual memory was made with are reported. */
RULE(handle_types, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuMemAddressReserve cuMemCreate cuMemMap cuPointerGetAttribute") {
    primary_context();
    CUdeviceptr p;
    unsigned long long types = 0;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
    OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
    OK(cuMemMap(p, 2 * MIB, 0, h, 0));
    OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p));
    TRUE((unsigned)types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* The one attribute that can be set is reported as it was set. */
RULE(sync_memops, .source = DRIVER_API "Unified Addressing, cuPointerSetAttribute",
     .calls = "cuPointerSetAttribute cuPointerGetAttribute") {
    primary_context();
    CUdeviceptr p = new_memory(MIB);
    unsigned on = 1, value = 0;
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    TRUE((value & 0xff) == 1);
}

/* No other attribute can be set. */
RULE(set_other, .source = DRIVER_API "Unified Addressing, cuPointerSetAttribute", .calls = "cuPointerSetAttribute") {
    primary_context();
    unsigned on = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_IS_MANAGED, new_memory(MIB)));
}

/* An attribute that does not exist is an invalid value. */
RULE(unknown_attribute, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute",
     .calls = "cuPointerGetAttribute") {
    primary_context();
    unsigned long long value;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&value, 9999, new_memory(MIB)));
}

/* A null place for the answer is an invalid value. */
RULE(null_data, .source = DRIVER_API "Unified Addressing, cuPointerGetAttribute", .calls = "cuPointerGetAttribute") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_CONTEXT, new_memory(MIB)));
}

/* Several attributes at once are those that are reported one by one. */
RULE(pointers_many, .source = DRIVER_API "Unified Addressing, cuPointerGetAttributes",
     .calls = "cuPointerGetAttributes") {
    primary_context();
    CUdeviceptr p = new_memory(MIB), device = 0;
    CUcontext context = NULL;
    unsigned type = 0;
    int which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *where[] = {&context, &type, &device};
    OK(cuPointerGetAttributes(3, which, where, p));
    TRUE(context == current_context() && type == CU_MEMORYTYPE_DEVICE && device == p);
}

/* An address that CUDA does not know is no error: all attributes are null. */
RULE(pointers_unknown, .source = DRIVER_API "Unified Addressing, cuPointerGetAttributes",
     .calls = "cuPointerGetAttributes") {
    primary_context();
    CUdeviceptr heap = (CUdeviceptr)(uintptr_t)malloc(4096);
    CUcontext context = (CUcontext)1;
    unsigned type = 77;
    int which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void *where[] = {&context, &type};
    OK(cuPointerGetAttributes(2, which, where, heap));
    TRUE(context == NULL && type == 0);
}
