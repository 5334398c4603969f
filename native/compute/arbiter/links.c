/* Finds containers whose kernels wait for one another, such as the ranks of a job with one pod per rank. The sign: a
 * kernel of one container outlasts its prediction and ends just after another container launched, having waited.
 * Containers on different GPUs are then linked for a while, that is, get their turns together (multi_gpu.c); two on one
 * GPU become mates, which take turns launch by launch. A tenant can fake the sign, so a link that holds a container
 * back is broken. */
#include "internal.h"

#define NO_GANG UINT32_MAX        /* nor the number of a container */
#define SOON_NS 5000000ull        /* a kernel that ends so soon after a launch may have waited for it */
#define ENOUGH 3u                 /* a link needs so many more kernels with the sign than without it */
#define LINK_NS 30000000000ull    /* how long a link lasts unless the sign is seen again */
#define MOST_HELD_NS 100000000ull /* a link that holds a container back for longer is broken ... */
#define APART_NS 10000000000ull   /* ... and the container is not linked again for so long */
#define STUCK_SLACK_NS 10000000ull
#define MOST_SPARED_NS 100000000ull /* what longer launches take is predicted too badly to be spared */
#define MOST_DEBT_NS 100000000ll    /* a member deeper in debt gets no more launches ahead of its turn for its mate */

/* Moves the members of gang `from` to gang `to`; NO_GANG: each to the gang of its own container. A gang has at most one
 * member on each GPU. */
static void set_gang(struct cot_arbiter *arbiter, uint32_t from, uint32_t to, uint64_t until_ns) {
    struct cot_member *changed[COT_ARBITER_GPUS] = {NULL};
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint32_t i = 0; i < arbiter->gpus[at].count; i++) {
            struct cot_member *member = &arbiter->gpus[at].members[i];
            if (member->present && member->gang == from) changed[at] = member;
        }
        if (!changed[at]) continue;
        changed[at]->gang = to == NO_GANG ? changed[at]->container : to;
        changed[at]->linked_until_ns = until_ns;
        changed[at]->linked_votes = 0;
    }
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        if (changed[at]) cot_count_gpus(arbiter, changed[at]->gang);
    }
}

static bool may_link(struct cot_arbiter *arbiter, const struct cot_member *a, const struct cot_member *b) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        if (cot_sibling(arbiter, at, a) && cot_sibling(arbiter, at, b)) return false;
    }
    return true;
}

static void link_gangs(struct cot_arbiter *arbiter, const struct cot_member *a, const struct cot_member *b,
                       uint64_t until_ns) {
    uint32_t to = a->gang, from = b->gang;
    set_gang(arbiter, from, to, until_ns);
    set_gang(arbiter, to, to, until_ns);
}

static bool on_gpu(const struct cot_arbiter *arbiter, uint32_t at, const struct cot_member *member) {
    return member >= arbiter->gpus[at].members && member < arbiter->gpus[at].members + COT_ARBITER_MEMBERS;
}

/* Of other gangs, the member that launched last, having waited, before a kernel of `member` ended late; or the one that
 * was found for an earlier kernel, if it launched soon enough before, too. */
static struct cot_member *just_launched(struct cot_arbiter *arbiter, const struct cot_member *member) {
    struct cot_member *found = NULL;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint32_t i = 0; i < arbiter->gpus[at].count; i++) {
            struct cot_member *other = &arbiter->gpus[at].members[i];
            if (!other->present || other->went_ns + SOON_NS < member->outlasted_ns) continue;
            if (other->gang == member->gang || member->outlasted_ns < other->apart_until_ns) continue;
            bool here = on_gpu(arbiter, at, member);
            if (!here && !may_link(arbiter, member, other)) continue;
            if (here && (member->multi_gpu || other->multi_gpu)) continue;
            if (other->container == member->linked_with) return other;
            if (!found || other->went_ns > found->went_ns) found = other;
        }
    }
    return found;
}

static void find_link(struct cot_arbiter *arbiter, struct cot_member *member, uint64_t now_ns) {
    struct cot_member *other = just_launched(arbiter, member);
    member->outlasted_ns = 0;
    if (now_ns < member->apart_until_ns) return;
    if (other && other->container == member->linked_with) {
        member->linked_votes++;
    } else if (member->linked_votes > 0) {
        member->linked_votes--;
    } else if (other) {
        member->linked_with = other->container;
        member->linked_votes = 1;
    }
    if (!other || member->linked_votes < ENOUGH) return;
    if (may_link(arbiter, member, other)) {
        link_gangs(arbiter, member, other, now_ns + LINK_NS);
        return;
    }
    /* On one GPU the end of long work coincides with launches of others by chance, but not both ways. */
    if (other->linked_with != member->container || other->linked_votes < ENOUGH) return;
    member->mate = other->container;
    other->mate = member->container;
    if (now_ns >= member->mate_until_ns || now_ns >= other->mate_until_ns) {
        member->matched_launches = member->digest.launches - member->digest.inflight;
        other->matched_launches = other->digest.launches;
    }
    member->mate_until_ns = other->mate_until_ns = now_ns + LINK_NS;
}

void cot_update_links(struct cot_arbiter *arbiter, uint64_t now_ns) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint32_t i = 0; i < arbiter->gpus[at].count; i++) {
            struct cot_member *member = &arbiter->gpus[at].members[i];
            if (member->present && member->outlasted_ns) find_link(arbiter, member, now_ns);
            if (!member->present || member->linked_until_ns == 0) continue;
            bool held_back = member->held_back_ns && now_ns - member->held_back_ns > MOST_HELD_NS;
            if (held_back) member->apart_until_ns = now_ns + APART_NS;
            if (held_back || now_ns >= member->linked_until_ns) set_gang(arbiter, member->gang, NO_GANG, 0);
        }
    }
}

/* Nothing of its work has ended for so long that it may wait for another container's launch. */
static bool is_stuck(const struct cot_member *member, uint64_t now_ns) {
    uint64_t takes = 2 * member->digest.pending_ns + STUCK_SLACK_NS;
    return member->present && member->digest.inflight && now_ns > member->ended_ns + takes;
}

/* The first member with stuck work that is not of `container`. */
static const struct cot_member *find_stuck(const struct cot_arbiter *arbiter, uint32_t container, uint64_t now_ns) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint32_t i = 0; i < arbiter->gpus[at].count; i++) {
            const struct cot_member *member = &arbiter->gpus[at].members[i];
            if (member->container != container && is_stuck(member, now_ns)) return member;
        }
    }
    return NULL;
}

/* Kernels that wait are charged for the time. If what they wait for waited for a debt of the same kind, the debts of
 * both would grow without end. So a container in debt has a turn at once, for what it has to spare, while another one's
 * work is stuck. With work of its own in flight on that GPU the gate cannot tell how long its launches take. */
void cot_spare_launches(struct cot_arbiter *arbiter, uint64_t now_ns) {
    const struct cot_member *stuck = find_stuck(arbiter, NO_GANG, now_ns);
    if (!stuck) return;
    bool several = find_stuck(arbiter, stuck->container, now_ns) != NULL;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint32_t i = 0; i < arbiter->gpus[at].count; i++) {
            struct cot_member *member = &arbiter->gpus[at].members[i];
            if (!member->present || !member->digest.waiting || member->digest.inflight) continue;
            if (member->bound_ns <= now_ns || cot_has_credit(arbiter, member)) continue;
            if (member->spare_ns < (int64_t)cot_start_credit(arbiter, member)) continue;
            if (cot_longest_of(&arbiter->gpus[at], member) > MOST_SPARED_NS) continue;
            if (member->container == stuck->container && !several) continue;
            member->bound_ns = now_ns;
            member->bound_launches = member->digest.launches;
            member->bound_waiting = 1;
            member->spared = true;
        }
    }
}

static struct cot_member *mate_of(struct cot_gpu *gpu, const struct cot_member *member) {
    if (gpu->now_ns >= member->mate_until_ns) return NULL;
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *other = &gpu->members[i];
        if (other->present && other->container == member->mate && other->mate == member->container) return other;
    }
    return NULL;
}

/* Lets a member launch for its mate, whose kernel in flight may wait for that: as many launches as the mate is ahead,
 * whatever the member's credit, up to a debt. They are charged as work that shares the GPU. */
void cot_follow_mates(struct cot_gpu *gpu) {
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (!member->present || !member->digest.waiting || member->credit_ns < -MOST_DEBT_NS) continue;
        if (member->state != COT_LEASE_CLOSED && member->state != COT_LEASE_CATCH_UP) continue;
        if (gpu->phase != COT_PHASE_IDLE && i == gpu->holder) continue;
        const struct cot_member *mate = mate_of(gpu, member);
        if (!mate || !mate->digest.inflight) continue;
        uint64_t ahead = mate->digest.launches - mate->matched_launches,
                 made = member->digest.launches - member->matched_launches;
        if ((int64_t)(ahead - made) <= 0) continue;
        cot_order_catch_up(member, member->matched_launches + ahead);
        member->undrained = true;
    }
}
