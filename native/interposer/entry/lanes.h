/* Who is inside an engine: each thread counts its calls through the engine in a lane of its own, so that an engine that
 * no thread is in can be unloaded. Two plain additions per call, no locked instruction. */
#pragma once

#include "../process_state.h"

#pragma GCC visibility push(hidden)

/* Written by its thread alone, from the first call to the end of the thread. */
struct entry_lane {
    _Atomic uint32_t owner;  /* thread ID; 0: free */
    _Atomic uint32_t depth;  /* calls the thread is in: a call may lead to another one */
    _Atomic uint64_t passes; /* how often the thread left the outermost call */
    /* Written by the thread that replaces an engine: until which switch of engines this lane was seen outside. */
    uint64_t seen_passes;
    uint32_t seen_at, outside_at;
    uint64_t padding[4];
};
static_assert(sizeof(struct entry_lane) == 64, "each thread writes to a cache line of its own");

struct entry_thread {
    struct cot_thread engine;
    struct entry_lane *lane;
};
extern _Thread_local struct entry_thread entry_thread;

/* The lane of all threads for which there was no memory. */
extern struct entry_lane entry_shared_lane;

/* Claims a lane for the calling thread. Lock-free, as it may run in a child that was forked amid it. */
struct entry_lane *entry_take_lane(void);
/* True if no thread can still be in an engine that the switch number `replaced_at` replaced; `now`: the latest switch.
 */
bool entry_all_left_since(uint32_t replaced_at, uint32_t now);
/* Where a thread's struct cot_thread lies, from __builtin_thread_pointer() on. */
ptrdiff_t entry_thread_offset(void);
/* A word that the kernel zeroes in forked children; NULL: there is none. */
uint32_t *entry_fork_zeroed_word(void);

#pragma GCC visibility pop
