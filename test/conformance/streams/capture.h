/* What the rules of stream capture begin with. */
#pragma once

#include "../rules.h"

#define PROHIBITED GUIDE "Prohibited and Unhandled Operations"
#define INVALIDATION GUIDE "Invalidation (stream capture)"
#define CROSS GUIDE "Cross-stream Dependencies and Events"
#define BEGIN_END "cuStreamBeginCapture_v2 cuStreamEndCapture"

static CUdeviceptr word;
static CUstream capturing;
static CUfunction nothing; /* loaded before, as loading may be unsafe */

static inline int status_of(CUstream stream) {
    int status = -1;
    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

static inline unsigned long long id_of(CUstream stream) {
    int status = -1;
    uint64_t id = 0;
    OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL));
    SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
    return id;
}

static inline CUgraph end_of(CUstream stream) {
    CUgraph graph = NULL;
    OK(cuStreamEndCapture(stream, &graph));
    TRUE(graph != NULL);
    return graph;
}

static inline size_t nodes_of(CUgraph graph) {
    size_t count = 99;
    OK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

static inline void fill(CUstream stream) {
    OK(cuMemsetD32Async(word, 7, 1, stream));
}

/* The primary context, a word of memory, and a stream that captures. */
static inline CUstream capture_in(unsigned flags, int mode) {
    primary_context();
    word = new_memory(4);
    nothing = kernel("nothing");
    capturing = new_stream(flags);
    OK(cuStreamBeginCapture_v2(capturing, mode));
    return capturing;
}
static inline CUstream capture(void) {
    return capture_in(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

static inline CUevent recorded(CUstream stream) {
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord(event, stream));
    return event;
}

/* Another stream of the capture. */
static inline CUstream fork_of(CUstream stream) {
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamWaitEvent(other, recorded(stream), 0));
    return other;
}

static inline void expect_invalidated(CUstream stream) {
    CUgraph graph = (CUgraph)1;
    SAME(CU_STREAM_CAPTURE_STATUS_INVALIDATED, status_of(stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD32Async(word, 7, 1, stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    TRUE(graph == NULL);
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(stream));
    fill(stream);
    OK(cuStreamSynchronize(stream));
}
