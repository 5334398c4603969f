/* Green contexts: parts of a device's multiprocessors, their contexts and streams. */
#define SUBJECT "green_contexts"
#include <unistd.h>

#include "../rules.h"

static CUdevResource all_of_it(void) {
    CUdevResource resource = {.type = 0};
    OK(cuDeviceGetDevResource(start_driver(), &resource, CU_DEV_RESOURCE_TYPE_SM));
    return resource;
}

static CUdevResource part_of_it(void) {
    CUdevResource all = all_of_it(), part = {.type = 0}, rest = {.type = 0};
    unsigned groups = 1;
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, 8));
    SAME(1, groups);
    return part;
}

static CUgreenCtx new_green(void) {
    CUdevResource part = part_of_it();
    CUdevResourceDesc desc = NULL;
    CUgreenCtx green = NULL;
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static CUcontext context_of(CUgreenCtx green) {
    CUcontext context = NULL;
    OK(cuCtxFromGreenCtx(&context, green));
    TRUE(context != NULL);
    return context;
}

static int is_active(void) {
    unsigned flags = 0;
    int active = -1;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    return active;
}

RULE(resource_of_a_device, .source = DRIVER_API "cuDeviceGetDevResource", .calls = "cuDeviceGetDevResource") {
    CUdevResource all = all_of_it();
    SAME(CU_DEV_RESOURCE_TYPE_SM, all.type);
    SAME(device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), all.sm_count);
}

RULE(resource_of_no_type, .source = DRIVER_API "cuDeviceGetDevResource", .calls = "cuDeviceGetDevResource") {
    CUdevResource resource = {.type = 0};
    ONE_OF(cuDeviceGetDevResource(start_driver(), &resource, 999), CUDA_ERROR_INVALID_RESOURCE_TYPE,
           CUDA_ERROR_INVALID_VALUE);
}

RULE(split_gives_at_least_what_was_asked, .source = DRIVER_API "cuDevSmResourceSplitByCount",
     .calls = "cuDevSmResourceSplitByCount") {
    CUdevResource all = all_of_it(), part = {.type = 0}, rest = {.type = 0};
    unsigned groups = 1;
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, 7));
    SAME(1, groups);
    TRUE(part.sm_count >= 7);
    TRUE(part.sm_count + rest.sm_count <= all.sm_count);
}

RULE(split_can_be_counted_first, .source = DRIVER_API "cuDevSmResourceSplitByCount",
     .calls = "cuDevSmResourceSplitByCount") {
    CUdevResource all = all_of_it();
    unsigned groups = 0;
    OK(cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, 8));
    TRUE(groups >= 1 && groups * 8 <= all.sm_count);
}

RULE(create_does_not_make_it_current, .source = DRIVER_API "cuGreenCtxCreate", .calls = "cuGreenCtxCreate") {
    TRUE(new_green() != NULL);
    TRUE(current_context() == NULL);
}

RULE(create_retains_the_primary, .source = DRIVER_API "cuGreenCtxCreate",
     .calls = "cuGreenCtxCreate cuGreenCtxDestroy") {
    start_driver();
    SAME(0, is_active());
    CUgreenCtx green = new_green();
    SAME(1, is_active());
    OK(cuGreenCtxDestroy(green));
    SAME(0, is_active());
}

RULE(create_of_no_device, .source = DRIVER_API "cuGreenCtxCreate", .calls = "cuGreenCtxCreate") {
    CUdevResource part = part_of_it();
    CUdevResourceDesc desc = NULL;
    CUgreenCtx green = NULL;
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuGreenCtxCreate(&green, desc, 99, CU_GREEN_CTX_DEFAULT_STREAM));
}

RULE(create_without_place, .source = DRIVER_API "cuGreenCtxCreate", .calls = "cuGreenCtxCreate") {
    CUdevResource part = part_of_it();
    CUdevResourceDesc desc = NULL;
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(NULL, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}

RULE(its_context_can_be_current, .source = DRIVER_API "cuCtxFromGreenCtx", .calls = "cuCtxFromGreenCtx") {
    CUcontext context = context_of(new_green());
    OK(cuCtxSetCurrent(context));
    TRUE(current_context() == context);
    new_memory(1);
    OK(cuCtxSynchronize());
}

RULE(its_resource_is_its_part, .source = DRIVER_API "cuGreenCtxGetDevResource",
     .calls = "cuGreenCtxGetDevResource cuCtxGetDevResource") {
    CUdevResource mine = {.type = 0}, same = {.type = 0};
    CUgreenCtx green = new_green();
    OK(cuGreenCtxGetDevResource(green, &mine, CU_DEV_RESOURCE_TYPE_SM));
    TRUE(mine.sm_count >= 8 && mine.sm_count <= all_of_it().sm_count);
    OK(cuCtxGetDevResource(context_of(green), &same, CU_DEV_RESOURCE_TYPE_SM));
    SAME(mine.sm_count, same.sm_count);
}

RULE(a_stream_of_it, .source = DRIVER_API "cuGreenCtxStreamCreate",
     .calls = "cuGreenCtxStreamCreate cuStreamGetGreenCtx") {
    CUstream stream = NULL;
    CUgreenCtx green = new_green(), answered = NULL;
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamGetGreenCtx(stream, &answered));
    TRUE(answered == green);
}

RULE(a_stream_of_it_must_be_non_blocking, .source = DRIVER_API "cuGreenCtxStreamCreate",
     .calls = "cuGreenCtxStreamCreate") {
    CUstream stream = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&stream, new_green(), CU_STREAM_DEFAULT, 0));
}

RULE(contexts_of_its_stream, .source = DRIVER_API "cuStreamGetCtx_v2",
     .calls = "cuGreenCtxStreamCreate cuStreamGetCtx_v2") {
    CUstream stream = NULL;
    CUcontext context = NULL, primary = NULL;
    CUgreenCtx green = new_green(), answered = NULL;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamGetCtx_v2(stream, &context, &answered));
    TRUE(answered == green);
    TRUE(context == primary);
}

RULE(event_of_it, .source = DRIVER_API "cuGreenCtxRecordEvent", .calls = "cuGreenCtxRecordEvent cuGreenCtxWaitEvent") {
    CUgreenCtx green = new_green();
    primary_context();
    CUevent event = new_event(0);
    OK(cuGreenCtxRecordEvent(green, event));
    OK(cuEventSynchronize(event));
    OK(cuGreenCtxWaitEvent(green, event));
}

static int was_awaited;
static void take_a_while(void *unused) {
    usleep(50000);
    *(volatile int *)&was_awaited = 1;
}
RULE(primary_synchronizes_its_streams, .source = DRIVER_API "cuCtxSynchronize",
     .calls = "cuGreenCtxStreamCreate cuLaunchHostFunc cuCtxSynchronize") {
    CUgreenCtx green = new_green();
    CUstream stream = NULL;
    primary_context();
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuLaunchHostFunc(stream, take_a_while, NULL));
    OK(cuCtxSynchronize());
    TRUE(*(volatile int *)&was_awaited);
}

RULE(contexts_of_default_streams, .source = DRIVER_API "cuStreamGetCtx_v2", .calls = "cuStreamGetCtx_v2") {
    CUcontext context = NULL, primary = primary_context();
    CUgreenCtx green = new_green(), answered = NULL;
    OK(cuStreamGetCtx_v2(CU_STREAM_PER_THREAD, &context, &answered));
    TRUE(context == primary && !answered);
    OK(cuCtxSetCurrent(context_of(green)));
    context = NULL;
    OK(cuStreamGetCtx_v2(NULL, &context, &answered));
    TRUE(context == primary && answered == green);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamGetCtx_v2(CU_STREAM_PER_THREAD, &context, &answered));
}

RULE(record_of_the_primary_takes_it_in, .source = DRIVER_API "cuCtxRecordEvent",
     .calls = "cuGreenCtxStreamCreate cuLaunchHostFunc cuCtxRecordEvent") {
    CUgreenCtx green = new_green();
    CUstream stream = NULL;
    CUcontext primary = primary_context();
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    hold(stream);
    OK(cuCtxRecordEvent(primary, event));
    NOT_YET(cuEventQuery(event));
    release_all();
    OK(cuEventSynchronize(event));
}

RULE(wait_of_the_primary_holds_it, .source = DRIVER_API "cuCtxWaitEvent",
     .calls = "cuGreenCtxStreamCreate cuLaunchHostFunc cuCtxWaitEvent") {
    CUgreenCtx green = new_green();
    CUstream of_green = NULL;
    CUcontext primary = primary_context();
    CUstream busy = new_stream(CU_STREAM_NON_BLOCKING);
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING), behind = new_event(CU_EVENT_DISABLE_TIMING);
    OK(cuGreenCtxStreamCreate(&of_green, green, CU_STREAM_NON_BLOCKING, 0));
    hold(busy);
    OK(cuEventRecord(event, busy));
    OK(cuCtxWaitEvent(primary, event));
    OK(cuEventRecord(behind, of_green));
    NOT_YET(cuEventQuery(behind));
    release_all();
    OK(cuEventSynchronize(behind));
}

RULE(destroy_of_none, .source = DRIVER_API "cuGreenCtxDestroy", .calls = "cuGreenCtxDestroy") {
    start_driver();
    ONE_OF(cuGreenCtxDestroy(NULL), CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE);
}

/* ---- streams of one that is gone ---- */

static CUstream stream_of(CUgreenCtx green) {
    CUstream stream = NULL;
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    return stream;
}

static void expect_detached(CUstream stream, CUdeviceptr word, CUevent event) {
    unsigned flags = 0;
    CUgraph graph = NULL;
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamQuery(stream));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamGetFlags(stream, &flags));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamWaitEvent(stream, event, 0));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuEventRecord(event, stream));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuMemsetD32Async(word, 1, 1, stream));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuLaunchHostFunc(stream, take_a_while, NULL));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamEndCapture(stream, &graph));
    OK(cuStreamDestroy_v2(stream));
}
#define DETACHED "cuGreenCtxDestroy cuGreenCtxStreamCreate cuStreamQuery cuEventRecord cuStreamDestroy_v2"

RULE(destroy_detaches_its_streams, .source = DRIVER_API "cuGreenCtxDestroy", .calls = DETACHED) {
    primary_context();
    NEEDS(driver_version() >= 13010, "needs CUDA 13.1");
    CUgreenCtx green = new_green();
    CUstream stream = stream_of(green);
    OK(cuGreenCtxDestroy(green));
    expect_detached(stream, new_memory(4), new_event(0));
}

RULE(destroy_detaches_streams_made_while_current, .source = DRIVER_API "cuGreenCtxDestroy", .calls = DETACHED) {
    CUcontext primary = primary_context();
    NEEDS(driver_version() >= 13010, "needs CUDA 13.1");
    CUgreenCtx green = new_green();
    OK(cuCtxSetCurrent(context_of(green)));
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuCtxSetCurrent(primary));
    OK(cuGreenCtxDestroy(green));
    expect_detached(stream, new_memory(4), new_event(0));
}

RULE(destroy_invalidates_its_captures, .source = DRIVER_API "cuGreenCtxDestroy",
     .calls = DETACHED " cuStreamBeginCapture_v2 cuStreamEndCapture cuStreamWaitEvent") {
    primary_context();
    NEEDS(driver_version() >= 13010, "needs CUDA 13.1");
    CUgreenCtx green = new_green();
    CUstream origin = new_stream(CU_STREAM_NON_BLOCKING), joined = stream_of(green);
    CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
    CUgraph graph = NULL;
    OK(cuStreamBeginCapture_v2(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(event, origin));
    OK(cuStreamWaitEvent(joined, event, 0));
    OK(cuGreenCtxDestroy(green));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(origin, &graph));
    TRUE(graph == NULL);
}
