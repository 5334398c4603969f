/* What the gate's own files share: lengths of launches (lengths.c). */
#pragma once

#include "gate.h"

struct cot_lengths {
    uint64_t late_ns, mean_ns; /* 0: not known */
};
struct cot_lengths cot_lengths(struct cot_gate *gate, uint64_t key);
void cot_learn(struct cot_gate *gate, uint64_t key, uint64_t length_ns, uint32_t launches);
