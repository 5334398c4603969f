/* Announce, check, call, commit or roll back. A request is announced in the process's own slot before the slots of
 * others are read, so of two that race at least one sees the other. There is no lock and no shared total, so
 * nothing needs repair after a crash.
 *
 * Where little memory is left, a request whose size is known exactly is charged before the driver is called: other
 * requests wait for bytes that are only announced, but are refused at once over bytes that are charged.
 *
 * A slot's charge is what its process counted, corrected by what the agent measured: more, if the driver holds more
 * for the process (code, local memory); less, if it holds less and the process has not allocated since; and freed
 * memory as long as the GPU may still hold it. */
#include <time.h>

#include "../../../shared-memory/slot_charge.h"
#include "../../clock.h"
#include "../core/hooks.h"
#include "exported.h"
#include "quota.h"

#define SLOW_PAGE_FLAGS (COT_LIMITS_PAGE_ISOLATE_MEMORY | COT_LIMITS_PAGE_HAS_FEEDBACK)
#define SPIN_TRIES 16
#define LONGEST_PAUSE_NS 500000u
#define VISIT_NS 30000000000ull /* the agent writes its heartbeat more often */
#define WAIT_NS 2000000000ull   /* how long a request waits for announced requests to be decided */
#define LITTLE_LEFT_FRACTION 8u /* little is left: less than this fraction of the limit */

struct sums {
    uint64_t held, pending;
};

/* Words are read in the order in which bytes move (pending, held, freed), so that bytes that move meanwhile count
 * twice rather than not at all. */
static __attribute__((noinline)) struct sums sum_slots(uint32_t gpu, bool late, bool measured) {
    struct sums sums = {0, 0};
    for (uint32_t slot = 0, used = cot_slots_used(); slot < used; slot++) {
        const struct cot_slot_gpu *row = cot_row(slot, gpu);
        uint64_t pending = cot_clamp_bytes(__atomic_load_n(&row->pending, __ATOMIC_SEQ_CST));
        uint64_t held = cot_clamp_bytes(__atomic_load_n(&row->held, __ATOMIC_SEQ_CST));
        const struct cot_limits_page_feedback *feedback =
            &cot_mapped_limits_page()->feedback[slot * cot_gpu_count() + gpu];
        if (measured) held = cot_slot_charge(feedback, cot_slot_at(slot), row, pending, held, late);
        else if (late) held += cot_clamp_bytes(__atomic_load_n(&row->freed, __ATOMIC_SEQ_CST));
        sums.held += held;
        sums.pending += pending & ~(COT_PENDING_GRAIN - 1);
    }
    return sums;
}

static struct sums sum(uint32_t gpu, bool late) {
    return sum_slots(gpu, late, cot_mapped_limits_page()->header.flags & COT_LIMITS_PAGE_HAS_FEEDBACK);
}

struct total {
    uint64_t bytes, all; /* all: every bit that is set in any word */
};

static inline void add_row(struct total *total, const char *at) {
    const struct cot_slot_gpu *row = (const struct cot_slot_gpu *)at;
    uint64_t pending = __atomic_load_n(&row->pending, __ATOMIC_SEQ_CST);
    uint64_t held = __atomic_load_n(&row->held, __ATOMIC_SEQ_CST);
    total->bytes += pending + held;
    total->all |= pending | held;
}

/* Sum of all rows while the agent has measured nothing; UINT64_MAX if a word is implausible. Eight instructions for
 * each row: those of running processes, and of dead ones that were not found yet. */
static inline __attribute__((always_inline)) uint64_t total_plain(uint32_t gpu) {
    uint64_t stride = cot->at.slot_bytes;
    const char *at = (const char *)cot_row(0, gpu);
    uint32_t left = cot_slots_used();
    struct total total = {0, 0};
    if (left % 2) {
        add_row(&total, at);
        at += stride;
    }
    for (left /= 2; left > 0; left--, at += 2 * stride) {
        add_row(&total, at);
        add_row(&total, at + stride);
    }
    return __builtin_expect(total.all < COT_MAX_PLAUSIBLE_BYTES, 1) ? total.bytes : UINT64_MAX;
}

/* Never less than sum() gives for the same words, at a fraction of its cost: a measurement of the agent is added
 * without a check if it is more, and left out if it is less. */
static __attribute__((noinline)) uint64_t total_measured(uint32_t gpu) {
    uint64_t stride = cot->at.slot_bytes, all = 0, total = 0;
    uint32_t gpus = cot_gpu_count();
    const struct cot_limits_page_feedback *feedback = &cot_mapped_limits_page()->feedback[gpu];
    const char *at = (const char *)cot_row(0, gpu);
    for (uint32_t left = cot_slots_used(); left > 0; left--, at += stride, feedback += gpus) {
        const struct cot_slot_gpu *row = (const struct cot_slot_gpu *)at;
        uint64_t pending = __atomic_load_n(&row->pending, __ATOMIC_SEQ_CST);
        uint64_t held = __atomic_load_n(&row->held, __ATOMIC_SEQ_CST);
        int64_t residual = __atomic_load_n(&feedback->residual_bytes, __ATOMIC_RELAXED);
        uint64_t more = (uint64_t)(residual & ~(residual >> 63));
        total += pending + held + more;
        all |= pending | held | more;
    }
    return all < COT_MAX_PLAUSIBLE_BYTES ? total : UINT64_MAX;
}

static __attribute__((noinline)) bool fits_exactly(uint32_t gpu, bool late, uint64_t limit) {
    struct sums all = sum(gpu, late);
    return all.held + all.pending <= limit;
}

static inline bool leaves_little(uint64_t total, uint64_t limit) {
    return total > limit - limit / LITTLE_LEFT_FRACTION;
}

static inline bool fits(uint32_t gpu, const struct cot_gpu_limits *limits, bool *little) {
    *little = true;
    if (__builtin_expect(!limits->releases_late, 1)) {
        bool measured = cot_mapped_limits_page()->header.flags & COT_LIMITS_PAGE_HAS_FEEDBACK;
        uint64_t most = measured ? total_measured(gpu) : total_plain(gpu);
        *little = leaves_little(most, limits->memory_bytes);
        if (__builtin_expect(most <= limits->memory_bytes, 1)) return true;
    }
    return fits_exactly(gpu, limits->releases_late, limits->memory_bytes);
}

uint64_t cot_container_usage(uint32_t gpu) {
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    struct sums sums = sum(gpu, limits.releases_late);
    return sums.held + sums.pending;
}

/* Waits for a time that differs from process to process and grows with each try. */
static void back_off(unsigned tries) {
    uint32_t seed = cot_thread()->seed;
    if (!seed) seed = (uint32_t)cot_monotonic_ns() ^ (uint32_t)(uintptr_t)cot_thread();
    cot_thread()->seed = seed = seed * 1664525u + 1013904223u;
    if (tries < SPIN_TRIES) {
        for (volatile uint32_t i = (seed >> 16) % (64u << (tries < 8 ? tries : 8)); i > 0; i--) {
        }
        return;
    }
    struct timespec pause = {.tv_nsec = (long)((seed >> 12) % LONGEST_PAUSE_NS)};
    nanosleep(&pause, NULL);
}

static bool agent_visits(void) {
    const uint64_t *beat = &cot->at.page->header.heartbeat_ns;
    return cot_boottime_ns() - __atomic_load_n(beat, __ATOMIC_RELAXED) < VISIT_NS;
}

/* The slow path of cot_reserve: the request did not fit, and is not announced any more.
 *
 * First it reclaims memory: what this process's pools and graphs keep unused, and the slots of dead processes. Then
 * it waits briefly for what other requests only announce, which is soon charged or withdrawn. If the grant is full
 * without all that, the request is refused. Bytes that the caller has `announced` before count as charged, as they
 * stay until the caller is done. */
static __attribute__((noinline)) bool reserve_slow(uint32_t gpu, uint64_t bytes, uint64_t announced,
                                                   struct cot_slot_gpu *own) {
    uint64_t deadline = 0;
    bool trimmed = false;
    for (unsigned tries = 0;; tries++) {
        struct cot_gpu_limits limits;
        cot_read_limits(gpu, &limits);
        if (announced > limits.memory_bytes || bytes > limits.memory_bytes - announced) return false;
        uint64_t needed = announced + bytes;
        /* The process waited for may have died; looking takes as long as a pause. */
        if (tries == 0 || tries >= SPIN_TRIES) {
            cot_exported_settle();
            cot_reap();
        }
        struct sums others = sum(gpu, limits.releases_late);
        if (others.held + needed > limits.memory_bytes) {
            if (!trimmed && !cot_is_checkpointed()) {
                trimmed = true;
                cot_hooks.reclaim(gpu);
                continue;
            }
            /* Memory that the GPU frees late, and exported memory, come back by themselves: wait until the agent, if
             * there is one, has seen where they are. */
            uint64_t least = limits.releases_late ? sum(gpu, false).held : others.held;
            uint64_t unsure = agent_visits() ? cot_exported_pending(gpu) : 0;
            if ((!limits.releases_late && !unsure) ||
                least - (unsure < least ? unsure : least) + needed > limits.memory_bytes)
                return false;
        }
        uint64_t now = cot_monotonic_ns();
        if (!deadline) deadline = now + WAIT_NS;
        if (now > deadline) return false;
        back_off(tries);
        __atomic_fetch_add(&own->pending, bytes, __ATOMIC_SEQ_CST);
        bool little;
        if (fits(gpu, &limits, &little)) return true;
        __atomic_fetch_sub(&own->pending, bytes, __ATOMIC_SEQ_CST);
    }
}

/* Announces the bytes if they fit as things are. */
static bool reserve_at_once(uint32_t gpu, uint64_t bytes, bool *little) {
    struct cot_slot_gpu *own = cot_own_row(gpu);
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    *little = limits.isolate;
    if (limits.isolate && bytes > limits.memory_bytes) return false;
    __atomic_fetch_add(&own->pending, bytes, __ATOMIC_SEQ_CST);
    if (!limits.isolate || __builtin_expect(fits(gpu, &limits, little), 1)) return true;
    __atomic_fetch_sub(&own->pending, bytes, __ATOMIC_SEQ_CST);
    return false;
}

static bool reserve(uint32_t gpu, uint64_t bytes, uint64_t announced, bool *little) {
    return reserve_at_once(gpu, bytes, little) || reserve_slow(gpu, bytes, announced, cot_own_row(gpu));
}

bool cot_reserve_at_once(uint32_t gpu, uint64_t bytes) {
    bool little;
    return reserve_at_once(gpu, bytes, &little);
}

bool cot_exceeds_limit(uint32_t gpu) {
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    return limits.isolate && cot_container_usage(gpu) > limits.memory_bytes;
}

static __attribute__((noinline)) bool reserve_measured(uint32_t gpu, uint64_t bytes, bool *little) {
    return reserve(gpu, bytes, 0, little);
}

/* The request is announced, and there may not be enough left. */
static __attribute__((noinline)) bool reserve_announced(uint32_t gpu, uint64_t bytes, uint64_t limit) {
    struct cot_slot_gpu *own = cot_own_row(gpu);
    if (fits_exactly(gpu, false, limit)) return true;
    __atomic_fetch_sub(&own->pending, bytes, __ATOMIC_SEQ_CST);
    return reserve_slow(gpu, bytes, 0, own);
}

/* Charges announced bytes. Other processes see them twice for a moment, never not at all. */
static __attribute__((noinline)) void charge_early(uint32_t gpu, uint64_t bytes) {
    struct cot_slot_gpu *own = cot_own_row(gpu);
    __atomic_fetch_add(&own->held, bytes, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&own->pending, bytes - COT_IN_FLIGHT, __ATOMIC_SEQ_CST);
}

/* The fast path: no function call while there is room and the agent has measured nothing. */
static inline __attribute__((always_inline)) bool reserve_quickly(uint32_t gpu, uint64_t bytes, bool *little) {
    const struct cot_limits_page_header *header = &cot->at.page->header;
    const struct cot_cached_limits *seen = &cot->limits[gpu];
    uint64_t generation = __atomic_load_n(&header->generation, __ATOMIC_ACQUIRE);
    bool read = atomic_load_explicit(&seen->generation, memory_order_acquire) == generation + 1;
    uint64_t limit = atomic_load_explicit(&seen->memory_bytes, memory_order_relaxed);
    uint32_t page_flags = __atomic_load_n(&header->flags, __ATOMIC_RELAXED) & SLOW_PAGE_FLAGS;
    uint32_t gpu_flags = atomic_load_explicit(&seen->flags, memory_order_relaxed) & COT_GPU_RELEASES_LATE;
    bool isolate = page_flags & COT_LIMITS_PAGE_ISOLATE_MEMORY;
    if (__builtin_expect(!read, 0)) return reserve_measured(gpu, bytes, little);
    if (__builtin_expect(isolate && (page_flags & COT_LIMITS_PAGE_HAS_FEEDBACK || gpu_flags || bytes > limit), 0))
        return reserve_measured(gpu, bytes, little);
    __atomic_fetch_add(&cot_own_row(gpu)->pending, bytes, __ATOMIC_SEQ_CST);
    *little = false;
    if (!isolate) return true;
    uint64_t total = total_plain(gpu);
    *little = leaves_little(total, limit);
    if (__builtin_expect(total <= limit, 1)) return true;
    return reserve_announced(gpu, bytes, limit);
}

bool cot_reserve(uint32_t gpu, uint64_t bytes) {
    bool little;
    return reserve_quickly(gpu, bytes, &little);
}

bool cot_reserve_exact(uint32_t gpu, uint64_t bytes, bool *charged) {
    bool little;
    *charged = false;
    if (!reserve_quickly(gpu, bytes, &little)) return false;
    if (__builtin_expect(little && bytes > 0, 0)) {
        charge_early(gpu, bytes);
        *charged = true;
    }
    return true;
}

/* A measurement that the agent made during the call is void. */
static __attribute__((noinline)) void end_early_charge(uint32_t gpu) {
    cot_mark_changed(gpu);
    __atomic_fetch_sub(&cot_own_row(gpu)->pending, COT_IN_FLIGHT, __ATOMIC_SEQ_CST);
}

void cot_commit_exact(uint32_t gpu, uint64_t bytes, bool charged) {
    if (__builtin_expect(charged, 0)) end_early_charge(gpu);
    else cot_commit(gpu, bytes, bytes);
}

/* The driver never allocated it, so it does not count as freed. */
void cot_rollback_exact(uint32_t gpu, uint64_t bytes, bool charged) {
    if (charged) __atomic_fetch_sub(&cot_own_row(gpu)->held, bytes, __ATOMIC_SEQ_CST);
    if (charged) end_early_charge(gpu);
    else cot_rollback(gpu, bytes);
}

bool cot_reserve_more(uint32_t gpu, uint64_t bytes, uint64_t announced) {
    bool little;
    return reserve(gpu, bytes, announced, &little);
}

void cot_announce(uint32_t gpu, uint64_t bytes) {
    __atomic_fetch_add(&cot_own_row(gpu)->pending, bytes, __ATOMIC_SEQ_CST);
}

void cot_count_denied(uint32_t gpu) {
    __atomic_fetch_add(&cot_gpu_total(gpu)->denied, 1, __ATOMIC_RELAXED);
}

/* Charged before it is withdrawn: if the process is killed in between it counts twice, never not at all. */
void cot_commit(uint32_t gpu, uint64_t reserved, uint64_t charged) {
    struct cot_slot_gpu *own = cot_own_row(gpu);
    __atomic_fetch_add(&own->held, charged, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&own->pending, reserved, __ATOMIC_SEQ_CST);
}

void cot_rollback(uint32_t gpu, uint64_t reserved) {
    __atomic_fetch_sub(&cot_own_row(gpu)->pending, reserved, __ATOMIC_SEQ_CST);
}

void cot_charge(uint32_t gpu, uint64_t bytes) {
    __atomic_fetch_add(&cot_own_row(gpu)->held, bytes, __ATOMIC_SEQ_CST);
}

void cot_release(uint32_t gpu, uint64_t bytes) {
    struct cot_slot_gpu *own = cot_own_row(gpu);
    __atomic_fetch_add(&own->freed, bytes, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&own->held, bytes, __ATOMIC_SEQ_CST);
}

void cot_mark_changed(uint32_t gpu) {
    __atomic_fetch_add(&cot_own_row(gpu)->changes, 1, __ATOMIC_RELAXED);
}
