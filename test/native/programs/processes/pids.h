/* Starts a child with a PID from a range that other programs use too, so that PIDs are reused at once. */
#ifndef PIDS_H
#define PIDS_H
#include <errno.h>
#include <linux/sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Of a program that has no right to choose pids. */
enum { NO_RIGHT = 4 };

/* Any numbers will do, other ones in each process. */
static uint64_t random_state;
static uint32_t random_next(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

/* As fork; -1 where no pid of the range is free. */
static pid_t fork_within(pid_t first, pid_t last) {
    for (int turn = 0; turn < 1000; turn++) {
        pid_t pid = first + (pid_t)(random_next() % (uint32_t)(last - first + 1));
        struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&pid, .set_tid_size = 1};
        const long made = syscall(SYS_clone3, &args, sizeof args);
        if (made >= 0) return (pid_t)made;
        if (errno == EPERM) exit(NO_RIGHT);
        if (errno != EEXIST) return -1;
    }
    return -1;
}
#endif
