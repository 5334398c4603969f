/* The inside of a stand-in for NVIDIA's CUDA runtime, for tests alone: what programs built for libcudart.so.12 call,
 * over the driver's public interface. NVIDIA's own has the driver prove that it is genuine, which the simulated one
 * cannot. Written from the runtime's public documentation; layouts are facts in our own words. What is not here, or
 * what the driver does not do, answers 801, and is counted. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../native/abi/cuda.h"

#define EXPORT __attribute__((visibility("default")))

/* The runtime's results have the numbers of the driver's where both have them. */
typedef int rt_result;
enum { RT_ERROR_INSUFFICIENT_DRIVER = 35, RT_ERROR_INVALID_DEVICE_FUNCTION = 98 };

#define RUNTIME_VERSION 12080
#define MAX_DEVICES 64

typedef struct {
    unsigned x, y, z;
} rt_dim3;

typedef struct {
    unsigned char bytes[64];
} rt_ipc_handle; /* of memory and of events */

typedef void (*rt_stream_callback)(abi_stream stream, rt_result status, void *data);

/* What is called of the driver: name, CUDA version of the form that is asked for, arguments. */
#define RT_DRIVER(X)                                                                                                  \
    X(cuInit, 2000, (unsigned))                                                                                       \
    X(cuDriverGetVersion, 2020, (int *))                                                                              \
    X(cuDeviceGetCount, 2000, (int *))                                                                                \
    X(cuDeviceGetName, 2000, (char *, int, abi_device))                                                               \
    X(cuDeviceGetUuid, 11040, (abi_uuid *, abi_device))                                                               \
    X(cuDeviceTotalMem, 3020, (size_t *, abi_device))                                                                 \
    X(cuDeviceGetAttribute, 2000, (int *, int, abi_device))                                                           \
    X(cuDeviceGetPCIBusId, 4010, (char *, int, abi_device))                                                           \
    X(cuDeviceCanAccessPeer, 4000, (int *, abi_device, abi_device))                                                   \
    X(cuDevicePrimaryCtxRetain, 7000, (abi_context *, abi_device))                                                    \
    X(cuCtxEnablePeerAccess, 4000, (abi_context, unsigned))                                                           \
    X(cuCtxGetCurrent, 4000, (abi_context *))                                                                         \
    X(cuCtxSetCurrent, 4000, (abi_context))                                                                           \
    X(cuCtxGetDevice, 2000, (abi_device *))                                                                           \
    X(cuCtxSynchronize, 2000, (void))                                                                                 \
    X(cuCtxGetStreamPriorityRange, 5050, (int *, int *))                                                              \
    X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                                       \
    X(cuMemAlloc, 3020, (abi_devptr *, size_t))                                                                       \
    X(cuMemFree, 3020, (abi_devptr))                                                                                  \
    X(cuMemAllocAsync, 11020, (abi_devptr *, size_t, abi_stream))                                                     \
    X(cuMemFreeAsync, 11020, (abi_devptr, abi_stream))                                                                \
    X(cuDeviceGetDefaultMemPool, 11020, (abi_pool *, abi_device))                                                     \
    X(cuMemPoolGetAttribute, 11020, (abi_pool, int, void *))                                                          \
    X(cuMemPoolSetAttribute, 11020, (abi_pool, int, void *))                                                          \
    X(cuMemPoolSetAccess, 11020, (abi_pool, const abi_access_desc *, size_t))                                         \
    X(cuMemPoolTrimTo, 11020, (abi_pool, size_t))                                                                     \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                                                              \
    X(cuMemFreeHost, 2000, (void *))                                                                                  \
    X(cuMemHostRegister, 6050, (void *, size_t, unsigned))                                                            \
    X(cuMemHostUnregister, 4000, (void *))                                                                            \
    X(cuMemHostGetFlags, 2030, (unsigned *, void *))                                                                  \
    X(cuMemcpy, 4000, (abi_devptr, abi_devptr, size_t))                                                               \
    X(cuMemcpyAsync, 4000, (abi_devptr, abi_devptr, size_t, abi_stream))                                              \
    X(cuMemcpyHtoD, 3020, (abi_devptr, const void *, size_t))                                                         \
    X(cuMemcpyHtoDAsync, 3020, (abi_devptr, const void *, size_t, abi_stream))                                        \
    X(cuMemcpyDtoH, 3020, (void *, abi_devptr, size_t))                                                               \
    X(cuMemcpyDtoHAsync, 3020, (void *, abi_devptr, size_t, abi_stream))                                              \
    X(cuMemcpyDtoD, 3020, (abi_devptr, abi_devptr, size_t))                                                           \
    X(cuMemcpyDtoDAsync, 3020, (abi_devptr, abi_devptr, size_t, abi_stream))                                          \
    X(cuMemcpyPeerAsync, 4000, (abi_devptr, abi_context, abi_devptr, abi_context, size_t, abi_stream))                \
    X(cuMemcpy2DAsync, 3020, (const abi_memcpy_2d *, abi_stream))                                                     \
    X(cuMemsetD8, 3020, (abi_devptr, unsigned char, size_t))                                                          \
    X(cuMemsetD8Async, 3020, (abi_devptr, unsigned char, size_t, abi_stream))                                         \
    X(cuPointerGetAttribute, 4000, (void *, int, abi_devptr))                                                         \
    X(cuStreamCreateWithPriority, 5050, (abi_stream *, unsigned, int))                                                \
    X(cuStreamCreate, 2000, (abi_stream *, unsigned))                                                                 \
    X(cuStreamDestroy, 4000, (abi_stream))                                                                            \
    X(cuStreamGetPriority, 5050, (abi_stream, int *))                                                                 \
    X(cuStreamQuery, 2000, (abi_stream))                                                                              \
    X(cuStreamSynchronize, 2000, (abi_stream))                                                                        \
    X(cuStreamWaitEvent, 3020, (abi_stream, abi_event, unsigned))                                                     \
    X(cuStreamAddCallback, 5000, (abi_stream, rt_stream_callback, void *, unsigned))                                  \
    X(cuLaunchHostFunc, 10000, (abi_stream, void (*)(void *), void *))                                                \
    X(cuStreamBeginCapture, 10010, (abi_stream, int))                                                                 \
    X(cuStreamEndCapture, 10000, (abi_stream, abi_graph *))                                                           \
    X(cuStreamIsCapturing, 10000, (abi_stream, int *))                                                                \
    X(cuStreamGetCaptureInfo, 11030, (abi_stream, int *, uint64_t *, abi_graph *, const abi_graph_node **, size_t *)) \
    X(cuStreamUpdateCaptureDependencies, 11030, (abi_stream, abi_graph_node *, size_t, unsigned))                     \
    X(cuThreadExchangeStreamCaptureMode, 10010, (int *))                                                              \
    X(cuEventCreate, 2000, (abi_event *, unsigned))                                                                   \
    X(cuEventDestroy, 4000, (abi_event))                                                                              \
    X(cuEventQuery, 2000, (abi_event))                                                                                \
    X(cuEventRecord, 2000, (abi_event, abi_stream))                                                                   \
    X(cuEventRecordWithFlags, 11010, (abi_event, abi_stream, unsigned))                                               \
    X(cuEventSynchronize, 2000, (abi_event))                                                                          \
    X(cuEventElapsedTime, 2000, (float *, abi_event, abi_event))                                                      \
    X(cuGraphAddEmptyNode, 10000, (abi_graph_node *, abi_graph, const abi_graph_node *, size_t))                      \
    X(cuGraphDebugDotPrint, 11030, (abi_graph, const char *, unsigned))                                               \
    X(cuGraphDestroy, 10000, (abi_graph))                                                                             \
    X(cuGraphExecDestroy, 10000, (abi_graph_exec))                                                                    \
    X(cuGraphGetNodes, 10000, (abi_graph, abi_graph_node *, size_t *))                                                \
    X(cuGraphInstantiateWithFlags, 11040, (abi_graph_exec *, abi_graph, unsigned long long))                          \
    X(cuGraphLaunch, 10000, (abi_graph_exec, abi_stream))                                                             \
    X(cuGraphNodeGetDependencies, 10000, (abi_graph_node, abi_graph_node *, size_t *))                                \
    X(cuGraphNodeGetType, 10000, (abi_graph_node, int *))                                                             \
    X(cuIpcCloseMemHandle, 4010, (abi_devptr))                                                                        \
    X(cuIpcGetEventHandle, 4010, (rt_ipc_handle *, abi_event))                                                        \
    X(cuIpcGetMemHandle, 4010, (rt_ipc_handle *, abi_devptr))                                                         \
    X(cuIpcOpenEventHandle, 4010, (abi_event *, rt_ipc_handle))                                                       \
    X(cuIpcOpenMemHandle, 11000, (abi_devptr *, rt_ipc_handle, unsigned))                                             \
    X(cuLibraryLoadData, 12000, (abi_library *, const void *, int *, void **, unsigned, int *, void **, unsigned))    \
    X(cuLibraryUnload, 12000, (abi_library))                                                                          \
    X(cuLibraryGetKernel, 12000, (void **, abi_library, const char *))                                                \
    X(cuKernelGetFunction, 12000, (abi_function *, void *))                                                           \
    X(cuLaunchKernel, 4000,                                                                                           \
      (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi_stream, void **,       \
       void **))                                                                                                      \
    X(cuLaunchKernelEx, 11060, (const abi_launch_config *, abi_function, void **, void **))                           \
    X(cuFuncGetAttribute, 2020, (int *, int, abi_function))                                                           \
    X(cuFuncSetAttribute, 9000, (abi_function, int, int))                                                             \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, (int *, abi_function, int, size_t))                          \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, (int *, abi_function, int, size_t, unsigned))       \
    X(cuProfilerStart, 4000, (void))                                                                                  \
    X(cuProfilerStop, 4000, (void))

/* All of the driver, found once; a function that it does not have is NULL. */
struct rt_driver {
#define RT_FIELD(name, version, arguments) abi_result(*name) arguments;
    RT_DRIVER(RT_FIELD)
#undef RT_FIELD
    abi_result (*look_up)(const char *, void **, int, uint64_t, int *);
};
extern struct rt_driver rt_driver;

#define DRIVER(name, ...) (rt_driver.name ? rt_driver.name(__VA_ARGS__) : ABI_ERROR_NOT_SUPPORTED)

/* Finds and starts the driver, the first time. */
rt_result rt_start(void);
/* The same, and the calling thread has a context: the current one, or the primary one of its device. */
rt_result rt_enter(void);
rt_result rt_primary(int device, abi_context *context);
/* The end of every entry point: keeps failures for cudaGetLastError, counts what is not supported. */
rt_result rt_answer(rt_result result);

/* An entry point that needs no more than a context and one call. */
#define RT_PASS(runtime_name, parameters, name, ...)                                  \
    EXPORT rt_result runtime_name parameters {                                        \
        rt_result result = rt_enter();                                                \
        return rt_answer(result == ABI_SUCCESS ? DRIVER(name, __VA_ARGS__) : result); \
    }
