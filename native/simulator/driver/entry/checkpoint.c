/* Checkpoints: a process's memory leaves its GPUs and comes back. Contents stay in host memory; only the node's
 * accounting changes. If a process has locked itself, its other calls of the driver wait until it is unlocked, as with
 * the real driver; if another process has locked it, its calls go on. */
#include <string.h>
#include <unistd.h>

#include "../sim.h"

/* As SIM_ENTER, for calls that a locked process may make. */
static int enter(const char *name) {
    int result = sim_faults_armed ? sim_fault(name) : ABI_SUCCESS;
    if (result) return result;
    return *sim_alive && (atomic_load(&sim.ready) || sim_is_process_locked()) ? ABI_SUCCESS : ABI_ERROR_NOT_INITIALIZED;
}

static int step(const char *name, int pid, uint64_t what, uint64_t *state) {
    SIM_TRY(enter(name));
    return sim_simple(SIM_PROCESS, 0, (uint64_t)pid, what, state);
}

SIM_EXPORT abi_result cuCheckpointProcessLock(int pid, const void *arguments) {
    (void)arguments;
    uint64_t state;
    int result = step("cuCheckpointProcessLock", pid, SIM_PROCESS_LOCK, &state);
    if (result != ABI_SUCCESS || pid != getpid()) return result;
    sim_lock_process(true);
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        struct sim_context context = {.gpu = (uint32_t)i};
        sim_wait_all(&context);
    }
    return result;
}
SIM_EXPORT abi_result cuCheckpointProcessCheckpoint(int pid, const void *arguments) {
    (void)arguments;
    uint64_t state;
    return step("cuCheckpointProcessCheckpoint", pid, SIM_PROCESS_CHECKPOINT, &state);
}
SIM_EXPORT abi_result cuCheckpointProcessRestore(int pid, const void *arguments) {
    (void)arguments;
    uint64_t state;
    return step("cuCheckpointProcessRestore", pid, SIM_PROCESS_RESTORE, &state);
}
SIM_EXPORT abi_result cuCheckpointProcessUnlock(int pid, const void *arguments) {
    (void)arguments;
    uint64_t state;
    int result = step("cuCheckpointProcessUnlock", pid, SIM_PROCESS_UNLOCK, &state);
    if (result == ABI_SUCCESS && pid == getpid()) sim_lock_process(false);
    return result;
}
SIM_EXPORT abi_result cuCheckpointProcessGetState(int pid, int *out) {
    uint64_t state = ABI_PROCESS_RUNNING;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    int result = step("cuCheckpointProcessGetState", pid, SIM_PROCESS_GET_STATE, &state);
    if (result == ABI_SUCCESS) *out = (int)state;
    return result;
}
SIM_EXPORT abi_result cuCheckpointProcessGetRestoreThreadId(int pid, int *out) {
    uint64_t state;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    int result = step("cuCheckpointProcessGetRestoreThreadId", pid, SIM_PROCESS_GET_STATE, &state);
    if (result == ABI_SUCCESS) *out = pid; /* its first thread */
    return result;
}
