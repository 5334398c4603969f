/* The heartbeat while the arbiter's thread waits. Both threads hold the lock for the few microseconds in which pages
 * are touched or handed over; priority passes through it. */
#include "heart.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "rise.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t rests;
    void (*call)(void);
    bool resting, waiting; /* the other one rests; the heart waits for that */
    bool called;
    struct page *const *pages;
    uint32_t count;
    uint64_t until_ns, beat_ns;
} heart;

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void call_once(void) {
    if (!heart.called) heart.call();
    heart.called = true;
}

/* One beat; or none, where the other thread should have been here by now: it hangs, or the machine slept, whose time
 * the kernel's waits do not count. */
static void beat(uint64_t now) {
    if (now > heart.until_ns + HEART_BEAT_NS) call_once();
    if (heart.called) return;
    if (pages_beat(heart.pages, heart.count, now)) heart.beat_ns = now;
    else call_once();
}

static void *run(void *nothing) {
    rise();
    pthread_mutex_lock(&heart.lock);
    for (;;) {
        heart.waiting = true;
        while (!heart.resting) pthread_cond_wait(&heart.rests, &heart.lock);
        heart.waiting = false;
        /* The one that rests has told all pages itself just before. */
        uint64_t due = now_ns(CLOCK_MONOTONIC) + HEART_BEAT_NS;
        struct timespec at = {.tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u)};
        while (pthread_cond_timedwait(&heart.rests, &heart.lock, &at) != ETIMEDOUT) {
        }
        if (heart.resting) beat(now_ns(CLOCK_BOOTTIME));
    }
    return nothing;
}

void heart_start(void (*call)(void)) {
    pthread_mutexattr_t inherits;
    pthread_condattr_t steady;
    pthread_t thread;
    heart.call = call;
    pthread_mutexattr_init(&inherits);
    pthread_mutexattr_setprotocol(&inherits, PTHREAD_PRIO_INHERIT);
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    if (pthread_mutex_init(&heart.lock, &inherits) != 0 || pthread_cond_init(&heart.rests, &steady) != 0 ||
        pthread_create(&thread, NULL, run, NULL) != 0)
        abort();
}

void heart_rest(struct page *const *pages, uint32_t count, uint64_t until_ns) {
    pthread_mutex_lock(&heart.lock);
    heart.pages = pages;
    heart.count = count;
    heart.until_ns = until_ns;
    heart.beat_ns = 0;
    heart.called = false;
    heart.resting = true;
    if (heart.waiting) pthread_cond_signal(&heart.rests);
    pthread_mutex_unlock(&heart.lock);
}

uint64_t heart_rouse(void) {
    pthread_mutex_lock(&heart.lock);
    uint64_t beat_ns = heart.resting ? heart.beat_ns : 0;
    heart.resting = false;
    pthread_mutex_unlock(&heart.lock);
    return beat_ns;
}
