/* The time line of a simulated GPU: processes with queued kernels take turns in time slices, as on hardware, and a
 * kernel that outlasts its slice continues in the next one. Within a slice the streams of the process run side by side
 * (queues.c).
 *
 * Nothing runs in the background: the time line is advanced to the present whenever its state is needed. The result is
 * the same as that of continuous simulation, for every submission has its own time. */

#include "queues.h"

#define FOREVER UINT64_MAX
#define MIN_SLEEP_NS 20000ull /* finer wake-ups cost more than they gain */
#define TICK_NS 5000000ull    /* while anything is queued: keeps samples and published times current */

/* The next client after `from` (round robin) that can run at `at_ns`; *arrival gets the earliest later arrival. */
static struct client *next_client(struct node *node, struct gpu *gpu, struct client *from, uint64_t at_ns,
                                  uint64_t *arrival) {
    struct client *first = NULL, *after = NULL;
    bool passed = from == NULL;
    for (struct client *client = node->clients; client; client = client->next) {
        if (queues_can_run(client, gpu->index, at_ns, arrival)) {
            if (!first) first = client;
            if (passed && !after && client != from) after = client;
        }
        if (client == from) passed = true;
    }
    return after ? after : first;
}

static void take_sample(struct gpu *gpu) {
    uint64_t percent = gpu->busy_in_sample_ns * 100 / SIM_SAMPLE_NS;
    gpu->samples[gpu->sample_next] = (struct sample){
        .at_us = gpu->next_sample_ns / 1000 + node_wall_us() - node_now_ns() / 1000,
        .pid = gpu->busy_in_sample_ns ? gpu->last_pid : 0,
        .percent = (uint32_t)(percent > 100 ? 100 : percent),
    };
    gpu->sample_next = (gpu->sample_next + 1) % SIM_SAMPLES;
    gpu->energy_mj += (uint64_t)gpu->power_mw * SIM_SAMPLE_NS / 1000000000u;
    gpu->busy_in_sample_ns = 0;
    gpu->next_sample_ns += SIM_SAMPLE_NS;
}

static void pass_time(const struct node *node, struct gpu *gpu, uint64_t step, struct client *client) {
    uint32_t sms = client ? client->channel[gpu->index].queues->busy_sms : 0;
    if (client) queues_pass(&client->channel[gpu->index], step);
    while (step) {
        uint64_t part = gpu->next_sample_ns - gpu->now_ns;
        if (part > step) part = step;
        if (client) {
            client->channel[gpu->index].sm_ns += part;
            gpu->busy_in_sample_ns += part;
            gpu->last_pid = client->pid;
        }
        counters_advance(gpu, part, sms, node->facts->gpus[gpu->index].sm_count);
        gpu->now_ns += part;
        step -= part;
        if (gpu->now_ns == gpu->next_sample_ns) take_sample(gpu);
    }
}

static uint64_t least_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static void advance_gpu(struct node *node, struct gpu *gpu, uint64_t now_ns) {
    if (gpu->lost) {
        if (now_ns > gpu->now_ns) pass_time(node, gpu, now_ns - gpu->now_ns, NULL);
        return;
    }
    for (struct client *client = node->clients; client; client = client->next)
        queues_take(&client->channel[gpu->index]);
    while (gpu->now_ns <= now_ns) {
        struct client *client = gpu->running;
        struct channel *channel = client ? &client->channel[gpu->index] : NULL;
        uint64_t arrival = FOREVER;
        if (channel) queues_settle(node, client, gpu->index, gpu->now_ns);
        bool runs = channel && channel->queues && channel->queues->busy_sms;
        if (!runs || gpu->slice_left_ns == 0) {
            struct client *next = next_client(node, gpu, client, gpu->now_ns, &arrival);
            if (!next) {
                uint64_t until = least_of(arrival, now_ns);
                if (until <= gpu->now_ns) return;
                pass_time(node, gpu, until - gpu->now_ns, NULL);
                continue;
            }
            gpu->running = next;
            gpu->slice_left_ns = node->slice_ns;
            continue;
        }
        if (gpu->now_ns == now_ns) return;
        queues_can_run(client, gpu->index, gpu->now_ns, &arrival);
        uint64_t step = least_of(queues_until_next(channel), gpu->slice_left_ns);
        step = least_of(step, least_of(arrival, now_ns) - gpu->now_ns);
        pass_time(node, gpu, step, client);
        gpu->slice_left_ns -= step;
    }
}

/* A kernel of one GPU may wait for one of another. */
void timeline_advance(struct node *node, struct gpu *gpu, uint64_t now_ns) {
    node->flags_changed = false;
    advance_gpu(node, gpu, now_ns);
    for (int round = 0; node->flags_changed && node->facts->gpu_count > 1 && round < SIM_MAX_GPUS; round++) {
        node->flags_changed = false;
        for (uint32_t i = 0; i < node->facts->gpu_count; i++) advance_gpu(node, &node->gpus[i], now_ns);
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
        bool idle = queues_is_empty(channel) &&
                    atomic_load_explicit(&channel->shared->put, memory_order_seq_cst) == channel->queues->taken;
        atomic_store_explicit(&channel->shared->sleeping, idle, memory_order_seq_cst);
        uint64_t put = atomic_load_explicit(&channel->shared->put, memory_order_seq_cst);
        if (queues_is_empty(channel) && put == channel->queues->taken) continue;
        queued = true;
        least = least_of(least, put == channel->queues->taken ? queues_until_wanted(channel) : 0);
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
