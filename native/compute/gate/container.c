/* What a process sees of its container on the GPU: totals of all processes, whether the others go on, how far each is,
 * and whether an arbiter runs. */
#include "internal.h"

#define MOST_BEHIND 64u
#define STOPPED_NS 5000000ull /* after which overdue work would have been charged */

/* Totals of all processes of the container on this GPU. Announcements are read before what they turn into. */
struct cot_totals cot_totals_of(const struct cot_gate *gate) {
    struct cot_totals totals = {0};
    uint64_t busy = 0, longest = 0;
    uint32_t slots = __atomic_load_n(&gate->reports->slots_used, __ATOMIC_ACQUIRE);
    if (slots > gate->slot_count) slots = gate->slot_count; /* any process of the container may have overwritten it */
    const struct cot_lease_row *row = gate->row - (uint64_t)gate->slot * gate->gpu_count;
    for (uint32_t slot = 0; slot < slots; slot++, row += gate->gpu_count) {
        if (__atomic_load_n(&row->stamp, __ATOMIC_RELAXED) != 0) {
            totals.pending += __atomic_load_n(&row->pending_ns, __ATOMIC_SEQ_CST);
            uint64_t inflight = LOAD(row->inflight), length = LOAD(row->longest_ns);
            totals.inflight += inflight;
            if (slot != gate->slot) totals.waiting += LOAD(row->waiting);
            busy += inflight > 0;
            if (length > longest) longest = length;
        }
        totals.launches += LOAD(row->launches);
        totals.used += __atomic_load_n(&row->used_ns, __ATOMIC_ACQUIRE);
    }
    /* The driver lets the processes run in turns. */
    totals.next_ns = busy * longest;
    return totals;
}

/* Notes whether the container's other processes have made a launch or ended one since this was last called. */
void cot_watch_others(struct cot_gate *gate, const struct cot_totals *totals, uint64_t now_ns) {
    uint64_t launches = totals->launches - LOAD(gate->row->launches);
    uint64_t inflight = totals->inflight - LOAD(gate->row->inflight);
    if (launches == LOAD(gate->others_launches) && inflight == LOAD(gate->others_inflight)) return;
    __atomic_store_n(&gate->others_launches, launches, __ATOMIC_RELAXED);
    __atomic_store_n(&gate->others_inflight, inflight, __ATOMIC_RELAXED);
    __atomic_store_n(&gate->others_since_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&gate->others_stuck, 0, __ATOMIC_RELAXED);
}

/* Other processes of the container have work in flight, and charge the time: up to now if it is overdue, else when it
 * ends. One that was stopped or has died does neither. */
bool cot_is_in_use(const struct cot_gate *gate, const struct cot_totals *totals, uint64_t now_ns) {
    uint64_t pending = totals->pending - LOAD(gate->row->pending_ns);
    uint64_t most = 2 * pending + COT_OVERDUE_SLACK_NS + STOPPED_NS;
    return LOAD(gate->others_inflight) && now_ns < LOAD(gate->others_since_ns) + most &&
           now_ns < LOAD(gate->shared->used_until_ns) + most;
}

/* Processes that need one another launch equally often: each may make as many launches as the one that has made most,
 * if the credit ends between them. What they are behind by when nothing is in flight counts on, as one may have begun
 * the next step; beyond MOST_BEHIND they do not belong together. */
static uint32_t made_by(const struct cot_gate *gate, uint64_t made) {
    uint32_t own = LOAD(gate->made), least = (uint32_t)(made >> 32) - MOST_BEHIND;
    return (int32_t)(own - least) < 0 ? least : own;
}

/* Where a process begins to count: before the launches in flight, which its own may have to match although it has
 * joined later than they were made. */
uint32_t cot_made_before(const struct cot_gate *gate) {
    uint64_t made = LOAD(gate->shared->made);
    uint32_t most = (uint32_t)made, begun = (uint32_t)(made >> 32);
    return most - begun <= MOST_BEHIND ? begun : most;
}

bool cot_is_behind(const struct cot_gate *gate) {
    uint64_t made = LOAD(gate->shared->made);
    return (int32_t)(made_by(gate, made) - (uint32_t)made) < 0;
}

/* `begins`: nothing of the container is in flight. True: the others may make more launches than before. */
bool cot_count_made(struct cot_gate *gate, bool begins) {
    uint64_t made = LOAD(gate->shared->made), next;
    uint32_t own, most;
    do {
        most = (uint32_t)made;
        own = made_by(gate, made) + 1;
        bool leads = (int32_t)(own - most) > 0;
        next = (begins ? (uint64_t)most << 32 : made & ~0xffffffffull) | (leads ? own : most);
    } while (next != made &&
             !__atomic_compare_exchange_n(&gate->shared->made, &made, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    __atomic_store_n(&gate->made, own, __ATOMIC_RELAXED);
    return own != most && (uint32_t)next == own && LOAD(gate->shared->awaited);
}

/* Other processes may go as well. One that has read `wake` and does not sleep yet will not; true: wake those that do.
 */
bool cot_wake_others(struct cot_gate *gate) {
    __atomic_fetch_add(&gate->order->wake, 1, __ATOMIC_SEQ_CST);
    return cot_totals_of(gate).waiting;
}

/* `until_ns`: the earliest time at which it counts as away, if it does not yet. To be called after the launch was
 * announced: an arbiter that comes back writes its heartbeat before it reads what is in flight. */
bool cot_is_arbiter_away(struct cot_gate *gate, uint64_t now_ns, uint64_t rung_ns, uint64_t *until_ns) {
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
