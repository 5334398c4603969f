/* A management library of a driver that hangs: who asks it anything never comes back, and cannot be ended, not even by
 * SIGKILL, until the file beside it that is named like it with ".release" is there; from then on it answers that the
 * driver does not work. ".starts" beside it grows by a byte with each process that asked.
 *
 * Nobody without a driver can keep a process from its end; a tracer that does not take note of it comes close: to the
 * process's parent it has not ended. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define POLL_US 10000
#define LONGEST_US 120000000

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

static void keep(pid_t process, int ready) {
    const bool kept = ptrace(PTRACE_SEIZE, process, 0, PTRACE_O_TRACEEXIT) == 0;
    if (!kept || write(ready, "k", 1) != 1) _exit(1);
    for (int fd = 0; fd < 64; fd++) close(fd); /* its pipes are the agent's */
    for (long waited = 0; waited < LONGEST_US && !is_released(); waited += POLL_US) usleep(POLL_US);
    _exit(0);
}

EXPORT int nvmlInit_v2(void) {
    if (is_released()) return 999;
    const int starts = open(beside("starts"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    int go[2], ready[2];
    char byte;
    if (starts < 0 || write(starts, "s", 1) != 1 || pipe(go) != 0 || pipe(ready) != 0) return 1;
    const pid_t own = getpid(), keeper = fork();
    if (keeper == 0) {
        if (read(go[0], &byte, 1) == 1) keep(own, ready[1]);
        _exit(1);
    }
    prctl(PR_SET_PTRACER, keeper, 0, 0, 0);
    close(ready[1]);
    if (keeper < 0 || write(go[1], "g", 1) != 1 || read(ready[0], &byte, 1) != 1) return 1;
    for (;;) pause();
}
