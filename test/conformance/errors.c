/* Which error is answered: before cuInit, without a context, for places that are missing; and the names of errors. */
#define SUBJECT "errors"
#include <string.h>

#include "rules.h"

/* Driver API, cuInit: before it, any function of the driver answers that it is not initialized. */
#define BEFORE_INIT(name, call)                                               \
    RULE(before_init_##name, .source = DRIVER_API "cuInit", .calls = #name) { \
        EXPECT(CUDA_ERROR_NOT_INITIALIZED, call);                             \
    }
static CUcontext context;
static CUstream stream;
static CUevent event;
static CUdeviceptr pointer;
static CUgraph graph;
static CUmodule module;
static int number;
static unsigned flags;
static size_t size;
BEFORE_INIT(cuDeviceGet, cuDeviceGet(&number, 0))
BEFORE_INIT(cuDeviceGetCount, cuDeviceGetCount(&number))
BEFORE_INIT(cuDeviceGetAttribute, cuDeviceGetAttribute(&number, 1, 0))
BEFORE_INIT(cuDeviceTotalMem_v2, cuDeviceTotalMem_v2(&size, 0))
BEFORE_INIT(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&context, 0))
BEFORE_INIT(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState(0, &flags, &number))
BEFORE_INIT(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset_v2(0))
BEFORE_INIT(cuCtxCreate_v2, cuCtxCreate_v2(&context, 0, 0))
BEFORE_INIT(cuCtxGetCurrent, cuCtxGetCurrent(&context))
BEFORE_INIT(cuCtxSetCurrent, cuCtxSetCurrent(NULL))
BEFORE_INIT(cuCtxPopCurrent_v2, cuCtxPopCurrent_v2(&context))
BEFORE_INIT(cuCtxSynchronize, cuCtxSynchronize())
BEFORE_INIT(cuMemAlloc_v2, cuMemAlloc_v2(&pointer, 1))
BEFORE_INIT(cuMemGetInfo_v2, cuMemGetInfo_v2(&size, &size))
BEFORE_INIT(cuStreamCreate, cuStreamCreate(&stream, 0))
BEFORE_INIT(cuEventCreate, cuEventCreate(&event, 0))
BEFORE_INIT(cuModuleLoadData, cuModuleLoadData(&module, ""))
BEFORE_INIT(cuGraphCreate, cuGraphCreate(&graph, 0))

#define WITHOUT_CONTEXT(name, call)                                                                   \
    RULE(without_context_##name, .source = DRIVER_API "CUDA_ERROR_INVALID_CONTEXT", .calls = #name) { \
        start_driver();                                                                               \
        EXPECT(CUDA_ERROR_INVALID_CONTEXT, call);                                                     \
    }
WITHOUT_CONTEXT(cuMemAlloc_v2, cuMemAlloc_v2(&pointer, 1))
WITHOUT_CONTEXT(cuMemAllocManaged, cuMemAllocManaged(&pointer, 1, 1))
WITHOUT_CONTEXT(cuMemGetInfo_v2, cuMemGetInfo_v2(&size, &size))
WITHOUT_CONTEXT(cuMemsetD32_v2, cuMemsetD32_v2(16, 0, 1))
WITHOUT_CONTEXT(cuMemAllocAsync, cuMemAllocAsync(&pointer, 1, NULL))
WITHOUT_CONTEXT(cuStreamQuery, cuStreamQuery(NULL))
WITHOUT_CONTEXT(cuStreamSynchronize, cuStreamSynchronize(NULL))
WITHOUT_CONTEXT(cuModuleLoadData, cuModuleLoadData(&module, ""))
WITHOUT_CONTEXT(cuCtxGetLimit, cuCtxGetLimit(&size, 0))
WITHOUT_CONTEXT(cuCtxGetCacheConfig, cuCtxGetCacheConfig(&number))

#define WITHOUT_PLACE(name, call)                                                                         \
    RULE(without_place_##name, .source = DRIVER_API "CUDA_ERROR_INVALID_VALUE; " #name, .calls = #name) { \
        primary_context();                                                                                \
        EXPECT(CUDA_ERROR_INVALID_VALUE, call);                                                           \
    }
WITHOUT_PLACE(cuDeviceGet, cuDeviceGet(NULL, 0))
WITHOUT_PLACE(cuDeviceGetCount, cuDeviceGetCount(NULL))
WITHOUT_PLACE(cuDeviceGetAttribute, cuDeviceGetAttribute(NULL, 1, 0))
WITHOUT_PLACE(cuDeviceTotalMem_v2, cuDeviceTotalMem_v2(NULL, 0))
WITHOUT_PLACE(cuCtxGetCurrent, cuCtxGetCurrent(NULL))
WITHOUT_PLACE(cuMemAlloc_v2, cuMemAlloc_v2(NULL, 1))
WITHOUT_PLACE(cuModuleLoadData, cuModuleLoadData(&module, NULL))
WITHOUT_PLACE(cuDriverGetVersion, cuDriverGetVersion(NULL))
WITHOUT_PLACE(cuCtxGetFlags, cuCtxGetFlags(NULL))
WITHOUT_PLACE(cuCtxGetLimit, cuCtxGetLimit(NULL, 0))

#define OF_NO_DEVICE(name, call)                                                                          \
    RULE(of_no_device_##name, .source = DRIVER_API "CUDA_ERROR_INVALID_DEVICE; " #name, .calls = #name) { \
        start_driver();                                                                                   \
        EXPECT(CUDA_ERROR_INVALID_DEVICE, call);                                                          \
    }
OF_NO_DEVICE(cuDeviceGet, cuDeviceGet(&number, 99))
OF_NO_DEVICE(cuDeviceGetAttribute, cuDeviceGetAttribute(&number, 1, 99))
OF_NO_DEVICE(cuDeviceTotalMem_v2, cuDeviceTotalMem_v2(&size, 99))

RULE(attribute_of_no_kind, .source = DRIVER_API "cuDeviceGetAttribute", .calls = "cuDeviceGetAttribute") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&number, 100000, 0));
}

RULE(init_takes_no_flags, .source = DRIVER_API "cuInit", .calls = "cuInit") {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
}

RULE(init_again, .source = DRIVER_API "cuInit", .calls = "cuInit") {
    new_context();
    OK(cuInit(0));
    new_memory(1);
}

RULE(version_without_init, .source = DRIVER_API "cuDriverGetVersion", .calls = "cuDriverGetVersion", .recalled = true) {
    int version = 0;
    OK(cuDriverGetVersion(&version));
    TRUE(version >= 11000 && version % 10 == 0);
}

RULE(allocation_of_nothing, .source = DRIVER_API "cuMemAlloc", .calls = "cuMemAlloc_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&pointer, 0));
}

RULE(allocation_beyond_the_device, .source = DRIVER_API "CUDA_ERROR_OUT_OF_MEMORY", .calls = "cuMemAlloc_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&pointer, (size_t)1 << 50));
    new_memory(1);
}

RULE(module_of_no_image, .source = DRIVER_API "cuModuleLoadData", .calls = "cuModuleLoadData") {
    primary_context();
    ONE_OF(cuModuleLoadData(&module, "this is no image"), CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX,
           CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

RULE(module_of_no_file, .source = DRIVER_API "cuModuleLoad", .calls = "cuModuleLoad") {
    primary_context();
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/there/is/no/such.ptx"));
}

static const struct {
    CUresult result;
    const char *name;
} NAMES[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
};

RULE(each_has_its_name, .source = DRIVER_API "cuGetErrorName", .calls = "cuGetErrorName") {
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++) {
        const char *name = NULL;
        OK(cuGetErrorName(NAMES[i].result, &name));
        TRUE(name && !strcmp(name, NAMES[i].name));
    }
}

RULE(each_has_a_description, .source = DRIVER_API "cuGetErrorString", .calls = "cuGetErrorString") {
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++) {
        const char *text = NULL;
        OK(cuGetErrorString(NAMES[i].result, &text));
        TRUE(text && *text);
    }
}

static int no_result = 12345; /* an int in the binary interface */
RULE(name_of_none, .source = DRIVER_API "cuGetErrorName", .calls = "cuGetErrorName") {
    const char *name = "something";
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)no_result, &name));
    TRUE(name == NULL);
}

RULE(description_of_none, .source = DRIVER_API "cuGetErrorString", .calls = "cuGetErrorString") {
    const char *text = "something";
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorString((CUresult)no_result, &text));
    TRUE(text == NULL);
}
