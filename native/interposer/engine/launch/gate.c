/* Turns of gated launches: waits until a launch may go, and tells what became of it. A thread that waits holds nothing:
 * no lock, no slot, no announcement but that it waits. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../contexts/current.h"
#include "capture.h"
#include "gate.h"

#define NO_ROOM_NS 100000            /* until a batch has ended */
#define LOOK_FOR_DEAD_NS 20000000ull /* between looks, of a thread that waits */

/* ---- contexts and streams that end: the helper keeps its hands off them ---- */

struct cot_gates *cot_gates_pause(void) {
    struct cot_gates *gates = cot_attached() ? cot->gates : NULL;
    if (!gates) return NULL;
    atomic_fetch_add(&gates->paused, 1);
    while (atomic_load(&gates->busy)) sched_yield(); /* in calls that do not wait */
    return gates;
}

void cot_gates_resume(struct cot_gates *gates) {
    if (gates) atomic_fetch_sub(&gates->paused, 1);
}

void cot_gates_forget(void *context) {
    struct cot_gates *gates = cot_gates_pause();
    for (uint32_t gpu = 0; gates && gpu < cot_gpu_count(); gpu++) {
        struct cot_batches *batches = &gates->batches[gpu];
        if (batches->anchor_context == context) batches->anchor = NULL;
        for (uint32_t i = 0; i < COT_BATCHES; i++) {
            struct cot_timed *timed = &batches->ring[i];
            cot_spin_lock(&batches->lock);
            bool ended = timed->context == context && timed->users == 0 &&
                         (timed->state == COT_TIMED_OPEN || timed->state == COT_TIMED_CLOSED);
            if (timed->made_in == context) {
                timed->begin = timed->end = NULL;
                timed->made_in = NULL;
                timed->untimed = true;
            }
            cot_spin_unlock(&batches->lock);
            if (ended) cot_settle_lost(gates, gpu, timed);
        }
    }
    cot_gates_resume(gates);
}

static void leave_stream(abi_stream stream) {
    if ((uintptr_t)stream <= (uintptr_t)ABI_STREAM_PER_THREAD) return;
    struct cot_gates *gates = cot_gates_pause();
    for (uint32_t gpu = 0; gates && gpu < cot_gpu_count(); gpu++) {
        struct cot_batches *batches = &gates->batches[gpu];
        for (uint32_t i = 0; i < COT_BATCHES; i++) {
            struct cot_timed *timed = &batches->ring[i];
            cot_spin_lock(&batches->lock);
            bool closes = timed->state == COT_TIMED_OPEN && timed->stream == stream && timed->users == 0;
            if (closes) timed->state = COT_TIMED_CLOSING;
            cot_spin_unlock(&batches->lock);
            if (closes) cot_timed_close(batches, timed);
        }
    }
    cot_gates_resume(gates);
}

abi_result cot_cuStreamDestroy(abi_stream stream) {
    leave_stream(stream);
    return CALL_REAL(cuStreamDestroy, (abi_stream), stream);
}
abi_result cot_cuStreamDestroy_v2(abi_stream stream) {
    leave_stream(stream);
    return CALL_REAL(cuStreamDestroy_v2, (abi_stream), stream);
}

/* ---- a launch ---- */

static bool is_leased(void) {
    return __atomic_load_n(&cot_page_now()->header.gate, __ATOMIC_ACQUIRE) & COT_GATE_LEASED;
}

static void nap(uint64_t ns) {
    struct timespec pause = {.tv_nsec = (long)ns};
    nanosleep(&pause, NULL);
}

static void ring(const struct cot_gate *gate) {
    syscall(SYS_futex, &gate->reports->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void sleep_until(struct cot_gates *gates, uint32_t gpu, const struct cot_verdict *verdict, uint64_t now_ns) {
    struct cot_batches *batches = &gates->batches[gpu];
    uint64_t left = verdict->until_ns > now_ns ? verdict->until_ns - now_ns : 1000;
    struct timespec pause = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
    atomic_fetch_add(&batches->sleepers, 1);
    /* What is under way is to be known soon, whether the next launch or another container waits for it. */
    atomic_store(&batches->hurry, 1);
    cot_helper_wake(gates);
    syscall(SYS_futex, &gates->gate[gpu].order->wake, FUTEX_WAIT, verdict->wake, &pause, NULL, 0);
    atomic_fetch_sub(&batches->sleepers, 1);
}

/* Announces the launch when it may go. False: nothing limits the container any more. */
static bool await_turn(struct cot_gates *gates, uint32_t gpu, uint64_t key, struct cot_launch *launch) {
    struct cot_gate *gate = &gates->gate[gpu];
    uint64_t since_ns = 0, rung_ns = 0, looked_ns = 0;
    for (;;) {
        uint64_t lease = __atomic_load_n(&gate->order->lease, __ATOMIC_ACQUIRE), now = cot_boottime_ns();
        bool free = cot_lease_state(lease) == COT_LEASE_FREE || !is_leased();
        struct cot_verdict verdict = {.go = true};
        if (!free) verdict = cot_gate_admit(gate, key, now, rung_ns, launch);
        if (verdict.go) {
            if (since_ns) cot_gate_wait(gate, false, now - since_ns, now);
            return !free;
        }
        if (!verdict.own && !since_ns) {
            since_ns = now;
            if (cot_gate_wait(gate, true, 0, now)) ring(gate);
            rung_ns = cot_boottime_ns();
        }
        if (looked_ns == 0) looked_ns = now;
        if (now - looked_ns > LOOK_FOR_DEAD_NS) {
            cot_gates_forget_dead(gates);
            looked_ns = now;
        }
        sleep_until(gates, gpu, &verdict, now);
    }
}

/* The device of a stream's context, which becomes current; NULL: it is. */
static abi_context enter_context_of(abi_stream stream) {
    abi_context context = NULL;
    if ((uintptr_t)stream <= (uintptr_t)ABI_STREAM_PER_THREAD) return NULL;
    if (CALL_DRIVER("cuStreamGetCtx", (abi_stream, abi_context *), stream, &context) != ABI_SUCCESS) return NULL;
    return CALL_DRIVER("cuCtxPushCurrent_v2", (abi_context), context) == ABI_SUCCESS ? context : NULL;
}
static void leave_context(abi_context context) {
    if (context) cot_context_pop();
}

static void take_turn(struct cot_gates *gates, const struct cot_flight *flight, struct cot_turn *turn) {
    void *context;
    if (cot_current(&turn->gpu, &context) != ABI_SUCCESS || turn->gpu == COT_NO_GPU) return; /* the driver says no */
    while (await_turn(gates, turn->gpu, flight->key, &turn->launch)) {
        turn->timed = cot_timed_begin(gates, turn->gpu, context, flight->stream, cot_boottime_ns());
        if (turn->timed) return;
        cot_gate_undo(&gates->gate[turn->gpu], &turn->launch);
        nap(NO_ROOM_NS);
    }
}

abi_result cot_cotenant_admit(struct cot_flight *flight) {
    struct cot_turn *turn = (struct cot_turn *)flight->engine;
    *turn = (struct cot_turn){0};
    if (!cot_attached()) return ABI_SUCCESS;                  /* the driver says why not */
    if (!cot->gates) return ABI_ERROR_NOT_PERMITTED;          /* attached before there was anything to go by */
    if (cot_is_capturing(flight->stream)) return ABI_SUCCESS; /* recorded, not run */
    int error = errno;
    turn->context = flight->of_stream ? enter_context_of(flight->stream) : NULL;
    take_turn(cot->gates, flight, turn);
    leave_context(turn->context);
    errno = error;
    return ABI_SUCCESS;
}

abi_result cot_cotenant_launched(struct cot_flight *flight, abi_result result) {
    struct cot_turn *turn = (struct cot_turn *)flight->engine;
    struct cot_gates *gates = cot_attached() ? cot->gates : NULL;
    if (!turn->timed || !gates) return ABI_SUCCESS;
    int error = errno;
    bool made = result == ABI_SUCCESS;
    if (!made) cot_gate_undo(&gates->gate[turn->gpu], &turn->launch);
    abi_context entered = turn->context ? enter_context_of(flight->stream) : NULL;
    cot_timed_end(gates, turn->gpu, turn->timed, made ? &turn->launch : NULL, cot_boottime_ns());
    leave_context(entered);
    errno = error;
    return ABI_SUCCESS;
}
