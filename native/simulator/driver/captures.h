/* Captures of the process: graph/capture.c records, capture_rules.c says what they forbid. */
#pragma once

#include "sim.h"

struct capture {
    uint64_t id;
    struct sim_graph *graph;
    bool given; /* the graph is the program's own, also after the capture's end */
    const struct sim_stream *origin;
    const struct sim_context *context;
    int mode;           /* ABI_CAPTURE_* */
    const void *thread; /* that began it */
    bool blocking;      /* one of its streams synchronizes with the legacy default stream */
    bool invalid;
    struct capture *next;
};
extern struct capture *sim_captures;       /* under sim.lock */
extern _Atomic unsigned sim_capture_count; /* of them */

const void *sim_capture_thread(void); /* identifies the calling thread */
/* All under sim.lock. */
struct capture *sim_capture_by_id(uint64_t id);
struct capture *sim_capture_of(struct sim_stream *stream);  /* NULL: none, or its origin has ended it */
int sim_capture_break(struct capture *capture, int result); /* makes it invalid; returns `result` */
int sim_capture_end_both(struct capture *one, struct capture *other);
bool sim_capture_is_implicit(const struct sim_context *context); /* takes the lock */
