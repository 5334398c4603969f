/* The streams of one process on one GPU: what was taken off its channel's ring and is not complete. Heads of streams
 * run side by side, as far as there are SMs; what a stream waits for is as NVIDIA's documents say
 * (docs/develop/simulator.md names them). */
#pragma once

#include "node.h"

struct queues {
    struct sim_item items[SIM_RING_ENTRIES]; /* item k at k % SIM_RING_ENTRIES; a running kernel's duration_ns counts
                                                down, and kind is 0 once it is complete */
    uint32_t sms[SIM_RING_ENTRIES];          /* that it occupies; 0: it has not started */
    uint64_t next[SIM_RING_ENTRIES];         /* number of the item behind it in its queue */
    uint64_t first[SIM_QUEUES], last[SIM_QUEUES];
    uint64_t active[SIM_QUEUES / 64]; /* one bit per queue that is not empty */
    uint64_t taken;                   /* items taken off the ring */
    uint32_t busy_sms;
};

/* Copies new items out of the ring, once: the process can overwrite them at any time. */
void queues_take(struct channel *channel);
/* The process has done the work that item `number` stands for, if it is such an item and not complete. */
void queues_host_done(struct channel *channel, uint64_t number);
/* Whether anything could start, go on or complete at that time. If not, *arrival is lowered to the earliest later
 * submission. */
bool queues_can_run(const struct client *client, uint32_t gpu, uint64_t at_ns, uint64_t *arrival);
/* Starts and completes what is due. */
void queues_settle(struct node *node, struct client *client, uint32_t gpu, uint64_t at_ns);
/* Kernels run for `ns`. */
void queues_pass(struct channel *channel, uint64_t ns);
/* Until the first running kernel has run for its duration; UINT64_MAX: none will. */
uint64_t queues_until_next(const struct channel *channel);
/* Least time until an item that a thread waits for can be complete; UINT64_MAX: no thread waits. */
uint64_t queues_until_wanted(const struct channel *channel);
bool queues_is_empty(const struct channel *channel);
