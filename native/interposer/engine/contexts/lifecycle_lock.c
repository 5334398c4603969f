/* The lifecycle lock: contexts are created and destroyed one after the other.
 *
 * Once the driver has ended a context it may give its address to a new one; if the new one is added before the end
 * of the old one is noted, the two are taken for one. So the lock is held from before the driver's call until its
 * result is noted. A driver may acquire long, may wait for another thread, and may call the program back: a thread
 * that has waited for the same owner for two seconds takes the lock over, and the owner may acquire it again. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../clock.h"
#include "contexts.h"

#define MOST_WAIT_NS 2000000000ll
#define WAITED_FOR 0x80000000u /* beside the ID of the thread that has it */

static void wait(uint32_t seen, int64_t most_ns) {
    const struct timespec pause = {most_ns / 1000000000, most_ns % 1000000000};
    syscall(SYS_futex, &cot->lifecycle_owner, FUTEX_WAIT_PRIVATE, seen, &pause, NULL, 0);
}

static bool acquire(void) {
    const uint32_t own = (uint32_t)syscall(SYS_gettid);
    uint32_t seen = 0, taken = own, former = 0;
    int64_t until = 0;
    if (atomic_compare_exchange_strong(&cot->lifecycle_owner, &seen, own)) return true;
    while ((seen & ~WAITED_FOR) != own) {
        int64_t now = (int64_t)cot_monotonic_ns();
        if ((seen & ~WAITED_FOR) != former) until = now + MOST_WAIT_NS;
        former = seen & ~WAITED_FOR;
        if (former == 0 || now >= until) {
            if (atomic_compare_exchange_strong(&cot->lifecycle_owner, &seen, taken)) return true;
        } else if (seen & WAITED_FOR ||
                   atomic_compare_exchange_strong(&cot->lifecycle_owner, &seen, seen | WAITED_FOR)) {
            wait(former | WAITED_FOR, until - now);
            taken = own | WAITED_FOR; /* others may wait as well */
            seen = atomic_load(&cot->lifecycle_owner);
        }
    }
    return false;
}

/* An address may be reused before the table has the end of its context. A new epoch before that end distinguishes the
 * old and the new context. */
bool cot_lifecycle_lock(bool ends) {
    bool taken = acquire();
    if (ends) atomic_fetch_add(&cot->contexts.epoch, 1);
    return taken;
}

void cot_lifecycle_unlock(bool taken) {
    if (!taken) return;
    const uint32_t own = (uint32_t)syscall(SYS_gettid);
    uint32_t seen = atomic_load(&cot->lifecycle_owner);
    while ((seen & ~WAITED_FOR) == own) { /* otherwise it was taken over */
        if (!atomic_compare_exchange_strong(&cot->lifecycle_owner, &seen, 0)) continue;
        if (seen & WAITED_FOR) syscall(SYS_futex, &cot->lifecycle_owner, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        return;
    }
}
