/* The judge of waits at the gate. It knows only what the GPUs did and what the containers' shares are, not what the
 * gate and the arbiter think. */
#pragma once

#include "progress.h"

struct wait {
    uint64_t began_ns, frozen_ns;
    uint64_t backlog_ns[MAX_GPUS], useful_ns[MAX_GPUS]; /* of its container, on each GPU */
};

void judge_start(const struct scenario *scenario, struct outcome *outcome);
/* The least that each container has in the run of each of its GPUs. */
void judge_note_shares(void);
/* Before anything of the program's container begins or ends. */
void judge_look(const struct program *program);
/* Work of a stopped process may have run for so long. */
void judge_charge(const struct program *program, uint64_t charged_ns);
void judge_begin_wait(struct wait *wait, const struct program *program);
/* False: it is longer than its container's share explains, and the run has failed; says so for the first one. */
bool judge_wait(const struct wait *wait, const struct program *program, uint32_t number);

static inline uint32_t gpu_of(const struct program *program) {
    return (uint32_t)(program->gpu - lab.gpus);
}
