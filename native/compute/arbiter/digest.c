/* From a tenant's half of a compute page to a digest: each word is read once and nothing of it is believed. What no
 * process of ours would write counts as a fault, and as nothing. */
#include "arbiter.h"

#define MOST_INFLIGHT (1ull << 20) /* of a process: far above what a driver queues */
#define MOST_WAITING 65536u
#define MOST_USED_NS (COT_MAX_PLAUSIBLE_NS >> 3)    /* of a process: four years */
#define MOST_LENGTH_NS (COT_MAX_PLAUSIBLE_NS >> 12) /* of a launch, and of all that are under way: three days */

static uint64_t plus(uint64_t sum, uint64_t more) {
    return sum + more < COT_MAX_PLAUSIBLE_NS ? sum + more : COT_MAX_PLAUSIBLE_NS;
}

static uint64_t word(const uint64_t *from, uint64_t most, uint32_t *faults) {
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
    for (uint32_t slot = 0; slot < slots; slot++) {
        const struct cot_lease_row *row = cot_lease_row_at((void *)page, gpu_count, slot, gpu);
        /* Announcements before what they turn into: what moves in between is met twice, not missed. */
        uint64_t inflight = __atomic_load_n(&row->inflight, __ATOMIC_SEQ_CST);
        uint64_t pending = word(&row->pending_ns, MOST_LENGTH_NS, &sum.faults);
        uint64_t used = word(&row->used_ns, MOST_USED_NS, &sum.faults);
        sum.used_ns = plus(sum.used_ns, used);
        sum.launches += __atomic_load_n(&row->launches, __ATOMIC_RELAXED);
        sum.throttled_ns = plus(sum.throttled_ns, word(&row->throttled_ns, MOST_USED_NS, &sum.faults));
        uint64_t stamp = __atomic_load_n(&row->stamp, __ATOMIC_ACQUIRE);
        if (stamp == 0 || (dead && dead[slot] == stamp)) continue;
        if (inflight > MOST_INFLIGHT) {
            sum.faults += 1; /* counts as something under way, which harms nobody but itself */
            inflight = 1;
        }
        sum.inflight += inflight;
        sum.pending_ns = plus(sum.pending_ns, pending);
        uint64_t longest = word(&row->longest_ns, MOST_LENGTH_NS, &sum.faults);
        if (longest > sum.longest_ns) sum.longest_ns = longest;
        uint64_t waiting = word(&row->waiting, MOST_WAITING, &sum.faults);
        sum.waiting = sum.waiting + (uint32_t)waiting > MOST_WAITING ? MOST_WAITING : sum.waiting + (uint32_t)waiting;
    }
    *digest = sum;
}
