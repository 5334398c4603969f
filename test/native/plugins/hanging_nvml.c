/* A management library of a driver that hangs: who asks it anything never comes back (unkillable.h); once released it
 * answers that the driver does not work. ".starts" beside it grows by a byte with each process that asked. */
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
