/* The lock of cuCheckpointProcessLock: while a process has locked itself, its other calls of the driver wait. */
#include <string.h>

#include "sim.h"

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool locked; /* under gate; `sim.ready` is 0 meanwhile, so that entry points come here at no cost of their own */

void sim_wait_for_unlock(const char *name) {
    if (!strncmp(name, "cuCheckpoint", 12) || !*sim_alive) return;
    pthread_mutex_lock(&gate);
    while (locked) pthread_cond_wait(&opened, &gate);
    pthread_mutex_unlock(&gate);
}

void sim_lock_process(bool now) {
    pthread_mutex_lock(&gate);
    locked = now;
    atomic_store(&sim.ready, !now);
    if (!now) pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&gate);
}

bool sim_is_process_locked(void) {
    pthread_mutex_lock(&gate);
    bool now = locked;
    pthread_mutex_unlock(&gate);
    return now;
}
