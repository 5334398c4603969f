/* The arbiter's thread: rounds over the pages of one plan after another, and what they come to. */
#pragma once

#include "plan.h"

/* Counts are those since the page joined, but for launches, which are all that its ledger has. */
struct told_gpu {
    uint64_t charged_ns, contended_ns, throttled_ns, launches, overruns, faults;
    uint32_t guarantee_ppm, limit_ppm;
    bool high, native;
};
struct told_page {
    char id[PAGE_ID_BYTES];
    const char *broken;
    uint32_t join; /* which one that was, of this process */
    uint32_t gpu_count;
    struct told_gpu gpu[COT_MAX_GPUS];
};
/* What the rounds came to: as of the last second. */
struct told {
    uint64_t plan;    /* the one that they go by */
    uint64_t late_ns; /* most by which a round came later than it should have, in that second */
    uint32_t count;
    struct told_page page[];
};

/* A descriptor that can be read from when there is something to tell. */
int rounds_start(void);
/* Waits until the plan before it was taken. */
void rounds_plan(struct plan *plan);
/* The newest, or NULL if it was taken already; the caller's. Until the next one there is nothing to read. */
struct told *rounds_told(void);
