/* Rounds of the arbiter: digest the pages that rang, decide, publish orders. Heartbeats follow, and every so often the
 * records by which gates proceed while no arbiter runs. While nothing waits or runs on any page, the loop sleeps until
 * a bell rings, and pages announce until when it may sleep. It waits for nothing but bells, and a tenant cannot wake it
 * more often than its budget of time allows (page_budget.h). */
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

#define MOST_LOOKS 64u /* in one round: a GPU changes hands once or twice */
#define STATUS_NS 1000000000ull
#define QUIET_PAUSE_NS (3 * COT_LEASE_PAGE_HEARTBEAT_NS) /* between heartbeats while all pages are quiet */
#define QUIET_RECORDS_NS (4 * QUIET_PAUSE_NS)            /* until the records of a quiet page are written again */
#define IDLE_NS 500000000ull /* between rounds while no lease is granted and all bells are waited for */
#define POLL_NS 1000000ull   /* between rounds where some bells cannot be waited for */

static struct cot_arbiter arbiter;
static struct page *pages[COT_ARBITER_GPUS * COT_ARBITER_MEMBERS];
static uint32_t page_count, containers;
static struct owner {
    struct page *page;
    uint32_t gpu; /* index in the page */
} owners[COT_ARBITER_GPUS][COT_ARBITER_MEMBERS];
static uint32_t instances[COT_ARBITER_GPUS];
static struct cot_request requests[COT_ARBITER_GPUS][COT_ARBITER_MEMBERS];
static uint64_t plan_number, late_ns;

static _Atomic(struct plan *) next_plan;
static uint32_t plan_bell; /* a futex of this process: a plan has come */
static _Atomic(struct status *) newest_status;
static int status_event = -1;

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
        page->relieved[gpu] = 0;
        int member = cot_arbiter_join(&arbiter, page->gpu[gpu], page->container, &digest, now);
        if (member < 0) {
            page->broken = "its GPU already has 1024 containers";
            return;
        }
        page->member[gpu] = member;
        owners[page->gpu[gpu]][member] = (struct owner){page, gpu};
    }
}

/* In the order of members: the resulting shares do not depend on the order of lines in the plan. */
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
    for (uint32_t i = 0; i < count; i++) cot_arbiter_set_share(&arbiter, at, index[i], &shares[i], now);
}

static void adopt(struct page *page, uint64_t now) {
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        struct cot_lease_record record;
        if (page->member[gpu] < 0 || !page_read_record(page, gpu, &record)) continue;
        const struct cot_member *member = &arbiter.gpus[page->gpu[gpu]].members[page->member[gpu]];
        cot_arbiter_adopt(&arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], &record, now);
        usage_delta_join(page, gpu, &record, member->charged_ns, now);
    }
}

static bool is_wanted(const struct plan *plan, const struct page *page) {
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->planned[i].page == page) return true;
    }
    return false;
}

static void apply_plan(struct plan *plan, uint64_t now) {
    static struct page *joined[sizeof pages / sizeof *pages];
    uint32_t joined_count = 0;
    for (uint32_t i = 0; i < page_count;) {
        struct page *page = pages[i];
        if (is_wanted(plan, page)) {
            i++;
            continue;
        }
        usage_delta_leave(page);
        leave(page, now);
        pages[i] = pages[--page_count];
        atomic_store(&page->released, true);
    }
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct planned *planned = &plan->planned[i];
        bool is_new = planned->page->container == 0;
        if (is_new) join(planned->page, now);
        if (is_new) pages[page_count++] = joined[joined_count++] = planned->page;
        for (uint32_t gpu = 0; gpu < planned->page->gpu_count; gpu++) {
            int member = planned->page->member[gpu];
            if (member >= 0) requests[planned->page->gpu[gpu]][member] = planned->request[gpu];
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
    uint64_t from = now_ns();
    if (page->member[gpu] < 0 || !page_digest(page, gpu, &digest)) return;
    budget_charge_reading(page, now_ns() - from);
    cot_arbiter_report(&arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], &digest, now);
}

static void report_masked(const struct cot_mask *masks, uint64_t now) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint32_t i = 0; (i = cot_mask_next(&masks[at], i)) < COT_ARBITER_MEMBERS; i++) {
            const struct owner *owner = &owners[at][i];
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
        page->caused_round = bell != page->bell || page->rung;
        page->bell = bell;
        page->rung = false;
        for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) report(page, gpu, now);
    }
}

static void publish(const struct cot_decision *decision) {
    for (uint32_t at = 0; at < COT_ARBITER_GPUS; at++) {
        for (uint32_t i = 0; (i = cot_mask_next(&decision->dirty[at], i)) < COT_ARBITER_MEMBERS; i++) {
            const struct owner *owner = &owners[at][i];
            if (owner->page) page_publish(owner->page, owner->gpu, &arbiter);
        }
    }
}

/* When to come back; UINT64_MAX: only a heartbeat is due. `watch` is kept from one round to the next. */
static uint64_t decide(struct cot_mask watch[COT_ARBITER_GPUS], bool all) {
    static struct cot_decision decision;
    report_rung(all, now_ns());
    report_masked(watch, now_ns());
    for (uint32_t looks = 0;; looks++) {
        uint64_t now = now_ns();
        cot_arbiter_decide(&arbiter, now, &decision);
        if (decision.next_ns >= now + COT_LEASE_PAGE_HEARTBEAT_NS) decision.next_ns = UINT64_MAX;
        publish(&decision);
        if (!cot_masks_any(decision.look) || looks == MOST_LOOKS) break;
        report_masked(decision.look, now_ns());
    }
    memcpy(watch, decision.watch, sizeof decision.watch);
    return decision.next_ns;
}

/* Writes the order again into a page that was overwritten or created anew. */
static void repair_order(struct page *page, uint32_t gpu) {
    struct cot_member *member = &arbiter.gpus[page->gpu[gpu]].members[page->member[gpu]];
    if (page_has_order(page, gpu, member) || page->broken) return;
    member->faults++;
    page_publish(page, gpu, &arbiter);
}

/* Nothing waits and nothing is in flight: the records stay true, since they refer to a time, and no process can have
 * died at work. Most containers of a full node are quiet most of the time. */
static bool is_quiet(const struct page *page) {
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        if (page->last[gpu].waiting || page->last[gpu].inflight) return false;
    }
    return true;
}

/* Writes heartbeats and records. Returns the pause until the next heartbeat, which must be well before this one goes
 * stale. */
static uint64_t heartbeat(uint64_t now, bool all) {
    uint64_t pause_ns = QUIET_PAUSE_NS;
    for (uint32_t i = 0; i < page_count; i++) {
        struct page *page = pages[i];
        page->quiet_beats = is_quiet(page) ? page->quiet_beats + 1 : 0;
        if (page->quiet_beats == 0) pause_ns = COT_LEASE_PAGE_HEARTBEAT_NS;
        if (!all && page->quiet_beats > 1) continue;
        for (uint32_t gpu = 0; gpu < page->gpu_count && !page->broken; gpu++) {
            if (page->member[gpu] < 0) continue;
            struct cot_lease_record record =
                cot_arbiter_record(&arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], now);
            page_record(page, gpu, &record);
            repair_order(page, gpu);
        }
        if (page->broken) leave(page, now);
    }
    budget_renew(pages, page_count);
    budget_find_dead(pages, page_count, now);
    return pause_ns;
}

/* ---- waiting ---- */

/* Only a bell needs the arbiter, and all bells are waited for. */
static bool may_idle(uint64_t next, const struct cot_mask *watch) {
    if (next != UINT64_MAX || cot_masks_any(watch)) return false;
    for (uint32_t i = 0; i < page_count; i++) {
        if (!pages[i]->broken && (budget_is_exhausted(pages[i]) || !is_quiet(pages[i]))) return false;
    }
    return true;
}

/* Ends an idle period. Heartbeats are written first, so that gates wait for the arbiter from now on. A gate that asked
 * before may have launched by its own credit, if the announced end is long past or a ring was not heard: such work
 * drains first. A page can affect only its own GPUs by such a claim, and each time they wait as for a holder that does
 * not drain. Returns until when the arbiter counted as present. */
static uint64_t end_idle(uint64_t from, uint64_t until) {
    uint64_t back = now_ns();
    for (uint32_t i = 0; i < page_count; i++) page_heartbeat(pages[i], back);
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

/* `rests`: the loop may go idle. Returns until when it was idle, or 0. */
static uint64_t wait_for_work(uint32_t plan_bell_seen, uint64_t until, bool rests) {
    bool all = futex_wait_prepare(&plan_bell, plan_bell_seen, pages, page_count);
    uint64_t now = now_ns();
    if (!all && now + POLL_NS < until) until = now + POLL_NS;
    if (until <= now) return 0;
    rests = rests && all;
    for (uint32_t i = 0; rests && i < page_count; i++) page_announce_idle(pages[i], until);
    futex_wait_any(until - now);
    return rests ? end_idle(now, until) : 0;
}

/* ---- status ---- */

static void publish_status(void) {
    struct status *status = calloc(1, sizeof *status + page_count * sizeof *status->page);
    if (!status) return;
    status->plan = plan_number;
    status->late_ns = late_ns;
    status->count = page_count;
    for (uint32_t i = 0; i < page_count; i++) {
        struct page *page = pages[i];
        struct page_status *to = &status->page[i];
        memcpy(to->id, page->id, sizeof to->id);
        to->broken = page->broken;
        to->join = page->container;
        to->gpu_count = page->gpu_count;
        for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
            if (page->member[gpu] < 0) continue;
            const struct cot_member *member = &arbiter.gpus[page->gpu[gpu]].members[page->member[gpu]];
            usage_delta_reported(page, gpu, member);
            to->gpu[gpu] = (struct gpu_status){
                .charged_ns = member->charged_ns - page->charged_before_ns[gpu],
                .contended_ns = member->contended_ns - page->contended_before_ns[gpu],
                .throttled_ns = page->throttled_ns[gpu],
                .relieved = page->relieved[gpu],
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
    free(atomic_exchange(&newest_status, status));
    eventfd_write(status_event, 1);
}

/* ---- the thread ---- */

static void *run(void *nothing) {
    static struct cot_mask watch[COT_ARBITER_GPUS];
    uint64_t heartbeat_at_ns = 0, records_ns = 0, pause_ns = 0, status_ns = 0, decided_ns = 0;
    set_realtime_priority();
    for (uint64_t woken_ns = now_ns();; woken_ns = now_ns()) {
        uint32_t plan_bell_seen = __atomic_load_n(&plan_bell, __ATOMIC_ACQUIRE);
        struct plan *plan = atomic_exchange(&next_plan, NULL);
        uint64_t now = now_ns();
        if (plan) apply_plan(plan, now);
        bool is_back = now - decided_ns >= COT_LEASE_PAGE_STALE_NS;
        /* Before anything in flight is read: gates launch by their own credit until then. */
        for (uint32_t i = 0; (is_back || plan) && i < page_count; i++) page_heartbeat(pages[i], now);
        uint64_t next = decide(watch, is_back);
        decided_ns = now = now_ns();
        budget_charge_round(pages, page_count, now - woken_ns);
        for (uint32_t i = 0; i < page_count; i++) page_heartbeat(pages[i], now);
        if (now - heartbeat_at_ns >= COT_LEASE_PAGE_HEARTBEAT_NS || plan) {
            bool all = now - records_ns >= QUIET_RECORDS_NS || plan;
            pause_ns = heartbeat(now, all);
            heartbeat_at_ns = now;
            if (all) records_ns = now;
        }
        if (now - status_ns >= STATUS_NS || plan) {
            publish_status();
            status_ns = now;
        }
        bool rests = may_idle(next, watch);
        uint64_t due = rests ? now + IDLE_NS : heartbeat_at_ns + pause_ns;
        if (next > due) next = due;
        if (next > status_ns + STATUS_NS) next = status_ns + STATUS_NS;
        uint64_t idle_until_ns = wait_for_work(plan_bell_seen, next, rests);
        now = now_ns();
        if (idle_until_ns) {
            cot_arbiter_skip_idle(&arbiter, idle_until_ns);
            decided_ns = idle_until_ns;
        }
        if (now > next && now - next > late_ns) late_ns = now - next;
    }
    return nothing;
}

/* Wakes the loop at once. */
static void wake_loop(void) {
    __atomic_fetch_add(&plan_bell, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &plan_bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

int event_loop_start(void) {
    pthread_t thread;
    status_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (status_event < 0) abort();
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    if (pthread_create(&thread, NULL, run, NULL) != 0) abort();
    return status_event;
}

void event_loop_set_plan(struct plan *plan) {
    struct plan *none = NULL;
    while (!atomic_compare_exchange_strong(&next_plan, &none, plan)) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
        none = NULL;
    }
    wake_loop();
}

struct status *event_loop_take_status(void) {
    eventfd_t count;
    eventfd_read(status_event, &count); /* read first: a later status signals again */
    return atomic_exchange(&newest_status, NULL);
}
