/* The process-wide state of the simulated driver. */
#include "sim.h"

struct sim_state sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .doorbell = -1};
static const volatile uint32_t always = 1;
const volatile uint32_t *sim_alive = &always;
