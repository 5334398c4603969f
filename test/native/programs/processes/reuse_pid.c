/* Starts processes one after the other with the same PID. Prints that PID; for each line of standard input it ends the
 * process, starts another one with that PID, and prints it again; at the line "end" it prints "ended" in between and
 * waits for another line. Exit code 4: no permission to choose PIDs. */
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t start(pid_t pid) {
    struct clone_args args = {.exit_signal = SIGCHLD};
    if (pid != 0) args.set_tid = (uint64_t)(uintptr_t)&pid;
    args.set_tid_size = pid != 0;
    const long made = syscall(SYS_clone3, &args, sizeof args);
    if (made != 0) return (pid_t)made;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

int main(void) {
    char line[16];
    for (pid_t pid = start(0); pid > 0; pid = start(pid)) {
        printf("%d\n", pid);
        fflush(stdout);
        int more = fgets(line, sizeof line, stdin) != NULL;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        if (more && strcmp(line, "end\n") == 0) {
            puts("ended");
            fflush(stdout);
            more = fgets(line, sizeof line, stdin) != NULL;
        }
        if (!more) return 0;
        /* Start times are given in hundredths of a second. */
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return errno == EPERM ? 4 : 1;
}
