/* Event objects: the cells that the GPU stamps, records and waits in a stream. Those that other processes can open have
 * none: two counters that all of them share say how often the event was recorded, and which record is complete. */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

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

static int record_shared(const struct sim_event *event, struct sim_context *context, struct sim_stream *stream) {
    struct sim_step step = {.type = SIM_STEP_RAISE,
                            .to = (abi_devptr)&event->shared->complete,
                            .bytes = atomic_fetch_add(&event->shared->records, 1) + 1};
    return sim_host_work(context, stream, &step, NULL);
}

int sim_event_record(struct sim_event *event, struct sim_context *context, struct sim_stream *stream) {
    if (event->shared) return record_shared(event, context, stream);
    if (event->item && !sim_is_done(context, event->queue, event->item)) {
        uint32_t cell;
        if (!sim_cell_take(context, &cell)) return ABI_ERROR_OUT_OF_MEMORY;
        sim_cell_leave(event);
        event->cell = cell;
    }
    event->queue = sim_queue_of(context, stream);
    atomic_store_explicit(&sim.channel[context->gpu]->cells[event->cell], 0, memory_order_relaxed);
    struct sim_item item = {.kind = SIM_ITEM_STAMP, .cell = event->cell};
    return sim_submit(context, stream, &item, &event->item);
}

int sim_event_await(const struct sim_event *event, struct sim_context *context, struct sim_stream *stream) {
    if (event->shared) {
        struct sim_step step = {.type = SIM_STEP_WAIT_VALUE,
                                .to = (abi_devptr)&event->shared->complete,
                                .bytes = atomic_load(&event->shared->records),
                                .fill = {.width = 8}};
        return sim_event_is_done(event) ? ABI_SUCCESS : sim_host_work(context, stream, &step, NULL);
    }
    if (!event->item) return ABI_SUCCESS; /* never recorded */
    struct sim_item item = {.kind = SIM_ITEM_WAIT,
                            .wait_gpu = (uint16_t)event->context->gpu,
                            .wait_queue = (uint16_t)event->queue,
                            .wait_number = event->item};
    return sim_submit(context, stream, &item, NULL);
}

bool sim_event_is_done(const struct sim_event *event) {
    if (event->shared) return atomic_load(&event->shared->complete) >= atomic_load(&event->shared->records);
    return sim_is_done(event->context, event->queue, event->item);
}

int sim_event_synchronize(const struct sim_event *event) {
    if (!event->shared) return sim_wait(event->context, event->queue, event->item);
    uint64_t record = atomic_load(&event->shared->records);
    while (atomic_load(&event->shared->complete) < record) {
        sim_ring_doorbell();
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return sim_usable(event->context);
}

static struct sim_event *events; /* all events, so that those a program has lost are not reported as leaks */

void sim_event_add(struct sim_event *event) {
    pthread_mutex_lock(&sim.lock);
    event->next = events;
    event->place = &events;
    if (events) events->place = &event->next;
    events = event;
    pthread_mutex_unlock(&sim.lock);
}

/* ---- events that other processes can open ---- */

bool sim_event_map(struct sim_event *event, int fd) {
    void *at = mmap(NULL, sizeof *event->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return false;
    event->shared = at;
    event->shared_fd = fd;
    return true;
}

bool sim_event_share(struct sim_event *event) {
    int fd = memfd_create("simulated-event", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, sizeof *event->shared) == 0 && sim_event_map(event, fd)) return true;
    if (fd >= 0) close(fd);
    return false;
}

/* The mapping stays: steps that were not reached yet write to it. */
void sim_event_unshare(struct sim_event *event) {
    close(event->shared_fd);
    if (event->shared_block) sim_simple(SIM_RELEASE, event->context->gpu, event->shared_block, 0, NULL);
}
