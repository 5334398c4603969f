/* How long a program runs that does nothing, from before it is started to after it has ended, with and without objects
 * to preload, in turns. starts ROUNDS PROGRAM PRELOAD Prints a line for each round: microseconds without, without once
 * more, and with. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Less than 0: it could not be run. */
static double run(const char *program, char *variable) {
    char *arguments[] = {(char *)program, NULL}, *variables[] = {variable, NULL};
    int status;
    pid_t child;
    double before = now_us();
    if (posix_spawn(&child, program, NULL, NULL, arguments, variables) != 0) return -1;
    if (waitpid(child, &status, 0) != child || status != 0) return -1;
    return now_us() - before;
}

int main(int argc, char **argv) {
    char preload[8192];
    if (argc != 4 || snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argv[3]) >= (int)sizeof preload) {
        fputs("usage: starts ROUNDS PROGRAM PRELOAD\n", stderr);
        return 2;
    }
    for (int round = atoi(argv[1]); round > 0; round--) {
        double plain = run(argv[2], NULL), again = run(argv[2], NULL), preloaded = run(argv[2], preload);
        if (plain < 0 || again < 0 || preloaded < 0) return perror(argv[2]), 1;
        printf("%.2f %.2f %.2f\n", plain, again, preloaded);
    }
    return 0;
}
