/* What holds a pod's namespaces open: sleeps, reaps whoever is left to it, and ends when it is asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    (void)signal(SIGINT, leave);
    (void)signal(SIGTERM, leave);
    (void)signal(SIGCHLD, reap);
    for (;;) pause();
}
