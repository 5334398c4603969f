/* The table of contexts: entries, charges and the order in which contexts are created and destroyed. */
#pragma once

#include "../accounting/quota.h"
#include "../core/driver_calls.h"
#include "../core/hooks.h"

#pragma GCC visibility push(hidden)

/* All of these under the lock of the table. NULL: unknown. */
struct cot_known_context *cot_context_find(void *handle);
struct cot_known_context *cot_context_primary(abi_device device);
void cot_context_add(void *handle, abi_device device, uint32_t gpu, uint64_t charged, bool primary);
void cot_context_remove(struct cot_known_context *entry);
void cot_context_replace_primary(struct cot_known_context *entry, void *handle);
#define COT_ALL_LIMITS (COT_CONTEXT_LIMITS + COT_RUNTIME_LIMITS)
struct cot_context_limit *cot_context_limit(struct cot_known_context *entry, unsigned which);

/* Not under the lock: adds a context that exists, and may have been created without a call the interposer sees. */
void cot_context_discover(void *handle, abi_device device, uint32_t gpu, bool primary);

/* The device's primary context, to which memory of an ended view passes. NULL: the driver does not say, and none is
 * known. False: there is none, and no memory is left. */
bool cot_context_successor(abi_device device, void **successor);

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
void cot_context_release_primary(abi_device device, void *now, bool ended);

/* primary.c */
abi_result cot_cuDevicePrimaryCtxRetain(abi_context *out, abi_device device);
abi_result cot_cuDevicePrimaryCtxRelease_v2(abi_device device);

/* After a context of the GPU has ended. */
void cot_context_after_end(uint32_t gpu);

/* lifecycle_lock.c: held from before the driver creates or ends a context until the table shows it. Reservations
 * are made before, as they may wait for other processes. `ends`: the call may end a context. Pass the result of the
 * one to the other; may be nested. */
bool cot_lifecycle_lock(bool ends);
void cot_lifecycle_unlock(bool taken);

/* Memory reserved for a context that is to be created. */
struct cot_context_reservation {
    uint32_t gpu;
    uint64_t bytes;
    bool charged;   /* before the driver's call */
    uint32_t epoch; /* of the context table */
};
/* Reserves memory for a context on a device's GPU, or returns the error to answer with. */
abi_result cot_context_reserve(abi_device device, struct cot_context_reservation *room);
/* After the driver's call: adds the context, or gives the reservation up. */
void cot_context_finish(abi_result result, void *handle, abi_device device, const struct cot_context_reservation *room,
                        bool primary);

#pragma GCC visibility pop
