/* Random programs of progress: processes of several containers launch, wait, exchange messages, stop and die on the
 * laboratory's GPUs (test/bench/compute/lab), with the gate and the arbiter between them and in virtual time.
 *
 * A scenario is one list of actions over all processes. Each process carries out its own in the order of that list. An
 * action waits for what comes before it in the list alone, or for the other kernels of the same action: so every part
 * of a scenario ends without a gate, whatever takes how long, and any action may be left out. */
#pragma once

#include "../../bench/compute/lab/lab.h"

enum { MOST_CONTAINERS = 3, MOST_RANKS = 6, MOST_ACTIONS = 64, MOST_KINDS = 6, ALL_STREAMS = MAX_STREAMS };

enum action_kind {
    KERNELS,    /* launches in a stream, one after the other */
    EVENT,      /* the second stream waits for what was launched in the first */
    FLAG,       /* a kernel of the first process runs until one of the second has begun */
    COLLECTIVE, /* a kernel of each process runs until all have begun */
    SYNC,       /* the process waits for a stream, or for all */
    PAUSE,      /* the process does nothing for a time */
    MESSAGE,    /* the second process waits until the first is there */
    STOP,       /* the process is stopped after a time, for another time */
    KILL,       /* the process is killed after a time; it has no actions beyond */
    ACTION_KINDS
};

struct action {
    enum action_kind kind;
    uint32_t count; /* of processes in it */
    uint32_t rank[MOST_RANKS], stream[MOST_RANKS];
    uint32_t launches, length; /* which of the container's lengths; MOST_KINDS: each launch has one of its own */
    uint64_t after_ns, for_ns;
    bool left_out;
};

struct container {
    struct cot_request request;
    uint32_t first_gpu, gpus, processes;
    uint64_t join_ns;
    uint64_t length_ns[MOST_KINDS];
    bool left_out;
};

enum role { PROGRAM, BUSY, ENDLESS };
struct rank { /* a process */
    uint32_t container, index;
    enum role role; /* BUSY: launches without end; ENDLESS: one kernel that never ends */
    uint32_t streams;
    uint32_t width; /* the most that a kernel of it fills */
};

struct scenario {
    uint64_t seed;
    enum cot_policy policy;
    uint32_t containers, ranks, actions, gpus;
    struct container container[MOST_CONTAINERS];
    struct rank rank[MOST_RANKS];
    struct action action[MOST_ACTIONS];
    uint64_t agent_stops_ns, agent_away_ns; /* 0: it does not */
    bool agent_restarts;
    uint64_t share_changes_ns; /* of container 0; 0: it does not */
    uint32_t new_share_ppm;
};

/* scenario.c */
void scenario_make(struct scenario *scenario, uint64_t seed);
void scenario_make_job(struct scenario *scenario, uint64_t seed, uint32_t percent, uint64_t each_ns);
void scenario_print(const struct scenario *scenario);

/* run.c: carries it out in this process, once; says on stdout what stood still. */
enum { ENDED = 0, STOOD_STILL = 1, TOOK_LONG = 2, CRASHED = 3 };
struct outcome {
    uint64_t longest_run_ns;         /* in: how long it may take */
    uint64_t percent;                /* in: a wait fails at so much of what its container's share explains */
    uint64_t longest_ns, allowed_ns; /* the longest wait at the gate, and what its container's share explains */
    uint64_t waits;
};
int scenario_run(const struct scenario *scenario, const struct law *law, struct outcome *outcome);
