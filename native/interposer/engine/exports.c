/* What the engine's file exports: its number, the versions it works with, and the function for each entry point. */
#include "../../shared-memory/ledger.h"
#include "../generated/cuda_verbs.h"
#include "accounting/grant.h"

/* Every entry point whose verb is not pass, gate or resolve has a C function cot_SYMBOL; without it this does not
 * link. */
#define DECLARE(index, symbol) extern abi_result cot_##symbol();
COT_CUDA_SERVED(DECLARE)
abi_result cot_cuGraphLaunch(abi_graph_exec handle, abi_stream stream);
abi_result cot_cuGraphLaunch_ptsz(abi_graph_exec handle, abi_stream stream);
abi_result cot_cotenant_admit(struct cot_gated_launch *flight);
abi_result cot_cotenant_launched(struct cot_gated_launch *flight, abi_result result);
abi_result cot_cotenant_help(struct cot_completion_wait *errand);

static const struct cot_served SERVED[] = {
#define ROW(index, symbol) {#symbol, (void *)cot_##symbol},
    COT_CUDA_SERVED(ROW)
#undef ROW
    /* Served once the engine has diverted them (memory/pools/graphs.c). */
    {"cuGraphLaunch", (void *)cot_cuGraphLaunch},
    {"cuGraphLaunch_ptsz", (void *)cot_cuGraphLaunch_ptsz},
    {"cotenant_admit", (void *)cot_cotenant_admit},
    {"cotenant_launched", (void *)cot_cotenant_launched},
    {"cotenant_help", (void *)cot_cotenant_help},
};

extern const struct cot_engine cotenant_engine;
__attribute__((visibility("default"))) const struct cot_engine cotenant_engine = {
    .magic = COT_ENGINE_MAGIC,
    .bytes = sizeof(struct cot_engine),
    .number = COT_ENGINE_NUMBER,
    .services_bytes =
        offsetof(struct cot_services, fork_zeroed_word), /* an older libcotenant.so has no fork_zeroed_word */
    .state_bytes = sizeof(struct cot_state),
    .thread_bytes = sizeof(struct cot_thread),
    .layout_first = COT_STATE_LAYOUT,
    .layout_last = COT_STATE_LAYOUT,
    .page_first = COT_LIMITS_PAGE_OLDEST,
    .page_last = COT_LIMITS_PAGE_VERSION,
    .ledger_first = COT_LEDGER_OLDEST,
    .ledger_last = COT_LEDGER_VERSION,
    .served_count = sizeof SERVED / sizeof *SERVED,
    .served = SERVED,
    .start = cot_start,
    .note = cot_record_engine,
};
