#pragma once

#include "libc.h"

/* Field 22 of /proc/PID/stat, as a process of the host's time namespace reads it, or one tick less; 0: no such process,
 * or a zombie without a running thread. */
uint64_t cot_start_ticks(uint32_t pid);
/* Is it the process that had this start time for a reader of any time namespace? */
bool cot_started_at(uint32_t pid, uint64_t ticks);
