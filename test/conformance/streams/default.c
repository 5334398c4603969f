/* The legacy default stream and those of threads: who waits for whom. Held streams show it (rules.h). */
#define SUBJECT "default_streams"
#include "../rules.h"

#define BEHAVIOR DRIVER_API "Stream synchronization behavior"
#define CALLS "cuLaunchHostFunc cuMemsetD32Async cuEventRecord cuEventQuery"

static CUdeviceptr word;

/* Work in a stream, and an event behind it. */
static CUevent work_in(CUstream stream) {
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    OK(cuMemsetD32Async(word, 7, 1, stream));
    OK(cuEventRecord(event, stream));
    return event;
}

/* Work in `then`, while `first` is held, waits for it. */
static void expect_waits(CUstream first, CUstream then) {
    word = new_memory(4);
    hold(first);
    CUevent event = work_in(then);
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
}

/* Work in `then`, while `first` is held, does not wait for it: a driver in which it does hangs here. */
static void expect_passes(CUstream first, CUstream then) {
    word = new_memory(4);
    hold(first);
    OK(cuEventSynchronize(work_in(then)));
    release_all();
    OK(cuCtxSynchronize());
}

RULE(legacy_waits_for_blocking, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_waits(new_stream(CU_STREAM_DEFAULT), CU_STREAM_LEGACY);
}

RULE(null_is_legacy, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_waits(new_stream(CU_STREAM_DEFAULT), NULL);
}

RULE(blocking_waits_for_legacy, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_waits(CU_STREAM_LEGACY, new_stream(CU_STREAM_DEFAULT));
}

RULE(legacy_passes_non_blocking, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_passes(new_stream(CU_STREAM_NON_BLOCKING), CU_STREAM_LEGACY);
}

RULE(non_blocking_passes_legacy, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_passes(CU_STREAM_LEGACY, new_stream(CU_STREAM_NON_BLOCKING));
}

RULE(thread_stream_waits_for_legacy, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_waits(CU_STREAM_LEGACY, CU_STREAM_PER_THREAD);
}

RULE(legacy_waits_for_thread_stream, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_waits(CU_STREAM_PER_THREAD, CU_STREAM_LEGACY);
}

RULE(thread_stream_passes_blocking, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_passes(new_stream(CU_STREAM_DEFAULT), CU_STREAM_PER_THREAD);
}

RULE(blocking_passes_thread_stream, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    expect_passes(CU_STREAM_PER_THREAD, new_stream(CU_STREAM_DEFAULT));
}

RULE(legacy_stands_between_blocking_streams, .source = BEHAVIOR, .calls = CALLS) {
    primary_context();
    CUstream first = new_stream(CU_STREAM_DEFAULT), second = new_stream(CU_STREAM_DEFAULT);
    word = new_memory(4);
    hold(first);
    work_in(CU_STREAM_LEGACY);
    CUevent event = work_in(second);
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
}

RULE(legacy_of_another_context, .source = BEHAVIOR, .calls = CALLS) {
    new_context();
    CUstream first = new_stream(CU_STREAM_DEFAULT);
    hold(first);
    new_context();
    word = new_memory(4);
    OK(cuEventSynchronize(work_in(CU_STREAM_LEGACY)));
    release_all();
    OK(cuStreamSynchronize(first));
}

RULE(blocking_of_another_context, .source = BEHAVIOR, .calls = CALLS) {
    CUcontext first = new_context();
    hold(CU_STREAM_LEGACY);
    new_context();
    word = new_memory(4);
    OK(cuEventSynchronize(work_in(new_stream(CU_STREAM_DEFAULT))));
    release_all();
    OK(cuCtxSetCurrent(first));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
}

RULE(legacy_streams_of_two_contexts, .source = BEHAVIOR, .calls = CALLS) {
    CUcontext first = new_context();
    hold(CU_STREAM_LEGACY);
    new_context();
    word = new_memory(4);
    OK(cuEventSynchronize(work_in(CU_STREAM_LEGACY)));
    OK(cuStreamQuery(CU_STREAM_LEGACY));
    OK(cuCtxSetCurrent(first));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
    release_all();
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
}

/* More streams than a GPU has queues for: some share one. */
enum { MANY_STREAMS = 300 };
RULE(legacy_waits_for_each_of_many_streams, .source = BEHAVIOR, .calls = CALLS) {
    CUevent events[MANY_STREAMS];
    primary_context();
    word = new_memory(4);
    CUstream held = new_stream(CU_STREAM_NON_BLOCKING), apart = new_stream(CU_STREAM_NON_BLOCKING);
    hold(held);
    for (int i = 0; i < MANY_STREAMS; i++) events[i] = work_in(new_stream(CU_STREAM_DEFAULT));
    CUevent legacy = work_in(CU_STREAM_LEGACY);
    OK(cuEventSynchronize(work_in(apart)));
    bool is_done = cuEventQuery(legacy) == CUDA_SUCCESS;
    for (int i = 0; i < MANY_STREAMS && is_done; i++) OK(cuEventQuery(events[i]));
    release_all();
    OK(cuEventSynchronize(legacy));
    for (int i = 0; i < MANY_STREAMS; i++) OK(cuEventQuery(events[i]));
}

RULE(null_of_thread_forms_is_the_threads, .source = BEHAVIOR, .calls = "cuStreamQuery_ptsz cuLaunchHostFunc") {
    primary_context();
    hold(CU_STREAM_PER_THREAD);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery_ptsz(NULL));
    release_all();
    OK(cuStreamSynchronize_ptsz(NULL));
}

RULE(handles_mean_the_same_in_thread_forms, .source = BEHAVIOR, .calls = "cuStreamQuery_ptsz cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery_ptsz(stream));
    OK(cuStreamQuery_ptsz(CU_STREAM_LEGACY));
    release_all();
    OK(cuStreamSynchronize_ptsz(stream));
}

static CUcontext shared;
static void work_in_own_thread(void) {
    OK(cuCtxSetCurrent(shared));
    OK(cuEventSynchronize(work_in(CU_STREAM_PER_THREAD)));
}
RULE(streams_of_two_threads_are_independent, .source = BEHAVIOR, .calls = CALLS) {
    shared = primary_context();
    word = new_memory(4);
    hold(CU_STREAM_PER_THREAD);
    in_thread(work_in_own_thread);
    release_all();
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

static CUevent event_of_thread;
static void work_in_legacy(void) {
    OK(cuCtxSetCurrent(shared));
    event_of_thread = work_in(CU_STREAM_LEGACY);
}
RULE(threads_share_the_legacy_stream, .source = BEHAVIOR, .calls = CALLS) {
    shared = primary_context();
    word = new_memory(4);
    hold(CU_STREAM_LEGACY);
    in_thread(work_in_legacy);
    NOT_YET(cuEventQuery(event_of_thread));
    release_all();
    OK(cuEventSynchronize(event_of_thread));
}
