/* Shared by the laboratory's files: a clock that jumps from event to event (clock.c), a GPU (gpu.c), programs that
 * launch on it (program.c), and algorithms that limit them (cotenant.c with cotenant_agent.c, peers.c). Times are ns
 * from the start. One thread, one seed, no real clock: the same command line gives the same figures.
 *
 * The constants of the GPU and the machine are here, with their sources. The algorithms cannot change them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../../../native/compute/arbiter/arbiter.h"
#include "../../../../native/compute/gate/gate.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)
#define SLICE_NS (2 * MS)      /* the driver's default turn of a process among processes with work */
#define SWITCH_NS (100 * US)   /* from one process to another */
#define QUEUE_LAUNCHES 1024    /* a stream's queue: a launch beyond it blocks */
#define LAUNCH_NS (4 * US)     /* of processor time, for a launch */
#define SYNC_NS (10 * US)      /* from the end of work to the return of a call that waits for it */
#define WAKE_NS (42 * US)      /* a futex from one process to another, measured */
#define WAKE_TAIL_NS (20 * US) /* mean of what the scheduler adds to it */
#define HELPER_NS (100 * US)   /* how often a process looks at its events */
#define DECIDE_NS (5 * US)     /* the agent's thread, for one round */
#define WINDOW_NS (100 * MS)   /* figures are kept for each */
enum {
    MAX_TENANTS = 64,
    MAX_PROCESSES = 8, /* of a tenant */
    MAX_STREAMS = 4,
    MAX_GPUS = 4,
    MAX_JOBS = 4,
};

/* ---- clock.c ---- */
extern uint64_t now_ns;
typedef void (*handler)(void *about, uint64_t number);
void at(uint64_t time_ns, handler run, void *about, uint64_t number);
void run_until(uint64_t end_ns);
/* still.c: ends the process with STANDS_STILL, and says the seed and the state, once virtual time hardly goes on. To be
 * called in the process that runs, before it does. */
enum { STANDS_STILL = 4 };
void watch_time(void);
struct random {
    uint64_t state;
};
double uniform(struct random *random);
double normal(struct random *random);
uint64_t exponential(struct random *random, double mean);

/* ---- gpu.c ---- */
struct program;
struct launch {
    uint64_t left_ns, length_ns, spun_ns; /* spun: waited for other ranks */
    uint32_t width;                       /* thousandths of the GPU that it fills */
    uint64_t begun_ns, submitted_ns;
    uint32_t stream;
    uint64_t kind;
    struct program *program;
    struct batch *batch;
    uint64_t charge_ns; /* of the peers' laws: what they thought of it */
    bool running;
    struct job *job; /* of a collective: it ends when the kernels of all ranks have begun */
    uint64_t step;
    bool arrived, does_not_wait; /* for the other ranks: it only lets them end */
    uint64_t needs[MAX_STREAMS]; /* it begins when so many launches of each stream of its context have ended */
    struct launch *next;
};
/* Ranks that launch a collective in each step. */
struct job {
    uint64_t step; /* in which not all have begun ... */
    uint32_t ranks;
    uint32_t arrived; /* ... but so many */
};
struct context {
    struct launch *head[MAX_STREAMS], *tail[MAX_STREAMS];
    uint32_t queued;
    uint64_t ended_in[MAX_STREAMS];
    uint64_t *work_ns;   /* executed, per window, in time of the whole GPU */
    uint64_t *active_ns; /* for which anything of it ran */
    uint64_t work_total_ns, active_total_ns;
    uint64_t useful_total_ns; /* without kernels that wait for other ranks and have not ended */
};
struct gpu {
    struct context *contexts[MAX_TENANTS * MAX_PROCESSES];
    uint32_t count, current;
    bool busy;
    uint64_t since_ns, slice_end_ns, ready_ns;
    uint64_t version; /* of what is due: older events mean nothing */
    uint64_t switched;
};
void gpu_add(struct gpu *gpu, struct context *context, uint64_t windows);
void gpu_submit(struct gpu *gpu, struct context *context, struct launch *launch);
void gpu_advance(struct gpu *gpu);
/* Its process has ended: so does its work. */
void gpu_drop(struct gpu *gpu, struct context *context);

/* ---- program.c ---- */
enum form {
    FORM_ASYNC,
    FORM_SYNC,
    FORM_GRAPH,
    FORM_COOPERATIVE,
    FORM_STREAMS,
    FORM_BURSTY,
    FORM_REQUESTS,
    FORM_COLLECTIVE
};
enum spread { SPREAD_LOGNORMAL, SPREAD_FIXED, SPREAD_BIMODAL };
struct request_log {
    uint64_t *latency_ns;
    uint32_t count;
};
struct program {
    struct tenant *tenant;
    uint32_t index;
    struct gpu *gpu;
    struct context context;
    struct random random, arrivals_random; /* two, so that when work comes does not hang on how long it takes */
    uint32_t outstanding, burst_left, next_stream;
    uint64_t launches, collectives;
    uint64_t outstanding_in[MAX_STREAMS];
    bool stopped; /* nothing more is launched: between its phases */
    bool blocked; /* in a call that waits for the GPU */
    bool gated;   /* the law makes it wait */
    bool syncing;
    bool frozen, dead; /* the process is stopped, or was killed */
    uint64_t gated_since_ns;
    struct launch *asked; /* what it will launch next */
    uint64_t arrivals[4096];
    uint32_t first_arrival, arrivals_count;
    uint64_t generation;
    void *law;
};
struct tenant {
    enum form form;
    enum spread spread;
    uint64_t kernel_ns;
    uint32_t nodes, processes, load_percent;
    uint32_t first_gpu, gpus; /* its processes use them in turn */
    struct job *job;          /* of FORM_COLLECTIVE: each process is a rank */
    uint64_t work_ns;         /* of a kernel before each collective; 0: there is none */
    uint64_t kinds;           /* of launches, in turn, each of its own length; 0: each launch is of a new kind */
    uint64_t gap_ns;
    uint32_t burst;
    uint64_t active_ns, pause_ns; /* phases: works for so long, pauses for so long; 0: always works */
    struct cot_request request;
    uint64_t join_ns;
    bool joined;
    struct program programs[MAX_PROCESSES];
    struct request_log log;
    uint64_t longest_wait_ns, waits, waited_ns;
    bool scribbles;
    uint32_t holds;  /* words of its page at a value: see cotenant.c */
    uint32_t forges; /* what the agent finds in its page: see cotenant_agent.c */
    uint32_t index;
};
void program_start(struct program *program);
void program_step(struct program *program);
/* The law lets a program that waits ask again. */
void program_again(struct program *program);
void program_ended(struct launch *launch);

/* ---- laws ---- */
struct law {
    const char *name;
    void (*join)(struct program *program);
    /* May it launch now? If not, the law calls program_again when it may be worth asking. */
    bool (*ask)(struct program *program, struct launch *launch);
    void (*launched)(struct program *program, struct launch *launch);
    void (*ended)(struct program *program, struct launch *launch);
    void (*syncs)(struct program *program);  /* is about to wait for all that it launched */
    void (*synced)(struct program *program); /* and has waited */
};
extern const struct law native_law, cotenant_law, count_bucket_law, event_bucket_law;

struct lab {
    const struct law *law;
    struct tenant tenants[MAX_TENANTS];
    uint32_t count;
    struct gpu gpus[MAX_GPUS];
    struct job jobs[MAX_JOBS];
    uint64_t end_ns, seed;
    enum cot_policy policy;
    uint32_t instances;
    struct cot_tuning tuning;
    struct cot_gate_tuning gate;
    bool swallow; /* a timer that is set swallows rings: what rule 3 forbids */
};
extern struct lab lab;

/* ---- cotenant_agent.c ---- */
void agent_start(void);
void agent_stop(void);    /* as by SIGSTOP or SIGKILL */
void agent_restart(void); /* a new one */
void agent_resume(void);  /* after a stop: the same one goes on */
void agent_set(uint32_t tenant, const struct cot_request *request);
void agent_print(uint32_t tenant);
/* A process was killed: the agent finds that out, and so do the container's other processes. */
void agent_lost(struct program *program);
