/* Gated launches in this process: lease_page.c maps the lease page, gate.c waits for the lease, batches.c puts
 * events around launches, completion.c reads them. What is decided is in compute/gate.
 *
 * All structures lie in memory of their own that is mapped while the process is attached. They are state of the
 * process (process_state.h) that the next engine goes on with: a change raises COT_STATE_LAYOUT. */
#pragma once

#include "../../../compute/gate/gate.h"
#include "../../clock.h"
#include "../accounting/grant.h"
#include "../accounting/slots.h"
#include "../core/driver_calls.h"
#include "../core/spin_lock.h"

#define COT_BATCHES 256u /* of one GPU, in flight */

/* A batch of launches and its two events. Begun by the thread that launches first; closed by the last one that
 * launches, or by the completion thread if no more launches come; then the completion thread's alone. */
enum cot_timed_batch_state {
    COT_TIMED_FREE,
    COT_TIMED_OPENING, /* its first event is being recorded */
    COT_TIMED_OPEN,    /* launches may be added */
    COT_TIMED_CLOSING, /* its last event is being recorded */
    COT_TIMED_CLOSED,
};
struct cot_timed_batch {
    enum cot_timed_batch_state state;
    uint32_t users; /* threads that are making a launch of it */
    bool full;      /* no launch may be added */
    bool alone;     /* on the per-thread default stream, which only the launching thread can name */
    bool untimed;   /* an event could not be recorded: the prediction counts */
    bool fresh;     /* the GPU had none of our work when it began */
    bool late;      /* closed after the process was stopped: its work may have ended long before its last event */
    abi_context context;
    abi_stream stream, on; /* `on`: where its events are recorded */
    const void *thread;    /* `alone`: the thread's errno, which no other thread has */
    abi_event begin, end;  /* created in the context `made_in` */
    abi_context made_in;
    uint64_t seen_launches;     /* those of the container when it was first overdue */
    uint64_t begun_ns, last_ns; /* times of the first and last launch; `late`: of its last event */
    struct cot_batch batch;
};

/* An event on the legacy default stream is a barrier between the program's blocking streams, and forbidden while one of
 * them captures. So events around launches on it are recorded on a blocking stream of our own in the same context: it
 * waits for earlier work of the legacy default stream, and only that stream waits for it. */
#define COT_SIDE_STREAMS 4u
struct cot_side_stream {
    abi_context context;
    abi_stream stream;
};

#define COT_SLEEPER 1u
#define COT_DEPTH_SLEEPER 0x10001u

struct cot_batches {
    struct cot_lock lock; /* for states and places; never held across a driver call */
    uint32_t head, tail;  /* batches in flight, in the order in which they began */
    _Atomic uint32_t hurry;
    _Atomic uint32_t sleepers; /* threads that wait for this GPU; those that wait for the depth count in both halves */
    /* The last event that is known to have passed, and when: later events are measured from it. */
    abi_event anchor;
    abi_context anchor_context;
    uint64_t anchor_ns;
    uint64_t completed_ns; /* when a batch last ended */
    struct cot_side_stream side[COT_SIDE_STREAMS];
    struct cot_timed_batch ring[COT_BATCHES];
};

struct cot_gates {
    void *page;
    _Atomic uint32_t word;  /* the completion thread's futex */
    _Atomic uint32_t idle;  /* the completion thread sleeps until it is woken */
    _Atomic uint32_t begun; /* the completion thread was started */
    /* busy: the completion thread is in driver calls on events; paused: it must not make any. */
    _Atomic uint32_t busy, paused;
    _Atomic uintptr_t records_on;   /* the stream on which the completion thread is recording an event */
    _Atomic uint32_t captures;      /* a stream of the process has captured, or may begin to */
    uint32_t empty_rounds, relaxed; /* of the completion thread */
    struct cot_gate gate[COT_MAX_GPUS];
    struct cot_batches batches[COT_MAX_GPUS];
};

/* What a gated launch carries from cotenant_admit to cotenant_launched. */
struct cot_launch_ticket {
    struct cot_launch launch;
    struct cot_timed_batch *timed; /* NULL: not measured */
    uint32_t gpu;
    abi_context context; /* of its stream, if that may not be current */
};
static_assert(sizeof(struct cot_launch_ticket) <= sizeof(((struct cot_gated_launch *)0)->engine), "room in a flight");

bool cot_lease_page_map(void); /* while attaching; false: there is a lease page that cannot be mapped */
void cot_lease_page_unmap(void);
struct cot_gates *cot_completion_pause(void);
void cot_completion_resume(struct cot_gates *gates);
void cot_launches_end_context(void *context); /* it has ended */

/* Clears launches that dead processes of the container left announced, as no other process does. */
void cot_lease_page_clear_dead(struct cot_gates *gates);

/* ---- batches.c ---- */

/* Before a launch, with its stream's context current: the batch that it joins or begins, with the first event
 * recorded. NULL: all batches are in flight, try again soon. */
struct cot_timed_batch *cot_timed_batch_begin(struct cot_gates *gates, uint32_t gpu, abi_context context,
                                              abi_stream stream, uint64_t now_ns);
/* After it; `launch` is NULL if the driver refused it. */
void cot_timed_batch_end(struct cot_gates *gates, uint32_t gpu, struct cot_timed_batch *timed,
                         const struct cot_launch *launch, uint64_t now_ns);
/* Whether launches of the stream are in flight. */
bool cot_is_stream_in_flight(const struct cot_batches *batches, abi_context context, abi_stream stream);
/* Records the last event of a batch in state CLOSING, and closes it. */
void cot_timed_batch_close(struct cot_batches *batches, struct cot_timed_batch *timed);
void cot_wake_completion_thread(struct cot_gates *gates);

/* ---- completion.c ---- */
/* A batch whose events cannot be read any more: the prediction counts. */
void cot_complete_unobserved(struct cot_gates *gates, uint32_t gpu, struct cot_timed_batch *timed);
