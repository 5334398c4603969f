/* The algorithm under test: the gate's own code in the processes of the tenants, with what surrounds it there: a thread
 * that polls events, and wake-ups that take their time. The arbiter's side is in cotenant_agent.c. */
#include <stdlib.h>

#include "cotenant.h"

#define QUIET_NS (100 * US) /* an open batch without a launch for so long is closed */

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

/* ---- a tenant that writes what it likes ---- */

static uint64_t any_value(struct random *random) {
    uint64_t value = (uint64_t)(uniform(random) * 1e18) >> (uint32_t)(uniform(random) * 60);
    const uint64_t values[] = {value, value, 0, UINT64_MAX, now_ns, now_ns + value, 1, COT_MAX_PLAUSIBLE_NS};
    return values[(uint32_t)(uniform(random) * 8)];
}

/* Random and extreme values in all that its processes may write. */
static void scribble(void *about, uint64_t number) {
    struct tenant *tenant = about;
    static struct random random = {.state = 777};
    uint64_t *words = (uint64_t *)cot_lease_reports_at(pages[tenant->index].bytes);
    uint64_t size = (cot_lease_page_bytes(SLOTS, tenant->gpus) - COT_LEASE_REPORTS_OFFSET) / 8;
    for (uint32_t i = 0; i < 16; i++) words[(uint64_t)(uniform(&random) * (double)size)] = any_value(&random);
    for (uint32_t gpu = 0; gpu < tenant->gpus; gpu++) {
        struct cot_lease_shared *shared = &cot_lease_order_at(pages[tenant->index].bytes, gpu)->shared;
        uint64_t *const written[] = {&shared->used_until_ns, &shared->awaited, &shared->relieved, &shared->made};
        *written[(uint32_t)(uniform(&random) * 4)] = any_value(&random);
    }
    ring();
    at(now_ns + MS, scribble, tenant, number + 1);
}

/* Keeps words of its page at a value, or lets them grow. For each, `holds` has three digits: the word, and the value.
 */
static void hold_word(void *page, uint32_t gpus, uint32_t gpu, uint32_t process, uint32_t holds) {
    struct cot_lease_shared *shared = &cot_lease_order_at(page, gpu)->shared;
    struct cot_lease_row *row = cot_lease_row_at(page, gpus, process, gpu);
    uint64_t *const words[] = {&shared->used_until_ns, &shared->awaited, &shared->relieved, &shared->made,
                               &row->waiting, &row->used_ns, &row->inflight, &row->pending_ns, &row->longest_ns,
                               &row->launches, &row->throttled_ns, &row->stamp,
                               /* the bell, and how many rows were written */
                               (uint64_t *)cot_lease_reports_at(page)};
    uint64_t *word = words[holds / 10 % 100 % (sizeof words / sizeof *words)];
    const uint64_t values[] = {0, 1, UINT64_MAX, now_ns + 3600 * SECOND_NS, *word + 1};
    *word = values[holds % 10 % 5];
}

static void hold_words(void *about, uint64_t number) {
    const struct tenant *tenant = about;
    for (uint32_t i = 0; i < tenant->processes; i++) {
        uint32_t gpu = i % tenant->gpus;
        void *page = pages[tenant->index].bytes;
        for (uint32_t holds = tenant->holds; holds; holds /= 1000) {
            hold_word(page, tenant->gpus, gpu, i, holds);
        }
    }
    at(now_ns + MS, hold_words, about, number + 1);
}

/* ---- its processes ---- */

static void woken(void *about, uint64_t number) {
    (void)number;
    program_again(about);
}

void wake_if_waiting(struct program *program) {
    const struct process *process = program->law;
    if (process && process->waiting) at(now_ns + wake_latency(), woken, program, 0);
}

static void join(struct program *program) {
    uint32_t tenant = program->tenant->index;
    if (program->index == 0) {
        pages[tenant].bytes = calloc(1, cot_lease_page_bytes(SLOTS, program->tenant->gpus));
        if (!pages[tenant].bytes) abort();
        ((struct cot_lease_page_header *)pages[tenant].bytes)->heartbeat_ns = now_ns;
        agent_join(tenant);
        if (program->tenant->scribbles) at(now_ns + SECOND_NS, scribble, program->tenant, 0);
        if (program->tenant->holds) at(now_ns + SECOND_NS / 2, hold_words, program->tenant, 0);
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
            struct program *other = &program->tenant->programs[i];
            if (other != program) wake_if_waiting(other);
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
