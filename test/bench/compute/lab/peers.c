/* Laws to compare with, written from what is published of them, and none at all.
 *
 * count bucket: HAMi-core's and vcuda-controller's. A launch costs as many tokens as it has blocks; a launch goes while
 *   tokens are not below 0, else the thread sleeps 10 ms and looks again; every 120 ms a step, quadratic in the number
 * of multiprocessors, towards what the driver's utilization of the last second says, which is refreshed each sixth of a
 *   second in whole percents. Graphs and cooperative launches are not held back.
 * event bucket: a container's own bucket of GPU time without knowledge of the others, filled at its share up to 20 ms,
 *   drained by what events around its launches say, a running mean as prediction, one launch at a time until there is
 *   one. */
#include <stdlib.h>

#include "lab.h"

static void nothing(struct program *program) {
    (void)program;
}
static void no_launch(struct program *program, struct launch *launch) {
    (void)program;
    (void)launch;
}
static bool always(struct program *program, struct launch *launch) {
    (void)program;
    (void)launch;
    return true;
}
const struct law native_law = {"native", nothing, always, no_launch, no_launch, nothing, nothing};

/* ---- count bucket ---- */

enum {
    PROCESSORS = 132,
    THREADS = 2048,
    FACTOR = 32,
    BLOCKS = 500, /* of a launch */
    SAMPLES = 6,
};
#define TICK_NS (120 * MS)
#define BACK_OFF_NS (10 * MS)
#define SAMPLE_NS (166 * MS)
struct count_bucket {
    struct program *program;
    int64_t total, tokens, share;
    uint64_t history[SAMPLES];
    uint32_t samples, used_percent;
};

static uint32_t percent_of(const struct program *program) {
    return program->tenant->request.share_ppm / 10000;
}

static void sample(void *about, uint64_t number) {
    struct count_bucket *bucket = about;
    for (uint32_t i = 0; i < MAX_GPUS; i++) gpu_advance(&lab.gpus[i]);
    uint64_t used = bucket->program->context.work_total_ns, back = number < SAMPLES ? number : SAMPLES;
    uint64_t before = number < SAMPLES ? 0 : bucket->history[number % SAMPLES];
    if (back) bucket->used_percent = (uint32_t)(100 * (used - before) / (back * SAMPLE_NS));
    bucket->history[number % SAMPLES] = used;
    at(now_ns + SAMPLE_NS, sample, bucket, number + 1);
}

static void correct(void *about, uint64_t number) {
    struct count_bucket *bucket = about;
    int64_t limit = percent_of(bucket->program), used = bucket->used_percent;
    if (limit > 0 && limit < 100) {
        int64_t away = limit > used ? limit - used : used - limit;
        if (away < 5) away = 5;
        int64_t step = (int64_t)PROCESSORS * PROCESSORS * THREADS * away / 2560;
        if (away > limit / 2) step = step * away * 2 / (limit + 1);
        if (bucket->share == bucket->total && bucket->tokens < 0) bucket->share = bucket->total *= 2;
        bucket->share += used <= limit ? step : -step;
        if (bucket->share > bucket->total) bucket->share = bucket->total;
        if (bucket->share < 0) bucket->share = 0;
        bucket->tokens += bucket->share;
        if (bucket->tokens > bucket->total) bucket->tokens = bucket->total;
    }
    at(now_ns + TICK_NS, correct, bucket, number);
}

static void count_join(struct program *program) {
    struct count_bucket *bucket = calloc(1, sizeof *bucket);
    if (!bucket) abort();
    bucket->program = program;
    bucket->total = (int64_t)PROCESSORS * THREADS * FACTOR;
    program->law = bucket;
    sample(bucket, 0);
    at(now_ns + TICK_NS, correct, bucket, 0);
}

static void again(void *about, uint64_t number) {
    (void)number;
    program_again(about);
}

static bool count_ask(struct program *program, struct launch *launch) {
    (void)launch;
    struct count_bucket *bucket = program->law;
    uint32_t limit = percent_of(program);
    enum form form = program->tenant->form;
    if (limit == 0 || limit >= 100 || form == FORM_GRAPH || form == FORM_COOPERATIVE) return true;
    if (bucket->tokens < 0) {
        at(now_ns + BACK_OFF_NS, again, program, 0);
        return false;
    }
    bucket->tokens -= BLOCKS;
    return true;
}
const struct law count_bucket_law = {"count_bucket", count_join, count_ask, no_launch, no_launch, nothing, nothing};

/* ---- event bucket ---- */

#define BURST_NS (20.0 * MS)
struct event_bucket {
    double tokens, mean_ns, predicted_ns;
    uint64_t filled_ns, ended_ns;
};

static void event_join(struct program *program) {
    program->law = calloc(1, sizeof(struct event_bucket));
    if (!program->law) abort();
}

static double share_of(const struct program *program) {
    return program->tenant->request.share_ppm / 1e6;
}

static void fill(struct program *program) {
    struct event_bucket *bucket = program->law;
    bucket->tokens += (double)(now_ns - bucket->filled_ns) * share_of(program);
    if (bucket->tokens > BURST_NS) bucket->tokens = BURST_NS;
    bucket->filled_ns = now_ns;
}

static bool event_ask(struct program *program, struct launch *launch) {
    (void)launch;
    struct event_bucket *bucket = program->law;
    double share = share_of(program);
    if (share <= 0 || share >= 1) return true;
    fill(program);
    double left = bucket->tokens - bucket->predicted_ns, wait = 100.0 * US;
    if (bucket->mean_ns > 0 || program->outstanding == 0) {
        if (left > 0) return true;
        wait = -left / share;
        if (wait < 20.0 * US) wait = 20.0 * US;
        if (wait > 50.0 * MS) wait = 50.0 * MS;
    }
    at(now_ns + (uint64_t)wait, again, program, 0);
    return false;
}

static void event_launched(struct program *program, struct launch *launch) {
    struct event_bucket *bucket = program->law;
    launch->charge_ns = (uint64_t)bucket->mean_ns;
    bucket->predicted_ns += (double)launch->charge_ns;
}

static void event_ended(struct program *program, struct launch *launch) {
    struct event_bucket *bucket = program->law;
    uint64_t from = bucket->ended_ns > launch->submitted_ns ? bucket->ended_ns : launch->submitted_ns;
    double took = (double)(now_ns - from);
    bucket->ended_ns = now_ns;
    bucket->predicted_ns -= (double)launch->charge_ns;
    bucket->mean_ns = bucket->mean_ns > 0 ? 0.9 * bucket->mean_ns + 0.1 * took : took;
    fill(program);
    bucket->tokens -= took;
}
const struct law event_bucket_law = {"event_bucket", event_join, event_ask, event_launched,
                                     event_ended,    nothing,    nothing};
