#include "judge.h"

#include <stdio.h>

#define SLACK_NS (200 * MS)

/* What a container has had of a GPU beyond its share, as if it had a bucket that its work fills and its share drains.
 */
struct account {
    uint32_t share_ppm; /* the least in the run */
    uint64_t seen_ns, active_ns;
    double backlog_ns;
};

static const struct scenario *running;
static struct account accounts[MOST_CONTAINERS][MAX_GPUS];
static struct outcome *outcome_of;
static bool failed;

void judge_start(const struct scenario *scenario, struct outcome *outcome) {
    running = scenario;
    outcome_of = outcome;
}

static uint64_t sum_of(uint32_t container, uint32_t gpu, bool useful) {
    const struct tenant *tenant = &lab.tenants[container];
    uint64_t sum = 0;
    gpu_advance(&lab.gpus[gpu]);
    for (uint32_t i = 0; i < tenant->processes; i++) {
        const struct program *program = &tenant->programs[i];
        if (program->gpu != &lab.gpus[gpu]) continue;
        sum += useful ? program->context.useful_total_ns : program->context.active_total_ns;
    }
    return sum;
}

static struct account *account_on(const struct program *program, uint32_t gpu) {
    uint32_t container = program->tenant->index;
    struct account *account = &accounts[container][gpu];
    uint64_t active = sum_of(container, gpu, false);
    account->backlog_ns += (double)(active - account->active_ns);
    account->backlog_ns -= (double)(now_ns - account->seen_ns) * account->share_ppm / COT_PPM;
    if (account->backlog_ns < 0) account->backlog_ns = 0;
    account->active_ns = active;
    account->seen_ns = now_ns;
    return account;
}

static struct account *account_of(const struct program *program) {
    return account_on(program, gpu_of(program));
}

#define EACH_GPU_OF(gpu, tenant) \
    for (uint32_t gpu = (tenant)->first_gpu; gpu < (tenant)->first_gpu + (tenant)->gpus; gpu++)

void judge_look(const struct program *program) {
    account_of(program);
}

void judge_charge(const struct program *program, uint64_t charged_ns) {
    account_of(program)->backlog_ns += (double)charged_ns;
}

void judge_begin_wait(struct wait *wait, const struct program *program) {
    wait->began_ns = now_ns;
    wait->frozen_ns = 0;
    EACH_GPU_OF(gpu, program->tenant) {
        wait->backlog_ns[gpu] = (uint64_t)account_on(program, gpu)->backlog_ns;
        wait->useful_ns[gpu] = sum_of(program->tenant->index, gpu, true);
    }
}

/* A launch may wait until its container's share has paid for what it had when the wait began, what it has had since but
 * for kernels that may still wait for this launch, and a quantum for the launch itself. A container gets its turns on
 * all of its GPUs together: it waits for the one on which it owes most. */
bool judge_wait(const struct wait *wait, const struct program *program, uint32_t number) {
    uint64_t owed = 0, backlog = 0, useful = 0, share_ppm = 0;
    EACH_GPU_OF(gpu, program->tenant) {
        const struct account *account = account_on(program, gpu);
        uint64_t had = sum_of(program->tenant->index, gpu, true) - wait->useful_ns[gpu];
        uint64_t on_gpu = (wait->backlog_ns[gpu] + had + lab.tuning.quantum_ns) * COT_PPM / account->share_ppm;
        if (on_gpu <= owed) continue;
        owed = on_gpu;
        backlog = wait->backlog_ns[gpu];
        useful = had;
        share_ppm = account->share_ppm;
    }
    uint64_t waited = now_ns - wait->began_ns - wait->frozen_ns, allowed = owed + SLACK_NS;
    if (waited * 1000 / allowed > outcome_of->longest_ns * 1000 / (outcome_of->allowed_ns | 1)) {
        outcome_of->longest_ns = waited;
        outcome_of->allowed_ns = allowed;
    }
    if (waited * 100 <= allowed * outcome_of->percent || failed) return !failed;
    failed = true;
    printf("process %u stands still at %lu us: its launch waits for %lu us of %lu; the container had %lu us beyond its "
           "share of %lu ppm, and %lu us since\n",
           number, now_ns / US, waited / US, allowed / US, backlog / US, share_ppm, useful / US);
    return false;
}

static void note_shares(uint32_t gpu) {
    struct cot_request requests[MOST_CONTAINERS];
    struct cot_share shares[MOST_CONTAINERS];
    uint32_t of[MOST_CONTAINERS], count = 0;
    for (uint32_t i = 0; i < lab.count; i++) {
        const struct tenant *tenant = &lab.tenants[i];
        if (running->container[i].left_out || gpu < tenant->first_gpu || gpu >= tenant->first_gpu + tenant->gpus)
            continue;
        requests[count] = tenant->request;
        requests[count].policy = lab.policy;
        of[count++] = i;
    }
    if (count == 0) return;
    cot_policy_shares(lab.instances, requests, count, shares);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t share = shares[i].guarantee_ppm;
        if (share > shares[i].limit_ppm) share = shares[i].limit_ppm;
        struct account *account = &accounts[of[i]][gpu];
        if (account->share_ppm == 0 || share < account->share_ppm) account->share_ppm = (uint32_t)share;
    }
}

void judge_note_shares(void) {
    for (uint32_t gpu = 0; gpu < MAX_GPUS; gpu++) note_shares(gpu);
}
