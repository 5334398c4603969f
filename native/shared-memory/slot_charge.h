/* What a slot counts for on a GPU: what it charged, corrected by what the agent found out. Both objects compute it, so
 * that what CUDA and NVML tell a program is one figure. Rows are others' memory, read as it changes. */
#pragma once

#include <stdbool.h>

#include "ledger.h"

#define COT_MAX_PLAUSIBLE_BYTES (1ull << 50) /* a word above this was scribbled over; it counts as this much */

static inline uint64_t cot_clamp_bytes(uint64_t bytes) {
    return bytes < COT_MAX_PLAUSIBLE_BYTES ? bytes : COT_MAX_PLAUSIBLE_BYTES;
}

/* Distinguishes every state of a row from the one that the agent measured. */
static inline uint64_t cot_signature_now(const struct cot_slot_gpu *row) {
    uint64_t held = __atomic_load_n(&row->held, __ATOMIC_RELAXED),
             freed = __atomic_load_n(&row->freed, __ATOMIC_RELAXED);
    uint64_t changes = __atomic_load_n(&row->changes, __ATOMIC_RELAXED);
    return cot_row_signature(held, freed, changes);
}

/* `held` of a row as the agent's last measurement of its occupant corrects it: more, if the driver holds more for it
 * than it charged; less, if it holds less and the process has done nothing since; and, where memory leaves `late`, what
 * was freed and may still be held. `pending` and `held` were read by the caller, in this order. */
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
