/* Shared by the arbiter's own files. */
#pragma once

#include "arbiter.h"

static inline struct cot_member *cot_holder(struct cot_gpu *gpu) {
    return gpu->phase == COT_PHASE_IDLE ? NULL : &gpu->members[gpu->holder];
}
static inline bool cot_limited(const struct cot_member *member) {
    return member->share.limit_ppm < COT_PPM;
}
static inline bool cot_is_idle(const struct cot_member *member) {
    return member->digest.inflight == 0 && member->digest.waiting == 0;
}
static inline uint64_t cot_larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
static inline uint64_t cot_smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t *cot_virtual_of(struct cot_gpu *gpu, const struct cot_member *member) {
    return member->share.high ? &gpu->high_virtual_ns : &gpu->virtual_ns;
}
static inline void cot_note_virtual(struct cot_gpu *gpu, const struct cot_member *member) {
    uint64_t *latest = cot_virtual_of(gpu, member);
    *latest = cot_larger(*latest, member->virtual_ns);
}

/* credit.c: credit, virtual time, charges */
void cot_advance(struct cot_arbiter *arbiter, struct cot_gpu *gpu, uint64_t now_ns);
void cot_cap_credits(struct cot_arbiter *arbiter, struct cot_gpu *gpu);
void cot_charge(struct cot_member *member, uint64_t ns);
void cot_settle(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu, struct cot_member *member);
uint64_t cot_longest_of(const struct cot_gpu *gpu, const struct cot_member *member);
uint64_t cot_start_credit(const struct cot_arbiter *arbiter, const struct cot_member *member);
/* Credit to begin a turn, and when it will have that. */
bool cot_has_credit(const struct cot_arbiter *arbiter, const struct cot_member *member);
uint64_t cot_credit_restored_at(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu,
                                const struct cot_member *member);
/* So long before a high-priority container has credit again the others queue little. */
static inline uint64_t cot_high_lead(const struct cot_arbiter *arbiter) {
    return arbiter->tuning.depth_ns + 2000000;
}

/* orders.c: orders for a member */
/* How much work it may have in flight. */
uint64_t cot_depth_for(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *member);
void cot_order_turn(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member, uint64_t budget_ns);
void cot_order_alone(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member);
void cot_order_state(struct cot_member *member, uint32_t state);
void cot_order_catch_up(struct cot_member *member, uint64_t launches_limit);

/* multi_gpu.c: gangs */
typedef void (*cot_visit)(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member);
/* To be called after a member joined or left, or changed its gang. */
void cot_count_gpus(struct cot_arbiter *arbiter, uint32_t gang);
/* The gang's member on that GPU whose launches are controlled, or NULL. */
struct cot_member *cot_sibling(struct cot_arbiter *arbiter, uint32_t at, const struct cot_member *member);
bool cot_holds(const struct cot_arbiter *arbiter, uint32_t at, const struct cot_member *member);
bool cot_wants(struct cot_arbiter *arbiter, const struct cot_member *member);
/* The bound that a launch of the gang has waited for; UINT64_MAX: none has. */
uint64_t cot_overdue_since(struct cot_arbiter *arbiter, const struct cot_member *member, uint64_t now_ns);
/* The turn began at the bound of a wait, and not all launches that waited were made. */
static inline bool cot_relief_stands(const struct cot_member *holder) {
    return holder->relieved && holder->digest.waiting && holder->bound_ns && holder->bound_ns <= holder->granted_ns;
}
/* Such a turn lasts for a quantum at most. */
bool cot_is_relief_unused(struct cot_arbiter *arbiter, const struct cot_member *holder, uint64_t now_ns);
/* Whether the gang has all GPUs that it wants. */
bool cot_has_all(struct cot_arbiter *arbiter, const struct cot_member *member);
bool cot_sibling_holds(struct cot_arbiter *arbiter, const struct cot_member *member);
bool cot_gang_is_limited(struct cot_arbiter *arbiter, const struct cot_member *member);
/* Visits the member's GPU, or each GPU of its gang with the member there. */
void cot_each_gpu(struct cot_arbiter *arbiter, struct cot_member *member, cot_visit visit);
void cot_limit_catch_up(struct cot_arbiter *arbiter, const struct cot_member *holder);
bool cot_gang_drained(struct cot_arbiter *arbiter, const struct cot_member *holder);

/* links.c: containers that belong together */
void cot_update_links(struct cot_arbiter *arbiter, uint64_t now_ns);
void cot_follow_mates(struct cot_gpu *gpu);
void cot_spare_launches(struct cot_arbiter *arbiter, uint64_t now_ns);

/* selection.c: who is next */
struct cot_round {
    struct cot_decision *decision;
    bool progressed; /* something changed that another GPU may depend on */
};
static inline void cot_wake_by(struct cot_round *round, uint64_t at_ns) {
    round->decision->next_ns = cot_smaller(round->decision->next_ns, at_ns);
}
static inline uint32_t cot_index_of(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu) {
    return (uint32_t)(gpu - arbiter->gpus);
}
#define COT_POLL_NS 1000000ull /* polling interval for a holder that others wait for, in case its ring is lost */
bool cot_precedes(struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *a,
                  const struct cot_member *b);
/* The next container for the GPU, of those that want it and may have it, without `except`; NULL if there is none. */
struct cot_member *cot_next_member(struct cot_arbiter *arbiter, struct cot_gpu *gpu, const struct cot_member *except,
                                   struct cot_round *round);
bool cot_may_keep_claim(struct cot_arbiter *arbiter, const struct cot_gpu *gpu, const struct cot_member *member,
                        struct cot_round *round);
/* Anticipation: the container that would be next if it were not idle for a moment. */
const struct cot_member *cot_anticipated_member(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu,
                                                const struct cot_member *instead);
