/* What the agent wants: which pages there are, on which GPUs, with what requests, and each GPU's policy. It says so
 * whole whenever anything of it changes, one line for each:
 *
 *     plan NUMBER
 *     GPU GPU INSTANCES
 *     page ID SLOTS GPUS PATH                          the ledger's path, to the end of the line
 *     on GPU POLICY SHARE LIMIT WEIGHT HIGH CAP        for each GPU of the page before it, in the page's order
 *     end
 *
 * Shares are parts of a million. A plan that is not understood is refused whole. */
#pragma once

#include "guarded_pages.h"

struct want {
    struct page *page; /* as it was opened, or kept from the plan before */
    bool is_new;       /* it is in no plan before this one */
    struct cot_request request[COT_MAX_GPUS];
};
struct plan {
    uint64_t number;
    uint32_t instances[COT_ARBITER_GPUS];
    uint32_t count;
    struct want want[COT_ARBITER_GPUS * COT_ARBITER_MEMBERS];
};

/* Takes one line. Returns a plan when it is whole, NULL before; *why is set where a line was not understood. `known` is
 * the list of pages that are open: those that are wanted again are taken from it as they are, new ones are put in. A
 * page that cannot be opened is left out, and said so by `*why` with its id. */
struct plan *plan_line(const char *line, struct page **known, const char **why);
