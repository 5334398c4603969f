/* Which engine works, and its replacement while the process runs. */
#pragma once

#include "entry.h"

#pragma GCC visibility push(hidden)

typedef uint64_t entry_function(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f);

/* A loaded engine. */
struct entry_engine {
    uint32_t replaced_at;                /* the switch that replaced it; 0: it works */
    const struct cot_engine *descriptor; /* NULL: none is loaded here */
    void *handle;
    entry_function *serve[ENTRY_SERVED];
};

/* What every call reads. */
struct entry_working {
    _Atomic(const struct entry_engine *) engine;
    /* Something must be done before the next call: load the first engine, load another one that the limits page names,
     * or unload an old one. */
    _Atomic bool attention;
} __attribute__((aligned(64)));
extern struct entry_working entry_working;

/* Does so in a thread that is in no call. False: no engine works, and calls return `answer`. */
bool entry_update_engine(uint64_t *answer);
/* Called by the engine with the number in the limits page. The switch happens later, outside of all locks. */
void entry_want_engine(uint32_t number);

/* The state of the process, COT_STATE_BYTES bytes, and what engines are given (exports.c). */
union entry_state {
    struct cot_state state;
    char room[COT_STATE_BYTES];
};
extern union entry_state entry_state;
extern struct cot_services entry_services;

#pragma GCC visibility pop
