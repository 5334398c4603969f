/* Orders: the state of a container's lease, and the terms of its turn. */
#include "internal.h"

/* A high-priority container that used up its cap comes back at a known time. */
static bool may_come(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *high) {
    return cot_has_credit(arbiter, high) ||
           cot_credit_restored_at(arbiter, gpu, high) <= gpu->now_ns + cot_high_lead(arbiter);
}

uint64_t cot_depth_for(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *member) {
    if (member->lent) return arbiter->tuning.high_depth_ns;
    for (uint32_t i = 0; i < gpu->count && !member->share.high; i++) {
        const struct cot_member *other = &gpu->members[i];
        if (other->present && other->share.high && other != member && may_come(arbiter, gpu, other))
            return arbiter->tuning.high_depth_ns;
    }
    return arbiter->tuning.depth_ns;
}

static void set_order(struct cot_member *member, uint32_t state, const struct cot_lease_terms *terms) {
    member->state = state;
    member->epoch += 2;
    member->terms = *terms;
    member->dirty = true;
}

/* What the processes' work in flight counts at the gate, beside what was used: that of a stopped process stays. */
static uint64_t counted(const struct cot_member *member) {
    return member->digest.used_ns + (member->undrained ? member->digest.pending_ns : 0);
}

/* A turn while others wait: a fixed budget. */
void cot_order_turn(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member, uint64_t budget_ns) {
    set_order(member, COT_LEASE_GRANTED,
              &(struct cot_lease_terms){
                  .limit_ns = counted(member) + budget_ns,
                  .at_ns = gpu->now_ns,
                  .rate_ppm = 0,
                  .depth_ns = cot_depth_for(arbiter, gpu, member),
              });
}

/* No other container wants the GPU: the limit grows with the container's own credit. A debt delays that growth. */
void cot_order_alone(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member) {
    struct cot_lease_terms terms = {
        .limit_ns = counted(member),
        .at_ns = gpu->now_ns,
        .rate_ppm = member->share.limit_ppm,
        .depth_ns = cot_depth_for(arbiter, gpu, member),
    };
    if (!cot_limited(member)) terms.limit_ns += member->digest.pending_ns + 2 * arbiter->tuning.depth_ns;
    else if (member->credit_ns >= 0) terms.limit_ns += (uint64_t)member->credit_ns;
    else terms.at_ns += (uint64_t)-member->credit_ns * COT_PPM / member->share.limit_ppm;
    set_order(member, COT_LEASE_GRANTED, &terms);
}

void cot_order_state(struct cot_member *member, uint32_t state) {
    if (member->state == state) return;
    set_order(member, state, &member->terms);
    if (state != COT_LEASE_FREE) member->digested_since_close = false;
}

void cot_order_catch_up(struct cot_member *member, uint64_t launches_limit) {
    if (member->state == COT_LEASE_CATCH_UP && member->launches_limit == launches_limit) return;
    member->launches_limit = launches_limit;
    set_order(member, COT_LEASE_CATCH_UP, &member->terms);
    member->digested_since_close = false;
}

bool cot_arbiter_publish(struct cot_arbiter *arbiter, uint32_t at, uint32_t index, struct cot_lease_order *order) {
    struct cot_member *member = &arbiter->gpus[at].members[index];
    member->dirty = false;
    if (member->state == COT_LEASE_GRANTED || member->state == COT_LEASE_FREE) {
        cot_lease_order_grant(order, member->epoch, member->state, &member->terms);
        return true;
    }
    if (member->state == COT_LEASE_CATCH_UP) {
        cot_lease_order_catch_up(order, member->epoch, member->launches_limit);
        return true;
    }
    cot_lease_order_close(order, member->epoch);
    return false;
}

struct cot_lease_record cot_arbiter_record(const struct cot_arbiter *arbiter, uint32_t at, uint32_t index,
                                           uint64_t now_ns) {
    const struct cot_member *member = &arbiter->gpus[at].members[index];
    bool limits = cot_limited(member) && !member->share.native;
    struct cot_lease_record record = {
        .at_ns = now_ns,
        .limit_ns = member->digest.used_ns,
        .charged_ns = member->charged_ns,
        .contended_ns = member->contended_ns,
        .rate_ppm = limits ? member->share.limit_ppm : 0,
        .used_ns = member->digest.used_ns,
        .epoch = member->epoch,
    };
    if (!limits) return record;
    if (member->credit_ns >= 0) {
        record.limit_ns += cot_smaller((uint64_t)member->credit_ns, arbiter->tuning.quantum_ns);
    } else record.at_ns += (uint64_t)-member->credit_ns * COT_PPM / member->share.limit_ppm;
    return record;
}
