/* Shared by the gate's files: the duration model (duration_model.c). */
#pragma once

#include "gate.h"

struct cot_predict_duration {
    uint64_t late_ns, mean_ns; /* 0: unknown */
};
struct cot_predict_duration cot_predict_duration(struct cot_gate *gate, uint64_t key);
void cot_record_duration(struct cot_gate *gate, uint64_t key, uint64_t length_ns, uint32_t launches);
