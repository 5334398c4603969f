/* Programs: one thread each, which launches, waits for the GPU, and pauses. What it does next never depends on the
 * algorithm, except that the algorithm may delay a launch. */
#include <math.h>
#include <stdlib.h>

#include "lab.h"

static void step(void *about, uint64_t generation) {
    struct program *program = about;
    if (generation == program->generation) program_step(program);
}

/* The thread goes on at that time, and not earlier. */
static void go_on(struct program *program, uint64_t time_ns) {
    at(time_ns, step, program, ++program->generation);
}

/* A quarter of the mean to seven quarters of it. */
static double length_of_kind(double mean, uint64_t kind) {
    return mean * (0.25 + (double)(kind * 0x9e3779b97f4a7c15ull >> 40) / (1 << 24) * 1.5);
}

static uint64_t length_of(struct program *program, uint64_t kind) {
    const struct tenant *tenant = program->tenant;
    double mean = (double)tenant->kernel_ns, length = 0;
    if (tenant->kinds != 1) mean = length_of_kind(mean, kind);
    for (uint32_t i = 0; i < tenant->nodes; i++) {
        double one = mean;
        if (tenant->spread == SPREAD_LOGNORMAL) one = mean * exp(0.5 * normal(&program->random) - 0.125);
        if (tenant->spread == SPREAD_BIMODAL) one = uniform(&program->random) < 0.9 ? mean / 2 : mean * 5.5;
        length += one;
    }
    return length < 1 ? 1 : (uint64_t)length;
}

static struct launch *next_launch(struct program *program) {
    struct launch *launch = calloc(1, sizeof *launch);
    if (!launch) abort();
    const struct tenant *tenant = program->tenant;
    bool works = tenant->work_ns && program->launches % 2 == 0;
    if (!works) launch->job = tenant->job;
    if (launch->job) launch->step = program->collectives++;
    launch->kind = program->tenant->kinds ? program->launches % program->tenant->kinds : program->launches;
    program->launches++;
    if (works) launch->kind += tenant->kinds;
    launch->left_ns = launch->length_ns = works ? tenant->work_ns : length_of(program, launch->kind);
    launch->width = 1000;
    launch->program = program;
    if (program->tenant->form == FORM_STREAMS) {
        launch->stream = program->next_stream++ % MAX_STREAMS;
        launch->width = 250 + (uint32_t)(uniform(&program->random) * 500);
    }
    return launch;
}

static uint64_t idle_for(const struct program *program) {
    const struct tenant *tenant = program->tenant;
    if (!tenant->pause_ns) return 0;
    uint64_t phase = now_ns % (tenant->active_ns + tenant->pause_ns);
    return phase < tenant->active_ns ? 0 : tenant->active_ns + tenant->pause_ns - phase;
}

static void arrive(void *about, uint64_t number) {
    (void)number;
    struct program *program = about;
    const struct tenant *tenant = program->tenant;
    uint64_t request = tenant->kernel_ns * tenant->burst;
    if (program->arrivals_count < sizeof program->arrivals / sizeof *program->arrivals) {
        program->arrivals[(program->first_arrival + program->arrivals_count++) % 4096] = now_ns;
    }
    at(now_ns + exponential(&program->arrivals_random, (double)request * 100 / tenant->load_percent), arrive, program,
       0);
    if (program->stopped) {
        program->stopped = false;
        go_on(program, now_ns);
    }
}

void program_start(struct program *program) {
    program->random.state = lab.seed * 7919 + program->tenant->index * 104729ull + program->index * 31ull + 1;
    program->arrivals_random.state = program->random.state * 31 + 7;
    program->burst_left = program->tenant->burst;
    if (program->tenant->form == FORM_REQUESTS) {
        program->stopped = true;
        at(now_ns + MS, arrive, program, 0);
    } else {
        /* Not all in the same instant. */
        go_on(program, now_ns + (uint64_t)(uniform(&program->random) * MS));
    }
}

static void begin_sync(struct program *program) {
    program->syncing = true;
    lab.law->syncs(program);
    if (program->outstanding == 0) go_on(program, now_ns + SYNC_NS);
}

static void synced(struct program *program) {
    struct tenant *tenant = program->tenant;
    program->syncing = false;
    lab.law->synced(program);
    program->burst_left = tenant->burst;
    if (tenant->form == FORM_REQUESTS) {
        if (tenant->log.count < 1u << 20) {
            tenant->log.latency_ns[tenant->log.count++] = now_ns - program->arrivals[program->first_arrival];
        }
        program->first_arrival = (program->first_arrival + 1) % 4096;
        program->arrivals_count--;
        if (program->arrivals_count == 0) {
            program->stopped = true;
            return;
        }
    }
    go_on(program, now_ns + tenant->gap_ns + US);
}

void program_step(struct program *program) {
    struct tenant *tenant = program->tenant;
    if (program->syncing) {
        synced(program);
        return;
    }
    uint64_t pause = idle_for(program);
    if (pause && !program->asked) {
        if (program->outstanding) begin_sync(program);
        else go_on(program, now_ns + pause);
        return;
    }
    if (tenant->burst && program->burst_left == 0) {
        begin_sync(program);
        return;
    }
    if (!program->asked) program->asked = next_launch(program);
    struct launch *launch = program->asked;
    if (program->outstanding_in[launch->stream] >= QUEUE_LAUNCHES) {
        program->blocked = true;
        return;
    }
    if (!lab.law->ask(program, launch)) {
        if (!program->gated) {
            program->gated = true;
            program->gated_since_ns = now_ns;
        }
        return;
    }
    if (program->gated) {
        uint64_t waited = now_ns - program->gated_since_ns;
        program->gated = false;
        tenant->waits++;
        tenant->waited_ns += waited;
        if (waited > tenant->longest_wait_ns) tenant->longest_wait_ns = waited;
    }
    program->asked = NULL;
    if (tenant->burst) program->burst_left--;
    program->outstanding++;
    program->outstanding_in[launch->stream]++;
    lab.law->launched(program, launch);
    gpu_submit(program->gpu, &program->context, launch);
    go_on(program, now_ns + LAUNCH_NS);
}

void program_again(struct program *program) {
    if (program->gated && !program->blocked) program_step(program);
}

void program_ended(struct launch *launch) {
    struct program *program = launch->program;
    program->outstanding--;
    program->outstanding_in[launch->stream]--;
    lab.law->ended(program, launch);
    if (program->blocked) {
        program->blocked = false;
        go_on(program, now_ns + SYNC_NS);
    }
    if (program->syncing && program->outstanding == 0) go_on(program, now_ns + SYNC_NS);
    free(launch);
}
