/* set_gate PAGE 0|1: opens or closes the gate of a limits page, and writes the agent's heartbeat. */
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/shared-memory/limits_page.h"

int main(int argc, char **argv) {
    struct timespec now;
    int fd = argc == 3 ? open(argv[1], O_RDWR) : -1;
    if (fd < 0) return fputs("usage: set_gate PAGE 0|1\n", stderr), 2;
    clock_gettime(CLOCK_BOOTTIME, &now);
    uint64_t heartbeat = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    uint32_t gate = (uint32_t)atoi(argv[2]);
    bool good = pwrite(fd, &heartbeat, sizeof heartbeat, offsetof(struct cot_limits_page_header, heartbeat_ns)) ==
                    sizeof heartbeat &&
                pwrite(fd, &gate, sizeof gate, offsetof(struct cot_limits_page_header, gate)) == sizeof gate;
    return good ? 0 : 1;
}
