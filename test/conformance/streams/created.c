/* Streams: creation, priorities, handles and ids, attributes, what is in order, and what runs on the host. */
#define SUBJECT "streams"
#include "../rules.h"

#define BAD_HANDLE CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE

static CUdeviceptr word;
static void enqueue(CUstream stream) {
    if (!word) word = new_memory(4);
    OK(cuMemsetD32Async(word, 7, 1, stream));
}

static int least, greatest;
static void read_priorities(void) {
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
}

RULE(create_of_the_default_kind, .source = DRIVER_API "cuStreamCreate", .calls = "cuStreamCreate cuStreamGetFlags") {
    unsigned flags = 9;
    primary_context();
    OK(cuStreamGetFlags(new_stream(CU_STREAM_DEFAULT), &flags));
    SAME(CU_STREAM_DEFAULT, flags);
}

RULE(create_of_the_non_blocking_kind, .source = DRIVER_API "cuStreamGetFlags",
     .calls = "cuStreamCreate cuStreamGetFlags") {
    unsigned flags = 9;
    primary_context();
    OK(cuStreamGetFlags(new_stream(CU_STREAM_NON_BLOCKING), &flags));
    SAME(CU_STREAM_NON_BLOCKING, flags);
}

RULE(create_with_unknown_flags, .source = DRIVER_API "cuStreamCreate", .calls = "cuStreamCreate") {
    CUstream stream = NULL;
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 0x100));
}

RULE(create_without_context, .source = DRIVER_API "cuStreamCreate", .calls = "cuStreamCreate") {
    CUstream stream = NULL;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuStreamCreate(&stream, 0));
}

RULE(create_without_place, .source = DRIVER_API "cuStreamCreate", .calls = "cuStreamCreate") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));
}

RULE(flags_without_place, .source = DRIVER_API "cuStreamGetFlags", .calls = "cuStreamGetFlags") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamGetFlags(new_stream(0), NULL));
}

RULE(priority_of_a_plain_stream, .source = DRIVER_API "cuStreamCreateWithPriority", .calls = "cuStreamGetPriority") {
    int priority = 99;
    primary_context();
    OK(cuStreamGetPriority(new_stream(0), &priority));
    SAME(0, priority);
}

static void expect_priority(int asked, int want) {
    CUstream stream = NULL;
    int priority = 99;
    OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, asked));
    OK(cuStreamGetPriority(stream, &priority));
    SAME(want, priority);
}

RULE(priority_within_the_range, .source = DRIVER_API "cuStreamGetPriority",
     .calls = "cuStreamCreateWithPriority cuStreamGetPriority") {
    primary_context();
    read_priorities();
    for (int priority = greatest; priority <= least; priority++) expect_priority(priority, priority);
}

RULE(priority_above_the_range_is_clamped, .source = DRIVER_API "cuStreamCreateWithPriority",
     .calls = "cuStreamCreateWithPriority cuStreamGetPriority") {
    primary_context();
    read_priorities();
    expect_priority(greatest - 100, greatest);
}

RULE(priority_below_the_range_is_clamped, .source = DRIVER_API "cuStreamCreateWithPriority",
     .calls = "cuStreamCreateWithPriority cuStreamGetPriority") {
    primary_context();
    read_priorities();
    expect_priority(least + 100, least);
}

RULE(priority_keeps_the_flags, .source = DRIVER_API "cuStreamGetFlags", .calls = "cuStreamCreateWithPriority") {
    CUstream stream = NULL;
    unsigned flags = 9;
    primary_context();
    OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamGetFlags(stream, &flags));
    SAME(CU_STREAM_NON_BLOCKING, flags);
}

RULE(priority_with_unknown_flags, .source = DRIVER_API "cuStreamCreateWithPriority",
     .calls = "cuStreamCreateWithPriority") {
    CUstream stream = NULL;
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamCreateWithPriority(&stream, 0x100, 0));
}

RULE(context_is_that_of_creation, .source = DRIVER_API "cuStreamGetCtx", .calls = "cuStreamGetCtx") {
    CUcontext first = new_context(), context = NULL;
    CUstream stream = new_stream(0);
    new_context();
    OK(cuStreamGetCtx(stream, &context));
    TRUE(context == first);
}

RULE(context_of_special_handles_is_the_current, .source = DRIVER_API "cuStreamGetCtx", .calls = "cuStreamGetCtx") {
    CUcontext mine = new_context(), context = NULL;
    OK(cuStreamGetCtx(NULL, &context));
    TRUE(context == mine);
    OK(cuStreamGetCtx(CU_STREAM_LEGACY, &context));
    TRUE(context == mine);
    OK(cuStreamGetCtx(CU_STREAM_PER_THREAD, &context));
    TRUE(context == mine);
}

RULE(context_of_special_handles_without_one, .source = DRIVER_API "cuStreamGetCtx", .calls = "cuStreamGetCtx") {
    CUcontext context = NULL;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuStreamGetCtx(NULL, &context));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuStreamGetCtx(CU_STREAM_LEGACY, &context));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuStreamGetCtx(CU_STREAM_PER_THREAD, &context));
}

RULE(contexts_of_a_plain_stream, .source = DRIVER_API "cuStreamGetCtx_v2", .calls = "cuStreamGetCtx_v2") {
    CUcontext mine = new_context(), context = NULL;
    CUgreenCtx green = (CUgreenCtx)1;
    OK(cuStreamGetCtx_v2(new_stream(0), &context, &green));
    TRUE(context == mine);
    TRUE(green == NULL);
}

RULE(green_context_of_a_plain_stream, .source = DRIVER_API "cuStreamGetGreenCtx", .calls = "cuStreamGetGreenCtx") {
    CUgreenCtx green = (CUgreenCtx)1;
    primary_context();
    OK(cuStreamGetGreenCtx(new_stream(0), &green));
    TRUE(green == NULL);
}

RULE(ids_differ, .source = DRIVER_API "cuStreamGetId", .calls = "cuStreamGetId") {
    unsigned long long first = 0, second = 0, again = 0;
    primary_context();
    CUstream stream = new_stream(0);
    OK(cuStreamGetId(stream, &first));
    OK(cuStreamGetId(stream, &again));
    SAME(first, again);
    OK(cuStreamGetId(new_stream(0), &second));
    TRUE(first != second);
}

RULE(ids_are_not_given_again, .source = DRIVER_API "cuStreamGetId", .calls = "cuStreamGetId cuStreamDestroy_v2") {
    unsigned long long first = 0, second = 0;
    primary_context();
    CUstream stream = new_stream(0);
    OK(cuStreamGetId(stream, &first));
    OK(cuStreamDestroy_v2(stream));
    OK(cuStreamGetId(new_stream(0), &second));
    TRUE(first != second);
}

RULE(ids_of_special_handles, .source = DRIVER_API "cuStreamGetId", .calls = "cuStreamGetId") {
    unsigned long long null = 0, legacy = 0, own = 0;
    primary_context();
    OK(cuStreamGetId(NULL, &null));
    OK(cuStreamGetId(CU_STREAM_LEGACY, &legacy));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
    SAME(legacy, null);
    TRUE(own != legacy);
}

static unsigned long long id_of_thread;
static void read_id_of_thread(void) {
    primary_context();
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &id_of_thread));
}
RULE(each_thread_has_a_default_stream, .source = DRIVER_API "Stream synchronization behavior",
     .calls = "cuStreamGetId") {
    unsigned long long mine = 0;
    primary_context();
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine));
    in_thread(read_id_of_thread);
    TRUE(mine != id_of_thread);
}

RULE(device_is_that_of_its_context, .source = DRIVER_API "cuStreamGetDevice", .calls = "cuStreamGetDevice") {
    CUdevice device = -1;
    primary_context();
    OK(cuStreamGetDevice(new_stream(0), &device));
    SAME(0, device);
}

RULE(query_of_an_idle_stream, .source = DRIVER_API "cuStreamQuery", .calls = "cuStreamQuery") {
    primary_context();
    OK(cuStreamQuery(new_stream(0)));
    OK(cuStreamQuery(NULL));
    OK(cuStreamQuery(CU_STREAM_PER_THREAD));
}

RULE(query_of_a_busy_stream, .source = DRIVER_API "cuStreamQuery", .calls = "cuStreamQuery cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    release_all();
    OK(cuStreamSynchronize(stream));
    OK(cuStreamQuery(stream));
}

RULE(not_ready_is_no_error_that_stays, .source = DRIVER_API "CUDA_ERROR_NOT_READY", .calls = "cuStreamQuery") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    new_memory(1);
    release_all();
    OK(cuStreamSynchronize(stream));
}

RULE(destroy_of_a_busy_stream_returns, .source = DRIVER_API "cuStreamDestroy",
     .calls = "cuStreamDestroy_v2 cuLaunchHostFunc") {
    unsigned value = 0;
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = new_event(0);
    hold(stream);
    enqueue(stream);
    OK(cuEventRecord(event, stream));
    OK(cuStreamDestroy_v2(stream)); /* while it is held: a driver that waits here hangs */
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
    OK(cuMemcpyDtoH_v2(&value, word, sizeof(value)));
    SAME(0x07, value & 0xff);
}

RULE(destroy_of_special_handles, .source = DRIVER_API "cuStreamDestroy", .calls = "cuStreamDestroy_v2",
     .recalled = true) {
    primary_context();
    ONE_OF(cuStreamDestroy_v2(NULL), BAD_HANDLE);
    ONE_OF(cuStreamDestroy_v2(CU_STREAM_LEGACY), BAD_HANDLE, CUDA_ERROR_NOT_PERMITTED);
    ONE_OF(cuStreamDestroy_v2(CU_STREAM_PER_THREAD), BAD_HANDLE, CUDA_ERROR_NOT_PERMITTED);
}

RULE(work_is_in_order, .source = GUIDE "Streams", .calls = "cuMemsetD32Async cuMemcpyDtoHAsync_v2") {
    unsigned values[2] = {0, 0};
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    word = new_memory(4);
    OK(cuMemsetD32Async(word, 1, 1, stream));
    OK(cuMemcpyDtoHAsync_v2(&values[0], word, 4, stream));
    OK(cuMemsetD32Async(word, 2, 1, stream));
    OK(cuMemcpyDtoHAsync_v2(&values[1], word, 4, stream));
    OK(cuStreamSynchronize(stream));
    SAME(1, values[0]);
    SAME(2, values[1]);
}

RULE(created_streams_are_independent, .source = GUIDE "Streams", .calls = "cuStreamSynchronize cuLaunchHostFunc") {
    primary_context();
    CUstream first = new_stream(0), second = new_stream(0);
    enqueue(second);
    hold(first);
    enqueue(second);
    OK(cuStreamSynchronize(second));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(first));
    release_all();
    OK(cuStreamSynchronize(first));
}

/* ---- attributes ---- */
RULE(attribute_is_what_was_set, .source = DRIVER_API "cuStreamSetAttribute",
     .calls = "cuStreamSetAttribute cuStreamGetAttribute") {
    int value[16] = {CU_SYNC_POLICY_YIELD}, read[16] = {0};
    primary_context();
    CUstream stream = new_stream(0);
    OK(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, value));
    OK(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, read));
    SAME(CU_SYNC_POLICY_YIELD, read[0]);
}

RULE(attributes_are_copied, .source = DRIVER_API "cuStreamCopyAttributes", .calls = "cuStreamCopyAttributes") {
    int value[16] = {CU_SYNC_POLICY_SPIN}, read[16] = {0};
    primary_context();
    CUstream from = new_stream(0), to = new_stream(0);
    OK(cuStreamSetAttribute(from, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, value));
    OK(cuStreamCopyAttributes(to, from));
    OK(cuStreamGetAttribute(to, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, read));
    SAME(CU_SYNC_POLICY_SPIN, read[0]);
}

RULE(attribute_of_launches_only, .source = DRIVER_API "cuStreamGetAttribute", .calls = "cuStreamGetAttribute") {
    int read[16] = {0};
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(new_stream(0), CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, read));
}
