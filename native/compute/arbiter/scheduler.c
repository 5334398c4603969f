/* Who holds a GPU. Every decision starts from what is known now: a release or a new demand is never left to a timer
 * that was set before it. */
#include "internal.h"

#define POLL_NS 1000000ull /* a holder that others wait for is looked at so often, should its ring be lost */

#define LONGEST_WAIT_NS 250000000ull

const struct cot_tuning cot_default_tuning = {
    .quantum_ns = 10000000,
    .idle_ns = 300000,
    .anticipation_ns = 1500000,
    .loan_ns = 1000000,
    .start_ns = 20000000,
    .depth_ns = 10000000,
    .high_depth_ns = 250000,
    .slack_ns = 1000000,
    .credit_longest = 2,
    .overrun_quanta = 5,
    .trail_ns = 1000000,
};

struct round {
    struct cot_decision *decision;
    bool moved; /* something changed that another GPU may depend on */
};

static uint32_t index_of(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu) {
    return (uint32_t)(gpu - arbiter->gpus);
}
static uint64_t bit_of(const struct cot_gpu *gpu, const struct cot_member *member) {
    return 1ull << (member - gpu->members);
}
static void come_back(struct round *round, uint64_t at_ns) {
    round->decision->next_ns = cot_smaller(round->decision->next_ns, at_ns);
}

/* ---- whose turn it is ---- */

/* A high one that ran dry comes back for a quantum: it takes the GPU from others in the middle of theirs, and what
 * each change of hands costs is nobody's. */
static int64_t credit_to_start(const struct cot_arbiter *arbiter, const struct cot_member *member) {
    return (int64_t)(member->dry ? arbiter->tuning.quantum_ns : cot_start_credit(arbiter, member));
}

static bool has_credit(const struct cot_arbiter *arbiter, const struct cot_member *member) {
    return !cot_limited(member) || member->credit_ns >= credit_to_start(arbiter, member);
}

/* It waits for nothing but its own limit. A high one, which may go on as it grows, would do so in bits too short to
 * give anybody else: it gives the GPU away when little is left. */
static bool is_dry(const struct cot_arbiter *arbiter, const struct cot_member *holder) {
    if (!cot_limited(holder) || holder->digest.inflight || !holder->digest.waiting) return false;
    uint64_t least = cot_start_credit(arbiter, holder);
    if (holder->share.high && holder->turn_charged_ns) least *= 2;
    return holder->credit_ns < (int64_t)least;
}

static uint64_t credit_at(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu,
                          const struct cot_member *member) {
    uint64_t missing = (uint64_t)(credit_to_start(arbiter, member) - member->credit_ns);
    return gpu->now_ns + missing * COT_PPM / member->share.limit_ppm + 1;
}

static bool goes_before(const struct cot_gpu *gpu, const struct cot_member *a, const struct cot_member *b) {
    if (a->share.high != b->share.high) return a->share.high;
    if (a->virtual_ns != b->virtual_ns) return a->virtual_ns < b->virtual_ns;
    uint32_t after_a = (uint32_t)(a - gpu->members) + COT_ARBITER_MEMBERS - gpu->last - 1;
    uint32_t after_b = (uint32_t)(b - gpu->members) + COT_ARBITER_MEMBERS - gpu->last - 1;
    return after_a % COT_ARBITER_MEMBERS < after_b % COT_ARBITER_MEMBERS;
}

/* Who should have the GPU next, of those other than `except` that want it and may; NULL if nobody. */
static struct cot_member *best(struct cot_arbiter *arbiter, struct cot_gpu *gpu, const struct cot_member *except,
                               struct round *round) {
    struct cot_member *found = NULL;
    uint32_t at = index_of(arbiter, gpu);
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present || member == except || !cot_container_wants(arbiter, at, member)) continue;
        if (member->outcast && member->digest.pending_ns >= arbiter->tuning.depth_ns) continue; /* could do nothing */
        if (!has_credit(arbiter, member)) {
            come_back(round, credit_at(arbiter, gpu, member));
            continue;
        }
        if (cot_may_acquire(arbiter, at, member) && (!found || goes_before(gpu, member, found))) found = member;
    }
    return found;
}

/* Somebody whose turn it would be, were it not pausing for a moment. */
static const struct cot_member *pausing(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu,
                                        const struct cot_member *instead) {
    const struct cot_member *found = NULL;
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct cot_member *member = &gpu->members[i];
        if (!member->present || member == instead || member->share.native || member->outcast) continue;
        if (!cot_is_idle(member) || member->active_ns == 0 || !has_credit(arbiter, member)) continue;
        if (gpu->now_ns - member->active_ns >= arbiter->tuning.anticipation_ns) continue;
        if (instead->share.high || member->virtual_ns >= instead->virtual_ns) continue;
        if (!found || member->active_ns > found->active_ns) found = member;
    }
    return found;
}

/* ---- changes of hands ---- */

static void open_gpu(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member) {
    member->reserved = false;
    member->granted_ns = gpu->now_ns;
    if (member->digest.inflight == 0) member->unclaimed_ns = 0;
    member->blocked_ns = member->owed_ns = 0;
    cot_order_turn(arbiter, gpu, member, member->turn_budget_ns);
}

static void give(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member, bool loan) {
    uint64_t longest = cot_smaller(member->digest.longest_ns, 200000000);
    uint64_t budget = cot_larger(arbiter->tuning.quantum_ns, longest);
    if (cot_limited(member)) budget = cot_smaller(budget, cot_larger((uint64_t)member->credit_ns, 1));
    if (loan) budget = cot_smaller(budget, arbiter->tuning.loan_ns);
    gpu->phase = COT_PHASE_HELD;
    gpu->holder = gpu->last = (uint32_t)(member - gpu->members);
    gpu->virtual_ns = cot_larger(gpu->virtual_ns, member->virtual_ns);
    gpu->others_wait = false;
    member->turn_budget_ns = budget;
    member->turn_charged_ns = 0;
    member->loan = loan;
    member->dry = false;
    member->reserved = true;
    if (cot_has_all(arbiter, member)) cot_each_gpu(arbiter, member, open_gpu);
}

static void close_gpu(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member) {
    if (cot_holder(gpu) != member || gpu->phase != COT_PHASE_HELD) return;
    if (member->reserved) {
        member->reserved = false;
        gpu->phase = COT_PHASE_IDLE;
        return;
    }
    gpu->phase = COT_PHASE_CLOSING;
    gpu->closing_ns = gpu->now_ns;
    /* Launches that are known to be long are given their time, within reason. */
    gpu->overrun_ns = gpu->now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns +
                      cot_smaller(member->digest.pending_ns, LONGEST_WAIT_NS);
    cot_order_state(member, member->gang ? COT_LEASE_CATCH_UP : COT_LEASE_CLOSED);
}

static void take_back(struct cot_arbiter *arbiter, struct cot_member *holder, struct round *round) {
    cot_each_gpu(arbiter, holder, close_gpu);
    round->moved = true;
}

/* ---- one GPU ---- */

static void decide_idle(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct round *round) {
    if (gpu->now_ns < gpu->settling_ns) {
        bool drained = true;
        for (uint32_t i = 0; i < gpu->count; i++) {
            const struct cot_member *member = &gpu->members[i];
            drained = drained && (!member->present || (member->looked && member->digest.inflight == 0));
        }
        if (!drained) {
            come_back(round, cot_smaller(gpu->settling_ns, gpu->now_ns + POLL_NS));
            return;
        }
        gpu->settling_ns = 0;
    }
    struct cot_member *next = best(arbiter, gpu, NULL, round);
    if (!next) return;
    const struct cot_member *absent = pausing(arbiter, gpu, next);
    if (absent && next->digest.longest_ns > arbiter->tuning.loan_ns) {
        come_back(round, absent->active_ns + arbiter->tuning.anticipation_ns);
        return;
    }
    give(arbiter, gpu, next, absent != NULL);
    round->moved = true;
}

/* The holder's terms follow its credit while nobody else wants the GPU. */
static void keep_alone(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *holder) {
    const struct cot_lease_terms *terms = &holder->terms;
    gpu->virtual_ns = cot_larger(gpu->virtual_ns, holder->virtual_ns);
    uint64_t allowed = cot_lease_limit_at(terms->limit_ns, terms->at_ns, terms->rate_ppm, gpu->now_ns);
    if (terms->rate_ppm == holder->share.limit_ppm && holder->state == COT_LEASE_GRANTED) {
        if (!cot_limited(holder)) return;
        /* An idle holder's credit stops at its cap, and a charge may have been corrected. */
        int64_t told = (int64_t)(allowed - holder->digest.used_ns);
        int64_t off = holder->credit_ns >= 0 ? told - holder->credit_ns : 0;
        if (off < (int64_t)arbiter->tuning.quantum_ns / 10 && off > -(int64_t)arbiter->tuning.quantum_ns / 10) return;
    }
    cot_order_alone(arbiter, gpu, holder);
}

static void decide_held(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct round *round) {
    struct cot_member *holder = cot_holder(gpu);
    struct cot_member *other = best(arbiter, gpu, holder, round);
    gpu->others_wait = other != NULL;
    if (holder->reserved) return;
    if (gpu->now_ns < gpu->settling_ns) {
        take_back(arbiter, holder, round);
        return;
    }
    if (!other) {
        holder->loan = false;
        keep_alone(arbiter, gpu, holder);
        return;
    }
    uint64_t now = gpu->now_ns, left = 0;
    if (holder->turn_charged_ns < holder->turn_budget_ns) left = holder->turn_budget_ns - holder->turn_charged_ns;
    if (cot_limited(holder)) left = holder->credit_ns > 0 ? cot_smaller(left, (uint64_t)holder->credit_ns) : 0;
    bool idle = cot_is_idle(holder) && holder->idle_ns && now - holder->idle_ns >= arbiter->tuning.idle_ns;
    bool outranked = other->share.high && !holder->share.high;
    bool returned = holder->loan && goes_before(gpu, other, holder);
    bool spent = left <= holder->digest.pending_ns;
    bool dry = is_dry(arbiter, holder);
    bool out_of_time = holder->blocked_ns >= holder->turn_budget_ns + arbiter->tuning.slack_ns;
    /* A high one keeps the GPU while it wants it, within its cap. */
    bool stays = holder->share.high && !other->share.high && !dry && !idle;
    if (holder->gang) idle = idle && !cot_container_wants(arbiter, index_of(arbiter, gpu), holder);
    if (outranked || (!stays && (idle || returned || dry || spent || out_of_time))) {
        holder->dry = dry && holder->share.high;
        take_back(arbiter, holder, round);
        return;
    }
    if (stays) keep_alone(arbiter, gpu, holder);
    else if (holder->terms.rate_ppm != 0) cot_order_turn(arbiter, gpu, holder, left);
    uint64_t check = now + POLL_NS;
    if (cot_is_idle(holder) && holder->idle_ns) check = holder->idle_ns + arbiter->tuning.idle_ns;
    come_back(round, check);
}

/* A high one launches behind what is still under way, and has the GPU as soon as that has ended, instead of hearing of
 * its end first: the driver lets it end, or slices it, and nothing comes after it. */
static bool is_urged(struct cot_arbiter *arbiter, struct cot_gpu *gpu, const struct cot_member *holder,
                     struct round *round) {
    if (holder->share.high) return false;
    const struct cot_member *next = best(arbiter, gpu, holder, round);
    return next && next->share.high;
}

static void decide_closing(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct round *round) {
    struct cot_member *holder = cot_holder(gpu);
    if (holder->state == COT_LEASE_CATCH_UP) {
        bool drained = true;
        for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
            for (uint32_t i = 0; i < arbiter->gpus[at].count; i++) {
                const struct cot_member *there = &arbiter->gpus[at].members[i];
                if (!there->present || there->container != holder->container) continue;
                drained = drained && there->looked && there->digest.inflight == 0;
            }
        }
        if (drained || gpu->now_ns - gpu->closing_ns >= arbiter->tuning.quantum_ns) {
            cot_order_state(holder, COT_LEASE_CLOSED);
        }
    }
    bool over = gpu->now_ns >= gpu->overrun_ns || holder->outcast;
    bool drained = holder->looked && holder->digest.inflight == 0;
    bool urged = is_urged(arbiter, gpu, holder, round);
    if (holder->state == COT_LEASE_CLOSED && (drained || over || urged)) {
        cot_settle(arbiter, holder);
        if (!drained) {
            holder->overruns += over && !holder->outcast;
            if (!over) holder->trails_until_ns = gpu->now_ns + arbiter->tuning.trail_ns;
            holder->outcast = true;
        }
        gpu->phase = COT_PHASE_IDLE;
        round->moved = true;
        return;
    }
    if (!holder->looked) round->decision->look[index_of(arbiter, gpu)] |= bit_of(gpu, holder);
    come_back(round, cot_smaller(gpu->overrun_ns, gpu->now_ns + POLL_NS));
}

void cot_arbiter_decide(struct cot_arbiter *arbiter, uint64_t now_ns, struct cot_decision *decision) {
    *decision = (struct cot_decision){.next_ns = now_ns + COT_LEASE_PAGE_HEARTBEAT_NS};
    struct round round = {.decision = decision, .moved = true};
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        cot_advance(arbiter, &arbiter->gpus[at], now_ns);
        cot_cap_credits(arbiter, &arbiter->gpus[at]);
    }
    /* Each pass moves at least one GPU on; a GPU can be closed, freed and given once in a round. */
    for (uint32_t pass = 0; round.moved && pass < 4 * COT_ARBITER_GPUS; pass++) {
        round.moved = false;
        for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
            struct cot_gpu *gpu = &arbiter->gpus[at];
            if (gpu->count == 0) continue;
            if (gpu->phase == COT_PHASE_CLOSING) decide_closing(arbiter, gpu, &round);
            if (gpu->phase == COT_PHASE_IDLE) decide_idle(arbiter, gpu, &round);
            if (gpu->phase == COT_PHASE_HELD) decide_held(arbiter, gpu, &round);
        }
    }
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        for (uint32_t i = 0; i < gpu->count; i++) {
            const struct cot_member *member = &gpu->members[i];
            if (!member->present) continue;
            if (member->dirty) decision->dirty[at] |= 1ull << i;
            if (member == cot_holder(gpu) || member->outcast || now_ns < gpu->settling_ns) {
                decision->watch[at] |= 1ull << i;
            }
        }
    }
    if (decision->next_ns < now_ns) decision->next_ns = now_ns;
}
