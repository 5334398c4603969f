/* Gated launches: a launch waits here until the arbiter lets it go, and is reported when it was made. A waiting
 * thread holds nothing: no lock, no slot, no reservation. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../contexts/current.h"
#include "capture.h"
#include "gate.h"

#define NO_ROOM_NS 100000            /* wait for a batch to end ... */
#define NO_ROOM_TRIES 20             /* ... so many times: all of them may wait for this launch */
#define LOOK_FOR_DEAD_NS 20000000ull /* how often a waiting thread looks for dead processes */

/* ---- contexts and streams that end: the completion thread does not touch them ---- */

struct cot_gates *cot_completion_pause(void) {
    struct cot_gates *gates = cot_attached() ? cot->gates : NULL;
    if (!gates) return NULL;
    atomic_fetch_add(&gates->paused, 1);
    while (atomic_load(&gates->busy)) sched_yield(); /* it is in driver calls that do not wait */
    return gates;
}

void cot_completion_resume(struct cot_gates *gates) {
    if (gates) atomic_fetch_sub(&gates->paused, 1);
}

void cot_launches_end_context(void *context) {
    struct cot_gates *gates = cot_completion_pause();
    for (uint32_t gpu = 0; gates && gpu < cot_gpu_count(); gpu++) {
        struct cot_batches *batches = &gates->batches[gpu];
        if (batches->anchor_context == context) batches->anchor = NULL;
        for (uint32_t i = 0; i < COT_SIDE_STREAMS; i++) {
            if (batches->side[i].context == context) batches->side[i] = (struct cot_side_stream){0};
        }
        for (uint32_t i = 0; i < COT_BATCHES; i++) {
            struct cot_timed_batch *timed = &batches->ring[i];
            cot_spin_lock(&batches->lock);
            bool ended = timed->context == context && timed->users == 0 &&
                         (timed->state == COT_TIMED_OPEN || timed->state == COT_TIMED_CLOSED);
            if (timed->made_in == context) {
                timed->begin = timed->end = NULL;
                timed->made_in = NULL;
                timed->untimed = true;
            }
            cot_spin_unlock(&batches->lock);
            if (ended) cot_complete_unobserved(gates, gpu, timed);
        }
    }
    cot_completion_resume(gates);
}

abi_result cot_cuStreamDestroy(abi_stream stream) {
    cot_close_batches_of(stream);
    return CALL_REAL(cuStreamDestroy, (abi_stream), stream);
}
abi_result cot_cuStreamDestroy_v2(abi_stream stream) {
    cot_close_batches_of(stream);
    return CALL_REAL(cuStreamDestroy_v2, (abi_stream), stream);
}

/* ---- a launch ---- */

static bool is_leased(void) {
    return __atomic_load_n(&cot_mapped_limits_page()->header.gate, __ATOMIC_ACQUIRE) & COT_GATE_LEASED;
}

static void sleep_ns(uint64_t ns) {
    struct timespec pause = {.tv_nsec = (long)ns};
    nanosleep(&pause, NULL);
}

static void ring_arbiter(const struct cot_gate *gate) {
    syscall(SYS_futex, &gate->reports->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void wait_for_order(struct cot_gates *gates, uint32_t gpu, const struct cot_verdict *verdict, uint64_t now_ns) {
    struct cot_batches *batches = &gates->batches[gpu];
    uint64_t left = verdict->until_ns > now_ns ? verdict->until_ns - now_ns : 1000;
    struct timespec pause = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
    uint32_t sleeper = verdict->own ? COT_DEPTH_SLEEPER : COT_SLEEPER;
    atomic_fetch_add(&batches->sleepers, sleeper);
    /* Close batches now: the next launch, or another container, waits for their end. For the depth it is enough that
     * one of those before them ends. */
    if (!verdict->own) atomic_store(&batches->hurry, 1);
    cot_wake_completion_thread(gates);
    syscall(SYS_futex, &gates->gate[gpu].order->wake, FUTEX_WAIT, verdict->wake, &pause, NULL, 0);
    atomic_fetch_sub(&batches->sleepers, sleeper);
}

static void wake_waiting(const struct cot_gate *gate) {
    syscall(SYS_futex, &gate->order->wake, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Announces the launch once it may go. False: the container is not limited any more. */
static bool wait_until_admitted(struct cot_gates *gates, const struct cot_launch_kind *kind, void *context,
                                abi_stream stream, struct cot_launch_ticket *ticket) {
    uint32_t gpu = ticket->gpu;
    struct cot_gate *gate = &gates->gate[gpu];
    struct cot_wait wait = {.behind = true}; /* not known, unless it is refused */
    uint64_t since_ns = 0, looked_ns = 0;
    for (;;) {
        uint64_t lease = __atomic_load_n(&gate->order->lease, __ATOMIC_ACQUIRE), now = cot_boottime_ns();
        bool free = cot_lease_state(lease) == COT_LEASE_FREE || !is_leased();
        struct cot_verdict verdict = {.go = true};
        if (!free) verdict = cot_gate_admit(gate, kind, now, &wait, &ticket->launch);
        if (verdict.wakes) wake_waiting(gate);
        if (verdict.go) {
            if (since_ns) cot_gate_wait(gate, false, now - since_ns, now);
            return !free;
        }
        if (!verdict.own && !since_ns) {
            since_ns = now;
            if (cot_gate_wait(gate, true, 0, now)) ring_arbiter(gate);
            wait.rung_ns = cot_boottime_ns();
        }
        if (looked_ns == 0) looked_ns = now;
        if (now - looked_ns > LOOK_FOR_DEAD_NS) {
            cot_lease_page_clear_dead(gates);
            looked_ns = now;
        }
        bool behind = cot_is_stream_in_flight(&gates->batches[gpu], context, stream);
        if (behind || !wait.behind) wait_for_order(gates, gpu, &verdict, now);
        wait.behind = behind;
    }
}

/* Makes the stream's context current. NULL: it already is. */
static abi_context push_context_of(abi_stream stream) {
    abi_context context = NULL;
    if ((uintptr_t)stream <= (uintptr_t)ABI_STREAM_PER_THREAD) return NULL;
    if (CALL_DRIVER("cuStreamGetCtx", (abi_stream, abi_context *), stream, &context) != ABI_SUCCESS) return NULL;
    return CALL_DRIVER("cuCtxPushCurrent_v2", (abi_context), context) == ABI_SUCCESS ? context : NULL;
}
static void pop_context(abi_context context) {
    if (context) cot_context_pop();
}

/* An older libcotenant.so says no more than the key. */
static struct cot_launch_kind kind_of(const struct cot_gated_launch *gated) {
    struct cot_launch_kind kind = {.key = gated->key};
    if (gated->bytes < sizeof *gated) return kind;
    kind.family = gated->family;
    kind.blocks = gated->blocks;
    return kind;
}

static void wait_for_lease(struct cot_gates *gates, const struct cot_gated_launch *gated,
                           struct cot_launch_ticket *ticket) {
    void *context;
    struct cot_launch_kind kind = kind_of(gated);
    if (cot_current_context(&ticket->gpu, &context) != ABI_SUCCESS || ticket->gpu == COT_NO_GPU)
        return; /* the driver will refuse the launch */
    for (int tries = 0; wait_until_admitted(gates, &kind, context, gated->stream, ticket); tries++) {
        ticket->timed = cot_timed_batch_begin(gates, ticket->gpu, context, gated->stream, cot_boottime_ns());
        if (ticket->timed) return;
        if (tries == NO_ROOM_TRIES) {
            cot_gate_unmeasured(&gates->gate[ticket->gpu], &ticket->launch);
            return;
        }
        cot_gate_undo(&gates->gate[ticket->gpu], &ticket->launch);
        sleep_ns(NO_ROOM_NS);
    }
}

abi_result cot_cotenant_admit(struct cot_gated_launch *gated) {
    struct cot_launch_ticket *ticket = (struct cot_launch_ticket *)gated->engine;
    *ticket = (struct cot_launch_ticket){0};
    if (!cot_attached()) return ABI_SUCCESS;                 /* the driver will refuse the launch */
    if (!cot->gates) return ABI_ERROR_NOT_PERMITTED;         /* attached before the grant had a lease page */
    if (cot_is_capturing(gated->stream)) return ABI_SUCCESS; /* recorded or refused, not run */
    int error = errno;
    ticket->context = gated->of_stream ? push_context_of(gated->stream) : NULL;
    wait_for_lease(cot->gates, gated, ticket);
    pop_context(ticket->context);
    errno = error;
    return ABI_SUCCESS;
}

abi_result cot_cotenant_launched(struct cot_gated_launch *gated, abi_result result) {
    struct cot_launch_ticket *ticket = (struct cot_launch_ticket *)gated->engine;
    struct cot_gates *gates = cot_attached() ? cot->gates : NULL;
    if (!ticket->timed || !gates) return ABI_SUCCESS;
    int error = errno;
    bool made = result == ABI_SUCCESS;
    if (!made) cot_gate_undo(&gates->gate[ticket->gpu], &ticket->launch);
    abi_context entered = ticket->context ? push_context_of(gated->stream) : NULL;
    cot_timed_batch_end(gates, ticket->gpu, ticket->timed, made ? &ticket->launch : NULL, cot_boottime_ns());
    pop_context(entered);
    errno = error;
    return ABI_SUCCESS;
}
