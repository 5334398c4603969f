/* Pairs of events around batches of launches: one before the first launch, one after the last. They are recorded by
 * the threads that launch; if no more launches come the completion thread closes the batch. The lock covers states
 * and places only. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate.h"

#define LOOK_BACK 32u /* how many batches are searched for an open one */

void cot_wake_completion_thread(struct cot_gates *gates) {
    if (!atomic_load(&gates->begun) && !atomic_exchange(&gates->begun, 1)) {
        /* Without the thread no launch would be known to have ended: the next launch tries again. */
        if (!cot_services->start_completion_thread()) atomic_store(&gates->begun, 0);
    }
    atomic_store(&gates->idle, 0);
    atomic_fetch_add(&gates->word, 1);
    syscall(SYS_futex, &gates->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static bool record_event(abi_event event, abi_stream stream) {
    return event && CALL_DRIVER("cuEventRecord", (abi_event, abi_stream), event, stream) == ABI_SUCCESS;
}

/* Under the lock. */
static struct cot_timed_batch *join_open(struct cot_batches *batches, abi_context context, abi_stream stream,
                                         uint64_t now_ns) {
    for (uint32_t i = batches->tail, looked = 0; i != batches->head && looked < LOOK_BACK; looked++) {
        struct cot_timed_batch *timed = &batches->ring[--i % COT_BATCHES];
        if (timed->state != COT_TIMED_OPEN || timed->full || timed->alone) continue;
        if (timed->stream != stream || timed->context != context) continue;
        if (cot_batch_is_late(timed->last_ns, now_ns)) continue;
        timed->users++;
        return timed;
    }
    return NULL;
}

/* Under the lock; NULL: no batch is free. */
static struct cot_timed_batch *begin_batch(struct cot_batches *batches) {
    if (batches->tail - batches->head == COT_BATCHES) return NULL;
    struct cot_timed_batch *timed = &batches->ring[batches->tail % COT_BATCHES];
    abi_event begin = timed->begin, end = timed->end;
    abi_context made_in = timed->made_in;
    *timed = (struct cot_timed_batch){.state = COT_TIMED_OPENING,
                                      .users = 1,
                                      .fresh = batches->head == batches->tail,
                                      .begin = begin,
                                      .end = end,
                                      .made_in = made_in};
    batches->tail++;
    return timed;
}

/* A capture of another thread may forbid calls that create something, unless this thread's mode is relaxed. */
static int exchange_mode(int mode) {
    CALL_DRIVER("cuThreadExchangeStreamCaptureMode", (int *), &mode);
    return mode;
}

/* Events belong to a context; those of another one are destroyed, if it still exists. */
static void create_events(struct cot_timed_batch *timed, abi_context context) {
    if (timed->made_in == context && timed->begin && timed->end) return;
    int mode = exchange_mode(ABI_CAPTURE_RELAXED);
    if (timed->begin) CALL_DRIVER("cuEventDestroy_v2", (abi_event), timed->begin);
    if (timed->end) CALL_DRIVER("cuEventDestroy_v2", (abi_event), timed->end);
    timed->begin = timed->end = NULL;
    timed->made_in = context;
    if (CALL_DRIVER("cuEventCreate", (abi_event *, unsigned), &timed->begin, 0u) != ABI_SUCCESS) timed->begin = NULL;
    if (CALL_DRIVER("cuEventCreate", (abi_event *, unsigned), &timed->end, 0u) != ABI_SUCCESS) timed->end = NULL;
    exchange_mode(mode);
}

/* Of the current context; NULL: it cannot be created, or too many contexts have one. */
static abi_stream side_stream(struct cot_batches *batches, abi_context context) {
    abi_stream made = NULL, other = NULL;
    cot_spin_lock(&batches->lock);
    for (uint32_t i = 0; i < COT_SIDE_STREAMS && !other; i++) {
        if (batches->side[i].context == context) other = batches->side[i].stream;
    }
    cot_spin_unlock(&batches->lock);
    if (other) return other;
    int mode = exchange_mode(ABI_CAPTURE_RELAXED);
    if (CALL_DRIVER("cuStreamCreate", (abi_stream *, unsigned), &made, 0u) != ABI_SUCCESS) made = NULL;
    cot_spin_lock(&batches->lock);
    struct cot_side_stream *place = NULL;
    for (uint32_t i = COT_SIDE_STREAMS; made && i-- > 0;) {
        if (batches->side[i].context == context) other = batches->side[i].stream;
        if (!batches->side[i].context) place = &batches->side[i];
    }
    bool kept = made && place && !other;
    if (kept) *place = (struct cot_side_stream){context, made};
    cot_spin_unlock(&batches->lock);
    if (made && !kept) CALL_DRIVER("cuStreamDestroy_v2", (abi_stream), made);
    exchange_mode(mode);
    return kept ? made : other;
}

struct cot_timed_batch *cot_timed_batch_begin(struct cot_gates *gates, uint32_t gpu, abi_context context,
                                              abi_stream stream, uint64_t now_ns) {
    struct cot_batches *batches = &gates->batches[gpu];
    bool alone = stream == ABI_STREAM_PER_THREAD; /* it means another stream in each thread */
    cot_spin_lock(&batches->lock);
    struct cot_timed_batch *timed = alone ? NULL : join_open(batches, context, stream, now_ns);
    bool joined = timed != NULL;
    if (!joined) timed = begin_batch(batches);
    cot_spin_unlock(&batches->lock);
    if (joined || !timed) return timed;
    timed->alone = alone;
    timed->thread = &errno;
    timed->context = context;
    timed->stream = stream;
    timed->begun_ns = timed->last_ns = now_ns;
    create_events(timed, context);
    bool legacy = stream == NULL || stream == ABI_STREAM_LEGACY;
    timed->on = legacy ? side_stream(batches, context) : stream;
    timed->untimed = (legacy && !timed->on) || !record_event(timed->begin, timed->on);
    cot_spin_lock(&batches->lock);
    timed->state = COT_TIMED_OPEN;
    cot_spin_unlock(&batches->lock);
    return timed;
}

bool cot_is_stream_in_flight(const struct cot_batches *batches, abi_context context, abi_stream stream) {
    for (uint32_t i = batches->head; i != __atomic_load_n(&batches->tail, __ATOMIC_ACQUIRE); i++) {
        const struct cot_timed_batch *timed = &batches->ring[i % COT_BATCHES];
        if (__atomic_load_n(&timed->state, __ATOMIC_RELAXED) == COT_TIMED_FREE || timed->context != context) continue;
        if (timed->stream == stream && (!timed->alone || timed->thread == &errno)) return true;
    }
    return false;
}

void cot_timed_batch_close(struct cot_batches *batches, struct cot_timed_batch *timed) {
    if (timed->batch.launches && !timed->untimed && !record_event(timed->end, timed->on)) timed->untimed = true;
    cot_spin_lock(&batches->lock);
    timed->state = COT_TIMED_CLOSED;
    cot_spin_unlock(&batches->lock);
}

void cot_timed_batch_end(struct cot_gates *gates, uint32_t gpu, struct cot_timed_batch *timed,
                         const struct cot_launch *launch, uint64_t now_ns) {
    struct cot_batches *batches = &gates->batches[gpu];
    cot_spin_lock(&batches->lock);
    if (launch && cot_batch_add(&gates->gate[gpu], &timed->batch, launch, now_ns)) timed->full = true;
    if (launch) timed->last_ns = now_ns;
    timed->users--;
    bool closes = timed->users == 0 && (timed->full || timed->alone || timed->batch.launches == 0);
    if (closes) timed->state = COT_TIMED_CLOSING;
    cot_spin_unlock(&batches->lock);
    if (closes) cot_timed_batch_close(batches, timed);
    if (atomic_load(&gates->idle) || !atomic_load(&gates->begun)) cot_wake_completion_thread(gates);
}
