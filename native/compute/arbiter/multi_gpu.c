/* Members whose work may wait for one another's: those of a container with several GPUs, and of containers that were
 * found to belong together (links.c). Such a gang gets all GPUs that it wants at the same time: it claims them
 * together, holds each unused until the last one is there, and releases them together. As a claim is made for all or
 * for none, no two gangs wait for each other. */
#include "internal.h"

static struct cot_member *of_gang(struct cot_arbiter *arbiter, uint32_t at, uint32_t gang) {
    struct cot_gpu *gpu = &arbiter->gpus[at];
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (member->present && member->gang == gang) return member;
    }
    return NULL;
}

struct cot_member *cot_sibling(struct cot_arbiter *arbiter, uint32_t at, const struct cot_member *member) {
    struct cot_member *there = of_gang(arbiter, at, member->gang);
    return there && !there->share.native ? there : NULL;
}

bool cot_holds(const struct cot_arbiter *arbiter, uint32_t at, const struct cot_member *member) {
    const struct cot_gpu *gpu = &arbiter->gpus[at];
    return gpu->phase == COT_PHASE_HELD && &gpu->members[gpu->holder] == member;
}

void cot_count_gpus(struct cot_arbiter *arbiter, uint32_t gang) {
    uint32_t gpus = 0;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) gpus += of_gang(arbiter, at, gang) != NULL;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_member *there = of_gang(arbiter, at, gang);
        if (there) there->multi_gpu = gpus > 1;
    }
}

/* A container that wants one of its GPUs wants all. Another container of its gang must want its own. */
bool cot_wants(struct cot_arbiter *arbiter, const struct cot_member *member) {
    if (member->share.native) return false;
    bool wants = member->digest.waiting > 0;
    for (uint32_t at = 0; member->multi_gpu && !wants && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, member);
        wants = there && there->container == member->container && there->digest.waiting > 0;
    }
    return wants;
}

uint64_t cot_overdue_since(struct cot_arbiter *arbiter, const struct cot_member *member, uint64_t now_ns) {
    uint64_t least = member->bound_ns ? member->bound_ns : UINT64_MAX;
    for (uint32_t at = 0; member->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, member);
        if (there && there->bound_ns) least = cot_smaller(least, there->bound_ns);
    }
    return least <= now_ns ? least : UINT64_MAX;
}

static bool is_unused(const struct cot_arbiter *arbiter, const struct cot_member *holder, uint64_t now_ns) {
    return cot_relief_stands(holder) && now_ns - holder->granted_ns < arbiter->tuning.quantum_ns;
}

bool cot_is_relief_unused(struct cot_arbiter *arbiter, const struct cot_member *holder, uint64_t now_ns) {
    bool unused = is_unused(arbiter, holder, now_ns);
    for (uint32_t at = 0; holder->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, holder);
        unused = unused || (there && is_unused(arbiter, there, now_ns));
    }
    return unused;
}

bool cot_has_all(struct cot_arbiter *arbiter, const struct cot_member *member) {
    for (uint32_t at = 0; member->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, member);
        if (there && cot_wants(arbiter, there) && !cot_holds(arbiter, at, there)) return false;
    }
    return true;
}

bool cot_sibling_holds(struct cot_arbiter *arbiter, const struct cot_member *member) {
    for (uint32_t at = 0; member->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, member);
        if (there && there != member && cot_holds(arbiter, at, there)) return true;
    }
    return false;
}

bool cot_gang_is_limited(struct cot_arbiter *arbiter, const struct cot_member *member) {
    for (uint32_t at = 0; member->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, member);
        if (there && cot_limited(there)) return true;
    }
    return false;
}

void cot_each_gpu(struct cot_arbiter *arbiter, struct cot_member *member, cot_visit visit) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        bool here = member >= gpu->members && member < gpu->members + COT_ARBITER_MEMBERS;
        struct cot_member *there = member->multi_gpu ? cot_sibling(arbiter, at, member) : here ? member : NULL;
        if (there) visit(arbiter, gpu, there);
    }
}

/* ---- the end of a turn ---- */

/* A turn may end between launches that belong together: as many as one member has made, the others may make. */
void cot_limit_catch_up(struct cot_arbiter *arbiter, const struct cot_member *holder) {
    int64_t most = 0;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, holder);
        if (!there || there->state != COT_LEASE_CATCH_UP) continue;
        int64_t made = (int64_t)(there->digest.launches - there->turn_launches); /* one may have been taken back */
        if (made > most) most = made;
    }
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_member *there = cot_sibling(arbiter, at, holder);
        if (there && there->state == COT_LEASE_CATCH_UP)
            cot_order_catch_up(there, there->turn_launches + (uint64_t)most);
    }
}

bool cot_gang_drained(struct cot_arbiter *arbiter, const struct cot_member *holder) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = cot_sibling(arbiter, at, holder);
        if (there && (!there->digested_since_close || there->digest.inflight)) return false;
    }
    return true;
}
