/* An NVML library that hangs: a process that calls it cannot be ended (unkillable.h); once released, calls return that
 * the driver does not work. The file ".starts" beside it grows by one byte per calling process. */
#include <fcntl.h>

#include "unkillable.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvmlInit_v2(void) {
    if (is_released()) return 999;
    const int starts = open(beside("starts"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (starts < 0 || write(starts, "s", 1) != 1) return 1;
    hold();
    return 1;
}
