/* Page-locked memory of the host, allocated or registered. */
#define SUBJECT "host"
#define PAGE ((size_t)4096)
#include "../memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static char *pages(void) {
    return mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Page-locked memory can be written and read by the program. */
RULE(usable, .source = DRIVER_API "Memory Management, cuMemAllocHost", .calls = "cuMemAllocHost_v2 cuMemFreeHost") {
    primary_context();
    void *p;
    OK(cuMemAllocHost_v2(&p, 10000));
    memset(p, 0x5a, 10000);
    TRUE(((unsigned char *)p)[9999] == 0x5a);
    OK(cuMemFreeHost(p));
}

/* A null place for the result is an invalid value. */
RULE(null_result, .source = DRIVER_API "Memory Management, cuMemAllocHost, cuMemHostAlloc",
     .calls = "cuMemAllocHost_v2 cuMemHostAlloc") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocHost_v2(NULL, 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(NULL, 4096, 0));
}

/* Page-locked memory needs a current context. */
RULE(without_context, .source = DRIVER_API "Memory Management, cuMemAllocHost",
     .calls = "cuCtxSetCurrent cuMemAllocHost_v2") {
    primary_context();
    void *p;
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocHost_v2(&p, 4096));
}

/* Every set of the three flags is taken and reported afterwards. */
RULE(flag_sets, .source = DRIVER_API "Memory Management, cuMemHostAlloc, cuMemHostGetFlags",
     .calls = "cuMemHostAlloc cuMemHostGetFlags cuMemFreeHost") {
    primary_context();
    for (unsigned flags = 0; flags < 8; flags++) {
        void *p;
        unsigned got = 0;
        OK(cuMemHostAlloc(&p, 4096, flags));
        OK(cuMemHostGetFlags(&got, p));
        TRUE((got & flags) == flags);
        OK(cuMemFreeHost(p));
    }
}

/* A flag that does not exist is an invalid value. */
RULE(unknown_flag, .source = DRIVER_API "Memory Management, cuMemHostAlloc", .calls = "cuMemHostAlloc") {
    primary_context();
    void *p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&p, 4096, 0x80));
}

/* Without write combining, the device's address is the program's. */
RULE(device_address_same, .source = DRIVER_API "Memory Management, cuMemHostAlloc",
     .calls = "cuMemHostAlloc cuMemHostGetDevicePointer_v2") {
    primary_context();
    void *p;
    CUdeviceptr d = 0;
    OK(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer_v2(&d, p, 0));
    TRUE(d == (CUdeviceptr)(uintptr_t)p);
}

/* All page-locked memory has a device address, whatever flags it was made with. */
RULE(device_address_implied, .source = DRIVER_API "Unified Addressing, Automatic Mapping of Host Allocated Host Memory",
     .calls = "cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemAllocHost_v2") {
    primary_context();
    void *p, *q;
    CUdeviceptr d = 0;
    OK(cuMemHostAlloc(&p, 4096, 0));
    OK(cuMemHostGetDevicePointer_v2(&d, p, 0));
    TRUE(d == (CUdeviceptr)(uintptr_t)p);
    OK(cuMemAllocHost_v2(&q, 4096));
    OK(cuMemHostGetDevicePointer_v2(&d, q, 0));
    TRUE(d == (CUdeviceptr)(uintptr_t)q);
}

/* An address inside has the device address at the same offset. */
RULE(device_address_inside, .source = DRIVER_API "Memory Management, cuMemHostGetDevicePointer",
     .calls = "cuMemHostAlloc cuMemHostGetDevicePointer_v2") {
    primary_context();
    char *p;
    CUdeviceptr d = 0;
    OK(cuMemHostAlloc((void **)&p, 8192, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer_v2(&d, p + 100, 0));
    TRUE(d == (CUdeviceptr)(uintptr_t)(p + 100));
}

/* Its flags must be 0. */
RULE(device_address_flags, .source = DRIVER_API "Memory Management, cuMemHostGetDevicePointer",
     .calls = "cuMemHostAlloc cuMemHostGetDevicePointer_v2") {
    primary_context();
    void *p;
    CUdeviceptr d;
    OK(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2(&d, p, 1));
}

/* Memory that is not page-locked has no device address. */
RULE(device_address_foreign, .source = DRIVER_API "Memory Management, cuMemHostGetDevicePointer",
     .calls = "cuMemHostGetDevicePointer_v2") {
    primary_context();
    void *heap = malloc(4096);
    CUdeviceptr d;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) == 0,
          "the device attribute PAGEABLE_MEMORY_ACCESS is not 0");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2(&d, heap, 0));
}

/* The flags of memory that is not page-locked are an invalid value. */
RULE(flags_foreign, .source = DRIVER_API "Memory Management, cuMemHostGetFlags", .calls = "cuMemHostGetFlags") {
    primary_context();
    void *heap = malloc(4096);
    unsigned flags;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostGetFlags(&flags, heap));
}

/* An address that resides in an allocation has its flags. */
RULE(flags_inside, .source = DRIVER_API "Memory Management, cuMemHostGetFlags",
     .calls = "cuMemHostAlloc cuMemHostGetFlags") {
    primary_context();
    char *p;
    unsigned flags = 0;
    OK(cuMemHostAlloc((void **)&p, 8192, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostGetFlags(&flags, p + 5000));
    TRUE(flags & CU_MEMHOSTALLOC_PORTABLE);
}

/* Page-locked memory is freed once. */
RULE(free_twice, .source = DRIVER_API "Memory Management, cuMemFreeHost", .calls = "cuMemAllocHost_v2 cuMemFreeHost") {
    primary_context();
    void *p;
    OK(cuMemAllocHost_v2(&p, 4096));
    OK(cuMemFreeHost(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p));
}

/* Only the address that was returned can be freed, none inside. */
RULE(free_inside, .source = DRIVER_API "Memory Management, cuMemFreeHost", .calls = "cuMemAllocHost_v2 cuMemFreeHost") {
    primary_context();
    char *p;
    OK(cuMemAllocHost_v2((void **)&p, 8192));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p + 4096));
}

/* Memory of the C library's heap is not page-locked memory to free. */
RULE(free_foreign, .source = DRIVER_API "Memory Management, cuMemFreeHost", .calls = "cuMemFreeHost") {
    primary_context();
    void *heap = malloc(4096);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(heap));
}

/* Device memory is not page-locked memory to free. */
RULE(free_device, .source = DRIVER_API "Memory Management, cuMemFreeHost", .calls = "cuMemAlloc_v2 cuMemFreeHost") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost((void *)(uintptr_t)p));
}

/* Page-locked memory is the host's: the device's free memory stays. */
RULE(takes_no_device_memory, .source = DRIVER_API "Memory Management, cuMemAllocHost",
     .calls = "cuMemGetInfo_v2 cuMemAllocHost_v2") {
    primary_context();
    size_t before, after, total;
    void *p;
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuMemAllocHost_v2(&p, 64 * MIB));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(after + 4 * MIB >= before);
}

/* Memory of the program is registered, and again after it was unregistered. */
RULE(register_and_unregister, .source = DRIVER_API "Memory Management, cuMemHostRegister",
     .calls = "cuMemHostRegister_v2 cuMemHostUnregister") {
    primary_context();
    char *p = pages();
    OK(cuMemHostRegister_v2(p, 8 * PAGE, 0));
    OK(cuMemHostUnregister(p));
    OK(cuMemHostRegister_v2(p, 8 * PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostUnregister(p));
}

/* Memory that is registered cannot be registered again. */
RULE(register_twice, .source = DRIVER_API "Memory Management, cuMemHostRegister", .calls = "cuMemHostRegister_v2") {
    primary_context();
    char *p = pages();
    OK(cuMemHostRegister_v2(p, 8 * PAGE, 0));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(p, 8 * PAGE, 0));
}

/* A range that shares a page with registered memory cannot be registered. */
RULE(register_overlap, .source = DRIVER_API "Memory Management, cuMemHostRegister", .calls = "cuMemHostRegister_v2") {
    primary_context();
    char *p = pages();
    OK(cuMemHostRegister_v2(p + 4 * PAGE, 8 * PAGE, 0));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(p, 8 * PAGE, 0));
}

/* A null address and a size of zero are invalid values. */
RULE(register_null, .source = DRIVER_API "Memory Management, cuMemHostRegister", .calls = "cuMemHostRegister_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(NULL, 4096, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(pages(), 0, 0));
}

/* A flag that does not exist is an invalid value. */
RULE(register_unknown_flag, .source = DRIVER_API "Memory Management, cuMemHostRegister",
     .calls = "cuMemHostRegister_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(pages(), 4096, 0x80));
}

/* Read-only registration needs a device that supports it. */
RULE(register_read_only, .source = DRIVER_API "Memory Management, cuMemHostRegister", .calls = "cuMemHostRegister_v2") {
    primary_context();
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) == 0,
          "the device attribute READ_ONLY_HOST_REGISTER_SUPPORTED is not 0");
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemHostRegister_v2(pages(), 4096, CU_MEMHOSTREGISTER_READ_ONLY));
}

/* Where the device uses host addresses, registered memory has the same address for both. */
RULE(register_device_address, .source = DRIVER_API "Memory Management, cuMemHostRegister",
     .calls = "cuMemHostRegister_v2 cuMemHostGetDevicePointer_v2") {
    primary_context();
    char *p = pages();
    CUdeviceptr d = 0;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) == 1,
          "the device attribute CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is not 1");
    OK(cuMemHostRegister_v2(p, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostGetDevicePointer_v2(&d, p, 0));
    TRUE(d == (CUdeviceptr)(uintptr_t)p);
}

/* Memory that is not registered cannot be unregistered. */
RULE(unregister_unknown, .source = DRIVER_API "Memory Management, cuMemHostUnregister",
     .calls = "cuMemHostUnregister") {
    primary_context();
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(pages()));
}

/* Memory is unregistered once. */
RULE(unregister_twice, .source = DRIVER_API "Memory Management, cuMemHostUnregister",
     .calls = "cuMemHostRegister_v2 cuMemHostUnregister") {
    primary_context();
    char *p = pages();
    OK(cuMemHostRegister_v2(p, 4096, 0));
    OK(cuMemHostUnregister(p));
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(p));
}

/* The address must be the one that was registered. */
RULE(unregister_inside, .source = DRIVER_API "Memory Management, cuMemHostUnregister",
     .calls = "cuMemHostRegister_v2 cuMemHostUnregister") {
    primary_context();
    char *p = pages();
    OK(cuMemHostRegister_v2(p, 8 * PAGE, 0));
    ONE_OF(cuMemHostUnregister(p + 4096), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(p));
}

/* Page-locked memory that was allocated is not registered memory. */
RULE(unregister_allocated, .source = DRIVER_API "Memory Management, cuMemHostUnregister",
     .calls = "cuMemAllocHost_v2 cuMemHostUnregister cuMemFreeHost") {
    primary_context();
    void *p;
    OK(cuMemAllocHost_v2(&p, 4096));
    ONE_OF(cuMemHostUnregister(p), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeHost(p));
}

/* Registered memory is the program's and not freed by the driver. */
RULE(register_not_freed, .source = DRIVER_API "Memory Management, cuMemFreeHost, cuMemHostRegister",
     .calls = "cuMemHostRegister_v2 cuMemFreeHost cuMemHostUnregister") {
    primary_context();
    char *p = pages();
    OK(cuMemHostRegister_v2(p, 4096, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p));
    p[0] = 1;
    OK(cuMemHostUnregister(p));
}
