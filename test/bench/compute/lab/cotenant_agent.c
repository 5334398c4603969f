/* The agent under test: the arbiter's own code, connected to the processes by the bytes of lease pages, in a thread
 * with a timer that is rung. */
#include <stdio.h>
#include <string.h>

#include "cotenant.h"

#define FIND_DEAD_NS (20 * MS) /* until the agent, and a process that waits, find out that a process has ended */

struct page pages[MAX_TENANTS];
struct random random_wait = {.state = 12345};
static struct cot_arbiter arbiter;
static struct cot_mask watch[COT_ARBITER_GPUS];
static bool running = true;
static uint64_t timer_version, timer_ns, ring_ns, record_ns;

uint64_t wake_latency(void) {
    return WAKE_NS + exponential(&random_wait, WAKE_TAIL_NS);
}

static void round_of(void *about, uint64_t version);

static uint32_t at_of(uint32_t tenant, uint32_t gpu) {
    return lab.tenants[tenant].first_gpu + gpu;
}

/* A tenant that wants more than its share, with a page of its own for its gates: the agent finds a process at work that
 * is long overdue, and does not exist. FORGE_WAIT: and waits for a launch; FORGE_LAUNCHES: launches all the time, or
 * FORGE_STILL: no launch is ever seen; FORGE_USE: nor any use, and its gates go by their own. */
enum { FORGE = 1, FORGE_WAIT = 2, FORGE_LAUNCHES = 4, FORGE_STILL = 8, FORGE_USE = 16 };

static bool is_forged(const struct tenant *tenant) {
    return tenant->forges && now_ns > SECOND_NS / 2;
}

static void forge(const struct tenant *tenant, struct cot_digest *digest) {
    digest->inflight++;
    digest->busy++;
    digest->pending_ns = 0;
    digest->has_awaited = true;
    digest->waiting += (tenant->forges & FORGE_WAIT) != 0;
    if (tenant->forges & FORGE_LAUNCHES) digest->launches += now_ns / MS;
    if (tenant->forges & FORGE_STILL) digest->launches = 0;
    if (tenant->forges & FORGE_USE) digest->used_ns = 0;
}

static void report(uint32_t tenant, uint32_t gpu) {
    struct cot_digest digest;
    cot_digest(pages[tenant].bytes, SLOTS, lab.tenants[tenant].gpus, gpu, pages[tenant].dead, &digest);
    if (is_forged(&lab.tenants[tenant])) forge(&lab.tenants[tenant], &digest);
    cot_arbiter_report(&arbiter, at_of(tenant, gpu), (uint32_t)pages[tenant].member[gpu], &digest, now_ns);
}

/* For each GPU of each tenant that has joined. */
#define EACH_MEMBER(tenant, gpu)                            \
    for (uint32_t tenant = 0; tenant < lab.count; tenant++) \
        for (uint32_t gpu = 0; lab.tenants[tenant].joined && gpu < lab.tenants[tenant].gpus; gpu++)

static void publish(uint32_t tenant, uint32_t gpu) {
    struct cot_lease_order *order = cot_lease_order_at(pages[tenant].bytes, gpu);
    if (!cot_arbiter_publish(&arbiter, at_of(tenant, gpu), (uint32_t)pages[tenant].member[gpu], order)) return;
    struct tenant *of = &lab.tenants[tenant];
    if (is_forged(of) && of->forges & FORGE_USE) {
        struct cot_digest digest;
        cot_digest(pages[tenant].bytes, SLOTS, of->gpus, gpu, pages[tenant].dead, &digest);
        order->limit_ns += digest.used_ns;
    }
    for (uint32_t i = gpu; i < of->processes; i += of->gpus) wake_if_waiting(&of->programs[i]);
}

static bool is_in(const struct cot_mask *masks, uint32_t tenant, uint32_t gpu) {
    return cot_mask_has(&masks[at_of(tenant, gpu)], (uint32_t)pages[tenant].member[gpu]);
}

static uint64_t decide(void) {
    struct cot_decision decision;
    for (;;) {
        EACH_MEMBER(tenant, gpu) {
            bool rung = cot_lease_reports_at(pages[tenant].bytes)->bell != pages[tenant].bell;
            if (rung || is_in(watch, tenant, gpu)) report(tenant, gpu);
            if (gpu + 1 == lab.tenants[tenant].gpus)
                pages[tenant].bell = cot_lease_reports_at(pages[tenant].bytes)->bell;
        }
        cot_arbiter_decide(&arbiter, now_ns, &decision);
        bool again = false;
        EACH_MEMBER(tenant, gpu) {
            if (is_in(decision.dirty, tenant, gpu)) publish(tenant, gpu);
            again = again || is_in(decision.look, tenant, gpu);
        }
        memcpy(watch, again ? decision.look : decision.watch, sizeof watch);
        if (!again) return decision.next_ns;
    }
}

static void set_timer(uint64_t time_ns) {
    timer_ns = time_ns;
    at(time_ns + exponential(&random_wait, 10 * US), round_of, NULL, ++timer_version);
}

static void write_record(uint32_t tenant, uint32_t gpu) {
    struct cot_lease_order *order = cot_lease_order_at(pages[tenant].bytes, gpu);
    uint32_t member = (uint32_t)pages[tenant].member[gpu];
    cot_lease_order_record(order, cot_arbiter_record(&arbiter, at_of(tenant, gpu), member, now_ns));
}

/* version 0: rung. */
static void round_of(void *about, uint64_t version) {
    (void)about;
    if (!running || (version && version != timer_version)) return;
    if (!version) ring_ns = 0;
    uint64_t next = decide();
    bool beat = now_ns - record_ns >= COT_LEASE_PAGE_HEARTBEAT_NS;
    for (uint32_t i = 0; i < lab.count; i++) {
        if (!lab.tenants[i].joined) continue;
        ((struct cot_lease_page_header *)pages[i].bytes)->heartbeat_ns = now_ns;
        if (!beat) continue;
        for (uint32_t gpu = 0; gpu < lab.tenants[i].gpus; gpu++) write_record(i, gpu);
    }
    if (beat) record_ns = now_ns;
    set_timer(next > now_ns ? next : now_ns + DECIDE_NS);
}

void ring(void) {
    if (!running || ring_ns || (lab.swallow && timer_ns > now_ns)) return;
    ring_ns = now_ns + wake_latency() + DECIDE_NS;
    at(ring_ns, round_of, NULL, 0);
}

static void share_gpu(uint32_t at_gpu) {
    struct cot_request requests[MAX_TENANTS];
    struct cot_share shares[MAX_TENANTS];
    uint32_t count = 0;
    EACH_MEMBER(tenant, gpu) {
        if (at_of(tenant, gpu) != at_gpu) continue;
        requests[count] = lab.tenants[tenant].request;
        requests[count++].policy = lab.policy;
    }
    if (count == 0) return;
    cot_policy_shares(lab.instances, requests, count, shares);
    count = 0;
    EACH_MEMBER(tenant, gpu) {
        if (at_of(tenant, gpu) != at_gpu) continue;
        cot_arbiter_set_share(&arbiter, at_gpu, (uint32_t)pages[tenant].member[gpu], &shares[count++], now_ns);
    }
}

static void share_all(void) {
    for (uint32_t gpu = 0; gpu < MAX_GPUS; gpu++) share_gpu(gpu);
}

static void join_page(uint32_t tenant) {
    for (uint32_t gpu = 0; gpu < lab.tenants[tenant].gpus; gpu++) {
        struct cot_digest digest;
        cot_digest(pages[tenant].bytes, SLOTS, lab.tenants[tenant].gpus, gpu, NULL, &digest);
        pages[tenant].member[gpu] = cot_arbiter_join(&arbiter, at_of(tenant, gpu), tenant, &digest, now_ns);
    }
    lab.tenants[tenant].joined = true;
}

void agent_join(uint32_t tenant) {
    join_page(tenant);
    share_all();
    for (uint32_t gpu = 0; gpu < lab.tenants[tenant].gpus; gpu++) write_record(tenant, gpu);
}

void agent_start(void) {
    cot_arbiter_init(&arbiter, &lab.tuning);
    round_of(NULL, 0);
}

void agent_stop(void) {
    running = false;
}

void agent_resume(void) {
    running = true;
    ring_ns = 0;
    EACH_MEMBER(tenant, gpu) report(tenant, gpu);
    round_of(NULL, 0);
}

void agent_restart(void) {
    cot_arbiter_init(&arbiter, &lab.tuning);
    for (uint32_t i = 0; i < lab.count; i++) {
        if (lab.tenants[i].joined) join_page(i);
    }
    share_all();
    EACH_MEMBER(tenant, gpu) {
        struct cot_lease_record record;
        if (!cot_lease_order_read_record(cot_lease_order_at(pages[tenant].bytes, gpu), &record)) continue;
        cot_arbiter_adopt(&arbiter, at_of(tenant, gpu), (uint32_t)pages[tenant].member[gpu], &record, now_ns);
    }
    agent_resume();
}

void agent_set(uint32_t tenant, const struct cot_request *request) {
    lab.tenants[tenant].request = *request;
    share_all();
    ring();
}

void agent_print(uint32_t tenant) {
    const struct cot_member *member = &arbiter.gpus[at_of(tenant, 0)].members[pages[tenant].member[0]];
    printf("\"charged_ns\":%lu,\"contended_ns\":%lu,\"overruns\":%lu,\"faults\":%lu,", member->charged_ns,
           member->contended_ns, member->overruns, member->faults);
}

int agent_describe(uint32_t at_gpu, char *text, size_t size) {
    static const char *const phases[] = {"free", "held", "closing"};
    const struct cot_gpu *gpu = &arbiter.gpus[at_gpu];
    if (gpu->count == 0) return 0;
    int length = snprintf(text, size, "  GPU %u: %s, holder %u;", at_gpu, phases[gpu->phase], gpu->holder);
    for (uint32_t i = 0; i < gpu->count && length > 0 && (size_t)length < size; i++) {
        const struct cot_member *member = &gpu->members[i];
        length += snprintf(text + length, size - (size_t)length, " member %u: %u wait, %lu in flight, credit %ld us;",
                           i, member->digest.waiting, member->digest.inflight, member->credit_ns / 1000);
    }
    if (length < 0 || (size_t)length >= size) length = (int)size - 1;
    text[length] = '\n';
    return length + 1;
}

static void find_lost(void *about, uint64_t number) {
    (void)number;
    const struct program *program = about;
    uint32_t tenant = program->tenant->index, gpu = program->index % program->tenant->gpus;
    struct cot_lease_row *row = cot_lease_row_at(pages[tenant].bytes, program->tenant->gpus, program->index, gpu);
    pages[tenant].dead[program->index] = row->stamp;
    row->waiting = row->inflight = row->pending_ns = 0;
    ring();
}

void agent_lost(struct program *program) {
    if (program->law) at(now_ns + FIND_DEAD_NS, find_lost, program, 0);
}
