/* Entry points of what streams do beside kernels and copies: call functions of the host, write values and wait for
 * them. */
#include <stdlib.h>

#include "../sim.h"

static int enqueue(abi_stream handle, struct sim_step *step) {
    struct sim_context *context;
    struct sim_stream *stream;
    int result = sim_stream_context(handle, &context, &stream);
    if (result == ABI_SUCCESS && !stream) result = sim_capture_forbids_legacy(context);
    if (result != ABI_SUCCESS || sim_capture_step(stream, step, &result)) return result;
    return sim_host_work(context, stream, step, NULL);
}

SIM_EXPORT abi_result cuLaunchHostFunc(abi_stream stream, void (*function)(void *), void *data) {
    SIM_ENTER("cuLaunchHostFunc");
    if (!function) return ABI_ERROR_INVALID_VALUE;
    return enqueue(stream, &(struct sim_step){.type = ABI_NODE_HOST, .function = function, .data = data});
}
SIM_EXPORT abi_result cuLaunchHostFunc_ptsz(abi_stream stream, void (*function)(void *), void *data) {
    return cuLaunchHostFunc(sim_own(stream), function, data);
}

struct callback {
    void (*function)(abi_stream stream, abi_result status, void *data);
    abi_stream stream;
    void *data;
};
static void call(void *argument) {
    struct callback callback = *(struct callback *)argument;
    free(argument);
    callback.function(callback.stream, ABI_SUCCESS, callback.data);
}

SIM_EXPORT abi_result cuStreamAddCallback(abi_stream stream, void (*function)(abi_stream, abi_result, void *),
                                          void *data, unsigned flags) {
    SIM_ENTER("cuStreamAddCallback");
    struct sim_context *context;
    struct sim_stream *object;
    int result = sim_stream_context(stream, &context, &object);
    if (result != ABI_SUCCESS) return result;
    if (!function || flags) return ABI_ERROR_INVALID_VALUE;
    if ((result = sim_capture_forbids_sync(context, object)) != ABI_SUCCESS) return result;
    struct callback *callback = malloc(sizeof *callback);
    if (!callback) return ABI_ERROR_OUT_OF_MEMORY;
    *callback = (struct callback){function, stream, data};
    struct sim_step step = {.type = ABI_NODE_HOST, .function = call, .data = callback};
    result = sim_host_work(context, object, &step, NULL);
    if (result != ABI_SUCCESS) free(callback);
    return result;
}
SIM_EXPORT abi_result cuStreamAddCallback_ptsz(abi_stream stream, void (*function)(abi_stream, abi_result, void *),
                                               void *data, unsigned flags) {
    return cuStreamAddCallback(sim_own(stream), function, data, flags);
}

/* ---- values ---- */
enum { WAIT_FLUSH = 1u << 30 }; /* CU_STREAM_WAIT_VALUE_FLUSH */

static int value_step(abi_stream stream, struct sim_step *step, unsigned bytes) {
    struct sim_context *context;
    struct sim_stream *object;
    bool device;
    int result = sim_stream_context(stream, &context, &object);
    if (result == ABI_SUCCESS && step->to % bytes) result = ABI_ERROR_INVALID_VALUE;
    if (result == ABI_SUCCESS) result = sim_check_range(step->to, bytes, &device);
    if (result == ABI_SUCCESS && object && object->capture) return ABI_ERROR_NOT_SUPPORTED; /* no such node */
    if (result == ABI_SUCCESS && !object) result = sim_capture_forbids_legacy(context);
    return result == ABI_SUCCESS ? sim_host_work(context, object, step, NULL) : result;
}
static int write_value(abi_stream stream, abi_devptr to, uint64_t value, unsigned bytes, unsigned flags) {
    if (flags > 1) return ABI_ERROR_INVALID_VALUE;
    /* Little-endian words: the high one of 64 bits is a fill of its own. */
    struct sim_step step = {.type = ABI_NODE_MEMSET, .to = to, .fill = {to, 4, (unsigned)value, 4, 1, 1}};
    int result = value_step(stream, &step, bytes);
    if (result != ABI_SUCCESS || bytes == 4) return result;
    step.to = step.fill.to = to + 4;
    step.fill.value = (unsigned)(value >> 32);
    return value_step(stream, &step, 4);
}
static int wait_value(abi_stream stream, abi_devptr at, uint64_t value, unsigned bytes, unsigned flags) {
    if (flags & ~(WAIT_FLUSH | 3u)) return ABI_ERROR_INVALID_VALUE;
    struct sim_step step = {
        .type = SIM_STEP_WAIT_VALUE, .to = at, .bytes = value, .fill = {.element = flags, .width = bytes}};
    return value_step(stream, &step, bytes);
}

#define VALUES(name, twin, what, type, bits)                                                   \
    SIM_EXPORT abi_result name(abi_stream stream, abi_devptr at, type value, unsigned flags) { \
        SIM_ENTER(#name);                                                                      \
        return what(stream, at, value, (bits) / 8, flags);                                     \
    }                                                                                          \
    SIM_EXPORT abi_result twin(abi_stream stream, abi_devptr at, type value, unsigned flags) { \
        return name(sim_own(stream), at, value, flags);                                        \
    }
VALUES(cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz, write_value, uint32_t, 32)
VALUES(cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz, write_value, uint64_t, 64)
VALUES(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz, wait_value, uint32_t, 32)
VALUES(cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz, wait_value, uint64_t, 64)
