/* Green contexts, as far as memory goes: a context beside the primary one, which it retains, and which inherits what
 * was allocated in it. The restriction of its kernels to its SMs is not simulated. Assumption: it costs as much as any
 * context. */
#include <stdlib.h>

#include "../sim.h"

#define GREEN_MAGIC 0x47524e21u
#define DESC_MAGIC 0x44455321u

struct green {
    uint32_t magic;
    struct sim_context *context;
    abi_resource sms;
};
struct desc {
    uint32_t magic;
    abi_resource sms;
    struct desc *next;
};
static struct desc *descs; /* the primary context stays */

static struct green *green_of(abi_green_context handle) {
    struct green *green = (struct green *)handle;
    return green && green->magic == GREEN_MAGIC ? green : NULL;
}

SIM_EXPORT abi_result cuDeviceGetDevResource(abi_device device, abi_resource *resource, int type) {
    SIM_ENTER("cuDeviceGetDevResource");
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    if (!resource) return ABI_ERROR_INVALID_VALUE;
    if (type != ABI_RESOURCE_SM) return ABI_ERROR_INVALID_RESOURCE_TYPE;
    const struct sim_gpu_facts *facts = &sim.facts->gpus[sim.gpu_of[device]];
    unsigned step = facts->cc_major >= 9 ? 8 : 2;
    *resource = (abi_resource){
        .type = type, .sm_count = facts->sm_count, .least_sms = facts->cc_major == 8 ? 4 : step, .sm_alignment = step};
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDevSmResourceSplitByCount(abi_resource *groups, unsigned *count, const abi_resource *input,
                                                  abi_resource *remaining, unsigned flags, unsigned least) {
    SIM_ENTER("cuDevSmResourceSplitByCount");
    (void)flags;
    if (!count || !input) return ABI_ERROR_INVALID_VALUE;
    if (input->type != ABI_RESOURCE_SM || !input->sm_alignment) return ABI_ERROR_INVALID_RESOURCE_TYPE;
    unsigned each = least < input->least_sms ? input->least_sms : least;
    each = (each + input->sm_alignment - 1) / input->sm_alignment * input->sm_alignment;
    if (each > input->sm_count) return ABI_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned most = input->sm_count / each;
    if (!groups || *count > most) *count = most;
    for (unsigned i = 0; groups && i < *count; i++) {
        groups[i] = *input;
        groups[i].sm_count = each;
    }
    if (remaining) {
        *remaining = *input;
        remaining->sm_count -= groups ? each * *count : 0;
    }
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuDevResourceGenerateDesc(abi_resource_desc *out, abi_resource *resources, unsigned count) {
    SIM_ENTER("cuDevResourceGenerateDesc");
    if (!out || !resources || count == 0) return ABI_ERROR_INVALID_VALUE;
    struct desc *desc = calloc(1, sizeof *desc);
    if (!desc) return ABI_ERROR_OUT_OF_MEMORY;
    desc->magic = DESC_MAGIC;
    desc->sms = resources[0];
    for (unsigned i = 1; i < count; i++) desc->sms.sm_count += resources[i].sm_count;
    pthread_mutex_lock(&sim.lock);
    desc->next = descs;
    descs = desc;
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_resource_desc)desc;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGreenCtxCreate(abi_green_context *out, abi_resource_desc handle, abi_device device,
                                       unsigned flags) {
    SIM_ENTER("cuGreenCtxCreate");
    const struct desc *desc = (const struct desc *)handle;
    if (!out || !desc || desc->magic != DESC_MAGIC || flags != ABI_GREEN_DEFAULT_STREAM) return ABI_ERROR_INVALID_VALUE;
    struct sim_context *primary;
    SIM_TRY(sim_primary_retain(device, &primary));
    struct green *green = calloc(1, sizeof *green);
    pthread_mutex_lock(&sim.lock);
    int result = green ? sim_context_new(&green->context, 0, device, false) : ABI_ERROR_OUT_OF_MEMORY;
    if (result == ABI_SUCCESS) {
        green->context->green = true;
        green->context->green_handle = green;
    }
    pthread_mutex_unlock(&sim.lock);
    if (result != ABI_SUCCESS) {
        free(green);
        sim_primary_release(device);
        return result;
    }
    green->magic = GREEN_MAGIC;
    green->sms = desc->sms;
    *out = (abi_green_context)green;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGreenCtxDestroy(abi_green_context handle) {
    SIM_ENTER("cuGreenCtxDestroy");
    struct green *green = green_of(handle);
    if (!green) return ABI_ERROR_INVALID_CONTEXT;
    abi_device device = green->context->device;
    sim_context_finish(green->context);
    green->magic = 0;
    free(green);
    sim_primary_release(device); /* unless a reset has ended it */
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuCtxFromGreenCtx(abi_context *out, abi_green_context handle) {
    SIM_ENTER("cuCtxFromGreenCtx");
    struct green *green = green_of(handle);
    if (!out || !green) return out ? ABI_ERROR_INVALID_CONTEXT : ABI_ERROR_INVALID_VALUE;
    *out = (abi_context)green->context;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGreenCtxGetDevResource(abi_green_context handle, abi_resource *resource, int type) {
    SIM_ENTER("cuGreenCtxGetDevResource");
    const struct green *green = green_of(handle);
    if (!green || !resource) return green ? ABI_ERROR_INVALID_VALUE : ABI_ERROR_INVALID_CONTEXT;
    if (type != ABI_RESOURCE_SM) return ABI_ERROR_INVALID_RESOURCE_TYPE;
    *resource = green->sms;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGreenCtxStreamCreate(abi_stream *out, abi_green_context handle, unsigned flags, int priority) {
    SIM_ENTER("cuGreenCtxStreamCreate");
    struct green *green = green_of(handle);
    if (flags != ABI_STREAM_NON_BLOCKING) return ABI_ERROR_INVALID_VALUE;
    return green ? sim_stream_new(green->context, out, flags, priority) : ABI_ERROR_INVALID_CONTEXT;
}

/* The green context of a stream, or NULL. */
static abi_green_context green_of_context(const struct sim_context *context) {
    return (abi_green_context)context->green_handle;
}
SIM_EXPORT abi_result cuStreamGetGreenCtx(abi_stream handle, abi_green_context *out) {
    SIM_ENTER("cuStreamGetGreenCtx");
    SIM_STREAM(handle, context, stream);
    if (!out) return ABI_ERROR_INVALID_VALUE;
    *out = green_of_context(context);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamGetCtx_v2(abi_stream handle, abi_context *out, abi_green_context *green) {
    SIM_ENTER("cuStreamGetCtx_v2");
    SIM_STREAM(handle, context, stream);
    if (!out || !green) return ABI_ERROR_INVALID_VALUE;
    *out = (abi_context)sim_root(context);
    *green = green_of_context(context);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuStreamGetCtx_v2_ptsz(abi_stream handle, abi_context *out, abi_green_context *green) {
    return cuStreamGetCtx_v2(sim_own(handle), out, green);
}
SIM_EXPORT abi_result cuCtxGetDevResource(abi_context handle, abi_resource *resource, int type) {
    SIM_ENTER("cuCtxGetDevResource");
    struct sim_context *context = (struct sim_context *)handle;
    if (!sim_is_context(context)) return ABI_ERROR_INVALID_CONTEXT;
    if (context->green) return cuGreenCtxGetDevResource((abi_green_context)context->green_handle, resource, type);
    return cuDeviceGetDevResource(context->device, resource, type);
}
