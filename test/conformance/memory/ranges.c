/* The range around an address, and pitched memory. */
#define SUBJECT "ranges"
#include "../memory.h"

/* The range around any byte of an allocation is the allocation. */
RULE(range_of_allocation, .source = DRIVER_API "Memory Management, cuMemGetAddressRange",
     .calls = "cuMemAlloc_v2 cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p, base;
    size_t size;
    OK(cuMemAlloc_v2(&p, 3 * MIB + 512));
    size_t inside[] = {0, 1, MIB, 3 * MIB + 511};
    for (int i = 0; i < 4; i++) {
        OK(cuMemGetAddressRange_v2(&base, &size, p + inside[i]));
        TRUE(base == p && size == 3 * MIB + 512);
    }
}

/* A null size is ignored. */
RULE(range_null_size, .source = DRIVER_API "Memory Management, cuMemGetAddressRange",
     .calls = "cuMemAlloc_v2 cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p, base = 0;
    OK(cuMemAlloc_v2(&p, MIB));
    OK(cuMemGetAddressRange_v2(&base, NULL, p + 100));
    TRUE(base == p);
}

/* A null base is ignored. */
RULE(range_null_base, .source = DRIVER_API "Memory Management, cuMemGetAddressRange",
     .calls = "cuMemAlloc_v2 cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p;
    size_t size = 0;
    OK(cuMemAlloc_v2(&p, MIB));
    OK(cuMemGetAddressRange_v2(NULL, &size, p + 100));
    TRUE(size == MIB);
}

/* An address of no allocation is not found. */
RULE(range_unknown, .source = DRIVER_API "Memory Management, cuMemGetAddressRange",
     .calls = "cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr base;
    size_t size;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, 0x1000));
}

/* The range of memory that was freed is not found. */
RULE(range_after_free, .source = DRIVER_API "Memory Management, cuMemGetAddressRange",
     .calls = "cuMemAlloc_v2 cuMemFree_v2 cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p, base;
    size_t size;
    OK(cuMemAlloc_v2(&p, 32 * MIB));
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, p));
}

/* The first byte behind an allocation is not part of it. */
RULE(range_past_end, .source = DRIVER_API "Memory Management, cuMemGetAddressRange",
     .calls = "cuMemAlloc_v2 cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p, base = 0;
    OK(cuMemAlloc_v2(&p, 2 * MIB));
    if (cuMemGetAddressRange_v2(&base, NULL, p + 2 * MIB) == CUDA_SUCCESS) TRUE(base != p);
}

/* The range of pitched memory holds every row. */
RULE(range_of_pitched, .source = DRIVER_API "Memory Management, cuMemGetAddressRange, cuMemAllocPitch",
     .calls = "cuMemAllocPitch_v2 cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p, base;
    size_t pitch, size;
    OK(cuMemAllocPitch_v2(&p, &pitch, 1000, 64, 4));
    OK(cuMemGetAddressRange_v2(&base, &size, p + pitch * 63));
    TRUE(base == p && size >= pitch * 63 + 1000);
}

/* The range of managed memory is the allocation. */
RULE(range_of_managed, .source = DRIVER_API "Memory Management, cuMemGetAddressRange, cuMemAllocManaged",
     .calls = "cuMemAllocManaged cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p, base;
    size_t size;
    OK(cuMemAllocManaged(&p, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemGetAddressRange_v2(&base, &size, p + MIB));
    TRUE(base == p && size == 3 * MIB);
}

/* The range of stream-ordered memory is the allocation, not the pool. */
RULE(range_of_stream_ordered, .source = DRIVER_API "Memory Management, cuMemGetAddressRange",
     .calls = "cuMemAllocAsync cuStreamSynchronize cuMemGetAddressRange_v2") {
    primary_context();
    CUdeviceptr p, base;
    size_t size;
    OK(cuMemAllocAsync(&p, 3 * MIB, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemGetAddressRange_v2(&base, &size, p + MIB));
    TRUE(base == p && size == 3 * MIB);
}

/* The pitch is not less than the width. */
RULE(pitch_holds_width, .source = DRIVER_API "Memory Management, cuMemAllocPitch",
     .calls = "cuMemAllocPitch_v2 cuMemFree_v2") {
    primary_context();
    for (size_t width = 1; width < 5000; width += 617) {
        CUdeviceptr p;
        size_t pitch = 0;
        OK(cuMemAllocPitch_v2(&p, &pitch, width, 10, 16));
        TRUE(pitch >= width);
        OK(cuMemFree_v2(p));
    }
}

/* The pitch meets what a texture of pitched memory needs. */
RULE(pitch_for_textures, .source = DRIVER_API "Memory Management, cuMemAllocPitch", .calls = "cuMemAllocPitch_v2") {
    primary_context();
    CUdeviceptr p;
    size_t pitch = 0;
    int alignment = device_attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
    OK(cuMemAllocPitch_v2(&p, &pitch, 33, 5, 4));
    TRUE(alignment > 0 && pitch % (unsigned)alignment == 0);
}

/* Elements of 4, 8 and 16 bytes are taken. */
RULE(pitch_element_sizes, .source = DRIVER_API "Memory Management, cuMemAllocPitch", .calls = "cuMemAllocPitch_v2") {
    primary_context();
    for (unsigned size = 4; size <= 16; size *= 2) {
        CUdeviceptr p;
        size_t pitch;
        OK(cuMemAllocPitch_v2(&p, &pitch, 100, 10, size));
    }
}

/* Elements of other sizes than 4, 8 and 16 bytes are refused. */
RULE(pitch_other_element_size, .source = DRIVER_API "Memory Management, cuMemAllocPitch",
     .calls = "cuMemAllocPitch_v2") {
    primary_context();
    static const unsigned sizes[] = {0, 1, 3, 5, 12, 32};
    for (int i = 0; i < 6; i++) {
        CUdeviceptr p;
        size_t pitch;
        EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&p, &pitch, 100, 10, sizes[i]));
    }
}

/* Null places for results are invalid values. */
RULE(pitch_null_results, .source = DRIVER_API "Memory Management, cuMemAllocPitch", .calls = "cuMemAllocPitch_v2") {
    primary_context();
    CUdeviceptr p;
    size_t pitch;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(NULL, &pitch, 100, 10, 4));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&p, NULL, 100, 10, 4));
}

/* More rows than the device can hold are out of memory. */
RULE(pitch_too_large, .source = DRIVER_API "Memory Management, cuMemAllocPitch", .calls = "cuMemAllocPitch_v2") {
    primary_context();
    CUdeviceptr p;
    size_t pitch;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&p, &pitch, MIB, (size_t)1 << 26, 4));
}
