#include "lanes.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Thread_local struct entry_thread entry_thread;

ptrdiff_t entry_thread_offset(void) {
    return (char *)&entry_thread.engine - (char *)__builtin_thread_pointer();
}

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
struct entry_lane entry_shared_lane;

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
struct entry_lane *entry_take_lane(void) {
    uint32_t self = (uint32_t)syscall(SYS_gettid);
    for (;;) {
        struct lanes *first = atomic_load(&all);
        struct entry_lane *lane = claim(first, self);
        if (!lane && clear(first, self)) lane = claim(first, self);
        if (lane) return entry_thread.lane = lane;
        size_t bytes = first ? (sizeof *first + first->count * sizeof *first->lane) * 2 : FIRST_BYTES;
        struct lanes *more = first ? make_lanes(bytes) : first_lanes();
        if (!more) break;
        if (first) more->next = first;
        if (!atomic_compare_exchange_strong(&all, &first, more) && more != own_page()) munmap(more, bytes);
    }
    atomic_store(&blind, true);
    return entry_thread.lane = &entry_shared_lane;
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
