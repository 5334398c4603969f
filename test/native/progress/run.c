/* Carries out a scenario: a host thread per process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "judge.h"

#define LOOK_NS (20 * MS)
#define STOPPED_NS (250 * MS) /* the most that is charged for work of a stopped process */

struct op {
    uint32_t action, place;
};
struct host {
    const struct rank *rank;
    struct program *program;
    struct op ops[2 * MOST_ACTIONS];
    uint32_t count, next, launched; /* of the present operation */
    uint64_t submitted[MAX_STREAMS], needs[MAX_STREAMS][MAX_STREAMS];
    uint32_t syncs; /* the stream that it waits for, or ALL_STREAMS */
    bool ends, ended, doomed, missed;
    struct wait wait;
};

struct lab lab;
static const struct scenario *running;
static struct host hosts[MOST_RANKS];
static struct job jobs[MOST_ACTIONS];
static bool posted[MOST_ACTIONS];
static struct outcome *outcome_of;
static bool failed;
static uint64_t progress_ns;

static struct host *host_of(const struct program *program) {
    for (uint32_t i = 0; i < running->ranks; i++) {
        if (hosts[i].program == program) return &hosts[i];
    }
    abort();
}

static void judge(struct host *host) {
    failed |= !judge_wait(&host->wait, host->program, (uint32_t)(host - hosts));
}

static void step(void *about, uint64_t generation) {
    struct program *program = about;
    if (generation == program->generation) program_step(program);
}
static void go_on(struct program *program, uint64_t time_ns) {
    at(time_ns, step, program, ++program->generation);
}

static struct launch *new_launch(struct host *host, uint32_t stream, uint32_t length) {
    struct launch *launch = calloc(1, sizeof *launch);
    struct program *program = host->program;
    if (!launch) abort();
    const struct container *container = &running->container[host->rank->container];
    bool own = length == MOST_KINDS;
    launch->kind = own ? MOST_KINDS + program->launches : length;
    launch->length_ns = container->length_ns[length % MOST_KINDS];
    if (own) launch->length_ns = (uint64_t)((double)launch->length_ns * (0.2 + 1.6 * uniform(&program->random)));
    if (launch->length_ns == 0) launch->length_ns = 1;
    launch->left_ns = launch->length_ns;
    launch->width = host->rank->width;
    launch->stream = stream;
    launch->program = program;
    program->launches++;
    return launch;
}

static void freeze(void *about, uint64_t for_ns);
static void thaw(void *about, uint64_t for_ns) {
    struct host *host = about;
    host->program->frozen = false;
    host->wait.frozen_ns += for_ns;
    if (host->missed) {
        host->missed = false;
        program_step(host->program);
    }
}
static void freeze(void *about, uint64_t for_ns) {
    struct host *host = about;
    if (host->program->dead || host->program->frozen) return;
    host->program->frozen = true;
    /* Its work in flight may have run meanwhile, for all that is known: it is charged, up to a bound. */
    uint64_t charged = for_ns < STOPPED_NS ? for_ns : STOPPED_NS;
    judge_charge(host->program, charged);
    for (uint32_t i = 0; i < running->ranks; i++) {
        const struct program *other = hosts[i].program;
        if (other && other->tenant == host->program->tenant && other->gpu == host->program->gpu)
            hosts[i].wait.backlog_ns[gpu_of(other)] += charged;
    }
    at(now_ns + for_ns, thaw, host, for_ns);
}
static void kill_it(void *about, uint64_t unused) {
    (void)unused;
    struct host *host = about;
    struct program *program = host->program;
    if (program->gated) judge(host);
    program->dead = program->frozen = true;
    program->gated = false;
    host->ended = true;
    gpu_drop(program->gpu, &program->context);
    if (lab.law == &cotenant_law) agent_lost(program);
}

/* Makes the launch, or waits at the gate: then it is asked for again. */
static bool make_launch(struct host *host) {
    struct program *program = host->program;
    struct launch *launch = program->asked;
    progress_ns = now_ns;
    judge_look(program);
    bool goes = lab.law->ask(program, launch);
    if (!goes && !program->gated) judge_begin_wait(&host->wait, program);
    if (!goes) {
        program->gated = true;
        return false;
    }
    if (program->gated) {
        judge(host);
        outcome_of->waits++;
    }
    program->gated = false;
    program->asked = NULL;
    program->outstanding++;
    program->outstanding_in[launch->stream]++;
    host->submitted[launch->stream]++;
    memcpy(launch->needs, host->needs[launch->stream], sizeof launch->needs);
    lab.law->launched(program, launch);
    gpu_submit(program->gpu, &program->context, launch);
    go_on(program, now_ns + LAUNCH_NS);
    return true;
}

static bool is_synced(const struct host *host) {
    return host->syncs == ALL_STREAMS ? host->program->outstanding == 0
                                      : host->program->outstanding_in[host->syncs] == 0;
}

static void begin_sync(struct host *host, uint32_t stream) {
    host->program->syncing = true;
    host->syncs = stream;
    lab.law->syncs(host->program);
    if (is_synced(host)) go_on(host->program, now_ns + SYNC_NS);
}

/* Launches of its own until it is killed, or for ever. */
static void launch_on(struct host *host) {
    struct program *program = host->program;
    if (host->rank->role == ENDLESS && program->launches) return;
    if (program->outstanding >= 64) {
        program->blocked = true;
        return;
    }
    program->asked = new_launch(host, 0, (uint32_t)(program->launches % 2));
    if (host->rank->role == ENDLESS) program->asked->left_ns = program->asked->length_ns = 1000 * SECOND_NS;
    make_launch(host);
}

static void carry_out(struct host *host, const struct op *op) {
    struct program *program = host->program;
    const struct action *action = &running->action[op->action];
    uint32_t stream = action->stream[op->place];
    switch (action->kind) {
    case KERNELS:
    case FLAG:
    case COLLECTIVE:
        program->asked = new_launch(host, stream, action->length);
        if (action->kind != KERNELS) program->asked->job = &jobs[op->action];
        program->asked->does_not_wait = action->kind == FLAG && op->place == 1;
        host->launched++;
        if (host->launched >= (action->kind == KERNELS ? action->launches : 1)) {
            host->next++;
            host->launched = 0;
        }
        make_launch(host);
        return;
    case EVENT:
        if (stream != action->stream[1]) host->needs[action->stream[1]][stream] = host->submitted[stream];
        break;
    case SYNC:
        host->next++;
        begin_sync(host, stream);
        return;
    case PAUSE:
        host->next++;
        go_on(program, now_ns + action->for_ns);
        return;
    case MESSAGE:
        if (op->place == 1 && !posted[op->action]) return; /* the message lets it go on */
        if (op->place == 0) {
            posted[op->action] = true;
            struct host *to = &hosts[action->rank[1]];
            bool there = to->program && to->next < to->count && to->ops[to->next].action == op->action;
            if (there && !to->program->asked && !to->program->syncing) go_on(to->program, now_ns + WAKE_NS);
        }
        break;
    case STOP: at(now_ns + action->after_ns, freeze, host, action->for_ns); break;
    case KILL:
    case ACTION_KINDS:
        /* What others wait for ends first. */
        if (!host->doomed) {
            host->doomed = true;
            begin_sync(host, ALL_STREAMS);
            return;
        }
        host->next++;
        host->ends = true;
        at(now_ns + action->after_ns, kill_it, host, 0);
        break;
    }
    host->next++;
    go_on(program, now_ns + US);
}

void program_step(struct program *program) {
    struct host *host = host_of(program);
    if (program->dead || host->ended) return;
    if (program->frozen) {
        host->missed = true;
        return;
    }
    if (program->syncing) {
        if (!is_synced(host)) return;
        program->syncing = false;
        lab.law->synced(program);
        go_on(program, now_ns + US);
        return;
    }
    if (program->asked) {
        make_launch(host);
        return;
    }
    if (program->blocked) return;
    if (host->ends || host->rank->role != PROGRAM) {
        launch_on(host);
        return;
    }
    if (host->next < host->count) {
        carry_out(host, &host->ops[host->next]);
        return;
    }
    if (program->outstanding) begin_sync(host, ALL_STREAMS);
    else host->ended = true;
}

void program_again(struct program *program) {
    if (program->gated) program_step(program);
}

void program_ended(struct launch *launch) {
    struct program *program = launch->program;
    struct host *host = host_of(program);
    progress_ns = now_ns;
    program->outstanding--;
    program->outstanding_in[launch->stream]--;
    judge_look(program);
    lab.law->ended(program, launch);
    if (program->blocked) {
        program->blocked = false;
        go_on(program, now_ns + SYNC_NS);
    }
    if (program->syncing && is_synced(host)) go_on(program, now_ns + SYNC_NS);
    free(launch);
}

static bool takes_part(const struct action *action, uint32_t place) {
    uint32_t container = running->rank[action->rank[place]].container;
    return !running->container[container].left_out;
}

/* Of an action for two, both are there or none. */
static bool is_carried_out(const struct action *action) {
    if (action->left_out) return false;
    if (action->kind != FLAG && action->kind != MESSAGE) return true;
    return takes_part(action, 0) && takes_part(action, 1);
}

static void prepare_hosts(void) {
    for (uint32_t i = 0; i < running->ranks; i++) hosts[i] = (struct host){.rank = &running->rank[i]};
    for (uint32_t i = 0; i < running->actions; i++) {
        const struct action *action = &running->action[i];
        jobs[i] = (struct job){0};
        for (uint32_t place = 0; is_carried_out(action) && place < action->count; place++) {
            struct host *host = &hosts[action->rank[place]];
            jobs[i].ranks += takes_part(action, place);
            host->ops[host->count++] = (struct op){i, place};
        }
    }
}

static void join(void *about, uint64_t number) {
    const struct container *container = about;
    struct tenant *tenant = &lab.tenants[number];
    for (uint32_t i = 0, index = 0; i < running->ranks; i++) {
        if (running->rank[i].container != number) continue;
        struct program *program = &tenant->programs[index];
        program->tenant = tenant;
        program->index = index++;
        program->gpu = &lab.gpus[container->first_gpu + program->index % container->gpus];
        program->random.state = running->seed * 31 + i;
        hosts[i].program = program;
        gpu_add(program->gpu, &program->context, 2 * lab.end_ns / WINDOW_NS);
        lab.law->join(program);
        go_on(program, now_ns + (uint64_t)(uniform(&program->random) * MS));
    }
}

static void change_share(void *about, uint64_t share_ppm) {
    struct cot_request request = lab.tenants[0].request;
    (void)about;
    request.share_ppm = (uint32_t)share_ppm;
    agent_set(0, &request);
}
static void stop_agent(void *about, uint64_t unused) {
    (void)about;
    (void)unused;
    agent_stop();
}
static void start_agent(void *about, uint64_t restarts) {
    (void)about;
    if (restarts) agent_restart();
    else agent_resume();
}

static void plan_agent(const struct scenario *scenario) {
    if (lab.law != &cotenant_law) return;
    agent_start();
    if (scenario->agent_stops_ns) {
        at(scenario->agent_stops_ns, stop_agent, NULL, 0);
        at(scenario->agent_stops_ns + scenario->agent_away_ns, start_agent, NULL, scenario->agent_restarts);
    }
    if (!scenario->share_changes_ns || scenario->container[0].left_out || scenario->container[0].join_ns) return;
    at(scenario->share_changes_ns, change_share, NULL, scenario->new_share_ppm);
    uint32_t share = lab.tenants[0].request.share_ppm;
    lab.tenants[0].request.share_ppm = scenario->new_share_ppm;
    judge_note_shares();
    lab.tenants[0].request.share_ppm = share;
}

static bool has_ended(void) {
    for (uint32_t i = 0; i < running->ranks; i++) {
        if (running->container[running->rank[i].container].left_out || running->rank[i].role != PROGRAM) continue;
        if (!hosts[i].ended) return false;
    }
    return true;
}

/* Nothing need happen: a process is stopped, or waits at the gate, which is judged for itself. */
static bool is_stopped(void) {
    for (uint32_t i = 0; i < running->ranks; i++) {
        const struct program *program = hosts[i].program;
        if (program && !program->dead && (program->frozen || program->gated)) return true;
    }
    return false;
}

int scenario_run(const struct scenario *scenario, const struct law *law, struct outcome *outcome) {
    running = scenario;
    outcome_of = outcome;
    judge_start(scenario, outcome);
    *outcome = (struct outcome){.longest_run_ns = outcome->longest_run_ns, .percent = outcome->percent};
    lab.law = law;
    lab.seed = scenario->seed;
    lab.policy = scenario->policy;
    lab.instances = 20;
    lab.tuning = cot_default_tuning;
    lab.gate = cot_default_gate;
    lab.end_ns = outcome->longest_run_ns;
    lab.count = scenario->containers;
    prepare_hosts();
    for (uint32_t i = 0; i < lab.count; i++) {
        const struct container *container = &scenario->container[i];
        struct tenant *tenant = &lab.tenants[i];
        tenant->index = i;
        tenant->processes = container->processes;
        tenant->first_gpu = container->first_gpu;
        tenant->gpus = container->gpus;
        tenant->request = container->request;
        if (!container->left_out) at(container->join_ns, join, (void *)container, i);
    }
    judge_note_shares();
    plan_agent(scenario);
    for (uint64_t time = LOOK_NS; time <= lab.end_ns && !failed; time += LOOK_NS) {
        run_until(time);
        for (uint32_t i = 0; i < scenario->ranks; i++) {
            const struct program *program = hosts[i].program;
            if (program && program->gated && !program->frozen) judge(&hosts[i]);
        }
        if (has_ended()) break;
        if (is_stopped()) progress_ns = now_ns;
        if (!failed && now_ns > progress_ns + 10 * SECOND_NS) {
            printf("nothing has happened since %lu us\n", progress_ns / US);
            failed = true;
        }
    }
    return failed ? STOOD_STILL : has_ended() ? ENDED : TOOK_LONG;
}
