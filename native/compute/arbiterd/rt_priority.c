/* Real-time priority of the calling thread, not inherited by its threads and child processes. */
#include "rt_priority.h"

#include <sched.h>
#include <sys/resource.h>

void set_realtime_priority(void) {
    struct sched_param priority = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority) != 0) setpriority(PRIO_PROCESS, 0, -20);
}
