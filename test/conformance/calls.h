/* Entry points that the rules call, by the names that the driver exports (a name without _v2 is the first form). */
#pragma once

#define DRIVER_CALLS(CALL)                                            \
    CALL(cuInit, (unsigned))                                          \
    CALL(cuDriverGetVersion, (int *))                                 \
    CALL(cuGetErrorName, (CUresult, const char **))                   \
    CALL(cuGetErrorString, (CUresult, const char **))                 \
    CALL(cuDeviceGet, (CUdevice *, int))                              \
    CALL(cuDeviceGetCount, (int *))                                   \
    CALL(cuDeviceGetAttribute, (int *, int, CUdevice))                \
    CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))           \
    CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice))                    \
    CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))                      \
    CALL(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))   \
    CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice, unsigned))         \
    CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))           \
    CALL(cuCtxDestroy_v2, (CUcontext))                                \
    CALL(cuCtxPushCurrent_v2, (CUcontext))                            \
    CALL(cuCtxPopCurrent_v2, (CUcontext *))                           \
    CALL(cuCtxSetCurrent, (CUcontext))                                \
    CALL(cuCtxGetCurrent, (CUcontext *))                              \
    CALL(cuCtxGetDevice, (CUdevice *))                                \
    CALL(cuCtxSynchronize, (void))                                    \
    CALL(cuStreamCreate, (CUstream *, unsigned))                      \
    CALL(cuStreamQuery, (CUstream))                                   \
    CALL(cuStreamSynchronize, (CUstream))                             \
    CALL(cuEventCreate, (CUevent *, unsigned))                        \
    CALL(cuLaunchHostFunc, (CUstream, CUhostFn, void *))              \
    CALL(cuModuleLoadData, (CUmodule *, const void *))                \
    CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))                      \
    CALL(cuMemFree_v2, (CUdeviceptr))

#define CALL(name, parameters) extern CUresult(*name) parameters;
DRIVER_CALLS(CALL)
#undef CALL
