/* Kernel clocks in nanoseconds. */
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t cot_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline uint64_t cot_monotonic_ns(void) {
    return cot_clock_ns(CLOCK_MONOTONIC);
}
/* The clock of the agent's heartbeat and of the lease page: it goes on while the machine sleeps. */
static inline uint64_t cot_boottime_ns(void) {
    return cot_clock_ns(CLOCK_BOOTTIME);
}
