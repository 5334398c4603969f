/* The arbiter: who may put work on a GPU, and for how long. A pure library: no I/O, no clock (time is an argument), no
 * allocation. It works on digests, which are checked copies of what tenants wrote, and hands out orders; whoever calls
 * it maps pages, waits and wakes.
 *
 * One container at a time holds a GPU, for a turn of about a quantum. Turns go by virtual time (least service for its
 * guarantee first), within each container's limit (a credit that grows with time). The caller's round:
 *
 *     cot_digest + cot_arbiter_report   for whoever rang, and for all that `watch` names; for
 *                                       everybody after an absence of COT_LEASE_PAGE_STALE_NS
 *     cot_arbiter_decide                -> which orders changed, who must be looked at again, when to come back
 *     cot_arbiter_publish               for each that changed; then from the top at once, if `look` names anybody
 *
 * A holder is looked at *after* its order was closed, and only that look can free the GPU (compute.h says why). */
#pragma once

#include "../../shared-memory/lease_page.h"

#define COT_ARBITER_GPUS COT_MAX_GPUS
#define COT_ARBITER_MEMBERS 64u /* containers on one GPU; masks have a bit for each */

/* ---- policies: what each container of a GPU is due ---- */

enum cot_policy { /* numbers as in cGPU */
                  COT_POLICY_AVERAGE = 0,
                  COT_POLICY_PREEMPTIVE = 1,
                  COT_POLICY_WEIGHTED = 2,
                  COT_POLICY_FIXED = 3,
                  COT_POLICY_SOFT = 4,
                  COT_POLICY_NATIVE = 5,
};

struct cot_request {
    enum cot_policy policy; /* the GPU's, or what the container chose in its place */
    uint32_t share_ppm;     /* granted compute; 0: none was asked for */
    uint32_t limit_ppm;     /* of min-max shares; 0: the policy says */
    uint32_t weight;        /* of the weighted policy; 0 counts as 1 */
    bool high;
    uint32_t high_cap_ppm; /* most that a high-priority container may take; 0: all */
};

struct cot_share {
    uint32_t guarantee_ppm; /* its part of the GPU when all want theirs; the weight by which an idle rest is lent */
    uint32_t limit_ppm;     /* COT_PPM: nothing but the others limits it */
    bool high;              /* takes the GPU at the next boundary between launches */
    bool native;            /* no gate */
};

/* Of all containers of a GPU. `instances`: of the average policy. Shares that add up to more than the GPU are due in
 * proportion. */
void cot_policy_shares(uint32_t instances, const struct cot_request *requests, uint32_t count,
                       struct cot_share *shares);

/* ---- digests: what a container's rows say about one GPU ---- */

struct cot_digest {
    uint64_t used_ns, inflight, pending_ns, longest_ns, launches, throttled_ns;
    uint32_t waiting;
    uint32_t faults; /* words that no process of ours would have written */
};

/* Reads each word of the tenant's half once, believes none. `slot_count` and `gpu_count` are the agent's own; `dead`,
 * if given, has the stamp of each slot's last occupant that is known to be gone. The memory must stay readable. */
void cot_digest(const void *page, uint32_t slot_count, uint32_t gpu_count, uint32_t gpu, const uint64_t *dead,
                struct cot_digest *digest);

/* ---- the arbiter ---- */

struct cot_tuning {
    uint64_t quantum_ns;
    uint64_t idle_ns;         /* a holder without work for so long loses the GPU to whoever wants it */
    uint64_t anticipation_ns; /* an underserved container that pauses for less is waited for */
    uint64_t loan_ns;         /* in such a pause the GPU is lent to launches this short */
    uint64_t start_ns;        /* a limited container starts when its credit would last so long at its rate */
    uint64_t depth_ns;        /* most predicted work under way */
    uint64_t high_depth_ns;   /* the same beside a high-priority container */
    uint64_t slack_ns;        /* of a turn that others waited for, so much may be left unreported */
    uint32_t credit_longest;  /* credit is capped at so many times the longest launch of anybody on the GPU */
    uint32_t overrun_quanta;  /* a GPU that is not drained so long after its work should have ended is shared */
    uint64_t trail_ns; /* half a slice of the driver: what runs when another process gets work goes on for so long */
};
extern const struct cot_tuning cot_default_tuning;

enum cot_phase { COT_PHASE_IDLE, COT_PHASE_HELD, COT_PHASE_CLOSING };

struct cot_member {
    bool present;
    uint32_t container; /* the same on all of its GPUs */
    bool gang;          /* it has several */
    struct cot_share share;
    struct cot_digest digest; /* the last one */

    int64_t credit_ns; /* of its limit; negative: to be paid back */
    uint64_t credit_rest;
    uint64_t virtual_ns; /* service over guarantee */
    uint64_t active_ns;  /* when it was last seen to want or do anything */
    uint64_t idle_ns;    /* since when it was seen idle, or 0 */

    /* its turn */
    uint64_t granted_ns, turn_charged_ns, turn_budget_ns;
    uint64_t unclaimed_ns;        /* time since then that no charge has accounted for: it cannot have used more */
    uint64_t ahead_ns;            /* charged already of what it will yet report */
    uint64_t blocked_ns;          /* of its turn, while others waited ... */
    uint64_t owed_ns;             /* ... and what of that the GPU could have given them */
    bool loan;                    /* in somebody's pause */
    bool dry;                     /* a high one that used up its credit while others waited */
    bool reserved;                /* has the GPU, but not yet all of its GPUs */
    bool looked;                  /* a digest was taken after the order was closed */
    bool outcast;                 /* did not drain: its work shares the GPU with the holder's */
    uint64_t trails_until_ns;     /* until then it does not share: what was under way ends before the holder's begins */
    uint64_t together_ns;         /* time under way */
    uint64_t shared_ns, apart_ns; /* the same since it last told what it used, and what of that the GPU gave it */
    uint64_t stretch_ns;          /* longest time under way of late: no launch can have been longer */
    uint64_t faulted_ns;          /* when words were last seen that no process of ours would have written */

    /* the order */
    uint32_t state;
    uint64_t epoch;
    struct cot_lease_terms terms;
    bool dirty;

    /* accounts, ever */
    uint64_t charged_ns, contended_ns, overruns, faults;
};

struct cot_gpu {
    uint32_t count; /* members in use or once used */
    enum cot_phase phase;
    uint32_t holder;
    uint64_t closing_ns;  /* since when */
    uint64_t overrun_ns;  /* if the holder has not drained by then, its work shares the GPU with the next one's */
    uint64_t settling_ns; /* until then work that an earlier agent let go may drain */
    uint64_t virtual_ns;  /* of whoever had the last turn */
    uint64_t now_ns;
    uint32_t last;    /* member that had the last turn: of equals the next one is served */
    bool others_wait; /* for the holder */
    bool returned;    /* the agent was away until now */
    struct cot_member members[COT_ARBITER_MEMBERS];
};

struct cot_arbiter {
    struct cot_tuning tuning;
    struct cot_gpu gpus[COT_ARBITER_GPUS];
};

/* Masks have a bit per member of a GPU. */
struct cot_decision {
    uint64_t next_ns;                 /* come back by then, even if nobody rings */
    uint64_t watch[COT_ARBITER_GPUS]; /* report these before every decision, rung or not */
    uint64_t dirty[COT_ARBITER_GPUS]; /* publish these */
    uint64_t look[COT_ARBITER_GPUS];  /* report these after publishing, then decide again at once */
};

void cot_arbiter_init(struct cot_arbiter *arbiter, const struct cot_tuning *tuning);

/* `at`: which GPU; `index`: which of its members. */

/* A container joins a GPU; its index there, or -1 if the GPU has no place left. */
int cot_arbiter_join(struct cot_arbiter *arbiter, uint32_t at, uint32_t container, const struct cot_digest *digest,
                     uint64_t now_ns);
/* It joined before, under another agent: goes on with that one's record. Call after join. */
void cot_arbiter_adopt(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_lease_record *record,
                       uint64_t now_ns);
void cot_arbiter_leave(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, uint64_t now_ns);
void cot_arbiter_share(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_share *share,
                       uint64_t now_ns);

void cot_arbiter_report(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_digest *digest,
                        uint64_t now_ns);
/* Nobody has decided anything until then, for nothing waited or was under way; but containers knew that somebody would:
 * it is no absence of the agent. */
void cot_arbiter_rest(struct cot_arbiter *arbiter, uint64_t until_ns);
/* Somebody on that GPU did not wait for it to come back: what it let go drains first. */
void cot_arbiter_drain(struct cot_arbiter *arbiter, uint32_t at, uint64_t now_ns);
void cot_arbiter_decide(struct cot_arbiter *arbiter, uint64_t now_ns, struct cot_decision *decision);
/* True if whoever waits on the order's `wake` must be woken. */
bool cot_arbiter_publish(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, struct cot_lease_order *order);
/* For cot_lease_order_record, with each heartbeat. */
struct cot_lease_record cot_arbiter_record(const struct cot_arbiter *arbiter, uint32_t at, uint32_t index,
                                           uint64_t now_ns);
