/* One function for each entry point that the engine serves: it notes in the thread's lane that a call is inside, and
 * calls the working engine by its table. Code that replaces an engine makes all threads pass a barrier (membarrier)
 * first; after that, a thread that is not seen inside will call the new engine.
 *
 * A thread that leaves a call by longjmp counts as inside for good: the engine then stays loaded, which is safe. So
 * does the engine of a forked child, whose lanes the kernel has zeroed. */
#include "engine_switch.h"
#include "entry.h"
#include "lanes.h"

static inline __attribute__((always_inline)) uint64_t pass(struct entry_lane *lane, uint64_t a, uint64_t b, uint64_t c,
                                                           uint64_t d, uint64_t e, uint64_t f, unsigned which) {
    uint32_t depth = atomic_load_explicit(&lane->depth, memory_order_relaxed);
    atomic_store_explicit(&lane->depth, depth + 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* membarrier orders it for the processor */
    const struct entry_engine *engine = atomic_load_explicit(&entry_working.engine, memory_order_acquire);
    uint64_t answer = engine->serve[which](a, b, c, d, e, f);
    if (depth == 0) {
        uint64_t passes = atomic_load_explicit(&lane->passes, memory_order_relaxed);
        atomic_store_explicit(&lane->passes, passes + 1, memory_order_release);
    }
    atomic_store_explicit(&lane->depth, depth, memory_order_release);
    return answer;
}

static __attribute__((noinline)) uint64_t through_slow(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                                                       uint64_t f, unsigned which) {
    struct entry_lane *lane = entry_thread.lane;
    uint64_t answer;
    if (!lane) lane = entry_take_lane();
    if (atomic_load_explicit(&entry_working.attention, memory_order_relaxed) &&
        (atomic_load_explicit(&lane->depth, memory_order_relaxed) == 0 || lane == &entry_shared_lane) &&
        !entry_update_engine(&answer))
        return answer;
    return pass(lane, a, b, c, d, e, f, which);
}

/* About twenty instructions more than a jump. */
static inline __attribute__((always_inline)) uint64_t through(uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                                                              uint64_t e, uint64_t f, unsigned which) {
    struct entry_lane *lane = entry_thread.lane;
    if (__builtin_expect(!lane || atomic_load_explicit(&entry_working.attention, memory_order_relaxed), 0))
        return through_slow(a, b, c, d, e, f, which);
    return pass(lane, a, b, c, d, e, f, which);
}

#define SERVE(symbol)                                                                                 \
    uint64_t entry_##symbol(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) { \
        return through(a, b, c, d, e, f, ENTRY_AT_##symbol);                                          \
    }
#define SERVE_ROW(index, symbol) SERVE(symbol)
COT_CUDA_SERVED(SERVE_ROW)
ENTRY_DIVERTED(SERVE)
ENTRY_OWN(SERVE)
