/* An NVML library that hangs: a process that calls it cannot be ended (unkillable.h); once released, calls return that
 * the driver does not work. The file ".starts" beside it grows by one byte per process that is held. */
#include <fcntl.h>

#include "unkillable.h"

#define EXPORT __attribute__((visibility("default")))

static void count(void) {
    const int starts = open(beside("starts"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (starts < 0 || write(starts, "s", 1) != 1) _exit(1);
}

EXPORT int nvmlInit_v2(void) {
    if (is_released()) return 999;
    hold(count);
    return 1;
}
