/* A GPU: contexts (one per process) get time slices of SLICE_NS while several have work, and a switch costs SWITCH_NS;
 * within a context the heads of its streams run in parallel as far as the GPU's width allows. A launch that outlasts
 * its context's slice continues in the next one, and so does a collective whose ranks have not all begun. */
#include <stdlib.h>

#include "lab.h"

static void due(void *about, uint64_t version);

void gpu_add(struct gpu *gpu, struct context *context, uint64_t windows) {
    context->work_ns = calloc(windows, sizeof *context->work_ns);
    context->active_ns = calloc(windows, sizeof *context->active_ns);
    if (!context->work_ns || !context->active_ns) abort();
    gpu->contexts[gpu->count++] = context;
    if (gpu->count == 1) gpu->current = 0;
}

/* Executes up to now. */
void gpu_advance(struct gpu *gpu) {
    uint64_t from = gpu->since_ns > gpu->ready_ns ? gpu->since_ns : gpu->ready_ns;
    gpu->since_ns = now_ns;
    if (!gpu->busy || from >= now_ns) return;
    struct context *context = gpu->contexts[gpu->current];
    uint64_t elapsed = now_ns - from, width = 0;
    bool useful = false;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        struct launch *launch = context->head[i];
        if (!launch || !launch->running) continue;
        useful |= launch->left_ns > 0;
        if (launch->left_ns == 0) launch->spun_ns += elapsed;
        launch->left_ns -= elapsed < launch->left_ns ? elapsed : launch->left_ns;
        width += launch->width;
    }
    context->work_total_ns += elapsed * width / 1000;
    if (width) context->active_total_ns += elapsed;
    if (useful) context->useful_total_ns += elapsed;
    for (uint64_t t = from; t < now_ns && width;) {
        uint64_t window = t / WINDOW_NS, end = (window + 1) * WINDOW_NS;
        if (end > now_ns) end = now_ns;
        context->work_ns[window] += (end - t) * width / 1000;
        context->active_ns[window] += end - t;
        t = end;
    }
}

static bool is_met(const struct launch *launch) {
    return !launch->job || launch->does_not_wait || launch->step < launch->job->step;
}

/* A rank's kernel begins. The last one of a step lets those on other GPUs end. */
static void arrive(struct launch *launch) {
    struct job *job = launch->job;
    if (!job || launch->arrived) return;
    launch->arrived = true;
    if (++job->arrived < job->ranks) return;
    job->arrived = 0;
    job->step++;
    for (uint32_t i = 0; i < MAX_GPUS; i++) {
        if (lab.gpus[i].busy) at(now_ns, due, &lab.gpus[i], ++lab.gpus[i].version);
    }
}

/* What its stream waits for has ended. */
static bool may_begin(const struct context *context, struct launch *launch) {
    bool waited = false;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        if (context->ended_in[i] < launch->needs[i]) return false;
        waited |= launch->needs[i] > 0;
        launch->needs[i] = 0;
    }
    if (waited) launch->begun_ns = now_ns;
    return true;
}

static void finish(struct gpu *gpu) {
    struct context *context = gpu->contexts[gpu->current];
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        struct launch *launch = context->head[i];
        if (!launch || !launch->running || launch->left_ns > 0 || !is_met(launch)) continue;
        context->head[i] = launch->next;
        if (!context->head[i]) context->tail[i] = NULL;
        else context->head[i]->begun_ns = now_ns;
        context->queued--;
        context->ended_in[i]++;
        context->useful_total_ns += launch->spun_ns;
        program_ended(launch);
    }
}

static bool has_others(const struct gpu *gpu) {
    for (uint32_t i = 0; i < gpu->count; i++) {
        if (i != gpu->current && gpu->contexts[i]->queued) return true;
    }
    return false;
}

/* Chooses what runs from now on, and when to look again. */
static void plan(struct gpu *gpu) {
    struct context *context = gpu->contexts[gpu->current];
    bool rotate = gpu->busy && now_ns >= gpu->slice_end_ns && has_others(gpu);
    if (!context->queued || rotate) {
        for (uint32_t i = 0; i < MAX_STREAMS; i++) {
            if (context->head[i]) context->head[i]->running = false;
        }
        uint32_t next = gpu->current;
        for (uint32_t i = 1; i <= gpu->count; i++) {
            uint32_t other = (gpu->current + i) % gpu->count;
            if (!gpu->contexts[other]->queued) continue;
            next = other;
            break;
        }
        if (!gpu->contexts[next]->queued) {
            gpu->busy = false;
            return;
        }
        if (next != gpu->current) {
            gpu->ready_ns = now_ns + SWITCH_NS;
            gpu->switched++;
        }
        gpu->current = next;
        gpu->slice_end_ns = (gpu->ready_ns > now_ns ? gpu->ready_ns : now_ns) + SLICE_NS;
        context = gpu->contexts[next];
    } else if (!gpu->busy || now_ns >= gpu->slice_end_ns) {
        gpu->slice_end_ns = now_ns + SLICE_NS;
    }
    gpu->busy = true;
    uint32_t width = 0;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        if (context->head[i] && context->head[i]->running) width += context->head[i]->width;
    }
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        struct launch *launch = context->head[i];
        if (!launch || launch->running || width + launch->width > 1000 || !may_begin(context, launch)) continue;
        launch->running = true;
        width += launch->width;
        arrive(launch);
    }
    uint64_t start = gpu->ready_ns > now_ns ? gpu->ready_ns : now_ns, next = UINT64_MAX;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        const struct launch *launch = context->head[i];
        if (!launch || !launch->running) continue;
        uint64_t end = start + launch->left_ns;
        if (end < next && (launch->left_ns || is_met(launch))) next = end;
    }
    if (has_others(gpu) && gpu->slice_end_ns < next) next = gpu->slice_end_ns;
    gpu->version++;
    if (next != UINT64_MAX) at(next, due, gpu, gpu->version);
}

static void due(void *about, uint64_t version) {
    struct gpu *gpu = about;
    if (version != gpu->version) return;
    gpu_advance(gpu);
    finish(gpu);
    plan(gpu);
}

void gpu_submit(struct gpu *gpu, struct context *context, struct launch *launch) {
    uint32_t stream = launch->stream;
    launch->submitted_ns = now_ns;
    launch->next = NULL;
    context->queued++;
    bool first = !context->head[stream];
    if (first) {
        launch->begun_ns = now_ns;
        context->head[stream] = launch;
    } else {
        context->tail[stream]->next = launch;
    }
    context->tail[stream] = launch;
    /* Only what may change what runs now, or when the current turn ends, is worth looking at. */
    if (!gpu->busy || first || gpu->contexts[gpu->current] != context) {
        gpu_advance(gpu);
        plan(gpu);
    }
}

void gpu_drop(struct gpu *gpu, struct context *context) {
    gpu_advance(gpu);
    for (uint32_t i = 0; i < MAX_STREAMS; i++) context->head[i] = context->tail[i] = NULL;
    context->queued = 0;
    if (gpu->busy) plan(gpu);
}
