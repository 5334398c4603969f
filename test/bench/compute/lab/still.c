/* A run whose virtual time stands still would never end: events that make one another at the same time, or an arbiter
 * that comes to no end of its decisions. It is ended here after some seconds of processor time, of which a run needs
 * far less for a second of its own. For tests, COTENANT_LAB_STILL_MS is a virtual time at which it stands still. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "cotenant.h"

#define STILL_SECONDS 3    /* of processor time ... */
#define LEAST_NS (10 * MS) /* ... in which virtual time goes on by so much, at least */

static uint64_t seen_ns;
static uint32_t still_seconds;

static void say(const char *text, int length) {
    if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0) _exit(STANDS_STILL);
}

static void say_program(const struct program *program) {
    char text[200];
    const char *state = program->dead      ? "dead"
                        : program->frozen  ? "stopped"
                        : program->gated   ? "waits at the gate"
                        : program->syncing ? "waits for the GPU"
                                           : "runs";
    say(text, snprintf(text, sizeof text, "  container %u process %u: %s, %lu launches, %u in flight\n",
                       program->tenant->index, program->index, state, program->launches, program->outstanding));
}

static void say_state(void) {
    char text[200];
    say(text, snprintf(text, sizeof text, "seed %lu: virtual time stands still at %lu us\n", lab.seed, now_ns / US));
    for (uint32_t i = 0; i < lab.count; i++) {
        const struct tenant *tenant = &lab.tenants[i];
        for (uint32_t j = 0; j < tenant->processes; j++) {
            if (tenant->programs[j].tenant) say_program(&tenant->programs[j]);
        }
    }
    for (uint32_t at = 0; lab.law == &cotenant_law && at < MAX_GPUS; at++) {
        int length = agent_describe(at, text, sizeof text);
        say(text, length);
    }
}

static void look(int signal) {
    (void)signal;
    if (now_ns - seen_ns >= LEAST_NS) {
        seen_ns = now_ns;
        still_seconds = 0;
    } else if (++still_seconds >= STILL_SECONDS) {
        say_state();
        _exit(STANDS_STILL);
    }
}

static void stand_still(void *about, uint64_t number) {
    at(now_ns, stand_still, about, number);
}

void watch_time(void) {
    const struct sigaction action = {.sa_handler = look, .sa_flags = SA_RESTART};
    const struct itimerval each = {.it_interval = {.tv_sec = 1}, .it_value = {.tv_sec = 1}};
    const char *still = getenv("COTENANT_LAB_STILL_MS");
    seen_ns = now_ns;
    still_seconds = 0;
    if (still) at(strtoull(still, NULL, 10) * MS, stand_still, NULL, 0);
    if (sigaction(SIGPROF, &action, NULL) != 0 || setitimer(ITIMER_PROF, &each, NULL) != 0) abort();
}
