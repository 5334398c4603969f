/* A small request that the full grant has no granule for may still fit where small ones lie already. It is told so only
 * while nothing of its page is on its way, and there is one such request of a process at a time. Should others take the
 * gap before it, the driver gives it a granule of its own: so what they had announced and did not need, or freed, stays
 * announced until it has its answer, and pays for that. */
#include "../../clock.h"
#include "../core/spin_lock.h"
#include "granules.h"
#include "quota.h"

#define WAIT_NS 2000000000ull

bool cot_gap_begin(uint32_t gpu) {
    uint32_t nobody = 0;
    for (uint64_t until = cot_monotonic_ns() + WAIT_NS;
         !atomic_compare_exchange_strong(&cot->gap.gpu, &nobody, gpu + 1);) {
        if (cot_monotonic_ns() > until) return false;
        nobody = 0;
        sched_yield();
    }
    return true;
}

/* A locked read: whoever changed the tables before it and sees nobody here is seen in them by who comes later. */
bool cot_gap_is_wanted(uint32_t gpu) {
    return __builtin_expect(atomic_fetch_add(&cot->gap.gpu, 0) == gpu + 1, 0);
}

bool cot_gap_give_announced(uint32_t gpu, uint64_t bytes) {
    if (!cot_gap_is_wanted(gpu)) return false;
    cot_spin_lock(&cot->gap.lock);
    bool wanted = atomic_load(&cot->gap.gpu) == gpu + 1;
    if (wanted) cot->gap.pot += bytes;
    cot_spin_unlock(&cot->gap.lock);
    return wanted;
}

bool cot_gap_give_held(uint32_t gpu, uint64_t bytes) {
    if (!cot_gap_is_wanted(gpu)) return false;
    cot_announce(gpu, bytes);
    bool wanted = cot_gap_give_announced(gpu, bytes);
    cot_release(gpu, bytes);
    if (!wanted) cot_rollback(gpu, bytes);
    return true;
}

uint64_t cot_gap_pot(void) {
    cot_spin_lock(&cot->gap.lock);
    uint64_t pot = cot->gap.pot;
    cot_spin_unlock(&cot->gap.lock);
    return pot;
}

uint64_t cot_gap_end(void) {
    cot_spin_lock(&cot->gap.lock);
    uint64_t pot = cot->gap.pot;
    cot->gap.pot = 0;
    atomic_store(&cot->gap.gpu, 0);
    cot_spin_unlock(&cot->gap.lock);
    return pot;
}
