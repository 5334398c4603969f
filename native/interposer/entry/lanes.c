#include "lanes.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Thread_local struct entry_thread entry_thread;

ptrdiff_t entry_thread_offset(void) {
    return (char *)&entry_thread.engine - (char *)__builtin_thread_pointer();
}

/* The kernel zeroes all of it in forked children. */
struct lanes {
    struct lanes *next;
    _Atomic uint32_t count, alive;
    uint32_t attached; /* for the engine (cot_services.fork_zeroed_word), in the first block only */
    uint32_t padding[11];
    struct entry_lane lane[];
};
#define FIRST_BYTES 4096u

/* The first lanes, on machines whose pages are never larger: a part of a larger page could not be zeroed on fork
 * alone. */
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
static _Atomic bool lane_missing; /* a thread found no lane, so it cannot be known who is inside */
struct entry_lane entry_shared_lane;

static bool is_thread_gone(uint32_t thread) {
    return syscall(SYS_kill, thread, 0) != 0 && errno == ESRCH;
}

static struct entry_lane *claim_lane(struct lanes *from, uint32_t self) {
    for (struct lanes *block = from; block; block = block->next) {
        for (uint32_t i = 0; i < block->count; i++) {
            uint32_t free_owner = 0;
            if (atomic_load_explicit(&block->lane[i].owner, memory_order_relaxed) == 0 &&
                atomic_compare_exchange_strong(&block->lane[i].owner, &free_owner, self)) {
                atomic_store(&block->lane[i].depth, 0); /* of a dead thread that owned it */
                return &block->lane[i];
            }
        }
    }
    return NULL;
}

/* Frees lanes of dead threads, one with our own thread ID among them; true if that was more than a quarter of all. */
static bool free_dead_lanes(struct lanes *from, uint32_t self) {
    uint32_t cleared = 0, count = 0;
    for (struct lanes *block = from; block; block = block->next) {
        count += block->count;
        for (uint32_t i = 0; i < block->count; i++) {
            uint32_t owner = atomic_load(&block->lane[i].owner);
            if (owner && (owner == self || is_thread_gone(owner)))
                cleared += atomic_compare_exchange_strong(&block->lane[i].owner, &owner, 0);
        }
    }
    return cleared > count / 4;
}

static struct lanes *init_lanes(void *memory, size_t bytes, bool wiped) {
    struct lanes *more = memory;
    atomic_store(&more->count, (uint32_t)((bytes - sizeof *more) / sizeof *more->lane));
    atomic_store(&more->alive, wiped);
    return more;
}

static struct lanes *make_lanes(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : init_lanes(memory, bytes, madvise(memory, bytes, MADV_WIPEONFORK) == 0);
}

/* Threads that do this at once all write the same values. */
static struct lanes *first_lanes(void) {
    struct lanes *first = own_page();
    bool wiped = first && madvise(first, FIRST_BYTES, MADV_WIPEONFORK) == 0;
    return wiped ? init_lanes(first, FIRST_BYTES, true) : make_lanes(FIRST_BYTES);
}

uint32_t *entry_fork_zeroed_word(void) {
    struct lanes *block = atomic_load(&all);
    while (block && block != own_page()) block = block->next;
    return block ? &block->attached : NULL;
}

/* Lock-free: it may run in the child of a process in which another thread was just doing it. */
struct entry_lane *entry_take_lane(void) {
    uint32_t self = (uint32_t)syscall(SYS_gettid);
    for (;;) {
        struct lanes *first = atomic_load(&all);
        struct entry_lane *lane = claim_lane(first, self);
        if (!lane && free_dead_lanes(first, self)) lane = claim_lane(first, self);
        if (lane) return entry_thread.lane = lane;
        size_t bytes = first ? (sizeof *first + first->count * sizeof *first->lane) * 2 : FIRST_BYTES;
        struct lanes *more = first ? make_lanes(bytes) : first_lanes();
        if (!more) break;
        if (first) more->next = first;
        if (!atomic_compare_exchange_strong(&all, &first, more) && more != own_page()) munmap(more, bytes);
    }
    atomic_store(&lane_missing, true);
    return entry_thread.lane = &entry_shared_lane;
}

bool entry_all_left_since(uint32_t replaced_at, uint32_t now) {
    bool out = !atomic_load(&lane_missing);
    for (struct lanes *block = atomic_load(&all); block; block = block->next) {
        if (!block->alive) out = false;
        for (uint32_t i = 0; i < block->count; i++) {
            struct entry_lane *lane = &block->lane[i];
            uint32_t owner = atomic_load(&lane->owner);
            if (owner == 0) continue;
            uint32_t depth = atomic_load_explicit(&lane->depth, memory_order_acquire);
            uint64_t passes = atomic_load_explicit(&lane->passes, memory_order_acquire);
            if (depth == 0 || is_thread_gone(owner)) lane->outside_at = now;
            else if (passes != lane->seen_passes && lane->seen_at > lane->outside_at) lane->outside_at = lane->seen_at;
            lane->seen_passes = passes;
            lane->seen_at = now;
            if (lane->outside_at < replaced_at) out = false;
        }
    }
    return out;
}
