/* What the process used of the GPU, and what is learned of its launches: batches, their ends, overdue ones. */
#include "internal.h"

#define LONGEST_DECAY 64u    /* how fast the longest launch is forgotten, in completions */
#define WAITER_NS 1000000ull /* predicted for a kernel that waited for a later launch */
#define LATE_NS 50000000ull  /* believed at once of work that ended late */
#define LATE_LAUNCHES 20u    /* that such a length counts for: it took that long at least */

/* Counts the time until `until_ns` as used, unless that is more than `gap_ns`; `instead_ns` replaces the length of that
 * time, if not 0. */
void cot_use_until(struct cot_gate *gate, uint64_t until_ns, uint64_t gap_ns, uint64_t instead_ns) {
    uint64_t from = LOAD(gate->shared->used_until_ns);
    while (until_ns > from) {
        uint64_t used = until_ns - from;
        if (used > gap_ns) return;
        if (__atomic_compare_exchange_n(&gate->shared->used_until_ns, &from, until_ns, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            __atomic_fetch_add(&gate->row->used_ns, instead_ns ? instead_ns : used, __ATOMIC_RELEASE);
            return;
        }
    }
}

/* Nothing is in flight: the next use begins now. */
void cot_begin_use(struct cot_gate *gate, uint64_t now_ns) {
    uint64_t from = LOAD(gate->shared->used_until_ns);
    while (now_ns > from && !__atomic_compare_exchange_n(&gate->shared->used_until_ns, &from, now_ns, false,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* The place of a launch's kind. Of more kinds than there are places those not yet measured have one; the others' time
 * is known. NULL: it has none. */
static struct cot_batch_kind *place_of(struct cot_batch *batch, const struct cot_launch *launch) {
    struct cot_batch_kind *known = NULL;
    for (uint32_t i = 0; i < batch->kinds; i++) {
        if (batch->kind[i].kind.key == launch->kind.key) return &batch->kind[i];
        if (!batch->kind[i].unknown) known = &batch->kind[i];
    }
    struct cot_batch_kind *place = launch->unknown ? known : NULL;
    if (batch->kinds < COT_BATCH_KINDS) place = &batch->kind[batch->kinds++];
    if (place) *place = (struct cot_batch_kind){.kind = launch->kind, .unknown = launch->unknown};
    return place;
}

/* There is no place for another kind that was not measured yet. */
static bool is_full(const struct cot_batch *batch) {
    uint32_t unknown = 0;
    for (uint32_t i = 0; i < batch->kinds; i++) unknown += batch->kind[i].unknown;
    return unknown == COT_BATCH_KINDS;
}

bool cot_batch_add(struct cot_gate *gate, struct cot_batch *batch, const struct cot_launch *launch, uint64_t now_ns) {
    if (launch->unknown) cot_note_launched(gate, &launch->kind, now_ns);
    if (batch->launches == 0)
        *batch = (struct cot_batch){.after_wait = launch->waited, .awaited = LOAD(gate->shared->awaited)};
    struct cot_batch_kind *place = place_of(batch, launch);
    if (place) {
        place->launches++;
        place->predicted_ns += launch->predicted_ns;
    }
    batch->launches++;
    batch->predicted_ns += launch->predicted_ns;
    batch->mean_ns += launch->mean_ns;
    batch->unknown |= launch->unknown;
    batch->away |= launch->away;
    uint64_t depth = LOAD(gate->order->depth_ns), most = gate->tuning.batch_ns;
    if (depth / 4 < most) most = depth / 4;
    return launch->probe || batch->predicted_ns >= most || batch->launches >= COT_BATCH_LAUNCHES ||
           (launch->unknown && is_full(batch));
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

/* For how long the container has made no launch, as far as was seen while work that was never measured was overdue: of
 * other work it is not asked, as this reads the rows of all processes. */
static uint64_t without_launch(struct cot_gate *gate, uint64_t now_ns) {
    uint32_t launches = (uint32_t)cot_gate_launches(gate), now_ms = (uint32_t)(now_ns / 1000000);
    if (launches != LOAD(gate->seen_launches)) {
        __atomic_store_n(&gate->seen_launches, launches, __ATOMIC_RELAXED);
        __atomic_store_n(&gate->launched_ms, now_ms, __ATOMIC_RELAXED);
    }
    return (now_ms - LOAD(gate->launched_ms)) * 1000000ull;
}

/* A batch's length is divided among its kinds as predicted; those without a place learn nothing. Of a batch with kinds
 * that were not measured yet these get what is left beside the others. `alone_ns`: for how long one of these went on
 * with no launch of the container. */
static void learn(struct cot_gate *gate, const struct cot_batch *batch, uint64_t length_ns, uint64_t alone_ns,
                  uint64_t now_ns) {
    uint64_t most = batch->unknown ? WAITER_NS * batch->launches : batch->predicted_ns;
    bool waited = batch->waited || (batch->unknown && batch->awaited != LOAD(gate->shared->awaited));
    if (waited && length_ns > most) {
        /* It may be shorter than it seemed, but had it waited for a launch, it would have ended soon after that one. */
        uint64_t own = alone_ns > LATE_NS ? alone_ns - LATE_NS : 0, least = batch->unknown ? most : most / 2;
        if (own < length_ns) length_ns = own > least ? own : least;
    }
    /* So may work that ended late, for it may have waited for another container. */
    uint64_t believed = batch->unknown || batch->predicted_ns < LATE_NS / 2 ? LATE_NS : 2 * batch->predicted_ns;
    bool late = batch->overdue && length_ns > believed;
    if (late) length_ns = believed;
    uint64_t measured = batch->predicted_ns, divided = batch->predicted_ns;
    for (uint32_t i = 0; i < batch->kinds; i++) measured -= batch->kind[i].unknown ? batch->kind[i].predicted_ns : 0;
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
        cot_record_duration(gate, &of->kind, each, late && !batch->shared ? LATE_LAUNCHES : of->launches, now_ns);
        note_longest(gate, each);
    }
}

static bool is_granted(const struct cot_gate *gate) {
    return cot_lease_state(__atomic_load_n(&gate->order->lease, __ATOMIC_SEQ_CST)) == COT_LEASE_GRANTED;
}

void cot_gate_overdue(struct cot_gate *gate, struct cot_batch *batch, uint64_t now_ns) {
    uint64_t stale;
    batch->away |= cot_is_arbiter_away(gate, now_ns, 0, &stale);
    if (!batch->away) cot_use_until(gate, now_ns, UINT64_MAX, 0);
    if (batch->unknown) without_launch(gate, now_ns);
    batch->shared |= !is_granted(gate);
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
    uint64_t until = LOAD(gate->shared->used_until_ns);
    struct cot_totals totals = cot_totals_of(gate);
    if (oldest && begin_ns > until && !cot_is_in_use(gate, &totals, now_ns) &&
        (batch->after_wait || begin_ns - until > gate->tuning.bridge_ns)) {
        cot_begin_use(gate, begin_ns);
    }
    /* While no arbiter runs, work of other containers may share the GPU, and events include its time: use the known
     * mean, and learn only what was not known at all. */
    uint64_t stale;
    bool away = batch->away || cot_is_arbiter_away(gate, now_ns, 0, &stale), known = !batch->unknown;
    if (batch->charged_ns) cot_begin_use(gate, end_ns);
    else cot_use_until(gate, end_ns, UINT64_MAX, away && known ? batch->mean_ns : 0);
    uint64_t alone = batch->overdue && batch->unknown ? without_launch(gate, now_ns) : 0;
    if (streams == 0) streams = 1;
    if (!away || !known) learn(gate, batch, length / streams, alone / streams, now_ns);
    if (!batch->overdue) __atomic_fetch_sub(&gate->row->pending_ns, batch->predicted_ns, __ATOMIC_SEQ_CST);
    bool drained = __atomic_sub_fetch(&gate->row->inflight, batch->launches, __ATOMIC_SEQ_CST) == 0;
    return drained && (!is_granted(gate) || LOAD(gate->row->waiting)) && cot_ring(gate);
}
