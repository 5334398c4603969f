/* Joins the parts of the engine: which of them act when a part below has an event (core/hooks.h). */
#include "core/hooks.h"

#include "launch/gate.h"
#include "memory/blocks/blocks.h"
#include "memory/ordered_frees.h"
#include "memory/pools/pools.h"

static void reclaim(uint32_t gpu) {
    cot_ordered_frees_settle();
    cot_pools_trim(gpu);
    cot_graphs_trim(gpu);
}

static struct cot_gates *pause(void) {
    cot_ordered_frees_pause();
    return cot_completion_pause();
}

static void resume(struct cot_gates *paused) {
    cot_ordered_frees_resume();
    cot_completion_resume(paused);
}

static void end_context(void *context) {
    cot_launches_end_context(context);
    cot_memory_drop_context(context);
    cot_ordered_frees_drop_context(context);
}

static void reassign_context(const void *view, void *successor) {
    cot_memory_reassign_context(view, successor);
    cot_ordered_frees_reassign_context(view, successor);
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
    .pause_queries = pause,
    .resume_queries = resume,
    .reassign_context = reassign_context,
    .end_context = end_context,
    .contexts_ended = contexts_ended,
};
