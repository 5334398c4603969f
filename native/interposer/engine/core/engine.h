/* What every part of an engine stands on: the state that the process keeps, the services of the entry, and what is
 * remembered of the calling thread. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../abi/cuda.h"
#include "../../engine_abi.h"
#include "../../process_state.h"

/* No symbol of an engine is visible outside of its object, so no call inside goes through the GOT or PLT. */
#pragma GCC visibility push(hidden)

#define COT_NO_GPU UINT32_MAX

extern struct cot_state *cot;
extern const struct cot_services *cot_services;
extern ptrdiff_t cot_thread_offset;
bool cot_start(const struct cot_services *services);

static inline struct cot_thread *cot_thread(void) {
    return (struct cot_thread *)((char *)__builtin_thread_pointer() + cot_thread_offset);
}

#pragma GCC visibility pop
