/* Between the object that a process maps (the entry: names, look-ups, the gate, the state) and the engine behind it
 * (the policy: what each entry point does to the quota). An engine is a shared object of its own, with a number in its
 * file's name, that can be replaced by another one while the process runs.
 *
 * Both structures here grow at their end only. Each side says how much of its own it has, and neither reads beyond what
 * the other one has; what is there never changes its place or meaning. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../abi/cuda.h"
#include "process_state.h"

/* What the entry gives. All of it may be called from any thread, none of it from a forked child's atfork handlers. */
struct cot_services {
    uint32_t bytes;
    struct cot_state *state;
    ptrdiff_t thread; /* of a thread's struct cot_thread from what __builtin_thread_pointer gives */
    uint32_t thread_bytes;
    bool (*has_driver)(void);
    void *(*real)(const char *name);         /* the driver's entry point, or NULL */
    int (*missing)(void);                    /* what a call answers whose real entry point is not there */
    bool (*folder)(char *path, size_t size); /* of limits and ledger, without a slash at its end */
    /* Calls of this name, which otherwise go straight to the driver, are the engine's from now on. */
    void (*divert)(const char *name);
    /* Where the agent writes the gate and its heartbeat, and where unknown entry points are counted; NULL: nowhere. */
    void (*watch)(const uint32_t *gate, const uint64_t *heartbeat, uint64_t *unknown);
    void (*wanted)(uint32_t engine); /* the page names it; it is looked at later, outside of all locks */
    /* A thread that calls cotenant_help again and again. False: there can be none here. */
    bool (*help)(void);
    /* A word for the engine that is 0 at first, and again in each forked child; NULL: there is none. */
    uint32_t *wiped;
};

/* ---- launches while compute is leased: three functions that an engine serves beside entry points ---- */

/* One launch, from before it to after it. */
struct cot_flight {
    uint32_t bytes;
    bool of_stream; /* its GPU is that of the stream, whatever context is current */
    abi_stream stream;
    uint64_t key; /* launches of one key are of one kind; not 0 */
    uint64_t engine[16];
};
/* cotenant_admit(struct cot_flight *): waits for its turn; an error is the launch's answer, and it is not made.
 * cotenant_launched(struct cot_flight *, abi_result): after each that was admitted. */

/* cotenant_help(struct cot_errand *): does what there is to do now. */
struct cot_errand {
    uint32_t bytes;
    uint32_t seen;     /* until this is no longer its value ... */
    uint32_t *word;    /* ... sleep on this futex word (private); NULL: there will be nothing to do any more */
    uint64_t pause_ns; /* and no longer than so; 0: as long as it takes */
};

struct cot_served {
    const char *name;
    void *function; /* takes at most six words in registers, answers an abi_result */
};

#define COT_ENGINE_MAGIC "COTENGN" /* and a zero byte */

/* What an engine's file says about itself, under the name cotenant_engine. */
struct cot_engine {
    char magic[8];
    uint32_t bytes; /* of this structure */
    uint32_t number;
    uint32_t services_bytes; /* of struct cot_services, of struct cot_state and of struct cot_thread: what it needs */
    uint32_t state_bytes, thread_bytes;
    uint32_t layout_first, layout_last; /* of the state, */
    uint32_t page_first, page_last;     /* the page */
    uint32_t ledger_first, ledger_last; /* and the ledger: those that it knows */
    uint32_t served_count;
    const struct cot_served *served; /* in any order */
    /* Before its first call, and by several threads at once or again, always with the same services. False: it cannot
     * work here. */
    bool (*start)(const struct cot_services *services);
    void (*note)(void); /* state->engine or engine_refused have changed: says so in the process's slot */
};
