/* Containers with several GPUs. Their programs may need all of them at once (kernels of a collective wait for one
 * another), so they get them together: acquired in the order of GPUs, held unused until the last one is there, released
 * together. A single order of acquisition prevents deadlocks. */
#include "internal.h"

static struct cot_member *on_gpu(struct cot_arbiter *arbiter, uint32_t at, uint32_t container) {
    struct cot_gpu *gpu = &arbiter->gpus[at];
    for (uint32_t i = 0; i < gpu->count; i++) {
        struct cot_member *member = &gpu->members[i];
        if (member->present && member->container == container) return member;
    }
    return NULL;
}

static bool holds(struct cot_arbiter *arbiter, uint32_t at, const struct cot_member *member) {
    const struct cot_gpu *gpu = &arbiter->gpus[at];
    return gpu->phase == COT_PHASE_HELD && &gpu->members[gpu->holder] == member;
}

/* To be called after a container joined or left a GPU. */
void cot_count_gpus(struct cot_arbiter *arbiter, uint32_t container) {
    uint32_t gpus = 0;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) gpus += on_gpu(arbiter, at, container) != NULL;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_member *there = on_gpu(arbiter, at, container);
        if (there) there->multi_gpu = gpus > 1;
    }
}

/* A container that wants one of its GPUs wants all. */
bool cot_container_wants(struct cot_arbiter *arbiter, uint32_t gpu, const struct cot_member *member) {
    if (member->share.native) return false;
    if (member->digest.waiting > 0) return true;
    if (!member->multi_gpu) return false;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_member *there = at == gpu ? NULL : on_gpu(arbiter, at, member->container);
        if (there && !there->share.native && there->digest.waiting > 0) return true;
    }
    return false;
}

uint64_t cot_overdue_since(struct cot_arbiter *arbiter, const struct cot_member *member, uint64_t now_ns) {
    uint64_t least = member->bound_ns ? member->bound_ns : UINT64_MAX;
    for (uint32_t at = 0; member->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = on_gpu(arbiter, at, member->container);
        if (there && !there->share.native && there->bound_ns) least = cot_smaller(least, there->bound_ns);
    }
    return least <= now_ns ? least : UINT64_MAX;
}

static bool is_unused(const struct cot_arbiter *arbiter, const struct cot_member *holder, uint64_t now_ns) {
    return holder->relieved && holder->digest.launches == holder->relieved_launches && holder->digest.waiting &&
           now_ns - holder->granted_ns < arbiter->tuning.quantum_ns;
}

bool cot_is_relief_unused(struct cot_arbiter *arbiter, const struct cot_member *holder, uint64_t now_ns) {
    bool unused = is_unused(arbiter, holder, now_ns);
    for (uint32_t at = 0; holder->multi_gpu && at < COT_ARBITER_GPUS; at++) {
        const struct cot_member *there = on_gpu(arbiter, at, holder->container);
        unused = unused || (there && !there->share.native && is_unused(arbiter, there, now_ns));
    }
    return unused;
}

bool cot_may_acquire(struct cot_arbiter *arbiter, uint32_t gpu, const struct cot_member *member) {
    if (!member->multi_gpu) return true;
    for (uint32_t at = 0; at < gpu; at++) {
        struct cot_member *there = on_gpu(arbiter, at, member->container);
        if (there && !there->share.native && !holds(arbiter, at, there)) return false;
    }
    return true;
}

/* Whether all its GPUs are acquired. */
bool cot_has_all(struct cot_arbiter *arbiter, const struct cot_member *member) {
    return cot_may_acquire(arbiter, COT_ARBITER_GPUS, member);
}

void cot_each_gpu(struct cot_arbiter *arbiter, struct cot_member *member, cot_visit visit) {
    if (!member->multi_gpu) {
        for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
            struct cot_gpu *gpu = &arbiter->gpus[at];
            if (member >= gpu->members && member < gpu->members + COT_ARBITER_MEMBERS) visit(arbiter, gpu, member);
        }
        return;
    }
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_member *there = on_gpu(arbiter, at, member->container);
        if (there && !there->share.native) visit(arbiter, &arbiter->gpus[at], there);
    }
}
