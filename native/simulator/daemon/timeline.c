/* The time line of a simulated card: processes with queued kernels take turns in slices, as the hardware's time slicing
 * does, and a kernel that outlasts its slice goes on in its next turn. A kernel is alone on the card while it runs.
 *
 * Nothing runs in the background: the line is moved forward, up to the present, whenever somebody needs to know. That
 * gives the same answer as moving it continuously, for every submission carries its own time. */
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "node.h"

#define FOREVER UINT64_MAX
#define LEAST_SLEEP_NS 20000ull /* finer wake-ups cost more than they tell */
#define TICK_NS 5000000ull      /* while anything is queued: keeps samples and published times fresh */

static void wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

/* Copies the next item out of the ring, once: the process can write there at any time. False: nothing is queued. */
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

/* The next client after `from` (round robin) whose head item had arrived by `at_ns`; *arrival gets the earliest later
 * arrival of anyone. */
static struct client *next_turn(struct node *node, struct card *card, struct client *from, uint64_t at_ns,
                                uint64_t *arrival) {
    struct client *first = NULL, *after = NULL;
    bool passed = from == NULL;
    for (struct client *client = node->clients; client; client = client->next) {
        struct channel *channel = &client->channel[card->index];
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

static void take_sample(struct card *card) {
    uint64_t percent = card->busy_in_sample_ns * 100 / SIM_SAMPLE_NS;
    card->samples[card->sample_next] = (struct sample){
        .at_us = card->next_sample_ns / 1000 + clock_offset_us(),
        .pid = card->busy_in_sample_ns ? card->last_pid : 0,
        .percent = (uint32_t)(percent > 100 ? 100 : percent),
    };
    card->sample_next = (card->sample_next + 1) % SIM_SAMPLES;
    card->energy_mj += (uint64_t)card->power_mw * SIM_SAMPLE_NS / 1000000000u;
    card->busy_in_sample_ns = 0;
    card->next_sample_ns += SIM_SAMPLE_NS;
}

static void pass_time(const struct node *node, struct card *card, uint64_t step, struct client *client) {
    const struct sim_item *kernel = client ? &client->channel[card->index].item : NULL;
    while (step) {
        uint64_t part = card->next_sample_ns - card->now_ns;
        if (part > step) part = step;
        if (client) {
            client->channel[card->index].sm_ns += part;
            card->busy_in_sample_ns += part;
            card->last_pid = client->pid;
        }
        counters_pass(card, part, kernel, node->facts->cards[card->index].sm_count);
        card->now_ns += part;
        step -= part;
        if (card->now_ns == card->next_sample_ns) take_sample(card);
    }
}

void timeline_advance(struct node *node, struct card *card, uint64_t now_ns) {
    if (card->lost) {
        if (now_ns > card->now_ns) pass_time(node, card, now_ns - card->now_ns, NULL);
        return;
    }
    while (card->now_ns <= now_ns) {
        struct client *client = card->running;
        struct channel *channel = client ? &client->channel[card->index] : NULL;
        bool can_run = channel && fetch(channel) && channel->item.submit_ns <= card->now_ns;
        if (!can_run || card->slice_left_ns == 0) {
            uint64_t arrival = FOREVER;
            struct client *next = next_turn(node, card, client, card->now_ns, &arrival);
            if (!next) {
                uint64_t until = arrival < now_ns ? arrival : now_ns;
                if (until <= card->now_ns) return;
                pass_time(node, card, until - card->now_ns, NULL);
                continue;
            }
            card->running = next;
            card->slice_left_ns = node->slice_ns;
            continue;
        }
        uint64_t step = channel->item.duration_ns;
        if (step > card->slice_left_ns) step = card->slice_left_ns;
        if (step > now_ns - card->now_ns) step = now_ns - card->now_ns;
        pass_time(node, card, step, client);
        card->slice_left_ns -= step;
        channel->item.duration_ns -= step;
        if (channel->item.duration_ns == 0) complete(channel, card->now_ns);
        else if (card->now_ns == now_ns) return;
    }
}

/* When this card must be looked at again: the soonest that any waited-for item can be done, and a tick while work is
 * queued. Marks idle channels as sleeping, so that their next submission rings. */
uint64_t timeline_next_wake(struct node *node, struct card *card) {
    uint64_t least = FOREVER;
    bool queued = false;
    for (struct client *client = node->clients; client; client = client->next) {
        struct channel *channel = &client->channel[card->index];
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
    return card->now_ns + (least < LEAST_SLEEP_NS ? LEAST_SLEEP_NS : least);
}

void timeline_forget(struct card *card, struct client *client) {
    if (card->running == client) {
        card->running = NULL;
        card->slice_left_ns = 0;
    }
}
