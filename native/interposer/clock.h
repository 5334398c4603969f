/* Kernel clocks in nanoseconds. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

/* time_namespace.c: what this process's time namespace adds to the clock since boot; 0 until it was read. */
extern __attribute__((visibility("hidden"))) _Atomic int64_t cot_boottime_offset_ns;
__attribute__((visibility("hidden"))) void cot_read_boottime_offset(void);

static inline uint64_t cot_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline uint64_t cot_monotonic_ns(void) {
    return cot_clock_ns(CLOCK_MONOTONIC);
}
/* The clock of the agent's heartbeat and of the lease page: it goes on while the machine sleeps. That of the host,
 * whatever the time namespace. */
static inline uint64_t cot_boottime_ns(void) {
    return cot_clock_ns(CLOCK_BOOTTIME) - (uint64_t)atomic_load_explicit(&cot_boottime_offset_ns, memory_order_relaxed);
}
