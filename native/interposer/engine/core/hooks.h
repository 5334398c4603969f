/* Callbacks through which a part of the engine reports an event to parts above it; engine/hooks.c fills the table. So
 * calls between the folders go one way: memory and launch call contexts, and all of them call accounting. */
#pragma once

#include "engine.h"

#pragma GCC visibility push(hidden)

struct cot_hooks {
    /* accounting/attach.c: the process has a slot of the ledger. False: it cannot attach, and errno says why. */
    bool (*attach)(void);
    void (*detach)(void);
    /* accounting/quota.c: gives memory back to the GPU that this process keeps and does not use. */
    void (*reclaim)(uint32_t gpu);
    /* contexts: while a context is being destroyed no driver function is called on events of the engine. Nests, also
     * under a lock. Returns what to resume. */
    struct cot_gates *(*pause_queries)(void);
    void (*resume_queries)(struct cot_gates *gates);
    /* contexts: under the lock of the context table. What was allocated while the view of a green context was current
     * belongs to `successor` from now on (NULL: to no context, until it is freed). */
    void (*reassign_context)(const void *view, void *successor);
    /* contexts: under the same lock, a context has ended, with everything that was allocated in it. */
    void (*end_context)(void *context);
    /* contexts: outside of the lock, after contexts of this GPU have ended. `last`: none is left. */
    void (*contexts_ended)(uint32_t gpu, bool last);
};
extern const struct cot_hooks cot_hooks;

#pragma GCC visibility pop
