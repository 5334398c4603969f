/* Steps of streams that the process does itself, on threads of the driver: functions of the host, and what comes behind
 * them. Two items of the time line stand for a step: one that is complete once all earlier work is, and one that is
 * complete once the step is done. */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

struct work {
    struct work *next;
    struct sim_context *context;
    uint32_t queue;
    uint64_t reached, held; /* numbers of its items */
    struct sim_step step;
};

/* Functions of the host are serialized, and copies do not wait for them: each has a thread of its own. */
enum { FUNCTIONS, COPIES, LANES };
static struct lane {
    struct work *first;
    bool started;
} lanes[SIM_MAX_GPUS][LANES];
static _Atomic unsigned pending; /* of all GPUs, whose streams may wait for one another */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

_Atomic int sim_host_calls;
_Thread_local bool sim_in_host_call;

bool sim_is_host_work_pending(void) {
    return atomic_load_explicit(&pending, memory_order_acquire) > 0;
}

static bool is_met(const struct sim_step *step) {
    if (step->type != SIM_STEP_WAIT_VALUE) return true;
    bool wide = step->fill.width == 8;
    uint64_t there = wide ? *(volatile uint64_t *)step->to : *(volatile uint32_t *)step->to, value = step->bytes;
    switch (step->fill.element & 3) {
    case 0: return wide ? (int64_t)(there - value) >= 0 : (int32_t)(uint32_t)(there - value) >= 0;
    case 1: return there == value;
    case 2: return there & value;
    default: return ~(there | value) & (wide ? UINT64_MAX : UINT32_MAX);
    }
}

static void do_step(const struct sim_step *step) {
    if (step->type == ABI_NODE_MEMCPY) memmove((void *)step->to, (void *)step->from, step->bytes);
    if (step->type == ABI_NODE_MEMSET) sim_fill_there(&step->fill);
    if (step->type == SIM_STEP_RAISE) {
        _Atomic uint64_t *number = (_Atomic uint64_t *)step->to;
        uint64_t before = atomic_load(number);
        while (before < step->bytes && !atomic_compare_exchange_weak(number, &before, step->bytes)) {
        }
    }
    if (step->type != ABI_NODE_HOST) return;
    sim_in_host_call = true;
    atomic_fetch_add(&sim_host_calls, 1);
    step->function(step->data);
    atomic_fetch_sub(&sim_host_calls, 1);
    sim_in_host_call = false;
}

/* Under the lock: takes the first step that is due; *polls: one waits for a value only. */
static struct work *take_due(struct lane *lane, bool *polls) {
    *polls = false;
    for (struct work **place = &lane->first, *work; (work = *place); place = &work->next) {
        if (!sim_is_done(work->context, work->queue, work->reached)) continue;
        if (is_met(&work->step)) {
            *place = work->next;
            return work;
        }
        *polls = true;
    }
    return NULL;
}

static void wait_for_change(uint32_t gpu, uint32_t seen, bool polls) {
    struct timespec time = {.tv_sec = polls ? 0 : 1, .tv_nsec = polls ? 200000 : 0};
    sim_ring_doorbell();
    syscall(SYS_futex, &sim.channel[gpu]->done_futex, FUTEX_WAIT, seen, &time, NULL, 0);
}

static void *serve(void *argument) {
    struct lane *lane = argument;
    uint32_t gpu = (uint32_t)(lane - &lanes[0][0]) / LANES;
    for (;;) {
        bool polls;
        uint32_t seen = atomic_load_explicit(&sim.channel[gpu]->done_futex, memory_order_acquire);
        pthread_mutex_lock(&lock);
        struct work *work = take_due(lane, &polls);
        for (const struct work *other = work ? NULL : lane->first; other; other = other->next)
            sim_want(other->context, other->queue, other->reached);
        pthread_mutex_unlock(&lock);
        if (!work) {
            wait_for_change(gpu, seen, polls);
            continue;
        }
        do_step(&work->step);
        sim_simple(SIM_HOST_DONE, gpu, work->held, 0, NULL);
        free(work);
        atomic_fetch_sub_explicit(&pending, 1, memory_order_release);
    }
    return NULL;
}

/* Under the lock. Signals are the program's own threads'. */
static bool start_thread(struct lane *lane) {
    sigset_t all, before;
    pthread_t thread;
    if (lane->started) return true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    lane->started = pthread_create(&thread, NULL, serve, lane) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (lane->started) pthread_detach(thread);
    return lane->started;
}

int sim_host_work(struct sim_context *context, struct sim_stream *stream, const struct sim_step *step,
                  uint64_t *number) {
    struct lane *lane = &lanes[context->gpu][step->type == ABI_NODE_HOST ? FUNCTIONS : COPIES];
    struct work *work = malloc(sizeof *work), **last = &lane->first;
    if (!work) return ABI_ERROR_OUT_OF_MEMORY;
    *work = (struct work){.context = context, .queue = sim_queue_of(context, stream), .step = *step};
    atomic_fetch_add_explicit(&pending, 1, memory_order_acquire);
    struct sim_item reached = {.kind = SIM_ITEM_STAMP, .cell = SIM_CELLS}, held = {.kind = SIM_ITEM_HOST};
    pthread_mutex_lock(&lock); /* so that steps are in the order of their items */
    int result = start_thread(lane) ? sim_submit(context, stream, &reached, &work->reached) : ABI_ERROR_OUT_OF_MEMORY;
    if (result == ABI_SUCCESS) result = sim_submit(context, stream, &held, &work->held);
    if (number) *number = work->held;
    while (*last) last = &(*last)->next;
    if (result == ABI_SUCCESS) *last = work;
    pthread_mutex_unlock(&lock);
    if (result == ABI_SUCCESS) {
        struct sim_channel *channel = sim.channel[context->gpu];
        atomic_fetch_add_explicit(&channel->done_futex, 1, memory_order_release);
        syscall(SYS_futex, &channel->done_futex, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
    } else {
        atomic_fetch_sub(&pending, 1);
        free(work);
    }
    return result;
}
