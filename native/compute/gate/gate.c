/* The gate's decisions and the accounts of the process. */
#include "internal.h"

#define LONGEST_DECAY 64u /* how fast the longest launch is forgotten, in completions */
#define LEAST_START_NS 50000ull
#define LONG_WAIT_NS 20000000ull
#define LOOK_AGAIN_NS 1000000ull    /* polling interval for the process's own work */
#define DEPTH_SLACK_NS 100000000ull /* more for work that may take longer than predicted: it is overdue before */
#define MOST_SETTLED 4u
#define WAITER_NS 1000000ull      /* predicted for a kernel that waited for a later launch */
#define BOUND_SLACK_NS 5000000ull /* a wait that is as long as it should be ends by itself before its bound */

const struct cot_gate_tuning cot_default_gate = {
    .bridge_ns = 300000,
    .start_ns = 20000000,
    .most_start_ns = 2000000,
    .batch_ns = 1000000,
    .unknown_ns = 0,
};

#define LOAD(read_word) __atomic_load_n(&(read_word), __ATOMIC_RELAXED)

void cot_gate_attach(struct cot_gate *gate, const struct cot_gate_tuning *tuning, void *page, uint32_t slot_count,
                     uint32_t gpu_count, uint32_t slot, uint32_t gpu, uint64_t stamp) {
    memset(gate, 0, sizeof *gate);
    gate->tuning = *tuning;
    gate->header = (struct cot_lease_page_header *)page;
    gate->order = cot_lease_order_at(page, gpu);
    gate->reports = cot_lease_reports_at(page);
    gate->row = cot_lease_row_at(page, gpu_count, slot, gpu);
    gate->slot_count = slot_count;
    gate->gpu_count = gpu_count;
    gate->gpu = gpu;
    gate->slot = slot;
    struct cot_lease_row *row = gate->row;
    uint64_t *const words[] = {&row->waiting, &row->inflight, &row->pending_ns, &row->longest_ns, &row->throttled_ns};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) __atomic_store_n(words[i], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->stamp, stamp, __ATOMIC_RELEASE);
    uint32_t used = LOAD(gate->reports->slots_used);
    while (used <= slot && !__atomic_compare_exchange_n(&gate->reports->slots_used, &used, slot + 1, false,
                                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

struct totals {
    uint64_t used, pending, inflight;
};

/* Totals of all processes of the container on this GPU. Announcements are read before what they turn into. */
static struct totals totals_of(const struct cot_gate *gate) {
    struct totals totals = {0};
    uint32_t slots = __atomic_load_n(&gate->reports->slots_used, __ATOMIC_ACQUIRE);
    if (slots > gate->slot_count) slots = gate->slot_count; /* any process of the container may have overwritten it */
    const struct cot_lease_row *row = gate->row - (uint64_t)gate->slot * gate->gpu_count;
    for (uint32_t slot = 0; slot < slots; slot++, row += gate->gpu_count) {
        if (__atomic_load_n(&row->stamp, __ATOMIC_RELAXED) != 0) {
            totals.pending += __atomic_load_n(&row->pending_ns, __ATOMIC_SEQ_CST);
            totals.inflight += LOAD(row->inflight);
        }
        totals.used += __atomic_load_n(&row->used_ns, __ATOMIC_ACQUIRE);
    }
    return totals;
}

static bool ring(struct cot_gate *gate) {
    __atomic_fetch_add(&gate->reports->bell, 1, __ATOMIC_RELEASE);
    return true;
}

/* ---- admission ---- */

struct admission {
    const struct cot_launch *launch;
    struct totals totals; /* with this launch announced */
    uint64_t now_ns;
    uint64_t until_ns; /* out: when the answer may change */
    uint64_t bound_ns; /* out: when the launch goes whatever happened since; 0: that is the arbiter's to say */
    bool own;          /* out: the process's own work is the reason */
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
    admission->until_ns = from + (taken - limit_ns + start) * COT_PPM / rate_ppm + 1;
    admission->bound_ns = admission->until_ns + BOUND_SLACK_NS;
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
    uint64_t takes = pending + BOUND_SLACK_NS;
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
        return admission->totals.used + admission->totals.pending - admission->launch->predicted_ns < limit;
    }
    return is_within_growing_limit(gate, admission, limit, view.terms.rate_ppm, view.terms.at_ns, 0);
}

/* `until_ns`: the earliest time at which it counts as away, if it does not yet. To be called after the launch was
 * announced: an arbiter that comes back writes its heartbeat before it reads what is in flight. */
static bool is_arbiter_away(struct cot_gate *gate, uint64_t now_ns, uint64_t rung_ns, uint64_t *until_ns) {
    uint64_t heartbeat = __atomic_load_n(&gate->header->heartbeat_ns, __ATOMIC_SEQ_CST);
    bool rests = heartbeat != 0 && heartbeat == LOAD(gate->header->rest_until_ns);
    *until_ns = (heartbeat < now_ns ? heartbeat : now_ns) + COT_LEASE_PAGE_STALE_NS;
    if (*until_ns <= now_ns) return true;
    if (!rests) return false;
    if (LOAD(gate->missed_heartbeat) == (uint32_t)heartbeat) return true;
    if (rung_ns == 0) return false;
    if (rung_ns + COT_LEASE_PAGE_STALE_NS < *until_ns) *until_ns = rung_ns + COT_LEASE_PAGE_STALE_NS;
    if (*until_ns > now_ns) return false;
    __atomic_store_n(&gate->missed_heartbeat, (uint32_t)heartbeat, __ATOMIC_RELAXED);
    return true;
}

static void withdraw(struct cot_gate *gate, uint64_t predicted_ns) {
    __atomic_fetch_sub(&gate->row->pending_ns, predicted_ns, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&gate->row->inflight, 1, __ATOMIC_SEQ_CST);
}

/* Counts the time until `until_ns` as used, unless that is more than `gap_ns`; `instead_ns` replaces the length of that
 * time, if not 0. */
static void use_until(struct cot_gate *gate, uint64_t until_ns, uint64_t gap_ns, uint64_t instead_ns) {
    uint64_t from = LOAD(gate->used_until_ns);
    while (until_ns > from) {
        uint64_t used = until_ns - from;
        if (used > gap_ns) return;
        if (__atomic_compare_exchange_n(&gate->used_until_ns, &from, until_ns, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            __atomic_fetch_add(&gate->row->used_ns, instead_ns ? instead_ns : used, __ATOMIC_RELEASE);
            return;
        }
    }
}

/* Nothing is in flight: the next use begins now. */
static void begin_use(struct cot_gate *gate, uint64_t now_ns) {
    uint64_t from = LOAD(gate->used_until_ns);
    while (now_ns > from && !__atomic_compare_exchange_n(&gate->used_until_ns, &from, now_ns, false, __ATOMIC_RELAXED,
                                                         __ATOMIC_RELAXED)) {
    }
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
    bool first = __atomic_fetch_add(&gate->row->inflight, 1, __ATOMIC_SEQ_CST) == 0;
    struct admission admission = {
        .launch = launch, .totals = totals_of(gate), .now_ns = now_ns, .until_ns = now_ns + LONG_WAIT_NS};
    uint64_t stale;
    verdict.away = is_arbiter_away(gate, now_ns, wait ? wait->rung_ns : 0, &stale);
    verdict.go = verdict.away ? may_go_without_arbiter(gate, &admission) : may_go(gate, &admission);
    verdict.bound = !verdict.go && is_at_bound(wait, &admission);
    verdict.go |= verdict.bound;
    /* The GPU was kept for this process until it asked, even if the answer is to wait, but not while it waits. */
    bool waited = __atomic_exchange_n(&gate->waited, verdict.go ? 0 : 1, __ATOMIC_RELAXED);
    if (first && !waited) use_until(gate, now_ns, gate->tuning.bridge_ns, 0);
    launch->waited = waited;
    launch->away = verdict.away;
    if (verdict.go) {
        if (first) begin_use(gate, now_ns);
        __atomic_fetch_add(&gate->row->launches, 1, __ATOMIC_RELAXED);
        return verdict;
    }
    withdraw(gate, launch->predicted_ns);
    verdict.own = admission.own;
    verdict.until_ns = admission.until_ns;
    if (!verdict.away && stale < verdict.until_ns) verdict.until_ns = stale;
    if (wait && wait->bound_ns > now_ns && wait->bound_ns < verdict.until_ns) verdict.until_ns = wait->bound_ns;
    return verdict;
}

void cot_gate_unmeasured(struct cot_gate *gate, const struct cot_launch *launch) {
    __atomic_fetch_add(&gate->row->used_ns, launch->predicted_ns, __ATOMIC_RELEASE);
    withdraw(gate, launch->predicted_ns);
}

void cot_gate_undo(struct cot_gate *gate, const struct cot_launch *launch) {
    withdraw(gate, launch->predicted_ns);
}

bool cot_gate_wait(struct cot_gate *gate, bool begins, uint64_t waited_ns, uint64_t now_ns) {
    (void)now_ns;
    if (begins) {
        bool first = __atomic_fetch_add(&gate->row->waiting, 1, __ATOMIC_SEQ_CST) == 0;
        return first && ring(gate);
    }
    __atomic_fetch_sub(&gate->row->waiting, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gate->row->throttled_ns, waited_ns, __ATOMIC_RELAXED);
    return false;
}

/* ---- completion ---- */

bool cot_batch_add(struct cot_gate *gate, struct cot_batch *batch, const struct cot_launch *launch, uint64_t now_ns) {
    if (launch->unknown) cot_note_launched(gate, &launch->kind, now_ns);
    if (batch->launches == 0) *batch = (struct cot_batch){.after_wait = launch->waited};
    uint32_t i = 0;
    while (i < batch->kinds && batch->kind[i].kind.key != launch->kind.key) i++;
    if (i == batch->kinds) {
        batch->kinds++;
        batch->kind[i] = (struct cot_batch_kind){.kind = launch->kind, .unknown = launch->unknown};
    }
    batch->kind[i].launches++;
    batch->kind[i].predicted_ns += launch->predicted_ns;
    batch->launches++;
    batch->predicted_ns += launch->predicted_ns;
    batch->mean_ns += launch->mean_ns;
    batch->unknown |= launch->unknown;
    batch->away |= launch->away;
    uint64_t depth = LOAD(gate->order->depth_ns), most = gate->tuning.batch_ns;
    if (depth / 4 < most) most = depth / 4;
    return launch->probe || batch->predicted_ns >= most || batch->launches >= COT_BATCH_LAUNCHES ||
           batch->kinds == COT_BATCH_KINDS;
}

static void note_longest(struct cot_gate *gate, uint64_t length_ns) {
    uint64_t longest = LOAD(gate->row->longest_ns);
    uint64_t now = length_ns > longest ? length_ns : longest - (longest - length_ns) / LONGEST_DECAY;
    __atomic_store_n(&gate->row->longest_ns, now, __ATOMIC_RELAXED);
}

uint64_t cot_gate_launches(const struct cot_gate *gate) {
    const struct cot_lease_row *rows = gate->row - (uint64_t)gate->slot * gate->gpu_count - gate->gpu;
    uint32_t slots = __atomic_load_n(&gate->reports->slots_used, __ATOMIC_ACQUIRE);
    uint64_t sum = 0;
    if (slots > gate->slot_count) slots = gate->slot_count;
    for (uint64_t i = 0; i < (uint64_t)slots * gate->gpu_count; i++) sum += LOAD(rows[i].launches);
    return sum;
}

/* A batch's length is divided among its kinds as predicted. Of a batch with kinds that were not measured yet these get
 * what is left beside the others. */
static void learn(struct cot_gate *gate, const struct cot_batch *batch, uint64_t length_ns, uint64_t now_ns) {
    if (batch->waited && length_ns > WAITER_NS * batch->launches) length_ns = WAITER_NS * batch->launches;
    uint64_t measured = 0, divided = batch->predicted_ns;
    for (uint32_t i = 0; i < batch->kinds; i++) measured += batch->kind[i].unknown ? 0 : batch->kind[i].predicted_ns;
    bool rest = batch->unknown && length_ns > measured;
    if (rest) {
        length_ns -= measured;
        divided -= measured;
    }
    for (uint32_t i = 0; i < batch->kinds; i++) {
        const struct cot_batch_kind *of = &batch->kind[i];
        uint64_t share = length_ns;
        if (rest && !of->unknown) continue;
        if (batch->kinds > 1 && divided) share = (uint64_t)((unsigned __int128)length_ns * of->predicted_ns / divided);
        uint64_t each = share / of->launches;
        cot_record_duration(gate, &of->kind, each, of->launches, now_ns);
        note_longest(gate, each);
    }
}

void cot_gate_overdue(struct cot_gate *gate, struct cot_batch *batch, uint64_t now_ns) {
    uint64_t stale;
    batch->away |= is_arbiter_away(gate, now_ns, 0, &stale);
    if (!batch->away) use_until(gate, now_ns, UINT64_MAX, 0);
    if (batch->overdue) return;
    batch->overdue = true;
    if (batch->away) {
        /* Work of other containers delays it: it counts as used for as long as it takes alone. */
        batch->charged_ns = batch->unknown || !batch->mean_ns ? batch->predicted_ns : batch->mean_ns;
        __atomic_fetch_add(&gate->row->used_ns, batch->charged_ns, __ATOMIC_RELEASE);
    }
    __atomic_fetch_sub(&gate->row->pending_ns, batch->predicted_ns, __ATOMIC_SEQ_CST);
}

/* Events of streams that ran side by side include each other's time: a launch counts for its part. */
bool cot_gate_complete(struct cot_gate *gate, const struct cot_batch *batch, uint64_t begin_ns, uint64_t end_ns,
                       uint32_t streams, bool oldest, uint64_t now_ns) {
    if (end_ns > now_ns) end_ns = now_ns;
    uint64_t length = end_ns > begin_ns ? end_ns - begin_ns : 1;
    /* A gap before this batch, in which nothing else of the process was in flight. */
    uint64_t until = LOAD(gate->used_until_ns);
    if (oldest && begin_ns > until && (batch->after_wait || begin_ns - until > gate->tuning.bridge_ns)) {
        begin_use(gate, begin_ns);
    }
    /* While no arbiter runs, work of other containers may share the GPU, and events include its time: use the known
     * mean, and learn only what was not known at all. */
    uint64_t stale;
    bool away = batch->away || is_arbiter_away(gate, now_ns, 0, &stale), known = !batch->unknown;
    if (batch->charged_ns) begin_use(gate, end_ns);
    else use_until(gate, end_ns, UINT64_MAX, away && known ? batch->mean_ns : 0);
    if (!away || !known) learn(gate, batch, length / (streams ? streams : 1), now_ns);
    if (!batch->overdue) __atomic_fetch_sub(&gate->row->pending_ns, batch->predicted_ns, __ATOMIC_SEQ_CST);
    bool drained = __atomic_sub_fetch(&gate->row->inflight, batch->launches, __ATOMIC_SEQ_CST) == 0;
    bool closed = cot_lease_state(__atomic_load_n(&gate->order->lease, __ATOMIC_SEQ_CST)) != COT_LEASE_GRANTED;
    return drained && (closed || LOAD(gate->row->waiting)) && ring(gate);
}
