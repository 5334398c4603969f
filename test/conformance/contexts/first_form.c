/* The first forms of context calls, as of CUDA 2.0 to 3.2: contexts that float, or belong to one thread, and usage
 * counts. */
#define SUBJECT "contexts_first_form"
#include "../rules.h"

#define OLD_API "CUDA Driver API 3.2, "
#define NO_CONTEXT CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE

static CUcontext first_context(void) {
    CUcontext context = NULL;
    OK(cuCtxCreate(&context, 0, start_driver()));
    return context;
}

RULE(create_makes_it_current, .source = OLD_API "cuCtxCreate", .calls = "cuCtxCreate", .recalled = true) {
    CUcontext context = first_context();
    TRUE(current_context() == context);
}

RULE(pop_makes_it_float, .source = OLD_API "cuCtxPopCurrent", .calls = "cuCtxPopCurrent cuCtxPushCurrent",
     .recalled = true) {
    CUcontext context = first_context(), popped = NULL;
    OK(cuCtxPopCurrent(&popped));
    TRUE(popped == context);
    OK(cuCtxPushCurrent(context));
    TRUE(current_context() == context);
}

RULE(push_of_one_that_does_not_float, .source = OLD_API "cuCtxPushCurrent", .calls = "cuCtxPushCurrent",
     .recalled = true) {
    CUcontext context = first_context();
    ONE_OF(cuCtxPushCurrent(context), NO_CONTEXT, CUDA_ERROR_CONTEXT_ALREADY_CURRENT);
}

static CUcontext shared;
static void push_shared(void) {
    ONE_OF(cuCtxPushCurrent(shared), NO_CONTEXT);
}
RULE(push_of_another_threads, .source = OLD_API "cuCtxPushCurrent", .calls = "cuCtxPushCurrent", .recalled = true) {
    shared = first_context();
    in_thread(push_shared);
}

static void push_and_pop_shared(void) {
    CUcontext popped = NULL;
    OK(cuCtxPushCurrent(shared));
    TRUE(current_context() == shared);
    OK(cuCtxPopCurrent(&popped));
}
RULE(a_floating_one_goes_to_another_thread, .source = OLD_API "cuCtxPushCurrent",
     .calls = "cuCtxPushCurrent cuCtxPopCurrent", .recalled = true) {
    first_context();
    OK(cuCtxPopCurrent(&shared));
    in_thread(push_and_pop_shared);
}

RULE(attach_answers_the_current, .source = OLD_API "cuCtxAttach", .calls = "cuCtxAttach") {
    CUcontext context = first_context(), attached = NULL;
    OK(cuCtxAttach(&attached, 0));
    TRUE(attached == context);
}

RULE(attach_takes_no_flags, .source = OLD_API "cuCtxAttach", .calls = "cuCtxAttach") {
    CUcontext attached = NULL;
    first_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&attached, 1));
}

RULE(attach_without_context, .source = OLD_API "cuCtxAttach", .calls = "cuCtxAttach") {
    CUcontext attached = NULL;
    start_driver();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxAttach(&attached, 0));
}

RULE(detach_of_the_last_use_destroys, .source = OLD_API "cuCtxDetach", .calls = "cuCtxDetach") {
    OK(cuCtxDetach(first_context()));
    TRUE(current_context() == NULL);
}

RULE(detach_of_another_use_keeps, .source = OLD_API "cuCtxDetach", .calls = "cuCtxAttach cuCtxDetach") {
    CUcontext context = first_context(), attached = NULL;
    OK(cuCtxAttach(&attached, 0));
    OK(cuCtxDetach(context));
    TRUE(current_context() == context);
    OK(cuCtxSynchronize());
}

/* "3010 context with 3020 API calls": the forms since CUDA 3.2 refuse a context that an older one has created. */
RULE(calls_of_another_version, .source = DRIVER_API "CUDA_ERROR_INVALID_CONTEXT, cuCtxGetApiVersion",
     .calls = "cuCtxCreate cuMemAlloc_v2") {
    CUdeviceptr memory = 0;
    first_context();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&memory, 1));
}

RULE(pop_of_one_used_twice, .source = OLD_API "cuCtxPopCurrent", .calls = "cuCtxPopCurrent cuCtxAttach",
     .recalled = true) {
    CUcontext attached = NULL, popped = NULL;
    first_context();
    OK(cuCtxAttach(&attached, 0));
    ONE_OF(cuCtxPopCurrent(&popped), NO_CONTEXT);
}

RULE(destroy_ends_the_current, .source = OLD_API "cuCtxDestroy", .calls = "cuCtxDestroy", .recalled = true) {
    OK(cuCtxDestroy(first_context()));
    TRUE(current_context() == NULL);
}

static void destroy_shared(void) {
    ONE_OF(cuCtxDestroy(shared), NO_CONTEXT, CUDA_ERROR_CONTEXT_ALREADY_IN_USE);
}
RULE(destroy_of_another_threads, .source = OLD_API "cuCtxDestroy", .calls = "cuCtxDestroy", .recalled = true) {
    shared = first_context();
    in_thread(destroy_shared);
    OK(cuCtxSynchronize());
}
