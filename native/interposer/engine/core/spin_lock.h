/* A lock of two instructions for sections that never call the driver. It lies in the state of the process, so that
 * engines that replace one another share it. */
#pragma once

#include <sched.h>

#include "engine.h"

#define SPINS_BEFORE_YIELD 64

static inline bool cot_spin_try_lock(struct cot_lock *lock) {
    return __builtin_expect(!atomic_exchange_explicit(&lock->word, 1, memory_order_acquire), 1);
}
static inline void cot_spin_lock(struct cot_lock *lock) {
    for (unsigned tries = 0; !cot_spin_try_lock(lock); tries++) {
        if (tries > SPINS_BEFORE_YIELD) sched_yield();
    }
}
static inline void cot_spin_unlock(struct cot_lock *lock) {
    atomic_store_explicit(&lock->word, 0, memory_order_release);
}
