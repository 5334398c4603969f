/* GPM counters of a simulated GPU: how long kernels ran, on which part of its SMs, and how busy they kept the units
 * with a configured activity. */
#include "node.h"

/* A kernel occupies one SM per block, up to all of them, for its whole duration. */
void counters_advance(struct gpu *gpu, uint64_t ns, uint32_t sms, uint32_t sm_count) {
    struct sim_counters *counters = &gpu->counters;
    counters->at_ns += ns;
    if (sms == 0) return;
    counters->busy_ns += ns;
    counters->sm_ns += ns * sms / sm_count;
    for (int i = 0; i < SIM_ACTIVE_COUNT; i++) counters->active_ns[i] += ns * gpu->active_percent[i] / 100;
}

bool counters_set(struct gpu *gpu, uint64_t state, uint64_t value) {
    if (state < SIM_STATE_ACTIVE || state >= SIM_STATE_ACTIVE + SIM_ACTIVE_COUNT || value > 100) return false;
    gpu->active_percent[state - SIM_STATE_ACTIVE] = (uint32_t)value;
    gpu->counters.configured |= 1u << (state - SIM_STATE_ACTIVE);
    return true;
}
