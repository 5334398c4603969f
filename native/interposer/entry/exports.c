/* libcotenant.so put together: what it stands in for, and what it gives to engines. No other file calls into this one.
 */
#include "../../shared-memory/limits_page.h"
#include "../generated/cuda_verbs.h"
#include "engine_switch.h"
#include "entry.h"

#include "../generated/cuda_names.h"
const uint32_t shim_entry_count = COT_CUDA_COUNT;
static_assert(COT_CUDA_COUNT <= SHIM_MAX_ENTRIES, "a place for each address");
const char shim_soname[] = "libcuda.so.1";
const char shim_marker[] = "cotenant_interposer";
const int shim_no_library = ABI_ERROR_NO_DEVICE;
const int shim_no_function = ABI_ERROR_NOT_FOUND;

/* ---- unknown entry points, counted here until the process has a ledger ---- */

static _Atomic uint64_t unknown_before;
_Atomic(_Atomic uint64_t *) shim_unknown_count = &unknown_before;

static void watch(const uint32_t *gate, const uint64_t *heartbeat, uint64_t *unknown) {
    entry_watch_gate(gate, heartbeat);
    atomic_store(&shim_unknown_count, unknown ? (_Atomic uint64_t *)unknown : &unknown_before);
    uint64_t before = unknown ? atomic_exchange(&unknown_before, 0) : 0;
    if (before) atomic_fetch_add_explicit((_Atomic uint64_t *)unknown, before, memory_order_relaxed);
}

/* ---- what engines are given ---- */

static bool has_driver(void) {
    return shim_real_library() != NULL;
}

static void divert(const char *name) {
#define DIVERT(symbol) \
    if (!strcmp(name, #symbol)) shim_divert(name, (void *)entry_##symbol);
    ENTRY_DIVERTED(DIVERT)
#undef DIVERT
}

struct cot_services entry_services = {
    .bytes = sizeof entry_services,
    .state = &entry_state.state,
    .thread_bytes = sizeof(struct cot_thread),
    .has_driver = has_driver,
    .real = shim_real_by_name,
    .missing = shim_missing,
    .folder = shim_own_folder,
    .divert = divert,
    .watch = watch,
    .want_engine = entry_want_engine,
    .start_completion_thread = entry_start_completion_thread,
};
