/* A plan: which lease pages there are, on which GPUs, with which requests, and each GPU's policy. The agent sends it
 * whole whenever anything of it changes, one line for each:
 *
 *     plan NUMBER
 *     gpu GPU INSTANCES
 *     page ID SLOTS GPUS PATH                          the ledger's path, to the end of the line
 *     on GPU POLICY SHARE LIMIT WEIGHT HIGH CAP        for each GPU of the page before it, in the page's order
 *     end
 *
 * Shares are parts per million. A plan with an invalid line is refused as a whole. The agent's side is
 * src/agent/compute/arbiter-plan.ts. */
#pragma once

#include "guarded_pages.h"

struct planned {
    struct page *page; /* newly opened, or kept from the plan before */
    bool is_new;       /* no earlier plan has it */
    struct cot_request request[COT_MAX_GPUS];
};
struct plan {
    uint64_t number;
    uint32_t instances[COT_ARBITER_GPUS];
    uint32_t count;
    struct planned planned[COT_ARBITER_GPUS * COT_ARBITER_MEMBERS];
};

/* Reads one line. Returns the plan with its last line, NULL before; *why is set if the line is invalid or its page
 * cannot be opened. `known` is the list of open pages: pages that are still wanted are reused, new ones are added. A
 * page that cannot be opened is left out, and *why begins with its ID. */
struct plan *plan_line(const char *line, struct page **known, const char **why);
