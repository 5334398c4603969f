/* What a context answers about itself: flags, ids, version, priorities, limits. */
#define SUBJECT "contexts"
#include "../rules.h"

RULE(flags_are_those_of_creation, .source = DRIVER_API "cuCtxGetFlags", .calls = "cuCtxGetFlags") {
    CUcontext context = NULL;
    unsigned flags = 0;
    OK(cuCtxCreate_v2(&context, CU_CTX_SCHED_BLOCKING_SYNC, start_driver()));
    OK(cuCtxGetFlags(&flags));
    SAME(CU_CTX_SCHED_BLOCKING_SYNC, flags & CU_CTX_SCHED_MASK);
}

RULE(flags_of_no_context, .source = DRIVER_API "cuCtxGetFlags", .calls = "cuCtxGetFlags") {
    unsigned flags = 0;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetFlags(&flags));
}

RULE(flags_can_be_set, .source = DRIVER_API "cuCtxSetFlags", .calls = "cuCtxSetFlags cuCtxGetFlags") {
    unsigned flags = 0;
    new_context();
    OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
    OK(cuCtxGetFlags(&flags));
    SAME(CU_CTX_SCHED_YIELD, flags & CU_CTX_SCHED_MASK);
}

RULE(id_differs_between_contexts, .source = DRIVER_API "cuCtxGetId", .calls = "cuCtxGetId") {
    unsigned long long first = 0, second = 0, again = 0;
    CUcontext context = new_context();
    OK(cuCtxGetId(context, &first));
    OK(cuCtxGetId(context, &again));
    SAME(first, again);
    OK(cuCtxGetId(new_context(), &second));
    TRUE(first != second);
}

RULE(id_is_not_given_again, .source = DRIVER_API "cuCtxGetId", .calls = "cuCtxGetId cuCtxDestroy_v2") {
    unsigned long long first = 0, second = 0;
    CUcontext context = new_context();
    OK(cuCtxGetId(context, &first));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxGetId(new_context(), &second));
    TRUE(first != second);
}

RULE(id_of_null_is_of_the_current, .source = DRIVER_API "cuCtxGetId", .calls = "cuCtxGetId") {
    unsigned long long named = 0, current = 0;
    OK(cuCtxGetId(new_context(), &named));
    OK(cuCtxGetId(NULL, &current));
    SAME(named, current);
}

RULE(api_version_of_null_is_of_the_current, .source = DRIVER_API "cuCtxGetApiVersion", .calls = "cuCtxGetApiVersion") {
    unsigned named = 0, current = 0;
    OK(cuCtxGetApiVersion(new_context(), &named));
    OK(cuCtxGetApiVersion(NULL, &current));
    SAME(named, current);
    TRUE(named >= 3020);
}

RULE(api_version_without_context, .source = DRIVER_API "cuCtxGetApiVersion", .calls = "cuCtxGetApiVersion") {
    unsigned version = 0;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetApiVersion(NULL, &version));
}

RULE(priority_range_goes_down, .source = DRIVER_API "cuCtxGetStreamPriorityRange",
     .calls = "cuCtxGetStreamPriorityRange") {
    int least = -99, greatest = 99;
    new_context();
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    TRUE(greatest <= least);
    TRUE(least >= 0 && greatest <= 0);
}

RULE(priority_range_into_one_place, .source = DRIVER_API "cuCtxGetStreamPriorityRange",
     .calls = "cuCtxGetStreamPriorityRange") {
    int least = -99, greatest = 99, other = 77;
    new_context();
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    OK(cuCtxGetStreamPriorityRange(&other, NULL));
    SAME(least, other);
    OK(cuCtxGetStreamPriorityRange(NULL, &other));
    SAME(greatest, other);
}

RULE(limit_of_no_kind, .source = DRIVER_API "cuCtxGetLimit", .calls = "cuCtxGetLimit cuCtxSetLimit") {
    size_t value = 0;
    new_context();
    ONE_OF(cuCtxGetLimit(&value, 77), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNSUPPORTED_LIMIT);
    ONE_OF(cuCtxSetLimit(77, 1), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNSUPPORTED_LIMIT);
}

RULE(limit_is_at_least_what_was_set, .source = DRIVER_API "cuCtxSetLimit", .calls = "cuCtxGetLimit cuCtxSetLimit") {
    size_t value = 0;
    new_context();
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    TRUE(value >= 4096);
}

RULE(limit_is_of_one_context, .source = DRIVER_API "cuCtxSetLimit", .calls = "cuCtxGetLimit cuCtxSetLimit") {
    size_t first = 0, second = 0;
    CUcontext popped = NULL;
    new_context();
    OK(cuCtxGetLimit(&first, CU_LIMIT_STACK_SIZE));
    new_context();
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2 * first));
    OK(cuCtxPopCurrent_v2(&popped));
    OK(cuCtxGetLimit(&second, CU_LIMIT_STACK_SIZE));
    SAME(first, second);
}

RULE(limit_of_sync_depth_is_of_old_devices, .source = DRIVER_API "cuCtxSetLimit", .calls = "cuCtxSetLimit") {
    new_context();
    bool is_old = device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) < 9;
    EXPECT(is_old ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2));
}

RULE(limit_of_no_context, .source = DRIVER_API "cuCtxSetLimit", .calls = "cuCtxSetLimit") {
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
}

RULE(cache_config_is_what_was_set, .source = DRIVER_API "cuCtxSetCacheConfig",
     .calls = "cuCtxSetCacheConfig cuCtxGetCacheConfig") {
    int config = -1;
    new_context();
    OK(cuCtxGetCacheConfig(&config));
    SAME(0, config);
    OK(cuCtxSetCacheConfig(1));
    OK(cuCtxGetCacheConfig(&config));
    TRUE(config == 1 || config == 0); /* PREFER_NONE where sizes are fixed */
}
