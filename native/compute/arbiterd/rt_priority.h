/* Real-time priority for the arbiter's thread. */
#pragma once

/* Gives the calling thread SCHED_FIFO; without the permission, the highest nice level. */
void set_realtime_priority(void);
