#include "capture.h"

#include <sched.h>

#include "../contexts/current.h"
#include "../core/driver_calls.h"
#include "gate.h"

bool cot_is_capturing(abi_stream stream) {
    int status = ABI_CAPTURE_NONE;
    abi_result result = CALL_DRIVER("cuStreamIsCapturing", (abi_stream, int *), stream, &status);
    return result == ABI_ERROR_CAPTURE_IMPLICIT || (result == ABI_SUCCESS && status != ABI_CAPTURE_NONE);
}

bool cot_is_recording(abi_stream stream) {
    int status = ABI_CAPTURE_NONE;
    return CALL_DRIVER("cuStreamIsCapturing", (abi_stream, int *), stream, &status) == ABI_SUCCESS &&
           status != ABI_CAPTURE_NONE;
}

/* ---- a stream that captures has no open batch: its last event would become part of the program's graph ---- */

static bool close_if_open(struct cot_batches *batches, struct cot_timed_batch *timed, abi_stream stream) {
    cot_spin_lock(&batches->lock);
    bool closes = timed->state == COT_TIMED_OPEN && timed->stream == stream && timed->users == 0;
    if (closes) timed->state = COT_TIMED_CLOSING;
    cot_spin_unlock(&batches->lock);
    return closes;
}

void cot_close_batches_of(abi_stream stream) {
    struct cot_gates *gates = cot_attached() ? cot->gates : NULL;
    if (!gates || (uintptr_t)stream <= (uintptr_t)ABI_STREAM_PER_THREAD) return;
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_batches *batches = &gates->batches[gpu];
        for (uint32_t i = 0; i < COT_BATCHES; i++) {
            struct cot_timed_batch *timed = &batches->ring[i];
            if (close_if_open(batches, timed, stream)) cot_timed_batch_close(batches, timed);
        }
    }
    /* The completion thread's record waits for nothing that the program's own next call on the stream would not. */
    while (atomic_load(&gates->records_on) == (uintptr_t)stream) sched_yield();
}

#define BEGINS_CAPTURE(symbol, parameters, types, stream, ...)              \
    abi_result cot_##symbol parameters {                                    \
        if (cot_attached() && cot->gates) {                                 \
            atomic_store(&cot->gates->captures, 1);                         \
            cot_close_batches_of(stream);                                   \
        }                                                                   \
        return CALL_REAL(symbol, types, stream __VA_OPT__(, ) __VA_ARGS__); \
    }

BEGINS_CAPTURE(cuStreamBeginCapture, (abi_stream stream), (abi_stream), stream)
BEGINS_CAPTURE(cuStreamBeginCapture_ptsz, (abi_stream stream), (abi_stream), stream)
BEGINS_CAPTURE(cuStreamBeginCapture_v2, (abi_stream stream, int mode), (abi_stream, int), stream, mode)
BEGINS_CAPTURE(cuStreamBeginCapture_v2_ptsz, (abi_stream stream, int mode), (abi_stream, int), stream, mode)

#define TO_GRAPH_PARAMETERS \
    (abi_stream stream, abi_graph graph, const abi_graph_node *dependencies, const void *data, size_t count, int mode)
#define TO_GRAPH_TYPES (abi_stream, abi_graph, const abi_graph_node *, const void *, size_t, int)
BEGINS_CAPTURE(cuStreamBeginCaptureToGraph, TO_GRAPH_PARAMETERS, TO_GRAPH_TYPES, stream, graph, dependencies, data,
               count, mode)
BEGINS_CAPTURE(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH_PARAMETERS, TO_GRAPH_TYPES, stream, graph, dependencies, data,
               count, mode)

/* A stream that waits for an event of a capture joins it. */
#define MAY_JOIN(symbol)                                                                                      \
    abi_result cot_##symbol(abi_stream stream, abi_event event, unsigned flags) {                             \
        if (cot_attached() && cot->gates && atomic_load(&cot->gates->captures)) cot_close_batches_of(stream); \
        return CALL_REAL(symbol, (abi_stream, abi_event, unsigned), stream, event, flags);                    \
    }
MAY_JOIN(cuStreamWaitEvent)
MAY_JOIN(cuStreamWaitEvent_ptsz)
