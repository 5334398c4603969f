/* Gated launches, the process's side: compute_page.c joins, gates.c waits for turns, batches.c puts events around
 * launches, settle.c reads them. What is decided is the arbiter library's (gate.h).
 *
 * All of it lies in memory of its own that goes with the attachment. It is state of the process, as state.h says:
 * another engine goes on with it, so what changes it raises COT_STATE_LAYOUT. */
#pragma once

#include "../../../compute/gate/gate.h"
#include "../../clock.h"
#include "../accounting/grant.h"
#include "../accounting/slots.h"
#include "../core/driver_calls.h"
#include "../core/spin_lock.h"

#define COT_BATCHES 256u /* of one GPU, under way */

/* A batch and its two events. Made by the thread that launches first, closed by the last one that launches or, when
 * nothing more comes, by the helper; then the helper's alone. */
enum cot_timed_state {
    COT_TIMED_FREE,
    COT_TIMED_OPENING, /* its first event is being recorded */
    COT_TIMED_OPEN,    /* launches may be added */
    COT_TIMED_CLOSING, /* its last event is being recorded */
    COT_TIMED_CLOSED,
};
struct cot_timed {
    enum cot_timed_state state;
    uint32_t users; /* threads between before and after a launch */
    bool full;      /* nothing more may be added */
    bool alone;     /* of a stream that only the launching thread can name */
    bool untimed;   /* an event could not be recorded: what was predicted counts */
    bool fresh;     /* nothing was under way when it began */
    abi_context context;
    abi_stream stream;
    abi_event begin, end; /* of the context `made_in` */
    abi_context made_in;
    uint64_t begun_ns, last_ns; /* when the first and last launch was made */
    struct cot_batch batch;
};

struct cot_batches {
    struct cot_lock lock; /* of states and places, never held across a call of the driver */
    uint32_t head, tail;  /* those under way, in the order in which they began */
    _Atomic uint32_t hurry;
    _Atomic uint32_t sleepers; /* threads that wait for this GPU */
    /* The last event that was seen to have passed, and when that was: times of later events are told from it. */
    abi_event anchor;
    abi_context anchor_context;
    uint64_t anchor_ns;
    struct cot_timed ring[COT_BATCHES];
};

struct cot_gates {
    void *page;
    _Atomic uint32_t word;  /* the helper's futex */
    _Atomic uint32_t idle;  /* the helper sleeps until it is woken */
    _Atomic uint32_t begun; /* there is a helper */
    /* The helper is in a call of the driver about batches; others want it not to be. */
    _Atomic uint32_t busy, paused;
    uint32_t empty_rounds, relaxed; /* the helper's */
    struct cot_gate gate[COT_MAX_GPUS];
    struct cot_batches batches[COT_MAX_GPUS];
};

/* What a flight carries from admit to launched. */
struct cot_turn {
    struct cot_launch launch;
    struct cot_timed *timed; /* NULL: not counted */
    uint32_t gpu;
    abi_context context; /* of its stream, where that need not be current */
};
static_assert(sizeof(struct cot_turn) <= sizeof(((struct cot_flight *)0)->engine), "room in a flight");

bool cot_gates_join(void); /* while attaching, once there is a slot; false: there is a page, and it cannot be read */
void cot_gates_leave(void);
struct cot_gates *cot_gates_pause(void);
void cot_gates_resume(struct cot_gates *gates);
void cot_gates_forget(void *context); /* it has ended */

/* What others of the container had under way when they died: nobody else counts it down (compute_page.c). */
void cot_gates_forget_dead(struct cot_gates *gates);

/* ---- batches.c ---- */

/* Before a launch: the batch that it belongs to, its first event recorded; NULL: no room, to be tried again soon. The
 * stream's context is current. */
struct cot_timed *cot_timed_begin(struct cot_gates *gates, uint32_t gpu, abi_context context, abi_stream stream,
                                  uint64_t now_ns);
/* After it; `launch` is NULL if the driver refused it. */
void cot_timed_end(struct cot_gates *gates, uint32_t gpu, struct cot_timed *timed, const struct cot_launch *launch,
                   uint64_t now_ns);
/* Records the last event of one that is CLOSING, which then is CLOSED. */
void cot_timed_close(struct cot_batches *batches, struct cot_timed *timed);
void cot_helper_wake(struct cot_gates *gates);

/* ---- settle.c ---- */
uint64_t cot_settle(struct cot_gates *gates, uint32_t gpu); /* when to come again, in ns; UINT64_MAX: nothing is left */
/* One that will not be heard of again: what is known of it counts. */
void cot_settle_lost(struct cot_gates *gates, uint32_t gpu, struct cot_timed *timed);
