/* Shared by the gate's files: the duration model (duration_model.c). */
#pragma once

#include "gate.h"

struct cot_predicted {
    uint64_t late_ns, mean_ns; /* 0: nothing is known */
    bool measured;             /* of launches of this kind */
};
struct cot_predicted cot_predict_duration(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns);
/* A launch of a kind that was not measured yet was made. */
void cot_note_launched(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns);
void cot_record_duration(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t length_ns,
                         uint32_t launches, uint64_t now_ns);
