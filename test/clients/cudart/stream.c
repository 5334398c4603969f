/* Streams, events, capture and graphs. Handles are the driver's, the default streams' among them. */
#include "cudart.h"

RT_PASS(cudaStreamCreate, (abi_stream * stream), cuStreamCreate, stream, 0)
RT_PASS(cudaStreamCreateWithPriority, (abi_stream * stream, unsigned flags, int priority), cuStreamCreateWithPriority,
        stream, flags, priority)
RT_PASS(cudaStreamDestroy, (abi_stream stream), cuStreamDestroy, stream)
RT_PASS(cudaStreamGetPriority, (abi_stream stream, int *priority), cuStreamGetPriority, stream, priority)
RT_PASS(cudaStreamQuery, (abi_stream stream), cuStreamQuery, stream)
RT_PASS(cudaStreamSynchronize, (abi_stream stream), cuStreamSynchronize, stream)
RT_PASS(cudaStreamWaitEvent, (abi_stream stream, abi_event event, unsigned flags), cuStreamWaitEvent, stream, event,
        flags)
RT_PASS(cudaStreamAddCallback, (abi_stream stream, rt_stream_callback callback, void *data, unsigned flags),
        cuStreamAddCallback, stream, callback, data, flags)
RT_PASS(cudaLaunchHostFunc, (abi_stream stream, void (*function)(void *), void *data), cuLaunchHostFunc, stream,
        function, data)

RT_PASS(cudaEventCreate, (abi_event * event), cuEventCreate, event, 0)
RT_PASS(cudaEventCreateWithFlags, (abi_event * event, unsigned flags), cuEventCreate, event, flags)
RT_PASS(cudaEventDestroy, (abi_event event), cuEventDestroy, event)
RT_PASS(cudaEventQuery, (abi_event event), cuEventQuery, event)
RT_PASS(cudaEventRecord, (abi_event event, abi_stream stream), cuEventRecord, event, stream)
RT_PASS(cudaEventRecordWithFlags, (abi_event event, abi_stream stream, unsigned flags), cuEventRecordWithFlags, event,
        stream, flags)
RT_PASS(cudaEventSynchronize, (abi_event event), cuEventSynchronize, event)
RT_PASS(cudaEventElapsedTime, (float *ms, abi_event start, abi_event end), cuEventElapsedTime, ms, start, end)

RT_PASS(cudaStreamBeginCapture, (abi_stream stream, int mode), cuStreamBeginCapture, stream, mode)
RT_PASS(cudaStreamEndCapture, (abi_stream stream, abi_graph *graph), cuStreamEndCapture, stream, graph)
RT_PASS(cudaStreamIsCapturing, (abi_stream stream, int *status), cuStreamIsCapturing, stream, status)
RT_PASS(cudaStreamGetCaptureInfo_v2,
        (abi_stream stream, int *status, uint64_t *id, abi_graph *graph, const abi_graph_node **last, size_t *count),
        cuStreamGetCaptureInfo, stream, status, id, graph, last, count)
RT_PASS(cudaStreamUpdateCaptureDependencies, (abi_stream stream, abi_graph_node *nodes, size_t count, unsigned flags),
        cuStreamUpdateCaptureDependencies, stream, nodes, count, flags)
RT_PASS(cudaThreadExchangeStreamCaptureMode, (int *mode), cuThreadExchangeStreamCaptureMode, mode)

RT_PASS(cudaGraphAddEmptyNode, (abi_graph_node * node, abi_graph graph, const abi_graph_node *after, size_t count),
        cuGraphAddEmptyNode, node, graph, after, count)
RT_PASS(cudaGraphGetNodes, (abi_graph graph, abi_graph_node *nodes, size_t *count), cuGraphGetNodes, graph, nodes,
        count)
RT_PASS(cudaGraphNodeGetType, (abi_graph_node node, int *type), cuGraphNodeGetType, node, type)
RT_PASS(cudaGraphNodeGetDependencies, (abi_graph_node node, abi_graph_node *before, size_t *count),
        cuGraphNodeGetDependencies, node, before, count)
RT_PASS(cudaGraphDebugDotPrint, (abi_graph graph, const char *path, unsigned flags), cuGraphDebugDotPrint, graph, path,
        flags)
RT_PASS(cudaGraphDestroy, (abi_graph graph), cuGraphDestroy, graph)
RT_PASS(cudaGraphInstantiate, (abi_graph_exec * exec, abi_graph graph, unsigned long long flags),
        cuGraphInstantiateWithFlags, exec, graph, flags)
RT_PASS(cudaGraphInstantiateWithFlags, (abi_graph_exec * exec, abi_graph graph, unsigned long long flags),
        cuGraphInstantiateWithFlags, exec, graph, flags)
RT_PASS(cudaGraphLaunch, (abi_graph_exec exec, abi_stream stream), cuGraphLaunch, exec, stream)
RT_PASS(cudaGraphExecDestroy, (abi_graph_exec exec), cuGraphExecDestroy, exec)
