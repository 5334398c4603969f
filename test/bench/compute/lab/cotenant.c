/* The algorithm under test: the arbiter's and the gate's own code, connected by the bytes of lease pages, with what
 * surrounds them in a process: a thread that polls events, and rings and wake-ups that take their time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

enum { SLOTS = 64 };
#define QUIET_NS (100 * US)    /* an open batch without a launch for so long is closed */
#define FIND_DEAD_NS (20 * MS) /* until the agent, and a process that waits, find out that a process has ended */

struct batch {
    struct cot_batch batch;
    uint32_t stream, left;
    bool closed, late;
    uint64_t begin_ns, end_ns, last_ns, seen_launches;
    struct batch *next;
};
struct process {
    struct program *program;
    struct cot_gate gate;
    struct cot_launch launch;
    struct batch *open[MAX_STREAMS], *first, *last;
    uint32_t batches_in[MAX_STREAMS];
    bool waiting, helping;
    uint64_t waiting_since_ns, timer;
    uint64_t completed_ns;
    struct cot_wait wait;
};
struct page {
    void *bytes;
    uint32_t bell;
    int member[MAX_GPUS]; /* of the tenant's GPUs */
    uint64_t dead[SLOTS];
};

static struct cot_arbiter arbiter;
static struct page pages[MAX_TENANTS];
static struct random random_wait = {.state = 12345};
static bool running = true;
static uint64_t timer_version, timer_ns, ring_ns, record_ns;

static uint64_t wake_latency(void) {
    return WAKE_NS + exponential(&random_wait, WAKE_TAIL_NS);
}

/* ---- the agent's thread ---- */

static void round_of(void *about, uint64_t version);

static struct cot_mask watch[COT_ARBITER_GPUS];

static uint32_t at_of(uint32_t tenant, uint32_t gpu) {
    return lab.tenants[tenant].first_gpu + gpu;
}

static void report(uint32_t tenant, uint32_t gpu) {
    struct cot_digest digest;
    cot_digest(pages[tenant].bytes, SLOTS, lab.tenants[tenant].gpus, gpu, pages[tenant].dead, &digest);
    cot_arbiter_report(&arbiter, at_of(tenant, gpu), (uint32_t)pages[tenant].member[gpu], &digest, now_ns);
}

/* For each GPU of each tenant that has joined. */
#define EACH_MEMBER(tenant, gpu)                            \
    for (uint32_t tenant = 0; tenant < lab.count; tenant++) \
        for (uint32_t gpu = 0; lab.tenants[tenant].joined && gpu < lab.tenants[tenant].gpus; gpu++)

static void woken(void *about, uint64_t number) {
    (void)number;
    program_again(about);
}

static void publish(uint32_t tenant, uint32_t gpu) {
    struct cot_lease_order *order = cot_lease_order_at(pages[tenant].bytes, gpu);
    if (!cot_arbiter_publish(&arbiter, at_of(tenant, gpu), (uint32_t)pages[tenant].member[gpu], order)) return;
    struct tenant *of = &lab.tenants[tenant];
    for (uint32_t i = gpu; i < of->processes; i += of->gpus) {
        struct process *process = of->programs[i].law;
        if (process && process->waiting) at(now_ns + wake_latency(), woken, &of->programs[i], 0);
    }
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

static void ring(void) {
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

/* ---- a tenant that writes what it likes ---- */

static void scribble(void *about, uint64_t number) {
    struct tenant *tenant = about;
    static struct random random = {.state = 777};
    uint64_t *words = (uint64_t *)cot_lease_reports_at(pages[tenant->index].bytes);
    uint64_t size = (cot_lease_page_bytes(SLOTS, tenant->gpus) - COT_LEASE_REPORTS_OFFSET) / 8;
    for (uint32_t i = 0; i < 16; i++) {
        uint64_t value = (uint64_t)(uniform(&random) * 1e18);
        words[(uint64_t)(uniform(&random) * (double)(size - 1))] = value >> (uint32_t)(uniform(&random) * 60);
    }
    ring();
    at(now_ns + MS, scribble, tenant, number + 1);
}

/* ---- the tenant's side ---- */

static void join(struct program *program) {
    uint32_t tenant = program->tenant->index;
    if (program->index == 0) {
        pages[tenant].bytes = calloc(1, cot_lease_page_bytes(SLOTS, program->tenant->gpus));
        if (!pages[tenant].bytes) abort();
        ((struct cot_lease_page_header *)pages[tenant].bytes)->heartbeat_ns = now_ns;
        join_page(tenant);
        share_all();
        for (uint32_t gpu = 0; gpu < program->tenant->gpus; gpu++) write_record(tenant, gpu);
        if (program->tenant->scribbles) at(now_ns + SECOND_NS, scribble, program->tenant, 0);
    }
    struct process *process = calloc(1, sizeof *process);
    uint32_t gpus = program->tenant->gpus;
    if (!process || gpus == 0) abort();
    process->program = program;
    program->law = process;
    cot_gate_attach(&process->gate, &lab.gate, pages[tenant].bytes, SLOTS, gpus, program->index, program->index % gpus,
                    now_ns | 1);
    ring();
}

static void retry(void *about, uint64_t timer) {
    struct process *process = about;
    if (timer == process->timer) program_again(process->program);
}

static void close_batch(struct process *process, uint32_t stream) {
    struct batch *batch = process->open[stream];
    process->open[stream] = NULL;
    if (!batch) return;
    batch->closed = true;
    batch->late = cot_batch_is_late(batch->last_ns, now_ns);
    if (batch->late) batch->last_ns = now_ns;
    /* An event that is recorded after the work has ended says when it was recorded. */
    if (batch->left == 0) batch->end_ns = now_ns;
}

static bool is_behind_another(const struct process *process, const struct batch *batch) {
    const struct batch *first = process->first;
    while (first->stream != batch->stream) first = first->next;
    return first != batch;
}

static void settle(struct process *process) {
    bool rings = false, settled = false;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        if (process->open[i] && now_ns > process->open[i]->last_ns + QUIET_NS) close_batch(process, i);
    }
    for (struct batch **at_ = &process->first; *at_;) {
        struct batch *batch = *at_;
        if (!batch->closed || batch->left) {
            uint64_t since = batch->last_ns > process->completed_ns ? batch->last_ns : process->completed_ns;
            if (batch->closed && !is_behind_another(process, batch) &&
                cot_batch_is_overdue(&batch->batch, since, now_ns)) {
                if (!batch->batch.overdue) batch->seen_launches = cot_gate_launches(&process->gate);
                cot_gate_overdue(&process->gate, &batch->batch, now_ns);
            }
            at_ = &batch->next;
            continue;
        }
        process->completed_ns = now_ns;
        batch->batch.waited = batch->batch.overdue && batch->seen_launches != cot_gate_launches(&process->gate);
        uint32_t streams = 0;
        for (uint32_t i = 0; i < MAX_STREAMS; i++) streams += process->batches_in[i] > 0;
        /* Events tell half microseconds. */
        uint64_t begin = batch->begin_ns / 500 * 500, end = batch->end_ns / 500 * 500;
        if (end > begin)
            end = begin + cot_batch_length(&batch->batch, end - begin, batch->late ? batch->last_ns : 0, now_ns);
        rings |= cot_gate_complete(&process->gate, &batch->batch, begin, end, streams, at_ == &process->first, now_ns);
        settled = true;
        process->batches_in[batch->stream]--;
        *at_ = batch->next;
        free(batch);
    }
    process->last = NULL;
    for (struct batch *batch = process->first; batch; batch = batch->next) process->last = batch;
    if (rings) ring();
    if (settled && process->program->gated) program_again(process->program);
}

static void help(void *about, uint64_t number) {
    (void)number;
    struct process *process = about;
    process->helping = false;
    if (process->program->dead) return;
    if (!process->program->frozen) settle(process);
    if (!process->first || process->helping) return;
    process->helping = true;
    at(now_ns + HELPER_NS + exponential(&random_wait, 10 * US), help, process, 0);
}

static bool ask(struct program *program, struct launch *launch) {
    struct process *process = program->law;
    /* The streams of a program run functions of their own. */
    struct cot_launch_kind kind = {
        .key = 1 + launch->stream + (launch->kind << 8), .family = UINT64_MAX - launch->stream, .blocks = 1};
    process->wait.behind = process->batches_in[launch->stream] > 0;
    struct cot_verdict verdict = cot_gate_admit(&process->gate, &kind, now_ns, &process->wait, &process->launch);
    if (verdict.wakes) {
        for (uint32_t i = 0; i < program->tenant->processes; i++) {
            struct process *other = program->tenant->programs[i].law;
            if (other && other != process && other->waiting) at(now_ns + wake_latency(), woken, other->program, 0);
        }
    }
    if (verdict.go) {
        if (process->waiting) cot_gate_wait(&process->gate, false, now_ns - process->waiting_since_ns, now_ns);
        process->waiting = false;
        process->wait = (struct cot_wait){0};
        return true;
    }
    for (uint32_t i = 0; i < MAX_STREAMS; i++) close_batch(process, i);
    if (!verdict.own && !process->waiting) {
        process->waiting = true;
        process->waiting_since_ns = process->wait.rung_ns = now_ns;
        if (cot_gate_wait(&process->gate, true, 0, now_ns)) ring();
    }
    at(verdict.until_ns + exponential(&random_wait, 20 * US), retry, process, ++process->timer);
    return false;
}

static void launched(struct program *program, struct launch *launch) {
    struct process *process = program->law;
    struct batch *batch = process->open[launch->stream];
    if (batch && cot_batch_is_late(batch->last_ns, now_ns)) {
        close_batch(process, launch->stream);
        batch = NULL;
    }
    if (!batch) {
        batch = calloc(1, sizeof *batch);
        if (!batch) abort();
        batch->stream = launch->stream;
        batch->begin_ns = UINT64_MAX;
        process->open[launch->stream] = batch;
        process->batches_in[launch->stream]++;
        if (process->last) process->last->next = batch;
        else process->first = batch;
        process->last = batch;
    }
    launch->batch = batch;
    batch->left++;
    batch->last_ns = now_ns;
    if (cot_batch_add(&process->gate, &batch->batch, &process->launch, now_ns)) close_batch(process, launch->stream);
    if (process->helping) return;
    process->helping = true;
    at(now_ns + HELPER_NS + exponential(&random_wait, 10 * US), help, process, 0);
}

static void ended(struct program *program, struct launch *launch) {
    (void)program;
    struct batch *batch = launch->batch;
    if (launch->begun_ns < batch->begin_ns) batch->begin_ns = launch->begun_ns;
    batch->end_ns = now_ns;
    batch->left--;
}

static void syncs(struct program *program) {
    for (uint32_t i = 0; i < MAX_STREAMS; i++) close_batch(program->law, i);
}

static void synced(struct program *program) {
    settle(program->law);
}

const struct law cotenant_law = {"cotenant", join, ask, launched, ended, syncs, synced};
