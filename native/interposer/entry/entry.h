/* The parts of libcotenant.so as they call one another: functions for entry points, the launch gate, launch
 * wrappers, the completion thread. */
#pragma once

#include "../../abi/cuda.h"
#include "../engine_abi.h"
#include "../generated/cuda_verbs.h"
#include "../symbols/symbols.h"

#pragma GCC visibility push(hidden)

/* Names that go straight to the driver until the engine diverts them. */
#define ENTRY_DIVERTED(X) X(cuGraphLaunch) X(cuGraphLaunch_ptsz)
/* What engines serve besides entry points, for gated launches (see engine_abi.h). */
#define ENTRY_OWN(X) X(cotenant_admit) X(cotenant_launched) X(cotenant_help)

/* Numbers of all functions that an engine serves. */
enum {
#define ENTRY_NUMBER(index, symbol) ENTRY_AT_##symbol,
    COT_CUDA_SERVED(ENTRY_NUMBER)
#undef ENTRY_NUMBER
#define ENTRY_NUMBER(symbol) ENTRY_AT_##symbol,
        ENTRY_DIVERTED(ENTRY_NUMBER) ENTRY_OWN(ENTRY_NUMBER)
#undef ENTRY_NUMBER
            ENTRY_SERVED
};

/* ---- calls.c: one function per entry point that the engine serves ---- */

#define ENTRY_DECLARE(index, symbol) \
    uint64_t entry_##symbol(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f);
COT_CUDA_SERVED(ENTRY_DECLARE)
#define ENTRY_DECLARE_DIVERTED(symbol) ENTRY_DECLARE(0, symbol)
ENTRY_DIVERTED(ENTRY_DECLARE_DIVERTED)
ENTRY_OWN(ENTRY_DECLARE_DIVERTED)
#undef ENTRY_DECLARE_DIVERTED
#undef ENTRY_DECLARE

/* ---- launch_gate.c ---- */

/* Where the agent writes the gate word and its heartbeat; NULL: the gate is open. */
void entry_watch_gate(const uint32_t *gate, const uint64_t *heartbeat);

/* ---- launch_wrappers.c ---- */

/* The wrapper of a launch function for containers whose compute is leased; NULL: this index is no launch. */
void *entry_leased_wrapper(uint64_t index);

/* ---- completion_thread.c ---- */

bool entry_start_completion_thread(void);

/* ---- get_proc_address.c ---- */

abi_result cot_cuGetProcAddress(const char *base, void **address, int version, uint64_t flags);
abi_result cot_cuGetProcAddress_v2(const char *base, void **address, int version, uint64_t flags, int *status);

#pragma GCC visibility pop
