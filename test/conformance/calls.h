/* Entry points that the rules call, by the names that the driver exports (a name without _v2 is the first form). */
#pragma once

#define DRIVER_CALLS(CALL)                                                                                            \
    CALL(cuInit, (unsigned))                                                                                          \
    CALL(cuDriverGetVersion, (int *))                                                                                 \
    CALL(cuGetErrorName, (CUresult, const char **))                                                                   \
    CALL(cuGetErrorString, (CUresult, const char **))                                                                 \
    CALL(cuDeviceGet, (CUdevice *, int))                                                                              \
    CALL(cuDeviceGetCount, (int *))                                                                                   \
    CALL(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                \
    CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                           \
    CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                    \
    CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))                                                                      \
    CALL(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))                                                   \
    CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice, unsigned))                                                         \
    CALL(cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                                                           \
    CALL(cuCtxDestroy_v2, (CUcontext))                                                                                \
    CALL(cuCtxPushCurrent_v2, (CUcontext))                                                                            \
    CALL(cuCtxPopCurrent_v2, (CUcontext *))                                                                           \
    CALL(cuCtxSetCurrent, (CUcontext))                                                                                \
    CALL(cuCtxGetCurrent, (CUcontext *))                                                                              \
    CALL(cuCtxGetDevice, (CUdevice *))                                                                                \
    CALL(cuCtxSynchronize, (void))                                                                                    \
    CALL(cuStreamCreate, (CUstream *, unsigned))                                                                      \
    CALL(cuStreamQuery, (CUstream))                                                                                   \
    CALL(cuStreamSynchronize, (CUstream))                                                                             \
    CALL(cuEventCreate, (CUevent *, unsigned))                                                                        \
    CALL(cuLaunchHostFunc, (CUstream, CUhostFn, void *))                                                              \
    CALL(cuModuleLoadData, (CUmodule *, const void *))                                                                \
    CALL(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                 \
    CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                      \
    CALL(cuMemFree_v2, (CUdeviceptr))                                                                                 \
    CALL(cuCtxCreate, (CUcontext *, unsigned, CUdevice))                                                              \
    CALL(cuCtxCreate_v3, (CUcontext *, void *, int, unsigned, CUdevice))                                              \
    CALL(cuCtxCreate_v4, (CUcontext *, void *, unsigned, CUdevice))                                                   \
    CALL(cuCtxDestroy, (CUcontext))                                                                                   \
    CALL(cuCtxPushCurrent, (CUcontext))                                                                               \
    CALL(cuCtxPopCurrent, (CUcontext *))                                                                              \
    CALL(cuCtxAttach, (CUcontext *, unsigned))                                                                        \
    CALL(cuCtxDetach, (CUcontext))                                                                                    \
    CALL(cuCtxGetFlags, (unsigned *))                                                                                 \
    CALL(cuCtxSetFlags, (unsigned))                                                                                   \
    CALL(cuCtxGetId, (CUcontext, unsigned long long *))                                                               \
    CALL(cuCtxGetApiVersion, (CUcontext, unsigned *))                                                                 \
    CALL(cuCtxGetStreamPriorityRange, (int *, int *))                                                                 \
    CALL(cuCtxGetLimit, (size_t *, int))                                                                              \
    CALL(cuCtxSetLimit, (int, size_t))                                                                                \
    CALL(cuCtxGetCacheConfig, (int *))                                                                                \
    CALL(cuCtxSetCacheConfig, (int))                                                                                  \
    CALL(cuCtxRecordEvent, (CUcontext, CUevent))                                                                      \
    CALL(cuCtxWaitEvent, (CUcontext, CUevent))                                                                        \
    CALL(cuDevicePrimaryCtxSetFlags, (CUdevice, unsigned))                                                            \
    CALL(cuMemGetInfo_v2, (size_t *, size_t *))                                                                       \
    CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                          \
    CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                                     \
    CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                              \
    CALL(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                               \
    CALL(cuMemsetD32Async, (CUdeviceptr, unsigned, size_t, CUstream))                                                 \
    CALL(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t))                                                             \
    CALL(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
                          void **, void **))                                                                          \
    CALL(cuStreamDestroy_v2, (CUstream))                                                                              \
    CALL(cuStreamGetFlags, (CUstream, unsigned *))                                                                    \
    CALL(cuStreamGetPriority, (CUstream, int *))                                                                      \
    CALL(cuStreamCreateWithPriority, (CUstream *, unsigned, int))                                                     \
    CALL(cuStreamGetCtx, (CUstream, CUcontext *))                                                                     \
    CALL(cuStreamGetCtx_v2, (CUstream, CUcontext *, CUgreenCtx *))                                                    \
    CALL(cuStreamGetGreenCtx, (CUstream, CUgreenCtx *))                                                               \
    CALL(cuStreamGetId, (CUstream, unsigned long long *))                                                             \
    CALL(cuStreamGetDevice, (CUstream, CUdevice *))                                                                   \
    CALL(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                            \
    CALL(cuStreamAddCallback, (CUstream, CUstreamCallback, void *, unsigned))                                         \
    CALL(cuStreamSetAttribute, (CUstream, int, const void *))                                                         \
    CALL(cuStreamGetAttribute, (CUstream, int, void *))                                                               \
    CALL(cuStreamCopyAttributes, (CUstream, CUstream))                                                                \
    CALL(cuStreamWriteValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))                                        \
    CALL(cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, uint32_t, unsigned))                                         \
    CALL(cuStreamQuery_ptsz, (CUstream))                                                                              \
    CALL(cuStreamSynchronize_ptsz, (CUstream))                                                                        \
    CALL(cuEventRecord, (CUevent, CUstream))                                                                          \
    CALL(cuEventRecordWithFlags, (CUevent, CUstream, unsigned))                                                       \
    CALL(cuEventQuery, (CUevent))                                                                                     \
    CALL(cuEventSynchronize, (CUevent))                                                                               \
    CALL(cuEventDestroy_v2, (CUevent))                                                                                \
    CALL(cuEventElapsedTime, (float *, CUevent, CUevent))                                                             \
    CALL(cuStreamBeginCapture_v2, (CUstream, int))                                                                    \
    CALL(cuStreamEndCapture, (CUstream, CUgraph *))                                                                   \
    CALL(cuStreamIsCapturing, (CUstream, int *))                                                                      \
    CALL(cuStreamGetCaptureInfo_v2, (CUstream, int *, uint64_t *, CUgraph *, const CUgraphNode **, size_t *))         \
    CALL(cuStreamUpdateCaptureDependencies, (CUstream, CUgraphNode *, size_t, unsigned))                              \
    CALL(cuStreamBeginCaptureToGraph, (CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int))            \
    CALL(cuStreamAttachMemAsync, (CUstream, CUdeviceptr, size_t, unsigned))                                           \
    CALL(cuThreadExchangeStreamCaptureMode, (int *))                                                                  \
    CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                          \
    CALL(cuGraphCreate, (CUgraph *, unsigned))                                                                        \
    CALL(cuGraphDestroy, (CUgraph))                                                                                   \
    CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                                         \
    CALL(cuGraphGetRootNodes, (CUgraph, CUgraphNode *, size_t *))                                                     \
    CALL(cuGraphNodeGetType, (CUgraphNode, int *))                                                                    \
    CALL(cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))                                  \
    CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                   \
    CALL(cuGraphLaunch, (CUgraphExec, CUstream))                                                                      \
    CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))                                                        \
    CALL(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                   \
    CALL(cuModuleLoad, (CUmodule *, const char *))                                                                    \
    CALL(cuFuncGetModule, (CUmodule *, CUfunction))                                                                   \
    CALL(cuFuncGetAttribute, (int *, int, CUfunction))                                                                \
    CALL(cuFuncSetAttribute, (CUfunction, int, int))                                                                  \
    CALL(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                    \
    CALL(cuLaunchCooperativeKernel,                                                                                   \
         (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **))       \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))                               \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *, CUfunction, int, size_t, unsigned))            \
    CALL(cuOccupancyMaxPotentialBlockSize, (int *, int *, CUfunction, CUoccupancyB2DSize, size_t, int))               \
    CALL(cuDeviceGetDevResource, (CUdevice, CUdevResource *, int))                                                    \
    CALL(cuDevSmResourceSplitByCount,                                                                                 \
         (CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned, unsigned))                   \
    CALL(cuDevResourceGenerateDesc, (CUdevResourceDesc *, CUdevResource *, unsigned))                                 \
    CALL(cuGreenCtxCreate, (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned))                                     \
    CALL(cuGreenCtxDestroy, (CUgreenCtx))                                                                             \
    CALL(cuGreenCtxGetDevResource, (CUgreenCtx, CUdevResource *, int))                                                \
    CALL(cuGreenCtxStreamCreate, (CUstream *, CUgreenCtx, unsigned, int))                                             \
    CALL(cuGreenCtxRecordEvent, (CUgreenCtx, CUevent))                                                                \
    CALL(cuGreenCtxWaitEvent, (CUgreenCtx, CUevent))                                                                  \
    CALL(cuCtxFromGreenCtx, (CUcontext *, CUgreenCtx))                                                                \
    CALL(cuCtxGetDevResource, (CUcontext, CUdevResource *, int))                                                      \
    CALL(cuGraphAddMemsetNode,                                                                                        \
         (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_MEMSET_NODE_PARAMS *, CUcontext))           \
    CALL(cuGraphAddKernelNode_v2,                                                                                     \
         (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *))                      \
    CALL(cuGraphAddHostNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *))    \
    CALL(cuGraphAddChildGraphNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))                    \
    CALL(cuGraphChildGraphNodeGetGraph, (CUgraphNode, CUgraph *))                                                     \
    CALL(cuGraphAddEventRecordNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent))                   \
    CALL(cuGraphAddEventWaitNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUevent))                     \
    CALL(cuGraphAddMemAllocNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *)) \
    CALL(cuGraphAddMemFreeNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))                   \
    CALL(cuGraphMemAllocNodeGetParams, (CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *))                                   \
    CALL(cuGraphAddNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *))                  \
    CALL(cuGraphConditionalHandleCreate, (uint64_t *, CUgraph, CUcontext, unsigned, unsigned))                        \
    CALL(cuGraphGetEdges, (CUgraph, CUgraphNode *, CUgraphNode *, size_t *))                                          \
    CALL(cuGraphNodeGetDependencies, (CUgraphNode, CUgraphNode *, size_t *))                                          \
    CALL(cuGraphNodeGetDependentNodes, (CUgraphNode, CUgraphNode *, size_t *))                                        \
    CALL(cuGraphAddDependencies, (CUgraph, const CUgraphNode *, const CUgraphNode *, size_t))                         \
    CALL(cuGraphRemoveDependencies, (CUgraph, const CUgraphNode *, const CUgraphNode *, size_t))                      \
    CALL(cuGraphDestroyNode, (CUgraphNode))                                                                           \
    CALL(cuGraphClone, (CUgraph *, CUgraph))                                                                          \
    CALL(cuGraphNodeFindInClone, (CUgraphNode *, CUgraphNode, CUgraph))                                               \
    CALL(cuGraphInstantiateWithParams, (CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *))                     \
    CALL(cuGraphExecGetFlags, (CUgraphExec, uint64_t *))                                                              \
    CALL(cuGraphExecDestroy, (CUgraphExec))                                                                           \
    CALL(cuGraphUpload, (CUgraphExec, CUstream))                                                                      \
    CALL(cuGraphNodeSetEnabled, (CUgraphExec, CUgraphNode, unsigned))                                                 \
    CALL(cuGraphNodeGetEnabled, (CUgraphExec, CUgraphNode, unsigned *))                                               \
    CALL(cuGraphExecMemsetNodeSetParams, (CUgraphExec, CUgraphNode, const CUDA_MEMSET_NODE_PARAMS *, CUcontext))      \
    CALL(cuGraphExecUpdate, (CUgraphExec, CUgraph, CUgraphNode *, int *))                                             \
    CALL(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))                                 \
    CALL(cuUserObjectCreate, (CUuserObject *, void *, CUhostFn, unsigned, unsigned))                                  \
    CALL(cuUserObjectRelease, (CUuserObject, unsigned))                                                               \
    CALL(cuGraphRetainUserObject, (CUgraph, CUuserObject, unsigned, unsigned))

#define CALL(name, parameters) extern CUresult(*name) parameters;
DRIVER_CALLS(CALL)
#undef CALL
