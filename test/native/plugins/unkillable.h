/* A process that cannot be ended, not even by SIGKILL, until the file named like the library with ".release" exists: as
 * a driver's hanging call does to a process.
 *
 * Without a driver no program can prevent a process's end, but a tracer that does not reap it comes close: to its
 * parent the process has not ended. */
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <unistd.h>

#define HELD_POLL_US 10000
#define HELD_LONGEST_US 120000000

static const char *beside(const char *ending) {
    static char path[4096];
    Dl_info own;
    dladdr((void *)beside, &own);
    snprintf(path, sizeof path, "%s.%s", own.dli_fname, ending);
    return path;
}

static bool is_released(void) {
    return access(beside("release"), F_OK) == 0;
}

static void keep(pid_t process, int ready, void (*held)(void)) {
    const bool kept = ptrace(PTRACE_SEIZE, process, 0, PTRACE_O_TRACEEXIT) == 0;
    if (kept && held) held();
    if (!kept || write(ready, "k", 1) != 1) _exit(1);
    for (int fd = 0; fd < 64; fd++) close(fd); /* its pipes are the agent's */
    for (long waited = 0; waited < HELD_LONGEST_US && !is_released(); waited += HELD_POLL_US) usleep(HELD_POLL_US);
    _exit(0);
}

/* Does not return, except where no process can be held. `held` is called once it cannot be ended any more. */
static void hold(void (*held)(void)) {
    int go[2], ready[2];
    char byte;
    if (pipe(go) != 0 || pipe(ready) != 0) return;
    const pid_t own = getpid(), keeper = fork();
    if (keeper == 0) {
        if (read(go[0], &byte, 1) == 1) keep(own, ready[1], held);
        _exit(1);
    }
    prctl(PR_SET_PTRACER, keeper, 0, 0, 0);
    close(ready[1]);
    if (keeper < 0 || write(go[1], "g", 1) != 1 || read(ready[0], &byte, 1) != 1) return;
    for (;;) pause();
}
