/* What is prohibited during stream capture, in its streams and beside them, and what it invalidates. */
#define SUBJECT "captures"
#include "capture.h"

static CUdeviceptr allocated;
static CUresult answer;

/* ---- prohibited in the capturing stream, and what it invalidates ---- */
#define INVALIDATES(name, place, text, result, call)                                           \
    RULE(name##_invalidates, .source = place, .calls = BEGIN_END " " text, .recalled = true) { \
        CUstream stream = capture_in(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_GLOBAL);        \
        EXPECT(result, call);                                                                  \
        expect_invalidated(stream);                                                            \
    }
static void callback(CUstream stream, int status, void *data) {}
INVALIDATES(synchronize, PROHIBITED, "cuStreamSynchronize", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuStreamSynchronize(stream))
INVALIDATES(query, PROHIBITED, "cuStreamQuery", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream))
INVALIDATES(context_synchronize, PROHIBITED, "cuCtxSynchronize", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuCtxSynchronize())
INVALIDATES(query_of_its_event, PROHIBITED, "cuEventQuery", CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(recorded(stream)))
INVALIDATES(synchronize_its_event, PROHIBITED, "cuEventSynchronize", CUDA_ERROR_CAPTURED_EVENT,
            cuEventSynchronize(recorded(stream)))
INVALIDATES(use_of_the_legacy_stream, PROHIBITED, "cuMemsetD32Async", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            cuMemsetD32Async(word, 7, 1, CU_STREAM_LEGACY))
INVALIDATES(use_of_the_null_stream, PROHIBITED, "cuMemsetD32Async", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            cuMemsetD32Async(word, 7, 1, NULL))
INVALIDATES(launch_in_the_legacy_stream, PROHIBITED, "cuLaunchKernel", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_LEGACY, NULL, NULL))
INVALIDATES(record_in_the_legacy_stream, PROHIBITED, "cuEventRecord", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            cuEventRecord(new_event(0), CU_STREAM_LEGACY))
INVALIDATES(allocation_of_memory, DRIVER_API "cuThreadExchangeStreamCaptureMode", "cuMemAlloc_v2",
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&allocated, 1))
INVALIDATES(callback, DRIVER_API "cuStreamAddCallback", "cuStreamAddCallback", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuStreamAddCallback(stream, callback, NULL, 0))
RULE(attach_invalidates, .source = PROHIBITED, .calls = BEGIN_END " cuStreamAttachMemAsync cuMemAllocManaged",
     .recalled = true) {
    CUdeviceptr managed = 0;
    primary_context();
    OK(cuMemAllocManaged(&managed, 4096, 1));
    CUstream stream = capture();
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamAttachMemAsync(stream, managed, 0, 1));
    expect_invalidated(stream);
}

RULE(context_record_invalidates, .source = DRIVER_API "cuCtxRecordEvent", .calls = BEGIN_END " cuCtxRecordEvent") {
    CUstream stream = capture();
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent(current_context(), new_event(0)));
    expect_invalidated(stream);
}

RULE(invalidated_are_all_its_streams, .source = INVALIDATION, .calls = BEGIN_END, .recalled = true) {
    CUstream stream = capture(), other = fork_of(stream);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(other));
    SAME(CU_STREAM_CAPTURE_STATUS_INVALIDATED, status_of(other));
    expect_invalidated(stream);
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(other));
}

RULE(invalidated_is_one_capture_alone, .source = INVALIDATION, .calls = BEGIN_END, .recalled = true) {
    CUstream stream = capture(), other = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream));
    SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE, status_of(other));
    end_of(other);
}

RULE(a_new_capture_after_an_invalidated_one, .source = INVALIDATION, .calls = BEGIN_END, .recalled = true) {
    CUgraph graph = NULL;
    CUstream stream = capture();
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fill(stream);
    SAME(1, nodes_of(end_of(stream)));
}

/* ---- the legacy stream ---- */
RULE(legacy_beside_a_non_blocking_capture, .source = PROHIBITED, .calls = BEGIN_END, .recalled = true) {
    CUstream stream = capture();
    fill(CU_STREAM_LEGACY);
    SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE, status_of(stream));
    SAME(0, nodes_of(end_of(stream)));
}

RULE(status_of_the_legacy_stream, .source = DRIVER_API "cuStreamIsCapturing", .calls = BEGIN_END) {
    int status = -1;
    CUstream stream = capture_in(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(CU_STREAM_LEGACY, &status));
    SAME(CU_STREAM_CAPTURE_STATUS_ACTIVE, status_of(stream));
    end_of(stream);
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(CU_STREAM_LEGACY));
}

RULE(status_of_legacy_beside_a_non_blocking_capture, .source = DRIVER_API "cuStreamIsCapturing", .calls = BEGIN_END) {
    capture();
    SAME(CU_STREAM_CAPTURE_STATUS_NONE, status_of(CU_STREAM_LEGACY));
}

RULE(info_of_the_legacy_stream, .source = DRIVER_API "cuStreamGetCaptureInfo",
     .calls = BEGIN_END " cuStreamGetCaptureInfo_v2") {
    int status = -1;
    capture_in(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
           cuStreamGetCaptureInfo_v2(CU_STREAM_LEGACY, &status, NULL, NULL, NULL, NULL));
}

/* ---- modes ---- */
static int exchange(int mode) {
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

RULE(mode_of_a_thread_is_global_at_first, .source = DRIVER_API "cuThreadExchangeStreamCaptureMode",
     .calls = "cuThreadExchangeStreamCaptureMode") {
    primary_context();
    SAME(CU_STREAM_CAPTURE_MODE_GLOBAL, exchange(CU_STREAM_CAPTURE_MODE_RELAXED));
    SAME(CU_STREAM_CAPTURE_MODE_RELAXED, exchange(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    SAME(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, exchange(CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static void expect_global(void) {
    SAME(CU_STREAM_CAPTURE_MODE_GLOBAL, exchange(CU_STREAM_CAPTURE_MODE_GLOBAL));
}
RULE(mode_is_of_one_thread, .source = DRIVER_API "cuThreadExchangeStreamCaptureMode",
     .calls = "cuThreadExchangeStreamCaptureMode") {
    primary_context();
    exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    in_thread(expect_global);
}

static void allocate_in_thread(void) {
    CUdeviceptr memory = 0;
    primary_context();
    answer = cuMemAlloc_v2(&memory, 1);
}
static void allocate_relaxed_in_thread(void) {
    primary_context();
    exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
    allocate_in_thread();
}
static void allocate_thread_local_in_thread(void) {
    primary_context();
    exchange(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    allocate_in_thread();
}

#define MODE_RULE(name, mode, result, body)                              \
    RULE(name, .source = DRIVER_API "cuThreadExchangeStreamCaptureMode", \
         .calls = BEGIN_END " cuThreadExchangeStreamCaptureMode") {      \
        CUstream stream = capture_in(CU_STREAM_NON_BLOCKING, mode);      \
        body;                                                            \
        EXPECT(result, answer);                                          \
        if (answer == CUDA_SUCCESS) end_of(stream);                      \
    }
MODE_RULE(unsafe_in_another_thread_of_global, CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          in_thread(allocate_in_thread))
MODE_RULE(unsafe_in_another_thread_of_thread_local, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_SUCCESS,
          in_thread(allocate_in_thread))
MODE_RULE(unsafe_in_another_thread_of_relaxed, CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS,
          in_thread(allocate_in_thread))
MODE_RULE(unsafe_in_another_relaxed_thread, CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_SUCCESS,
          in_thread(allocate_relaxed_in_thread))
MODE_RULE(unsafe_in_another_thread_local_thread, CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_SUCCESS,
          in_thread(allocate_thread_local_in_thread))
MODE_RULE(unsafe_in_a_thread_local_capture, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          answer = cuMemAlloc_v2(&allocated, 1))
MODE_RULE(unsafe_in_a_relaxed_capture, CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS,
          answer = cuMemAlloc_v2(&allocated, 1))
MODE_RULE(unsafe_in_a_thread_made_relaxed, CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_SUCCESS,
          exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
          answer = cuMemAlloc_v2(&allocated, 1))
