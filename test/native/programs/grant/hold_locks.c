/* Holds record locks on a file: hold_locks FILE FROM:LENGTH[:STEP:COUNT]... Prints "ready" when it has them all, and
 * waits. A length of 0 reaches to the end of the file, however long it becomes. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
    if (fd < 0) return 2;
    for (int i = 2; i < argc; i++) {
        long from = 0, length = 0, step = 1, count = 1;
        if (sscanf(argv[i], "%ld:%ld:%ld:%ld", &from, &length, &step, &count) < 2) return 2;
        for (long k = 0; k < count; k++) {
            struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from + k * step, .l_len = length};
            if (fcntl(fd, F_SETLK, &lock) != 0) return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
