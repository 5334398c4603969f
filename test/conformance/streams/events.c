/* Events: flags, what is captured by a record, waits across streams and contexts, and times. */
#define SUBJECT "events"
#include "../rules.h"

#define BAD_HANDLE CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE

static CUevent recorded(unsigned flags, CUstream stream) {
    CUevent event = new_event(flags);
    OK(cuEventRecord(event, stream));
    return event;
}

RULE(create_with_unknown_flags, .source = DRIVER_API "cuEventCreate", .calls = "cuEventCreate") {
    CUevent event = NULL;
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, 0x100));
}

RULE(create_for_other_processes_with_timing, .source = DRIVER_API "cuEventCreate", .calls = "cuEventCreate") {
    CUevent event = NULL;
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS));
}

RULE(create_for_other_processes, .source = DRIVER_API "cuEventCreate", .calls = "cuEventCreate") {
    primary_context();
    TRUE(new_event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING) != NULL);
}

RULE(create_of_all_valid_flags, .source = DRIVER_API "cuEventCreate", .calls = "cuEventCreate") {
    primary_context();
    new_event(CU_EVENT_DEFAULT);
    new_event(CU_EVENT_BLOCKING_SYNC);
    new_event(CU_EVENT_DISABLE_TIMING);
    new_event(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
}

RULE(create_without_context, .source = DRIVER_API "cuEventCreate", .calls = "cuEventCreate") {
    CUevent event = NULL;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuEventCreate(&event, 0));
}

RULE(create_without_place, .source = DRIVER_API "cuEventCreate", .calls = "cuEventCreate") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(NULL, 0));
}

RULE(before_a_record_it_is_complete, .source = DRIVER_API "cuEventRecord", .calls = "cuEventQuery") {
    primary_context();
    CUevent event = new_event(0);
    OK(cuEventQuery(event));
    OK(cuEventSynchronize(event));
}

RULE(query_while_work_is_incomplete, .source = DRIVER_API "cuEventQuery", .calls = "cuEventQuery cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    CUevent event = recorded(0, stream);
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
}

RULE(later_work_does_not_count, .source = DRIVER_API "cuEventRecord", .calls = "cuEventRecord cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = recorded(0, stream);
    OK(cuEventSynchronize(event));
    hold(stream);
    OK(cuEventQuery(event));
    release_all();
    OK(cuStreamSynchronize(stream));
}

RULE(record_again_overwrites, .source = DRIVER_API "cuEventRecord", .calls = "cuEventRecord cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = recorded(0, stream);
    OK(cuEventSynchronize(event));
    hold(stream);
    OK(cuEventRecord(event, stream));
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
}

RULE(record_in_an_idle_stream_frees_it, .source = DRIVER_API "cuEventRecord",
     .calls = "cuEventRecord cuLaunchHostFunc") {
    primary_context();
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING), idle = new_stream(CU_STREAM_NON_BLOCKING);
    hold(busy);
    CUevent event = recorded(0, busy);
    OK(cuEventRecord(event, idle));
    OK(cuEventSynchronize(event));
    release_all();
    OK(cuStreamSynchronize(busy));
}

RULE(record_of_another_context, .source = DRIVER_API "cuEventRecord", .calls = "cuEventRecord") {
    new_context();
    CUevent event = new_event(0);
    new_context();
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, new_stream(0)));
}

RULE(record_of_none, .source = DRIVER_API "cuEventRecord", .calls = "cuEventRecord") {
    primary_context();
    ONE_OF(cuEventRecord(NULL, NULL), BAD_HANDLE);
}

RULE(query_of_none, .source = DRIVER_API "cuEventQuery", .calls = "cuEventQuery") {
    primary_context();
    ONE_OF(cuEventQuery(NULL), BAD_HANDLE);
    ONE_OF(cuEventSynchronize(NULL), BAD_HANDLE);
    ONE_OF(cuEventDestroy_v2(NULL), BAD_HANDLE);
}

RULE(record_with_unknown_flags, .source = DRIVER_API "cuEventRecordWithFlags", .calls = "cuEventRecordWithFlags") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(new_event(0), new_stream(0), 0x100));
}

RULE(record_as_external_outside_of_capture, .source = DRIVER_API "cuEventRecordWithFlags",
     .calls = "cuEventRecordWithFlags") {
    primary_context();
    ONE_OF(cuEventRecordWithFlags(new_event(0), new_stream(0), CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE,
           CUDA_ERROR_ILLEGAL_STATE);
}

RULE(record_with_default_flags, .source = DRIVER_API "cuEventRecordWithFlags", .calls = "cuEventRecordWithFlags") {
    primary_context();
    CUevent event = new_event(0);
    OK(cuEventRecordWithFlags(event, new_stream(0), 0));
    OK(cuEventSynchronize(event));
}

RULE(wait_holds_later_work, .source = DRIVER_API "cuStreamWaitEvent", .calls = "cuStreamWaitEvent cuLaunchHostFunc") {
    primary_context();
    CUstream first = new_stream(CU_STREAM_NON_BLOCKING), then = new_stream(CU_STREAM_NON_BLOCKING);
    hold(first);
    OK(cuStreamWaitEvent(then, recorded(0, first), 0));
    CUevent behind = recorded(0, then);
    NOT_YET(cuEventQuery(behind));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(then));
    release_all();
    OK(cuEventSynchronize(behind));
}

RULE(wait_for_one_not_recorded, .source = DRIVER_API "cuEventRecord", .calls = "cuStreamWaitEvent") {
    primary_context();
    CUstream stream = new_stream(0);
    OK(cuStreamWaitEvent(stream, new_event(0), 0));
    OK(cuStreamSynchronize(stream));
}

RULE(wait_keeps_what_it_saw, .source = DRIVER_API "cuEventRecord", .calls = "cuStreamWaitEvent cuLaunchHostFunc") {
    primary_context();
    CUstream idle = new_stream(CU_STREAM_NON_BLOCKING), busy = new_stream(CU_STREAM_NON_BLOCKING);
    CUstream waits = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = recorded(0, idle);
    OK(cuStreamWaitEvent(waits, event, 0));
    hold(busy);
    OK(cuEventRecord(event, busy));
    OK(cuStreamSynchronize(waits));
    release_all();
    OK(cuStreamSynchronize(busy));
}

RULE(wait_keeps_what_was_destroyed, .source = DRIVER_API "cuEventDestroy",
     .calls = "cuEventDestroy_v2 cuLaunchHostFunc") {
    primary_context();
    CUstream first = new_stream(CU_STREAM_NON_BLOCKING), then = new_stream(CU_STREAM_NON_BLOCKING);
    hold(first);
    CUevent event = recorded(0, first);
    OK(cuStreamWaitEvent(then, event, 0));
    OK(cuEventDestroy_v2(event)); /* does not block */
    NOT_YET(cuStreamQuery(then));
    release_all();
    OK(cuStreamSynchronize(then));
}

RULE(wait_across_contexts, .source = DRIVER_API "cuStreamWaitEvent", .calls = "cuStreamWaitEvent cuLaunchHostFunc") {
    new_context();
    CUstream first = new_stream(CU_STREAM_NON_BLOCKING);
    hold(first);
    CUevent event = recorded(0, first);
    new_context();
    CUstream then = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamWaitEvent(then, event, 0));
    NOT_YET(cuStreamQuery(then));
    release_all();
    OK(cuStreamSynchronize(then));
}

RULE(wait_with_unknown_flags, .source = DRIVER_API "cuStreamWaitEvent", .calls = "cuStreamWaitEvent") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(new_stream(0), new_event(0), 0x100));
}

RULE(wait_as_external_outside_of_capture, .source = DRIVER_API "cuStreamWaitEvent", .calls = "cuStreamWaitEvent") {
    primary_context();
    ONE_OF(cuStreamWaitEvent(new_stream(0), new_event(0), CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE,
           CUDA_ERROR_ILLEGAL_STATE);
}

RULE(wait_for_none, .source = DRIVER_API "cuStreamWaitEvent", .calls = "cuStreamWaitEvent") {
    primary_context();
    ONE_OF(cuStreamWaitEvent(new_stream(0), NULL, 0), BAD_HANDLE);
}

RULE(destroy_of_an_incomplete_one, .source = DRIVER_API "cuEventDestroy",
     .calls = "cuEventDestroy_v2 cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    OK(cuEventDestroy_v2(recorded(0, stream))); /* a driver that waits here hangs */
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    release_all();
    OK(cuStreamSynchronize(stream));
}

/* ---- times ---- */
static CUresult elapsed(CUevent start, CUevent end) {
    float ms = -1;
    CUresult result = cuEventElapsedTime(&ms, start, end);
    if (result == CUDA_SUCCESS) TRUE(ms >= 0);
    return result;
}

RULE(elapsed_is_not_negative, .source = DRIVER_API "cuEventElapsedTime", .calls = "cuEventElapsedTime") {
    primary_context();
    CUstream stream = new_stream(0);
    CUevent start = recorded(0, stream);
    OK(cuLaunchKernel(kernel("nothing"), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    CUevent end = recorded(0, stream);
    OK(cuEventSynchronize(end));
    OK(elapsed(start, end));
}

RULE(elapsed_of_one_event, .source = DRIVER_API "cuEventElapsedTime", .calls = "cuEventElapsedTime") {
    float ms = -1;
    primary_context();
    CUevent event = recorded(0, new_stream(0));
    OK(cuEventSynchronize(event));
    OK(cuEventElapsedTime(&ms, event, event));
    TRUE(ms == 0);
}

RULE(elapsed_without_a_record, .source = DRIVER_API "cuEventElapsedTime", .calls = "cuEventElapsedTime") {
    primary_context();
    CUevent event = recorded(0, new_stream(0)), never = new_event(0);
    OK(cuEventSynchronize(event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, elapsed(event, never));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, elapsed(never, event));
}

RULE(elapsed_without_timing, .source = DRIVER_API "cuEventElapsedTime", .calls = "cuEventElapsedTime") {
    primary_context();
    CUstream stream = new_stream(0);
    CUevent event = recorded(0, stream), without = recorded(CU_EVENT_DISABLE_TIMING, stream);
    OK(cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, elapsed(event, without));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, elapsed(without, event));
}

RULE(elapsed_before_completion, .source = DRIVER_API "cuEventElapsedTime",
     .calls = "cuEventElapsedTime cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent start = recorded(0, stream);
    hold(stream);
    CUevent end = recorded(0, stream);
    NOT_YET(elapsed(start, end));
    release_all();
    OK(cuEventSynchronize(end));
    OK(elapsed(start, end));
}

RULE(elapsed_of_none, .source = DRIVER_API "cuEventElapsedTime", .calls = "cuEventElapsedTime") {
    primary_context();
    CUevent event = recorded(0, new_stream(0));
    OK(cuEventSynchronize(event));
    ONE_OF(elapsed(event, NULL), BAD_HANDLE);
    ONE_OF(cuEventElapsedTime(NULL, event, event), BAD_HANDLE);
}

static unsigned word_there(CUdeviceptr word, CUstream stream) {
    unsigned there = 0;
    OK(cuMemcpyDtoHAsync_v2(&there, word, sizeof there, stream));
    OK(cuStreamSynchronize(stream));
    return there;
}
RULE(wait_for_another_device_holds_a_fill, .source = DRIVER_API "cuStreamWaitEvent",
     .calls = "cuStreamWaitEvent cuMemsetD32Async cuMemcpyDtoHAsync_v2 cuLaunchHostFunc") {
    CUcontext second = NULL;
    primary_context();
    NEEDS(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS, "needs two devices");
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING);
    hold(busy);
    CUevent event = recorded(CU_EVENT_DISABLE_TIMING, busy);
    OK(cuCtxSetCurrent(second));
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING), apart = new_stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr word = new_memory(4);
    OK(cuMemsetD32Async(word, 1, 1, apart));
    OK(cuStreamWaitEvent(stream, event, 0));
    OK(cuMemsetD32Async(word, 2, 1, stream));
    SAME(1, word_there(word, apart));
    release_all();
    SAME(2, word_there(word, stream));
}

/* ---- contexts ---- */
RULE(context_record_takes_in_all_streams, .source = DRIVER_API "cuCtxRecordEvent", .calls = "cuCtxRecordEvent") {
    CUcontext context = primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = new_event(0);
    hold(stream);
    OK(cuCtxRecordEvent(context, event));
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
}

RULE(context_record_of_another_context, .source = DRIVER_API "cuCtxRecordEvent", .calls = "cuCtxRecordEvent") {
    new_context();
    CUevent event = new_event(0);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(new_context(), event));
}

RULE(context_wait_holds_all_streams, .source = DRIVER_API "cuCtxWaitEvent", .calls = "cuCtxWaitEvent") {
    CUcontext first = primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    CUevent event = recorded(0, stream);
    CUcontext second = new_context();
    CUstream other = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuCtxWaitEvent(second, event));
    CUevent behind = recorded(0, other);
    NOT_YET(cuEventQuery(behind));
    release_all();
    OK(cuEventSynchronize(behind));
    TRUE(first != second);
}
