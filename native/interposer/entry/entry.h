/* Inside of libcotenant.so: what the parts of the entry give each other. */
#pragma once

#include "../../abi/cuda.h"
#include "../engine_abi.h"
#include "../generated/cuda_verbs.h"
#include "../symbols/symbols.h"

#pragma GCC visibility push(hidden)

/* Names that go straight to the driver until the engine asks for them. */
#define ENTRY_DIVERTED(X) X(cuGraphLaunch) X(cuGraphLaunch_ptsz)
/* What engines serve beside entry points: turns of launches that are gated (engine.h says what they take). */
#define ENTRY_OWN(X) X(cotenant_admit) X(cotenant_launched) X(cotenant_help)

/* ---- calls.c: one function per entry point that the engine serves ---- */

#define ENTRY_DECLARE(index, symbol) \
    uint64_t entry_##symbol(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f);
COT_CUDA_SERVED(ENTRY_DECLARE)
#define ENTRY_DECLARE_DIVERTED(symbol) ENTRY_DECLARE(0, symbol)
ENTRY_DIVERTED(ENTRY_DECLARE_DIVERTED)
ENTRY_OWN(ENTRY_DECLARE_DIVERTED)
#undef ENTRY_DECLARE_DIVERTED
#undef ENTRY_DECLARE

/* ---- table.c ---- */

void entry_watch(const uint32_t *gate, const uint64_t *heartbeat, uint64_t *count);

/* ---- launches.c: a launch form as it is while compute is leased; NULL: none of that index ---- */

void *entry_leased(uint64_t index);

/* ---- helper.c ---- */

bool entry_start_helper(void);

/* ---- lookup.c: what hands out entry points stays with the names ---- */

abi_result cot_cuGetProcAddress(const char *base, void **address, int version, uint64_t flags);
abi_result cot_cuGetProcAddress_v2(const char *base, void **address, int version, uint64_t flags, int *status);
/* The driver's own, or NULL. */
void *entry_driver(const char *name);

/* ---- calls.c: calls on their way through an engine, counted so that one that nobody is in can be unloaded ---- */

/* One thread's. Others only read it; it is its thread's as long as that lives, whether or not it makes calls. */
struct entry_lane {
    _Atomic uint32_t owner;  /* thread id; 0 = nobody's */
    _Atomic uint32_t depth;  /* calls that it is in, one within the other */
    _Atomic uint64_t passes; /* times that it came out of all of them */
    /* Under `attending`: how far its thread was seen to be out of every engine, counted in switches. */
    uint64_t seen_passes;
    uint32_t seen_at, outside_at;
    uint64_t padding[4];
};

/* True if no thread can still be in an engine that the given switch has put aside. */
bool entry_all_out_since(uint32_t aside_at, uint32_t now);

/* ---- engines.c: which engine works ---- */

enum {
#define ENTRY_NUMBER(index, symbol) ENTRY_AT_##symbol,
    COT_CUDA_SERVED(ENTRY_NUMBER)
#undef ENTRY_NUMBER
#define ENTRY_NUMBER(symbol) ENTRY_AT_##symbol,
        ENTRY_DIVERTED(ENTRY_NUMBER) ENTRY_OWN(ENTRY_NUMBER)
#undef ENTRY_NUMBER
            ENTRY_SERVED
};

typedef uint64_t entry_function(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f);

/* One engine that is loaded. */
struct entry_engine {
    uint32_t aside_at;               /* the switch that has put it aside; 0 = it works */
    const struct cot_engine *itself; /* NULL: none is loaded here */
    void *handle;
    entry_function *serve[ENTRY_SERVED];
};

/* What every call reads. */
struct entry_working {
    _Atomic(const struct entry_engine *) engine;
    /* Something is to be done before the next call goes in: the first engine to load, another one wanted, an old one to
     * let go. */
    _Atomic bool attention;
} __attribute__((aligned(64)));
extern struct entry_working entry_working;

/* Does it, in a thread that is in no call. False: no engine works, and `answer` is what calls get. */
bool entry_attend(uint64_t *answer);
ptrdiff_t entry_thread_offset(void);
/* calls.c: one that the kernel zeroes in forked children, theirs included; NULL: there is none. */
uint32_t *entry_wiped_word(void);

#pragma GCC visibility pop
