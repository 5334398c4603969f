/* Textures and surfaces of memory. */
#define SUBJECT "textures"
#include "../memory.h"

static CUresult create(CUarray *array, size_t width, size_t height, int format, unsigned channels) {
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = width, .Height = height, .Format = format, .NumChannels = channels};
    return cuArrayCreate_v2(array, &shape);
}

static CUarray plane(size_t width, size_t height) {
    CUarray array = NULL;
    create(&array, width, height, CU_AD_FORMAT_FLOAT, 1);
    return array;
}

/* A texture reports the array it was made of. */
RULE(of_array, .source = DRIVER_API "Texture Object Management, cuTexObjectCreate, cuTexObjectGetResourceDesc",
     .calls = "cuTexObjectCreate cuTexObjectGetResourceDesc cuTexObjectDestroy") {
    primary_context();
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY}, got;
    CUDA_TEXTURE_DESC sampling = {
        .addressMode = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP}};
    CUtexObject texture;
    resource.res.array.hArray = plane(64, 64);
    OK(cuTexObjectCreate(&texture, &resource, &sampling, NULL));
    OK(cuTexObjectGetResourceDesc(&got, texture));
    TRUE(got.resType == CU_RESOURCE_TYPE_ARRAY && got.res.array.hArray == resource.res.array.hArray);
    OK(cuTexObjectDestroy(texture));
}

/* Linear memory of a texture is aligned as the device reports. */
RULE(linear_alignment, .source = DRIVER_API "Texture Object Management, cuTexObjectCreate",
     .calls = "cuMemAlloc_v2 cuTexObjectCreate") {
    primary_context();
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR};
    CUDA_TEXTURE_DESC sampling = {.addressMode = {CU_TR_ADDRESS_MODE_CLAMP}};
    CUtexObject texture;
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 65536));
    resource.res.linear.devPtr = p;
    resource.res.linear.format = CU_AD_FORMAT_FLOAT;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = 4096;
    OK(cuTexObjectCreate(&texture, &resource, &sampling, NULL));
    resource.res.linear.devPtr = p + 4;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &resource, &sampling, NULL));
}

/* The flags of a resource must be zero. */
RULE(flags, .source = DRIVER_API "Texture Object Management, cuTexObjectCreate", .calls = "cuTexObjectCreate") {
    primary_context();
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .flags = 1};
    CUDA_TEXTURE_DESC sampling = {.addressMode = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP}};
    CUtexObject texture;
    resource.res.array.hArray = plane(64, 64);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&texture, &resource, &sampling, NULL));
}

/* A surface is made of an array only. */
RULE(surface_of_linear, .source = DRIVER_API "Surface Object Management, cuSurfObjectCreate",
     .calls = "cuMemAlloc_v2 cuSurfObjectCreate") {
    primary_context();
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR};
    CUsurfObject surface;
    OK(cuMemAlloc_v2(&resource.res.linear.devPtr, 65536));
    resource.res.linear.format = CU_AD_FORMAT_FLOAT;
    resource.res.linear.numChannels = 1;
    resource.res.linear.sizeInBytes = 4096;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &resource));
}
