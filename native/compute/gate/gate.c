/* The gate's decisions and the accounts of the process. */
#include "internal.h"

#define LEAST_START_NS 50000ull
#define LONG_WAIT_NS 20000000ull
#define LOOK_AGAIN_NS 1000000ull    /* polling interval for the process's own work */
#define DEPTH_SLACK_NS 100000000ull /* more for work that may take longer than predicted: it is overdue before */
#define MOST_SETTLED 4u
#define BOUND_SLACK_NS 5000000ull /* a wait that is as long as it should be ends by itself before its bound */
#define MOST_DEBT_NS 100000000ull /* of launches that go for work in flight */
#define STUCK_SLACK_NS 1000000ull /* how much longer than predicted all in flight may take ... */
#define TURN_SLACK_NS 20000000ull /* ... and beside work of other containers */

const struct cot_gate_tuning cot_default_gate = {
    .bridge_ns = 300000,
    .start_ns = 20000000,
    .most_start_ns = 2000000,
    .batch_ns = 1000000,
    .unknown_ns = 0,
};

void cot_gate_attach(struct cot_gate *gate, const struct cot_gate_tuning *tuning, void *page, uint32_t slot_count,
                     uint32_t gpu_count, uint32_t slot, uint32_t gpu, uint64_t stamp) {
    memset(gate, 0, sizeof *gate);
    gate->tuning = *tuning;
    gate->header = (struct cot_lease_page_header *)page;
    gate->order = cot_lease_order_at(page, gpu);
    gate->reports = cot_lease_reports_at(page);
    gate->shared = &cot_lease_order_at(page, gpu)->shared;
    gate->row = cot_lease_row_at(page, gpu_count, slot, gpu);
    gate->slot_count = slot_count;
    gate->gpu_count = gpu_count;
    gate->gpu = gpu;
    gate->slot = slot;
    gate->made = cot_made_before(gate);
    struct cot_lease_row *row = gate->row;
    uint64_t *const words[] = {&row->waiting, &row->inflight, &row->pending_ns, &row->longest_ns, &row->throttled_ns};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) __atomic_store_n(words[i], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->stamp, stamp, __ATOMIC_RELEASE);
    uint32_t used = LOAD(gate->reports->slots_used);
    while (used <= slot && !__atomic_compare_exchange_n(&gate->reports->slots_used, &used, slot + 1, false,
                                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

/* ---- admission ---- */

struct admission {
    const struct cot_launch *launch;
    struct cot_totals totals; /* with this launch announced */
    uint64_t now_ns;
    uint64_t until_ns; /* out: when the answer may change */
    uint64_t bound_ns; /* out: when the launch goes whatever happened since; 0: that is the arbiter's to say */
    bool own;          /* out: the process's own work is the reason */
    bool limit;        /* out: the limit is the reason ... */
    uint64_t over_ns;  /* ... and how far it is exceeded */
};

/* How much of a growing limit is used at once. */
static uint64_t burst_of(const struct cot_gate *gate, uint32_t rate_ppm) {
    uint64_t burst = gate->tuning.start_ns / COT_PPM * rate_ppm;
    if (burst < LEAST_START_NS) burst = LEAST_START_NS;
    return burst > gate->tuning.most_start_ns ? gate->tuning.most_start_ns : burst;
}

/* A growing limit is used in bursts: otherwise each launch would wait for its own small part of the growth. Growth
 * above `most_ns`, unless that is 0, is lost if it was not used in time. */
static bool is_within_growing_limit(struct cot_gate *gate, struct admission *admission, uint64_t limit_ns,
                                    uint32_t rate_ppm, uint64_t starts_ns, uint64_t most_ns) {
    uint64_t taken = admission->totals.used + admission->totals.pending - admission->launch->predicted_ns;
    if (most_ns) taken += LOAD(gate->forfeited_ns);
    uint64_t start = burst_of(gate, rate_ppm);
    admission->limit = true;
    admission->over_ns = taken < limit_ns ? 0 : taken - limit_ns;
    if (taken < limit_ns) {
        uint64_t left = limit_ns - taken;
        if (most_ns && left > most_ns && admission->totals.inflight <= 1) {
            __atomic_fetch_add(&gate->forfeited_ns, left - most_ns, __ATOMIC_RELAXED);
        }
        if (left >= start || !LOAD(gate->out_of_credit)) {
            __atomic_store_n(&gate->out_of_credit, 0, __ATOMIC_RELAXED);
            return true;
        }
        admission->until_ns = admission->now_ns + (start - left) * COT_PPM / rate_ppm + 1;
        admission->bound_ns = admission->until_ns + BOUND_SLACK_NS;
        return false;
    }
    __atomic_store_n(&gate->out_of_credit, 1, __ATOMIC_RELAXED);
    uint64_t from = admission->now_ns > starts_ns ? admission->now_ns : starts_ns;
    uint64_t owed = taken - limit_ns, most = owed;
    if (admission->totals.inflight > 1 && owed > MOST_DEBT_NS) most = MOST_DEBT_NS;
    admission->until_ns = from + (owed + start) * COT_PPM / rate_ppm + 1;
    admission->bound_ns = from + (most + start) * COT_PPM / rate_ppm + BOUND_SLACK_NS;
    return false;
}

/* Of this process alone: another one may be stopped, or wait for this launch. What is overdue is not pending.
 * `rate_ppm`: the part of the GPU's time that is this container's; 0: all of it, as no other container launches. */
static bool is_within_depth(const struct cot_gate *gate, struct admission *admission, uint64_t depth_ns,
                            uint32_t rate_ppm) {
    if (LOAD(gate->row->inflight) <= 1) return true; /* only this launch */
    uint64_t pending = LOAD(gate->row->pending_ns) - admission->launch->predicted_ns;
    if ((int64_t)pending < (int64_t)depth_ns) return true;
    admission->own = true;
    admission->until_ns = admission->now_ns + LOOK_AGAIN_NS;
    /* What was let go at a bound may not run yet: until the depth allows another launch, one of those before it ends.
     */
    uint64_t longest = LOAD(gate->row->longest_ns) + depth_ns;
    uint64_t takes = (pending < longest ? pending : longest) + BOUND_SLACK_NS;
    if (rate_ppm) takes = takes * COT_PPM / rate_ppm;
    admission->bound_ns = admission->now_ns + takes + DEPTH_SLACK_NS;
    return false;
}

/* The next record begins at what was used by then: nothing of it is forfeited yet. */
static void follow_record(struct cot_gate *gate, const struct cot_lease_record *record) {
    uint64_t of = LOAD(gate->forfeited_of);
    if (of != record->check && __atomic_compare_exchange_n(&gate->forfeited_of, &of, record->check, false,
                                                           __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_store_n(&gate->forfeited_ns, 0, __ATOMIC_RELAXED);
    }
}

/* No arbiter runs: the record that it left is a credit that all processes of the container compute alike. */
static bool may_go_without_arbiter(struct cot_gate *gate, struct admission *admission) {
    struct cot_lease_record record = {0};
    admission->until_ns = admission->now_ns + LONG_WAIT_NS;
    if (!cot_lease_order_read_record(gate->order, &record))
        return false; /* the agent writes one before any process starts */
    follow_record(gate, &record);
    const uint64_t depth = 10000000;
    if (record.rate_ppm == 0 || record.rate_ppm >= COT_PPM) return is_within_depth(gate, admission, depth, COT_PPM);
    uint64_t limit = cot_lease_limit_at(record.limit_ns, record.at_ns, record.rate_ppm, admission->now_ns);
    /* Work of all containers is on the GPU at once now, and each switch between them costs time: a container that
     * cannot keep up must not queue more, for the next one waits for it. */
    if (!is_within_depth(gate, admission, burst_of(gate, record.rate_ppm), record.rate_ppm)) return false;
    return is_within_growing_limit(gate, admission, limit, record.rate_ppm, record.at_ns, 2 * depth);
}

/* The turn was closed between launches that belong together: those that were made on other GPUs may be followed. */
static bool may_catch_up(const struct cot_gate *gate) {
    const struct cot_lease_row *row = gate->row - (uint64_t)gate->slot * gate->gpu_count;
    uint32_t slots = __atomic_load_n(&gate->reports->slots_used, __ATOMIC_ACQUIRE);
    uint64_t made = 0;
    if (slots > gate->slot_count) slots = gate->slot_count;
    for (uint32_t slot = 0; slot < slots; slot++, row += gate->gpu_count) made += LOAD(row->launches);
    return made < LOAD(gate->order->launches_limit);
}

static bool may_go(struct cot_gate *gate, struct admission *admission) {
    struct cot_lease_order_view view;
    if (!cot_lease_order_read(gate->order, &view)) return false;
    uint32_t state = cot_lease_state(view.lease);
    if (state == COT_LEASE_FREE) return true;
    if (state == COT_LEASE_CATCH_UP) return may_catch_up(gate);
    if (state != COT_LEASE_GRANTED) return false;
    uint64_t limit = cot_lease_limit_at(view.terms.limit_ns, view.terms.at_ns, view.terms.rate_ppm, admission->now_ns);
    if (!is_within_depth(gate, admission, view.terms.depth_ns, 0)) return false;
    if (view.terms.rate_ppm == 0 || view.terms.rate_ppm >= COT_PPM) {
        uint64_t taken = admission->totals.used + admission->totals.pending - admission->launch->predicted_ns;
        admission->limit = true;
        admission->over_ns = taken < limit ? 0 : taken - limit;
        return taken < limit;
    }
    return is_within_growing_limit(gate, admission, limit, view.terms.rate_ppm, view.terms.at_ns, 0);
}

/* The bound of a wait is set when it begins. What is charged during the wait does not move it as long as work of the
 * container is in flight, which may wait for this launch. Once nothing is, all that is owed is known: a few times, so
 * that other threads' launches cannot move it for ever. */
static bool is_at_bound(struct cot_wait *wait, const struct admission *admission) {
    if (!wait || admission->bound_ns == 0) return false;
    bool settled = admission->totals.inflight <= 1 && wait->settled < MOST_SETTLED;
    if (wait->bound_ns == 0 || (settled && admission->bound_ns > wait->bound_ns)) {
        wait->settled += wait->bound_ns != 0;
        wait->bound_ns = admission->bound_ns;
    }
    return admission->now_ns >= wait->bound_ns;
}

static bool may_follow(const struct cot_gate *gate, const struct admission *admission) {
    if (!admission->limit || admission->over_ns > MOST_DEBT_NS || admission->totals.inflight <= 1) return false;
    return LOAD(gate->shared->awaited) && cot_is_behind(gate);
}

static bool may_be_awaited(const struct cot_wait *wait, const struct admission *admission) {
    return wait && !wait->behind && admission->totals.inflight > 1 && admission->over_ns <= MOST_DEBT_NS;
}

/* Notes by when all that is in flight should have ended: anew whenever a launch of the container was made or ended, or
 * the launch waits for something else. */
static void follow_inflight(struct cot_wait *wait, const struct admission *admission) {
    const struct cot_totals *totals = &admission->totals;
    bool turn = !admission->limit && !admission->own;
    bool known = wait->stuck_ns && wait->launches == totals->launches && wait->inflight == totals->inflight;
    if (known && wait->turn == turn) return;
    wait->launches = totals->launches;
    wait->inflight = totals->inflight;
    wait->turn = turn;
    uint64_t pending = totals->pending - admission->launch->predicted_ns;
    uint64_t takes = totals->next_ns < pending ? totals->next_ns : pending;
    wait->stuck_ns = admission->now_ns + takes + STUCK_SLACK_NS;
}

/* Work in flight that has not ended in its time may wait for this launch. It is charged as long as it stays, so no
 * credit is saved by holding the launch back; what it owes is repaid once nothing is in flight. One launch of a stream
 * at a time, or a process would run ahead of the others, and what is in flight would never end. */
static bool is_awaited(struct cot_gate *gate, struct cot_wait *wait, const struct admission *admission) {
    if (!may_be_awaited(wait, admission) || wait->turn) return false;
    bool known = LOAD(gate->others_inflight) && LOAD(gate->others_stuck);
    if (!known && admission->now_ns < wait->stuck_ns) return false;
    __atomic_store_n(&gate->others_stuck, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gate->shared->awaited, 1, __ATOMIC_RELAXED);
    return true;
}

/* Notes that what is in flight may wait for this launch, which itself waits: for work of its process that is overdue
 * now, or for a turn, while nothing in flight has ended for longer than other containers' work may hold it up. The
 * arbiter is to know that: what is in flight is charged, and the debt must not lengthen the wait. */
static void note_awaited(const struct cot_gate *gate, const struct cot_wait *wait, const struct admission *admission) {
    const struct cot_lease_row *row = gate->row;
    if (!wait || wait->behind || LOAD(gate->shared->awaited)) return;
    bool own = wait->own && LOAD(row->inflight) > 1 && LOAD(row->pending_ns) <= admission->launch->predicted_ns;
    bool turn = wait->turn && may_be_awaited(wait, admission) && admission->now_ns >= wait->stuck_ns + TURN_SLACK_NS;
    if (own || turn) __atomic_fetch_add(&gate->shared->awaited, 1, __ATOMIC_RELAXED);
}

struct cot_verdict cot_gate_admit(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns,
                                  struct cot_wait *wait, struct cot_launch *launch) {
    struct cot_verdict verdict = {.wake = __atomic_load_n(&gate->order->wake, __ATOMIC_ACQUIRE)};
    struct cot_predicted length = cot_predict_duration(gate, kind, now_ns);
    uint64_t unknown = gate->tuning.unknown_ns ? gate->tuning.unknown_ns : LOAD(gate->order->depth_ns);
    *launch = (struct cot_launch){
        .kind = *kind,
        .predicted_ns = length.late_ns ? length.late_ns : unknown,
        .mean_ns = length.mean_ns,
        .unknown = !length.measured,
        .probe = length.late_ns == 0,
    };
    __atomic_fetch_add(&gate->row->pending_ns, launch->predicted_ns, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&gate->row->inflight, 1, __ATOMIC_SEQ_CST);
    struct admission admission = {
        .launch = launch, .totals = cot_totals_of(gate), .now_ns = now_ns, .until_ns = now_ns + LONG_WAIT_NS};
    cot_watch_others(gate, &admission.totals, now_ns);
    uint64_t stale;
    verdict.away = cot_is_arbiter_away(gate, now_ns, wait ? wait->rung_ns : 0, &stale);
    verdict.go = verdict.away ? may_go_without_arbiter(gate, &admission) : may_go(gate, &admission);
    bool begins = verdict.go && admission.totals.inflight <= 1;
    verdict.go |= may_follow(gate, &admission);
    if (!verdict.go && may_be_awaited(wait, &admission)) follow_inflight(wait, &admission);
    verdict.bound = !verdict.go && (is_awaited(gate, wait, &admission) || is_at_bound(wait, &admission));
    verdict.go |= verdict.bound;
    if (verdict.bound) __atomic_fetch_add(&gate->shared->relieved, 1, __ATOMIC_RELAXED);
    /* The GPU was kept for this process until it asked, even if the answer is to wait, but not while it waits. */
    bool waited = __atomic_exchange_n(&gate->waited, verdict.go ? 0 : 1, __ATOMIC_RELAXED);
    bool first = LOAD(gate->row->inflight) <= 1 && !cot_is_in_use(gate, &admission.totals, now_ns);
    if (first && !waited) cot_use_until(gate, now_ns, gate->tuning.bridge_ns, 0);
    launch->waited = waited;
    launch->away = verdict.away;
    if (verdict.go) {
        if (first) cot_begin_use(gate, now_ns);
        verdict.wakes = cot_count_made(gate, begins) && cot_wake_others(gate);
        __atomic_fetch_add(&gate->row->launches, 1, __ATOMIC_RELAXED);
        return verdict;
    }
    note_awaited(gate, wait, &admission);
    if (wait) wait->own |= admission.own;
    cot_withdraw(gate, launch->predicted_ns);
    verdict.own = admission.own;
    verdict.until_ns = admission.until_ns;
    if (!verdict.away && stale < verdict.until_ns) verdict.until_ns = stale;
    if (wait && wait->bound_ns > now_ns && wait->bound_ns < verdict.until_ns) verdict.until_ns = wait->bound_ns;
    if (wait && wait->stuck_ns > now_ns && wait->stuck_ns < verdict.until_ns) verdict.until_ns = wait->stuck_ns;
    return verdict;
}

void cot_gate_unmeasured(struct cot_gate *gate, const struct cot_launch *launch) {
    __atomic_fetch_add(&gate->row->used_ns, launch->predicted_ns, __ATOMIC_RELEASE);
    cot_withdraw(gate, launch->predicted_ns);
}

void cot_gate_undo(struct cot_gate *gate, const struct cot_launch *launch) {
    __atomic_fetch_sub(&gate->row->launches, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&gate->made, 1, __ATOMIC_RELAXED);
    cot_withdraw(gate, launch->predicted_ns);
}

bool cot_gate_wait(struct cot_gate *gate, bool begins, uint64_t waited_ns, uint64_t now_ns) {
    (void)now_ns;
    if (begins) {
        bool first = __atomic_fetch_add(&gate->row->waiting, 1, __ATOMIC_SEQ_CST) == 0;
        return first && cot_ring(gate);
    }
    __atomic_fetch_sub(&gate->row->waiting, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gate->row->throttled_ns, waited_ns, __ATOMIC_RELAXED);
    return false;
}
