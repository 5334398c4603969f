/* The tenant's side of the arbiter: may a launch begin, what is it likely to take, what did it use. Pure as the arbiter
 * is: it reads the page's orders, writes the own row, and leaves clock, events, waiting and waking to its caller. No
 * lock: all threads of a process may call all of it at once, and a thread that stops anywhere holds up no other.
 *
 * The caller's round for a launch:
 *
 *     cot_gate_admit     -> go, or wait until a time or until the order's `wake` changes
 *     the launch itself; if the driver refuses it: cot_gate_undo
 *     cot_batch_add      -> launches of one stream that one pair of events times; when it says so, close the batch
 *     cot_gate_complete  when the batch's last event has passed, with what its events say
 *
 * Used time is the time for which the GPU was kept for this process: from the beginning of its first launch to the end
 * of its last one, with the gaps between that are too short for anybody else to use. */
#pragma once

#include "../../shared-memory/lease_page.h"

#define COT_GATE_KINDS 1024u /* kinds of launches that a process's lengths are kept of */
#define COT_BATCH_KINDS 8u
#define COT_BATCH_LAUNCHES 32u

struct cot_gate_tuning {
    uint64_t bridge_ns; /* a gap between launches that is no longer than this is used time */
    uint64_t start_ns;  /* with a limit that grows, start when it has grown for so long: fewer and longer bursts */
    uint64_t most_start_ns;
    uint64_t batch_ns;   /* predicted length of a batch */
    uint64_t unknown_ns; /* what a launch of unknown length counts for: all that may be under way */
};
extern const struct cot_gate_tuning cot_default_gate;

struct cot_launch_kind {
    uint64_t key;       /* of function and shape, or of an executable graph; 0: free */
    uint64_t length_ns; /* of late; 0: not known */
    uint64_t mean_ns;   /* of long */
    uint64_t count;
};

/* One process on one GPU. */
struct cot_gate {
    struct cot_gate_tuning tuning;
    struct cot_lease_page_header *header;
    const struct cot_lease_order *order;
    struct cot_lease_reports *reports;
    struct cot_lease_row *row; /* the own one */
    uint32_t slot_count, gpu_count, gpu, slot;
    uint64_t used_until_ns; /* accounts are complete up to here */
    uint64_t forfeited_ns;  /* growth of a record's limit that nobody used in time ... */
    uint64_t forfeited_of;  /* ... and which record that is */
    uint64_t launches_mark; /* launches when the last turn began, for COT_LEASE_CATCH_UP */
    uint64_t marked_epoch;
    uint32_t waited;         /* the last one that asked was told to wait */
    uint32_t dry;            /* the limit was reached and has not grown enough since */
    struct cot_gate *others; /* the same process's gates of all its GPUs, for COT_LEASE_CATCH_UP; may be NULL */
    uint32_t others_count;
    uint32_t unkept; /* low half of a promise that was not kept (compute.h): it is not believed again; 0: none */
    struct cot_launch_kind kinds[COT_GATE_KINDS];
};

struct cot_launch {
    uint64_t key;
    uint64_t predicted_ns;
    uint64_t mean_ns;
    bool unknown;
    bool away;   /* let go by the own credit */
    bool waited; /* it, or one that asked right before it, was told to wait */
};

struct cot_batch {
    uint64_t predicted_ns, mean_ns;
    uint32_t launches, kinds;
    bool after_wait, unknown, away;
    struct {
        uint64_t key, predicted_ns;
        uint32_t launches;
    } kind[COT_BATCH_KINDS];
};

struct cot_verdict {
    bool go;
    bool own;          /* until work of the container itself has ended: no reason to ring */
    bool away;         /* the agent does not answer: the own credit decides */
    uint32_t wake;     /* wait while the order's `wake` has this value ... */
    uint64_t until_ns; /* ... and no longer than this */
};

/* The slot is the ledger's, and the row's `stamp` is set by this. */
void cot_gate_attach(struct cot_gate *gate, const struct cot_gate_tuning *tuning, void *page, uint32_t slot_count,
                     uint32_t gpu_count, uint32_t slot, uint32_t gpu, uint64_t stamp);

/* `launch` is filled in either case. A launch that must wait announces nothing but its wait: cot_gate_wait around it.
 * `rung_ns`: when this thread's wait had been announced, and the agent rung; 0: it does not wait yet. */
struct cot_verdict cot_gate_admit(struct cot_gate *gate, uint64_t key, uint64_t now_ns, uint64_t rung_ns,
                                  struct cot_launch *launch);
void cot_gate_undo(struct cot_gate *gate, const struct cot_launch *launch);
/* A thread begins to wait (true) or has ended it after `waited_ns`. True if the agent should be rung: the bell is set.
 */
bool cot_gate_wait(struct cot_gate *gate, bool begins, uint64_t waited_ns, uint64_t now_ns);

/* True: close the batch with this launch in it. */
bool cot_batch_add(const struct cot_gate *gate, struct cot_batch *batch, const struct cot_launch *launch,
                   uint64_t now_ns);
/* Times as the batch's events say, on the clock of now_ns; `streams`: how many of the process had work under way;
 * `oldest`: no batch that was begun before it is still under way. True if the agent should be rung. */
bool cot_gate_complete(struct cot_gate *gate, const struct cot_batch *batch, uint64_t begin_ns, uint64_t end_ns,
                       uint32_t streams, bool oldest, uint64_t now_ns);
