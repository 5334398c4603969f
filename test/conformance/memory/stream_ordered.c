/* Memory that is allocated and freed in stream order, and what its pool keeps. */
#define SUBJECT "stream-ordered"
#include "../memory.h"

#include <stdlib.h>

static CUstream stream(void) {
    CUstream s = NULL;
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    return s;
}

/* Memory is allocated on the default stream. */
RULE(null_stream, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync",
     .calls = "cuMemAllocAsync cuMemsetD8Async cuMemFreeAsync cuStreamSynchronize") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAllocAsync(&p, MIB, NULL));
    OK(cuMemsetD8Async(p, 1, MIB, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
}

/* Memory is allocated on the legacy and on the per-thread default stream by name. */
RULE(named_streams, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync",
     .calls = "cuMemAllocAsync cuMemFreeAsync") {
    primary_context();
    CUdeviceptr p, q;
    OK(cuMemAllocAsync(&p, MIB, CU_STREAM_LEGACY));
    OK(cuMemAllocAsync(&q, MIB, CU_STREAM_PER_THREAD));
    OK(cuMemFreeAsync(p, CU_STREAM_LEGACY));
    OK(cuMemFreeAsync(q, CU_STREAM_PER_THREAD));
}

/* Memory is allocated on created streams, blocking or not. */
RULE(created_streams, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync",
     .calls = "cuStreamCreate cuMemAllocAsync cuMemFreeAsync cuStreamSynchronize") {
    primary_context();
    CUstream blocking, s = stream();
    CUdeviceptr p, q;
    OK(cuStreamCreate(&blocking, 0));
    OK(cuMemAllocAsync(&p, MIB, blocking));
    OK(cuMemAllocAsync(&q, MIB, s));
    OK(cuMemFreeAsync(p, blocking));
    OK(cuMemFreeAsync(q, s));
    OK(cuStreamSynchronize(s));
}

/* On the default stream there must be a current context. */
RULE(without_context, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync",
     .calls = "cuCtxSetCurrent cuMemAllocAsync") {
    primary_context();
    CUdeviceptr p;
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocAsync(&p, MIB, NULL));
}

/* A created stream brings its context: none need be current. */
RULE(stream_without_context, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync",
     .calls = "cuCtxSetCurrent cuMemAllocAsync cuMemFreeAsync") {
    primary_context();
    CUstream s = stream();
    CUdeviceptr p;
    OK(cuCtxSetCurrent(NULL));
    OK(cuMemAllocAsync(&p, MIB, s));
    OK(cuMemFreeAsync(p, s));
}

/* The stream's device decides, not the context that is current. */
RULE(other_context_current, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync",
     .calls = "cuMemAllocAsync cuMemFreeAsync cuStreamSynchronize") {
    primary_context();
    CUstream s = stream();
    CUdeviceptr p;
    new_context();
    OK(cuMemAllocAsync(&p, MIB, s));
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
}

/* Before cuInit nothing is allocated. */
RULE(before_init, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync", .calls = "cuMemAllocAsync") {
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAllocAsync(&p, MIB, NULL));
}

/* A null place for the result is an invalid value. */
RULE(null_result, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync", .calls = "cuMemAllocAsync") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(NULL, MIB, NULL));
}

/* More than the device has is out of memory. */
RULE(too_large, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemAllocAsync", .calls = "cuMemAllocAsync") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&p, (size_t)1 << 46, NULL));
    OK(cuMemAllocAsync(&p, MIB, NULL));
}

/* Memory may be freed on another stream than it was allocated on. */
RULE(free_null_stream, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemFreeAsync",
     .calls = "cuMemAllocAsync cuStreamSynchronize cuMemFreeAsync") {
    primary_context();
    CUstream s = stream();
    CUdeviceptr p;
    OK(cuMemAllocAsync(&p, MIB, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
}

/* Memory that was freed cannot be freed again. */
RULE(free_twice, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemFreeAsync",
     .calls = "cuMemAllocAsync cuMemFreeAsync") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAllocAsync(&p, MIB, NULL));
    OK(cuMemFreeAsync(p, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, NULL));
}

/* cuMemFree of memory of a pool does not synchronize. */
RULE(plain_free_does_not_wait, .source = DRIVER_API "Memory Management, cuMemFree",
     .calls = "cuMemAllocAsync cuStreamSynchronize cuLaunchHostFunc cuMemFree_v2 cuStreamQuery") {
    primary_context();
    CUstream s = stream();
    CUdeviceptr p;
    OK(cuMemAllocAsync(&p, MIB, s));
    OK(cuStreamSynchronize(s));
    hold(s);
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    release_all();
    OK(cuStreamSynchronize(s));
}

/* Memory of cuMemAlloc may be freed in stream order. */
RULE(free_linear, .source = GUIDE "Stream Ordered Memory Allocator, API Fundamentals",
     .calls = "cuMemAlloc_v2 cuMemFreeAsync cuStreamSynchronize cuMemFree_v2", .recalled = true) {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

/* An address that CUDA did not allocate is an invalid value. */
RULE(free_unknown, .source = DRIVER_API "Stream Ordered Memory Allocator, cuMemFreeAsync", .calls = "cuMemFreeAsync") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync((CUdeviceptr)(uintptr_t)malloc(64), NULL));
}
