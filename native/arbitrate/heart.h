/* The heartbeat while the arbiter's thread has nothing to do: to wait for the bells of a full node costs a hundred
 * times what it costs to say that they are waited for. A thread of its own says it, for as long as the arbiter's own
 * does wait and hears: a bell that nobody heard, or a return that is overdue, ends it, and processes then go by what
 * they were left, as without an agent. */
#pragma once

#include "pages.h"

#define HEART_BEAT_NS (3 * COT_COMPUTE_HEARTBEAT_NS)

/* Once. `call`: makes the arbiter's thread come back, for there is a bell that it did not hear, a page that broke, or
 * its return is overdue. */
void heart_start(void (*call)(void));

/* From now on, until `until_ns`, the caller only waits, and changes none of these pages. */
void heart_rest(struct page *const *pages, uint32_t count, uint64_t until_ns);

/* The caller is back, and the heart touches no page any more. When it last beat for all pages since heart_rest; 0: not
 * since then, or the caller did not rest. */
uint64_t heart_rouse(void);
