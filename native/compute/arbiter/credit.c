/* Credit and charges of containers. A charge is the use that the container reports, bounded by what the arbiter knows
 * itself: not more than the time that passed, and not less than the time for which others waited for it. */
#include "internal.h"

#define MAX_UNCLAIMED_NS 60000000000ull
#define MAX_AHEAD_NS 250000000ull
#define DISTRUST_NS 1000000000ull
#define LONGEST_BUSY_DECAY 64 /* how fast a long busy time is forgotten */
#define MOST_WAITING 8u       /* launches that have one bound: a container may have as many processes as it likes */
#define SPARE_PART 4          /* less than all: its share holds, as the rest repays what such launches took too much */
#define MOST_SPARE_NS 8000000
#define MAX_LAG_TURNS 4 /* largest lag of virtual time for a container that pauses briefly now and then */

/* An invalid value in one page must not change how others are treated. */
static bool is_trusted(const struct cot_gpu *gpu, const struct cot_member *member) {
    return member->last_fault_ns == 0 || gpu->now_ns - member->last_fault_ns > DISTRUST_NS;
}

static bool is_finishing_first(const struct cot_gpu *gpu, const struct cot_member *member) {
    return member->undrained && gpu->now_ns < member->trailing_until_ns && is_trusted(gpu, member);
}

/* Whatever a page reports, no launch took longer than work was seen in flight. */
uint64_t cot_longest_of(const struct cot_gpu *gpu, const struct cot_member *member) {
    if (!is_trusted(gpu, member)) return 0;
    return cot_smaller(member->digest.longest_ns, member->longest_busy_ns);
}

static uint64_t longest_on(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu) {
    uint64_t longest = arbiter->tuning.quantum_ns;
    for (uint32_t i = 0; i < gpu->count; i++) {
        if (gpu->members[i].present) longest = cot_larger(longest, cot_longest_of(gpu, &gpu->members[i]));
    }
    return cot_smaller(longest, 1000000000ull);
}

/* A container that waits for its turn keeps its credit, up to a cap by the longest launch of its peers; an idle one
 * keeps one quantum. To be applied after the charges of the same time. */
void cot_cap_credits(struct cot_arbiter *arbiter, struct cot_gpu *gpu) {
    uint64_t quantum = arbiter->tuning.quantum_ns;
    uint64_t most = cot_larger(arbiter->tuning.credit_longest * longest_on(arbiter, gpu), quantum);
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present) continue;
        /* What containers launched while the arbiter was absent gives none of them an advantage. */
        if (gpu->agent_returned) member->virtual_ns = *cot_virtual_of(gpu, member);
        if (!cot_limited(member)) continue;
        bool busy = !cot_is_idle(member) || member->state != COT_LEASE_CLOSED;
        int64_t cap = (int64_t)(busy ? most : quantum);
        if (member->credit_ns > cap) member->credit_ns = cap;
    }
    gpu->agent_returned = false;
}

static void accrue(struct cot_member *member, uint64_t elapsed) {
    uint64_t guaranteed = (uint64_t)((unsigned __int128)elapsed * member->share.guarantee_ppm / COT_PPM);
    member->beyond_ns -= cot_smaller(guaranteed, member->beyond_ns);
    uint64_t grown = cot_smaller(elapsed, MAX_UNCLAIMED_NS) * member->share.limit_ppm + member->credit_rest;
    member->credit_rest = grown % COT_PPM;
    member->relief_owed_ns -= cot_smaller(grown / COT_PPM, member->relief_owed_ns);
    if (!cot_limited(member)) return;
    member->credit_ns += (int64_t)(grown / COT_PPM);
    member->spare_ns += (int64_t)(grown / COT_PPM / SPARE_PART);
    if (member->spare_ns > MOST_SPARE_NS) member->spare_ns = MOST_SPARE_NS;
}

void cot_charge(struct cot_member *member, uint64_t ns) {
    member->charged_ns += ns;
    member->turn_charged_ns += ns;
    member->beyond_ns += ns;
    if (cot_limited(member)) member->credit_ns -= (int64_t)ns;
    member->virtual_ns += ns * COT_PPM / cot_larger(member->share.guarantee_ppm, 1);
}

/* Charges time that the container will report later. */
static void charge_in_advance(struct cot_member *member, uint64_t ns) {
    cot_charge(member, ns);
    member->charged_ahead_ns += ns;
}

/* Charges what the container reported since the last time. */
static void charge_reported(struct cot_member *member, uint64_t ns) {
    uint64_t real = cot_smaller(ns, member->unclaimed_ns);
    member->unclaimed_ns -= real;
    if (member->own_busy_ns < member->unreported_busy_ns) {
        real = (uint64_t)((unsigned __int128)real * member->own_busy_ns / member->unreported_busy_ns);
        member->contended_ns += real;
    }
    if (ns) member->unreported_busy_ns = member->own_busy_ns = 0;
    uint64_t ahead = cot_smaller(real, member->charged_ahead_ns);
    member->charged_ahead_ns -= ahead;
    cot_charge(member, real - ahead);
}

static uint64_t part_of(uint64_t elapsed, uint32_t busy, uint32_t all) {
    return all ? elapsed * busy / all : elapsed;
}

/* Brings the GPU's accounts up to now. Processes with work in flight at once get equal parts of the time, as the driver
 * slices it. */
void cot_advance(struct cot_arbiter *arbiter, struct cot_gpu *gpu, uint64_t now_ns) {
    if (now_ns <= gpu->now_ns) return;
    uint64_t elapsed = now_ns - gpu->now_ns;
    gpu->now_ns = now_ns;
    /* The arbiter was absent, and containers launched by their own credit: that work drains first. */
    bool away = elapsed >= COT_LEASE_PAGE_STALE_NS;
    if (away) {
        gpu->draining_until_ns = now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns;
        gpu->agent_returned = true;
    }
    uint32_t busy = 0;
    bool behind = false;
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct cot_member *member = &gpu->members[i];
        if (!member->present || member->digest.inflight == 0) continue;
        if (is_trusted(gpu, member)) busy += member->digest.busy;
        behind |= is_finishing_first(gpu, member);
    }
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present) continue;
        accrue(member, elapsed);
        bool trailing = is_finishing_first(gpu, member);
        if (behind && !trailing) continue; /* its work has not begun yet */
        member->unclaimed_ns = cot_smaller(member->unclaimed_ns + elapsed, MAX_UNCLAIMED_NS);
        if (member->digest.inflight == 0 || away) continue;
        member->busy_ns += elapsed;
        member->unreported_busy_ns += elapsed;
        uint64_t own = part_of(elapsed, cot_smaller(member->digest.busy, busy), busy);
        member->own_busy_ns += trailing ? elapsed : own;
        /* The container's report may come late or never: a stopped process makes none, and its kernels end by
         * themselves. */
        if (member->undrained && !trailing && member->charged_ahead_ns < MAX_AHEAD_NS) charge_in_advance(member, own);
    }
    struct cot_member *holder = cot_holder(gpu);
    if (holder && !holder->reserved && gpu->others_wait && !away && !behind) {
        holder->waited_for_ns += elapsed;
        bool shares = holder->digest.inflight && is_trusted(gpu, holder);
        holder->owed_ns += shares ? part_of(elapsed, holder->digest.busy, busy) : elapsed;
    }
}

#define MAX_IDLE_STEPS 100

void cot_arbiter_skip_idle(struct cot_arbiter *arbiter, uint64_t until_ns) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        for (uint32_t i = 0; i < MAX_IDLE_STEPS && gpu->now_ns < until_ns; i++)
            cot_advance(arbiter, gpu, cot_smaller(until_ns, gpu->now_ns + COT_LEASE_PAGE_STALE_NS - 1));
    }
}

void cot_arbiter_drain(struct cot_arbiter *arbiter, uint32_t at, uint64_t now_ns) {
    arbiter->gpus[at].draining_until_ns = now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns;
}

uint64_t cot_start_credit(const struct cot_arbiter *arbiter, const struct cot_member *member) {
    uint64_t credit = arbiter->tuning.start_ns * member->share.limit_ppm / COT_PPM;
    return cot_larger(cot_smaller(credit, arbiter->tuning.quantum_ns / 5), 50000);
}

/* A high-priority container that ran out of credit comes back only for a whole quantum: it preempts others, and the
 * cost of each switch is charged to no container. */
static int64_t credit_to_start(const struct cot_arbiter *arbiter, const struct cot_member *member) {
    return (int64_t)(member->out_of_credit ? arbiter->tuning.quantum_ns : cot_start_credit(arbiter, member));
}

bool cot_has_credit(const struct cot_arbiter *arbiter, const struct cot_member *member) {
    return !cot_limited(member) || member->credit_ns >= credit_to_start(arbiter, member);
}

uint64_t cot_credit_restored_at(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu,
                                const struct cot_member *member) {
    uint64_t missing = (uint64_t)(credit_to_start(arbiter, member) - member->credit_ns);
    return gpu->now_ns + missing * COT_PPM / member->share.limit_ppm + 1;
}

/* Caps how far a container's virtual time may lag behind the others' when it wants the GPU again: it may catch up for a
 * pause in which it missed its turn, not for a longer one. */
static void cap_lag(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member) {
    bool slept = gpu->now_ns - member->active_ns > arbiter->tuning.anticipation_ns;
    uint64_t turn = slept ? arbiter->tuning.quantum_ns : MAX_LAG_TURNS * longest_on(arbiter, gpu);
    uint64_t lag = turn * COT_PPM / member->share.guarantee_ppm;
    uint64_t latest = *cot_virtual_of(gpu, member), least = latest > lag ? latest - lag : 0;
    member->virtual_ns = cot_larger(member->virtual_ns, least);
    if (slept && cot_limited(member)) {
        int64_t quantum = (int64_t)arbiter->tuning.quantum_ns;
        if (member->credit_ns > quantum) member->credit_ns = quantum;
    }
}

/* By how much it has had more than its share, in time of the GPU, against the container that had the least of those
 * that want the GPU. */
static uint64_t lead_of(const struct cot_gpu *gpu, const struct cot_member *member) {
    uint64_t least = member->virtual_ns;
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct cot_member *other = &gpu->members[i];
        if (!other->present || other->share.native || cot_is_idle(other)) continue;
        if (other->share.high == member->share.high && other->virtual_ns < least) least = other->virtual_ns;
    }
    return member->virtual_ns - least;
}

static bool owes_as_expected(const struct cot_member *member) {
    return member->undrained && (member->digest.has_awaited || member->relieved_late);
}

/* `renew`: the wait begins; else its bound may only become earlier. */
static void bound_wait(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu, struct cot_member *member,
                       bool renew) {
    uint64_t debt = cot_limited(member) && member->credit_ns < 0 ? (uint64_t)-member->credit_ns : 0;
    uint64_t beyond = member->beyond_ns * COT_PPM / cot_larger(member->share.guarantee_ppm, 1);
    uint64_t lead = cot_smaller(lead_of(gpu, member), beyond);
    uint64_t owed = cot_larger(debt * COT_PPM / cot_larger(member->share.limit_ppm, 1), lead);
    uint64_t turn = arbiter->tuning.quantum_ns * COT_PPM / cot_larger(member->share.guarantee_ppm, 1);
    /* Work in flight beside that of others is charged as long as it stays, which must not lengthen the wait of the
     * launch that would end it: the wait owes what that work was expected to take, and what turns at the bound let go
     * before: else several processes with long launches had such turns without end. The same for work that was
     * overdue before a turn at the bound and did not end in it: other launches were made. */
    uint64_t expected = cot_larger(member->digest.pending_ns, member->relief_owed_ns) * COT_PPM /
                        cot_larger(member->share.limit_ppm, 1);
    if (owes_as_expected(member)) owed = cot_smaller(owed, expected);
    if (renew) member->paid_ns = 0;
    uint64_t bound = gpu->now_ns + owed + turn + arbiter->tuning.bound_slack_ns + member->paid_ns;
    member->bound_ns = member->bound_ns && !renew ? cot_smaller(member->bound_ns, bound) : bound;
    if (!renew) return;
    member->bound_launches = member->digest.launches;
    member->bound_waiting = 0;
}

/* Work that ended did not wait for the launch that still does: the share pays for it first. */
static void pay_for_ended(const struct cot_arbiter *arbiter, struct cot_member *member) {
    uint64_t charged = member->charged_ns - member->seen_charged_ns;
    member->seen_charged_ns = member->charged_ns;
    if (!owes_as_expected(member) || !member->bound_ns || charged > 2 * arbiter->tuning.quantum_ns) return;
    uint64_t paid = charged * COT_PPM / cot_larger(member->share.guarantee_ppm, 1);
    member->paid_ns += paid;
    member->bound_ns += paid;
}

/* Ends a turn: a container that others waited for pays for that wait, whatever it reports. One that
 * let a turn at its bound pass without a launch has a new bound. */
void cot_settle(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu, struct cot_member *member) {
    uint64_t slack = cot_smaller(arbiter->tuning.slack_ns, member->turn_charged_ns);
    uint64_t owed = member->owed_ns > slack ? member->owed_ns - slack : 0;
    if (owed > member->turn_charged_ns) charge_in_advance(member, owed - member->turn_charged_ns);
    if (member->digest.inflight == 0) member->charged_ahead_ns = 0;
    member->waited_for_ns = member->owed_ns = 0;
    member->turn_charged_ns = 0;
    member->lent = member->reserved = false;
    bool passed = cot_relief_stands(member) && gpu->now_ns - member->granted_ns >= arbiter->tuning.quantum_ns;
    if (passed) bound_wait(arbiter, gpu, member, true);
}

/* What links.c finds containers by whose kernels wait for one another. */
static void note_ends(const struct cot_arbiter *arbiter, struct cot_member *member, const struct cot_digest *before,
                      uint64_t now_ns) {
    const struct cot_digest *now = &member->digest;
    if (before->inflight == 0 || now->launches - now->inflight != before->launches - before->inflight)
        member->ended_ns = now_ns;
    if (member->spared && now->launches != before->launches) {
        /* By its prediction: what it takes longer may be a wait in turn. */
        uint64_t takes = now->pending_ns > before->pending_ns ? now->pending_ns - before->pending_ns : 0;
        member->spare_ns -= (int64_t)cot_larger(takes, cot_start_credit(arbiter, member));
        member->spared = false;
    }
    member->spared &= now->waiting > 0;
    if (member->relieved && now->launches != before->launches && now->pending_ns > before->pending_ns) {
        uint64_t more = cot_smaller(now->pending_ns - before->pending_ns, MAX_UNCLAIMED_NS);
        member->relief_owed_ns = cot_smaller(member->relief_owed_ns + more, MAX_UNCLAIMED_NS);
    }
    bool outlasted = before->inflight && before->pending_ns == 0;
    if (before->waiting && member->digest.launches != before->launches) member->went_ns = now_ns;
    if (outlasted && member->digest.inflight < before->inflight) member->outlasted_ns = now_ns;
}

void cot_arbiter_report(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_digest *digest,
                        uint64_t now_ns) {
    struct cot_gpu *gpu = &arbiter->gpus[at];
    struct cot_member *member = &gpu->members[index];
    if (!member->present) return;
    cot_advance(arbiter, gpu, now_ns);
    struct cot_digest before = member->digest;
    uint32_t replayed = digest->used_ns < before.used_ns;
    member->faults += digest->faults + replayed;
    if (digest->faults + replayed) member->last_fault_ns = now_ns;
    member->digest = *digest;
    member->digested_since_close = true;
    note_ends(arbiter, member, &before, now_ns);
    uint64_t more = replayed ? 0 : digest->used_ns - before.used_ns;
    charge_reported(member, more);
    if (digest->launches - digest->inflight != before.launches - before.inflight) pay_for_ended(arbiter, member);

    bool wanted = before.waiting > 0, wants = digest->waiting > 0;
    if (wants && !wanted && before.inflight == 0) cap_lag(arbiter, gpu, member);
    if (!wants) member->bound_ns = 0;
    else {
        /* A launch that the driver refuses is taken back. */
        int64_t made = (int64_t)(digest->launches - member->bound_launches);
        bool begins = !wanted || made >= (int64_t)member->bound_waiting;
        if (begins || member->undrained) bound_wait(arbiter, gpu, member, begins);
        uint64_t waiting = cot_smaller(digest->waiting, MOST_WAITING);
        member->bound_waiting = cot_larger(member->bound_waiting, waiting);
    }
    bool progressed = digest->launches != before.launches || digest->inflight > 0 || wants;
    if (progressed) {
        member->active_ns = now_ns;
        member->idle_ns = 0;
    } else if (member->idle_ns == 0) {
        member->idle_ns = cot_larger(now_ns, 1);
    }
    if (member->busy_ns > member->longest_busy_ns) member->longest_busy_ns = member->busy_ns;
    if (member->state == COT_LEASE_CATCH_UP && cot_holder(gpu) != member) member->undrained = true;
    if (digest->inflight == 0) {
        member->longest_busy_ns -= (member->longest_busy_ns - member->busy_ns) / LONGEST_BUSY_DECAY;
        member->undrained = false;
        member->busy_ns = member->unreported_busy_ns = member->own_busy_ns = member->charged_ahead_ns = 0;
    }
}
