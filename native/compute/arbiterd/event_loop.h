/* The arbiter's thread: runs rounds over the pages of the current plan and publishes a status. */
#pragma once

#include "plan.h"

/* Counts since the page joined; launches are all that its ledger has. */
struct gpu_status {
    uint64_t charged_ns, contended_ns, throttled_ns, relieved, launches, overruns, faults;
    uint32_t guarantee_ppm, limit_ppm;
    bool high, native;
};
struct page_status {
    char id[PAGE_ID_BYTES];
    const char *broken;
    uint32_t join; /* number of its join in this process */
    uint32_t gpu_count;
    struct gpu_status gpu[COT_MAX_GPUS];
};
/* Status of the last second. */
struct status {
    uint64_t plan;    /* the plan in force */
    uint64_t late_ns; /* the longest delay of a round in that second */
    uint32_t count;
    struct page_status page[];
};

/* Starts the thread. The returned descriptor is readable when there is a status. */
int event_loop_start(void);
/* Waits until the earlier plan was taken. */
void event_loop_set_plan(struct plan *plan);
/* The newest status, or NULL if it was taken already; the caller frees it. */
struct status *event_loop_take_status(void);
