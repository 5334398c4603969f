/* Contexts that a program creates: the stack of each thread, what is current, and the end. */
#define SUBJECT "contexts"
#include "../rules.h"

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

RULE(create_with_unknown_flags, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v2") {
    CUcontext context = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2(&context, 0x40000000, start_driver()));
    TRUE(current_context() == NULL);
}

RULE(create_without_place, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v2") {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2(NULL, 0, start_driver()));
}

RULE(only_one_scheduling_flag, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v2") {
    CUcontext context = NULL;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2(&context, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD, start_driver()));
}

RULE(create_supplants, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v2") {
    CUcontext first = new_context(), second = new_context(), third = new_context(), popped = NULL;
    TRUE(first != second && second != third && first != third);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(popped == third);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(popped == second);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(popped == first);
    TRUE(current_context() == NULL);
}

RULE(create_with_parameters_of_none, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v4") {
    CUcontext context = NULL;
    OK(cuCtxCreate_v4(&context, NULL, 0, start_driver()));
    TRUE(current_context() == context);
}

RULE(create_of_the_third_form, .source = DRIVER_API "cuCtxCreate", .calls = "cuCtxCreate_v3") {
    CUcontext context = NULL;
    OK(cuCtxCreate_v3(&context, NULL, 0, 0, start_driver()));
    TRUE(current_context() == context);
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

RULE(pop_of_an_empty_stack, .source = DRIVER_API "cuCtxPopCurrent", .calls = "cuCtxPopCurrent_v2") {
    CUcontext popped = NULL;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&popped));
}

RULE(pop_without_place, .source = DRIVER_API "cuCtxPopCurrent", .calls = "cuCtxPopCurrent_v2", .recalled = true) {
    new_context();
    OK(cuCtxPopCurrent_v2(NULL));
    TRUE(current_context() == NULL);
}

RULE(push_makes_it_current, .source = DRIVER_API "cuCtxPushCurrent", .calls = "cuCtxPushCurrent_v2") {
    CUcontext first = new_context(), second = new_context(), popped = NULL;
    OK(cuCtxPushCurrent_v2(first));
    TRUE(current_context() == first);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(popped == first);
    TRUE(current_context() == second);
}

RULE(push_of_the_current_is_no_error, .source = DRIVER_API "CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
     .calls = "cuCtxPushCurrent_v2") {
    CUcontext context = new_context(), popped = NULL;
    OK(cuCtxPushCurrent_v2(context));
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(current_context() == context);
}

RULE(push_of_none, .source = DRIVER_API "cuCtxPushCurrent", .calls = "cuCtxPushCurrent_v2") {
    start_driver();
    ONE_OF(cuCtxPushCurrent_v2(NULL), CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE);
}

static CUcontext shared;
static void push_shared(void) {
    CUcontext popped = NULL;
    TRUE(current_context() == NULL);
    OK(cuCtxPushCurrent_v2(shared));
    TRUE(current_context() == shared);
    new_memory(1);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(popped == shared);
}

RULE(current_to_two_threads, .source = DRIVER_API "Context Management",
     .calls = "cuCtxPushCurrent_v2 cuCtxPopCurrent_v2", .recalled = true) {
    shared = new_context();
    in_thread(push_shared);
    TRUE(current_context() == shared);
}

RULE(popped_is_pushed_by_another_thread, .source = DRIVER_API "cuCtxPopCurrent",
     .calls = "cuCtxPushCurrent_v2 cuCtxPopCurrent_v2") {
    new_context();
    OK(cuCtxPopCurrent_v2(&shared));
    in_thread(push_shared);
}

static void expect_no_context(void) {
    TRUE(current_context() == NULL);
}
RULE(other_threads_have_none, .source = DRIVER_API "Context Management", .calls = "cuCtxCreate_v2 cuCtxGetCurrent",
     .recalled = true) {
    new_context();
    in_thread(expect_no_context);
}

RULE(set_current_replaces_the_top, .source = DRIVER_API "cuCtxSetCurrent", .calls = "cuCtxSetCurrent") {
    CUcontext first = new_context(), second = new_context(), third = new_context(), popped = NULL;
    OK(cuCtxSetCurrent(first));
    TRUE(current_context() == first);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(current_context() == second);
    TRUE(third != first);
}

RULE(set_current_on_an_empty_stack, .source = DRIVER_API "cuCtxSetCurrent", .calls = "cuCtxSetCurrent") {
    CUcontext context = new_context(), popped = NULL;
    OK(cuCtxPopCurrent_v2(&popped));
    OK(cuCtxSetCurrent(context));
    TRUE(current_context() == context);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(current_context() == NULL);
}

RULE(set_current_null_pops, .source = DRIVER_API "cuCtxSetCurrent", .calls = "cuCtxSetCurrent") {
    CUcontext first = new_context();
    new_context();
    OK(cuCtxSetCurrent(NULL));
    TRUE(current_context() == first);
}

RULE(set_current_null_on_an_empty_stack, .source = DRIVER_API "cuCtxSetCurrent", .calls = "cuCtxSetCurrent") {
    start_driver();
    OK(cuCtxSetCurrent(NULL));
    TRUE(current_context() == NULL);
}

RULE(get_current_without_one, .source = DRIVER_API "cuCtxGetCurrent", .calls = "cuCtxGetCurrent") {
    CUcontext context = (CUcontext)1;
    start_driver();
    OK(cuCtxGetCurrent(&context));
    TRUE(context == NULL);
}

RULE(device_of_the_current, .source = DRIVER_API "cuCtxGetDevice", .calls = "cuCtxGetDevice") {
    CUdevice device = -1;
    new_context();
    OK(cuCtxGetDevice(&device));
    SAME(0, device);
}

RULE(device_of_no_context, .source = DRIVER_API "cuCtxGetDevice", .calls = "cuCtxGetDevice") {
    CUdevice device = -1;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
}

RULE(device_without_place, .source = DRIVER_API "cuCtxGetDevice", .calls = "cuCtxGetDevice") {
    new_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxGetDevice(NULL));
}

RULE(destroyed_is_popped_where_current, .source = DRIVER_API "cuCtxDestroy", .calls = "cuCtxDestroy_v2") {
    CUcontext first = new_context(), second = new_context();
    OK(cuCtxDestroy_v2(second));
    TRUE(current_context() == first);
}

RULE(destroyed_below_the_top_stays, .source = DRIVER_API "cuCtxDestroy", .calls = "cuCtxDestroy_v2") {
    CUcontext first = new_context(), second = new_context();
    OK(cuCtxDestroy_v2(first));
    TRUE(current_context() == second);
    new_memory(1);
}

RULE(destroy_of_none, .source = DRIVER_API "cuCtxDestroy", .calls = "cuCtxDestroy_v2") {
    start_driver();
    ONE_OF(cuCtxDestroy_v2(NULL), CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE);
}

static void destroy_shared(void) {
    OK(cuCtxDestroy_v2(shared));
}
RULE(destroyed_by_another_thread_stays_current, .source = DRIVER_API "cuCtxDestroy", .calls = "cuCtxDestroy_v2") {
    CUdeviceptr memory = 0;
    shared = new_context();
    in_thread(destroy_shared);
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&memory, 1));
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
}

RULE(destroyed_by_another_thread_can_be_popped, .source = DRIVER_API "cuCtxDestroy",
     .calls = "cuCtxDestroy_v2 cuCtxPopCurrent_v2", .recalled = true) {
    CUcontext below = new_context(), popped = NULL;
    shared = new_context();
    in_thread(destroy_shared);
    OK(cuCtxPopCurrent_v2(&popped));
    TRUE(current_context() == below);
    new_memory(1);
}

RULE(destroy_frees_its_memory, .source = DRIVER_API "cuCtxDestroy", .calls = "cuCtxDestroy_v2 cuMemGetInfo_v2") {
    size_t before = 0, after = 0, total = 0;
    new_context();
    OK(cuMemGetInfo_v2(&before, &total));
    CUcontext second = new_context();
    new_memory(64 << 20);
    OK(cuCtxDestroy_v2(second));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(after + (32 << 20) > before);
}

RULE(destroy_keeps_memory_of_pools, .source = DRIVER_API "cuCtxDestroy",
     .calls = "cuCtxDestroy_v2 cuMemAllocAsync cuMemFreeAsync") {
    CUdeviceptr memory = 0;
    unsigned char one = 0;
    new_context();
    CUcontext second = new_context();
    OK(cuMemAllocAsync(&memory, 1 << 20, NULL));
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy_v2(second));
    OK(cuMemcpyDtoH_v2(&one, memory, 1));
    OK(cuMemFreeAsync(memory, NULL));
    OK(cuCtxSynchronize());
}

RULE(synchronize_waits_for_all_streams, .source = DRIVER_API "cuCtxSynchronize", .calls = "cuCtxSynchronize") {
    new_context();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuLaunchKernel(kernel("nothing"), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuCtxSynchronize());
    OK(cuStreamQuery(stream));
}

RULE(synchronize_without_context, .source = DRIVER_API "cuCtxSynchronize", .calls = "cuCtxSynchronize") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
}

static void expect_not_initialized(void) {
    CUdevice device = -1;
    CUresult got = cuDeviceGet(&device, 0);
    TRUE(got != CUDA_SUCCESS);
}
RULE(a_forked_child_has_no_driver, .source = GUIDE "Initialization; CUDA and fork", .calls = "cuInit cuDeviceGet",
     .recalled = true) {
    new_context();
    TRUE(in_child(expect_not_initialized));
    new_memory(1);
}

static void use_the_driver(void) {
    new_context();
    new_memory(1);
}
RULE(a_child_forked_before_init_can_start, .source = GUIDE "Initialization; CUDA and fork",
     .calls = "cuInit cuCtxCreate_v2", .recalled = true) {
    TRUE(in_child(use_the_driver));
    new_context();
}
