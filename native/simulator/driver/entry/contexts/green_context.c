/* Green contexts, as far as memory goes: a context beside the primary one, which it retains, and which inherits what
 * was allocated in it. The restriction of its kernels to its SMs is not simulated. As a context it has the same handle.
 * What the driver takes for one, and keeps until the last context of the GPU has ended, is as on an H100 with driver
 * 580.159.04 (test/gpu/observed/h100-580.159.04.json, step green); assumption: the next one uses what an ended one
 * left. */
#include <stdlib.h>

#include "../../captures.h"

#define FIRST_BYTES (6ull << 20)
#define FURTHER_BYTES (4ull << 20)
#define DESC_MAGIC 0x44455321u

/* By ordinal, under sim.lock: the green contexts that there are, and what was taken for so many of them. */
struct taken {
    uint64_t block;
    struct taken *next;
};
static struct {
    unsigned living, most;
    struct taken *taken;
} greens[SIM_MAX_GPUS];

struct desc {
    uint32_t magic;
    abi_resource sms;
    struct desc *next;
};
static struct desc *descs; /* the primary context stays */

static struct sim_context *green_of(abi_green_context handle) {
    struct sim_context *green = (struct sim_context *)handle;
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_context(green) && green->green && green->alive;
    pthread_mutex_unlock(&sim.lock);
    return known ? green : NULL;
}

/* Under sim.lock. */
static int take(abi_device device) {
    if (greens[device].living < greens[device].most) return ABI_SUCCESS;
    struct taken *taken = calloc(1, sizeof *taken);
    if (!taken) return ABI_ERROR_OUT_OF_MEMORY;
    uint64_t bytes = greens[device].most ? FURTHER_BYTES : FIRST_BYTES;
    int result = sim_simple(SIM_ALLOCATE, sim.gpu_of[device], bytes, SIM_KIND_GREEN, &taken->block);
    if (result != ABI_SUCCESS) {
        free(taken);
        return result;
    }
    taken->next = greens[device].taken;
    greens[device].taken = taken;
    greens[device].most++;
    return ABI_SUCCESS;
}

static void release_device(int device) {
    for (struct taken *taken; (taken = greens[device].taken);) {
        greens[device].taken = taken->next;
        sim_simple(SIM_RELEASE, sim.gpu_of[device], taken->block, 0, NULL);
        free(taken);
    }
    greens[device].most = 0;
}
SIM_ON_CONTEXT_END(.release_device = release_device)

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
    struct sim_context *primary, *green = NULL;
    SIM_TRY(sim_primary_retain(device, &primary));
    pthread_mutex_lock(&sim.lock);
    int result = take(device);
    if (result == ABI_SUCCESS) result = sim_context_new(&green, 0, device, SIM_GREEN_CONTEXT);
    if (result == ABI_SUCCESS) {
        green->sms = desc->sms;
        greens[device].living++;
    }
    pthread_mutex_unlock(&sim.lock);
    if (result == ABI_SUCCESS) *out = (abi_green_context)green;
    else sim_primary_release(device);
    return result;
}

/* Under sim.lock. */
static void break_captures(const struct sim_context *green) {
    for (struct sim_stream *stream = sim.streams; stream; stream = stream->next) {
        struct capture *capture = stream->context == green ? sim_capture_of(stream) : NULL;
        if (capture) sim_capture_break(capture, 0);
    }
}

SIM_EXPORT abi_result cuGreenCtxDestroy(abi_green_context handle) {
    SIM_ENTER("cuGreenCtxDestroy");
    struct sim_context *green = green_of(handle);
    if (!green) return ABI_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&sim.lock);
    break_captures(green);
    pthread_mutex_unlock(&sim.lock);
    sim_context_finish(green);
    pthread_mutex_lock(&sim.lock);
    greens[green->device].living--;
    pthread_mutex_unlock(&sim.lock);
    sim_primary_release(green->device); /* unless a reset has ended it */
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuCtxFromGreenCtx(abi_context *out, abi_green_context handle) {
    SIM_ENTER("cuCtxFromGreenCtx");
    struct sim_context *green = green_of(handle);
    if (!out || !green) return out ? ABI_ERROR_INVALID_CONTEXT : ABI_ERROR_INVALID_VALUE;
    *out = (abi_context)green;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGreenCtxGetId(abi_green_context handle, unsigned long long *id) {
    SIM_ENTER("cuGreenCtxGetId");
    const struct sim_context *green = green_of(handle);
    if (!green || !id) return green ? ABI_ERROR_INVALID_VALUE : ABI_ERROR_INVALID_CONTEXT;
    *id = green->id;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGreenCtxGetDevResource(abi_green_context handle, abi_resource *resource, int type) {
    SIM_ENTER("cuGreenCtxGetDevResource");
    const struct sim_context *green = green_of(handle);
    if (!green || !resource) return green ? ABI_ERROR_INVALID_VALUE : ABI_ERROR_INVALID_CONTEXT;
    if (type != ABI_RESOURCE_SM) return ABI_ERROR_INVALID_RESOURCE_TYPE;
    *resource = green->sms;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuGreenCtxStreamCreate(abi_stream *out, abi_green_context handle, unsigned flags, int priority) {
    SIM_ENTER("cuGreenCtxStreamCreate");
    struct sim_context *green = green_of(handle);
    if (flags != ABI_STREAM_NON_BLOCKING) return ABI_ERROR_INVALID_VALUE;
    return green ? sim_stream_new(green, out, flags, priority) : ABI_ERROR_INVALID_CONTEXT;
}

/* The green context of a stream, or NULL. */
static abi_green_context green_of_context(struct sim_context *context) {
    return context->green ? (abi_green_context)context : NULL;
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
    if (context->green && handle == ABI_STREAM_PER_THREAD) return ABI_ERROR_INVALID_HANDLE;
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
    if (context->green) return cuGreenCtxGetDevResource((abi_green_context)context, resource, type);
    return cuDeviceGetDevResource(context->device, resource, type);
}
