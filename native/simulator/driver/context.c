/* Contexts: primary and explicit, each with its own memory on the GPU; the per-thread stack of current contexts; sticky
 * errors: after an illegal address, assert or launch failure, every call of the process on that GPU returns the error
 * until its contexts are destroyed. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define STACK_DEPTH 32
static _Thread_local struct sim_context *stack[STACK_DEPTH]; /* the last one is current */
static _Thread_local int depth;

/* Counts how many stacks contain a context: the first form of cuCtxPushCurrent accepts only a context that is on
 * none. */
static void set_slot(int slot, struct sim_context *context) {
    if (stack[slot]) atomic_fetch_sub(&stack[slot]->stacked, 1);
    if (context) atomic_fetch_add(&context->stacked, 1);
    stack[slot] = context;
}
static struct sim_context *pop(void) {
    struct sim_context *top = stack[depth - 1];
    set_slot(--depth, NULL);
    return top;
}

bool sim_is_context(struct sim_context *context) {
    for (struct sim_context *known = sim.contexts; known; known = known->next) {
        if (known == context) return true;
    }
    return false;
}

int sim_usable(struct sim_context *context) {
    if (context->magic != SIM_CONTEXT_MAGIC) return ABI_ERROR_INVALID_CONTEXT;
    if (!context->alive) return ABI_ERROR_CONTEXT_IS_DESTROYED;
    struct sim_channel *channel = sim.channel[context->gpu];
    return channel ? atomic_load_explicit(&channel->error, memory_order_relaxed) : ABI_SUCCESS;
}

int sim_current(struct sim_context **context) {
    *context = sim_stack_top();
    if (!*context) return ABI_ERROR_INVALID_CONTEXT;
    return sim_usable(*context);
}

struct sim_context *sim_stack_top(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}

bool sim_is_on_other_stacks(const struct sim_context *context) {
    unsigned own = 0;
    for (int i = 0; i < depth; i++) own += stack[i] == context;
    return atomic_load(&context->stacked) > own;
}

void sim_limits_begin(struct sim_context *context) {
    context->limits[ABI_LIMIT_STACK_SIZE] = 1024;
    context->limits[ABI_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[ABI_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->limits[ABI_LIMIT_DEVICE_RUNTIME_SYNC_DEPTH] = 2;
    context->limits[ABI_LIMIT_DEVICE_RUNTIME_PENDING_LAUNCHES] = 2048;
    context->limits[ABI_LIMIT_MAX_L2_FETCH] = 64;
}

/* Under sim.lock. Context structures are never freed: a handle that outlives its context must return an error, not
 * crash. */
int sim_context_new(struct sim_context **out, unsigned flags, abi_device device, enum sim_context_kind kind) {
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    uint32_t gpu = sim.gpu_of[device];
    struct sim_context *context = calloc(1, sizeof *context);
    if (!context) return ABI_ERROR_OUT_OF_MEMORY;
    struct sim_request request = {.op = SIM_CONTEXT_NEW, .gpu = gpu};
    struct sim_reply reply = {0};
    int fd = -1;
    int result = kind == SIM_GREEN_CONTEXT ? ABI_SUCCESS : sim_request(&request, -1, &reply, &fd);
    if (result != ABI_SUCCESS) {
        free(context);
        return result;
    }
    if (fd >= 0) {
        void *map = mmap(NULL, sizeof(struct sim_channel), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (map != MAP_FAILED) sim.channel[gpu] = map;
    }
    if (!sim.channel[gpu]) {
        sim_simple(SIM_CONTEXT_END, gpu, reply.arg[0], 0, NULL);
        free(context);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    *context = (struct sim_context){.magic = SIM_CONTEXT_MAGIC,
                                    .device = device,
                                    .gpu = gpu,
                                    .uses = 1,
                                    .primary = kind == SIM_PRIMARY_CONTEXT,
                                    .green = kind == SIM_GREEN_CONTEXT,
                                    .alive = true,
                                    .flags = flags,
                                    .block = reply.arg[0],
                                    .id = ++sim.next_id,
                                    .next = sim.contexts};
    context->legacy = sim_queue_take(context, true);
    sim_limits_begin(context);
    sim.contexts = context;
    *out = context;
    return ABI_SUCCESS;
}

static struct sim_context_end_hooks *end_hooks;

void sim_on_context_end(struct sim_context_end_hooks *hooks) {
    hooks->next = end_hooks;
    end_hooks = hooks;
}

/* Under sim.lock. What was allocated while a green context was current belongs to the primary context afterwards. */
static void context_end(struct sim_context *context) {
    struct sim_context *primary = sim.primary[context->device];
    const struct sim_context_end_hooks *hooks;
    for (hooks = end_hooks; context->green && primary && hooks; hooks = hooks->next) {
        if (hooks->inherit) hooks->inherit(context, primary);
    }
    for (hooks = end_hooks; hooks; hooks = hooks->next) {
        if (hooks->release) hooks->release(context);
    }
    if (!context->green) sim_simple(SIM_CONTEXT_END, context->gpu, context->block, 0, NULL);
    context->alive = false;
    sim.queues[context->gpu][context->legacy].streams--;
    for (struct sim_context *other = sim.contexts; other; other = other->next) {
        if (other->alive && other->gpu == context->gpu) return;
    }
    for (hooks = end_hooks; hooks; hooks = hooks->next) {
        if (hooks->release_device) hooks->release_device(context->device);
    }
    if (sim.channel[context->gpu]) atomic_store(&sim.channel[context->gpu]->error, 0);
}

int sim_context_finish(struct sim_context *context) {
    sim_wait_context(context);
    pthread_mutex_lock(&sim.lock);
    if (context->alive) context_end(context);
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

struct sim_context *sim_root(struct sim_context *context) {
    struct sim_context *primary = context->green ? sim.primary[context->device] : NULL;
    return primary ? primary : context;
}

/* Known bits, and one way of waiting at most. */
static bool are_flags(unsigned flags) {
    unsigned waiting = flags & 7;
    return flags <= 0xff && (waiting & (waiting - 1)) == 0;
}

int sim_primary_retain(int device, struct sim_context **out) {
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    struct sim_context *context = sim.primary[device];
    int result = context ? ABI_SUCCESS : sim_context_new(&context, 0, device, SIM_PRIMARY_CONTEXT);
    if (result == ABI_SUCCESS) {
        sim.primary[device] = context;
        sim.primary_retains[device]++;
    }
    pthread_mutex_unlock(&sim.lock);
    if (result == ABI_SUCCESS) *out = context;
    return result;
}

SIM_EXPORT abi_result cuDevicePrimaryCtxRetain(abi_context *out, abi_device device) {
    SIM_ENTER("cuDevicePrimaryCtxRetain");
    return out ? sim_primary_retain(device, (struct sim_context **)out) : ABI_ERROR_INVALID_VALUE;
}

/* A reset ends the context and releases none of its uses: the reference of cuDevicePrimaryCtxReset. */
static int primary_drop(abi_device device, bool reset) {
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim.lock);
    struct sim_context *context = sim.primary[device];
    bool ends = context && (reset || sim.primary_retains[device] == 1);
    pthread_mutex_unlock(&sim.lock);
    if (ends) sim_wait_context(context);
    pthread_mutex_lock(&sim.lock);
    context = sim.primary[device];
    bool fits = reset || sim.primary_retains[device] > 0;
    if (fits && !reset) sim.primary_retains[device]--;
    ends = context && (reset || (fits && sim.primary_retains[device] == 0));
    if (ends) { /* in one step: no other thread may see it gone while it still has memory, or create the next one beside
                   it */
        sim.primary[device] = NULL;
        context_end(context);
    }
    pthread_mutex_unlock(&sim.lock);
    return fits ? ABI_SUCCESS : ABI_ERROR_INVALID_CONTEXT;
}

int sim_primary_release(int device) {
    return primary_drop(device, false);
}

SIM_EXPORT abi_result cuDevicePrimaryCtxRelease_v2(abi_device device) {
    SIM_ENTER("cuDevicePrimaryCtxRelease_v2");
    return primary_drop(device, false);
}
SIM_EXPORT abi_result cuDevicePrimaryCtxRelease(abi_device device) {
    SIM_ENTER("cuDevicePrimaryCtxRelease");
    return primary_drop(device, false);
}
SIM_EXPORT abi_result cuDevicePrimaryCtxReset_v2(abi_device device) {
    SIM_ENTER("cuDevicePrimaryCtxReset_v2");
    return primary_drop(device, true);
}
SIM_EXPORT abi_result cuDevicePrimaryCtxReset(abi_device device) {
    SIM_ENTER("cuDevicePrimaryCtxReset");
    return primary_drop(device, true);
}
static unsigned primary_flags[SIM_MAX_GPUS]; /* by ordinal, under sim.lock */
static int set_primary_flags(abi_device device, unsigned flags, bool while_active) {
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    if (!are_flags(flags)) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool refused = sim.primary[device] && !while_active;
    if (!refused) primary_flags[device] = flags;
    if (!refused && sim.primary[device]) sim.primary[device]->flags = flags;
    pthread_mutex_unlock(&sim.lock);
    return refused ? ABI_ERROR_PRIMARY_CONTEXT_ACTIVE : ABI_SUCCESS;
}
SIM_EXPORT abi_result cuDevicePrimaryCtxSetFlags_v2(abi_device device, unsigned flags) {
    SIM_ENTER("cuDevicePrimaryCtxSetFlags_v2");
    return set_primary_flags(device, flags, true);
}
SIM_EXPORT abi_result cuDevicePrimaryCtxSetFlags(abi_device device, unsigned flags) {
    SIM_ENTER("cuDevicePrimaryCtxSetFlags");
    return set_primary_flags(device, flags, false);
}
SIM_EXPORT abi_result cuDevicePrimaryCtxGetState(abi_device device, unsigned *flags, int *active) {
    SIM_ENTER("cuDevicePrimaryCtxGetState");
    if (device < 0 || device >= sim.device_count) return ABI_ERROR_INVALID_DEVICE;
    if (flags) *flags = primary_flags[device];
    pthread_mutex_lock(&sim.lock);
    if (active) *active = sim.primary[device] != NULL;
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

static int push(struct sim_context *context) {
    if (depth == STACK_DEPTH) return ABI_ERROR_INVALID_VALUE;
    set_slot(depth++, context);
    return ABI_SUCCESS;
}

int sim_create(abi_context *out, unsigned flags, abi_device device) {
    if (!out || depth == STACK_DEPTH || !are_flags(flags)) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_context *context = NULL;
    int result = sim_context_new(&context, flags, device, SIM_OWN_CONTEXT);
    pthread_mutex_unlock(&sim.lock);
    if (result != ABI_SUCCESS) return result;
    *out = (abi_context)context;
    return push(context);
}

SIM_ROW(cuCtxCreate_v4, (abi_context * out, void *parameters, unsigned flags, abi_device device),
        sim_create(out, flags, device))
SIM_EXPORT abi_result cuCtxCreate_v3(abi_context *out, void *affinity, int count, unsigned flags, abi_device device) {
    SIM_ENTER("cuCtxCreate_v3");
    (void)affinity;
    if (count != 0) return ABI_ERROR_NOT_SUPPORTED;
    return sim_create(out, flags, device);
}
SIM_ROW(cuCtxCreate_v2, (abi_context * out, unsigned flags, abi_device device), sim_create(out, flags, device))

int sim_destroy(abi_context handle) {
    struct sim_context *context = (struct sim_context *)handle;
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_context(context) && context->alive && !context->primary && !context->green;
    pthread_mutex_unlock(&sim.lock);
    if (!known) return ABI_ERROR_INVALID_CONTEXT;
    if (depth > 0 && stack[depth - 1] == context) pop();
    return sim_context_finish(context);
}

SIM_ROW(cuCtxDestroy_v2, (abi_context context), sim_destroy(context))

SIM_EXPORT abi_result cuCtxSetCurrent(abi_context handle) {
    SIM_ENTER("cuCtxSetCurrent");
    struct sim_context *context = (struct sim_context *)handle;
    if (context) {
        pthread_mutex_lock(&sim.lock);
        bool known = sim_is_context(context);
        pthread_mutex_unlock(&sim.lock);
        if (!known) return ABI_ERROR_INVALID_CONTEXT;
    }
    if (depth == 0) return context ? push(context) : ABI_SUCCESS;
    if (context) set_slot(depth - 1, context);
    else pop();
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxGetCurrent(abi_context *context) {
    SIM_ENTER("cuCtxGetCurrent");
    if (!context) return ABI_ERROR_INVALID_VALUE;
    *context = (abi_context)sim_stack_top();
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxPushCurrent_v2(abi_context handle) {
    SIM_ENTER("cuCtxPushCurrent_v2");
    pthread_mutex_lock(&sim.lock);
    bool known = sim_is_context((struct sim_context *)handle);
    pthread_mutex_unlock(&sim.lock);
    return known ? push((struct sim_context *)handle) : ABI_ERROR_INVALID_CONTEXT;
}
SIM_EXPORT abi_result cuCtxPopCurrent_v2(abi_context *context) {
    SIM_ENTER("cuCtxPopCurrent_v2");
    if (depth == 0) return ABI_ERROR_INVALID_CONTEXT;
    struct sim_context *top = pop();
    if (context) *context = (abi_context)top;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxGetDevice(abi_device *device) {
    SIM_ENTER("cuCtxGetDevice");
    const struct sim_context *context = sim_stack_top();
    if (!context || !context->alive) return ABI_ERROR_INVALID_CONTEXT;
    if (!device) return ABI_ERROR_INVALID_VALUE;
    *device = context->device;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxGetFlags(unsigned *flags) {
    SIM_ENTER("cuCtxGetFlags");
    struct sim_context *context;
    int result = sim_current(&context);
    if (result == ABI_SUCCESS && !flags) result = ABI_ERROR_INVALID_VALUE;
    if (result == ABI_SUCCESS) *flags = context->flags;
    return result;
}
SIM_EXPORT abi_result cuCtxGetId(abi_context handle, unsigned long long *id) {
    SIM_ENTER("cuCtxGetId");
    struct sim_context *context = (struct sim_context *)handle;
    if (!context && sim_current(&context) != ABI_SUCCESS) return ABI_ERROR_CONTEXT_IS_DESTROYED;
    if (!id) return ABI_ERROR_INVALID_VALUE;
    *id = context->id;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxSetFlags(unsigned flags) {
    SIM_ENTER("cuCtxSetFlags");
    struct sim_context *context;
    SIM_TRY(sim_current(&context));
    if (!are_flags(flags)) return ABI_ERROR_INVALID_VALUE;
    context->flags = flags;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    SIM_ENTER("cuCtxGetStreamPriorityRange");
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxGetCacheConfig(int *config) {
    SIM_ENTER("cuCtxGetCacheConfig");
    struct sim_context *context;
    SIM_TRY(sim_current(&context));
    if (!config) return ABI_ERROR_INVALID_VALUE;
    *config = 0;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuCtxSetCacheConfig(int config) {
    SIM_ENTER("cuCtxSetCacheConfig");
    (void)config; /* a hint */
    return ABI_SUCCESS;
}
