/* One run of the laboratory. Words, in any order:
 *
 *   law=native|cotenant|count_bucket|event_bucket  seconds=N  seed=N  policy=0..5  instances=N
 *   quantum_us= depth_us= high_depth_us= credit_longest= anticipation_us= loan_us= unknown_us= swallow=1   (the law's)
 *   tenant=KEY:VALUE,...   form:async|sync|graph|cooperative|streams|bursty|requests|collective  kernel_us work_us (of
 * a kernel before each collective) nodes gap_us burst spread:lognormal|fixed|bimodal  percent limit weight high cap
 * load active_ms pause_ms processes join_ms scribbles holds forges kinds gpu gpus job (a number; each process is a
 * rank) set=MS:TENANT:percent|weight:VALUE   stop=MS resume=MS restart=MS (of the agent)
 *
 * Prints one JSON object: per tenant the work that the GPU executed for it, in microseconds per window of 100 ms, and
 * how long it waited; with requests, how long they took. */
#include <stdio.h>
#include <stdlib.h>

#include "lab.h"

struct lab lab;

static void fail(const char *what, const char *argument) {
    fprintf(stderr, "lab: %s: %s\n", what, argument);
    exit(2);
}

static uint64_t number(const char *text) {
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text) fail("not a number", text);
    return value;
}

/* The place of `name` in a list that ends with NULL. */
static uint32_t choice(const char *const *names, const char *name) {
    for (uint32_t i = 0; names[i]; i++) {
        if (!strcmp(names[i], name)) return i;
    }
    fail("not known", name);
    return 0;
}

static const char *const FORMS[] = {"async",  "sync",     "graph",      "cooperative", "streams",
                                    "bursty", "requests", "collective", NULL};
static const char *const SPREADS[] = {"lognormal", "fixed", "bimodal", NULL};

static void set_tenant(struct tenant *tenant, const char *key, const char *value) {
    if (!strcmp(key, "form")) tenant->form = choice(FORMS, value);
    else if (!strcmp(key, "spread")) tenant->spread = choice(SPREADS, value);
    else if (!strcmp(key, "kernel_us")) tenant->kernel_ns = number(value) * US;
    else if (!strcmp(key, "nodes")) tenant->nodes = (uint32_t)number(value);
    else if (!strcmp(key, "work_us")) tenant->work_ns = number(value) * US;
    else if (!strcmp(key, "gap_us")) tenant->gap_ns = number(value) * US;
    else if (!strcmp(key, "burst")) tenant->burst = (uint32_t)number(value);
    else if (!strcmp(key, "percent")) tenant->request.share_ppm = (uint32_t)number(value) * 10000;
    else if (!strcmp(key, "limit")) tenant->request.limit_ppm = (uint32_t)number(value) * 10000;
    else if (!strcmp(key, "weight")) tenant->request.weight = (uint32_t)number(value);
    else if (!strcmp(key, "high")) tenant->request.high = number(value);
    else if (!strcmp(key, "cap")) tenant->request.high_cap_ppm = (uint32_t)number(value) * 10000;
    else if (!strcmp(key, "load")) tenant->load_percent = (uint32_t)number(value);
    else if (!strcmp(key, "active_ms")) tenant->active_ns = number(value) * MS;
    else if (!strcmp(key, "pause_ms")) tenant->pause_ns = number(value) * MS;
    else if (!strcmp(key, "processes")) tenant->processes = (uint32_t)number(value);
    else if (!strcmp(key, "join_ms")) tenant->join_ns = number(value) * MS;
    else if (!strcmp(key, "gpu")) tenant->first_gpu = (uint32_t)number(value);
    else if (!strcmp(key, "gpus")) tenant->gpus = (uint32_t)number(value);
    else if (!strcmp(key, "job")) tenant->job = &lab.jobs[number(value) % MAX_JOBS];
    else if (!strcmp(key, "kinds")) tenant->kinds = number(value);
    else if (!strcmp(key, "scribbles")) tenant->scribbles = number(value);
    else if (!strcmp(key, "holds")) tenant->holds = (uint32_t)number(value);
    else if (!strcmp(key, "forges")) tenant->forges = (uint32_t)number(value);
    else fail("a tenant has no", key);
}

static void add_tenant(char *words) {
    if (lab.count == MAX_TENANTS) fail("too many tenants at", words);
    struct tenant *tenant = &lab.tenants[lab.count];
    *tenant =
        (struct tenant){.kernel_ns = 200 * US, .nodes = 1, .processes = 1, .load_percent = 30, .kinds = 1, .gpus = 1};
    tenant->index = lab.count++;
    char *save;
    for (char *argument = strtok_r(words, ",", &save); argument; argument = strtok_r(NULL, ",", &save)) {
        char *colon = strchr(argument, ':');
        if (!colon) fail("no value", argument);
        *colon = 0;
        set_tenant(tenant, argument, colon + 1);
    }
    if (tenant->form == FORM_SYNC) tenant->burst = 1;
    if (tenant->form == FORM_BURSTY && !tenant->burst) tenant->burst = 100;
    if (tenant->form == FORM_BURSTY && !tenant->gap_ns) tenant->gap_ns = 500 * US;
    if (tenant->form == FORM_REQUESTS) {
        if (!tenant->burst) tenant->burst = 20;
        tenant->log.latency_ns = calloc(1u << 20, sizeof *tenant->log.latency_ns);
    }
    if (tenant->processes < tenant->gpus) tenant->processes = tenant->gpus;
    if (tenant->processes > MAX_PROCESSES) fail("too many processes", "processes");
    if (tenant->first_gpu + tenant->gpus > MAX_GPUS) fail("too many GPUs", "gpus");
    if (tenant->form == FORM_COLLECTIVE) {
        if (!tenant->job) tenant->job = &lab.jobs[0];
        tenant->job->ranks += tenant->processes;
        if (!tenant->burst) tenant->burst = 1;
    }
}

/* ---- what happens at a time ---- */

static void join(void *about, uint64_t unused) {
    (void)unused;
    struct tenant *tenant = about;
    for (uint32_t i = 0; i < tenant->processes; i++) {
        struct program *program = &tenant->programs[i];
        program->tenant = tenant;
        program->index = i;
        program->gpu = &lab.gpus[tenant->first_gpu + i % tenant->gpus];
        gpu_add(program->gpu, &program->context, lab.end_ns / WINDOW_NS + 1);
        lab.law->join(program);
        program_start(program);
    }
}

static void command(void *about, uint64_t unused) {
    (void)unused;
    char *text = about, *save, *what = strtok_r(text, "=", &save);
    if (!strcmp(what, "stop")) agent_stop();
    else if (!strcmp(what, "resume")) agent_resume();
    else if (!strcmp(what, "restart")) agent_restart();
    else {
        char *words[4];
        for (uint32_t i = 0; i < 4; i++) {
            words[i] = strtok_r(NULL, ":", &save);
            if (!words[i]) fail("set=MS:TENANT:KEY:VALUE", what);
        }
        struct tenant *tenant = &lab.tenants[number(words[1])];
        struct tenant changed = *tenant;
        set_tenant(&changed, words[2], words[3]);
        if (lab.law == &cotenant_law) agent_set(tenant->index, &changed.request);
        else tenant->request = changed.request;
    }
}

static void read_argument(char *argument) {
    char *value = strchr(argument, '=');
    if (!value) fail("not KEY=VALUE", argument);
    value++;
    static const struct law *const laws[] = {&native_law, &cotenant_law, &count_bucket_law, &event_bucket_law};
    static const char *const names[] = {"native", "cotenant", "count_bucket", "event_bucket", NULL};
    const struct {
        const char *key;
        uint64_t *to;
        uint64_t unit;
    } numbers[] = {
        {"seconds=", &lab.end_ns, SECOND_NS},
        {"seed=", &lab.seed, 1},
        {"quantum_us=", &lab.tuning.quantum_ns, US},
        {"depth_us=", &lab.tuning.depth_ns, US},
        {"high_depth_us=", &lab.tuning.high_depth_ns, US},
        {"anticipation_us=", &lab.tuning.anticipation_ns, US},
        {"loan_us=", &lab.tuning.lend_ns, US},
        {"unknown_us=", &lab.gate.unknown_ns, US},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strncmp(argument, numbers[i].key, strlen(numbers[i].key)) != 0) continue;
        *numbers[i].to = number(value) * numbers[i].unit;
        return;
    }
    if (!strncmp(argument, "law=", 4)) lab.law = laws[choice(names, value)];
    else if (!strncmp(argument, "policy=", 7)) lab.policy = (enum cot_policy)number(value);
    else if (!strncmp(argument, "instances=", 10)) lab.instances = (uint32_t)number(value);
    else if (!strncmp(argument, "credit_longest=", 15)) lab.tuning.credit_longest = (uint32_t)number(value);
    else if (!strncmp(argument, "swallow=", 8)) lab.swallow = number(value);
    else if (!strncmp(argument, "tenant=", 7)) add_tenant(value);
    else if (!strncmp(argument, "set=", 4) || !strncmp(argument, "stop=", 5) || !strncmp(argument, "resume=", 7) ||
             !strncmp(argument, "restart=", 8))
        at(number(value) * MS, command, argument, 0);
    else fail("not known", argument);
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void print_windows(const struct tenant *tenant, const char *name, bool active) {
    printf("\"%s\":[", name);
    for (uint64_t window = 0; window < lab.end_ns / WINDOW_NS; window++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < tenant->processes; i++) {
            const struct context *context = &tenant->programs[i].context;
            if (context->work_ns) sum += active ? context->active_ns[window] : context->work_ns[window];
        }
        printf("%s%lu", window ? "," : "", sum / US);
    }
    printf("]");
}

static void print_tenant(struct tenant *tenant) {
    printf("{");
    if (lab.law == &cotenant_law && tenant->joined) agent_print(tenant->index);
    printf("\"longest_wait_us\":%lu,\"waits\":%lu,\"waited_us\":%lu,", tenant->longest_wait_ns / US, tenant->waits,
           tenant->waited_ns / US);
    struct request_log *log = &tenant->log;
    if (log->count) {
        qsort(log->latency_ns, log->count, sizeof *log->latency_ns, by_size);
        printf("\"requests\":%u,\"p50_us\":%lu,\"p99_us\":%lu,\"max_us\":%lu,", log->count,
               log->latency_ns[log->count / 2] / US, log->latency_ns[(uint64_t)log->count * 99 / 100] / US,
               log->latency_ns[log->count - 1] / US);
    }
    if (tenant->job) printf("\"steps\":%lu,", tenant->job->step);
    print_windows(tenant, "work_us", false);
    printf(",");
    print_windows(tenant, "active_us", true);
    printf("}");
}

int main(int argc, char **argv) {
    lab = (struct lab){
        .law = &cotenant_law,
        .seed = 1,
        .policy = COT_POLICY_FIXED,
        .instances = 20,
        .tuning = cot_default_tuning,
        .gate = cot_default_gate,
        .end_ns = 12 * SECOND_NS,
    };
    for (int i = 1; i < argc; i++) read_argument(argv[i]);
    if (lab.law == &cotenant_law) agent_start();
    for (uint32_t i = 0; i < lab.count; i++) at(lab.tenants[i].join_ns, join, &lab.tenants[i], 0);
    watch_time();
    run_until(lab.end_ns);
    uint64_t switched = 0;
    for (uint32_t i = 0; i < MAX_GPUS; i++) {
        gpu_advance(&lab.gpus[i]);
        switched += lab.gpus[i].switched;
    }
    printf("{\"law\":\"%s\",\"switches\":%lu,\"tenants\":[", lab.law->name, switched);
    for (uint32_t i = 0; i < lab.count; i++) {
        if (i) printf(",\n");
        print_tenant(&lab.tenants[i]);
    }
    printf("]}\n");
    return 0;
}
