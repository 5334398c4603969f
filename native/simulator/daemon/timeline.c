/* The time line of a simulated GPU: processes with queued kernels take turns in time slices, as on hardware, and a
 * kernel that outlasts its slice continues in the next one. A kernel is alone on the GPU while it runs.
 *
 * Nothing runs in the background: the time line is advanced to the present whenever its state is needed. The result is
 * the same as that of continuous simulation, for every submission has its own time. */
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "node.h"

#define FOREVER UINT64_MAX
#define MIN_SLEEP_NS 20000ull /* finer wake-ups cost more than they gain */
#define TICK_NS 5000000ull    /* while anything is queued: keeps samples and published times current */

static void wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

/* Copies the next item out of the ring, once: the process can overwrite it at any time. False: the queue is empty. */
static bool fetch(struct channel *channel) {
    if (channel->busy) return true;
    if (!channel->shared) return false;
    uint64_t put = atomic_load_explicit(&channel->shared->put, memory_order_acquire);
    if (put == channel->taken || put - channel->taken > SIM_RING_ENTRIES) return false;
    memcpy(&channel->item, &channel->shared->ring[channel->taken % SIM_RING_ENTRIES], sizeof channel->item);
    if (channel->item.kind != SIM_ITEM_KERNEL) channel->item.duration_ns = 0;
    channel->taken++;
    channel->busy = true;
    return true;
}

static void complete(struct channel *channel, uint64_t at_ns) {
    struct sim_channel *shared = channel->shared;
    if (channel->item.kind == SIM_ITEM_STAMP && channel->item.cell < SIM_CELLS) {
        atomic_store_explicit(&shared->cells[channel->item.cell], at_ns, memory_order_relaxed);
    }
    if (channel->item.kind == SIM_ITEM_KERNEL && channel->item.error) {
        int32_t none = 0;
        atomic_compare_exchange_strong(&shared->error, &none, channel->item.error);
    }
    channel->busy = false;
    atomic_store_explicit(&shared->sm_ns, channel->sm_ns, memory_order_relaxed);
    atomic_store_explicit(&shared->completed, channel->taken, memory_order_release);
    uint64_t wanted = atomic_load_explicit(&shared->wait_for, memory_order_seq_cst);
    if (wanted && wanted <= channel->taken) {
        atomic_store_explicit(&shared->wait_for, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&shared->completed_futex, 1, memory_order_release);
        wake(&shared->completed_futex);
    }
}

/* The next client after `from` (round robin) whose first item had arrived by `at_ns`; *arrival gets the earliest later
 * arrival. */
static struct client *next_client(struct node *node, struct gpu *gpu, struct client *from, uint64_t at_ns,
                                  uint64_t *arrival) {
    struct client *first = NULL, *after = NULL;
    bool passed = from == NULL;
    for (struct client *client = node->clients; client; client = client->next) {
        struct channel *channel = &client->channel[gpu->index];
        if (fetch(channel)) {
            if (channel->item.submit_ns <= at_ns) {
                if (!first) first = client;
                if (passed && !after && client != from) after = client;
            } else if (arrival && channel->item.submit_ns < *arrival) {
                *arrival = channel->item.submit_ns;
            }
        }
        if (client == from) passed = true;
    }
    return after ? after : first;
}

static uint64_t clock_offset_us(void) {
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    return (uint64_t)real.tv_sec * 1000000 + (uint64_t)real.tv_nsec / 1000 - node_now_ns() / 1000;
}

static void take_sample(struct gpu *gpu) {
    uint64_t percent = gpu->busy_in_sample_ns * 100 / SIM_SAMPLE_NS;
    gpu->samples[gpu->sample_next] = (struct sample){
        .at_us = gpu->next_sample_ns / 1000 + clock_offset_us(),
        .pid = gpu->busy_in_sample_ns ? gpu->last_pid : 0,
        .percent = (uint32_t)(percent > 100 ? 100 : percent),
    };
    gpu->sample_next = (gpu->sample_next + 1) % SIM_SAMPLES;
    gpu->energy_mj += (uint64_t)gpu->power_mw * SIM_SAMPLE_NS / 1000000000u;
    gpu->busy_in_sample_ns = 0;
    gpu->next_sample_ns += SIM_SAMPLE_NS;
}

static void pass_time(const struct node *node, struct gpu *gpu, uint64_t step, struct client *client) {
    const struct sim_item *kernel = client ? &client->channel[gpu->index].item : NULL;
    while (step) {
        uint64_t part = gpu->next_sample_ns - gpu->now_ns;
        if (part > step) part = step;
        if (client) {
            client->channel[gpu->index].sm_ns += part;
            gpu->busy_in_sample_ns += part;
            gpu->last_pid = client->pid;
        }
        counters_advance(gpu, part, kernel, node->facts->gpus[gpu->index].sm_count);
        gpu->now_ns += part;
        step -= part;
        if (gpu->now_ns == gpu->next_sample_ns) take_sample(gpu);
    }
}

void timeline_advance(struct node *node, struct gpu *gpu, uint64_t now_ns) {
    if (gpu->lost) {
        if (now_ns > gpu->now_ns) pass_time(node, gpu, now_ns - gpu->now_ns, NULL);
        return;
    }
    while (gpu->now_ns <= now_ns) {
        struct client *client = gpu->running;
        struct channel *channel = client ? &client->channel[gpu->index] : NULL;
        bool can_run = channel && fetch(channel) && channel->item.submit_ns <= gpu->now_ns;
        if (!can_run || gpu->slice_left_ns == 0) {
            uint64_t arrival = FOREVER;
            struct client *next = next_client(node, gpu, client, gpu->now_ns, &arrival);
            if (!next) {
                uint64_t until = arrival < now_ns ? arrival : now_ns;
                if (until <= gpu->now_ns) return;
                pass_time(node, gpu, until - gpu->now_ns, NULL);
                continue;
            }
            gpu->running = next;
            gpu->slice_left_ns = node->slice_ns;
            continue;
        }
        uint64_t step = channel->item.duration_ns;
        if (step > gpu->slice_left_ns) step = gpu->slice_left_ns;
        if (step > now_ns - gpu->now_ns) step = now_ns - gpu->now_ns;
        pass_time(node, gpu, step, client);
        gpu->slice_left_ns -= step;
        channel->item.duration_ns -= step;
        if (channel->item.duration_ns == 0) complete(channel, gpu->now_ns);
        else if (gpu->now_ns == now_ns) return;
    }
}

/* When this GPU must be advanced again: the earliest completion that a thread waits for, and every tick while anything
 * is queued. Marks idle channels as sleeping, so that their next submission rings the doorbell. */
uint64_t timeline_next_wake(struct node *node, struct gpu *gpu) {
    uint64_t least = FOREVER;
    bool queued = false;
    for (struct client *client = node->clients; client; client = client->next) {
        struct channel *channel = &client->channel[gpu->index];
        if (!channel->shared) continue;
        bool idle =
            !channel->busy && atomic_load_explicit(&channel->shared->put, memory_order_seq_cst) == channel->taken;
        atomic_store_explicit(&channel->shared->sleeping, idle, memory_order_seq_cst);
        uint64_t put = atomic_load_explicit(&channel->shared->put, memory_order_seq_cst);
        uint64_t wanted = atomic_load_explicit(&channel->shared->wait_for, memory_order_seq_cst);
        if (!channel->busy && put == channel->taken) continue;
        queued = true;
        if (wanted == 0) continue;
        uint64_t ahead = channel->busy ? channel->item.duration_ns : 0;
        uint64_t last = put < wanted ? put : wanted;
        for (uint64_t k = channel->taken; k < last && k - channel->taken < SIM_RING_ENTRIES; k++) {
            const struct sim_item *item = &channel->shared->ring[k % SIM_RING_ENTRIES];
            if (item->kind == SIM_ITEM_KERNEL) ahead += item->duration_ns;
        }
        if (ahead < least) least = ahead;
    }
    if (!queued) return FOREVER;
    if (least > TICK_NS) least = TICK_NS;
    return gpu->now_ns + (least < MIN_SLEEP_NS ? MIN_SLEEP_NS : least);
}

void timeline_remove(struct gpu *gpu, struct client *client) {
    if (gpu->running == client) {
        gpu->running = NULL;
        gpu->slice_left_ns = 0;
    }
}
