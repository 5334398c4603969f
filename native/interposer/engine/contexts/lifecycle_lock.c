/* One after the other: what makes contexts or ends them.
 *
 * Once the driver has ended a context, another one may get its address; if that is noted before the end of the first
 * is, the two are taken for one. So the turn lasts from before the call of the driver until what came of it is noted. A
 * driver may be long about it, may wait for work that another thread has to end first, and may call the program back:
 * who has waited for one thread for a while takes the turn over, and a thread that has it goes on. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../clock.h"
#include "contexts.h"

#define MOST_WAIT_NS 2000000000ll
#define WAITED_FOR 0x80000000u /* beside the number of the thread that has it */

static void wait(uint32_t seen, int64_t most_ns) {
    const struct timespec pause = {most_ns / 1000000000, most_ns % 1000000000};
    syscall(SYS_futex, &cot->context_turn, FUTEX_WAIT_PRIVATE, seen, &pause, NULL, 0);
}

static bool take(void) {
    const uint32_t own = (uint32_t)syscall(SYS_gettid);
    uint32_t seen = 0, taken = own, former = 0;
    int64_t until = 0;
    if (atomic_compare_exchange_strong(&cot->context_turn, &seen, own)) return true;
    while ((seen & ~WAITED_FOR) != own) {
        int64_t now = (int64_t)cot_monotonic_ns();
        if ((seen & ~WAITED_FOR) != former) until = now + MOST_WAIT_NS;
        former = seen & ~WAITED_FOR;
        if (former == 0 || now >= until) {
            if (atomic_compare_exchange_strong(&cot->context_turn, &seen, taken)) return true;
        } else if (seen & WAITED_FOR || atomic_compare_exchange_strong(&cot->context_turn, &seen, seen | WAITED_FOR)) {
            wait(former | WAITED_FOR, until - now);
            taken = own | WAITED_FOR; /* others may wait as well */
            seen = atomic_load(&cot->context_turn);
        }
    }
    return false;
}

/* An address of what a context ends with may be given again before that is out of the tables. By a new epoch before its
 * end the one is told from the other. */
bool cot_context_turn(bool ends) {
    bool taken = take();
    if (ends) atomic_fetch_add(&cot->contexts.epoch, 1);
    return taken;
}

void cot_context_turn_end(bool taken) {
    if (!taken) return;
    const uint32_t own = (uint32_t)syscall(SYS_gettid);
    uint32_t seen = atomic_load(&cot->context_turn);
    while ((seen & ~WAITED_FOR) == own) { /* else it was taken over */
        if (!atomic_compare_exchange_strong(&cot->context_turn, &seen, 0)) continue;
        if (seen & WAITED_FOR) syscall(SYS_futex, &cot->context_turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        return;
    }
}
