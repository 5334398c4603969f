/* The heart over pages of its own, in the folder that it is run in, and this thread as the one that rests. `heart NAME`
 * runs one case; a case waits for what must come, and of what must not for long enough that it would have. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../native/arbitrate/heart.h"

#define PAGES 3
#define SLOTS 4
#define SECOND 1000000000ull
#define CHECK(is)                                           \
    do {                                                    \
        if (!(is)) {                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #is); \
            exit(1);                                        \
        }                                                   \
    } while (0)

static struct page *pages[PAGES];
static char names[PAGES][16];
static _Atomic int calls;

static void call(void) {
    atomic_fetch_add(&calls, 1);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static void sleep_ns(uint64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)}, NULL);
}

static uint64_t beat_of(int i) {
    return __atomic_load_n(&((struct cot_compute_header *)pages[i]->map)->heartbeat_ns, __ATOMIC_ACQUIRE);
}

/* Until that page was told again; fails after ten seconds. */
static void await_beat(int i) {
    uint64_t before = beat_of(i), until = now_ns() + 10 * SECOND;
    while (beat_of(i) == before && now_ns() < until) sleep_ns(SECOND / 1000);
    CHECK(beat_of(i) != before);
}

static void await_call(void) {
    uint64_t until = now_ns() + 10 * SECOND;
    while (!atomic_load(&calls) && now_ns() < until) sleep_ns(SECOND / 1000);
    CHECK(atomic_load(&calls) == 1);
}

/* No page is told for ten times as long as between two beats. */
static void expect_none(void) {
    uint64_t before[PAGES];
    for (int i = 0; i < PAGES; i++) before[i] = beat_of(i);
    sleep_ns(10 * HEART_BEAT_NS);
    for (int i = 0; i < PAGES; i++) CHECK(beat_of(i) == before[i]);
}

static void open_pages(void) {
    uint64_t bytes = cot_compute_at(SLOTS, 1) + cot_compute_bytes(SLOTS, 1);
    for (int i = 0; i < PAGES; i++) {
        const char *why;
        snprintf(names[i], sizeof names[i], "page.%d", i);
        int fd = open(names[i], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
        close(fd);
        pages[i] = page_open(names[i], names[i], SLOTS, 1, &why);
        CHECK(pages[i]);
    }
}

static void ring(int i) {
    __atomic_fetch_add(&cot_reports_at(pages[i]->map)->bell, 1, __ATOMIC_SEQ_CST);
}

/* While the other one rests all pages are told; when it is back, none is, and it learns when they last were. */
static void beats(void) {
    for (int turn = 0; turn < 3; turn++) {
        uint64_t begun = now_ns();
        heart_rest(pages, PAGES, begun + 3600 * SECOND);
        for (int i = 0; i < PAGES; i++) await_beat(i);
        await_beat(0);
        uint64_t beat_ns = heart_rouse();
        CHECK(beat_ns >= begun && beat_ns == beat_of(0) && beat_ns == beat_of(PAGES - 1));
        expect_none();
        CHECK(heart_rouse() == 0);
    }
    CHECK(calls == 0);
}

/* A bell that nobody hears makes it call, once, and after that it says nothing any more. */
static void unheard(void) {
    heart_rest(pages, PAGES, now_ns() + 3600 * SECOND);
    await_beat(0);
    ring(1);
    uint64_t rung_ns = now_ns();
    await_call();
    CHECK(beat_of(1) <= rung_ns); /* COT_COMPUTE_STALE_NS counts from before the ring */
    expect_none();
    /* Who comes back has seen the bell. */
    heart_rouse();
    CHECK(page_bell(pages[1], &pages[1]->bell));
    heart_rest(pages, PAGES, now_ns() + 3600 * SECOND);
    await_beat(1);
    await_beat(1);
    CHECK(calls == 1);
}

/* The other one should be back by now: whatever keeps it, nobody is told that somebody listens. It is called, for its
 * wait may be on a clock that stood while the machine slept. */
static void overdue(void) {
    uint64_t until = now_ns() + 5 * HEART_BEAT_NS;
    heart_rest(pages, PAGES, until);
    await_beat(0);
    while (now_ns() < until + 2 * HEART_BEAT_NS) sleep_ns(SECOND / 1000);
    expect_none();
    for (int i = 0; i < PAGES; i++) CHECK(beat_of(i) <= until + HEART_BEAT_NS);
    CHECK(calls == 1);
}

/* A page that its tenant cuts: the others are told all the same, and whoever may change it is called. */
static void cut(void) {
    heart_rest(pages, PAGES, now_ns() + 3600 * SECOND);
    await_beat(2);
    uint64_t before = beat_of(2);
    CHECK(truncate(names[0], 0) == 0);
    await_call();
    CHECK(beat_of(2) >= before && heart_rouse() >= before);
    uint32_t bell;
    CHECK(!page_bell(pages[0], &bell) && pages[0]->broken);
    heart_rest(pages, PAGES, now_ns() + 3600 * SECOND);
    await_beat(2);
    await_beat(1);
    CHECK(calls == 1);
}

/* Pages that go: once the other one is back they are its own. */
static void gone(void) {
    for (int turn = 0; turn < 20; turn++) {
        heart_rest(pages, PAGES, now_ns() + 3600 * SECOND);
        sleep_ns((uint64_t)turn * HEART_BEAT_NS / 10);
        heart_rouse();
        for (int i = 0; i < PAGES; i++) page_close(pages[i]);
        open_pages();
    }
    CHECK(calls == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {{"beats", beats}, {"unheard", unheard}, {"overdue", overdue}, {"cut", cut}, {"gone", gone}};
    pages_guard();
    open_pages();
    heart_start(call);
    for (size_t i = 0; argc == 2 && i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(CASES[i].name, argv[1]) != 0) continue;
        CASES[i].run();
        return 0;
    }
    fputs("usage: heart CASE\n", stderr);
    return 2;
}
