/* The gate, the tenant's side of the arbiter: may a launch begin, how long will it take, what did it use. Pure like the
 * arbiter: it reads orders from the lease page and writes this process's row; clock, events, waiting and waking are its
 * caller's. No locks: all threads of a process may call it at once, and a thread that stops anywhere blocks no other.
 *
 * For each launch the caller runs:
 *
 *     cot_gate_admit     -> go, or wait until a time or until the order's `wake` changes
 *     the launch itself; if the driver refuses it: cot_gate_undo
 *     cot_batch_add      -> groups launches of one stream between two events; true: close the batch
 *     cot_gate_complete  when the batch's last event has completed, with the times of its events
 *
 * Used time is the time for which the GPU was kept for this process: from the start of its first launch to the end of
 * its last one, including gaps that are too short for other containers. */
#pragma once

#include "../../shared-memory/lease_page.h"

#define COT_GATE_KINDS 1024u /* remembered kinds and families of launches, per process: the latest */
#define COT_OVERDUE_SLACK_NS 10000000ull
#define COT_HELD_UP_NS 5000000ull /* no thread that runs is held up for so long between two steps */
#define COT_BATCH_KINDS 8u
#define COT_BATCH_LAUNCHES 32u

struct cot_gate_tuning {
    uint64_t bridge_ns; /* a gap between launches up to this long is used time */
    uint64_t start_ns;  /* a growing limit is used after growing for this long: fewer and longer bursts */
    uint64_t most_start_ns;
    uint64_t batch_ns;   /* predicted duration of a batch */
    uint64_t unknown_ns; /* predicted duration of an unknown launch: all that may be in flight */
};
extern const struct cot_gate_tuning cot_default_gate;

/* Launches of one kind are expected to take the same time; a kind that was not measured, as long as its family. */
struct cot_launch_kind {
    uint64_t key;    /* of function and shape, or of an executable graph; not 0 */
    uint64_t family; /* of the function, or of all graphs; 0: unknown */
    uint64_t blocks; /* of its grid */
};

struct cot_duration {
    uint64_t key;       /* of a kind or a family; 0: free */
    uint64_t length_ns; /* of recent launches; 0: unknown */
    uint64_t mean_ns;   /* of all launches */
    uint64_t count;
    uint64_t blocks;  /* of a family's recent launches */
    uint64_t used_ms; /* when it was last looked up: the oldest one is replaced */
};

/* One process on one GPU. */
struct cot_gate {
    struct cot_gate_tuning tuning;
    struct cot_lease_page_header *header;
    struct cot_lease_order *order;
    struct cot_lease_reports *reports;
    struct cot_lease_shared *shared; /* on this GPU */
    struct cot_lease_row *row;       /* of this process */
    uint32_t slot_count, gpu_count, gpu, slot;
    uint64_t forfeited_ns;  /* growth of a record's limit that was not used in time ... */
    uint64_t forfeited_of;  /* ... and the check of that record */
    uint32_t made;          /* launches of this process, counted on from those of the one that has made most */
    uint32_t seen_launches; /* of the container on all its GPUs, when unmeasured work was overdue */
    uint32_t waited;        /* the last admission was answered with a wait */
    uint32_t out_of_credit; /* the limit was reached and has not grown enough since */
    /* The container's other processes: launches, how many of them are in flight, since when neither has changed, and
     * whether a launch of this one was let go since, as that work may wait for it. */
    uint64_t others_launches, others_inflight, others_since_ns, others_stuck;
    uint32_t missed_heartbeat; /* low half of an announced idle end after which no heartbeat came: not trusted again; 0:
                                  none */
    uint32_t launched_ms;      /* when seen_launches last changed */
    struct cot_duration all;   /* of all kinds */
    struct cot_duration durations[COT_GATE_KINDS];
};

struct cot_launch {
    struct cot_launch_kind kind;
    uint64_t predicted_ns;
    uint64_t mean_ns;
    bool unknown; /* its kind was not measured yet ... */
    bool probe;   /* ... and nothing is known that it could be guessed from: its batch ends with it */
    bool away;    /* admitted while no arbiter ran */
    bool waited;  /* it, or an admission right before it, had to wait */
};

struct cot_batch {
    uint64_t predicted_ns, mean_ns;
    uint32_t launches, kinds;
    bool after_wait, unknown, away;
    bool overdue;        /* has run for longer than predicted: no longer pending */
    bool waited;         /* it was overdue, and ended with a later launch of the container: its duration is not used */
    bool shared;         /* it was overdue while the container did not hold the GPU */
    uint64_t charged_ns; /* of it, ahead of its end: only while no arbiter ran */
    uint64_t awaited;    /* the container's launches that went without credit, when it began */
    struct cot_batch_kind {
        struct cot_launch_kind kind;
        uint64_t predicted_ns;
        uint32_t launches;
        bool unknown;
    } kind[COT_BATCH_KINDS];
};

/* One thread's wait for one launch, zeroed before its first admission. */
struct cot_wait {
    uint64_t rung_ns;  /* when the wait was announced and the bell rung; 0: it does not wait yet */
    uint64_t bound_ns; /* the launch goes at this time, if the container may launch at all then; 0: none was set */
    uint32_t settled;  /* how often it was set again, as nothing was in flight */
    bool own;          /* it has waited for work of its process */
    bool behind;       /* work of its own stream is in flight: set by the caller before each admission */
    bool turn;         /* it waits for its turn, not for credit or work of its process */
    uint64_t launches, inflight; /* of the container on this GPU, when one of them last changed ... */
    uint64_t stuck_ns;           /* ... and when all that was in flight then should have ended */
};

struct cot_verdict {
    bool go;
    bool bound;        /* it goes because work in flight may wait for it, or its wait has reached its bound */
    bool own;          /* waits for work of the container itself: no reason to ring */
    bool wakes;        /* other processes that wait may go as well: wake them */
    bool away;         /* no arbiter runs: the container's own credit decides */
    uint32_t wake;     /* wait while the order's `wake` has this value ... */
    uint64_t until_ns; /* ... and not beyond this time */
};

/* The slot is that of the ledger; this sets the row's `stamp`. */
void cot_gate_attach(struct cot_gate *gate, const struct cot_gate_tuning *tuning, void *page, uint32_t slot_count,
                     uint32_t gpu_count, uint32_t slot, uint32_t gpu, uint64_t stamp);

/* `launch` is filled in either case. A launch that must wait announces only its wait: call cot_gate_wait around it.
 * `wait` may be NULL: the launch is asked for once.
 *
 * No launch waits for the end of anything without a bound, for that end may hang on the launch itself:
 * - for work of its own process in flight, as long as that work was predicted to take; then it is overdue;
 * - for credit, as long as the container's limit takes to grow by what was used when the wait began; while work of the
 *   container is in flight that should have ended, and none of it in the launch's own stream, not at all: nothing is
 *   saved by waiting, for that work is charged as well;
 * - for the container's turn, as long as the arbiter says (cot_member.bound_ns).
 * What is launched at a bound is charged like everything else, and delays what comes after it. */
struct cot_verdict cot_gate_admit(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns,
                                  struct cot_wait *wait, struct cot_launch *launch);
/* An admitted launch was made, but its end will not be seen: it counts as used for as long as it was predicted. */
void cot_gate_unmeasured(struct cot_gate *gate, const struct cot_launch *launch);
void cot_gate_undo(struct cot_gate *gate, const struct cot_launch *launch);
/* A thread begins to wait (true) or has waited `waited_ns`. True: the bell is set, wake the arbiter. */
bool cot_gate_wait(struct cot_gate *gate, bool begins, uint64_t waited_ns, uint64_t now_ns);

/* True: this launch is the last of its batch. */
bool cot_batch_add(struct cot_gate *gate, struct cot_batch *batch, const struct cot_launch *launch, uint64_t now_ns);
/* Whether a batch is in flight for so much longer than predicted that it may wait for a later launch. `since_ns`: when
 * it was launched, or when a batch last ended, if that was later; there is none before it in its stream. */
static inline bool cot_batch_is_overdue(const struct cot_batch *batch, uint64_t since_ns, uint64_t now_ns) {
    return batch->overdue || now_ns > since_ns + 2 * batch->predicted_ns + COT_OVERDUE_SLACK_NS;
}
/* Its process was stopped before it could close the batch, whose last event is recorded only now. */
static inline bool cot_batch_is_late(uint64_t last_ns, uint64_t now_ns) {
    return now_ns > last_ns + COT_HELD_UP_NS;
}
/* The time between its events. If the last one was recorded late, at `recorded_ns` (0: it was not), and has passed at
 * once, that tells nothing of its work. */
static inline uint64_t cot_batch_length(const struct cot_batch *batch, uint64_t length_ns, uint64_t recorded_ns,
                                        uint64_t now_ns) {
    bool tells = recorded_ns == 0 || now_ns > recorded_ns + COT_HELD_UP_NS || length_ns < batch->predicted_ns;
    return tells ? length_ns : batch->predicted_ns;
}
/* All launches of the container's processes on all its GPUs, ever. */
uint64_t cot_gate_launches(const struct cot_gate *gate);
/* From now on it is charged while it runs, and holds no launch back. To be called again while it stays in flight. */
void cot_gate_overdue(struct cot_gate *gate, struct cot_batch *batch, uint64_t now_ns);
/* Times of the batch's events, on the clock of now_ns; `streams`: how many streams of the process had work in flight;
 * `oldest`: no earlier batch is still in flight. True: wake the arbiter. */
bool cot_gate_complete(struct cot_gate *gate, const struct cot_batch *batch, uint64_t begin_ns, uint64_t end_ns,
                       uint32_t streams, bool oldest, uint64_t now_ns);
