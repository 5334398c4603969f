#include "futex_wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Where the kernel cannot wait for several bells, or for no more (futex_waitv(2): Linux 5.16, 128 words). */
#define MOST_BELLS 127u
#define SYS_FUTEX_WAITV 449

struct bell { /* struct futex_waitv */
    uint64_t value, word;
    uint32_t flags, reserved;
};
enum { BELL_SHARED_32 = 2 };

static struct bell bells[MOST_BELLS + 1];
static struct page *whose[MOST_BELLS + 1];
static uint32_t bell_count;
static bool is_able = true;

bool bells_gather(uint32_t *own, uint32_t own_seen, struct page **pages, uint32_t count) {
    bool left_out = false;
    bells[0] = (struct bell){own_seen, (uintptr_t)own, BELL_SHARED_32, 0};
    bell_count = 1;
    for (uint32_t i = 0; i < count; i++) {
        struct page *page = pages[i];
        if (page->broken || page->rings >= BELLS_RINGS) continue;
        left_out = left_out || bell_count > MOST_BELLS;
        if (bell_count > MOST_BELLS) continue;
        whose[bell_count] = page;
        bells[bell_count++] =
            (struct bell){page->bell, (uintptr_t)&cot_lease_reports_at(page->map)->bell, BELL_SHARED_32, 0};
    }
    return (is_able && !left_out) || count == 0;
}

static struct timespec span(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

void bells_wait(uint64_t most_ns) {
    if (!is_able) {
        struct timespec pause = span(most_ns);
        syscall(SYS_futex, bells[0].word, FUTEX_WAIT, (uint32_t)bells[0].value, &pause, NULL, 0);
        return;
    }
    struct timespec now; /* the kernel knows no time of day and no length here, but this clock's time */
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct timespec at = span((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + most_ns);
    long woken = syscall(SYS_FUTEX_WAITV, bells, bell_count, 0, &at, CLOCK_MONOTONIC);
    int error = errno;
    if (woken > 0) whose[woken]->rung = true;
    if (woken > 0 && __atomic_load_n(&whose[woken]->bell, __ATOMIC_RELAXED) == bells[woken].value)
        whose[woken]->rings++;
    if (woken < 0 && error == ENOSYS) is_able = false;
    if (woken < 0 && error == EFAULT) {
        uint32_t bell; /* one of them was shortened: its own look will tell */
        for (uint32_t i = 1; i < bell_count; i++) page_bell(whose[i], &bell);
    }
}
