/* Clocks and random numbers. */
#include <time.h>

#include "node.h"

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
uint64_t node_now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}
uint64_t node_wall_us(void) {
    return clock_ns(CLOCK_REALTIME) / 1000;
}

/* xorshift64: repeatable by the seed of --perturb. */
uint64_t node_random(struct node *node) {
    uint64_t x = node->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return node->random = x;
}
