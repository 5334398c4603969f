/* The calling thread's current context. */
#pragma once

#include "../core/engine.h"

#pragma GCC visibility push(hidden)

/* The current context and its GPU (COT_NO_GPU: not granted). The context itself is charged by then. */
abi_result cot_current_context(uint32_t *gpu, void **context);
/* Pops a context that the engine pushed. Tries twice: the program must find the context that it left. */
void cot_context_pop(void);

#pragma GCC visibility pop
