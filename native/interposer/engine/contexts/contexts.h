/* The table of contexts, for contexts.c, limits.c and primary.c. */
#pragma once

#include "../accounting/quota.h"
#include "../core/driver_calls.h"
#include "../core/hooks.h"

#pragma GCC visibility push(hidden)

/* All of these under the lock of the table. NULL: not known. */
struct cot_known_context *cot_context_find(void *handle);
struct cot_known_context *cot_context_primary(abi_device device);
void cot_context_remember(void *handle, abi_device device, uint32_t gpu, uint64_t charged, bool primary);
void cot_context_forget(struct cot_known_context *entry);
void cot_context_succeed(struct cot_known_context *entry, void *handle);

/* A context that is there, and may have been made behind the exported names; not under the lock. */
void cot_context_note(void *handle, abi_device device, uint32_t gpu, bool primary);

/* Who is the heir of a view that has ended: the device's primary context, as the driver says. NULL: it does not tell,
 * and none is known. False: there is none, and nothing is left. */
bool cot_context_heir(abi_device device, void **heir);

/* What became of a context since an epoch of the table. */
enum cot_context_fate { COT_CONTEXT_SAME, COT_CONTEXT_ENDED, COT_CONTEXT_REPLACED /* by one of the same handle */ };
enum cot_context_fate cot_context_fate_since(void *context, uint32_t since);
/* Was it the view of a green context that has ended since that epoch? If several have ended it may be wrongly taken for
 * one of them: what was allocated in it then stays charged for too long at worst. */
bool cot_context_was_view(const void *context, uint32_t since);

/* Around calls that may end the device's primary context or make it anew: it stays charged meanwhile. False: none is
 * known. */
bool cot_context_use_primary(abi_device device);
/* `now`: the device's primary context (NULL: unknown); `ended`: it may have ended. */
void cot_context_leave_primary(abi_device device, void *now, bool ended);

/* After a context of the GPU has ended. */
void cot_context_after_end(uint32_t gpu);

/* turn.c: around what makes or ends a context, from before the call of the driver until what came of it is noted. Room
 * is asked for outside, for that may wait for others. `ends`: the call may end one. What the one answers the other
 * gets; may be nested. */
bool cot_context_turn(bool ends);
void cot_context_turn_end(bool taken);

/* Of a context that is to be created. */
struct cot_context_room {
    uint32_t gpu;
    uint64_t bytes;
    bool charged;   /* before the call */
    uint32_t epoch; /* of the table */
};
/* Room for as many contexts on the GPU of a device, or a refusal. What was found is for each. */
abi_result cot_context_room(abi_device device, unsigned count, struct cot_context_room *room);
/* What became of one for which there was room. */
void cot_context_settle(abi_result result, void *handle, abi_device device, const struct cot_context_room *room,
                        bool primary);

#pragma GCC visibility pop
