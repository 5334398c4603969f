/* Shared by the gate's files. */
#pragma once

#include "gate.h"

#define LOAD(read_word) __atomic_load_n(&(read_word), __ATOMIC_RELAXED)

/* ---- duration_model.c ---- */

struct cot_predicted {
    uint64_t late_ns, mean_ns; /* 0: nothing is known */
    bool measured;             /* of launches of this kind */
};
struct cot_predicted cot_predict_duration(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns);
/* A launch of a kind that was not measured yet was made. */
void cot_note_launched(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns);
void cot_record_duration(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t length_ns,
                         uint32_t launches, uint64_t now_ns);

/* ---- container.c ---- */

struct cot_totals {
    uint64_t used, pending, inflight, launches;
    uint64_t waiting; /* of others than this process */
    uint64_t next_ns; /* by then a launch in flight should have ended */
};
struct cot_totals cot_totals_of(const struct cot_gate *gate);
void cot_watch_others(struct cot_gate *gate, const struct cot_totals *totals, uint64_t now_ns);
bool cot_is_in_use(const struct cot_gate *gate, const struct cot_totals *totals, uint64_t now_ns);
uint32_t cot_made_before(const struct cot_gate *gate);
bool cot_is_behind(const struct cot_gate *gate);
bool cot_count_made(struct cot_gate *gate, bool begins);
bool cot_wake_others(struct cot_gate *gate);
bool cot_is_arbiter_away(struct cot_gate *gate, uint64_t now_ns, uint64_t rung_ns, uint64_t *until_ns);

/* ---- usage.c ---- */

void cot_use_until(struct cot_gate *gate, uint64_t until_ns, uint64_t gap_ns, uint64_t instead_ns);
void cot_begin_use(struct cot_gate *gate, uint64_t now_ns);

static inline void cot_withdraw(struct cot_gate *gate, uint64_t predicted_ns) {
    __atomic_fetch_sub(&gate->row->pending_ns, predicted_ns, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&gate->row->inflight, 1, __ATOMIC_SEQ_CST);
}
static inline bool cot_ring(struct cot_gate *gate) {
    __atomic_fetch_add(&gate->reports->bell, 1, __ATOMIC_RELEASE);
    return true;
}
