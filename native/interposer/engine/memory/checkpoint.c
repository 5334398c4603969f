/* Checkpoints of this process by itself (cuCheckpointProcess*): its memory leaves the GPUs and comes back later.
 * The charge goes with it, and must fit again before the driver restores the memory.
 *
 * Only by itself: a slot is written by its own process alone. If one process checkpoints another, the agent sees it
 * in the driver's count and corrects the charge.
 *
 * While the process is locked every driver call but the checkpoint calls blocks, so this file makes no other. */
#include <unistd.h>

#include "../accounting/quota.h"
#include "../core/driver_calls.h"

/* Another thread that returns from the driver may still change these words: the sum is right again after the
 * restore. */
static void release_charge(void) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_slot_gpu *own = cot_own_row(gpu);
        cot->checkpoint.saved[gpu] = (struct cot_saved_charge){
            .held = __atomic_load_n(&own->held, __ATOMIC_SEQ_CST),
            .context = __atomic_exchange_n(&own->context, 0, __ATOMIC_RELAXED),
            .managed = __atomic_exchange_n(&own->managed, 0, __ATOMIC_RELAXED),
            .pool = __atomic_exchange_n(&own->pool, 0, __ATOMIC_RELAXED),
        };
        cot_release(gpu, cot->checkpoint.saved[gpu].held);
    }
    atomic_store(&cot->checkpoint.active, true);
}

static void restore_charge(void) {
    if (!atomic_exchange(&cot->checkpoint.active, false)) return;
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_slot_gpu *own = cot_own_row(gpu);
        cot_charge(gpu, cot->checkpoint.saved[gpu].held);
        __atomic_fetch_add(&own->context, cot->checkpoint.saved[gpu].context, __ATOMIC_RELAXED);
        __atomic_fetch_add(&own->managed, cot->checkpoint.saved[gpu].managed, __ATOMIC_RELAXED);
        __atomic_fetch_add(&own->pool, cot->checkpoint.saved[gpu].pool, __ATOMIC_RELAXED);
    }
}

static bool is_own(int pid) {
    return pid == getpid() && cot_attached();
}

abi_result cot_cuCheckpointProcessCheckpoint(int pid, void *arguments) {
    abi_result result = CALL_REAL(cuCheckpointProcessCheckpoint, (int, void *), pid, arguments);
    if (result != ABI_SUCCESS || !is_own(pid)) return result;
    release_charge();
    /* Another thread may have restored it before the charge was released. */
    int state = ABI_PROCESS_CHECKPOINTED;
    if (CALL_DRIVER("cuCheckpointProcessGetState", (int, int *), pid, &state) == ABI_SUCCESS &&
        state != ABI_PROCESS_CHECKPOINTED)
        restore_charge();
    return result;
}

static void rollback(uint32_t gpus) {
    while (gpus-- > 0) {
        if (cot->checkpoint.saved[gpus].held) cot_rollback(gpus, cot->checkpoint.saved[gpus].held);
    }
}

abi_result cot_cuCheckpointProcessRestore(int pid, void *arguments) {
    if (!is_own(pid) || !cot_is_checkpointed())
        return CALL_REAL(cuCheckpointProcessRestore, (int, void *), pid, arguments);
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (!cot->checkpoint.saved[gpu].held || cot_reserve(gpu, cot->checkpoint.saved[gpu].held)) continue;
        cot_count_denied(gpu);
        rollback(gpu);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    abi_result result = CALL_REAL(cuCheckpointProcessRestore, (int, void *), pid, arguments);
    if (result == ABI_SUCCESS) restore_charge();
    rollback(cot_gpu_count());
    return result;
}

/* A process that can be unlocked has its memory; another process may have restored it. */
abi_result cot_cuCheckpointProcessUnlock(int pid, void *arguments) {
    abi_result result = CALL_REAL(cuCheckpointProcessUnlock, (int, void *), pid, arguments);
    if (result == ABI_SUCCESS && is_own(pid)) restore_charge();
    return result;
}
