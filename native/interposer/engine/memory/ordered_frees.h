/* Linear memory that the program has freed in the order of a stream, and that the GPU may still hold. */
#pragma once

#include "../core/engine.h"

#pragma GCC visibility push(hidden)

/* Releases the charge of what the GPU has freed meanwhile. */
void cot_ordered_frees_settle(void);
/* Around driver calls that end a context. */
void cot_ordered_frees_pause(void);
void cot_ordered_frees_resume(void);
/* A context has ended, or the view of a green one (then `successor` has its memory). */
void cot_ordered_frees_drop_context(const void *context);
void cot_ordered_frees_reassign_context(const void *view, void *successor);

#pragma GCC visibility pop
