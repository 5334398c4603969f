/* The primary context of a device: retained, released, reset, its flags, and contexts by name. */
#define SUBJECT "contexts_primary"
#include "../rules.h"

static int is_active(void) {
    unsigned flags = 0;
    int active = -1;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    return active;
}

static unsigned flags_of_it(void) {
    unsigned flags = ~0u;
    int active = -1;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    return flags;
}

static CUcontext retained(void) {
    CUcontext context = NULL;
    OK(cuDevicePrimaryCtxRetain(&context, start_driver()));
    return context;
}

RULE(inactive_at_first, .source = DRIVER_API "cuDevicePrimaryCtxGetState", .calls = "cuDevicePrimaryCtxGetState") {
    start_driver();
    SAME(0, is_active());
}

RULE(retain_makes_it_active, .source = DRIVER_API "cuDevicePrimaryCtxRetain", .calls = "cuDevicePrimaryCtxRetain") {
    TRUE(retained() != NULL);
    SAME(1, is_active());
}

RULE(retain_does_not_push, .source = DRIVER_API "cuDevicePrimaryCtxRetain", .calls = "cuDevicePrimaryCtxRetain") {
    retained();
    TRUE(current_context() == NULL);
}

RULE(retain_again_is_the_same, .source = DRIVER_API "Primary Context Management", .calls = "cuDevicePrimaryCtxRetain",
     .recalled = true) {
    TRUE(retained() == retained());
}

RULE(retain_of_no_device, .source = DRIVER_API "cuDevicePrimaryCtxRetain", .calls = "cuDevicePrimaryCtxRetain") {
    CUcontext context = NULL;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&context, 99));
}

RULE(retain_without_place, .source = DRIVER_API "cuDevicePrimaryCtxRetain", .calls = "cuDevicePrimaryCtxRetain") {
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxRetain(NULL, start_driver()));
}

RULE(release_of_the_last_resets, .source = DRIVER_API "cuDevicePrimaryCtxRelease",
     .calls = "cuDevicePrimaryCtxRelease_v2") {
    retained();
    OK(cuDevicePrimaryCtxRelease_v2(0));
    SAME(0, is_active());
}

RULE(release_counts, .source = DRIVER_API "cuDevicePrimaryCtxRelease", .calls = "cuDevicePrimaryCtxRelease_v2") {
    retained();
    retained();
    OK(cuDevicePrimaryCtxRelease_v2(0));
    SAME(1, is_active());
    OK(cuDevicePrimaryCtxRelease_v2(0));
    SAME(0, is_active());
}

RULE(release_of_what_was_not_retained, .source = DRIVER_API "cuDevicePrimaryCtxRelease",
     .calls = "cuDevicePrimaryCtxRelease_v2") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
}

RULE(release_once_too_often, .source = DRIVER_API "cuDevicePrimaryCtxRelease",
     .calls = "cuDevicePrimaryCtxRelease_v2") {
    retained();
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
}

RULE(release_of_no_device, .source = DRIVER_API "cuDevicePrimaryCtxRelease", .calls = "cuDevicePrimaryCtxRelease_v2") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRelease_v2(99));
}

RULE(release_does_not_pop, .source = DRIVER_API "cuDevicePrimaryCtxRelease",
     .calls = "cuDevicePrimaryCtxRelease_v2 cuCtxGetCurrent") {
    CUcontext context = primary_context();
    OK(cuDevicePrimaryCtxRelease_v2(0));
    TRUE(current_context() == context);
}

RULE(released_cannot_be_used, .source = DRIVER_API "cuDevicePrimaryCtxRetain", .calls = "cuDevicePrimaryCtxRelease_v2",
     .recalled = true) {
    CUdeviceptr memory = 0;
    primary_context();
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&memory, 1));
}

RULE(retained_anew_can_be_used, .source = DRIVER_API "cuDevicePrimaryCtxRetain",
     .calls = "cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2") {
    primary_context();
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuCtxSetCurrent(retained()));
    new_memory(1);
}

RULE(reset_makes_it_inactive, .source = DRIVER_API "cuDevicePrimaryCtxReset", .calls = "cuDevicePrimaryCtxReset_v2") {
    retained();
    OK(cuDevicePrimaryCtxReset_v2(0));
    SAME(0, is_active());
}

RULE(reset_does_not_release, .source = DRIVER_API "cuDevicePrimaryCtxReset",
     .calls = "cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRelease_v2") {
    retained();
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
}

RULE(reset_of_an_inactive_one, .source = DRIVER_API "cuDevicePrimaryCtxReset", .calls = "cuDevicePrimaryCtxReset_v2",
     .recalled = true) {
    start_driver();
    OK(cuDevicePrimaryCtxReset_v2(0));
}

RULE(reset_of_no_device, .source = DRIVER_API "cuDevicePrimaryCtxReset", .calls = "cuDevicePrimaryCtxReset_v2") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxReset_v2(99));
}

RULE(reset_frees_memory, .source = DRIVER_API "cuDevicePrimaryCtxReset",
     .calls = "cuDevicePrimaryCtxReset_v2 cuMemGetInfo_v2") {
    size_t before = 0, after = 0, total = 0;
    new_context();
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuCtxPushCurrent_v2(retained()));
    new_memory(64 << 20);
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuCtxSetCurrent(NULL));
    OK(cuMemGetInfo_v2(&after, &total));
    TRUE(after + (32 << 20) > before);
}

RULE(flags_are_kept_until_it_is_active, .source = DRIVER_API "cuDevicePrimaryCtxSetFlags",
     .calls = "cuDevicePrimaryCtxSetFlags_v2 cuDevicePrimaryCtxGetState") {
    start_driver();
    OK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
    SAME(CU_CTX_SCHED_BLOCKING_SYNC, flags_of_it() & CU_CTX_SCHED_MASK);
    SAME(0, is_active());
    retained();
    SAME(CU_CTX_SCHED_BLOCKING_SYNC, flags_of_it() & CU_CTX_SCHED_MASK);
}

RULE(flags_of_the_active_can_be_set, .source = DRIVER_API "cuDevicePrimaryCtxSetFlags",
     .calls = "cuDevicePrimaryCtxSetFlags_v2") {
    retained();
    OK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_YIELD));
    SAME(CU_CTX_SCHED_YIELD, flags_of_it() & CU_CTX_SCHED_MASK);
}

RULE(flags_of_the_first_form_on_the_active, .source = DRIVER_API "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
     .calls = "cuDevicePrimaryCtxSetFlags", .recalled = true) {
    retained();
    EXPECT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD));
}

RULE(flags_of_two_kinds_of_scheduling, .source = DRIVER_API "cuDevicePrimaryCtxSetFlags",
     .calls = "cuDevicePrimaryCtxSetFlags_v2") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD));
}

RULE(flags_that_are_unknown, .source = DRIVER_API "cuDevicePrimaryCtxSetFlags",
     .calls = "cuDevicePrimaryCtxSetFlags_v2") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevicePrimaryCtxSetFlags_v2(0, 0x40000000));
}

RULE(state_of_no_device, .source = DRIVER_API "cuDevicePrimaryCtxGetState", .calls = "cuDevicePrimaryCtxGetState") {
    unsigned flags = 0;
    int active = 0;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxGetState(99, &flags, &active));
}

RULE(is_not_a_created_one, .source = DRIVER_API "Primary Context Management",
     .calls = "cuDevicePrimaryCtxRetain cuCtxCreate_v2", .recalled = true) {
    TRUE(new_context() != retained());
}

RULE(created_ones_leave_it_inactive, .source = DRIVER_API "Primary Context Management",
     .calls = "cuDevicePrimaryCtxGetState cuCtxCreate_v2", .recalled = true) {
    new_context();
    SAME(0, is_active());
}

static CUcontext of_thread;
static void retain_in_thread(void) {
    of_thread = retained();
}
RULE(is_shared_by_threads, .source = DRIVER_API "Primary Context Management", .calls = "cuDevicePrimaryCtxRetain",
     .recalled = true) {
    CUcontext mine = retained();
    in_thread(retain_in_thread);
    TRUE(mine == of_thread);
}
