/* Submits work to a GPU and waits for it. Everything that a process submits to a GPU goes through one ring in order,
 * whatever the stream: a kernel is alone on the GPU anyway, and in-order completion makes every wait a comparison of
 * numbers. A submission costs a clock read and one cache line; the daemon is woken only when it sleeps or when a thread
 * waits. */
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

static int channel_wait(struct sim_channel *channel, uint64_t number) {
    for (;;) {
        uint32_t seen = atomic_load_explicit(&channel->completed_futex, memory_order_acquire);
        if (atomic_load_explicit(&channel->completed, memory_order_acquire) >= number) break;
        uint64_t wanted = atomic_load(&channel->wait_for);
        while ((wanted == 0 || wanted > number) && !atomic_compare_exchange_weak(&channel->wait_for, &wanted, number)) {
        }
        if (atomic_load(&channel->completed) >= number) break;
        sim_ring_doorbell();
        /* The time-out only guards against a node that was stopped. */
        struct timespec limit = {.tv_sec = 1};
        syscall(SYS_futex, &channel->completed_futex, FUTEX_WAIT, seen, &limit, NULL, 0);
    }
    return atomic_load_explicit(&channel->error, memory_order_relaxed);
}

int sim_submit(struct sim_context *context, struct sim_stream *stream, struct sim_item *item, uint64_t *number) {
    struct sim_channel *channel = sim.channel[context->gpu];
    pthread_mutex_t *lock = &sim.queue_lock[context->gpu];
    item->submit_ns = now_ns();
    pthread_mutex_lock(lock);
    uint64_t put = atomic_load_explicit(&channel->put, memory_order_relaxed);
    while (put - atomic_load_explicit(&channel->completed, memory_order_acquire) >= SIM_RING_ENTRIES - 1) {
        channel_wait(channel, put - SIM_RING_ENTRIES / 2);
    }
    channel->ring[put % SIM_RING_ENTRIES] = *item;
    atomic_store_explicit(&channel->put, put + 1, memory_order_seq_cst);
    if (stream) atomic_store_explicit(&stream->last, put + 1, memory_order_relaxed);
    pthread_mutex_unlock(lock);
    if (number) *number = put + 1;
    if (atomic_load_explicit(&channel->sleeping, memory_order_seq_cst) && atomic_exchange(&channel->sleeping, 0))
        sim_ring_doorbell();
    return ABI_SUCCESS;
}

int sim_wait(struct sim_context *context, uint64_t number) {
    struct sim_channel *channel = sim.channel[context->gpu];
    return channel ? channel_wait(channel, number) : ABI_SUCCESS;
}

int sim_wait_all(struct sim_context *context) {
    struct sim_channel *channel = sim.channel[context->gpu];
    return channel ? channel_wait(channel, atomic_load(&channel->put)) : ABI_SUCCESS;
}
