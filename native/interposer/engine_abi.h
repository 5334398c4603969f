/* The interface between libcotenant.so, which a process maps for good (exported names, look-ups, the launch gate,
 * the state), and an engine: a shared object with a number in its file name that decides what each entry point does
 * to the quota, and can be replaced while the process runs.
 *
 * Both structures grow at their end only. Each side states the size of its own and reads no more than the other one
 * has; an existing field never changes its place or meaning. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../abi/cuda.h"
#include "process_state.h"

/* Given to engines by libcotenant.so. All of it may be called from any thread, none from atfork handlers of a
 * child. */
struct cot_services {
    uint32_t bytes;
    struct cot_state *state;
    ptrdiff_t thread; /* of a thread's struct cot_thread, from __builtin_thread_pointer() on */
    uint32_t thread_bytes;
    bool (*has_driver)(void);
    void *(*real)(const char *name);         /* the driver's entry point; NULL: it has none */
    int (*missing)(void);                    /* result of a call whose entry point the driver lacks */
    bool (*folder)(char *path, size_t size); /* of the grant's files, without a trailing slash */
    /* From now on calls of this name are served by the engine. Until then they go straight to the driver. */
    void (*divert)(const char *name);
    /* Where the agent writes the gate and its heartbeat, and where unknown entry points are counted; NULL: nowhere. */
    void (*watch)(const uint32_t *gate, const uint64_t *heartbeat, uint64_t *unknown);
    void (*want_engine)(uint32_t engine); /* named by the limits page; loaded later, outside of all locks */
    /* Starts the thread that calls cotenant_help again and again. False: it cannot be started. */
    bool (*start_completion_thread)(void);
    /* A word for the engine that is 0 at first and in each forked child; NULL: there is none. */
    uint32_t *fork_zeroed_word;
};

/* ---- launches while compute is leased: three functions that an engine serves besides entry points ---- */

/* One launch, from before the driver's call to after it. */
struct cot_gated_launch {
    uint32_t bytes;
    bool of_stream; /* its GPU is that of the stream, not that of the current context */
    abi_stream stream;
    uint64_t key; /* launches with the same key are expected to take the same time; not 0 */
    uint64_t engine[16];
    uint64_t family; /* key of all launches of its function, or of graphs */
    uint64_t blocks; /* of its grid */
};
/* cotenant_admit(struct cot_gated_launch *): waits until the launch may go. After an error it is not made, and the
 * error is its result.
 *
 * cotenant_launched(struct cot_gated_launch *, abi_result): after each launch that was admitted. */

/* cotenant_help(struct cot_completion_wait *): looks which launches have ended, and says how long to wait before
 * the next call. */
struct cot_completion_wait {
    uint32_t bytes;
    uint32_t seen;     /* wait while *word has this value ... */
    uint32_t *word;    /* ... on this private futex; NULL: the thread may end */
    uint64_t pause_ns; /* at most; 0: without a limit */
};

struct cot_served {
    const char *name;
    void *function; /* up to six arguments in registers, returns an abi_result */
};

#define COT_ENGINE_MAGIC "COTENGN" /* and a zero byte */

/* What an engine's file exports as cotenant_engine. */
struct cot_engine {
    char magic[8];
    uint32_t bytes; /* of this structure */
    uint32_t number;
    uint32_t services_bytes; /* of struct cot_services, cot_state and cot_thread: what it needs */
    uint32_t state_bytes, thread_bytes;
    uint32_t layout_first, layout_last; /* layouts of the state, */
    uint32_t page_first, page_last;     /* versions of the limits page */
    uint32_t ledger_first, ledger_last; /* and of the usage ledger that it works with */
    uint32_t served_count;
    const struct cot_served *served; /* in any order */
    /* Called before its first entry point, perhaps by several threads at once or again, always with the same
     * services. False: it cannot work here. */
    bool (*start)(const struct cot_services *services);
    void (*note)(void); /* state->engine or engine_refused have changed: copies them into the slot */
};
