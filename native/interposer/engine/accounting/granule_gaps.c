/* A small request that the full grant has no granule for may still fit where small ones lie already. It is told so only
 * while nothing of its page is on its way, and there is one such request of a process at a time. Should others take the
 * gap before it, the driver gives it a granule of its own: so what they had announced and did not need, or freed, stays
 * announced until it has its answer, and pays for that. */
#include <sched.h>
#include <time.h>

#include "../engine_internal.h"

#define WAIT_NS 2000000000ll

static void lock(void) {
    for (unsigned tries = 0; atomic_exchange_explicit(&cot->gap.lock.word, 1, memory_order_acquire); tries++) {
        if (tries > 64) sched_yield();
    }
}
static void unlock(void) {
    atomic_store_explicit(&cot->gap.lock.word, 0, memory_order_release);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

bool cot_gap_begin(uint32_t gpu) {
    uint32_t nobody = 0;
    for (int64_t until = now_ns() + WAIT_NS; !atomic_compare_exchange_strong(&cot->gap.gpu, &nobody, gpu + 1);) {
        if (now_ns() > until) return false;
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
    lock();
    bool wanted = atomic_load(&cot->gap.gpu) == gpu + 1;
    if (wanted) cot->gap.pot += bytes;
    unlock();
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
    lock();
    uint64_t pot = cot->gap.pot;
    unlock();
    return pot;
}

uint64_t cot_gap_end(void) {
    lock();
    uint64_t pot = cot->gap.pot;
    cot->gap.pot = 0;
    atomic_store(&cot->gap.gpu, 0);
    unlock();
    return pot;
}
