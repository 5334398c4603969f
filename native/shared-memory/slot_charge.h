/* The charge of a slot on a GPU: what its process counted, corrected by what the agent measured. Both preloaded
 * objects compute it here, so that CUDA and NVML report the same. Rows are written by other processes while they
 * are read. */
#pragma once

#include <stdbool.h>

#include "ledger.h"

#define COT_MAX_PLAUSIBLE_BYTES (1ull << 50) /* a larger word is corrupt, and counts as this much */

static inline uint64_t cot_clamp_bytes(uint64_t bytes) {
    return bytes < COT_MAX_PLAUSIBLE_BYTES ? bytes : COT_MAX_PLAUSIBLE_BYTES;
}

/* The signature of a row as it is now. */
static inline uint64_t cot_signature_now(const struct cot_slot_gpu *row) {
    uint64_t held = __atomic_load_n(&row->held, __ATOMIC_RELAXED),
             freed = __atomic_load_n(&row->freed, __ATOMIC_RELAXED);
    uint64_t changes = __atomic_load_n(&row->changes, __ATOMIC_RELAXED);
    return cot_row_signature(held, freed, changes);
}

/* `held` of a row, corrected by the agent's last measurement of its occupant: more, if the driver holds more for
 * it; less, if the driver holds less and the process has not allocated since; and, where the GPU frees memory
 * `late`, what was freed and may still be held. The caller has read `pending` and `held`, in this order. */
static inline uint64_t cot_slot_charge(const struct cot_limits_page_feedback *feedback, const struct cot_slot *slot,
                                       const struct cot_slot_gpu *row, uint64_t pending, uint64_t held, bool late) {
    struct cot_limits_page_feedback seen = *feedback;
    uint64_t stamp = __atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE);
    bool valid = seen.stamp == stamp && stamp != 0 && seen.check == cot_check(&seen, COT_FEEDBACK_WORDS);
    if (valid && seen.residual_bytes > 0) held += cot_clamp_bytes((uint64_t)seen.residual_bytes);
    if (valid && seen.residual_bytes < 0 && pending == 0 && seen.signature == cot_signature_now(row)) {
        uint64_t less = cot_clamp_bytes((uint64_t)-seen.residual_bytes);
        held -= less < held ? less : held;
    }
    if (late) {
        uint64_t freed = __atomic_load_n(&row->freed, __ATOMIC_SEQ_CST), released = valid ? seen.released_bytes : 0;
        if (freed > released) held += cot_clamp_bytes(freed - released);
    }
    return held;
}
