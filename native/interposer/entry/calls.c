/* The functions behind the entry points that an engine serves: each goes in by the table of the engine that works, and
 * comes out again. An engine is unloaded only when nobody can be in it any more, so each thread writes down, in a lane
 * of its own, that it is inside: two plain additions and no locked instruction. Whoever replaces an engine makes all
 * threads pass a barrier first (membarrier); after that, a thread that is not seen inside will meet the new engine.
 *
 * A thread that leaves a call by longjmp stays inside for ever: the engine then stays loaded, which is safe. So it is
 * in forked children, whose lanes the kernel has zeroed. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "entry.h"

static_assert(sizeof(struct entry_lane) == 64, "each thread writes to a cache line of its own");

static _Thread_local struct {
    struct cot_thread engine;
    struct entry_lane *lane;
} own;

ptrdiff_t entry_thread_offset(void) {
    return (char *)&own.engine - (char *)__builtin_thread_pointer();
}

/* ---- lanes ---- */

/* All of it is 0 in forked children. */
struct lanes {
    struct lanes *next;
    _Atomic uint32_t count, alive;
    uint32_t attached; /* the engine's, of the first ones */
    uint32_t padding[11];
    struct entry_lane lane[];
};
#define FIRST_BYTES 4096u

/* The first ones, where pages of memory are never larger: a part of a larger one would not be wiped alone. */
#if defined(__x86_64__)
static __attribute__((section(".bss.lanes"), aligned(FIRST_BYTES))) char first_page[FIRST_BYTES];
static struct lanes *own_page(void) {
    return (struct lanes *)first_page;
}
#else
static struct lanes *own_page(void) {
    return NULL;
}
#endif

static _Atomic(struct lanes *) all;
static _Atomic bool blind; /* some thread found no lane: nobody can tell any more who is inside */
static struct entry_lane shared;

static bool is_gone(uint32_t thread) {
    return syscall(SYS_kill, thread, 0) != 0 && errno == ESRCH;
}

static struct entry_lane *claim(struct lanes *from, uint32_t self) {
    for (struct lanes *some = from; some; some = some->next) {
        for (uint32_t i = 0; i < some->count; i++) {
            uint32_t nobody = 0;
            if (atomic_load_explicit(&some->lane[i].owner, memory_order_relaxed) == 0 &&
                atomic_compare_exchange_strong(&some->lane[i].owner, &nobody, self)) {
                atomic_store(&some->lane[i].depth, 0); /* what a dead thread left */
                return &some->lane[i];
            }
        }
    }
    return NULL;
}

/* Frees the lanes of the dead; true if that was a fair part of all. A thread of our own number is one of them. */
static bool clear(struct lanes *from, uint32_t self) {
    uint32_t cleared = 0, count = 0;
    for (struct lanes *some = from; some; some = some->next) {
        count += some->count;
        for (uint32_t i = 0; i < some->count; i++) {
            uint32_t owner = atomic_load(&some->lane[i].owner);
            if (owner && (owner == self || is_gone(owner)))
                cleared += atomic_compare_exchange_strong(&some->lane[i].owner, &owner, 0);
        }
    }
    return cleared > count / 4;
}

static struct lanes *prepare(void *memory, size_t bytes, bool wiped) {
    struct lanes *more = memory;
    atomic_store(&more->count, (uint32_t)((bytes - sizeof *more) / sizeof *more->lane));
    atomic_store(&more->alive, wiped);
    return more;
}

static struct lanes *make_lanes(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : prepare(memory, bytes, madvise(memory, bytes, MADV_WIPEONFORK) == 0);
}

/* Of threads that come at once each prepares them, all in the same way. */
static struct lanes *first_lanes(void) {
    struct lanes *own_ones = own_page();
    bool wiped = own_ones && madvise(own_ones, FIRST_BYTES, MADV_WIPEONFORK) == 0;
    return wiped ? prepare(own_ones, FIRST_BYTES, true) : make_lanes(FIRST_BYTES);
}

uint32_t *entry_wiped_word(void) {
    struct lanes *some = atomic_load(&all);
    while (some && some != own_page()) some = some->next;
    return some ? &some->attached : NULL;
}

/* Lock-free: it may run in the child of a process in which another thread was just doing it. */
static struct entry_lane *take_lane(void) {
    uint32_t self = (uint32_t)syscall(SYS_gettid);
    for (;;) {
        struct lanes *first = atomic_load(&all);
        struct entry_lane *lane = claim(first, self);
        if (!lane && clear(first, self)) lane = claim(first, self);
        if (lane) return own.lane = lane;
        size_t bytes = first ? (sizeof *first + first->count * sizeof *first->lane) * 2 : FIRST_BYTES;
        struct lanes *more = first ? make_lanes(bytes) : first_lanes();
        if (!more) break;
        if (first) more->next = first;
        if (!atomic_compare_exchange_strong(&all, &first, more) && more != own_page()) munmap(more, bytes);
    }
    atomic_store(&blind, true);
    return own.lane = &shared;
}

bool entry_all_out_since(uint32_t aside_at, uint32_t now) {
    bool out = !atomic_load(&blind);
    for (struct lanes *some = atomic_load(&all); some; some = some->next) {
        if (!some->alive) out = false;
        for (uint32_t i = 0; i < some->count; i++) {
            struct entry_lane *lane = &some->lane[i];
            uint32_t owner = atomic_load(&lane->owner);
            if (owner == 0) continue;
            uint32_t depth = atomic_load_explicit(&lane->depth, memory_order_acquire);
            uint64_t passes = atomic_load_explicit(&lane->passes, memory_order_acquire);
            if (depth == 0 || is_gone(owner)) lane->outside_at = now;
            else if (passes != lane->seen_passes && lane->seen_at > lane->outside_at) lane->outside_at = lane->seen_at;
            lane->seen_passes = passes;
            lane->seen_at = now;
            if (lane->outside_at < aside_at) out = false;
        }
    }
    return out;
}

/* ---- calls ---- */

static inline __attribute__((always_inline)) uint64_t pass(struct entry_lane *lane, uint64_t a, uint64_t b, uint64_t c,
                                                           uint64_t d, uint64_t e, uint64_t f, unsigned which) {
    uint32_t depth = atomic_load_explicit(&lane->depth, memory_order_relaxed);
    atomic_store_explicit(&lane->depth, depth + 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the processor's half of it is membarrier's */
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
    struct entry_lane *lane = own.lane;
    uint64_t answer;
    if (!lane) lane = take_lane();
    if (atomic_load_explicit(&entry_working.attention, memory_order_relaxed) &&
        (atomic_load_explicit(&lane->depth, memory_order_relaxed) == 0 || lane == &shared) && !entry_attend(&answer))
        return answer;
    return pass(lane, a, b, c, d, e, f, which);
}

/* About twenty instructions more than a jump. */
static inline __attribute__((always_inline)) uint64_t through(uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                                                              uint64_t e, uint64_t f, unsigned which) {
    struct entry_lane *lane = own.lane;
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
