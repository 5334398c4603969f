/* Rounds: reports of whoever rang, decisions, orders; a heartbeat with each, and every so often the records by which
 * processes go when nobody comes. Where nothing waits or runs on any page there is no round until a bell rings, and
 * pages tell until when it is listened for. Nothing here waits but for bells, and nothing that a tenant writes makes it
 * come more often than a budget of rings allows. */
#include "event_loop.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "futex_wait.h"
#include "rt_priority.h"
#include "usage_delta.h"

#define TELL_NS 1000000000ull
#define QUIET_PAUSE_NS (3 * COT_LEASE_PAGE_HEARTBEAT_NS) /* between heartbeats while all pages are like that */
#define QUIET_RECORDS_NS (4 * QUIET_PAUSE_NS) /* until the records of a page are told again, while it is like that */
#define REST_NS 500000000ull /* between rounds while no lease is given either, and all bells can be heard */
#define POLL_NS 1000000ull   /* between rounds where not all bells can be heard */

static struct cot_arbiter arbiter;
static struct page *pages[COT_ARBITER_GPUS * COT_ARBITER_MEMBERS];
static uint32_t page_count, containers;
static struct owner {
    struct page *page;
    uint32_t gpu; /* of the page */
} owners[COT_ARBITER_GPUS][COT_ARBITER_MEMBERS];
static uint32_t instances[COT_ARBITER_GPUS];
static struct cot_request requests[COT_ARBITER_GPUS][COT_ARBITER_MEMBERS];
static uint64_t plan_number, late_ns;

static _Atomic(struct plan *) next_plan;
static uint32_t plan_bell; /* a futex word of our own: a plan has come */
static _Atomic(struct told *) newest;
static int newest_event = -1;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- plans ---- */

static void leave(struct page *page, uint64_t now) {
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        if (page->member[gpu] < 0) continue;
        cot_arbiter_leave(&arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], now);
        owners[page->gpu[gpu]][page->member[gpu]].page = NULL;
        page->member[gpu] = -1;
    }
}

static void join(struct page *page, uint64_t now) {
    page->container = ++containers;
    page_bell(page, &page->bell);
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        struct cot_digest digest;
        if (!page_digest(page, gpu, &digest)) return;
        page->throttled_ns[gpu] = 0;
        int member = cot_arbiter_join(&arbiter, page->gpu[gpu], page->container, &digest, now);
        if (member < 0) {
            page->broken = "its GPU has no place left";
            return;
        }
        page->member[gpu] = member;
        owners[page->gpu[gpu]][member] = (struct owner){page, gpu};
    }
}

/* In the order of members: what a policy makes of it does not hang on the order of the plan. */
static void share_gpu(uint32_t at, uint64_t now) {
    struct cot_request asked[COT_ARBITER_MEMBERS];
    struct cot_share shares[COT_ARBITER_MEMBERS];
    uint32_t index[COT_ARBITER_MEMBERS], count = 0;
    for (uint32_t i = 0; i < COT_ARBITER_MEMBERS; i++) {
        if (!owners[at][i].page) continue;
        asked[count] = requests[at][i];
        index[count++] = i;
    }
    if (count == 0) return;
    cot_policy_shares(instances[at], asked, count, shares);
    for (uint32_t i = 0; i < count; i++) cot_arbiter_share(&arbiter, at, index[i], &shares[i], now);
}

static void adopt(struct page *page, uint64_t now) {
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        struct cot_lease_record record;
        if (page->member[gpu] < 0 || !page_read_record(page, gpu, &record)) continue;
        const struct cot_member *member = &arbiter.gpus[page->gpu[gpu]].members[page->member[gpu]];
        cot_arbiter_adopt(&arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], &record, now);
        counted_join(page, gpu, &record, member->charged_ns, now);
    }
}

static bool is_wanted(const struct plan *plan, const struct page *page) {
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->want[i].page == page) return true;
    }
    return false;
}

static void follow(struct plan *plan, uint64_t now) {
    struct page *joined[sizeof pages / sizeof *pages];
    uint32_t joined_count = 0;
    for (uint32_t i = 0; i < page_count;) {
        struct page *page = pages[i];
        if (is_wanted(plan, page)) {
            i++;
            continue;
        }
        counted_leave(page);
        leave(page, now);
        pages[i] = pages[--page_count];
        atomic_store(&page->released, true);
    }
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct want *want = &plan->want[i];
        bool is_new = want->page->container == 0;
        if (is_new) join(want->page, now);
        if (is_new) pages[page_count++] = joined[joined_count++] = want->page;
        for (uint32_t gpu = 0; gpu < want->page->gpu_count; gpu++) {
            int member = want->page->member[gpu];
            if (member >= 0) requests[want->page->gpu[gpu]][member] = want->request[gpu];
        }
    }
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        instances[at] = plan->instances[at];
        share_gpu(at, now);
    }
    for (uint32_t i = 0; i < joined_count; i++) adopt(joined[i], now);
    plan_number = plan->number;
    free(plan);
}

/* ---- one round ---- */

static void report(struct page *page, uint32_t gpu, uint64_t now) {
    struct cot_digest digest;
    if (page->member[gpu] < 0 || !page_digest(page, gpu, &digest)) return;
    cot_arbiter_report(&arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], &digest, now);
}

static void report_masked(const uint64_t *masks, uint64_t now) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint64_t mask = masks[at]; mask; mask &= mask - 1) {
            const struct owner *owner = &owners[at][__builtin_ctzll(mask)];
            if (owner->page) report(owner->page, owner->gpu, now);
        }
    }
}

static void report_rung(bool all, uint64_t now) {
    for (uint32_t i = 0; i < page_count; i++) {
        struct page *page = pages[i];
        uint32_t bell = page->bell;
        if (!page_bell(page, &bell)) continue;
        if (bell == page->bell && !page->rung && !all) continue;
        page->rings += bell != page->bell;
        page->bell = bell;
        page->rung = false;
        for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) report(page, gpu, now);
    }
}

static void publish(const struct cot_decision *decision) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint64_t dirty = decision->dirty[at]; dirty; dirty &= dirty - 1) {
            const struct owner *owner = &owners[at][__builtin_ctzll(dirty)];
            if (owner->page) page_publish(owner->page, owner->gpu, &arbiter);
        }
    }
}

static bool any(const uint64_t *masks) {
    uint64_t all = 0;
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) all |= masks[at];
    return all != 0;
}

/* When to come back; UINT64_MAX: nothing but a heartbeat is due. `watch` goes from one round to the next. */
static uint64_t decide(uint64_t watch[COT_ARBITER_GPUS], bool all) {
    struct cot_decision decision;
    report_rung(all, now_ns());
    report_masked(watch, now_ns());
    for (uint64_t now;;) {
        now = now_ns();
        cot_arbiter_decide(&arbiter, now, &decision);
        if (decision.next_ns >= now + COT_LEASE_PAGE_HEARTBEAT_NS) decision.next_ns = UINT64_MAX;
        publish(&decision);
        if (!any(decision.look)) break;
        report_masked(decision.look, now_ns());
    }
    memcpy(watch, decision.watch, sizeof decision.watch);
    return decision.next_ns;
}

/* A page that somebody wrote over, or that was made anew, is told again. */
static void mend_order(struct page *page, uint32_t gpu) {
    struct cot_member *member = &arbiter.gpus[page->gpu[gpu]].members[page->member[gpu]];
    if (page_keeps_order(page, gpu, member) || page->broken) return;
    member->faults++;
    page_publish(page, gpu, &arbiter);
}

/* Where nothing waits and nothing is under way the records stay true, for they tell of a time, and nobody can have died
 * at work. Most containers of a full node are like that at most times. */
static bool is_quiet(const struct page *page) {
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        if (page->last[gpu].waiting || page->last[gpu].inflight) return false;
    }
    return true;
}

/* Until the next heartbeat, which must be well before this one is stale. */
static uint64_t beat(uint64_t now, bool all) {
    uint64_t pause_ns = QUIET_PAUSE_NS;
    for (uint32_t i = 0; i < page_count; i++) {
        struct page *page = pages[i];
        page->rings = 0;
        page->quiet_beats = is_quiet(page) ? page->quiet_beats + 1 : 0;
        if (page->quiet_beats == 0) pause_ns = COT_LEASE_PAGE_HEARTBEAT_NS;
        if (!all && page->quiet_beats > 1) continue;
        for (uint32_t gpu = 0; gpu < page->gpu_count && !page->broken; gpu++) {
            if (page->member[gpu] < 0) continue;
            struct cot_lease_record record =
                cot_arbiter_record(&arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], now);
            page_record(page, gpu, &record);
            mend_order(page, gpu);
        }
        page_find_dead(page);
        if (page->broken) leave(page, now);
    }
    return pause_ns;
}

/* ---- waiting ---- */

/* Nobody but a bell needs the arbiter, and all bells are heard. */
static bool may_rest(uint64_t next, const uint64_t *watch) {
    if (next != UINT64_MAX || any(watch)) return false;
    for (uint32_t i = 0; i < page_count; i++) {
        if (!pages[i]->broken && (pages[i]->rings >= BELLS_RINGS || !is_quiet(pages[i]))) return false;
    }
    return true;
}

/* Back from a rest: pages are told first, so whoever asks from now on waits for the arbiter. Whoever asked before may
 * have gone by its own credit, if the rest's end is long past, or where it rang long ago and was not heard. A page can
 * only claim that of the GPUs that it has, and each time they wait for what it claims as for a holder that does not
 * drain. Answers up to when the arbiter was there to all. */
static uint64_t rouse(uint64_t from, uint64_t until) {
    uint64_t back = now_ns();
    for (uint32_t i = 0; i < page_count; i++) page_beat(pages[i], back);
    uint64_t now = now_ns();
    if (now >= until + COT_LEASE_PAGE_STALE_NS) return until;
    for (uint32_t i = 0; now - from >= COT_LEASE_PAGE_STALE_NS && i < page_count; i++) {
        struct page *page = pages[i];
        uint32_t bell = page->bell;
        if (!page_bell(page, &bell) || bell == page->bell) continue;
        for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
            bool busy = false;
            if (page->member[gpu] >= 0 && page_is_busy(page, gpu, &busy) && busy)
                cot_arbiter_drain(&arbiter, page->gpu[gpu], now);
        }
    }
    return now;
}

/* `rests`: it may. Answers up to when it rested, or 0. */
static uint64_t listen(uint32_t plan_bell_seen, uint64_t until, bool rests) {
    bool all = bells_gather(&plan_bell, plan_bell_seen, pages, page_count);
    uint64_t now = now_ns();
    if (!all && now + POLL_NS < until) until = now + POLL_NS;
    if (until <= now) return 0;
    rests = rests && all;
    for (uint32_t i = 0; rests && i < page_count; i++) page_rest(pages[i], until);
    bells_wait(until - now);
    return rests ? rouse(now, until) : 0;
}

/* ---- what it comes to ---- */

static void tell(void) {
    struct told *told = calloc(1, sizeof *told + page_count * sizeof *told->page);
    if (!told) return;
    told->plan = plan_number;
    told->late_ns = late_ns;
    told->count = page_count;
    for (uint32_t i = 0; i < page_count; i++) {
        struct page *page = pages[i];
        struct told_page *to = &told->page[i];
        memcpy(to->id, page->id, sizeof to->id);
        to->broken = page->broken;
        to->join = page->container;
        to->gpu_count = page->gpu_count;
        for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
            if (page->member[gpu] < 0) continue;
            const struct cot_member *member = &arbiter.gpus[page->gpu[gpu]].members[page->member[gpu]];
            counted_told(page, gpu, member);
            to->gpu[gpu] = (struct told_gpu){
                .charged_ns = member->charged_ns - page->charged_before_ns[gpu],
                .contended_ns = member->contended_ns - page->contended_before_ns[gpu],
                .throttled_ns = page->throttled_ns[gpu],
                .launches = page->last[gpu].launches,
                .overruns = member->overruns,
                .faults = member->faults,
                .guarantee_ppm = member->share.guarantee_ppm,
                .limit_ppm = member->share.limit_ppm,
                .high = member->share.high,
                .native = member->share.native,
            };
        }
    }
    late_ns = 0;
    free(atomic_exchange(&newest, told));
    eventfd_write(newest_event, 1);
}

/* ---- the thread ---- */

static void *run(void *nothing) {
    uint64_t watch[COT_ARBITER_GPUS] = {0}, beat_ns = 0, records_ns = 0, pause_ns = 0, told_ns = 0, looked_ns = 0;
    rise();
    for (;;) {
        uint32_t plan_bell_seen = __atomic_load_n(&plan_bell, __ATOMIC_ACQUIRE);
        struct plan *plan = atomic_exchange(&next_plan, NULL);
        uint64_t now = now_ns();
        if (plan) follow(plan, now);
        uint64_t next = decide(watch, now - looked_ns >= COT_LEASE_PAGE_STALE_NS);
        looked_ns = now = now_ns();
        for (uint32_t i = 0; i < page_count; i++) page_beat(pages[i], now);
        if (now - beat_ns >= COT_LEASE_PAGE_HEARTBEAT_NS || plan) {
            bool all = now - records_ns >= QUIET_RECORDS_NS || plan;
            pause_ns = beat(now, all);
            beat_ns = now;
            if (all) records_ns = now;
        }
        if (now - told_ns >= TELL_NS || plan) {
            tell();
            told_ns = now;
        }
        bool rests = may_rest(next, watch);
        uint64_t due = rests ? now + REST_NS : beat_ns + pause_ns;
        if (next > due) next = due;
        if (next > told_ns + TELL_NS) next = told_ns + TELL_NS;
        uint64_t rested_ns = listen(plan_bell_seen, next, rests);
        now = now_ns();
        if (rested_ns) {
            cot_arbiter_rest(&arbiter, rested_ns);
            looked_ns = rested_ns;
        }
        if (now > next && now - next > late_ns) late_ns = now - next;
    }
    return nothing;
}

/* Makes the rounds go on at once. */
static void call(void) {
    __atomic_fetch_add(&plan_bell, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &plan_bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

int rounds_start(void) {
    pthread_t thread;
    newest_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (newest_event < 0) abort();
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    if (pthread_create(&thread, NULL, run, NULL) != 0) abort();
    return newest_event;
}

void rounds_plan(struct plan *plan) {
    struct plan *none = NULL;
    while (!atomic_compare_exchange_strong(&next_plan, &none, plan)) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
        none = NULL;
    }
    call();
}

struct told *rounds_told(void) {
    eventfd_t count;
    eventfd_read(newest_event, &count); /* before it is taken: what comes after is told again */
    return atomic_exchange(&newest, NULL);
}
