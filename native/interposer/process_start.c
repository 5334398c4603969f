/* Start time of a process from /proc/PID/stat: together with the PID it identifies the process. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "libc.h"
#include "process_start.h"

#define TICK_NS 10000000 /* of USER_HZ: 100 on all architectures with NVIDIA GPUs */

/* The kernel has added the offset of the reader's time namespace, and then cut to ticks. */
static uint64_t without_offset(uint64_t ticks) {
    int64_t offset = atomic_load_explicit(&cot_boottime_offset_ns, memory_order_relaxed);
    int64_t host_ns = (int64_t)ticks * TICK_NS - offset;
    if (ticks == 0 || offset == 0) return ticks;
    return host_ns >= TICK_NS ? (uint64_t)host_ns / TICK_NS : 1;
}

bool cot_started_at(uint32_t pid, uint64_t ticks) {
    uint64_t now = cot_start_ticks(pid);
    return now != 0 && now - ticks + 1 <= 2;
}

/* Field 22 of stat, counted from the last bracket as the command may contain anything. 0: no such process, or a
 * zombie, whose memory the kernel has freed. A process whose main thread has ended is shown as a zombie although it
 * runs on: field 20 is the number of its threads. */
uint64_t cot_start_ticks(uint32_t pid) {
    char path[32] = "/proc/", text[1024];
    memcpy(cot_write_digits(path + strlen(path), pid), "/stat", sizeof "/stat");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *field = strrchr(text, ')');
    if (!field || field[1] != ' ' || field[2] == 'X') return 0;
    bool first_ended = field[2] == 'Z';
    field += 2;
    for (int number = 3; number < 22; number++) {
        if (number == 20 && first_ended && cot_digits(field) <= 1) return 0;
        field = strchr(field, ' ');
        if (!field) return 0;
        field++;
    }
    return without_offset(cot_digits(field));
}
