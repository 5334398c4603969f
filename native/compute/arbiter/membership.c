/* Containers join and leave; a restarted arbiter restores their records; shares change at run time. */
#include "internal.h"

void cot_arbiter_init(struct cot_arbiter *arbiter, const struct cot_tuning *tuning) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        struct cot_gpu *gpu = &arbiter->gpus[at];
        memset(gpu, 0, sizeof *gpu - (COT_ARBITER_MEMBERS - gpu->count) * sizeof *gpu->members);
    }
    arbiter->tuning = *tuning;
}

static const struct cot_share nothing = {.guarantee_ppm = 1, .limit_ppm = 1};

int cot_arbiter_join(struct cot_arbiter *arbiter, uint32_t at, uint32_t container, const struct cot_digest *digest,
                     uint64_t now_ns) {
    struct cot_gpu *gpu = &arbiter->gpus[at];
    uint32_t index = 0;
    while (index < COT_ARBITER_MEMBERS && gpu->members[index].present) index++;
    if (index == COT_ARBITER_MEMBERS) return -1;
    cot_advance(arbiter, gpu, now_ns);
    if (gpu->now_ns == 0) gpu->now_ns = now_ns;
    if (index >= gpu->count) gpu->count = index + 1;
    struct cot_member *member = &gpu->members[index];
    *member = (struct cot_member){
        .present = true,
        .container = container,
        .gang = container,
        .share = nothing,
        .digest = *digest,
        .virtual_ns = gpu->virtual_ns,
        /* Above every epoch of an earlier arbiter: no order changes a thousand times in a millisecond. */
        .epoch = now_ns / 1000 * 2,
        .dirty = true,
    };
    cot_count_gpus(arbiter, container);
    return (int)index;
}

void cot_arbiter_adopt(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_lease_record *record,
                       uint64_t now_ns) {
    struct cot_gpu *gpu = &arbiter->gpus[at];
    struct cot_member *member = &gpu->members[index];
    if (member->epoch <= record->epoch) member->epoch = record->epoch + 2;
    member->charged_ns = record->charged_ns;
    member->contended_ns = record->contended_ns;
    uint64_t used = member->digest.used_ns;
    if (used >= record->used_ns) member->charged_ns += cot_smaller(used - record->used_ns, 1ull << 50);
    else member->faults += 1;
    if (record->rate_ppm != 0 && cot_limited(member)) {
        uint64_t limit = cot_lease_limit_at(record->limit_ns, record->at_ns, record->rate_ppm, now_ns);
        int64_t most = (int64_t)arbiter->tuning.quantum_ns * 2, credit = most;
        if (limit < used + (uint64_t)most) credit = (int64_t)(limit - used);
        if (record->at_ns > now_ns && limit >= used)
            credit -= (int64_t)((record->at_ns - now_ns) / 1000 * record->rate_ppm / 1000);
        member->credit_ns = credit < -100 * most ? -100 * most : credit;
    }
    /* A wait does not begin anew: it may have reached its bound before. */
    if (member->digest.waiting) {
        member->bound_ns = now_ns;
        member->bound_launches = member->digest.launches;
        member->bound_waiting = 1;
    }
    if (member->digest.inflight) {
        gpu->draining_until_ns = now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns;
    }
}

void cot_arbiter_leave(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, uint64_t now_ns) {
    struct cot_gpu *gpu = &arbiter->gpus[at];
    struct cot_member *member = &gpu->members[index];
    cot_advance(arbiter, gpu, now_ns);
    if (cot_holder(gpu) == member) gpu->phase = COT_PHASE_IDLE;
    member->present = false;
    member->dirty = false;
    cot_count_gpus(arbiter, member->gang);
}

void cot_arbiter_set_share(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, const struct cot_share *share,
                           uint64_t now_ns) {
    struct cot_gpu *gpu = &arbiter->gpus[at];
    struct cot_member *member = &gpu->members[index];
    cot_advance(arbiter, gpu, now_ns);
    bool first = member->share.limit_ppm == nothing.limit_ppm && member->share.guarantee_ppm == nothing.guarantee_ppm;
    if (member->share.guarantee_ppm == share->guarantee_ppm && member->share.limit_ppm == share->limit_ppm &&
        member->share.high == share->high && member->share.native == share->native) {
        return;
    }
    member->share = *share;
    if (member->share.guarantee_ppm == 0) member->share.guarantee_ppm = 1;
    if (member->share.limit_ppm == 0) member->share.limit_ppm = 1;
    member->virtual_ns = *cot_virtual_of(gpu, member);
    member->out_of_credit = false;
    int64_t quantum = (int64_t)arbiter->tuning.quantum_ns, start = (int64_t)cot_start_credit(arbiter, member);
    if (first || !cot_limited(member)) member->credit_ns = start;
    /* A changed share takes effect soon: neither credit nor debt of the old share is carried far into the new one. */
    if (member->credit_ns > start) member->credit_ns = start;
    if (member->credit_ns < -quantum / 2) member->credit_ns = -quantum / 2;
    if (share->native) {
        if (cot_holder(gpu) == member) gpu->phase = COT_PHASE_IDLE;
        cot_order_state(member, COT_LEASE_FREE);
    } else if (member->state == COT_LEASE_FREE) {
        /* Work that was launched without a gate drains before any container gets the GPU. */
        cot_order_state(member, COT_LEASE_CLOSED);
        gpu->draining_until_ns = now_ns + arbiter->tuning.overrun_quanta * arbiter->tuning.quantum_ns;
    } else if (cot_holder(gpu) == member && gpu->phase == COT_PHASE_HELD) {
        member->terms.rate_ppm = 0; /* its terms have the old share: publish new ones */
    }
}
