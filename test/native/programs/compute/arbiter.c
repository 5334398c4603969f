/* Test cases for the arbiter and the gate: which container gets the GPU when, and for how long. `arbiter NAME` runs
 * one; `arbiter policy POLICY INSTANCES REQUEST...` prints the shares that a policy gives to requests. */
#include "arbiter.h"

/* ---- one GPU ---- */

/* Rule 1: of a launch whose length is not known, one is under way. */
static void probe_case(void) {
    struct container *one = add(1, soft);
    struct cot_launch launch;
    CHECK(!ask(one, 0, 7, &launch));
    decide();
    struct cot_batch batch = go(one, 0, 7);
    CHECK(!ask(one, 0, 7, &launch));
    uint64_t begun = now;
    now += 200 * US;
    end(one, 0, &batch, begun);
    go(one, 0, 7);
    go(one, 0, 7);
}

static struct cot_launch admitted(struct container *of, const struct cot_launch_kind *kind) {
    struct cot_launch launch;
    CHECK(cot_gate_admit(&of->gates[0], kind, now, NULL, &launch).go);
    return launch;
}

static void made(struct container *of, const struct cot_launch *launch, uint64_t length) {
    struct cot_batch batch = {0};
    uint64_t begun = now;
    cot_batch_add(&of->gates[0], &batch, launch, now);
    now += length;
    end(of, 0, &batch, begun);
    decide();
}

/* A kind that was not measured counts as its family, or as all launches; only if neither is known does it as a probe.
 */
static void kinds_case(void) {
    struct container *one = add(1, soft);
    struct cot_launch launch;
    ask(one, 0, 1, &launch);
    decide();
    struct cot_launch_kind kind = {.key = 11, .family = 10, .blocks = 100};
    launch = admitted(one, &kind);
    CHECK(launch.probe);
    made(one, &launch, 100 * US);
    struct cot_launch_kind other = {.key = 21, .family = 20, .blocks = 100};
    launch = admitted(one, &other);
    CHECK(!launch.probe && launch.unknown && launch.predicted_ns == 100 * US);
    made(one, &launch, 1000 * US);
    /* A larger grid of a known function, once and again before it was measured. */
    kind = (struct cot_launch_kind){.key = 13, .family = 10, .blocks = 300};
    launch = admitted(one, &kind);
    CHECK(launch.unknown && launch.predicted_ns == 100 * US);
    struct cot_batch batch = {0};
    cot_batch_add(&one->gates[0], &batch, &launch, now);
    struct cot_launch again = admitted(one, &kind);
    CHECK(again.unknown && again.predicted_ns == 300 * US);
    cot_gate_undo(&one->gates[0], &again);
    /* An unknown function, again and again before it was measured. */
    struct cot_launch_kind newest = {.key = 31, .family = 30, .blocks = 1};
    launch = admitted(one, &newest);
    CHECK(!launch.probe);
    cot_batch_add(&one->gates[0], &batch, &launch, now);
    again = admitted(one, &newest);
    CHECK(again.probe);
    CHECK(!cot_gate_admit(&one->gates[0], &newest, now, NULL, &launch).go);
    cot_gate_undo(&one->gates[0], &again);
    uint64_t begun = now;
    now += 1 * MS;
    end(one, 0, &batch, begun);
    decide();
    /* More kinds than there are places: what is launched again and again stays known. */
    kind = (struct cot_launch_kind){.key = 11, .family = 10, .blocks = 100};
    for (uint64_t key = 0; key < 8ull * COT_GATE_KINDS; key++) {
        struct cot_launch_kind fresh = {.key = 2 * key * 0x9e3779b97f4a7c15ull + 1, .family = 10, .blocks = 100};
        launch = admitted(one, &fresh);
        CHECK(!launch.probe);
        made(one, &launch, 100 * US);
        launch = admitted(one, &kind);
        CHECK(!launch.unknown);
        made(one, &launch, 100 * US);
        now += 1 * MS;
        decide();
    }
}

/* Rule 2: alone, too, no more than a quantum of predicted work is under way. */
static void depth_case(void) {
    struct container *one = add(1, soft);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    run(one, 0, 7, 1 * MS);
    uint32_t launches = 0;
    while (ask(one, 0, 7, &launch)) CHECK(++launches < 100);
    CHECK(launches == cot_default_tuning.quantum_ns / MS);
}

/* Rule 3: the time at which the arbiter asked to be called again is not binding. */
static void wake_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    decide();
    CHECK(decision.next_ns >= now + 5 * MS);
    struct cot_launch launch;
    now += 10 * US;
    ask(two, 0, 7, &launch);
    decide();
    CHECK(granted(two, 0));
    struct cot_batch batch = go(two, 0, 7);
    ask(one, 0, 7, &launch);
    uint64_t begun = now;
    now += 30 * MS;
    decide();
    CHECK(!granted(one, 0) && !granted(two, 0));
    now += 10 * US;
    end(two, 0, &batch, begun);
    decide();
    CHECK(granted(one, 0));
}

/* Rule 4: a container that waits for a peer's long launch keeps what it is owed for that time. */
static void credit_case(void) {
    struct container *one = add(1, half), *two = add(1, half);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    now += 10 * MS;
    decide();
    run_on(one, 0, 7, 100 * MS); /* so long they are */
    for (int i = 0; i < 250; i++) {
        now += 1 * MS;
        decide();
    }
    struct cot_batch batch = go(one, 0, 7);
    uint64_t begun = now;
    ask(two, 0, 8, &launch);
    for (int i = 0; i < 100; i++) {
        now += 1 * MS;
        decide();
    }
    CHECK(!granted(two, 0));
    end(one, 0, &batch, begun);
    decide();
    CHECK(granted(two, 0));
    CHECK(arbiter.gpus[0].members[two->member[0]].credit_ns > (int64_t)(45 * MS));
}

/* Rule 5: one that pauses for a moment is waited for, if it is owed the GPU and the other's launches are long; and one
 * that slept is not owed what it did not want. */
static void anticipation_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    struct cot_launch launch;
    ask(two, 0, 8, &launch);
    decide();
    run(two, 0, 8, 20 * MS);
    ask(one, 0, 7, &launch);
    decide();
    CHECK(granted(one, 0));
    ask(two, 0, 8, &launch);
    run_on(one, 0, 7, 1 * MS);
    now += 400 * US;
    decide();
    CHECK(!granted(two, 0));
    now += 200 * US;
    ask(one, 0, 7, &launch);
    decide();
    run_on(one, 0, 7, 1 * MS);
    now += 400 * US;
    decide();
    now += 400 * US;
    decide();
    CHECK(!granted(two, 0));
    now += 2 * MS;
    decide();
    CHECK(granted(two, 0));
    uint64_t before = arbiter.gpus[0].members[one->member[0]].virtual_ns;
    for (int i = 0; i < 50; i++) run_on(two, 0, 8, 20 * MS);
    ask(one, 0, 7, &launch);
    decide();
    const struct cot_gpu *gpu = &arbiter.gpus[0];
    uint64_t after = gpu->members[one->member[0]].virtual_ns;
    CHECK(after > before && gpu->virtual_ns - after <= 2 * cot_default_tuning.quantum_ns);
}

/* A holder without work loses the GPU to any container that wants it, and keeps it otherwise. */
static void idle_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    run_on(one, 0, 7, 100 * US);
    for (int i = 0; i < 50; i++) {
        now += 1 * MS;
        decide();
    }
    CHECK(granted(one, 0));
    now += cot_default_tuning.idle_ns;
    ask(two, 0, 8, &launch);
    decide();
    CHECK(granted(two, 0) && !granted(one, 0));
}

/* A holder that neither ends its work nor says anything is passed by, pays for the wait, and delays no other after.
 */
static void overrun_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    go(one, 0, 7);
    ask(two, 0, 8, &launch);
    uint64_t asked = now;
    while (!granted(two, 0)) {
        now += 1 * MS;
        decide();
        CHECK(now - asked < 100 * MS);
    }
    const struct cot_member *member = &arbiter.gpus[0].members[one->member[0]];
    CHECK(member->overruns == 1 && member->undrained);
    CHECK(member->charged_ns > 40 * MS);
    struct cot_batch batch = go(two, 0, 8);
    decide();
    uint64_t begun = now;
    now += 1 * MS;
    end(two, 0, &batch, begun);
    decide();
    uint64_t contended = arbiter.gpus[0].members[two->member[0]].contended_ns;
    CHECK(contended > 400 * US && contended < 600 * US); /* half of its millisecond was the other's */
}

/* High may launch behind what is under way at once, others queue little beside it, and neither pays for the other. */
static void high_case(void) {
    struct container *one = add(1, soft), *two = add(1, high);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    run(one, 0, 7, 200 * US);
    struct cot_batch batches[16];
    uint32_t launches = 0;
    while (launches < 16 && ask(one, 0, 7, &launch)) {
        batches[launches] = (struct cot_batch){0};
        cot_batch_add(&one->gates[0], &batches[launches++], &launch, now);
    }
    CHECK(launches == 2);
    ask(two, 0, 8, &launch);
    decide();
    CHECK(!granted(one, 0) && granted(two, 0));
    const struct cot_member *first = &arbiter.gpus[0].members[one->member[0]];
    const struct cot_member *second = &arbiter.gpus[0].members[two->member[0]];
    uint64_t paid = first->charged_ns, asked = now;
    CHECK(ask(two, 0, 8, &launch));
    struct cot_batch behind = {0};
    cot_batch_add(&two->gates[0], &behind, &launch, now);
    decide();
    for (uint32_t i = 0; i < launches; i++) {
        uint64_t begun = now;
        now += 200 * US;
        end(one, 0, &batches[i], begun);
        decide();
    }
    CHECK(!granted(one, 0) && granted(two, 0));
    CHECK(first->charged_ns - paid == 200 * US * launches);
    CHECK(first->overruns == 0);
    now += 300 * US;
    end(two, 0, &behind, asked); /* as events tell it: it waited on the GPU */
    decide();
    CHECK(second->charged_ns == 300 * US);
    for (int i = 0; i < 20; i++) {
        ask(one, 0, 7, &launch);
        run(two, 0, 8, 5 * MS);
        decide();
        CHECK(granted(two, 0) && !granted(one, 0));
    }
}

/* ---- several GPUs ---- */

/* Two containers with two GPUs each whose launches on both GPUs need one another, started from opposite ends: both
 * get both GPUs, in turns, and none is passed over. */
static void gang_case(void) {
    struct container *pair[] = {add(2, soft), add(2, soft)}, *single = add(1, soft);
    struct cot_batch alone = {0};
    uint64_t alone_begun = 0, alone_done = 0;
    struct cot_launch launch;
    uint32_t done[2] = {0};
    struct cot_batch batch[2][2];
    bool up[2][2] = {{false}};
    uint64_t began = now;
    while (done[0] < 50 || done[1] < 50) {
        now += 100 * US;
        CHECK(now - began < 4000 * MS);
        if (!alone_begun && ask(single, 0, 9, &launch)) {
            alone = (struct cot_batch){0};
            cot_batch_add(&single->gates[0], &alone, &launch, now);
            alone_begun = now;
        }
        CHECK(!alone_begun || (!up[0][0] && !up[1][0]));
        if (alone_begun && now - alone_begun >= 1 * MS) {
            end(single, 0, &alone, alone_begun);
            alone_begun = 0;
            alone_done++;
        }
        for (uint32_t i = 0; i < 2; i++) {
            for (uint32_t k = 0; k < 2; k++) {
                uint32_t gpu = (i + k) % 2; /* the second one begins with the second GPU */
                if (up[i][gpu] || (k == 1 && !up[i][i])) continue;
                if (!ask(pair[i], gpu, 7 + gpu, &launch)) continue;
                batch[i][gpu] = (struct cot_batch){0};
                cot_batch_add(&pair[i]->gates[gpu], &batch[i][gpu], &launch, now);
                up[i][gpu] = true;
                CHECK(gpu == 1 || !alone_begun);
            }
            if (!up[i][0] || !up[i][1]) continue; /* either half waits for the other on its GPU */
            CHECK(!up[1 - i][0] && !up[1 - i][1]);
            uint64_t begun = now;
            now += 1 * MS;
            for (uint32_t gpu = 0; gpu < 2; gpu++) {
                end(pair[i], gpu, &batch[i][gpu], begun);
                up[i][gpu] = false;
            }
            done[i]++;
        }
        decide();
    }
    CHECK(alone_done > 20);
    for (uint32_t gpu = 0; gpu < 2; gpu++) {
        for (uint32_t i = 0; i < 2; i++) CHECK(arbiter.gpus[gpu].members[pair[i]->member[gpu]].overruns == 0);
    }
}

/* A turn that ends between two launches that belong together lets the second one follow, and no more. */
static void catch_up_case(void) {
    struct container *one = add(2, soft), *two = add(2, soft);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    CHECK(granted(one, 0) && granted(one, 1));
    run(one, 0, 7, 1 * MS);
    run(one, 1, 8, 1 * MS);
    struct cot_batch first = go(one, 0, 7);
    ask(two, 0, 9, &launch);
    decide();
    now += 15 * MS;
    decide();
    CHECK(!granted(one, 0) && !granted(one, 1));
    struct cot_batch second = go(one, 1, 8);
    CHECK(!ask(one, 1, 8, &launch));
    CHECK(!ask(one, 0, 7, &launch));
    uint64_t begun = now;
    now += 1 * MS;
    end(one, 0, &first, begun);
    end(one, 1, &second, begun);
    decide();
    CHECK(granted(two, 0) && granted(two, 1));
}

static void policy_case(int argc, char **argv) {
    struct cot_request requests[MOST] = {{0}};
    struct cot_share shares[MOST];
    uint32_t many = 0;
    for (int i = 4; i < argc && many < MOST; i++, many++) {
        unsigned percent, limit, weight, is_high, cap, policy = (unsigned)atoi(argv[2]);
        if (sscanf(argv[i], "%u:%u:%u:%u:%u:%u", &percent, &limit, &weight, &is_high, &cap, &policy) < 5) exit(2);
        requests[many] =
            (struct cot_request){(enum cot_policy)policy, percent * 10000, limit * 10000, weight, is_high, cap * 10000};
    }
    cot_policy_shares((uint32_t)atoi(argv[3]), requests, many, shares);
    for (uint32_t i = 0; i < many; i++) {
        printf("%u-%u%s%s\n", shares[i].guarantee_ppm / 100, shares[i].limit_ppm / 100, shares[i].high ? " high" : "",
               shares[i].native ? " native" : "");
    }
}

int main(int argc, char **argv) {
    static const struct named_case cases[] = {
        {"probe", probe_case},    {"kinds", kinds_case},       {"depth", depth_case},
        {"wake", wake_case},      {"credit", credit_case},     {"anticipation", anticipation_case},
        {"idle", idle_case},      {"overrun", overrun_case},   {"high", high_case},
        {"multi_gpu", gang_case}, {"catch-up", catch_up_case},
    };
    if (argc > 3 && !strcmp(argv[1], "policy")) {
        policy_case(argc, argv);
        return 0;
    }
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
