/* What a stream does beside kernels and copies: writes and waits for values, calls functions of the host. */
#define SUBJECT "streams"
#include "../rules.h"

static CUdeviceptr word;

/* ---- memory operations ---- */
RULE(written_value_is_there, .source = DRIVER_API "cuStreamWriteValue32", .calls = "cuStreamWriteValue32_v2") {
    unsigned value = 0;
    primary_context();
    CUstream stream = new_stream(0);
    word = new_memory(4);
    OK(cuStreamWriteValue32_v2(stream, word, 1234, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&value, word, 4));
    SAME(1234, value);
}

RULE(a_wait_ends_with_the_value, .source = DRIVER_API "cuStreamWaitValue32",
     .calls = "cuStreamWriteValue32_v2 cuStreamWaitValue32_v2") {
    primary_context();
    CUstream waits = new_stream(CU_STREAM_NON_BLOCKING), writes = new_stream(CU_STREAM_NON_BLOCKING);
    word = new_memory(4);
    OK(cuMemsetD32_v2(word, 0, 1));
    OK(cuStreamWaitValue32_v2(waits, word, 5, 1 /* equal */));
    NOT_YET(cuStreamQuery(waits));
    OK(cuStreamWriteValue32_v2(writes, word, 5, 0));
    OK(cuStreamSynchronize(writes));
    OK(cuStreamSynchronize(waits));
}

RULE(a_wait_that_is_met_does_not_wait, .source = DRIVER_API "cuStreamWaitValue32", .calls = "cuStreamWaitValue32_v2") {
    primary_context();
    CUstream stream = new_stream(0);
    word = new_memory(4);
    OK(cuMemsetD32_v2(word, 9, 1));
    OK(cuStreamWaitValue32_v2(stream, word, 5, 0 /* greater or equal */));
    OK(cuStreamSynchronize(stream));
}

/* ---- the host ---- */
static int calls;
static void *seen_data;
static CUstream seen_stream;
static int seen_status = -1, answer_inside = -1;
static unsigned value_inside;
static void note_callback(CUstream stream, int status, void *data) {
    calls++;
    seen_stream = stream;
    seen_status = status;
    seen_data = data;
}
static void note_call(void *data) {
    calls++;
    seen_data = data;
}

RULE(callback_is_called_once, .source = DRIVER_API "cuStreamAddCallback", .calls = "cuStreamAddCallback") {
    primary_context();
    CUstream stream = new_stream(0);
    OK(cuStreamAddCallback(stream, note_callback, &calls, 0));
    OK(cuStreamSynchronize(stream));
    SAME(1, calls);
    TRUE(seen_stream == stream);
    TRUE(seen_data == &calls);
    SAME(CUDA_SUCCESS, seen_status);
}

RULE(callback_takes_no_flags, .source = DRIVER_API "cuStreamAddCallback", .calls = "cuStreamAddCallback",
     .recalled = true) {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(new_stream(0), note_callback, NULL, 1));
}

static void call_inside(CUstream stream, int status, void *data) {
    CUdeviceptr memory = 0;
    answer_inside = cuMemAlloc_v2(&memory, 1);
}
RULE(callback_may_not_call_cuda, .source = DRIVER_API "cuStreamAddCallback", .calls = "cuStreamAddCallback") {
    primary_context();
    CUstream stream = new_stream(0);
    OK(cuStreamAddCallback(stream, call_inside, NULL, 0));
    OK(cuStreamSynchronize(stream));
    SAME(CUDA_ERROR_NOT_PERMITTED, answer_inside);
}

RULE(host_function_is_called_once, .source = DRIVER_API "cuLaunchHostFunc", .calls = "cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(0);
    OK(cuLaunchHostFunc(stream, note_call, &calls));
    OK(cuStreamSynchronize(stream));
    SAME(1, calls);
    TRUE(seen_data == &calls);
}

static void look(void *place) {
    value_inside = *(volatile unsigned *)place;
}
RULE(host_function_comes_after_earlier_work, .source = DRIVER_API "cuLaunchHostFunc", .calls = "cuLaunchHostFunc") {
    static unsigned copied;
    primary_context();
    CUstream stream = new_stream(0);
    word = new_memory(4);
    OK(cuMemsetD32Async(word, 42, 1, stream));
    OK(cuMemcpyDtoHAsync_v2(&copied, word, 4, stream));
    OK(cuLaunchHostFunc(stream, look, &copied));
    OK(cuStreamSynchronize(stream));
    SAME(42, value_inside);
}

RULE(host_function_holds_later_work, .source = DRIVER_API "cuLaunchHostFunc", .calls = "cuLaunchHostFunc") {
    static unsigned copied = 1;
    primary_context();
    CUstream stream = new_stream(0);
    CUevent event = new_event(0);
    hold(stream);
    OK(cuMemsetD32Async(new_memory(4), 7, 1, stream));
    OK(cuEventRecord(event, stream));
    NOT_YET(cuEventQuery(event));
    SAME(1, copied);
    release_all();
    OK(cuEventSynchronize(event));
}

RULE(host_function_of_none, .source = DRIVER_API "cuLaunchHostFunc", .calls = "cuLaunchHostFunc", .recalled = true) {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(new_stream(0), NULL, NULL));
}
