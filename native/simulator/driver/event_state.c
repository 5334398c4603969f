/* Event objects: the cells that the GPU stamps, records and waits in a stream. */
#include <stdlib.h>

#include "sim.h"

/* Cells of records that were given up before they were complete: the GPU has yet to write them. */
static struct unwritten {
    struct unwritten *next;
    uint32_t cell, queue;
    uint64_t item;
} *unwritten[SIM_MAX_GPUS];

/* Under the queue's lock. */
static void give_cell(uint32_t gpu, uint32_t cell) {
    if (!sim.cell_free[gpu]) sim.cell_free[gpu] = calloc(SIM_CELLS, sizeof **sim.cell_free);
    if (sim.cell_free[gpu]) sim.cell_free[gpu][sim.cell_free_count[gpu]++] = cell;
}

/* Under the queue's lock. */
static void collect_written(const struct sim_context *context) {
    for (struct unwritten **place = &unwritten[context->gpu], *one; (one = *place);) {
        if (!sim_is_done(context, one->queue, one->item)) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        give_cell(context->gpu, one->cell);
        free(one);
    }
}

bool sim_cell_take(const struct sim_context *context, uint32_t *cell) {
    bool found = true;
    uint32_t gpu = context->gpu;
    pthread_mutex_lock(&sim.queue_lock[gpu]);
    if (unwritten[gpu]) collect_written(context);
    if (sim.cell_free_count[gpu] > 0) *cell = sim.cell_free[gpu][--sim.cell_free_count[gpu]];
    else if (sim.cell_next[gpu] < SIM_CELLS) *cell = sim.cell_next[gpu]++;
    else found = false;
    pthread_mutex_unlock(&sim.queue_lock[gpu]);
    return found;
}

void sim_cell_leave(const struct sim_event *event) {
    uint32_t gpu = event->context->gpu;
    bool written = !event->item || sim_is_done(event->context, event->queue, event->item);
    struct unwritten *one = written ? NULL : malloc(sizeof *one);
    pthread_mutex_lock(&sim.queue_lock[gpu]);
    if (one) {
        *one = (struct unwritten){unwritten[gpu], event->cell, event->queue, event->item};
        unwritten[gpu] = one;
    } else if (written) {
        give_cell(gpu, event->cell);
    }
    pthread_mutex_unlock(&sim.queue_lock[gpu]);
}

int sim_event_record(struct sim_event *event, struct sim_context *context, struct sim_stream *stream) {
    if (event->item && !sim_is_done(context, event->queue, event->item)) {
        uint32_t cell;
        if (!sim_cell_take(context, &cell)) return ABI_ERROR_OUT_OF_MEMORY;
        sim_cell_leave(event);
        event->cell = cell;
    }
    event->queue = stream ? stream->queue : 0;
    atomic_store_explicit(&sim.channel[context->gpu]->cells[event->cell], 0, memory_order_relaxed);
    struct sim_item item = {.kind = SIM_ITEM_STAMP, .cell = event->cell};
    return sim_submit(context, stream, &item, &event->item);
}

int sim_event_await(const struct sim_event *event, struct sim_context *context, struct sim_stream *stream) {
    if (!event->item) return ABI_SUCCESS; /* never recorded */
    struct sim_item item = {.kind = SIM_ITEM_WAIT,
                            .wait_gpu = (uint16_t)event->context->gpu,
                            .wait_queue = (uint16_t)event->queue,
                            .wait_number = event->item};
    return sim_submit(context, stream, &item, NULL);
}
