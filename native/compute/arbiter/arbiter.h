/* The arbiter: which container may launch work on a GPU, and for how long. A pure library: no I/O, no clock (time is an
 * argument), no allocation. Its input is digests, which are checked copies of what tenants wrote; its output is orders.
 * Its caller maps pages, waits and wakes.
 *
 * One container at a time holds a GPU, for a turn of about one quantum. The next turn goes to the container with the
 * least virtual time (service divided by its guarantee) whose limit allows it (a credit that grows with time). In each
 * round the caller runs:
 *
 *     cot_digest + cot_arbiter_report   for containers that rang and for those in `watch`; for all
 *                                       after an absence of COT_LEASE_PAGE_STALE_NS
 *     cot_arbiter_decide                -> which orders changed, what to look at again, when to come back
 *     cot_arbiter_publish               for each order that changed; then from the top at once, if `look` is not empty
 *
 * A GPU becomes free only by a digest of its holder that is taken *after* the holder's order was closed (lease_page.h
 * says why). */
#pragma once

#include "../../shared-memory/lease_page.h"

#define COT_ARBITER_GPUS COT_MAX_GPUS
#define COT_ARBITER_MEMBERS 1024u /* containers on one GPU: as many as the agent may be set to allow */

struct cot_mask { /* one bit per member of a GPU */
    uint64_t words[COT_ARBITER_MEMBERS / 64];
};
static inline void cot_mask_set(struct cot_mask *mask, uint32_t index) {
    mask->words[index / 64] |= 1ull << index % 64;
}
static inline bool cot_mask_has(const struct cot_mask *mask, uint32_t index) {
    return mask->words[index / 64] >> index % 64 & 1;
}
/* The first member from that index on; COT_ARBITER_MEMBERS: there is none. */
static inline uint32_t cot_mask_next(const struct cot_mask *mask, uint32_t from) {
    for (; from < COT_ARBITER_MEMBERS; from = (from / 64 + 1) * 64) {
        uint64_t left = mask->words[from / 64] >> from % 64;
        if (left) return from + (uint32_t)__builtin_ctzll(left);
    }
    return COT_ARBITER_MEMBERS;
}
/* Is one set in the masks of all GPUs? */
static inline bool cot_masks_any(const struct cot_mask masks[COT_ARBITER_GPUS]) {
    for (uint32_t gpu = 0; gpu < COT_ARBITER_GPUS; gpu++) {
        if (cot_mask_next(&masks[gpu], 0) < COT_ARBITER_MEMBERS) return true;
    }
    return false;
}

/* ---- policies: the share of each container of a GPU ---- */

enum cot_policy { /* numbered as in cGPU */
                  COT_POLICY_AVERAGE = 0,
                  COT_POLICY_PREEMPTIVE = 1,
                  COT_POLICY_WEIGHTED = 2,
                  COT_POLICY_FIXED = 3,
                  COT_POLICY_SOFT = 4,
                  COT_POLICY_NATIVE = 5,
};

struct cot_request {
    enum cot_policy policy; /* of the GPU, or the container's own choice */
    uint32_t share_ppm;     /* granted compute; 0: none requested */
    uint32_t limit_ppm;     /* of min-max shares; 0: as the policy says */
    uint32_t weight;        /* of the weighted policy; 0 means 1 */
    bool high;
    uint32_t high_cap_ppm; /* the most that a high-priority container may use; 0: all */
};

struct cot_share {
    uint32_t guarantee_ppm; /* its part of the GPU while all containers want theirs; also the weight by which idle time
                               is divided */
    uint32_t limit_ppm;     /* COT_PPM: unlimited */
    bool high;              /* preempts others at the next boundary between launches */
    bool native;            /* no gate: launches are not controlled */
};

/* Shares of all containers of a GPU. `instances`: of the average policy. Guarantees that add up to more than the GPU
 * are scaled down in proportion; limits stay what was granted. */
void cot_policy_shares(uint32_t instances, const struct cot_request *requests, uint32_t count,
                       struct cot_share *shares);

/* ---- digests: the state of one container on one GPU ---- */

struct cot_digest {
    uint64_t used_ns, inflight, pending_ns, longest_ns, launches, throttled_ns, relieved;
    uint32_t waiting;
    uint32_t busy;    /* processes with work in flight */
    bool has_awaited; /* work of it has waited for a later launch, or so its processes found */
    uint32_t faults;  /* values that the gate would never write */
};

/* Reads each value of the tenant's half of the page once and validates it. `slot_count` and `gpu_count` are the agent's
 * own; `dead`, if given, has the stamp of each slot's last process that is known to have ended. The memory must stay
 * readable. */
void cot_digest(const void *page, uint32_t slot_count, uint32_t gpu_count, uint32_t gpu, const uint64_t *dead,
                struct cot_digest *digest);

/* ---- the arbiter ---- */

struct cot_tuning {
    uint64_t quantum_ns;
    uint64_t idle_ns;         /* a holder that is idle this long loses the GPU if another container wants it */
    uint64_t anticipation_ns; /* a container with less service than its share is waited for when it pauses for less than
                                 this */
    uint64_t lend_ns;         /* during such a pause the GPU is lent to launches no longer than this */
    uint64_t start_ns;        /* a limited container starts when its credit would last this long at its rate */
    uint64_t depth_ns;        /* the most predicted work in flight */
    uint64_t high_depth_ns;   /* the same while a high-priority container is on the GPU */
    uint64_t slack_ns;        /* of a turn that others waited for, this much may go unreported */
    uint32_t credit_longest;  /* cap of a credit, as a multiple of the longest launch on the GPU */
    uint32_t overrun_quanta;  /* the holder's work shares the GPU if it has not drained this long after it should have
                                 ended */
    uint64_t bound_slack_ns;  /* a wait that is as long as its share explains ends by itself before its bound */
    uint64_t preemption_ns;   /* half a time slice of the driver: how long running work continues when another process
                                 gets work */
};
extern const struct cot_tuning cot_default_tuning;

enum cot_phase { COT_PHASE_IDLE, COT_PHASE_HELD, COT_PHASE_CLOSING };

struct cot_member {
    bool present;
    uint32_t container; /* the same number on all of its GPUs */
    /* Members of one gang get their turns together: those of a container, and of containers that were linked. */
    uint32_t gang;
    bool multi_gpu;                     /* the gang has several GPUs */
    uint64_t went_ns;                   /* when a launch that had waited was made */
    uint64_t outlasted_ns;              /* when work ended that had run for longer than predicted; 0: seen to */
    uint32_t linked_with, linked_votes; /* the container that ended its work's waits, and how often */
    uint64_t linked_until_ns;           /* 0: the gang is its container */
    uint64_t apart_until_ns;            /* it is not linked before */
    uint64_t held_back_ns;              /* since when it could have had a turn, if others of its gang could; 0 */
    struct cot_share share;
    struct cot_digest digest; /* the latest */

    int64_t credit_ns; /* of its limit; negative: a debt */
    uint64_t credit_rest;
    uint64_t virtual_ns; /* service divided by its guarantee */
    uint64_t beyond_ns;  /* what it has had beyond its guarantee, and time has not made up for */
    /* A quarter of what its limit grows by: for launches that other containers' work may wait for, whatever it owes. */
    int64_t spare_ns;
    uint64_t ended_ns;  /* when work of it last ended, or began after nothing was in flight */
    uint64_t active_ns; /* when it last wanted or did anything */
    uint64_t idle_ns;   /* since when it is idle, or 0 */

    /* the turn */
    uint64_t granted_ns, turn_charged_ns, turn_budget_ns;
    uint64_t turn_launches;    /* launches that had ended when all of the gang had their GPUs */
    uint64_t unclaimed_ns;     /* time without a charge: an upper bound of what it can have used */
    uint64_t charged_ahead_ns; /* charged before it was reported */
    uint64_t waited_for_ns;    /* time in its turn during which others waited ... */
    uint64_t owed_ns;          /* ... and how much of that the GPU could have given to them */
    uint64_t finishing_ns;     /* since when its turn would be over, if nothing of it were in flight; 0: it is not */
    uint64_t finishing_steps, finishing_step_ns; /* launches of it made and ended by then, and when one last was */
    bool lent;                                   /* the turn is a loan during another container's pause */
    bool out_of_credit;                          /* high priority, and used up its credit while others waited */
    bool reserved;                               /* has this GPU, but its gang not yet all that it wants */
    bool digested_since_close;                   /* a digest was taken after the order was closed */
    bool undrained;             /* it did not drain in time: its work shares the GPU with the holder's */
    uint64_t trailing_until_ns; /* until then its work runs first: it ends before the holder's begins */
    uint64_t busy_ns;           /* time with work in flight */
    uint64_t unreported_busy_ns,
        own_busy_ns;          /* the same since its last report, and how much of that the GPU gave to it */
    uint64_t longest_busy_ns; /* recent longest time with work in flight: no launch can have taken longer */
    /* A launch that waits gets a turn at this time, whatever was charged since its wait began, for what is charged may
     * wait for that launch: its debt then, and the time in which its guarantee grows by a quantum. 0: none waits. */
    uint64_t bound_ns;
    /* Of work that shares the GPU and ended during the wait: until when charges were seen to, and by how much the bound
     * is later. */
    uint64_t seen_charged_ns, paid_ns;
    /* The launches that were made when the bound was set, and how many have waited at once since: a new bound is set
     * when as many were made, so that each of them has had its chance. */
    uint64_t bound_launches, bound_waiting;
    /* What launches in turns at the bound were predicted to take, less what the limit has grown by since. */
    uint64_t relief_owed_ns;
    bool relieved;          /* the turn began at the bound */
    bool spared;            /* the bound is that of a launch for which spare_ns is */
    bool relieved_late;     /* and work in flight had outlasted what it was expected to take */
    uint64_t last_fault_ns; /* when its page last had a value that the gate would never write */

    /* The container on this GPU whose work and this one's wait for each other, until when, and launches of this one
     * that had been matched when they were found. */
    uint64_t mate_until_ns, matched_launches;
    uint32_t mate;

    /* the order */
    uint32_t state;
    uint64_t epoch;
    struct cot_lease_terms terms;
    uint64_t launches_limit; /* of state CATCH_UP */
    bool dirty;

    /* totals */
    uint64_t charged_ns, contended_ns, overruns, faults;
};

struct cot_gpu {
    uint32_t count; /* members in use, or used earlier */
    enum cot_phase phase;
    uint32_t holder;
    uint64_t closing_ns;        /* since when */
    uint64_t overrun_at_ns;     /* when the holder's work begins to share the GPU if it has not drained */
    uint64_t draining_until_ns; /* until then work that was launched without an arbiter may drain */
    /* Of the container that had the last turn. Those of high priority come first whatever they have had: they are
     * compared with one another alone. */
    uint64_t virtual_ns, high_virtual_ns;
    uint64_t now_ns;
    uint32_t last;       /* member that had the last turn: ties go to the member after it */
    bool others_wait;    /* other containers wait for the holder */
    bool agent_returned; /* the arbiter was absent until now */
    bool is_claimed;     /* only this gang gets it next */
    uint32_t claimed_by;
    struct cot_member members[COT_ARBITER_MEMBERS];
};

struct cot_arbiter {
    struct cot_tuning tuning;
    struct cot_gpu gpus[COT_ARBITER_GPUS];
};

struct cot_decision {
    uint64_t next_ns;                        /* decide again by then, even if no container rings */
    struct cot_mask watch[COT_ARBITER_GPUS]; /* report these before every decision */
    struct cot_mask dirty[COT_ARBITER_GPUS]; /* publish these */
    struct cot_mask look[COT_ARBITER_GPUS];  /* report these after publishing, then decide again at once */
};

/* The memory is zeroed, or was initialized before. */
void cot_arbiter_init(struct cot_arbiter *arbiter, const struct cot_tuning *tuning);

/* `at`: index of the GPU; `index`: index of the member on it. */

/* Adds a container to a GPU. Returns its index there, or -1 if the GPU has no free member. */
int cot_arbiter_join(struct cot_arbiter *arbiter, uint32_t at, uint32_t container, const struct cot_digest *digest,
                     uint64_t now_ns);
/* Restores the record that an earlier arbiter left of a container. Call after join. */
void cot_arbiter_adopt(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_lease_record *record,
                       uint64_t now_ns);
void cot_arbiter_leave(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, uint64_t now_ns);
void cot_arbiter_set_share(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_share *share,
                           uint64_t now_ns);

void cot_arbiter_report(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_digest *digest,
                        uint64_t now_ns);
/* Accounts for an idle period: until `until_ns` nothing waited or was in flight, and the pages announced that no
 * heartbeat would come. It does not count as an absence of the arbiter. */
void cot_arbiter_skip_idle(struct cot_arbiter *arbiter, uint64_t until_ns);
/* A container launched on that GPU without waiting for the arbiter: that work drains first. */
void cot_arbiter_drain(struct cot_arbiter *arbiter, uint32_t at, uint64_t now_ns);
void cot_arbiter_decide(struct cot_arbiter *arbiter, uint64_t now_ns, struct cot_decision *decision);
/* True if waiters on the order's `wake` must be woken. */
bool cot_arbiter_publish(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, struct cot_lease_order *order);
/* For cot_lease_order_record, with each heartbeat. */
struct cot_lease_record cot_arbiter_record(const struct cot_arbiter *arbiter, uint32_t at, uint32_t index,
                                           uint64_t now_ns);
