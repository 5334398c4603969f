/* Managed memory: attachment to streams, prefetching and advice. */
#define SUBJECT "managed"
#include "../memory.h"

#include <stdlib.h>

static const CUmemLocation device0 = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
static const CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
static CUdeviceptr managed(size_t bytes) {
    CUdeviceptr p = 0;
    cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL);
    return p;
}

static int range_value(int which, CUdeviceptr p, size_t bytes) {
    int value = -77;
    return cuMemRangeGetAttribute(&value, sizeof value, which, p, bytes) == CUDA_SUCCESS ? value : -99;
}

/* A request of zero bytes is an invalid value. */
RULE(zero_size, .source = DRIVER_API "Memory Management, cuMemAllocManaged", .calls = "cuMemAllocManaged") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
}

/* Attachment is global or to the host, and nothing else at allocation. */
RULE(flags, .source = DRIVER_API "Memory Management, cuMemAllocManaged", .calls = "cuMemAllocManaged") {
    primary_context();
    CUdeviceptr p;
    static const unsigned wrong[] = {0, CU_MEM_ATTACH_SINGLE, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST, 8};
    for (int i = 0; i < 4; i++) EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, 4096, wrong[i]));
    OK(cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_HOST));
}

/* A null place for the result is an invalid value. */
RULE(null_result, .source = DRIVER_API "Memory Management, cuMemAllocManaged", .calls = "cuMemAllocManaged") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(NULL, 4096, CU_MEM_ATTACH_GLOBAL));
}

/* Managed memory is used by the program at the same address. */
RULE(on_host, .source = DRIVER_API "Memory Management, cuMemAllocManaged",
     .calls = "cuMemcpyDtoH_v2 cuMemsetD8_v2 cuCtxSynchronize") {
    primary_context();
    CUdeviceptr p = managed(MIB);
    TRUE(p);
    unsigned char *bytes = (unsigned char *)(uintptr_t)p, back = 0;
    if (!bytes) return;
    bytes[777] = 42;
    OK(cuMemcpyDtoH_v2(&back, p + 777, 1));
    TRUE(back == 42);
    OK(cuMemsetD8_v2(p, 7, MIB));
    OK(cuCtxSynchronize());
    TRUE(bytes[MIB - 1] == 7);
}

/* More than the device has, where the driver moves pages as they are used. */
RULE(more_than_the_device, .source = DRIVER_API "Memory Management, cuMemAllocManaged", .calls = "cuMemAllocManaged",
     .granted = "out of memory: a grant charges managed memory in full when it is allocated") {
    primary_context();
    size_t total = 0;
    CUdeviceptr p = 0;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 1, "no oversubscription");
    OK(cuDeviceTotalMem_v2(&total, 0));
    CUresult result = cuMemAllocManaged(&p, 2 * total, CU_MEM_ATTACH_GLOBAL);
    if (is_granted()) SAME(CUDA_ERROR_OUT_OF_MEMORY, result);
    else OK(result);
}

/* Managed memory is freed with cuMemFree, once. */
RULE(freed, .source = DRIVER_API "Memory Management, cuMemAllocManaged", .calls = "cuMemFree_v2") {
    primary_context();
    CUdeviceptr p = managed(MIB);
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

/* Managed memory is attached to a created stream. */
RULE(attach_single, .source = DRIVER_API "Stream Management, cuStreamAttachMemAsync",
     .calls = "cuStreamCreate cuStreamAttachMemAsync cuStreamSynchronize") {
    primary_context();
    CUstream s;
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamAttachMemAsync(s, managed(MIB), 0, CU_MEM_ATTACH_SINGLE));
    OK(cuStreamSynchronize(s));
}

/* A single attachment to the null stream is illegal. */
RULE(attach_single_to_null_stream, .source = DRIVER_API "Stream Management, cuStreamAttachMemAsync",
     .calls = "cuStreamAttachMemAsync") {
    primary_context();
    FAILS(cuStreamAttachMemAsync(NULL, managed(MIB), 0, CU_MEM_ATTACH_SINGLE));
}

/* The length is zero or that of the allocation. */
RULE(attach_whole, .source = DRIVER_API "Stream Management, cuStreamAttachMemAsync",
     .calls = "cuStreamAttachMemAsync") {
    primary_context();
    CUdeviceptr p = managed(MIB);
    OK(cuStreamAttachMemAsync(NULL, p, 0, CU_MEM_ATTACH_HOST));
    OK(cuStreamAttachMemAsync(NULL, p, MIB, CU_MEM_ATTACH_GLOBAL));
}

/* A part of an allocation cannot be attached. */
RULE(attach_part, .source = DRIVER_API "Stream Management, cuStreamAttachMemAsync", .calls = "cuStreamAttachMemAsync") {
    primary_context();
    FAILS(cuStreamAttachMemAsync(NULL, managed(MIB), 4096, CU_MEM_ATTACH_HOST));
}

/* Device memory cannot be attached. */
RULE(attach_not_managed, .source = DRIVER_API "Stream Management, cuStreamAttachMemAsync",
     .calls = "cuMemAlloc_v2 cuStreamAttachMemAsync") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    FAILS(cuStreamAttachMemAsync(NULL, p, 0, CU_MEM_ATTACH_GLOBAL));
}

/* Pageable memory is attached only where the device accesses it, and with a length. */
RULE(attach_pageable, .source = DRIVER_API "Stream Management, cuStreamAttachMemAsync",
     .calls = "cuStreamAttachMemAsync") {
    primary_context();
    void *heap = malloc(8192);
    if (device_attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS))
        FAILS(cuStreamAttachMemAsync(NULL, (CUdeviceptr)(uintptr_t)heap, 0, CU_MEM_ATTACH_GLOBAL));
    else FAILS(cuStreamAttachMemAsync(NULL, (CUdeviceptr)(uintptr_t)heap, 8192, CU_MEM_ATTACH_GLOBAL));
}

/* Managed memory is prefetched to the device and to the host. */
RULE(prefetch_managed, .source = DRIVER_API "Unified Addressing, cuMemPrefetchAsync",
     .calls = "cuMemPrefetchAsync_v2 cuStreamSynchronize") {
    primary_context();
    CUdeviceptr p = managed(4 * MIB);
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 1,
          "the device attribute CONCURRENT_MANAGED_ACCESS is not 1");
    OK(cuMemPrefetchAsync_v2(p, 4 * MIB, device0, 0, NULL));
    OK(cuMemPrefetchAsync_v2(p, 4 * MIB, host, 0, NULL));
    OK(cuStreamSynchronize(NULL));
}

/* The place of the last prefetch is reported, and none before there was one. */
RULE(prefetch_last_location, .source = DRIVER_API "Unified Addressing, cuMemRangeGetAttribute",
     .calls = "cuMemPrefetchAsync_v2") {
    primary_context();
    CUdeviceptr p = managed(4 * MIB);
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 1,
          "the device attribute CONCURRENT_MANAGED_ACCESS is not 1");
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4 * MIB) == CU_DEVICE_INVALID);
    OK(cuMemPrefetchAsync_v2(p, 4 * MIB, device0, 0, NULL));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4 * MIB) == 0);
    OK(cuMemPrefetchAsync_v2(p, 4 * MIB, host, 0, NULL));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4 * MIB) == CU_DEVICE_CPU);
}

/* Device memory cannot be prefetched. */
RULE(prefetch_not_managed, .source = DRIVER_API "Unified Addressing, cuMemPrefetchAsync",
     .calls = "cuMemAlloc_v2 cuMemPrefetchAsync_v2") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(p, MIB, device0, 0, NULL));
}

/* A device that does not exist is no place to prefetch to. */
RULE(prefetch_unknown_device, .source = DRIVER_API "Unified Addressing, cuMemPrefetchAsync",
     .calls = "cuMemPrefetchAsync_v2") {
    primary_context();
    CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 100};
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync_v2(managed(MIB), MIB, nowhere, 0, NULL));
}

/* A locality domain is no place to prefetch to. */
RULE(prefetch_locality_domain, .source = DRIVER_API "Unified Addressing, cuMemPrefetchAsync",
     .calls = "cuMemPrefetchAsync_v2") {
    primary_context();
    CUmemLocation domain = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN};
    FAILS(cuMemPrefetchAsync_v2(managed(MIB), MIB, domain, 0, NULL));
}

/* Its flags are for the future and must be 0. */
RULE(prefetch_flags, .source = DRIVER_API "Unified Addressing, cuMemPrefetchAsync", .calls = "cuMemPrefetchAsync_v2",
     .recalled = true) {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(managed(MIB), MIB, device0, 1, NULL));
}

/* Read-mostly is reported for a range once it was advised, until it is undone. */
RULE(advise_read_mostly, .source = DRIVER_API "Unified Addressing, cuMemAdvise, cuMemRangeGetAttribute",
     .calls = "cuMemAdvise_v2") {
    primary_context();
    CUdeviceptr p = managed(4 * MIB);
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4 * MIB) == 0);
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, device0));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4 * MIB) == 1);
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device0));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4 * MIB) == 0);
}

/* The preferred location is reported, and none when there is none. */
RULE(advise_preferred_location, .source = DRIVER_API "Unified Addressing, cuMemAdvise, cuMemRangeGetAttribute",
     .calls = "cuMemAdvise_v2") {
    primary_context();
    CUdeviceptr p = managed(4 * MIB);
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 1,
          "the device attribute CONCURRENT_MANAGED_ACCESS is not 1");
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB) == CU_DEVICE_INVALID);
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device0));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB) == 0);
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB) == CU_DEVICE_CPU);
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB) == CU_DEVICE_INVALID);
}

/* A range whose pages differ in read-mostly is not read-mostly. */
RULE(advise_parts_differ, .source = DRIVER_API "Unified Addressing, cuMemRangeGetAttribute",
     .calls = "cuMemAdvise_v2") {
    primary_context();
    CUdeviceptr p = managed(4 * MIB);
    OK(cuMemAdvise_v2(p, 2 * MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, device0));
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4 * MIB) == 0);
    TRUE(range_value(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 2 * MIB) == 1);
}

/* The list of accessing devices is filled up with the invalid device. */
RULE(advise_accessed_by, .source = DRIVER_API "Unified Addressing, cuMemRangeGetAttribute",
     .calls = "cuMemAdvise_v2 cuMemRangeGetAttribute") {
    primary_context();
    CUdeviceptr p = managed(4 * MIB);
    int list[3] = {7, 7, 7};
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == 1,
          "the device attribute CONCURRENT_MANAGED_ACCESS is not 1");
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, device0));
    OK(cuMemRangeGetAttribute(list, sizeof list, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, 4 * MIB));
    TRUE(list[0] == 0 && list[1] == CU_DEVICE_INVALID && list[2] == CU_DEVICE_INVALID);
}

/* Only a device or the host can be named as accessing. */
RULE(advise_location_of_access, .source = DRIVER_API "Unified Addressing, cuMemAdvise", .calls = "cuMemAdvise_v2") {
    primary_context();
    CUmemLocation node = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA};
    FAILS(cuMemAdvise_v2(managed(MIB), MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, node));
}

/* A locality domain cannot be preferred. */
RULE(advise_locality_domain, .source = DRIVER_API "Unified Addressing, cuMemAdvise", .calls = "cuMemAdvise_v2") {
    primary_context();
    CUmemLocation domain = {.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN};
    FAILS(cuMemAdvise_v2(managed(MIB), MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, domain));
}

/* Device memory takes no advice. */
RULE(advise_not_managed, .source = DRIVER_API "Unified Addressing, cuMemAdvise",
     .calls = "cuMemAlloc_v2 cuMemAdvise_v2") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2(p, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, device0));
}

/* Advice that does not exist is an invalid value. */
RULE(advise_unknown, .source = DRIVER_API "Unified Addressing, cuMemAdvise", .calls = "cuMemAdvise_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2(managed(MIB), MIB, 99, device0));
}

/* The size must be 4, and for lists a multiple of 4 above 0. */
RULE(range_attribute_size, .source = DRIVER_API "Unified Addressing, cuMemRangeGetAttribute",
     .calls = "cuMemRangeGetAttribute") {
    primary_context();
    CUdeviceptr p = managed(MIB);
    int value[4];
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(value, 0, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(value, 6, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, MIB));
}

/* The range must be managed memory. */
RULE(range_attribute_not_managed, .source = DRIVER_API "Unified Addressing, cuMemRangeGetAttribute",
     .calls = "cuMemAlloc_v2 cuMemRangeGetAttribute") {
    primary_context();
    CUdeviceptr p;
    int value;
    OK(cuMemAlloc_v2(&p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, MIB));
}
