/* The work of the completion thread: closes batches to which no launches are added any more, and reports the GPU
 * time of those that have ended. Only this thread queries events, as a query would invalidate a capture of the
 * thread that makes it. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "capture.h"
#include "gate.h"

#define QUIET_NS 100000ull /* an open batch without a launch for so long is closed */
#define LEAST_PAUSE_NS 50000ull
#define MOST_PAUSE_NS 1000000ull
#define EMPTY_PAUSE_NS 200000ull
#define EMPTY_ROUNDS 10u /* before the completion thread sleeps until it is woken */
#define MAX_UNREADY 16u  /* queried in one round: as many streams may run side by side */

/* Around driver calls on events of batches. False: a context or stream is being destroyed. */
static bool begin_driver_calls(struct cot_gates *gates) {
    atomic_store(&gates->busy, 1);
    if (!atomic_load(&gates->paused)) return true;
    atomic_store(&gates->busy, 0);
    return false;
}
static void end_driver_calls(struct cot_gates *gates) {
    atomic_store(&gates->busy, 0);
}

/* ---- closing ---- */

/* How many batches of its stream began before it. */
static uint32_t batches_before(const struct cot_batches *batches, const struct cot_timed_batch *timed) {
    uint32_t before = 0;
    for (uint32_t i = batches->head; i != batches->tail; i++) {
        const struct cot_timed_batch *other = &batches->ring[i % COT_BATCHES];
        if (other->state == COT_TIMED_FREE || other == timed || other->on != timed->on) continue;
        before += other->begun_ns < timed->begun_ns;
    }
    return before;
}

/* Launches that wait for the depth will join it, and nothing waits for its end while more than one batch of its stream
 * is before it: closed at each wait, batches would hold a launch or two, and their events cost as much time of the GPU.
 */
static bool is_filling(const struct cot_batches *batches, const struct cot_timed_batch *timed, uint64_t now_ns) {
    if (atomic_load(&batches->sleepers) < COT_DEPTH_SLEEPER || now_ns > timed->last_ns + COT_HELD_UP_NS / 2)
        return false;
    return batches_before(batches, timed) > 1;
}

static bool is_quiet(const struct cot_batches *batches, const struct cot_timed_batch *timed, bool hurry,
                     uint64_t now_ns) {
    if (timed->state != COT_TIMED_OPEN || timed->users) return false;
    return hurry || (now_ns > timed->last_ns + QUIET_NS && !is_filling(batches, timed, now_ns));
}

static void close_quiet(struct cot_gates *gates, struct cot_batches *batches, uint64_t now_ns) {
    bool hurry = atomic_exchange(&batches->hurry, 0);
    for (uint32_t i = batches->head; i != __atomic_load_n(&batches->tail, __ATOMIC_ACQUIRE); i++) {
        struct cot_timed_batch *timed = &batches->ring[i % COT_BATCHES];
        abi_context popped;
        if (__atomic_load_n(&timed->state, __ATOMIC_RELAXED) != COT_TIMED_OPEN) continue;
        if (!begin_driver_calls(gates)) return;
        atomic_store(&gates->records_on, (uintptr_t)timed->on);
        cot_spin_lock(&batches->lock);
        bool closes = is_quiet(batches, timed, hurry, now_ns);
        if (closes) timed->state = COT_TIMED_CLOSING;
        if (closes && cot_batch_is_late(timed->last_ns, now_ns)) {
            timed->late = true;
            timed->last_ns = now_ns;
        }
        cot_spin_unlock(&batches->lock);
        /* By a call that the interposer does not know of. */
        if (closes && cot_is_capturing(timed->on)) timed->untimed = true;
        if (closes && CALL_DRIVER("cuCtxPushCurrent_v2", (abi_context), timed->context) == ABI_SUCCESS) {
            cot_timed_batch_close(batches, timed);
            CALL_DRIVER("cuCtxPopCurrent_v2", (abi_context *), &popped);
        } else if (closes) {
            timed->untimed = true;
            cot_timed_batch_close(batches, timed);
        }
        atomic_store(&gates->records_on, 0);
        end_driver_calls(gates);
    }
}

/* ---- measuring ---- */

static uint32_t streams_under_way(const struct cot_batches *batches) {
    abi_stream seen[8];
    uint32_t count = 0;
    for (uint32_t i = batches->head, looked = 0; i != batches->tail && looked < 64; i++, looked++) {
        const struct cot_timed_batch *timed = &batches->ring[i % COT_BATCHES];
        uint32_t k = 0;
        if (timed->state == COT_TIMED_FREE) continue;
        while (k < count && seen[k] != timed->stream) k++;
        if (k == count && count < 8) seen[count++] = timed->stream;
    }
    return count ? count : 1;
}

static bool elapsed(abi_event from, abi_event to, int64_t *ns) {
    float ms = 0;
    if (CALL_DRIVER("cuEventElapsedTime", (float *, abi_event, abi_event), &ms, from, to) != ABI_SUCCESS) return false;
    *ns = (int64_t)((double)ms * 1e6);
    return true;
}

struct span {
    uint64_t begin_ns, end_ns;
};

/* On the host's clock: measured from when the GPU was idle or from the event before, and clamped between the launch
 * and now. */
static struct span span_of(const struct cot_batches *batches, const struct cot_timed_batch *timed, uint64_t now_ns) {
    int64_t length = 0, after = 0;
    uint64_t begin = timed->begun_ns;
    if (timed->untimed || !elapsed(timed->begin, timed->end, &length) || length < 0)
        length = (int64_t)timed->batch.predicted_ns;
    length = (int64_t)cot_batch_length(&timed->batch, (uint64_t)length, timed->late ? timed->last_ns : 0, now_ns);
    bool measured = timed->fresh || (batches->anchor && !timed->untimed && batches->anchor_context == timed->made_in &&
                                     elapsed(batches->anchor, timed->begin, &after));
    if (!measured) begin = now_ns > (uint64_t)length ? now_ns - (uint64_t)length : 0;
    else if (!timed->fresh) begin = batches->anchor_ns + (uint64_t)after;
    if ((int64_t)(begin - timed->begun_ns) < 0) begin = timed->begun_ns;
    uint64_t end = begin + (uint64_t)length;
    if (end > now_ns) {
        begin -= end - now_ns < begin ? end - now_ns : begin;
        end = now_ns;
    }
    return (struct span){begin, end};
}

/* An overdue batch may stay in flight for as long as the program runs: it moves to the end of the ring, before the
 * places behind it are used up. Under the lock; closed batches are the completion thread's alone. */
static void move_overdue(struct cot_batches *batches) {
    struct cot_timed_batch *first = &batches->ring[batches->head % COT_BATCHES];
    struct cot_timed_batch *free = &batches->ring[batches->tail % COT_BATCHES];
    uint32_t used = batches->tail - batches->head;
    if (used < COT_BATCHES / 2 || used == COT_BATCHES || first->state != COT_TIMED_CLOSED || !first->batch.overdue)
        return;
    struct cot_timed_batch spare = *free;
    *free = *first;
    *first = spare; /* it is free, and keeps its events */
    batches->tail++;
}

static void free_places(struct cot_batches *batches) {
    cot_spin_lock(&batches->lock);
    move_overdue(batches);
    while (batches->head != batches->tail && batches->ring[batches->head % COT_BATCHES].state == COT_TIMED_FREE)
        batches->head++;
    cot_spin_unlock(&batches->lock);
}

static void complete_batch(struct cot_gates *gates, uint32_t gpu, struct cot_timed_batch *timed, struct span span,
                           uint64_t now_ns) {
    struct cot_batches *batches = &gates->batches[gpu];
    struct cot_gate *gate = &gates->gate[gpu];
    bool oldest = timed == &batches->ring[batches->head % COT_BATCHES];
    uint32_t streams = streams_under_way(batches);
    bool rings = timed->batch.launches &&
                 cot_gate_complete(gate, &timed->batch, span.begin_ns, span.end_ns, streams, oldest, now_ns);
    cot_spin_lock(&batches->lock);
    timed->state = COT_TIMED_FREE;
    cot_spin_unlock(&batches->lock);
    batches->completed_ns = now_ns;
    free_places(batches);
    if (rings) syscall(SYS_futex, &gate->reports->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    if (atomic_load(&batches->sleepers)) syscall(SYS_futex, &gate->order->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Its last event becomes the anchor from which later events are measured, and takes over the former anchor's event. */
static void set_anchor(struct cot_batches *batches, struct cot_timed_batch *timed, uint64_t end_ns) {
    if (timed->untimed) return;
    abi_event former = batches->anchor_context == timed->made_in ? batches->anchor : NULL;
    if (batches->anchor && !former) CALL_DRIVER("cuEventDestroy_v2", (abi_event), batches->anchor);
    batches->anchor = timed->end;
    batches->anchor_context = timed->made_in;
    batches->anchor_ns = end_ns;
    timed->end = former;
}

void cot_complete_unobserved(struct cot_gates *gates, uint32_t gpu, struct cot_timed_batch *timed) {
    uint64_t now = cot_boottime_ns(), most = timed->begun_ns + timed->batch.predicted_ns;
    complete_batch(gates, gpu, timed, (struct span){timed->begun_ns, now < most ? now : most}, now);
}

/* True: the batch has ended. */
static bool check_batch(struct cot_gates *gates, uint32_t gpu, struct cot_timed_batch *timed) {
    struct cot_batches *batches = &gates->batches[gpu];
    uint64_t now = cot_boottime_ns();
    if (timed->batch.launches == 0) {
        complete_batch(gates, gpu, timed, (struct span){0}, now);
        return true;
    }
    if (timed->untimed && now < timed->last_ns + timed->batch.predicted_ns) return false;
    if (!timed->untimed && CALL_DRIVER("cuEventQuery", (abi_event), timed->end) == ABI_ERROR_NOT_READY) return false;
    now = cot_boottime_ns();
    timed->batch.waited = timed->batch.overdue && timed->seen_launches != cot_gate_launches(&gates->gate[gpu]);
    struct span span = span_of(batches, timed, now);
    set_anchor(batches, timed, span.end_ns);
    complete_batch(gates, gpu, timed, span, now);
    return true;
}

static void note_overdue(struct cot_gates *gates, uint32_t gpu, struct cot_timed_batch *timed, uint64_t now_ns) {
    const struct cot_batches *batches = &gates->batches[gpu];
    uint64_t since = timed->last_ns > batches->completed_ns ? timed->last_ns : batches->completed_ns;
    bool first = !timed->batch.overdue;
    if (!cot_batch_is_overdue(&timed->batch, since, now_ns) || (first && batches_before(batches, timed))) return;
    if (first) timed->seen_launches = cot_gate_launches(&gates->gate[gpu]);
    cot_gate_overdue(&gates->gate[gpu], &timed->batch, now_ns);
    if (first && atomic_load(&batches->sleepers))
        syscall(SYS_futex, &gates->gate[gpu].order->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t pause_for(const struct cot_timed_batch *timed, uint64_t now_ns) {
    if (timed->batch.overdue) return MOST_PAUSE_NS;
    uint64_t due = timed->begun_ns + timed->batch.predicted_ns, left = due > now_ns ? due - now_ns : 0;
    return left < LEAST_PAUSE_NS ? LEAST_PAUSE_NS : left > MOST_PAUSE_NS ? MOST_PAUSE_NS : left;
}

/* Returns when to call again, in ns; UINT64_MAX: no batch is left. */
static uint64_t collect_completed(struct cot_gates *gates, uint32_t gpu) {
    struct cot_batches *batches = &gates->batches[gpu];
    uint32_t unready = 0;
    uint64_t pause = UINT64_MAX, now = cot_boottime_ns();
    close_quiet(gates, batches, now);
    for (uint32_t i = batches->head; i != __atomic_load_n(&batches->tail, __ATOMIC_ACQUIRE); i++) {
        struct cot_timed_batch *timed = &batches->ring[i % COT_BATCHES];
        enum cot_timed_batch_state state = __atomic_load_n(&timed->state, __ATOMIC_ACQUIRE);
        if (state == COT_TIMED_FREE) continue;
        if (state == COT_TIMED_CLOSED && unready < MAX_UNREADY && begin_driver_calls(gates)) {
            bool ended = check_batch(gates, gpu, timed);
            end_driver_calls(gates);
            if (ended) continue;
            note_overdue(gates, gpu, timed, now);
        }
        if (unready++ == 0) pause = state == COT_TIMED_CLOSED ? pause_for(timed, now) : QUIET_NS;
    }
    return pause;
}

/* ---- one round ---- */

abi_result cot_cotenant_help(struct cot_completion_wait *errand) {
    struct cot_gates *gates = cot_attached() ? cot->gates : NULL;
    if (!gates) return ABI_SUCCESS;
    if (!gates->relaxed) {
        int mode = ABI_CAPTURE_RELAXED;
        gates->relaxed = CALL_DRIVER("cuThreadExchangeStreamCaptureMode", (int *), &mode) == ABI_SUCCESS;
    }
    errand->word = (uint32_t *)&gates->word;
    errand->seen = atomic_load(&gates->word);
    uint64_t pause = UINT64_MAX;
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        uint64_t own = collect_completed(gates, gpu);
        if (own < pause) pause = own;
    }
    gates->empty_rounds = pause == UINT64_MAX ? gates->empty_rounds + 1 : 0;
    if (pause == UINT64_MAX && gates->empty_rounds <= EMPTY_ROUNDS) pause = EMPTY_PAUSE_NS;
    if (pause == UINT64_MAX) {
        /* A launch from now on sees `idle`; one before is seen here. */
        atomic_store(&gates->idle, 1);
        for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
            const struct cot_batches *batches = &gates->batches[gpu];
            if (__atomic_load_n(&batches->tail, __ATOMIC_SEQ_CST) != batches->head) pause = EMPTY_PAUSE_NS;
        }
        if (pause != UINT64_MAX) atomic_store(&gates->idle, 0);
    }
    errand->pause_ns = pause == UINT64_MAX ? 0 : pause;
    return ABI_SUCCESS;
}
