/* A small request for which the full grant has no granule left may still fit into a granule that small allocations
 * share. It is tried only while nothing of that granule is being allocated or freed, and for one request of the
 * process at a time. If other threads fill the gap first, the driver takes a new granule for it: so until it is
 * answered, bytes that others had announced and did not need, or freed, stay announced and pay for that. */
#include "../../clock.h"
#include "../core/spin_lock.h"
#include "granules.h"
#include "quota.h"

#define WAIT_NS 2000000000ull

bool cot_gap_begin(uint32_t gpu) {
    uint32_t free_word = 0;
    for (uint64_t until = cot_monotonic_ns() + WAIT_NS;
         !atomic_compare_exchange_strong(&cot->gap.gpu, &free_word, gpu + 1);) {
        if (cot_monotonic_ns() > until) return false;
        free_word = 0;
        sched_yield();
    }
    return true;
}

/* An atomic read-modify-write: a thread that changed the tables before it and finds no request here has its change
 * seen by requests that come later. */
static bool is_wanted(uint32_t gpu) {
    return __builtin_expect(atomic_fetch_add(&cot->gap.gpu, 0) == gpu + 1, 0);
}

bool cot_gap_donate_announced(uint32_t gpu, uint64_t bytes) {
    if (!is_wanted(gpu)) return false;
    cot_spin_lock(&cot->gap.lock);
    bool wanted = atomic_load(&cot->gap.gpu) == gpu + 1;
    if (wanted) cot->gap.donated += bytes;
    cot_spin_unlock(&cot->gap.lock);
    return wanted;
}

bool cot_gap_donate_held(uint32_t gpu, uint64_t bytes) {
    if (!is_wanted(gpu)) return false;
    cot_announce(gpu, bytes);
    bool wanted = cot_gap_donate_announced(gpu, bytes);
    cot_release(gpu, bytes);
    if (!wanted) cot_rollback(gpu, bytes);
    return true;
}

uint64_t cot_gap_donated(void) {
    cot_spin_lock(&cot->gap.lock);
    uint64_t donated = cot->gap.donated;
    cot_spin_unlock(&cot->gap.lock);
    return donated;
}

uint64_t cot_gap_end(void) {
    cot_spin_lock(&cot->gap.lock);
    uint64_t donated = cot->gap.donated;
    cot->gap.donated = 0;
    atomic_store(&cot->gap.gpu, 0);
    cot_spin_unlock(&cot->gap.lock);
    return donated;
}
