/* A card: contexts (one per process) take turns of SLICE_NS while several have work, and a change of context costs
 * SWITCH_NS; within a context the heads of its streams run beside one another as far as the card's width reaches. A
 * launch that is under way when its context's turn ends goes on with its next one. */
#include <stdlib.h>

#include "lab.h"

static void due(void *about, uint64_t version);

void card_add(struct card *card, struct context *context, uint64_t windows) {
    context->work_ns = calloc(windows, sizeof *context->work_ns);
    context->active_ns = calloc(windows, sizeof *context->active_ns);
    if (!context->work_ns || !context->active_ns) abort();
    card->contexts[card->count++] = context;
    if (card->count == 1) card->current = 0;
}

/* Executes up to now. */
void card_advance(struct card *card) {
    uint64_t from = card->since_ns > card->ready_ns ? card->since_ns : card->ready_ns;
    card->since_ns = now_ns;
    if (!card->busy || from >= now_ns) return;
    struct context *context = card->contexts[card->current];
    uint64_t elapsed = now_ns - from, width = 0;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        struct launch *launch = context->head[i];
        if (!launch || !launch->running) continue;
        launch->left_ns -= elapsed < launch->left_ns ? elapsed : launch->left_ns;
        width += launch->width;
    }
    context->work_total_ns += elapsed * width / 1000;
    for (uint64_t t = from; t < now_ns && width;) {
        uint64_t window = t / WINDOW_NS, end = (window + 1) * WINDOW_NS;
        if (end > now_ns) end = now_ns;
        context->work_ns[window] += (end - t) * width / 1000;
        context->active_ns[window] += end - t;
        t = end;
    }
}

static void finish(struct card *card) {
    struct context *context = card->contexts[card->current];
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        struct launch *launch = context->head[i];
        if (!launch || !launch->running || launch->left_ns > 0) continue;
        context->head[i] = launch->next;
        if (!context->head[i]) context->tail[i] = NULL;
        else context->head[i]->begun_ns = now_ns;
        context->queued--;
        program_ended(launch);
    }
}

static bool has_others(const struct card *card) {
    for (uint32_t i = 0; i < card->count; i++) {
        if (i != card->current && card->contexts[i]->queued) return true;
    }
    return false;
}

/* Chooses what runs from now on, and when to look again. */
static void plan(struct card *card) {
    struct context *context = card->contexts[card->current];
    bool rotate = card->busy && now_ns >= card->slice_end_ns && has_others(card);
    if (!context->queued || rotate) {
        for (uint32_t i = 0; i < MAX_STREAMS; i++) {
            if (context->head[i]) context->head[i]->running = false;
        }
        uint32_t next = card->current;
        for (uint32_t i = 1; i <= card->count; i++) {
            uint32_t other = (card->current + i) % card->count;
            if (!card->contexts[other]->queued) continue;
            next = other;
            break;
        }
        if (!card->contexts[next]->queued) {
            card->busy = false;
            return;
        }
        if (next != card->current) {
            card->ready_ns = now_ns + SWITCH_NS;
            card->switched++;
        }
        card->current = next;
        card->slice_end_ns = (card->ready_ns > now_ns ? card->ready_ns : now_ns) + SLICE_NS;
        context = card->contexts[next];
    } else if (!card->busy || now_ns >= card->slice_end_ns) {
        card->slice_end_ns = now_ns + SLICE_NS;
    }
    card->busy = true;
    uint32_t width = 0;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        if (context->head[i] && context->head[i]->running) width += context->head[i]->width;
    }
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        struct launch *launch = context->head[i];
        if (!launch || launch->running || width + launch->width > 1000) continue;
        launch->running = true;
        width += launch->width;
    }
    uint64_t start = card->ready_ns > now_ns ? card->ready_ns : now_ns, next = UINT64_MAX;
    for (uint32_t i = 0; i < MAX_STREAMS; i++) {
        const struct launch *launch = context->head[i];
        if (!launch || !launch->running) continue;
        uint64_t end = start + launch->left_ns;
        if (end < next) next = end;
    }
    if (has_others(card) && card->slice_end_ns < next) next = card->slice_end_ns;
    at(next, due, card, ++card->version);
}

static void due(void *about, uint64_t version) {
    struct card *card = about;
    if (version != card->version) return;
    card_advance(card);
    finish(card);
    plan(card);
}

void card_submit(struct card *card, struct context *context, struct launch *launch) {
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
    if (!card->busy || first || card->contexts[card->current] != context) {
        card_advance(card);
        plan(card);
    }
}
