/* Linear memory, and how much of it is free. */
#define SUBJECT "linear"
#include "../memory.h"

#include <stdlib.h>

/* A request of zero bytes is an invalid value. */
RULE(zero_size, .source = DRIVER_API "Memory Management, cuMemAlloc", .calls = "cuMemAlloc_v2") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&p, 0));
}

/* A null place for the result is an invalid value. */
RULE(null_result, .source = DRIVER_API "Memory Management, cuMemAlloc", .calls = "cuMemAlloc_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, 256));
}

/* Without a current context there is no allocation. */
RULE(without_context, .source = DRIVER_API "Memory Management, cuMemAlloc", .calls = "cuCtxSetCurrent cuMemAlloc_v2") {
    primary_context();
    CUdeviceptr p;
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&p, 256));
}

/* Before cuInit an allocation is not initialized. */
RULE(before_init, .source = DRIVER_API "Memory Management, cuMemAlloc; Initialization, cuInit",
     .calls = "cuMemAlloc_v2") {
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&p, 256));
}

/* An address of an allocation is aligned to 256 bytes at least. */
RULE(alignment, .source = GUIDE "Device Memory Accesses", .calls = "cuMemAlloc_v2", .recalled = true) {
    primary_context();
    static const size_t sizes[] = {1, 3, 255, 257, 4097, MIB + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr p;
        OK(cuMemAlloc_v2(&p, sizes[i]));
        TRUE(p % 256 == 0);
    }
}

/* An address of an allocation may be bound to a texture without an offset. */
RULE(texture_alignment, .source = RUNTIME_API "Texture Reference Management (removed), cudaBindTexture",
     .calls = "cuMemAlloc_v2", .recalled = true) {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 1000));
    int alignment = device_attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    TRUE(alignment > 0 && p % (unsigned)alignment == 0);
}

/* Two allocations share no byte. */
RULE(disjoint, .source = DRIVER_API "Memory Management, cuMemAlloc", .calls = "cuMemAlloc_v2") {
    primary_context();
    CUdeviceptr p[32];
    for (int i = 0; i < 32; i++) OK(cuMemAlloc_v2(&p[i], 1000));
    for (int i = 0; i < 32; i++)
        for (int j = 0; j < i; j++) TRUE(p[i] >= p[j] + 1000 || p[j] >= p[i] + 1000);
}

/* More than the device has is out of memory. */
RULE(too_large, .source = DRIVER_API "Memory Management, cuMemAlloc", .calls = "cuMemAlloc_v2") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, (size_t)1 << 46));
}

/* An allocation that failed leaves the context usable. */
RULE(after_refusal, .source = DRIVER_API "Data types used by CUDA driver, CUDA_ERROR_OUT_OF_MEMORY",
     .calls = "cuMemAlloc_v2 cuMemFree_v2 cuCtxSynchronize") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, (size_t)1 << 46));
    OK(cuMemAlloc_v2(&p, MIB));
    OK(cuMemFree_v2(p));
    OK(cuCtxSynchronize());
}

/* Nothing happens when address 0 is freed. */
RULE(free_null, .source = RUNTIME_API "Memory Management, cudaFree", .calls = "cuMemFree_v2", .recalled = true) {
    primary_context();
    OK(cuMemFree_v2(0));
}

/* An address that was freed was not returned by an allocation any more. */
RULE(free_twice, .source = DRIVER_API "Memory Management, cuMemFree", .calls = "cuMemAlloc_v2 cuMemFree_v2") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

/* Only the address that was returned can be freed, none inside. */
RULE(free_inside, .source = DRIVER_API "Memory Management, cuMemFree", .calls = "cuMemAlloc_v2 cuMemFree_v2") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 512));
    OK(cuMemFree_v2(p));
}

/* An address of the C library's heap is no device memory to free. */
RULE(free_foreign, .source = DRIVER_API "Memory Management, cuMemFree", .calls = "cuMemFree_v2") {
    primary_context();
    void *heap = malloc(4096);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2((CUdeviceptr)(uintptr_t)heap));
}

/* Page-locked host memory is not freed as device memory. */
RULE(free_pinned, .source = DRIVER_API "Memory Management, cuMemFree",
     .calls = "cuMemAllocHost_v2 cuMemFree_v2 cuMemFreeHost") {
    primary_context();
    void *p;
    OK(cuMemAllocHost_v2(&p, 4096));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2((CUdeviceptr)(uintptr_t)p));
    OK(cuMemFreeHost(p));
}

/* A reserved range of addresses is not freed as device memory. */
RULE(free_reserved, .source = DRIVER_API "Memory Management, cuMemFree",
     .calls = "cuMemAddressReserve cuMemFree_v2 cuMemAddressFree") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuMemAddressFree(p, 2 * MIB));
}

/* Memory of the stream-ordered allocator may be freed with cuMemFree. */
RULE(free_stream_ordered, .source = DRIVER_API "Memory Management, cuMemFree",
     .calls = "cuMemAllocAsync cuStreamSynchronize cuMemFree_v2") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAllocAsync(&p, MIB, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

/* Pitched memory is freed with cuMemFree. */
RULE(free_pitched, .source = DRIVER_API "Memory Management, cuMemFree", .calls = "cuMemAllocPitch_v2 cuMemFree_v2") {
    primary_context();
    CUdeviceptr p;
    size_t pitch;
    OK(cuMemAllocPitch_v2(&p, &pitch, 100, 100, 4));
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

/* A context that is destroyed gives its memory back. */
RULE(freed_with_context, .source = DRIVER_API "Context Management, cuCtxDestroy",
     .calls = "cuMemGetInfo_v2 cuMemAlloc_v2 cuCtxDestroy_v2 cuCtxSetCurrent cuMemGetAddressRange_v2") {
    primary_context();
    CUcontext mine = current_context(), other;
    CUdeviceptr p;
    size_t free0, free1, free2, total;
    other = new_context();
    OK(cuMemGetInfo_v2(&free0, &total));
    OK(cuMemAlloc_v2(&p, 64 * MIB));
    OK(cuMemGetInfo_v2(&free1, &total));
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxSetCurrent(mine));
    OK(cuMemGetInfo_v2(&free2, &total));
    TRUE(free1 + 64 * MIB <= free0);
    TRUE(free2 >= free1 + 64 * MIB);
    CUdeviceptr base;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, NULL, p));
}

/* Free memory is not more than there is. */
RULE(info_free_within_total, .source = DRIVER_API "Memory Management, cuMemGetInfo",
     .calls = "cuMemGetInfo_v2 cuDeviceTotalMem_v2") {
    primary_context();
    size_t free_bytes = 0, total = 0, device;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    OK(cuDeviceTotalMem_v2(&device, 0));
    TRUE(total > 0 && free_bytes <= total && total <= device);
}

/* Free memory falls with an allocation and rises when it is freed. */
RULE(info_follows_allocations, .source = DRIVER_API "Memory Management, cuMemGetInfo",
     .calls = "cuMemGetInfo_v2 cuMemAlloc_v2 cuMemFree_v2") {
    primary_context();
    size_t before, during, after, total;
    CUdeviceptr p;
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuMemAlloc_v2(&p, 64 * MIB));
    OK(cuMemGetInfo_v2(&during, &total));
    OK(cuMemFree_v2(p));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(during + 64 * MIB <= before && after >= during + 64 * MIB);
}

/* Free memory is a question to the current context. */
RULE(info_without_context, .source = DRIVER_API "Memory Management, cuMemGetInfo",
     .calls = "cuCtxSetCurrent cuMemGetInfo_v2") {
    primary_context();
    size_t free_bytes, total;
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemGetInfo_v2(&free_bytes, &total));
}

/* Before cuInit there is no answer about memory. */
RULE(info_before_init, .source = DRIVER_API "Memory Management, cuMemGetInfo", .calls = "cuMemGetInfo_v2") {
    size_t free_bytes, total;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemGetInfo_v2(&free_bytes, &total));
}

/* With a null free, the total is refused or the same as with both. */
RULE(info_null_free, .source = DRIVER_API "Memory Management, cuMemGetInfo", .calls = "cuMemGetInfo_v2") {
    primary_context();
    size_t free_bytes, total, alone = 0;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CUresult result = cuMemGetInfo_v2(NULL, &alone);
    TRUE(result == CUDA_ERROR_INVALID_VALUE || (result == CUDA_SUCCESS && alone == total));
}

/* With a null total, free memory is refused or the same as with both. */
RULE(info_null_total, .source = DRIVER_API "Memory Management, cuMemGetInfo", .calls = "cuMemGetInfo_v2") {
    primary_context();
    size_t free_bytes, total, alone = 0;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CUresult result = cuMemGetInfo_v2(&alone, NULL);
    TRUE(result == CUDA_ERROR_INVALID_VALUE || (result == CUDA_SUCCESS && alone <= total && alone + MIB >= free_bytes));
}

/* The total is of the device and does not change with allocations. */
RULE(info_same_in_threads, .source = DRIVER_API "Memory Management, cuMemGetInfo",
     .calls = "cuMemGetInfo_v2 cuMemAlloc_v2") {
    primary_context();
    size_t free_bytes, before, after;
    CUdeviceptr p;
    OK(cuMemGetInfo_v2(&free_bytes, &before));
    OK(cuMemAlloc_v2(&p, 16 * MIB));
    OK(cuMemGetInfo_v2(&free_bytes, &after));
    TRUE(before == after);
}
