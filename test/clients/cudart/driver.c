/* Where the driver is, which device a thread works on, and how calls ended. The driver is opened and asked as NVIDIA's
 * runtime does it: dlopen by name, cuGetProcAddress by dlsym, everything else by cuGetProcAddress. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cudart.h"

struct rt_driver rt_driver;

static rt_result started = RT_ERROR_INSUFFICIENT_DRIVER;
static atomic_ulong not_supported;
static _Thread_local rt_result last_error;
static _Thread_local int chosen_device;
static pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;
static abi_context primaries[MAX_DEVICES];

static void start(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library) rt_driver.look_up = dlsym(library, "cuGetProcAddress_v2");
    if (!rt_driver.look_up) return;
#define FIND(name, version, arguments) \
    rt_driver.look_up(#name, (void **)&rt_driver.name, version, ABI_GPA_LEGACY_STREAM, NULL);
    RT_DRIVER(FIND)
#undef FIND
    started = DRIVER(cuInit, 0);
}

rt_result rt_start(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return started;
}

rt_result rt_primary(int device, abi_context *context) {
    if (device < 0 || device >= MAX_DEVICES) return ABI_ERROR_INVALID_DEVICE;
    rt_result result = ABI_SUCCESS;
    pthread_mutex_lock(&primaries_lock);
    if (!primaries[device]) result = DRIVER(cuDevicePrimaryCtxRetain, &primaries[device], device);
    *context = primaries[device];
    pthread_mutex_unlock(&primaries_lock);
    return result;
}

rt_result rt_enter(void) {
    abi_context context = NULL;
    rt_result result = rt_start();
    if (result == ABI_SUCCESS) result = DRIVER(cuCtxGetCurrent, &context);
    if (result != ABI_SUCCESS || context) return result;
    result = rt_primary(chosen_device, &context);
    return result == ABI_SUCCESS ? DRIVER(cuCtxSetCurrent, context) : result;
}

rt_result rt_answer(rt_result result) {
    if (result == ABI_ERROR_NOT_SUPPORTED) atomic_fetch_add(&not_supported, 1);
    if (result != ABI_SUCCESS) last_error = result;
    return result;
}

/* Ours alone: how many calls have answered 801 so far. */
EXPORT unsigned long cotenantStandInNotSupported(void) {
    return atomic_load(&not_supported);
}

EXPORT rt_result cudaGetLastError(void) {
    rt_result result = last_error;
    last_error = ABI_SUCCESS;
    return result;
}
EXPORT rt_result cudaPeekAtLastError(void) {
    return last_error;
}

EXPORT rt_result cudaSetDevice(int device) {
    abi_context context;
    int count = 0;
    rt_result result = rt_start();
    if (result == ABI_SUCCESS) result = DRIVER(cuDeviceGetCount, &count);
    if (result == ABI_SUCCESS && (device < 0 || device >= count)) result = ABI_ERROR_INVALID_DEVICE;
    if (result == ABI_SUCCESS) result = rt_primary(device, &context);
    if (result == ABI_SUCCESS) result = DRIVER(cuCtxSetCurrent, context);
    if (result == ABI_SUCCESS) chosen_device = device;
    return rt_answer(result);
}
EXPORT rt_result cudaGetDevice(int *device) {
    abi_context context = NULL;
    rt_result result = rt_start();
    if (result == ABI_SUCCESS && !device) result = ABI_ERROR_INVALID_VALUE;
    if (result == ABI_SUCCESS) result = DRIVER(cuCtxGetCurrent, &context);
    if (result == ABI_SUCCESS && context) result = DRIVER(cuCtxGetDevice, device);
    else if (result == ABI_SUCCESS) *device = chosen_device;
    return rt_answer(result);
}

/* What a driver of this version has, for programs that call it by themselves. */
static rt_result entry_point(const char *name, void **function, unsigned version, unsigned long long flags, int *how) {
    int found = ABI_GPA_SYMBOL_NOT_FOUND;
    rt_result result = rt_start();
    if (result == ABI_SUCCESS && (!name || !function)) result = ABI_ERROR_INVALID_VALUE;
    if (result == ABI_SUCCESS) result = rt_driver.look_up(name, function, (int)version, flags, &found);
    if (result == ABI_ERROR_NOT_FOUND) {
        *function = NULL;
        result = ABI_SUCCESS;
    }
    if (how) *how = found;
    return rt_answer(result);
}
EXPORT rt_result cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *how) {
    return entry_point(name, function, RUNTIME_VERSION, flags, how);
}
EXPORT rt_result cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                  unsigned long long flags, int *how) {
    return entry_point(name, function, version, flags, how);
}

/* ---- how results are called ---- */

static const struct {
    rt_result code;
    const char *name, *text;
} RESULTS[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {4, "cudaErrorCudartUnloading", "driver shutting down"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {709, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {903, "cudaErrorStreamCaptureUnmatched", "the capture was not initiated in this stream"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {999, "cudaErrorUnknown", "unknown error"},
};

EXPORT const char *cudaGetErrorName(rt_result code) {
    for (size_t i = 0; i < sizeof RESULTS / sizeof *RESULTS; i++) {
        if (RESULTS[i].code == code) return RESULTS[i].name;
    }
    return "unrecognized error code";
}
EXPORT const char *cudaGetErrorString(rt_result code) {
    for (size_t i = 0; i < sizeof RESULTS / sizeof *RESULTS; i++) {
        if (RESULTS[i].code == code) return RESULTS[i].text;
    }
    return "unrecognized error code";
}
