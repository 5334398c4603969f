/* The slow side of the launch gate: a launch waits here while the agent has closed the gate, and goes on to its wrapper
 * where the container's compute is leased. The fast side, one load and compare, is in symbols/trampoline.inc. */
#include <stdatomic.h>

#include "../../shared-memory/limits_page.h"
#include "../clock.h"
#include "entry.h"

static const uint32_t open_gate = COT_GATE_OPEN;
const uint32_t *shim_gate = &open_gate;
static _Atomic(const uint64_t *) agent_heartbeat;

void entry_watch_gate(const uint32_t *gate, const uint64_t *heartbeat) {
    if (heartbeat) cot_read_boottime_offset();
    atomic_store(&agent_heartbeat, heartbeat);
    __atomic_store_n(&shim_gate, gate ? gate : &open_gate, __ATOMIC_SEQ_CST);
}

#define LOOK_NS 1000000         /* how often a waiting launch reads the gate */
#define STALE_NS 30000000000ull /* without a heartbeat for so long the gate counts as open */

static bool starts_with(const char *text, const char *start) {
    while (*start) {
        if (*text++ != *start++) return false;
    }
    return true;
}

/* The stream of a launch: in a register, on the stack or in a structure. */
static abi_stream stream_of(const char *name, const uint64_t *registers, const uint64_t *stack) {
    if (starts_with(name, "cuLaunchKernelEx")) {
        const abi_launch_config *config = (const abi_launch_config *)shim_argument(registers, stack, 0);
        return config ? config->stream : NULL;
    }
    if (starts_with(name, "cuLaunchCooperativeKernelMultiDevice")) return NULL;
    if (starts_with(name, "cuLaunchKernel") || starts_with(name, "cuLaunchCooperativeKernel"))
        return (abi_stream)shim_argument(registers, stack, 8);
    if (starts_with(name, "cuLaunchGridAsync")) return (abi_stream)shim_argument(registers, stack, 3);
    if (starts_with(name, "cuGraphLaunch")) return (abi_stream)shim_argument(registers, stack, 1);
    return NULL;
}

static bool is_captured(uint64_t index, const uint64_t *registers, const uint64_t *stack) {
    int status = ABI_CAPTURE_NONE;
    abi_stream stream = stream_of(shim_name((uint32_t)index), registers, stack);
    abi_result (*is_capturing)(abi_stream, int *) = shim_real_by_name("cuStreamIsCapturing");
    return is_capturing && is_capturing(stream, &status) == ABI_SUCCESS && status != ABI_CAPTURE_NONE;
}

/* Waits, holding no lock, until the gate opens. What is being captured does not run, so it never waits. */
void *shim_gate_wait(uint64_t index, const uint64_t *registers, const uint64_t *stack) {
    uint32_t gate = __atomic_load_n(shim_gate, __ATOMIC_ACQUIRE);
    bool captured = gate & COT_GATE_CLOSED && is_captured(index, registers, stack);
    while (!captured && gate & COT_GATE_CLOSED) {
        const uint64_t *beat = atomic_load(&agent_heartbeat);
        if (!beat || cot_boottime_ns() - __atomic_load_n(beat, __ATOMIC_RELAXED) > STALE_NS) break;
        struct timespec pause = {.tv_nsec = LOOK_NS};
        nanosleep(&pause, NULL);
        gate = __atomic_load_n(shim_gate, __ATOMIC_ACQUIRE);
    }
    void *leased = gate & COT_GATE_LEASED ? entry_leased_wrapper(index) : NULL;
    void *target = leased ? leased : __atomic_load_n(&shim_target[index], __ATOMIC_ACQUIRE);
    return target ? target : shim_resolve(index, registers, stack);
}
