#include "futex_wait.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* futex_waitv(2), from Linux 5.16 on, waits for up to 128 futexes; without it, or with more pages, the rest is
 * polled. */
#define MAX_FUTEXES 127u
#define SYS_FUTEX_WAITV 449

struct bell { /* struct futex_waitv */
    uint64_t value, read_word;
    uint32_t flags, reserved;
};
enum { FUTEX_SHARED_32 = 2 };

static struct bell futexes[MAX_FUTEXES + 1];
static struct page *futex_pages[MAX_FUTEXES + 1];
static uint32_t futex_count;
static bool has_waitv = true;

bool futex_wait_prepare(uint32_t *own, uint32_t own_seen, struct page **pages, uint32_t count) {
    bool left_out = false;
    futexes[0] = (struct bell){own_seen, (uintptr_t)own, FUTEX_SHARED_32, 0};
    futex_count = 1;
    for (uint32_t i = 0; i < count; i++) {
        struct page *page = pages[i];
        if (page->broken || budget_is_exhausted(page)) continue;
        left_out = left_out || futex_count > MAX_FUTEXES;
        if (futex_count > MAX_FUTEXES) continue;
        futex_pages[futex_count] = page;
        futexes[futex_count++] =
            (struct bell){page->bell, (uintptr_t)&cot_lease_reports_at(page->map)->bell, FUTEX_SHARED_32, 0};
    }
    return (has_waitv && !left_out) || count == 0;
}

static struct timespec to_timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

void futex_wait_any(uint64_t most_ns) {
    if (!has_waitv) {
        struct timespec pause = to_timespec(most_ns);
        syscall(SYS_futex, futexes[0].read_word, FUTEX_WAIT, (uint32_t)futexes[0].value, &pause, NULL, 0);
        return;
    }
    struct timespec now; /* the call takes a time of this clock, not a duration */
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct timespec at = to_timespec((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + most_ns);
    long woken = syscall(SYS_FUTEX_WAITV, futexes, futex_count, 0, &at, CLOCK_MONOTONIC);
    int error = errno;
    if (woken > 0) futex_pages[woken]->rung = true;
    if (woken < 0 && error == ENOSYS) has_waitv = false;
    if (woken < 0 && error == EFAULT) {
        uint32_t bell; /* one of the pages was truncated: reading its bell finds out which */
        for (uint32_t i = 1; i < futex_count; i++) page_bell(futex_pages[i], &bell);
    }
}
