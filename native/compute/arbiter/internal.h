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

/* credit.c: credit, virtual time, charges */
void cot_advance(struct cot_arbiter *arbiter, struct cot_gpu *gpu, uint64_t now_ns);
void cot_cap_credits(struct cot_arbiter *arbiter, struct cot_gpu *gpu);
void cot_charge(struct cot_member *member, uint64_t ns);
void cot_settle(const struct cot_arbiter *arbiter, const struct cot_gpu *gpu, struct cot_member *member);
uint64_t cot_start_credit(const struct cot_arbiter *arbiter, const struct cot_member *member);

/* orders.c: orders for a member */
void cot_order_turn(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member, uint64_t budget_ns);
void cot_order_alone(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member);
void cot_order_state(struct cot_member *member, uint32_t state);

/* multi_gpu.c: containers with several GPUs */
typedef void (*cot_visit)(struct cot_arbiter *arbiter, struct cot_gpu *gpu, struct cot_member *member);
void cot_count_gpus(struct cot_arbiter *arbiter, uint32_t container);
bool cot_container_wants(struct cot_arbiter *arbiter, uint32_t gpu, const struct cot_member *member);
/* The bound that a launch of the container has waited for; UINT64_MAX: none has. */
uint64_t cot_overdue_since(struct cot_arbiter *arbiter, const struct cot_member *member, uint64_t now_ns);
/* A turn that began at the bound of a wait lasts until a launch was made, for a quantum at most. */
bool cot_is_relief_unused(struct cot_arbiter *arbiter, const struct cot_member *holder, uint64_t now_ns);
bool cot_may_acquire(struct cot_arbiter *arbiter, uint32_t gpu, const struct cot_member *member);
bool cot_has_all(struct cot_arbiter *arbiter, const struct cot_member *member);
/* Visits the member's GPU, or each GPU of a multi-GPU container with its member there. */
void cot_each_gpu(struct cot_arbiter *arbiter, struct cot_member *member, cot_visit visit);
