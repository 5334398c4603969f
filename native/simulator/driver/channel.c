/* Submits work to a GPU and waits for it. All that a process submits to a GPU goes through one ring; each stream is a
 * queue of it, whose items complete in order. A submission costs a clock read and one cache line; the daemon is woken
 * only when it sleeps or when a thread waits. */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sim_ring_doorbell(void) {
    uint64_t one = 1;
    (void)!write(sim.doorbell, &one, sizeof one);
}

static void pause_until_changed(struct sim_channel *channel, uint32_t seen) {
    sim_ring_doorbell();
    /* The time-out only guards against a node that was stopped. */
    struct timespec limit = {.tv_sec = 1};
    syscall(SYS_futex, &channel->done_futex, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* The futex changes when that item is complete. */
static void want(struct sim_channel *channel, uint32_t queue, uint64_t number) {
    _Atomic uint64_t *wait_for = &channel->wait_for[queue];
    uint64_t wanted = atomic_load(wait_for);
    while ((wanted == 0 || wanted > number) && !atomic_compare_exchange_weak(wait_for, &wanted, number)) {
    }
}

static int queue_wait(struct sim_channel *channel, uint32_t queue, uint64_t number) {
    for (;;) {
        uint32_t seen = atomic_load_explicit(&channel->done_futex, memory_order_acquire);
        if (atomic_load_explicit(&channel->done[queue], memory_order_acquire) >= number) break;
        want(channel, queue, number);
        if (atomic_load(&channel->done[queue]) >= number) break;
        pause_until_changed(channel, seen);
    }
    return atomic_load_explicit(&channel->error, memory_order_relaxed);
}

/* Half of the ring is free again when its oldest items are complete. */
static void wait_for_space(struct sim_channel *channel, uint64_t put) {
    while (put - atomic_load_explicit(&channel->completed, memory_order_acquire) >= SIM_RING_ENTRIES - 1) {
        sim_ring_doorbell();
        struct timespec pause = {.tv_nsec = 200000};
        nanosleep(&pause, NULL);
    }
}

uint32_t sim_queue_take(struct sim_context *context, bool legacy) {
    struct sim_queue *queues = sim.queues[context->gpu];
    uint32_t first = legacy ? 0 : SIM_LEGACY_QUEUES, end = legacy ? SIM_LEGACY_QUEUES : SIM_QUEUES, found = first;
    while (found < end && (queues[found].streams || !sim_is_done(context, found, atomic_load(&queues[found].last))))
        found++;
    bool shared = found == end;
    if (shared) found = first + (uint32_t)(sim.next_id % (end - first));
    queues[found].streams++;
    queues[found].context = shared && queues[found].context != context ? NULL : context;
    return found;
}

int sim_submit(struct sim_context *context, struct sim_stream *stream, struct sim_item *item, uint64_t *number) {
    struct sim_channel *channel = sim.channel[context->gpu];
    pthread_mutex_t *lock = &sim.queue_lock[context->gpu];
    uint32_t queue = sim_queue_of(context, stream);
    item->submit_ns = now_ns();
    item->queue = (uint16_t)queue;
    item->blocking = !stream || !(stream->flags & ABI_STREAM_NON_BLOCKING);
    item->legacy = (uint16_t)context->legacy;
    pthread_mutex_lock(lock);
    uint64_t put = atomic_load_explicit(&channel->put, memory_order_relaxed);
    wait_for_space(channel, put);
    channel->ring[put % SIM_RING_ENTRIES] = *item;
    atomic_store_explicit(&channel->put, put + 1, memory_order_seq_cst);
    if (stream) atomic_store_explicit(&stream->last, put + 1, memory_order_relaxed);
    struct sim_queue *own = &sim.queues[context->gpu][queue];
    atomic_store_explicit(&own->last, put + 1, memory_order_relaxed);
    if (item->blocking) atomic_store_explicit(&own->last_blocking, put + 1, memory_order_relaxed);
    pthread_mutex_unlock(lock);
    if (number) *number = put + 1;
    if (atomic_load_explicit(&channel->sleeping, memory_order_seq_cst) && atomic_exchange(&channel->sleeping, 0))
        sim_ring_doorbell();
    return ABI_SUCCESS;
}

void sim_want(const struct sim_context *context, uint32_t queue, uint64_t number) {
    want(sim.channel[context->gpu], queue, number);
}

int sim_wait(struct sim_context *context, uint32_t queue, uint64_t number) {
    struct sim_channel *channel = sim.channel[context->gpu];
    return channel ? queue_wait(channel, queue, number) : ABI_SUCCESS;
}

bool sim_is_done(const struct sim_context *context, uint32_t queue, uint64_t number) {
    const struct sim_channel *channel = sim.channel[context->gpu];
    return !channel || atomic_load_explicit(&channel->done[queue], memory_order_acquire) >= number;
}

int sim_wait_all(struct sim_context *context) {
    int result = ABI_SUCCESS;
    for (uint32_t queue = 0; queue < SIM_QUEUES && sim.channel[context->gpu]; queue++)
        result = sim_wait(context, queue, atomic_load(&sim.queues[context->gpu][queue].last));
    return result;
}

int sim_wait_context(struct sim_context *context) {
    int result = ABI_SUCCESS;
    for (uint32_t queue = 0; queue < SIM_QUEUES; queue++) {
        const struct sim_queue *one = &sim.queues[context->gpu][queue];
        if (sim_comprises(context, one)) result = sim_wait(context, queue, atomic_load(&one->last));
    }
    return result;
}

int sim_wait_legacy(struct sim_context *context) {
    int result = ABI_SUCCESS;
    for (uint32_t queue = 0; queue < SIM_QUEUES; queue++) {
        const struct sim_queue *one = &sim.queues[context->gpu][queue];
        if (sim_has_work_of(one, context)) result = sim_wait(context, queue, atomic_load(&one->last_blocking));
    }
    return result;
}

bool sim_is_legacy_done(struct sim_context *context) {
    for (uint32_t queue = 0; queue < SIM_QUEUES; queue++) {
        const struct sim_queue *one = &sim.queues[context->gpu][queue];
        if (sim_has_work_of(one, context) && !sim_is_done(context, queue, atomic_load(&one->last_blocking)))
            return false;
    }
    return true;
}
