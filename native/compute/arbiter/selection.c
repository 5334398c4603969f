/* Which container is next on a GPU. */
#include "internal.h"

bool cot_precedes(struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *a,
                  const struct cot_member *b) {
    uint64_t overdue_a = cot_overdue_since(arbiter, a, gpu->now_ns),
             overdue_b = cot_overdue_since(arbiter, b, gpu->now_ns);
    if (overdue_a != overdue_b) return overdue_a < overdue_b;
    if (a->share.high != b->share.high) return a->share.high;
    if (a->virtual_ns != b->virtual_ns) return a->virtual_ns < b->virtual_ns;
    uint32_t after_a = (uint32_t)(a - gpu->members) + COT_ARBITER_MEMBERS - gpu->last - 1;
    uint32_t after_b = (uint32_t)(b - gpu->members) + COT_ARBITER_MEMBERS - gpu->last - 1;
    return after_a % COT_ARBITER_MEMBERS < after_b % COT_ARBITER_MEMBERS;
}

static bool may_start(struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *member,
                      struct cot_round *round) {
    if (cot_has_credit(arbiter, member) || cot_overdue_since(arbiter, member, gpu->now_ns) != UINT64_MAX) return true;
    uint64_t restored = cot_credit_restored_at(arbiter, gpu, member), early = restored - cot_high_lead(arbiter);
    cot_wake_by(round, restored);
    if (member->share.high && early > gpu->now_ns) cot_wake_by(round, early);
    if (member->bound_ns) cot_wake_by(round, member->bound_ns);
    return false;
}

/* Another member would take the GPU from it at once. */
static bool is_outranked(struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *member) {
    uint64_t overdue = cot_overdue_since(arbiter, member, gpu->now_ns);
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct cot_member *other = &gpu->members[i];
        if (!other->present || other == member || !cot_wants(arbiter, other)) continue;
        uint64_t since = cot_overdue_since(arbiter, other, gpu->now_ns);
        if (since != overdue) {
            if (since < overdue) return true;
            continue;
        }
        if (other->share.high && !member->share.high && cot_has_credit(arbiter, other)) return true;
    }
    return false;
}

bool cot_may_keep_claim(struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *member,
                        struct cot_round *round) {
    return cot_wants(arbiter, member) && may_start(arbiter, gpu, member, round) && !is_outranked(arbiter, gpu, member);
}

/* Whether the member's GPU would be its own soon: it is free, or the member precedes its holder. */
static bool can_have(struct cot_arbiter *arbiter, struct cot_gpu *gpu, const struct cot_member *member) {
    const struct cot_member *holder = cot_holder(gpu);
    if (gpu->is_claimed && gpu->claimed_by != member->gang) return false;
    if (is_outranked(arbiter, gpu, member)) return false;
    if (gpu->phase != COT_PHASE_HELD || holder == member) return true;
    /* Gangs may come before one another on different GPUs: without time between their turns they alternate for ever. */
    if (holder->multi_gpu && holder->granted_ns == gpu->now_ns) return false;
    return !holder->reserved && cot_precedes(arbiter, gpu, member, holder);
}

/* The GPUs that its gang wants can be claimed together with this one. */
static bool is_gang_ready(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member,
                          struct cot_round *round) {
    bool ready = true;
    for (uint32_t at = 0; member->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, member);
        if (!there || there == member || !cot_wants(arbiter, there) || cot_holds(arbiter, at, there)) continue;
        struct cot_gpu *other = &arbiter->gpus[at];
        ready = ready && may_start(arbiter, other, there, round) && can_have(arbiter, other, there);
    }
    if (ready) {
        member->held_back_ns = 0;
        return true;
    }
    if (member->held_back_ns == 0) member->held_back_ns = gpu->now_ns;
    cot_wake_by(round, gpu->now_ns + COT_POLL_NS);
    return false;
}

struct cot_member *cot_next_member(struct cot_arbiter *arbiter, struct cot_gpu *gpu, const struct cot_member *except,
                                   struct cot_round *round) {
    struct cot_member *found = NULL;
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present || member == except || !cot_wants(arbiter, member)) continue;
        if (gpu->is_claimed && gpu->claimed_by != member->gang) continue;
        if (!may_start(arbiter, gpu, member, round) || !is_gang_ready(arbiter, gpu, member, round)) continue;
        if (!found || cot_precedes(arbiter, gpu, member, found)) found = member;
    }
    return found;
}

const struct cot_member *cot_anticipated_member(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu,
                                                const struct cot_member *instead) {
    const struct cot_member *found = NULL;
    for (uint32_t i = 0; i < gpu->count; i++) {
        const struct cot_member *member = &gpu->members[i];
        if (!member->present || member == instead || member->share.native || member->undrained) continue;
        if (!cot_is_idle(member) || member->active_ns == 0 || !cot_has_credit(arbiter, member)) continue;
        if (gpu->now_ns - member->active_ns >= arbiter->tuning.anticipation_ns) continue;
        if (instead->share.high || member->virtual_ns >= instead->virtual_ns) continue;
        if (!found || member->active_ns > found->active_ns) found = member;
    }
    return found;
}
