/* Conducts a random program of several processes in one grant and compares ledger and GPU after each step:
 *   random_programs NODE GRANT SCRATCH SEED STEPS [--burst N LANES] [--verbs NAME,...]
 *         [--only FILE] [--say]
 * NODE is the simulated node's folder, GRANT the container's files for two GPUs, SCRATCH a folder for this run alone.
 * In bursts all processes do N steps each at once, in LANES threads, while some are killed; the comparison is made
 * between bursts. With --verbs, processes do only these steps by themselves; with --only, only the steps that the file
 * names; --say prints each step. One line of JSON at the end; exit 1 if something was wrong. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../native/shared-memory/limits_page.h"
#include "conductor.h"
static bool say;
static uint64_t now_at; /* step */
static char failed_symbols[256][64];
static unsigned failed_symbol_count;

/* ---- ledger and GPU compared ---- */

static void account(void) {
    struct subject subjects[PROCESSES];
    for (unsigned i = 0; i < PROCESSES; i++)
        subjects[i] = (struct subject){processes[i].pid, processes[i].stale, processes[i].unsure};
    run.counts.checks++;
    const char *text = check_read() ? check_all(subjects, PROCESSES) : "the usage on the GPUs cannot be read";
    if (text) fail(text);
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        uint64_t charged = check_charged(gpu, 0);
        run.shared->left[gpu] = charged < run.shared->grant[gpu] ? run.shared->grant[gpu] - charged : 0;
    }
    if (atomic_load(&run.shared->wrong_forks)) fail("a forked child had CUDA");
}

static void judge(const struct step *step, struct process *process, const struct answer *answer) {
    char text[400];
    bool restore = answer->refused && process->away && answer->away;
    if (answer->refused && (!answer->unjudged || restore)) {
        bool right = false;
        uint64_t charged[GPUS], need[GPUS];
        for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
            charged[gpu] = check_charged(gpu, 0);
            need[gpu] = restore ? process->saved[gpu] : answer->need[gpu];
            right = right || (need[gpu] && charged[gpu] + check_exported(gpu) + need[gpu] > run.shared->grant[gpu]);
        }
        if (!right) {
            snprintf(text, sizeof text, "refused although it fits: %s of %llu, %llu beside %llu, %llu",
                     verb_name(step->verb), (unsigned long long)need[0], (unsigned long long)need[1],
                     (unsigned long long)charged[0], (unsigned long long)charged[1]);
            fail(text);
        }
    }
    if (answer->informed) {
        uint64_t total = run.shared->grant[answer->gpu], left = total - check_charged(answer->gpu, 0);
        bool stale = false;
        for (unsigned i = 0; i < PROCESSES; i++) stale = stale || processes[i].stale || processes[i].unsure;
        if (answer->total_bytes != total || answer->free_bytes > left ||
            (!stale && answer->free_bytes + check_exported(answer->gpu) < left)) {
            snprintf(text, sizeof text, "cuMemGetInfo reports %llu of %llu free on GPU %u, not %llu of %llu",
                     (unsigned long long)answer->free_bytes, (unsigned long long)answer->total_bytes, answer->gpu,
                     (unsigned long long)left, (unsigned long long)total);
            fail(text);
        }
    }
}

static void note_failure(const char *symbol) {
    run.counts.failures++;
    for (unsigned i = 0; i < failed_symbol_count; i++) {
        if (!strcmp(failed_symbols[i], symbol)) return;
    }
    if (failed_symbol_count < 256) snprintf(failed_symbols[failed_symbol_count++], 64, "%s", symbol);
}

/* ---- one step after the other ---- */

static void settle(struct process *process) {
    struct request request = {.order = DO_SETTLE};
    struct answer answer;
    if (process->away) return;
    atomic_store(&process->plan->at, 0);
    atomic_store(&process->plan->met, 0);
    if (!ask(process, &request, &answer)) {
        fail("a process ended by itself while it settled");
        return;
    }
    process->stale = answer.stale;
    process->unsure = false;
}

static void conduct(const struct step *step, struct process *process) {
    struct request request = {.order = DO_STEP, .step = *step};
    struct answer answer;
    struct process *other = &processes[(step->process + 1 + step->random[0] % (PROCESSES - 1)) % PROCESSES];
    snprintf(request.socket, sizeof request.socket, "%s", run.socket_path);
    switch (step->verb) {
    case VERB_KILL: kill_process(process); break;
    case VERB_EXIT:
        if (send(process->socket, &request, sizeof request, MSG_NOSIGNAL) < 0) fail("a process is not there");
        wait_for_end(process);
        break;
    case VERB_EXEC:
        if (send(process->socket, &request, sizeof request, MSG_NOSIGNAL) < 0) fail("a process is not there");
        close(process->pidfd);
        close(process->socket);
        process->stale = process->unsure = process->away = false;
        welcome(process);
        break;
    default: /* VERB_BEAR: in the place of another one, with this one's environment */
        kill_process(other);
        if (!ask(process, &request, &answer)) fail("a process ended by itself");
        else welcome(other);
    }
}

static void do_step(const struct step *step) {
    struct process *process = &processes[step->process];
    struct sim_plan *plan = process->plan;
    struct request request = {.order = DO_STEP, .step = *step};
    struct answer answer = {0};
    if (!process->pid) start_process(process);
    if (run.wrong) return;
    if (step->verb < VERB_FIRST) {
        if (say)
            fprintf(stderr, "%llu: process %u %s (pid %d)\n", (unsigned long long)step->number, step->process,
                    verb_name(step->verb), (int)process->pid);
        conduct(step, process);
        account();
        return;
    }
    uint64_t charged[GPUS];
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) charged[gpu] = check_charged(gpu, process->pid);
    plan->act = step->fault;
    plan->result = step->fault_result;
    atomic_store(&plan->met, 0);
    atomic_store(&plan->calls, 0);
    atomic_store(&plan->at, step->fault_at);
    bool alive = ask(process, &request, &answer);
    bool met = atomic_load(&plan->met);
    atomic_store(&plan->at, 0);
    if (!alive) {
        if (!met || plan->act != SIM_PLAN_DIE) fail("a process ended by itself");
        wait_for_end(process);
        account();
        return;
    }
    run.counts.done++;
    run.counts.refusals += answer.refusals;
    process->stale = answer.stale;
    bool failed = met && plan->act == SIM_PLAN_FAIL;
    if (failed) note_failure(plan->symbol);
    if (say)
        fprintf(stderr, "%llu: process %u %s: %d%s%s%s%s\n", (unsigned long long)step->number, step->process,
                verb_name(step->verb), answer.result, answer.refused ? " refused" : "", failed ? " failing " : "",
                failed ? plan->symbol : "", answer.away ? " away" : "");
    if (answer.away && !process->away) memcpy(process->saved, charged, sizeof charged);
    bool was_away = process->away;
    process->unsure = failed;
    account();
    if (run.wrong) return;
    process->away = was_away;
    if (!failed) judge(step, process, &answer);
    process->away = answer.away;
    if (!failed || process->away) return;
    settle(process);
    account();
}

/* ---- bursts ---- */

static void burst(uint64_t seed, uint64_t first, uint64_t each, uint32_t lanes) {
    bool asked[PROCESSES] = {false};
    uint64_t number = mix_of(seed, first, 100);
    memset(run.shared->left, 0, sizeof run.shared->left);
    run.shared->at_once = true;
    struct process *victim = number % 2 ? &processes[number / 2 % PROCESSES] : NULL;
    for (unsigned i = 0; i < PROCESSES && !run.wrong; i++) {
        struct process *process = &processes[i];
        struct request request = {.order = DO_BURST, .first = first + i * each, .count = each, .lanes = lanes};
        if (!process->pid) start_process(process);
        process->plan->act = SIM_PLAN_FAIL;
        process->plan->result = ABI_ERROR_UNKNOWN;
        atomic_store(&process->plan->met, 0);
        atomic_store(&process->plan->calls, 0);
        atomic_store(&process->plan->at, (uint32_t)(mix_of(seed, first, 101 + i) % (each * 6)));
        asked[i] = !run.wrong && send(process->socket, &request, sizeof request, MSG_NOSIGNAL) > 0;
    }
    if (victim) {
        usleep((useconds_t)(number / 64 % (each * 40)));
        kill(victim->pid, SIGKILL);
    }
    for (unsigned i = 0; i < PROCESSES; i++) {
        struct process *process = &processes[i];
        struct answer answer = {0};
        bool alive = asked[i] && hear(process, &answer) && process != victim;
        if (alive) {
            process->away = answer.away;
            run.counts.done += answer.steps;
            run.counts.refusals += answer.refusals;
            if (atomic_load(&process->plan->met)) note_failure(process->plan->symbol);
        } else {
            if (process != victim) fail("a process ended by itself");
            wait_for_end(process);
        }
    }
    for (unsigned i = 0; i < PROCESSES && !run.wrong; i++) {
        if (processes[i].pid) settle(&processes[i]);
    }
    if (!run.wrong) account();
}

/* ---- what there is to be conducted ---- */

static bool read_grant(void) {
    char path[4200];
    struct cot_limits_page page;
    snprintf(path, sizeof path, "%s/limits", run.grant);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool read_all = fd >= 0 && read(fd, &page, sizeof page) == (ssize_t)sizeof page && page.header.gpu_count == GPUS;
    if (fd >= 0) close(fd);
    for (unsigned i = 0; i < GPUS && read_all; i++) {
        run.shared->grant[i] = page.gpus[i].memory_bytes;
        run.shared->context[i] = page.gpus[i].context_bytes;
        run.shared->granule[i] = page.gpus[i].granule_bytes;
    }
    return read_all;
}

static bool prepare(uint64_t seed) {
    char path[4200];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, sizeof path, "%s/shared", run.scratch);
    run.shared = make_file(path, sizeof *run.shared);
    run.shared->seed = seed;
    for (unsigned i = 0; i < PROCESSES; i++) {
        snprintf(processes[i].plan_path, sizeof processes[i].plan_path, "%s/plan%u", run.scratch, i);
        processes[i].plan = make_file(processes[i].plan_path, sizeof *processes[i].plan);
    }
    snprintf(run.socket_path, sizeof run.socket_path, "%s/socket", run.scratch);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", run.socket_path);
    run.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (bind(run.listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(run.listener, 16) != 0)
        return false;
    signal(SIGCHLD, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return read_grant() && check_open(run.node, run.grant, getpid(), run.shared->grant);
}

/* Asked of one number after the other; the file has those that are chosen in the same order, a line each. */
static bool is_chosen(FILE *only, uint64_t number) {
    static unsigned long long next;
    static bool begun;
    while (only && (!begun || next < number)) {
        begun = true;
        if (fscanf(only, "%llu", &next) != 1) return false;
    }
    return !only || next == number;
}

static bool read_verbs(char *names, uint64_t *chosen) {
    *chosen = 0;
    for (char *name; (name = strsep(&names, ","));) {
        unsigned i = 0;
        while (i < verb_count && strcmp(verbs[i].name, name) != 0) i++;
        if (i == verb_count) return false;
        *chosen |= 1ull << i;
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--worker")) return worker_main(argc, argv);
    const char *list = NULL;
    uint64_t each = 0;
    uint32_t lanes = 1;
    uint64_t chosen = UINT64_MAX;
    if (argc < 6)
        return fputs("usage: random_programs NODE GRANT SCRATCH SEED STEPS [--burst N LANES] [--verbs NAME,...] "
                     "[--only FILE] [--say]\n",
                     stderr),
               2;
    for (int i = 6; i < argc; i++) {
        if (!strcmp(argv[i], "--say")) say = true;
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) list = argv[++i];
        else if (!strcmp(argv[i], "--verbs") && i + 1 < argc && read_verbs(argv[i + 1], &chosen)) i++;
        else if (!strcmp(argv[i], "--burst") && i + 2 < argc)
            each = strtoull(argv[++i], NULL, 10), lanes = (uint32_t)atoi(argv[++i]);
        else return 2;
    }
    run.node = argv[1];
    run.grant = argv[2];
    run.scratch = argv[3];
    uint64_t seed = strtoull(argv[4], NULL, 10);
    run.counts.steps = strtoull(argv[5], NULL, 10);
    FILE *only = NULL;
    if (lanes < 1 || lanes > LANES || !prepare(seed) || (list && !(only = fopen(list, "re"))))
        return fputs("random_programs: cannot begin\n", stderr), 2;
    run.shared->verbs = chosen;
    for (now_at = 0; now_at < run.counts.steps && !run.wrong; now_at += each ? each * PROCESSES : 1) {
        struct step step = step_of(seed, now_at);
        if (each) burst(seed, now_at, each, lanes);
        else if (is_chosen(only, now_at)) do_step(&step);
    }
    for (unsigned i = 0; i < PROCESSES; i++) kill_process(&processes[i]);
    if (only) fclose(only);
    printf("{\"wrong\":");
    if (run.wrong) printf("\"%s\",\"at\":%llu", run.wrong, (unsigned long long)now_at - (each ? each * PROCESSES : 1));
    else printf("null");
    printf(",\"failedSymbols\":[");
    for (unsigned i = 0; i < failed_symbol_count; i++) printf("%s\"%s\"", i ? "," : "", failed_symbols[i]);
    printf("],\"done\":%llu,\"refusals\":%llu,\"deaths\":%llu,\"births\":%llu,\"failures\":%llu,\"pauses\":%llu,"
           "\"checks\":%llu}\n",
           (unsigned long long)run.counts.done, (unsigned long long)run.counts.refusals,
           (unsigned long long)run.counts.deaths, (unsigned long long)run.counts.births,
           (unsigned long long)run.counts.failures, (unsigned long long)run.counts.pauses,
           (unsigned long long)run.counts.checks);
    return run.wrong ? 1 : 0;
}
