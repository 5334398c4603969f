/* Reads what a tenant wrote to a lease page into a digest. Each value is read once and none is trusted: a value that
 * the gate would never write counts as a fault and as 0. */
#include "arbiter.h"

#define MAX_INFLIGHT (1ull << 20) /* per process: far above what a driver queues */
#define MAX_WAITING 65536u
#define MAX_USED_NS (COT_MAX_PLAUSIBLE_NS >> 3)      /* per process: four years */
#define MAX_DURATION_NS (COT_MAX_PLAUSIBLE_NS >> 12) /* per launch, and of all in flight: three days */

static uint64_t add_capped(uint64_t sum, uint64_t more) {
    return sum + more < COT_MAX_PLAUSIBLE_NS ? sum + more : COT_MAX_PLAUSIBLE_NS;
}

static uint64_t read_word(const uint64_t *from, uint64_t most, uint32_t *faults) {
    uint64_t value = __atomic_load_n(from, __ATOMIC_ACQUIRE);
    if (value <= most) return value;
    *faults += 1;
    return 0;
}

void cot_digest(const void *page, uint32_t slot_count, uint32_t gpu_count, uint32_t gpu, const uint64_t *dead,
                struct cot_digest *digest) {
    struct cot_digest sum = {0};
    const struct cot_lease_reports *reports = cot_lease_reports_at((void *)page);
    uint32_t slots = __atomic_load_n(&reports->slots_used, __ATOMIC_ACQUIRE);
    if (slots > slot_count) {
        sum.faults += 1;
        slots = slot_count;
    }
    const struct cot_lease_shared *shared = &cot_lease_order_at((void *)page, gpu)->shared;
    sum.has_awaited = __atomic_load_n(&shared->awaited, __ATOMIC_RELAXED) != 0;
    sum.relieved = read_word(&shared->relieved, COT_MAX_PLAUSIBLE_NS, &sum.faults);
    for (uint32_t slot = 0; slot < slots; slot++) {
        const struct cot_lease_row *row = cot_lease_row_at((void *)page, gpu_count, slot, gpu);
        /* Announcements are read before what they turn into: a launch that changes state in between is counted twice,
         * not missed. */
        uint64_t inflight = __atomic_load_n(&row->inflight, __ATOMIC_SEQ_CST);
        uint64_t pending = read_word(&row->pending_ns, MAX_DURATION_NS, &sum.faults);
        uint64_t used = read_word(&row->used_ns, MAX_USED_NS, &sum.faults);
        sum.used_ns = add_capped(sum.used_ns, used);
        sum.launches += __atomic_load_n(&row->launches, __ATOMIC_RELAXED);
        sum.throttled_ns = add_capped(sum.throttled_ns, read_word(&row->throttled_ns, MAX_USED_NS, &sum.faults));
        uint64_t stamp = __atomic_load_n(&row->stamp, __ATOMIC_ACQUIRE);
        if (stamp == 0 || (dead && dead[slot] == stamp)) continue;
        if (inflight > MAX_INFLIGHT) {
            sum.faults += 1; /* counts as one launch in flight, which affects only its own container */
            inflight = 1;
        }
        sum.inflight += inflight;
        sum.busy += inflight > 0;
        sum.pending_ns = add_capped(sum.pending_ns, pending);
        uint64_t longest = read_word(&row->longest_ns, MAX_DURATION_NS, &sum.faults);
        if (longest > sum.longest_ns) sum.longest_ns = longest;
        uint64_t waiting = read_word(&row->waiting, MAX_WAITING, &sum.faults);
        sum.waiting = sum.waiting + (uint32_t)waiting > MAX_WAITING ? MAX_WAITING : sum.waiting + (uint32_t)waiting;
    }
    *digest = sum;
}
