/* The arbiter's own thread over lease pages in the current folder, with this thread as their tenant. `arbiter_idle
 * NAME` runs one case; a case waits for the expected state. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/compute/arbiterd/event_loop.h"
#include "../../../../native/compute/gate/gate.h"

#define PAGES 3
#define SLOTS 4
#define SECOND 1000000000ull
#define STALE COT_LEASE_PAGE_STALE_NS
#define CHECK(is)                                           \
    do {                                                    \
        if (!(is)) {                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #is); \
            exit(1);                                        \
        }                                                   \
    } while (0)

static struct page *pages[PAGES];
static char names[PAGES][16];
static struct cot_gate gates[PAGES];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static void sleep_ns(uint64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)}, NULL);
}

static struct cot_lease_page_header *header_of(int i) {
    return gates[i].header;
}

static uint64_t beat_of(int i) {
    return __atomic_load_n(&header_of(i)->heartbeat_ns, __ATOMIC_SEQ_CST);
}

static bool rests(int i) {
    uint64_t beat = beat_of(i);
    return beat && beat == __atomic_load_n(&header_of(i)->rest_until_ns, __ATOMIC_ACQUIRE);
}

#define AWAIT(is)                                                        \
    do {                                                                 \
        for (uint64_t until = now_ns() + 10 * SECOND; !(is);) {          \
            CHECK(now_ns() < until || !"waited in vain for this: " #is); \
            sleep_ns(SECOND / 1000);                                     \
        }                                                                \
    } while (0)

/* The tenant's mapping is one of its own: what the arbiter does to its own is nothing to it. */
static void open_page(int i) {
    uint64_t bytes = cot_lease_page_bytes(SLOTS, 1), at = cot_lease_page_offset_for(SLOTS, 1);
    const char *why;
    uint32_t rate = 250000;
    snprintf(names[i], sizeof names[i], "page.%d", i);
    int fd = open(names[i], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)(at + bytes)) == 0);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    CHECK(map != MAP_FAILED);
    close(fd);
    cot_lease_page_init(map, SLOTS, 1, &rate, now_ns());
    cot_gate_attach(&gates[i], &cot_default_gate, map, SLOTS, 1, 0, 0, now_ns() | 1);
    pages[i] = page_open(names[i], names[i], SLOTS, 1, &why);
    CHECK(pages[i]);
}

/* The first `count` pages, a quarter of GPU 0 each. */
static void plan(uint64_t number, uint32_t count) {
    struct plan *plan = calloc(1, sizeof *plan);
    CHECK(plan);
    plan->number = number;
    plan->count = count;
    for (uint32_t i = 0; i < count; i++) {
        plan->planned[i].page = pages[i];
        plan->planned[i].request[0] = (struct cot_request){.policy = COT_POLICY_FIXED, .share_ppm = 250000};
    }
    event_loop_set_plan(plan);
}

static void begin(uint32_t count) {
    event_loop_start();
    plan(1, count);
    for (uint32_t i = 0; i < count; i++) AWAIT(rests((int)i));
}

static void ring(int i) {
    syscall(SYS_futex, &gates[i].reports->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* One launch as an engine lets it go. True: by the lease. */
static bool launch(int i) {
    struct cot_launch launch;
    struct cot_wait wait = {0};
    uint64_t until = now_ns() + 10 * SECOND;
    for (;;) {
        struct cot_verdict verdict =
            cot_gate_admit(&gates[i], &(struct cot_launch_kind){.key = 7}, now_ns(), &wait, &launch);
        if (verdict.go) {
            if (wait.rung_ns) cot_gate_wait(&gates[i], false, 0, now_ns());
            cot_gate_undo(&gates[i], &launch);
            return !verdict.away;
        }
        if (!wait.rung_ns && cot_gate_wait(&gates[i], true, 0, now_ns())) ring(i);
        if (!wait.rung_ns) wait.rung_ns = now_ns();
        CHECK(now_ns() < until);
        sleep_ns(SECOND / 10000);
    }
}

/* Promises follow one another, and between them the arbiter says itself that it is there. */
static void promises(void) {
    begin(PAGES);
    for (int turn = 0; turn < 3; turn++) {
        uint64_t promise = beat_of(0);
        CHECK(promise <= now_ns() + SECOND);
        AWAIT(beat_of(0) != promise && rests(0));
        CHECK(beat_of(0) > promise);
    }
}

/* The container that rings gets the lease, and all learn at once that the arbiter is back. */
static void heard(void) {
    begin(PAGES);
    CHECK(launch(1));
    for (int i = 0; i < PAGES; i++) CHECK(!rests(i) || beat_of(i) > now_ns());
}

static bool tells_broken(void) {
    struct status *status = event_loop_take_status();
    bool broken = status && status->page[0].broken;
    free(status);
    return broken;
}

/* A page that its tenant cuts keeps no other from being heard. */
static void cut(void) {
    begin(PAGES);
    CHECK(truncate(names[0], 0) == 0);
    CHECK(launch(1));
    AWAIT(tells_broken());
    CHECK(launch(2));
}

/* Pages join and leave while it rests. */
static void plans(void) {
    begin(1);
    plan(2, PAGES);
    for (int i = 1; i < PAGES; i++) AWAIT(beat_of(i));
    CHECK(launch(2));
    plan(3, 1);
    AWAIT(atomic_load(&pages[2]->released));
    uint64_t last = beat_of(2), first = beat_of(0);
    AWAIT(beat_of(0) > first + SECOND);
    CHECK(beat_of(2) == last);
}

/* An arbiter that was killed, or hangs, while it rests: no container is active, and time is this case's own. */
static struct cot_verdict ask(uint64_t now, uint64_t rung) {
    struct cot_launch launch;
    struct cot_wait wait = {.rung_ns = rung};
    struct cot_verdict verdict = cot_gate_admit(&gates[0], &(struct cot_launch_kind){.key = 7}, now, &wait, &launch);
    if (verdict.go) cot_gate_undo(&gates[0], &launch);
    return verdict;
}

static void gone(void) {
    uint64_t now = now_ns() & ~1ull; /* a promise of an even time is written one later */
    cot_lease_page_rest(header_of(0), now + SECOND / 2);
    struct cot_verdict verdict = ask(now, 0);
    CHECK(!verdict.away && !verdict.go && verdict.until_ns <= now + STALE);
    verdict = ask(now + STALE, now + 1);
    CHECK(!verdict.away && !verdict.go && verdict.until_ns == now + 1 + STALE);
    verdict = ask(now + 1 + STALE, now + 1);
    CHECK(verdict.away && verdict.go);
    /* No thread of this process waits for the same promise again. */
    verdict = ask(now + 2 + STALE, 0);
    CHECK(verdict.away && verdict.go);
    /* One that is back is believed, and so is what it promises next. */
    cot_lease_page_beat(header_of(0), now + 2 * STALE);
    CHECK(!ask(now + 2 * STALE, now).away);
    cot_lease_page_rest(header_of(0), now + SECOND);
    CHECK(!ask(now + 2 * STALE, 0).away);
    /* A promise that has run out is as old as a heartbeat of then. */
    CHECK(!ask(now + SECOND + STALE, 0).away);
    CHECK(ask(now + SECOND + STALE + 1, 0).away);
    /* Whichever process wrote it, no promise is waited for any longer. */
    cot_lease_page_rest(header_of(0), UINT64_MAX);
    CHECK(!ask(now + SECOND, now + SECOND - STALE + 1).away);
    CHECK(ask(now + SECOND, now + SECOND - STALE).away);
}

/* What is under way at a time at which no container can have known of the arbiter drains before any gets the GPU. */
static void late(void) {
    static struct cot_arbiter arbiter;
    static const struct cot_share share = {.guarantee_ppm = 250000, .limit_ppm = 250000};
    struct cot_digest alone = {.inflight = 1, .pending_ns = 1000000}, waits = {.waiting = 1}, none = {0};
    struct cot_decision decision;
    uint64_t now = SECOND;
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(cot_arbiter_join(&arbiter, 0, i, &none, now) == (int)i);
        cot_arbiter_set_share(&arbiter, 0, i, &share, now);
    }
    cot_arbiter_decide(&arbiter, now, &decision);
    cot_arbiter_skip_idle(&arbiter, now += SECOND / 5);
    cot_arbiter_drain(&arbiter, 0, now);
    cot_arbiter_report(&arbiter, 0, 0, &alone, now);
    cot_arbiter_report(&arbiter, 0, 1, &waits, now);
    cot_arbiter_decide(&arbiter, now, &decision);
    CHECK(arbiter.gpus[0].phase == COT_PHASE_IDLE && decision.next_ns <= now + 1000000);
    now += 1000000;
    cot_arbiter_report(&arbiter, 0, 0, &none, now);
    cot_arbiter_report(&arbiter, 0, 1, &waits, now);
    cot_arbiter_decide(&arbiter, now, &decision);
    CHECK(arbiter.gpus[0].phase == COT_PHASE_HELD && arbiter.gpus[0].holder == 1);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {{"promises", promises}, {"heard", heard}, {"cut", cut},
                 {"plans", plans},       {"gone", gone},   {"late", late}};
    install_page_guard();
    for (int i = 0; i < PAGES; i++) open_page(i);
    for (size_t i = 0; argc == 2 && i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(CASES[i].name, argv[1]) != 0) continue;
        CASES[i].run();
        _exit(0); /* not waiting for the arbiter's thread */
    }
    fputs("usage: arbiter_idle CASE\n", stderr);
    return 2;
}
