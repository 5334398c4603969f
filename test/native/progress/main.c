/* Runs scenarios of a range of seeds, each in processes of its own: without a gate, then with one. Of the first one in
 * which a launch waits for longer than its share explains, what is not needed for that is left out, and the rest is
 * printed.
 *
 *   progress FIRST COUNT PERCENT   PERCENT: of what the share explains, at which a wait fails
 *   progress job FIRST COUNT PERCENT [MS]   of one job over three containers, with shares of PERCENT each: which end in
 *                                           20 s; MS: its kernels take so long, and it 200 s
 *
 * Prints one JSON object at the end; `beyond`: scenarios with a wait beyond 100 percent. Exits 1 if one failed. A run
 * whose virtual time stands still ends by itself, and says its seed and state (test/bench/compute/lab/still.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "progress.h"

#define MOST_SECONDS 10 /* of processor time, for one run */

static struct outcome *shared;

static int run(const struct scenario *scenario, const struct law *law, bool quiet) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        struct rlimit most = {MOST_SECONDS, MOST_SECONDS};
        setrlimit(RLIMIT_CPU, &most);
        if (quiet && !freopen("/dev/null", "w", stdout)) _exit(CRASHED);
        lab.seed = scenario->seed;
        watch_time();
        int code = scenario_run(scenario, law, shared);
        fflush(stdout);
        _exit(code);
    }
    int status;
    if (waitpid(child, &status, 0) != child) abort();
    return WIFEXITED(status) ? WEXITSTATUS(status) : CRASHED;
}

static bool fails(const struct scenario *scenario) {
    int code = run(scenario, &cotenant_law, true);
    return code == STOOD_STILL || code == CRASHED;
}

static bool try_without(struct scenario *scenario, bool *left_out) {
    if (*left_out) return false;
    *left_out = true;
    if (fails(scenario)) return true;
    *left_out = false;
    return false;
}

/* Leaves out halves, quarters ... of the actions. */
static bool drop_actions(struct scenario *scenario) {
    bool dropped = false;
    for (uint32_t size = scenario->actions; size > 0; size /= 2) {
        for (uint32_t from = 0; from < scenario->actions; from += size) {
            struct scenario without = *scenario;
            bool any = false;
            for (uint32_t i = from; i < from + size && i < scenario->actions; i++) {
                any |= !without.action[i].left_out;
                without.action[i].left_out = true;
            }
            if (!any || !fails(&without)) continue;
            *scenario = without;
            dropped = true;
        }
    }
    return dropped;
}

static void shrink(struct scenario *scenario) {
    bool smaller = true;
    while (smaller) {
        smaller = drop_actions(scenario);
        for (uint32_t i = 0; i < scenario->containers; i++)
            smaller |= try_without(scenario, &scenario->container[i].left_out);
        struct scenario without = *scenario;
        without.agent_stops_ns = without.share_changes_ns = 0;
        if ((scenario->agent_stops_ns || scenario->share_changes_ns) && fails(&without)) {
            *scenario = without;
            smaller = true;
        }
        for (uint32_t i = 0; i < scenario->actions; i++) {
            struct action *action = &scenario->action[i];
            uint32_t launches = action->launches;
            if (action->left_out || launches < 2) continue;
            action->launches = launches / 2;
            if (fails(scenario)) smaller = true;
            else action->launches = launches;
        }
    }
}

struct totals {
    uint64_t failed, beyond, unfinished, waits, longest_percent;
};

static void judge(struct scenario *scenario, struct totals *totals) {
    int bare = run(scenario, &native_law, true);
    if (bare != ENDED && bare != TOOK_LONG) {
        printf("seed %lu does not end without a gate\n", scenario->seed);
        totals->failed++;
    }
    if (bare != ENDED) return;
    int code = run(scenario, &cotenant_law, true);
    uint64_t part = shared->longest_ns * 100 / (shared->allowed_ns | 1);
    totals->waits += shared->waits;
    totals->unfinished += code == TOOK_LONG;
    totals->beyond += part > 100;
    if (part > totals->longest_percent) totals->longest_percent = part;
    if (code == ENDED || code == TOOK_LONG) return;
    if (totals->failed++ || code == STANDS_STILL) {
        printf("seed %lu failed\n", scenario->seed);
        return;
    }
    shrink(scenario);
    run(scenario, &cotenant_law, false);
    scenario_print(scenario);
}

/* How long a wait may be is not judged: what the job's kernels wait for one another counts as use. */
static int run_jobs(uint64_t first, uint64_t count, uint32_t percent, uint64_t each_ns) {
    static struct scenario scenario;
    uint64_t bare = 0, ended = 0, failed = 0;
    for (uint64_t seed = first; seed < first + count; seed++) {
        scenario_make_job(&scenario, seed, percent, each_ns);
        bare += run(&scenario, &native_law, true) == ENDED;
        int code = run(&scenario, &cotenant_law, true);
        ended += code == ENDED;
        if (code != CRASHED && code != STANDS_STILL) continue;
        printf("seed %lu failed\n", seed);
        failed++;
    }
    printf("{\"scenarios\":%lu,\"ended_without_gate\":%lu,\"ended\":%lu}\n", count, bare, ended);
    return failed ? 1 : 0;
}

int main(int argc, char **argv) {
    bool jobs = (argc == 5 || argc == 6) && strcmp(argv[1], "job") == 0;
    if (argc != 4 && !jobs) {
        fprintf(stderr, "progress [job] FIRST COUNT PERCENT [MS]\n");
        return 2;
    }
    argv += jobs;
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    struct totals totals = {0};
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) abort();
    shared->percent = jobs ? UINT64_MAX / SECOND_NS / 1000 : strtoull(argv[3], NULL, 10);
    uint64_t each_ns = argc == 6 ? strtoull(argv[4], NULL, 10) * MS : 0;
    shared->longest_run_ns = (each_ns ? 200 : 20) * SECOND_NS;
    if (jobs) return run_jobs(first, count, (uint32_t)strtoull(argv[3], NULL, 10), each_ns);
    static struct scenario scenario;
    for (uint64_t seed = first; seed < first + count; seed++) {
        scenario_make(&scenario, seed);
        judge(&scenario, &totals);
    }
    printf(
        "{\"scenarios\":%lu,\"failed\":%lu,\"beyond\":%lu,\"unfinished\":%lu,\"waits\":%lu,\"longest_percent\":%lu}\n",
        count, totals.failed, totals.beyond, totals.unfinished, totals.waits, totals.longest_percent);
    return totals.failed ? 1 : 0;
}
