/* Makes a scenario from a seed, and prints one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "progress.h"

static struct random source;

static uint32_t below(uint32_t count) {
    uint32_t value = (uint32_t)(uniform(&source) * count);
    return value < count ? value : count - 1;
}
static bool chance(uint32_t percent) {
    return below(100) < percent;
}
/* Short ones are as frequent as long ones. */
static uint64_t length_between(double least, double most) {
    return (uint64_t)(least * exp(uniform(&source) * log(most / least)));
}

static void make_container(struct scenario *scenario, uint32_t index) {
    static const uint32_t percents[] = {2, 5, 10, 20, 30, 50, 50, 100, 0};
    struct container *container = &scenario->container[index];
    container->gpus = chance(50) ? 1 : 1 + below(scenario->gpus);
    container->first_gpu = below(scenario->gpus - container->gpus + 1);
    container->processes = container->gpus;
    container->join_ns = chance(30) ? below(50) * MS : 0;
    struct cot_request *request = &container->request;
    request->share_ppm = percents[below(sizeof percents / sizeof *percents)] * 10000;
    request->weight = 1 + below(4);
    if (chance(15)) request->limit_ppm = 1000000;
    if (chance(10)) {
        request->high = true;
        request->high_cap_ppm = chance(70) ? 100000 * (1 + below(9)) : 0;
    }
    for (uint32_t i = 0; i < MOST_KINDS; i++) {
        container->length_ns[i] = length_between(20e3, chance(20) ? 30e6 : 4e6);
    }
}

static void make_rank(struct scenario *scenario, uint32_t container) {
    struct rank *rank = &scenario->rank[scenario->ranks++];
    uint32_t index = 0;
    for (uint32_t i = 0; i + 1 < scenario->ranks; i++) index += scenario->rank[i].container == container;
    *rank = (struct rank){.container = container, .index = index, .streams = 1 + below(MAX_STREAMS)};
    rank->role = scenario->ranks > 2 && chance(25) ? chance(80) ? BUSY : ENDLESS : PROGRAM;
    /* A kernel that waits for another one of its process must leave space for it. */
    rank->width = chance(25) ? 1000 : 1000 / MAX_STREAMS;
}

/* A process that takes part in the list; -1: there is none beside `except`. `flags`: its kernels may wait. */
static int some_rank(const struct scenario *scenario, const bool *killed, bool flags, uint32_t taken) {
    for (uint32_t i = 0, first = below(scenario->ranks); i < scenario->ranks; i++) {
        uint32_t rank = (first + i) % scenario->ranks;
        if (scenario->rank[rank].role != PROGRAM || killed[rank] || taken >> rank & 1) continue;
        if (!flags || scenario->rank[rank].width < 1000) return (int)rank;
    }
    return -1;
}

static bool fill(struct scenario *scenario, struct action *action, const bool *killed, uint32_t count, bool flags) {
    uint32_t taken = 0;
    for (action->count = 0; action->count < count; action->count++) {
        int rank = some_rank(scenario, killed, flags, taken);
        if (rank < 0) break;
        taken |= 1u << rank;
        action->rank[action->count] = (uint32_t)rank;
        action->stream[action->count] = below(scenario->rank[rank].streams);
    }
    return action->count > 0;
}

/* Two kernels of one process, or of two. */
static void make_flag(struct scenario *scenario, struct action *action) {
    const struct rank *first = &scenario->rank[action->rank[0]];
    if (action->count == 2 && (first->streams == 1 || chance(60))) return;
    action->count = 2;
    action->rank[1] = action->rank[0];
    action->stream[1] = (action->stream[0] + 1) % first->streams;
}

static void make_action(struct scenario *scenario, bool *killed) {
    static const uint32_t weights[ACTION_KINDS] = {30, 10, 20, 20, 12, 6, 8, 3, 2};
    struct action *action = &scenario->action[scenario->actions];
    uint32_t at = below(111), kind = 0;
    while (kind + 1 < ACTION_KINDS && at >= weights[kind]) at -= weights[kind++];
    *action = (struct action){.kind = kind, .launches = 1, .length = below(MOST_KINDS + 1)};
    bool flags = kind == FLAG || kind == COLLECTIVE;
    uint32_t count = kind == COLLECTIVE ? 2 + below(3) : kind == FLAG || kind == MESSAGE ? 2 : 1;
    if (!fill(scenario, action, killed, count, flags)) return;
    const struct rank *first = &scenario->rank[action->rank[0]];
    if (kind == KERNELS) action->launches = chance(10) ? 1 + below(60) : 1 + below(8);
    if (kind == EVENT) action->stream[1] = below(first->streams);
    if (kind == FLAG) make_flag(scenario, action);
    if (kind == FLAG && action->rank[0] == action->rank[1] && action->stream[0] == action->stream[1]) return;
    if ((kind == COLLECTIVE || kind == MESSAGE) && action->count < 2) return;
    if (kind == SYNC && chance(50)) action->stream[0] = ALL_STREAMS;
    if (kind == PAUSE || kind == STOP) action->for_ns = length_between(100e3, kind == STOP ? 400e6 : 30e6);
    if (kind == STOP || kind == KILL) action->after_ns = length_between(10e3, 30e6);
    if (kind == KILL) killed[action->rank[0]] = true;
    scenario->actions++;
}

void scenario_make(struct scenario *scenario, uint64_t seed) {
    *scenario = (struct scenario){.seed = seed, .policy = below(6)};
    source.state = seed * 7919 + 17;
    scenario->policy = chance(40) ? COT_POLICY_FIXED : (enum cot_policy)below(6);
    scenario->gpus = 1 + below(MAX_GPUS);
    scenario->containers = 1 + below(MOST_CONTAINERS);
    for (uint32_t i = 0; i < scenario->containers; i++) make_container(scenario, i);
    /* A process per GPU at least, and four or a few more in all. */
    for (uint32_t i = 0; i < scenario->containers; i++) {
        struct container *container = &scenario->container[i];
        uint32_t left = MOST_RANKS - scenario->ranks - (scenario->containers - 1 - i);
        if (container->gpus > left) container->gpus = container->processes = left;
        if (container->processes < left && chance(30)) container->processes++;
        for (uint32_t k = 0; k < container->processes; k++) make_rank(scenario, i);
    }
    bool killed[MOST_RANKS] = {false};
    /* Some repeat a few actions, as training does. */
    uint32_t actions = 1 + below(MOST_ACTIONS), round = chance(40) ? 1 + below(6) : actions;
    for (uint32_t tries = 0; tries < 10 * MOST_ACTIONS && scenario->actions < round; tries++)
        make_action(scenario, killed);
    round = scenario->actions;
    bool ends = memchr(killed, 1, sizeof killed) != NULL;
    for (uint32_t i = round; round && !ends && i < actions; i++)
        scenario->action[scenario->actions++] = scenario->action[i - round];
    if (chance(20)) {
        scenario->agent_stops_ns = length_between(1e6, 300e6);
        scenario->agent_away_ns = length_between(1e6, 2e9);
        scenario->agent_restarts = chance(50);
    }
    if (chance(15)) {
        scenario->share_changes_ns = length_between(1e6, 300e6);
        scenario->new_share_ppm = 50000 * (1 + below(20));
    }
}

/* A job of four processes in three containers on two GPUs, all of which meet now and then. `each_ns`: of its kernels,
 * then a quarter as many; 0: they take 1 us to 700 us. */
void scenario_make_job(struct scenario *scenario, uint64_t seed, uint32_t percent, uint64_t each_ns) {
    static const uint32_t first[] = {0, 1, 0}, gpus[] = {2, 1, 1}, of[] = {0, 1, 2, 0};
    *scenario = (struct scenario){.seed = seed, .policy = COT_POLICY_FIXED, .gpus = 2, .containers = 3};
    source.state = seed * 7919 + 17;
    for (uint32_t i = 0; i < scenario->containers; i++) {
        scenario->container[i] = (struct container){
            .request = {.share_ppm = percent * 10000, .weight = 1},
            .first_gpu = first[i],
            .gpus = gpus[i],
            .processes = gpus[i],
            .length_ns = {20 * US, 20 * US, 50 * US, 50 * US, 700 * US, 1 * US},
        };
        for (uint32_t k = 0; each_ns && k < MOST_KINDS; k++) scenario->container[i].length_ns[k] = each_ns;
    }
    for (uint32_t i = 0; i < 4; i++) {
        make_rank(scenario, of[i]);
        scenario->rank[i].role = PROGRAM;
        scenario->rank[i].streams = MAX_STREAMS;
        scenario->rank[i].width = 1000 / MAX_STREAMS;
    }
    for (uint32_t i = 0; i < (each_ns ? MOST_ACTIONS / 4 : MOST_ACTIONS); i++) {
        struct action *action = &scenario->action[scenario->actions++];
        uint32_t owner = below(4), kind = below(10);
        *action = (struct action){.kind = KERNELS, .count = 1, .rank = {owner}, .launches = 1 + below(6)};
        action->length = chance(66) ? 2 : 4;
        action->stream[0] = below(MAX_STREAMS);
        if (kind < 3) {
            *action = (struct action){.kind = COLLECTIVE, .count = 4, .rank = {0, 1, 2, 3}, .launches = 1};
        } else if (kind < 5) {
            action->kind = FLAG;
            action->launches = 1;
            action->length = 5;
            make_flag(scenario, action);
        } else if (kind == 5) {
            action->kind = SYNC;
            if (chance(50)) action->stream[0] = 0;
        }
    }
}

static void print_action(const struct action *action) {
    static const char *const names[] = {"kernels", "event",   "flag", "collective", "sync",
                                        "pause",   "message", "stop", "kill"};
    printf("  %s", names[action->kind]);
    uint32_t count = action->kind == EVENT ? 2 : action->count;
    for (uint32_t i = 0; i < count; i++) {
        printf(" %u.%u", action->rank[action->kind == EVENT ? 0 : i], action->stream[i]);
    }
    if (action->kind == KERNELS) printf(" x%u", action->launches);
    if (action->kind <= COLLECTIVE && action->kind != EVENT) printf(" length %u", action->length);
    if (action->after_ns) printf(" after %lu us", action->after_ns / US);
    if (action->for_ns) printf(" for %lu us", action->for_ns / US);
    printf("\n");
}

void scenario_print(const struct scenario *scenario) {
    printf("seed %lu, policy %d\n", scenario->seed, (int)scenario->policy);
    for (uint32_t i = 0; i < scenario->containers; i++) {
        const struct container *container = &scenario->container[i];
        if (container->left_out) continue;
        const struct cot_request *request = &container->request;
        printf("container %u: share %u limit %u weight %u%s cap %u ppm, GPUs %u-%u, from %lu ms, lengths", i,
               request->share_ppm, request->limit_ppm, request->weight, request->high ? " high" : "",
               request->high_cap_ppm, container->first_gpu, container->first_gpu + container->gpus - 1,
               container->join_ns / MS);
        for (uint32_t k = 0; k < MOST_KINDS; k++) printf(" %lu", container->length_ns[k] / US);
        printf(" us\n");
    }
    for (uint32_t i = 0; i < scenario->ranks; i++) {
        static const char *const roles[] = {"", " busy", " endless"};
        const struct rank *rank = &scenario->rank[i];
        const struct container *container = &scenario->container[rank->container];
        if (container->left_out) continue;
        printf("process %u: of container %u, GPU %u, width %u%s\n", i, rank->container,
               container->first_gpu + rank->index % container->gpus, rank->width, roles[rank->role]);
    }
    if (scenario->agent_stops_ns)
        printf("agent %s: at %lu us for %lu us\n", scenario->agent_restarts ? "restarts" : "stops",
               scenario->agent_stops_ns / US, scenario->agent_away_ns / US);
    if (scenario->share_changes_ns)
        printf("share of container 0: at %lu us %u ppm\n", scenario->share_changes_ns / US, scenario->new_share_ppm);
    for (uint32_t i = 0; i < scenario->actions; i++) {
        if (!scenario->action[i].left_out) print_action(&scenario->action[i]);
    }
}
