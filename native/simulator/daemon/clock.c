/* The monotonic clock, and random numbers. */
#include <time.h>

#include "node.h"

uint64_t node_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* xorshift64: repeatable by the seed of --perturb. */
uint64_t node_random(struct node *node) {
    uint64_t x = node->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return node->random = x;
}
