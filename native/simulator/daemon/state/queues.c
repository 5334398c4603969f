/* The state machine of a process's streams on one GPU: which items may start, which are complete, and who is woken. */
#include "queues.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PLACE(number) ((number) % SIM_RING_ENTRIES)

void queues_take(struct channel *channel) {
    struct queues *queues = channel->queues;
    if (!channel->shared) return;
    uint64_t put = atomic_load_explicit(&channel->shared->put, memory_order_acquire);
    uint64_t completed = atomic_load_explicit(&channel->shared->completed, memory_order_relaxed);
    while (queues->taken < put && queues->taken - completed < SIM_RING_ENTRIES - 1) {
        struct sim_item item = channel->shared->ring[PLACE(queues->taken)];
        uint64_t number = ++queues->taken;
        if (item.queue >= SIM_QUEUES) item.queue = 0;
        if (item.legacy >= SIM_LEGACY_QUEUES) item.legacy = 0;
        if (item.kind != SIM_ITEM_KERNEL) item.duration_ns = 0;
        if (item.kind == SIM_ITEM_HOST) item.awaits = true;
        if (item.kind == 0 || item.kind > SIM_ITEM_HOST) item.kind = SIM_ITEM_STAMP, item.cell = SIM_CELLS;
        uint64_t *active = &queues->active[item.queue / 64], bit = 1ull << item.queue % 64;
        if (*active & bit) queues->next[PLACE(queues->last[item.queue])] = number;
        else queues->first[item.queue] = number;
        *active |= bit;
        queues->last[item.queue] = number;
        queues->items[PLACE(number)] = item;
        queues->sms[PLACE(number)] = 0;
    }
}

void queues_host_done(struct channel *channel, uint64_t number) {
    struct queues *queues = channel->queues;
    queues_take(channel);
    if (!queues || number == 0 || number > queues->taken || queues->taken - number >= SIM_RING_ENTRIES) return;
    struct sim_item *item = &queues->items[PLACE(number)];
    if (item->kind == SIM_ITEM_HOST) item->awaits = false;
}

bool queues_is_empty(const struct channel *channel) {
    for (uint32_t i = 0; i < SIM_QUEUES / 64; i++) {
        if (channel->queues->active[i]) return false;
    }
    return true;
}

/* The next queue from `from` on that is not empty; SIM_QUEUES: none. */
static uint32_t next_active(const struct queues *queues, uint32_t from) {
    for (; from < SIM_QUEUES; from = (from / 64 + 1) * 64) {
        uint64_t left = queues->active[from / 64] >> from % 64;
        if (left) return from + (uint32_t)__builtin_ctzll(left);
    }
    return SIM_QUEUES;
}
#define EACH_HEAD(queues, queue, number)                                                                      \
    for (uint32_t queue = next_active(queues, 0); queue < SIM_QUEUES; queue = next_active(queues, queue + 1)) \
        for (uint64_t number = (queues)->first[queue], once = 1; once; once = 0)

static bool is_active(const struct queues *queues, uint32_t queue) {
    return queues->active[queue / 64] >> queue % 64 & 1;
}

/* Has the queue blocking work of the context with that legacy default stream, before that item? */
static bool has_blocking(const struct queues *queues, uint32_t queue, uint32_t legacy, uint64_t before) {
    for (uint64_t number = queues->first[queue]; number < before; number = queues->next[PLACE(number)]) {
        const struct sim_item *item = &queues->items[PLACE(number)];
        if (item->blocking && item->legacy == legacy) return true;
        if (number == queues->last[queue]) break;
    }
    return false;
}

/* The legacy default stream and blocking streams of a context wait for one another's earlier work. */
static bool is_after_barriers(const struct queues *queues, uint64_t number) {
    const struct sim_item *item = &queues->items[PLACE(number)];
    uint32_t legacy = item->legacy;
    if (item->queue != legacy) return !item->blocking || !is_active(queues, legacy) || queues->first[legacy] > number;
    for (uint32_t queue = next_active(queues, SIM_LEGACY_QUEUES); queue < SIM_QUEUES;
         queue = next_active(queues, queue + 1)) {
        if (has_blocking(queues, queue, legacy, number)) return false;
    }
    return true;
}

/* A head that has started, or may. */
static bool is_ready(const struct client *client, uint32_t gpu, uint64_t number) {
    const struct queues *queues = client->channel[gpu].queues;
    const struct sim_item *item = &queues->items[PLACE(number)];
    if (queues->sms[PLACE(number)]) return true;
    if (!is_after_barriers(queues, number) || (item->kind == SIM_ITEM_HOST && item->awaits)) return false;
    if (item->kind != SIM_ITEM_WAIT || item->wait_gpu >= SIM_MAX_GPUS || item->wait_queue >= SIM_QUEUES) return true;
    const struct sim_channel *other = client->channel[item->wait_gpu].shared;
    return !other || atomic_load_explicit(&other->done[item->wait_queue], memory_order_relaxed) >= item->wait_number;
}

bool queues_can_run(const struct client *client, uint32_t gpu, uint64_t at_ns, uint64_t *arrival) {
    const struct queues *queues = client->channel[gpu].queues;
    bool runs = false;
    if (!queues) return false;
    EACH_HEAD(queues, queue, number) {
        uint64_t submitted = queues->items[PLACE(number)].submit_ns;
        if (submitted <= at_ns) runs = runs || is_ready(client, gpu, number);
        else if (submitted < *arrival) *arrival = submitted;
    }
    return runs;
}

static void complete(struct node *node, struct channel *channel, uint64_t number, uint64_t at_ns) {
    struct queues *queues = channel->queues;
    struct sim_channel *shared = channel->shared;
    struct sim_item *item = &queues->items[PLACE(number)];
    if (item->kind == SIM_ITEM_STAMP && item->cell < SIM_CELLS) {
        atomic_store_explicit(&shared->cells[item->cell], at_ns, memory_order_relaxed);
    }
    if (item->kind == SIM_ITEM_KERNEL && item->error) {
        int32_t none = 0;
        atomic_compare_exchange_strong(&shared->error, &none, item->error);
    }
    uint32_t queue = item->queue;
    item->kind = 0;
    queues->busy_sms -= queues->sms[PLACE(number)];
    if (number == queues->last[queue]) queues->active[queue / 64] &= ~(1ull << queue % 64);
    else queues->first[queue] = queues->next[PLACE(number)];
    uint64_t completed = atomic_load_explicit(&shared->completed, memory_order_relaxed);
    while (completed < queues->taken && queues->items[PLACE(completed + 1)].kind == 0) completed++;
    atomic_store_explicit(&shared->sm_ns, channel->sm_ns, memory_order_relaxed);
    atomic_store_explicit(&shared->completed, completed, memory_order_release);
    atomic_store_explicit(&shared->done[queue], number, memory_order_seq_cst);
    node->flags_changed = true; /* a stream of another GPU may wait for it */
    uint64_t wanted = atomic_load_explicit(&shared->wait_for[queue], memory_order_seq_cst);
    if (!wanted || wanted > number) return;
    atomic_store_explicit(&shared->wait_for[queue], 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&shared->done_futex, 1, memory_order_release);
    syscall(SYS_futex, &shared->done_futex, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

/* It takes the SMs that its grid wants and no other kernel has, and takes longer with fewer. */
static void start(struct node *node, struct queues *queues, uint64_t number, uint32_t sm_count) {
    struct sim_item *item = &queues->items[PLACE(number)];
    uint32_t wanted = item->blocks == 0 ? 1 : item->blocks < sm_count ? item->blocks : sm_count;
    uint32_t free = sm_count - queues->busy_sms, sms = wanted < free ? wanted : free;
    queues->sms[PLACE(number)] = sms;
    queues->busy_sms += sms;
    item->duration_ns = (uint64_t)((unsigned __int128)item->duration_ns * wanted / sms);
    if (!item->adds || item->flag >= SIM_FLAGS) return;
    node->flags[item->flag] += item->adds;
    node->flags_changed = true;
}

static bool is_awaited(const struct node *node, const struct sim_item *item) {
    return !item->awaits || item->flag >= SIM_FLAGS || (int32_t)(node->flags[item->flag] - item->value) >= 0;
}

/* True: the head is complete, or has started. */
static bool settle_head(struct node *node, struct client *client, uint32_t gpu, uint64_t number, uint64_t at_ns) {
    struct channel *channel = &client->channel[gpu];
    struct queues *queues = channel->queues;
    struct sim_item *item = &queues->items[PLACE(number)];
    uint32_t sm_count = node->facts->gpus[gpu].sm_count;
    if (item->submit_ns > at_ns || !is_ready(client, gpu, number)) return false;
    bool started = item->kind == SIM_ITEM_KERNEL && queues->sms[PLACE(number)] == 0;
    if (started && queues->busy_sms >= sm_count) return false;
    if (started) start(node, queues, number, sm_count);
    if (item->duration_ns == 0 && is_awaited(node, item)) complete(node, channel, number, at_ns);
    else return started;
    return true;
}

void queues_settle(struct node *node, struct client *client, uint32_t gpu, uint64_t at_ns) {
    struct queues *queues = client->channel[gpu].queues;
    for (bool progressed = queues != NULL; progressed;) {
        progressed = false;
        EACH_HEAD(queues, queue, number) progressed |= settle_head(node, client, gpu, number, at_ns);
    }
}

void queues_pass(struct channel *channel, uint64_t ns) {
    struct queues *queues = channel->queues;
    EACH_HEAD(queues, queue, number) {
        struct sim_item *item = &queues->items[PLACE(number)];
        if (queues->sms[PLACE(number)]) item->duration_ns -= ns < item->duration_ns ? ns : item->duration_ns;
    }
}

uint64_t queues_until_next(const struct channel *channel) {
    const struct queues *queues = channel->queues;
    uint64_t least = UINT64_MAX;
    EACH_HEAD(queues, queue, number) {
        uint64_t left = queues->items[PLACE(number)].duration_ns;
        if (queues->sms[PLACE(number)] && left && left < least) least = left;
    }
    return least;
}

uint64_t queues_until_wanted(const struct channel *channel) {
    const struct queues *queues = channel->queues;
    uint64_t least = UINT64_MAX, next = queues_until_next(channel);
    EACH_HEAD(queues, queue, first) {
        uint64_t wanted = atomic_load_explicit(&channel->shared->wait_for[queue], memory_order_seq_cst), ahead = 0;
        if (wanted == 0) continue;
        for (uint64_t number = first; number <= wanted; number = queues->next[PLACE(number)]) {
            ahead += queues->items[PLACE(number)].duration_ns;
            if (number == queues->last[queue]) break;
        }
        /* It hangs on other kernels. */
        if (!queues->sms[PLACE(first)] || queues->items[PLACE(first)].duration_ns == 0) ahead += next;
        if (ahead < least) least = ahead;
    }
    return least;
}
