/* Joins the parts of the engine: which of them act when a part below has an event (core/hooks.h). */
#include "core/hooks.h"

#include "launch/gate.h"
#include "memory/blocks/blocks.h"
#include "memory/pools/pools.h"

static void reclaim(uint32_t gpu) {
    cot_pools_trim(gpu);
    cot_graphs_trim(gpu);
}

static void end_context(void *context) {
    cot_launches_end_context(context);
    cot_memory_drop_context(context);
}

/* A GPU's pools and graphs lose their memory with its last context; the driver knows which one that is. */
static void contexts_ended(uint32_t gpu, bool last) {
    cot_pools_read_back();
    if (last) cot_pools_end(gpu);
    cot_graphs_read_back(gpu);
}

const struct cot_hooks cot_hooks = {
    .attach = cot_lease_page_map,
    .detach = cot_lease_page_unmap,
    .reclaim = reclaim,
    .pause_completions = cot_completion_pause,
    .resume_completions = cot_completion_resume,
    .reassign_context = cot_memory_reassign_context,
    .end_context = end_context,
    .contexts_ended = contexts_ended,
};
