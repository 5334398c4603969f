/* Which container holds a GPU. Each decision starts from the current state: a release or a new demand never waits for a
 * timer that was set earlier. */
#include "internal.h"

#define LONGEST_WAIT_NS 250000000ull
#define MOST_EACH_NS 50000000ull /* of each launch that a turn at the bound is for */

const struct cot_tuning cot_default_tuning = {
    .quantum_ns = 10000000,
    .idle_ns = 300000,
    .anticipation_ns = 1500000,
    .lend_ns = 1000000,
    .start_ns = 20000000,
    .depth_ns = 10000000,
    .high_depth_ns = 250000,
    .slack_ns = 1000000,
    .credit_longest = 2,
    .overrun_quanta = 5,
    .bound_slack_ns = 100000000,
    .preemption_ns = 1000000,
};

/* The holder waits only for its own limit. A high-priority one could continue as its limit grows, in pieces too short
 * to be useful to others: it releases the GPU when little is left. */
static bool needs_credit(const struct cot_arbiter *arbiter, const struct cot_member *holder) {
    if (!cot_limited(holder) || holder->digest.inflight || !holder->digest.waiting) return false;
    uint64_t least = cot_start_credit(arbiter, holder);
    if (holder->share.high && holder->turn_charged_ns) least *= 2;
    return holder->credit_ns < (int64_t)least;
}

/* ---- hand-over ---- */

static void open_gpu(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member) {
    if (!cot_holds(arbiter, cot_index_of(arbiter, gpu), member)) return;
    member->turn_launches = member->digest.launches - member->digest.inflight;
    if (!member->reserved) return;
    member->reserved = false;
    if (gpu->is_claimed && gpu->claimed_by == member->gang) gpu->is_claimed = false;
    member->granted_ns = gpu->now_ns;
    if (member->digest.inflight == 0) member->unclaimed_ns = 0;
    member->waited_for_ns = member->owed_ns = 0;
    cot_order_turn(arbiter, gpu, member, member->turn_budget_ns);
}

static void grant_gpu(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member, bool lent) {
    uint64_t longest = cot_smaller(member->digest.longest_ns, 200000000);
    uint64_t budget = cot_larger(arbiter->tuning.quantum_ns, longest);
    int64_t credit = member->credit_ns > 0 ? member->credit_ns : 0;
    member->relieved = cot_overdue_since(arbiter, member, gpu->now_ns) != UINT64_MAX;
    member->relieved_late =
        member->relieved && member->multi_gpu && member->digest.inflight && member->digest.pending_ns == 0;
    /* Work that waits for this turn's launches may be charged meanwhile, and each may be predicted to fill the GPU, or
     * to take as long as a launch that had to wait. */
    uint64_t others = member->bound_waiting > 1 ? member->bound_waiting - 1 : 0;
    uint64_t each = cot_larger(arbiter->tuning.depth_ns, cot_smaller(cot_longest_of(gpu, member), MOST_EACH_NS));
    uint64_t relief = arbiter->tuning.quantum_ns / 2 + others * each;
    if (member->spared) relief = (uint64_t)member->spare_ns;
    if (member->relieved) {
        credit = (int64_t)cot_larger((uint64_t)credit, relief);
        budget = cot_larger(budget, relief);
    }
    if (cot_limited(member)) budget = cot_smaller(budget, cot_larger((uint64_t)credit, 1));
    if (lent && !member->relieved) budget = cot_smaller(budget, arbiter->tuning.lend_ns);
    gpu->phase = COT_PHASE_HELD;
    gpu->holder = gpu->last = (uint32_t)(member - gpu->members);
    cot_note_virtual(gpu, member);
    gpu->others_wait = false;
    member->turn_budget_ns = budget;
    member->turn_charged_ns = 0;
    member->lent = lent && !member->relieved;
    member->out_of_credit = false;
    member->finishing_ns = member->finishing_step_ns = 0;
    member->held_back_ns = 0;
    member->reserved = true;
    if (cot_has_all(arbiter, member)) cot_each_gpu(arbiter, member, open_gpu);
}

static void close_gpu(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member) {
    if (cot_holder(gpu) != member || gpu->phase != COT_PHASE_HELD) return;
    if (member->reserved) {
        member->reserved = gpu->is_claimed = false;
        gpu->phase = COT_PHASE_IDLE;
        return;
    }
    gpu->phase = COT_PHASE_CLOSING;
    gpu->closing_ns = gpu->now_ns;
    /* Launches that are known to be long get their time, up to a bound. */
    gpu->overrun_at_ns = gpu->now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns +
                         cot_smaller(member->digest.pending_ns, LONGEST_WAIT_NS);
    if (member->multi_gpu) cot_order_catch_up(member, member->digest.launches);
    else cot_order_state(member, COT_LEASE_CLOSED);
}

static void revoke_gpu(struct cot_arbiter *arbiter, struct cot_member *holder, struct cot_round *round) {
    cot_each_gpu(arbiter, holder, close_gpu);
    if (holder->multi_gpu) cot_limit_catch_up(arbiter, holder);
    round->progressed = true;
}

/* The next turn is that of a gang: the other GPUs that it wants are taken from their holders at the same time, so that
 * none of them is kept unused for longer than their work drains. */
static void claim_gpus(struct cot_arbiter *arbiter, const struct cot_member *next, struct cot_round *round) {
    for (uint32_t at = 0; next->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        const struct cot_member *there = cot_sibling(arbiter, at, next);
        if (!there || !cot_wants(arbiter, there) || cot_holds(arbiter, at, there)) continue;
        gpu->is_claimed = true;
        gpu->claimed_by = next->gang;
        if (gpu->phase == COT_PHASE_HELD) revoke_gpu(arbiter, cot_holder(gpu), round);
    }
}

static void drop_claims(struct cot_arbiter *arbiter, uint32_t gang) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        if (!gpu->is_claimed || gpu->claimed_by != gang) continue;
        struct cot_member *holder = cot_holder(gpu);
        gpu->is_claimed = false;
        if (!holder || !holder->reserved) continue;
        holder->reserved = false;
        gpu->phase = COT_PHASE_IDLE;
    }
}

/* A claim keeps GPUs from others: it ends when the gang cannot start any more, or another container is to come first.
 */
static void check_claim(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_round *round) {
    if (!gpu->is_claimed) return;
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present || member->gang != gpu->claimed_by) continue;
        if (cot_may_keep_claim(arbiter, gpu, member, round)) return;
    }
    drop_claims(arbiter, gpu->claimed_by);
    round->progressed = true;
}

/* ---- one GPU ---- */

static void decide_idle(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_round *round) {
    if (gpu->now_ns < gpu->draining_until_ns) {
        bool drained = true;
        for (uint32_t i = 0; i < gpu->count; i++) {
            const struct cot_member *member = &gpu->members[i];
            drained = drained && (!member->present || (member->digested_since_close && member->digest.inflight == 0));
        }
        if (!drained) {
            cot_wake_by(round, cot_smaller(gpu->draining_until_ns, gpu->now_ns + COT_POLL_NS));
            return;
        }
        gpu->draining_until_ns = 0;
    }
    struct cot_member *next = cot_next_member(arbiter, gpu, NULL, round);
    if (!next) return;
    const struct cot_member *absent = cot_anticipated_member(arbiter, gpu, next);
    if (absent && next->digest.longest_ns > arbiter->tuning.lend_ns) {
        cot_wake_by(round, absent->active_ns + arbiter->tuning.anticipation_ns);
        return;
    }
    if (!gpu->is_claimed) claim_gpus(arbiter, next, round);
    grant_gpu(arbiter, gpu, next, absent != NULL);
    round->progressed = true;
}

/* The holder's terms follow its credit while no other container wants the GPU. */
static void keep_alone(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *holder) {
    const struct cot_lease_terms *terms = &holder->terms;
    cot_note_virtual(gpu, holder);
    uint64_t allowed = cot_lease_limit_at(terms->limit_ns, terms->at_ns, terms->rate_ppm, gpu->now_ns);
    bool depth_changed = terms->depth_ns != cot_depth_for(arbiter, gpu, holder);
    if (terms->rate_ppm == holder->share.limit_ppm && holder->state == COT_LEASE_GRANTED && !depth_changed) {
        if (!cot_limited(holder) && allowed > holder->digest.used_ns) return;
        /* The credit of an idle holder stops at its cap, and a charge may have been corrected. */
        int64_t status = (int64_t)(allowed - holder->digest.used_ns);
        if (holder->undrained) status -= (int64_t)holder->digest.pending_ns;
        if (terms->at_ns > gpu->now_ns)
            status -= (int64_t)((terms->at_ns - gpu->now_ns) / 1000 * terms->rate_ppm / 1000);
        int64_t off = status - holder->credit_ns;
        if (off < (int64_t)arbiter->tuning.quantum_ns / 10 && off > -(int64_t)arbiter->tuning.quantum_ns / 10) return;
    }
    cot_order_alone(arbiter, gpu, holder);
}

/* The turn is over, but work of it is in flight that may wait for launches of its other processes. The gate lets those
 * go while the lease is granted, if that work takes too long; the turn ends when nothing is in flight. */
static bool is_finishing(const struct cot_arbiter *arbiter, struct cot_member *holder, uint64_t now_ns) {
    /* A launch that waits for work of its own process is not counted as one that waits. */
    bool may_follow = holder->digest.waiting || holder->digest.has_awaited;
    if (holder->multi_gpu || !holder->digest.inflight || !may_follow) return false;
    if (holder->finishing_ns == 0) holder->finishing_ns = now_ns;
    uint64_t steps = 2 * holder->digest.launches - holder->digest.inflight; /* launched, and ended */
    if (holder->finishing_step_ns == 0 || holder->finishing_steps != steps) {
        holder->finishing_step_ns = now_ns;
        holder->finishing_steps = steps;
    }
    return now_ns - holder->finishing_step_ns < arbiter->tuning.quantum_ns + holder->digest.pending_ns &&
           now_ns - holder->finishing_ns < arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns;
}

/* The gate counts all time of its work. Time that other work had beside it was not charged: the turn goes on. */
static bool has_used_terms(const struct cot_member *holder) {
    const struct cot_digest *digest = &holder->digest;
    return digest->waiting && digest->used_ns + digest->pending_ns >= holder->terms.limit_ns;
}

static void decide_held(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_round *round) {
    struct cot_member *holder = cot_holder(gpu);
    struct cot_member *other = cot_next_member(arbiter, gpu, holder, round);
    gpu->others_wait = other != NULL;
    if (holder->reserved) {
        if (!cot_wants(arbiter, holder)) revoke_gpu(arbiter, holder, round);
        else if (cot_has_all(arbiter, holder)) cot_each_gpu(arbiter, holder, open_gpu);
        return;
    }
    if (gpu->now_ns < gpu->draining_until_ns) {
        revoke_gpu(arbiter, holder, round);
        return;
    }
    /* Others' waits may begin at any moment: a turn at the bound is kept until its launch was made, whatever its debt.
     */
    if (cot_is_relief_unused(arbiter, holder, gpu->now_ns)) {
        cot_wake_by(round, gpu->now_ns + COT_POLL_NS);
        return;
    }
    /* Limits of a gang grow on each of its GPUs, but its turns must not come apart. */
    bool together = !other && cot_gang_is_limited(arbiter, holder);
    if (!other && !together) {
        holder->lent = false;
        uint64_t since = gpu->now_ns - cot_smaller(holder->granted_ns, gpu->now_ns);
        bool again = holder->granted_ns < holder->bound_ns || since >= 2 * arbiter->tuning.quantum_ns;
        if (holder->spared && again) grant_gpu(arbiter, gpu, holder, false);
        else keep_alone(arbiter, gpu, holder);
        return;
    }
    uint64_t now = gpu->now_ns, left = 0;
    if (holder->turn_charged_ns < holder->turn_budget_ns) left = holder->turn_budget_ns - holder->turn_charged_ns;
    if (cot_limited(holder)) left = holder->credit_ns > 0 ? cot_smaller(left, (uint64_t)holder->credit_ns) : 0;
    bool idle = cot_is_idle(holder) && holder->idle_ns && now - holder->idle_ns >= arbiter->tuning.idle_ns;
    bool outranked = other && other->share.high && !holder->share.high;
    bool agent_returned = holder->lent && other && cot_precedes(arbiter, gpu, other, holder);
    /* Whatever is announced: without time between their turns containers would alternate for ever. */
    bool spent = left <= holder->digest.pending_ns && now > holder->granted_ns;
    bool out_of_credit = needs_credit(arbiter, holder);
    bool out_of_time = holder->waited_for_ns >= holder->turn_budget_ns + arbiter->tuning.slack_ns;
    /* A high-priority container keeps the GPU while it wants it, within its limit: not for a kernel that outlasts it,
     * whatever is queued behind that one. */
    bool overspent = cot_limited(holder) && holder->credit_ns + (int64_t)holder->digest.pending_ns <= 0;
    bool stays = holder->share.high && !(other && other->share.high) && !out_of_credit && !overspent && !idle;
    if (holder->multi_gpu) idle = idle && !cot_wants(arbiter, holder);
    if (together) idle = stays = false;
    /* Without credit others' turns end by themselves. */
    bool relieved = holder->share.high ? cot_relief_stands(holder) : holder->relieved;
    outranked = outranked || (other && !relieved && cot_overdue_since(arbiter, other, now) != UINT64_MAX &&
                              cot_overdue_since(arbiter, holder, now) == UINT64_MAX);
    outranked = outranked || (other && cot_sibling_holds(arbiter, other) && cot_precedes(arbiter, gpu, other, holder));
    if (!outranked && !stays && (spent || out_of_time || out_of_credit) && is_finishing(arbiter, holder, now)) {
        if (holder->terms.rate_ppm != 0) cot_order_turn(arbiter, gpu, holder, left);
        cot_wake_by(round, now + COT_POLL_NS);
        return;
    }
    holder->finishing_ns = holder->finishing_step_ns = 0;
    if (outranked || (!stays && (idle || agent_returned || out_of_credit || spent || out_of_time))) {
        holder->out_of_credit = out_of_credit && holder->share.high;
        if (other) claim_gpus(arbiter, other, round);
        revoke_gpu(arbiter, holder, round);
        return;
    }
    bool depth_changed = holder->terms.depth_ns != cot_depth_for(arbiter, gpu, holder);
    if (stays) keep_alone(arbiter, gpu, holder);
    else if (holder->terms.rate_ppm != 0 || depth_changed || has_used_terms(holder))
        cot_order_turn(arbiter, gpu, holder, left);
    uint64_t idle_ends = cot_is_idle(holder) && holder->idle_ns ? holder->idle_ns + arbiter->tuning.idle_ns : 0;
    if (idle_ends > now) cot_wake_by(round, idle_ends);
    else if (other || !cot_is_idle(holder)) cot_wake_by(round, now + COT_POLL_NS);
}

/* A high-priority container launches behind the work that is still in flight, without waiting for the report of its
 * end: the driver finishes or slices that work, and nothing is launched after it. */
static bool high_priority_waits(const struct cot_member *holder, const struct cot_member *next) {
    return next && next->share.high && !holder->share.high;
}

/* The work of the holder had its time to drain: more of it while no other container's wait is at its bound. */
static bool had_its_time(struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *holder,
                         const struct cot_member *next) {
    if (gpu->now_ns >= gpu->overrun_at_ns) return true;
    uint64_t quantum = arbiter->tuning.quantum_ns;
    bool at_bound = next && cot_overdue_since(arbiter, next, gpu->now_ns) != UINT64_MAX;
    return at_bound && gpu->now_ns - gpu->closing_ns >= quantum + cot_smaller(holder->digest.pending_ns, quantum);
}

static void decide_closing(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_round *round) {
    struct cot_member *holder = cot_holder(gpu);
    if (holder->state == COT_LEASE_CATCH_UP) {
        cot_limit_catch_up(arbiter, holder);
        if (cot_gang_drained(arbiter, holder) || gpu->now_ns - gpu->closing_ns >= arbiter->tuning.quantum_ns)
            cot_order_state(holder, COT_LEASE_CLOSED);
    }
    /* All that is left in flight has run for longer than predicted: it may wait for what others keep from launching. */
    bool stuck = holder->digested_since_close && holder->digest.inflight && holder->digest.pending_ns == 0 &&
                 gpu->now_ns - gpu->closing_ns >= arbiter->tuning.quantum_ns;
    const struct cot_member *next = cot_next_member(arbiter, gpu, holder, round);
    bool over = had_its_time(arbiter, gpu, holder, next) || holder->undrained || stuck;
    bool drained = holder->digested_since_close && holder->digest.inflight == 0;
    bool urged = high_priority_waits(holder, next);
    /* It comes next as well: nothing else would run before its work has drained. */
    bool again = gpu->is_claimed && gpu->claimed_by == holder->gang;
    if (holder->state == COT_LEASE_CLOSED && (drained || over || urged || again)) {
        cot_settle(arbiter, gpu, holder);
        if (!drained && !again) {
            holder->overruns += over && !holder->undrained;
            if (!over) holder->trailing_until_ns = gpu->now_ns + arbiter->tuning.preemption_ns;
            holder->undrained = true;
        }
        gpu->phase = COT_PHASE_IDLE;
        round->progressed = true;
        return;
    }
    if (!holder->digested_since_close)
        cot_mask_set(&round->decision->look[cot_index_of(arbiter, gpu)], (uint32_t)(holder - gpu->members));
    cot_wake_by(round, cot_smaller(gpu->overrun_at_ns, gpu->now_ns + COT_POLL_NS));
}

void cot_arbiter_decide(struct cot_arbiter *arbiter, uint64_t now_ns, struct cot_decision *decision) {
    *decision = (struct cot_decision){.next_ns = now_ns + COT_LEASE_PAGE_HEARTBEAT_NS};
    struct cot_round round = {.decision = decision, .progressed = true};
    cot_update_links(arbiter, now_ns);
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        cot_advance(arbiter, &arbiter->gpus[at], now_ns);
        cot_cap_credits(arbiter, &arbiter->gpus[at]);
    }
    cot_spare_launches(arbiter, now_ns);
    /* Each pass makes progress on at least one GPU; a GPU can be closed, freed and granted once per round. */
    for (uint32_t pass = 0; round.progressed && pass < 4 * COT_ARBITER_GPUS; pass++) {
        round.progressed = false;
        for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
            struct cot_gpu *gpu = &arbiter->gpus[at];
            if (gpu->count == 0) continue;
            check_claim(arbiter, gpu, &round);
            if (gpu->phase == COT_PHASE_CLOSING) decide_closing(arbiter, gpu, &round);
            if (gpu->phase == COT_PHASE_IDLE) decide_idle(arbiter, gpu, &round);
            if (gpu->phase == COT_PHASE_HELD) decide_held(arbiter, gpu, &round);
        }
    }
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        cot_follow_mates(gpu);
        for (uint32_t i = 0; i < gpu->count; i++) {
            const struct cot_member *member = &gpu->members[i];
            if (!member->present) continue;
            if (member->dirty) cot_mask_set(&decision->dirty[at], i);
            bool uses = member == cot_holder(gpu) || member->undrained || member->digest.inflight;
            if (uses || now_ns < gpu->draining_until_ns) cot_mask_set(&decision->watch[at], i);
        }
    }
    if (decision->next_ns < now_ns) decision->next_ns = now_ns;
}
