#pragma once

#include "libc.h"

/* Field 22 of /proc/PID/stat; 0: no such process, or a zombie without a running thread. */
uint64_t cot_start_ticks(uint32_t pid);
