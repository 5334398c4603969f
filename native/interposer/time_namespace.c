/* The time namespace of this process. A container that was restored from a checkpoint has one, so that its clocks go on
 * where they were; the kernel adds the namespace's offset to the clock since boot and to start times in /proc. What
 * this process shares with the agent and with other processes of its container is written without that offset. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "libc.h"

_Atomic int64_t cot_boottime_offset_ns;

static int64_t signed_digits(const char **text) {
    while (**text == ' ' || **text == '\t') (*text)++;
    bool negative = **text == '-';
    *text += negative;
    int64_t number = (int64_t)cot_digits(*text);
    while (**text >= '0' && **text <= '9') (*text)++;
    return negative ? -number : number;
}

/* /proc/self/timens_offsets has lines of a clock, seconds and nanoseconds, for the namespace of children to come: after
 * unshare(2) it is another one than that of this process, which then has the host's clocks, or unknown ones. */
void cot_read_boottime_offset(void) {
    struct stat own, of_children;
    char text[256];
    int64_t offset = 0;
    if (cot_stat("/proc/self/ns/time", &own) == 0 && cot_stat("/proc/self/ns/time_for_children", &of_children) == 0 &&
        own.st_ino == of_children.st_ino) {
        int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
        ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
        if (fd >= 0) close(fd);
        text[length > 0 ? length : 0] = 0;
        const char *line = strstr(text, "boottime");
        if (line) {
            line += strlen("boottime");
            offset = signed_digits(&line) * 1000000000;
            offset += signed_digits(&line);
        }
    }
    atomic_store(&cot_boottime_offset_ns, offset);
}
