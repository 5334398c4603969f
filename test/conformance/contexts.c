/* Contexts: creation, the stack of each thread, and what is current. */
#define SUBJECT "contexts"
#include "rules.h"

RULE(create_makes_it_current, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v2 cuCtxGetCurrent") {
    CUcontext context = new_context();
    TRUE(context != NULL);
    TRUE(current_context() == context);
}

RULE(create_of_no_device, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v2") {
    CUcontext context = NULL;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate_v2(&context, 0, 99));
}

RULE(create_before_init, .source = DRIVER_API "cuInit", .calls = "cuCtxCreate_v2") {
    CUcontext context = NULL;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuCtxCreate_v2(&context, 0, 0));
}

RULE(pop_answers_the_popped, .source = DRIVER_API "cuCtxPopCurrent", .calls = "cuCtxPopCurrent_v2") {
    CUcontext context = new_context(), popped = NULL;
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(popped == context);
    TRUE(current_context() == NULL);
}

RULE(pop_restores_the_one_below, .source = DRIVER_API "cuCtxPopCurrent", .calls = "cuCtxPopCurrent_v2") {
    CUcontext first = new_context(), popped = NULL;
    new_context();
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(current_context() == first);
}

RULE(get_current_without_one, .source = DRIVER_API "cuCtxGetCurrent", .calls = "cuCtxGetCurrent") {
    start_driver();
    TRUE(current_context() == NULL);
}

RULE(device_of_no_context, .source = DRIVER_API "cuCtxGetDevice", .calls = "cuCtxGetDevice") {
    CUdevice device;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
}

RULE(destroyed_is_popped_where_current, .source = DRIVER_API "cuCtxDestroy", .calls = "cuCtxDestroy_v2") {
    CUcontext first = new_context(), second = new_context();
    OK(cuCtxDestroy_v2(second));
    TRUE(current_context() == first);
}

RULE(set_current_null_pops, .source = DRIVER_API "cuCtxSetCurrent", .calls = "cuCtxSetCurrent") {
    new_context();
    OK(cuCtxSetCurrent(NULL));
    TRUE(current_context() == NULL);
}

static void expect_no_context(void) {
    TRUE(current_context() == NULL);
}
RULE(other_threads_have_none, .source = DRIVER_API "Context Management", .calls = "cuCtxCreate_v2 cuCtxGetCurrent") {
    new_context();
    in_thread(expect_no_context);
}

RULE(busy_stream_is_not_ready, .source = DRIVER_API "cuStreamQuery", .calls = "cuStreamQuery cuLaunchHostFunc") {
    primary_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    hold(stream);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    release_all();
    OK(cuStreamSynchronize(stream));
    OK(cuStreamQuery(stream));
}
