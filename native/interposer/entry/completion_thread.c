/* The completion thread: in processes with gated launches it calls the engine, which looks which launches have
 * ended. It belongs to libcotenant.so, so that engines can be replaced under it. It blocks the program's signals,
 * except those that a thread causes itself and those that the C library sends to its own threads. */
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "entry.h"

#define LEAST_SLACK_NS 1000ul
#define SET_TIMER_SLACK 29 /* prctl(2) */

static void *help(void *nothing) {
    syscall(SYS_prctl, SET_TIMER_SLACK, LEAST_SLACK_NS, 0, 0, 0);
    for (;;) {
        struct cot_completion_wait errand = {.bytes = sizeof errand};
        entry_cotenant_help((uint64_t)(uintptr_t)&errand, 0, 0, 0, 0, 0);
        if (!errand.word) return nothing;
        struct timespec pause = {.tv_sec = (time_t)(errand.pause_ns / 1000000000u),
                                 .tv_nsec = (long)(errand.pause_ns % 1000000000u)};
        syscall(SYS_futex, errand.word, FUTEX_WAIT_PRIVATE, errand.seen, errand.pause_ns ? &pause : NULL, NULL, 0);
    }
}

static uint64_t bit(int number) {
    return 1ull << (number - 1);
}

bool entry_start_completion_thread(void) {
    typedef int start(unsigned long *, const void *, void *(*)(void *), void *);
    typedef int let_go(unsigned long);
    /* Not linked: an older libc has them in libpthread, which every program with a driver has loaded. */
    start *create = (start *)libc_dlsym(RTLD_DEFAULT, "pthread_create");
    let_go *detach = (let_go *)libc_dlsym(RTLD_DEFAULT, "pthread_detach");
    if (!create || !detach) return false;
    uint64_t taken = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGFPE) | bit(SIGTRAP) | bit(SIGABRT) | bit(SIGSYS);
    for (int libcs = 32; libcs <= 34; libcs++) taken |= bit(libcs);
    uint64_t blocked = ~taken, before = 0;
    unsigned long thread;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &blocked, &before, sizeof blocked);
    bool started = create(&thread, NULL, help, NULL) == 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    if (started) detach(thread);
    return started;
}
