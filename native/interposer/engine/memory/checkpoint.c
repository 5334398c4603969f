/* Checkpoints of this process by itself: its memory leaves the GPUs behind every allocator's back, and comes back. The
 * charge goes with it, and must fit again before the driver is asked to bring it back.
 *
 * Only its own: a slot has one writer, its process. What one process does to another shows in the driver's count, which
 * the agent compares with the ledger.
 *
 * While the process is locked every call of the driver but the checkpoint's own waits, so none is made here. */
#include <unistd.h>

#include "../accounting/quota.h"
#include "../core/driver_calls.h"

/* A charge that another thread, on its way back from the driver, still adds or takes meets what is left of the words:
 * it is right again when these have come back. */
static void leave(void) {
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_slot_gpu *own = cot_own(gpu);
        cot->checkpoint.saved[gpu] = (struct cot_parts){
            .held = __atomic_load_n(&own->held, __ATOMIC_SEQ_CST),
            .context = __atomic_exchange_n(&own->context, 0, __ATOMIC_RELAXED),
            .managed = __atomic_exchange_n(&own->managed, 0, __ATOMIC_RELAXED),
            .pool = __atomic_exchange_n(&own->pool, 0, __ATOMIC_RELAXED),
        };
        cot_release(gpu, cot->checkpoint.saved[gpu].held);
    }
    atomic_store(&cot->checkpoint.away, true);
}

static void come_back(void) {
    if (!atomic_exchange(&cot->checkpoint.away, false)) return;
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_slot_gpu *own = cot_own(gpu);
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
    leave();
    /* Another thread may have restored it before the charge was gone. */
    int state = ABI_PROCESS_CHECKPOINTED;
    if (CALL_DRIVER("cuCheckpointProcessGetState", (int, int *), pid, &state) == ABI_SUCCESS &&
        state != ABI_PROCESS_CHECKPOINTED)
        come_back();
    return result;
}

static void rollback(uint32_t gpus) {
    while (gpus-- > 0) {
        if (cot->checkpoint.saved[gpus].held) cot_rollback(gpus, cot->checkpoint.saved[gpus].held);
    }
}

abi_result cot_cuCheckpointProcessRestore(int pid, void *arguments) {
    if (!is_own(pid) || !cot_is_away()) return CALL_REAL(cuCheckpointProcessRestore, (int, void *), pid, arguments);
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        if (!cot->checkpoint.saved[gpu].held || cot_reserve(gpu, cot->checkpoint.saved[gpu].held)) continue;
        cot_deny(gpu);
        rollback(gpu);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    abi_result result = CALL_REAL(cuCheckpointProcessRestore, (int, void *), pid, arguments);
    if (result == ABI_SUCCESS) come_back();
    rollback(cot_gpu_count());
    return result;
}

/* A process that can be unlocked has its memory; perhaps another one restored it. */
abi_result cot_cuCheckpointProcessUnlock(int pid, void *arguments) {
    abi_result result = CALL_REAL(cuCheckpointProcessUnlock, (int, void *), pid, arguments);
    if (result == ABI_SUCCESS && is_own(pid)) come_back();
    return result;
}
