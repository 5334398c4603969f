/* What containers are owed and what they are charged. A charge is the container's own figure, held between two that
 * the arbiter knows by itself: it cannot have used more than the time that passed, nor less than the time for which
 * others were kept waiting for it. */
#include "internal.h"

#define MOST_UNCLAIMED_NS 60000000000ull
#define DISBELIEF_NS 1000000000ull
#define STRETCHES 64     /* after which a long one counts for half as long, more or less */
#define CATCH_UP_TURNS 4 /* virtual time that one who pauses a little now and then may lag behind */

/* What a page says that was scribbled over is no reason to treat others any differently. */
static bool is_believed(const struct cot_gpu *gpu, const struct cot_member *member) {
    return member->faulted_ns == 0 || gpu->now_ns - member->faulted_ns > DISBELIEF_NS;
}

static bool is_trailing(const struct cot_gpu *gpu, const struct cot_member *member) {
    return member->outcast && gpu->now_ns < member->trails_until_ns && is_believed(gpu, member);
}

/* Whatever a page claims, no launch took longer than something was seen to be under way. */
static uint64_t longest_of(const struct cot_gpu *gpu, const struct cot_member *member) {
    if (!is_believed(gpu, member)) return 0;
    return cot_smaller(member->digest.longest_ns, member->stretch_ns);
}

static uint64_t longest_on(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu) {
    uint64_t longest = arbiter->tuning.quantum_ns;
    for (uint32_t i = 0; i < gpu->count; i++) {
        if (gpu->members[i].present) longest = cot_larger(longest, longest_of(gpu, &gpu->members[i]));
    }
    return cot_smaller(longest, 1000000000ull);
}

/* Who waits for its turn loses no credit by it, unless peers' launches are no reason for so long a wait; who does
 * nothing keeps a quantum. To be applied when the charges of the same time are in. */
void cot_cap_credits(struct cot_arbiter *arbiter, struct cot_gpu *gpu) {
    uint64_t quantum = arbiter->tuning.quantum_ns;
    uint64_t most = cot_larger(arbiter->tuning.credit_longest * longest_on(arbiter, gpu), quantum);
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present) continue;
        /* What everybody did on its own while the agent was away is nobody's lead. */
        if (gpu->returned) member->virtual_ns = gpu->virtual_ns;
        if (!cot_limited(member)) continue;
        bool busy = !cot_is_idle(member) || member->state != COT_LEASE_CLOSED;
        int64_t cap = (int64_t)(busy ? most : quantum);
        if (member->credit_ns > cap) member->credit_ns = cap;
    }
    gpu->returned = false;
}

static void accrue(struct cot_member *member, uint64_t elapsed) {
    if (!cot_limited(member)) return;
    uint64_t grown = cot_smaller(elapsed, MOST_UNCLAIMED_NS) * member->share.limit_ppm + member->credit_rest;
    member->credit_rest = grown % COT_PPM;
    member->credit_ns += (int64_t)(grown / COT_PPM);
}

void cot_charge(struct cot_member *member, uint64_t ns) {
    member->charged_ns += ns;
    member->turn_charged_ns += ns;
    if (cot_limited(member)) member->credit_ns -= (int64_t)ns;
    member->virtual_ns += ns * COT_PPM / cot_larger(member->share.guarantee_ppm, 1);
}

/* Ahead of the container's own figure, which will have it in it. */
static void charge_ahead(struct cot_member *member, uint64_t ns) {
    cot_charge(member, ns);
    member->ahead_ns += ns;
}

/* What the container says that it used since the last time. */
static void charge_reported(struct cot_member *member, uint64_t ns) {
    uint64_t real = cot_smaller(ns, member->unclaimed_ns);
    member->unclaimed_ns -= real;
    if (member->apart_ns < member->shared_ns) {
        real = (uint64_t)((unsigned __int128)real * member->apart_ns / member->shared_ns);
        member->contended_ns += real;
    }
    if (ns) member->shared_ns = member->apart_ns = 0;
    uint64_t ahead = cot_smaller(real, member->ahead_ns);
    member->ahead_ns -= ahead;
    cot_charge(member, real - ahead);
}

/* The turn is over: who was waited for pays for the wait, whatever it says that it used. */
void cot_settle(const struct cot_arbiter *arbiter, struct cot_member *member) {
    uint64_t owed = member->owed_ns > arbiter->tuning.slack_ns ? member->owed_ns - arbiter->tuning.slack_ns : 0;
    if (owed > member->turn_charged_ns) charge_ahead(member, owed - member->turn_charged_ns);
    if (member->digest.inflight == 0) member->ahead_ns = 0;
    member->blocked_ns = member->owed_ns = 0;
    member->turn_charged_ns = 0;
    member->loan = member->reserved = false;
}

/* Brings the GPU's accounts to now. Work of several containers under way at once gets equal parts of the time: so the
 * driver slices it. */
void cot_advance(struct cot_arbiter *arbiter, struct cot_gpu *gpu, uint64_t now_ns) {
    if (now_ns <= gpu->now_ns) return;
    uint64_t elapsed = now_ns - gpu->now_ns;
    gpu->now_ns = now_ns;
    /* The agent was away, and containers went by their own credit: what they let go drains first. */
    bool away = elapsed >= COT_LEASE_PAGE_STALE_NS;
    if (away) {
        gpu->settling_ns = now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns;
        gpu->returned = true;
    }
    uint32_t busy = 0;
    bool behind = false;
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct cot_member *member = &gpu->members[i];
        if (!member->present || member->digest.inflight == 0) continue;
        busy += is_believed(gpu, member);
        behind |= is_trailing(gpu, member);
    }
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present) continue;
        accrue(member, elapsed);
        bool trailing = is_trailing(gpu, member);
        if (behind && !trailing) continue; /* whatever it launched has not begun */
        member->unclaimed_ns = cot_smaller(member->unclaimed_ns + elapsed, MOST_UNCLAIMED_NS);
        if (member->digest.inflight == 0 || away) continue;
        member->together_ns += elapsed;
        member->shared_ns += elapsed;
        member->apart_ns += trailing ? elapsed : elapsed / (busy ? busy : 1);
        /* Its own figure may come late, or never. */
        if (member->outcast && !trailing) charge_ahead(member, elapsed / (busy ? busy : 1));
    }
    struct cot_member *holder = cot_holder(gpu);
    if (holder && !holder->reserved && gpu->others_wait && !away && !behind) {
        holder->blocked_ns += elapsed;
        holder->owed_ns += holder->digest.inflight && busy ? elapsed / busy : elapsed;
    }
}

#define MOST_RESTS 100

void cot_arbiter_rest(struct cot_arbiter *arbiter, uint64_t until_ns) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        for (uint32_t i = 0; i < MOST_RESTS && gpu->now_ns < until_ns; i++)
            cot_advance(arbiter, gpu, cot_smaller(until_ns, gpu->now_ns + COT_LEASE_PAGE_STALE_NS - 1));
    }
}

void cot_arbiter_drain(struct cot_arbiter *arbiter, uint32_t at, uint64_t now_ns) {
    arbiter->gpus[at].settling_ns = now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns;
}

uint64_t cot_start_credit(const struct cot_arbiter *arbiter, const struct cot_member *member) {
    uint64_t credit = arbiter->tuning.start_ns * member->share.limit_ppm / COT_PPM;
    return cot_larger(cot_smaller(credit, arbiter->tuning.quantum_ns / 5), 50000);
}

/* How far behind the others a container's virtual time may be when it comes back: it is owed for a pause that others
 * made it miss its turn in, not for sleep. */
static void catch_up(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member) {
    bool slept = gpu->now_ns - member->active_ns > arbiter->tuning.anticipation_ns;
    uint64_t turn = slept ? arbiter->tuning.quantum_ns : CATCH_UP_TURNS * longest_on(arbiter, gpu);
    uint64_t lag = turn * COT_PPM / member->share.guarantee_ppm;
    uint64_t least = gpu->virtual_ns > lag ? gpu->virtual_ns - lag : 0;
    member->virtual_ns = cot_larger(member->virtual_ns, least);
    if (slept && cot_limited(member)) {
        int64_t quantum = (int64_t)arbiter->tuning.quantum_ns;
        if (member->credit_ns > quantum) member->credit_ns = quantum;
    }
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
    if (digest->faults + replayed) member->faulted_ns = now_ns;
    member->digest = *digest;
    member->looked = true;
    uint64_t more = replayed ? 0 : digest->used_ns - before.used_ns;
    charge_reported(member, more);

    bool wanted = before.waiting > 0, wants = digest->waiting > 0;
    if (wants && !wanted && before.inflight == 0) catch_up(arbiter, gpu, member);
    bool moved = digest->launches != before.launches || digest->inflight > 0 || wants;
    if (moved) {
        member->active_ns = now_ns;
        member->idle_ns = 0;
    } else if (member->idle_ns == 0) {
        member->idle_ns = cot_larger(now_ns, 1);
    }
    if (member->together_ns > member->stretch_ns) member->stretch_ns = member->together_ns;
    if (digest->inflight == 0) {
        member->stretch_ns -= (member->stretch_ns - member->together_ns) / STRETCHES;
        member->outcast = false;
        member->together_ns = member->shared_ns = member->apart_ns = member->ahead_ns = 0;
    }
}
