/* The object itself: its names and who serves them, where a program enters the grant, and the gate's slow side. */
#include <time.h>

#include "cot.h"

#define DECLARE_SYMBOL(index, symbol, verb, group) extern void symbol(void);
COT_CUDA_ROWS(DECLARE_SYMBOL)
/* Every wrapped symbol has a C function cot_SYMBOL; a verb without its wrapper does not link. */
#define DECLARE_WRAPPER(index, symbol) extern abi_result cot_##symbol();
COT_CUDA_WRAPPED(DECLARE_WRAPPER)

#define SERVE_WRAPPED(symbol) (void *)symbol, (void *)cot_##symbol, false
#define SERVE_RESERVE SERVE_WRAPPED
#define SERVE_RELEASE SERVE_WRAPPED
#define SERVE_TRACK SERVE_WRAPPED
#define SERVE_VIRTUALISE SERVE_WRAPPED
#define SERVE_RESOLVE SERVE_WRAPPED
#define SERVE_GATE(symbol) (void *)symbol, NULL, true
#define SERVE_PASS(symbol) (void *)symbol, NULL, false

const struct shim_entry shim_entries[] = {
#define ENTRY(index, symbol, verb, group) {#symbol, SERVE_##verb(symbol)},
    COT_CUDA_ROWS(ENTRY)
#undef ENTRY
};
const uint32_t shim_entry_count = COT_CUDA_COUNT;
const char shim_soname[] = "libcuda.so.1";
const char shim_marker[] = "cotenant_interposer";

static const uint32_t open_gate = COT_GATE_OPEN;
const uint32_t *shim_gate = &open_gate;

int shim_missing(void) {
    return shim_real_library() ? ABI_ERROR_NOT_FOUND : ABI_ERROR_NO_DEVICE;
}

void shim_unknown(void) {
    cot_note_unknown();
}

abi_result cot_cuInit(unsigned flags) {
    abi_result result = CALL_REAL(cuInit, (unsigned), flags);
    return result == ABI_SUCCESS ? cot_attach() : result;
}

/* ---- the gate ---- */

#define LOOK_NS 1000000         /* how often a closed gate is looked at */
#define STALE_NS 30000000000ull /* a gate whose agent has been silent for so long is open */

static bool starts_with(const char *text, const char *start) {
    while (*start) {
        if (*text++ != *start++) return false;
    }
    return true;
}

/* Where each launch form carries its stream: in a register, on the stack, or in a structure. */
static abi_stream stream_of(const char *name, const uint64_t *registers, const uint64_t *stack) {
    if (starts_with(name, "cuLaunchKernelEx")) {
        const abi_launch_config *config = (const abi_launch_config *)registers[0];
        return config ? config->stream : NULL;
    }
    if (starts_with(name, "cuLaunchCooperativeKernelMultiDevice")) return NULL;
    if (starts_with(name, "cuLaunchKernel") || starts_with(name, "cuLaunchCooperativeKernel"))
        return (abi_stream)stack[2]; /* ninth */
    if (starts_with(name, "cuLaunchGridAsync")) return (abi_stream)registers[3];
    if (starts_with(name, "cuGraphLaunch")) return (abi_stream)registers[1];
    return NULL;
}

static uint64_t boot_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Waits outside all of our own locks until the gate opens. What is being captured does not run, so it never waits. */
void *shim_gate_wait(uint64_t index, const uint64_t *registers, const uint64_t *stack) {
    int status = ABI_CAPTURE_NONE;
    abi_stream stream = stream_of(shim_entries[index].name, registers, stack);
    bool capturing = CALL_DRIVER("cuStreamIsCapturing", (abi_stream, int *), stream, &status) == ABI_SUCCESS &&
                     status != ABI_CAPTURE_NONE;
    while (!capturing && __atomic_load_n(shim_gate, __ATOMIC_ACQUIRE) != COT_GATE_OPEN) {
        const struct cot_page *page = cot_page_now();
        if (!page || boot_ns() - __atomic_load_n(&page->header.heartbeat_ns, __ATOMIC_RELAXED) > STALE_NS) break;
        struct timespec pause = {.tv_nsec = LOOK_NS};
        nanosleep(&pause, NULL);
    }
    void *target = __atomic_load_n(&shim_target[index], __ATOMIC_ACQUIRE);
    return target;
}
