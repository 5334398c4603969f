/* Arrays, mipmapped arrays, and textures and surfaces of memory. */
#define SUBJECT "arrays"
#include "../memory.h"

#include <string.h>

static CUresult create(CUarray *array, size_t width, size_t height, int format, unsigned channels) {
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = width, .Height = height, .Format = format, .NumChannels = channels};
    return cuArrayCreate_v2(array, &shape);
}

static CUresult create_3d(CUarray *array, size_t width, size_t height, size_t depth, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = width,
                                     .Height = height,
                                     .Depth = depth,
                                     .Format = CU_AD_FORMAT_FLOAT,
                                     .NumChannels = 1,
                                     .Flags = flags};
    return cuArray3DCreate_v2(array, &shape);
}

static CUarray plane(size_t width, size_t height) {
    CUarray array = NULL;
    create(&array, width, height, CU_AD_FORMAT_FLOAT, 1);
    return array;
}

/* The shape of an array is the one it was made with. */
RULE(described, .source = DRIVER_API "Memory Management, cuArrayGetDescriptor", .calls = "cuArrayGetDescriptor_v2") {
    primary_context();
    CUDA_ARRAY_DESCRIPTOR got;
    OK(cuArrayGetDescriptor_v2(&got, plane(100, 50)));
    TRUE(got.Width == 100 && got.Height == 50 && got.Format == CU_AD_FORMAT_FLOAT && got.NumChannels == 1);
}

/* The shape of a layered array is the one it was made with. */
RULE(described_3d, .source = DRIVER_API "Memory Management, cuArray3DGetDescriptor",
     .calls = "cuArray3DGetDescriptor_v2") {
    primary_context();
    CUDA_ARRAY3D_DESCRIPTOR got;
    CUarray array;
    OK(create_3d(&array, 64, 32, 6, CUDA_ARRAY3D_LAYERED));
    OK(cuArray3DGetDescriptor_v2(&got, array));
    TRUE(got.Width == 64 && got.Height == 32 && got.Depth == 6 && got.Flags == CUDA_ARRAY3D_LAYERED);
}

/* An element has 1, 2 or 4 channels. */
RULE(channels, .source = DRIVER_API "Memory Management, cuArrayCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    for (unsigned channels = 0; channels <= 5; channels++) {
        if (channels == 1 || channels == 2 || channels == 4)
            OK(create(&array, 64, 64, CU_AD_FORMAT_UNSIGNED_INT8, channels));
        else EXPECT(CUDA_ERROR_INVALID_VALUE, create(&array, 64, 64, CU_AD_FORMAT_UNSIGNED_INT8, channels));
    }
}

/* A format that does not exist is an invalid value. */
RULE(format, .source = DRIVER_API "Memory Management, cuArrayCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&array, 64, 64, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&array, 64, 64, 0x7777, 1));
}

/* The width is at least 1. */
RULE(no_width, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&array, 0, 64, CU_AD_FORMAT_FLOAT, 1));
}

/* A 2D array is not wider than the device reports. */
RULE(too_wide, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    size_t most = (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH);
    OK(create(&array, most, 1, CU_AD_FORMAT_UNSIGNED_INT8, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&array, most + 1, 1, CU_AD_FORMAT_UNSIGNED_INT8, 1));
}

/* A 1D array is not wider than the device reports. */
RULE(too_wide_1d, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    size_t most = (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH);
    EXPECT(CUDA_ERROR_INVALID_VALUE, create(&array, most + 1, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1));
}

/* A 3D array is not deeper than the device reports. */
RULE(too_deep, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    size_t most = (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH);
    size_t other = (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE);
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 1, 1, (most > other ? most : other) + 1, 0));
}

/* A layered array has no more layers than the device reports. */
RULE(too_many_layers, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    size_t most = (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS);
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 4, 4, most + 1, CUDA_ARRAY3D_LAYERED));
}

/* A depth without a height needs the flag of layers. */
RULE(depth_without_height, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 64, 0, 4, 0));
    OK(create_3d(&array, 64, 0, 4, CUDA_ARRAY3D_LAYERED));
}

/* A cubemap is square and has six layers. */
RULE(cubemap, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    OK(create_3d(&array, 64, 64, 6, CUDA_ARRAY3D_CUBEMAP));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 64, 32, 6, CUDA_ARRAY3D_CUBEMAP));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 64, 64, 5, CUDA_ARRAY3D_CUBEMAP));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 64, 64, 12, CUDA_ARRAY3D_CUBEMAP));
}

/* A layered cubemap has a multiple of six layers. */
RULE(cubemap_layered, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    OK(create_3d(&array, 64, 64, 12, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 64, 64, 13, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED));
}

/* Texture gather is for 2D arrays. */
RULE(gather_2d, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    OK(create_3d(&array, 64, 64, 0, CUDA_ARRAY3D_TEXTURE_GATHER));
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 64, 64, 4, CUDA_ARRAY3D_TEXTURE_GATHER));
}

/* A flag that does not exist is an invalid value. */
RULE(unknown_flag, .source = DRIVER_API "Memory Management, cuArray3DCreate", .calls = "cuInit") {
    primary_context();
    CUarray array;
    EXPECT(CUDA_ERROR_INVALID_VALUE, create_3d(&array, 64, 64, 0, 0x40000000));
}

/* Null arguments are invalid values. */
RULE(array_null, .source = DRIVER_API "Memory Management, cuArrayCreate", .calls = "cuArrayCreate_v2") {
    primary_context();
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 4, .Height = 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate_v2(NULL, &shape));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate_v2(&array, NULL));
}

/* An array needs a current context. */
RULE(without_context, .source = DRIVER_API "Memory Management, cuArrayCreate", .calls = "cuCtxSetCurrent") {
    primary_context();
    CUarray array;
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, create(&array, 4, 4, CU_AD_FORMAT_FLOAT, 1));
}

/* An array takes its elements' memory and gives it back. */
RULE(takes_memory, .source = DRIVER_API "Memory Management, cuArrayCreate, cuArrayDestroy",
     .calls = "cuMemGetInfo_v2 cuArrayDestroy") {
    primary_context();
    size_t before, held, after, total;
    OK(cuMemGetInfo_v2(&before, &total));
    CUarray array = plane(4096, 4096);
    TRUE(array);
    OK(cuMemGetInfo_v2(&held, &total));
    OK(cuArrayDestroy(array));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(held + 64 * MIB <= before && after >= held + 64 * MIB);
}

/* A null array is an invalid handle. */
RULE(destroy_null, .source = DRIVER_API "Memory Management, cuArrayDestroy", .calls = "cuArrayDestroy") {
    primary_context();
    ONE_OF(cuArrayDestroy(NULL), CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE);
}

/* Rows go to an array and come back. */
RULE(copied, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2") {
    primary_context();
    CUarray array = plane(16, 4);
    unsigned out[64], back[64] = {0};
    for (int i = 0; i < 64; i++) out[i] = (unsigned)i;
    CUDA_MEMCPY2D to = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = out,
                        .srcPitch = 64,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = array,
                        .WidthInBytes = 64,
                        .Height = 4};
    OK(cuMemcpy2D_v2(&to));
    CUDA_MEMCPY2D from = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                          .srcArray = array,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = back,
                          .dstPitch = 64,
                          .WidthInBytes = 64,
                          .Height = 4};
    OK(cuMemcpy2D_v2(&from));
    TRUE(!memcmp(out, back, sizeof out));
}

/* A copy behind the rows or columns of an array is an invalid value. */
RULE(copy_beyond, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2") {
    primary_context();
    CUarray array = plane(16, 4);
    char from[4096];
    CUDA_MEMCPY2D to = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = from,
                        .srcPitch = 128,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = array,
                        .WidthInBytes = 68,
                        .Height = 4};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&to));
    to.WidthInBytes = 64;
    to.Height = 5;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&to));
}

/* An array that is not sparse has no sparse properties. */
RULE(sparse_properties, .source = DRIVER_API "Memory Management, cuArrayGetSparseProperties",
     .calls = "cuArrayGetSparseProperties") {
    primary_context();
    CUDA_ARRAY_SPARSE_PROPERTIES properties;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&properties, plane(64, 64)));
}

/* A sparse array takes no memory and reports its tiles. */
RULE(sparse, .source = DRIVER_API "Memory Management, cuArrayGetSparseProperties",
     .calls = "cuMemGetInfo_v2 cuArrayGetSparseProperties") {
    primary_context();
    CUDA_ARRAY_SPARSE_PROPERTIES properties;
    CUarray array;
    size_t before, after, total;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED) == 1,
          "the device attribute SPARSE_CUDA_ARRAY_SUPPORTED is not 1");
    OK(cuMemGetInfo_v2(&before, &total));
    OK(create_3d(&array, 8192, 8192, 0, CUDA_ARRAY3D_SPARSE));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(after + 32 * MIB >= before);
    OK(cuArrayGetSparseProperties(&properties, array));
    TRUE(properties.tileExtent.width > 0 && properties.tileExtent.height > 0 && properties.miptailFirstLevel == 0);
}

/* Only an array of deferred mapping reports what it requires. */
RULE(requirements, .source = DRIVER_API "Memory Management, cuArrayGetMemoryRequirements",
     .calls = "cuArrayGetMemoryRequirements") {
    primary_context();
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    CUarray array;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetMemoryRequirements(&needs, plane(64, 64), 0));
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED) == 1,
          "the device attribute DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED is not 1");
    OK(create_3d(&array, 1024, 1024, 0, CUDA_ARRAY3D_DEFERRED_MAPPING));
    OK(cuArrayGetMemoryRequirements(&needs, array, 0));
    TRUE(needs.size >= 4 * MIB && needs.alignment > 0);
}

/* An array of a format without planes has none. */
RULE(plane_of_simple, .source = DRIVER_API "Memory Management, cuArrayGetPlane", .calls = "cuArrayGetPlane") {
    primary_context();
    CUarray part;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&part, plane(64, 64), 0));
}

/* An NV12 array has a plane of its size and one of half of it. */
RULE(planes, .source = DRIVER_API "Memory Management, cuArrayGetPlane",
     .calls = "cuArray3DCreate_v2 cuArrayGetPlane cuArray3DGetDescriptor_v2") {
    primary_context();
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_NV12, .NumChannels = 3}, got;
    CUarray array, part;
    if (cuArray3DCreate_v2(&array, &shape)) NEEDS(!"this shape of NV12", "needs an NV12 array");
    OK(cuArrayGetPlane(&part, array, 0));
    OK(cuArray3DGetDescriptor_v2(&got, part));
    TRUE(got.Width == 64 && got.Height == 64 && got.Format == CU_AD_FORMAT_UNSIGNED_INT8 && got.NumChannels == 1);
    OK(cuArrayGetPlane(&part, array, 1));
    OK(cuArray3DGetDescriptor_v2(&got, part));
    TRUE(got.Width == 32 && got.Height == 32 && got.NumChannels == 2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetPlane(&part, array, 3));
}

static CUresult mipmapped(CUmipmappedArray *array, size_t width, size_t height, unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = width, .Height = height, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuMipmappedArrayCreate(array, &shape, levels);
}

/* Each level has half the extents of the one before, and at least 1. */
RULE(mipmap_levels, .source = DRIVER_API "Memory Management, cuMipmappedArrayGetLevel",
     .calls = "cuMipmappedArrayGetLevel cuArray3DGetDescriptor_v2") {
    primary_context();
    CUmipmappedArray array;
    CUarray level;
    CUDA_ARRAY3D_DESCRIPTOR got;
    OK(mipmapped(&array, 64, 4, 7));
    for (unsigned i = 0; i < 7; i++) {
        OK(cuMipmappedArrayGetLevel(&level, array, i));
        OK(cuArray3DGetDescriptor_v2(&got, level));
        TRUE(got.Width == 64u >> i && got.Height == (4u >> i ? 4u >> i : 1));
    }
}

/* A level behind the last is an invalid value. */
RULE(mipmap_level_beyond, .source = DRIVER_API "Memory Management, cuMipmappedArrayGetLevel",
     .calls = "cuMipmappedArrayGetLevel") {
    primary_context();
    CUmipmappedArray array;
    CUarray level;
    OK(mipmapped(&array, 64, 64, 3));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, array, 3));
}

/* More levels than the extents have are clamped. */
RULE(mipmap_levels_clamped, .source = DRIVER_API "Memory Management, cuMipmappedArrayCreate",
     .calls = "cuMipmappedArrayGetLevel") {
    primary_context();
    CUmipmappedArray array;
    CUarray level;
    OK(mipmapped(&array, 64, 64, 50));
    OK(cuMipmappedArrayGetLevel(&level, array, 6));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, array, 7));
}

/* A level of a mipmapped array does not report sparse properties. */
RULE(mipmap_sparse_of_level, .source = DRIVER_API "Memory Management, cuArrayGetSparseProperties",
     .calls = "cuMipmappedArrayCreate cuMipmappedArrayGetSparseProperties cuMipmappedArrayGetLevel "
              "cuArrayGetSparseProperties") {
    primary_context();
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SPARSE};
    CUDA_ARRAY_SPARSE_PROPERTIES properties;
    CUmipmappedArray array;
    CUarray level;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED) == 1,
          "the device attribute SPARSE_CUDA_ARRAY_SUPPORTED is not 1");
    OK(cuMipmappedArrayCreate(&array, &shape, 4));
    OK(cuMipmappedArrayGetSparseProperties(&properties, array));
    OK(cuMipmappedArrayGetLevel(&level, array, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&properties, level));
}
