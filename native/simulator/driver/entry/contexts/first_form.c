/* The first forms of context calls, after the reference manual of CUDA 3.2: a context is created with one use, belongs
 * to one thread at a time, and floats while it is on no thread's stack. "3010 contexts" answer later forms of calls
 * with an invalid context (cuCtxGetApiVersion): here those of memory and modules that have an older form. Popping one
 * takes it whatever its uses, as driver 580.159.04 does. */
#include "../../sim.h"

SIM_EXPORT abi_result cuCtxCreate(abi_context *out, unsigned flags, abi_device device) {
    SIM_ENTER("cuCtxCreate");
    int result = sim_create(out, flags, device);
    if (result == ABI_SUCCESS) ((struct sim_context *)*out)->first_form = true;
    return result;
}

/* Under sim.lock: whether it is one that a program creates and ends. */
static bool is_own(struct sim_context *context) {
    return sim_is_context(context) && context->alive && !context->primary && !context->green;
}

SIM_EXPORT abi_result cuCtxDestroy(abi_context handle) {
    SIM_ENTER("cuCtxDestroy");
    struct sim_context *context = (struct sim_context *)handle;
    pthread_mutex_lock(&sim.lock);
    bool fits = is_own(context) && context->uses == 1 && !sim_is_on_other_stacks(context);
    pthread_mutex_unlock(&sim.lock);
    return fits ? sim_destroy(handle) : ABI_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT abi_result cuCtxAttach(abi_context *out, unsigned flags) {
    SIM_ENTER("cuCtxAttach");
    SIM_CURRENT(context);
    if (!out || flags) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    context->uses++;
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_context)context;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuCtxDetach(abi_context handle) {
    SIM_ENTER("cuCtxDetach");
    struct sim_context *context = (struct sim_context *)handle;
    pthread_mutex_lock(&sim.lock);
    bool fits = context && context == sim_stack_top() && context->alive && (context->uses > 1 || is_own(context));
    bool ends = fits && --context->uses == 0;
    pthread_mutex_unlock(&sim.lock);
    return ends ? sim_destroy(handle) : fits ? ABI_SUCCESS : ABI_ERROR_INVALID_CONTEXT;
}

/* Accepts only a floating context, one that is attached to no thread: CUDA 3.2's reference manual, cuCtxPushCurrent.
 * CUDA 4.0 added the second form without this restriction. */
extern abi_result cuCtxPushCurrent_v2(abi_context handle);
SIM_EXPORT abi_result cuCtxPushCurrent(abi_context handle) {
    struct sim_context *context = (struct sim_context *)handle;
    pthread_mutex_lock(&sim.lock);
    bool attached = sim_is_context(context) && atomic_load(&context->stacked) > 0;
    pthread_mutex_unlock(&sim.lock);
    return attached ? ABI_ERROR_INVALID_VALUE : cuCtxPushCurrent_v2(handle);
}
extern abi_result cuCtxPopCurrent_v2(abi_context *context);
SIM_SAME(cuCtxPopCurrent, (abi_context * context), cuCtxPopCurrent_v2(context))

SIM_EXPORT abi_result cuCtxGetApiVersion(abi_context handle, unsigned *version) {
    SIM_ENTER("cuCtxGetApiVersion");
    struct sim_context *context = (struct sim_context *)handle;
    if (!context) SIM_TRY(sim_current(&context));
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_context(context) && context->alive;
    unsigned created_by = known && context->first_form ? 3010 : 3020;
    pthread_mutex_unlock(&sim.lock);
    if (!known) return ABI_ERROR_INVALID_CONTEXT;
    if (!version) return ABI_ERROR_INVALID_VALUE;
    *version = created_by;
    return ABI_SUCCESS;
}
