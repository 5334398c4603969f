/* libcotenant-nvml.so put together: NVML's names. Look-ups arrive through libcotenant.so's dlsym. */
#include "../generated/nvml_verbs.h"
#include "../symbols/symbols.h"

#include "../../abi/nvml.h"
#include "../../shared-memory/limits_page.h"

#include "../generated/nvml_names.h"
const uint32_t shim_entry_count = COT_NVML_COUNT;
const char shim_soname[] = "libnvidia-ml.so.1";
const char shim_marker[] = "cotenant_nvml";

static const uint32_t open_gate = COT_GATE_OPEN;
const uint32_t *shim_gate = &open_gate;

const int shim_no_library = NVML_ABI_LIBRARY_NOT_FOUND;
const int shim_no_function = NVML_ABI_FUNCTION_NOT_FOUND;

/* Unknown functions of NVML only inform: the count is not published. */
static _Atomic uint64_t unknown;
_Atomic(_Atomic uint64_t *) shim_unknown_count = &unknown;

/* No NVML function is gated. */
void *shim_gate_wait(uint64_t index, const uint64_t *registers, const uint64_t *stack) {
    return shim_target[index];
}

__attribute__((visibility("default"))) bool cotenant_nvml_look_up(void *handle, const char *name, const void *caller,
                                                                  void **answer) {
    return shim_look_up(handle, name, caller, answer);
}
