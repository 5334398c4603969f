/* Streams that are kept busy, and what waits for them. */
#include <errno.h>
#include <semaphore.h>

#include "rules.h"

static sem_t released;
static int held;

static void wait_for_release(void *nothing) {
    while (sem_wait(&released) && errno == EINTR) continue;
}

void hold(CUstream stream) {
    if (!held++) sem_init(&released, 0, 0);
    OK(cuLaunchHostFunc(stream, wait_for_release, NULL));
}

void release_all(void) {
    for (; held; held--) sem_post(&released);
}

void let_pass(void) {
    CUcontext mine = current_context();
    new_context();
    CUevent event = new_event(0);
    OK(cuEventRecord(event, NULL));
    OK(cuEventSynchronize(event));
    OK(cuCtxSetCurrent(mine));
}
