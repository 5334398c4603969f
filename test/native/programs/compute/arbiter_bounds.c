/* Test cases for waits that reach their bound, and for what containers owe that share the GPU: `arbiter_bounds NAME`
 * runs one. */
#include "arbiter.h"

static struct cot_member *member_of(const struct container *of) {
    return &arbiter.gpus[0].members[of->member[0]];
}

static void pass(uint64_t ms) {
    for (uint64_t i = 0; i < ms; i++) {
        now += 1 * MS;
        decide();
    }
}

/* A turn at the bound is there for its launch, whatever the container owes and whether others wait just then. */
static void kept_case(void) {
    struct container *one = add(1, half), *two = add(1, soft);
    struct cot_launch launch;
    decide();
    member_of(one)->credit_ns = -(int64_t)(500 * MS);
    ask(one, 0, 7, &launch);
    decide();
    CHECK(member_of(one)->bound_ns > now + 1000 * MS);
    member_of(one)->bound_ns = now + 20 * MS; /* as if its wait had begun before the debt */
    ask(two, 0, 8, &launch);
    decide();
    pass(10);
    CHECK(granted(two, 0));
    struct cot_batch batch = go(two, 0, 8);
    uint64_t begun = now;
    while (!granted(one, 0)) {
        pass(1);
        CHECK(now < member_of(one)->bound_ns + 25 * MS);
    }
    end(two, 0, &batch, begun);
    decide(); /* no other container waits */
    CHECK(granted(one, 0) && ask(one, 0, 7, &launch));
}

/* At the bound of another container's wait the holder has a quantum to drain, not the time of its prediction. */
static void drain_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    run_on(one, 0, 7, 200 * MS); /* so long they are */
    pass(300);
    go(one, 0, 7);
    ask(two, 0, 8, &launch);
    decide();
    while (now < member_of(two)->bound_ns) pass(1);
    pass(2);
    CHECK(granted(two, 0) || now - arbiter.gpus[0].closing_ns < 22 * MS);
    pass(20);
    CHECK(granted(two, 0));
}

/* The driver slices time among processes: two of a container have two thirds beside another one's. */
static void processes_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    struct cot_launch launch;
    cot_gate_attach(&one->gates[1], &cot_default_gate, one->page, SLOTS, 1, 1, 0, 99);
    ask(one, 0, 7, &launch);
    decide();
    go(one, 0, 7);
    CHECK(cot_gate_admit(&one->gates[1], &(struct cot_launch_kind){.key = 7}, now, 0, &launch).go);
    CHECK(digest_of(one, 0, NULL).busy == 2);
    ask(two, 0, 8, &launch);
    while (!granted(two, 0)) pass(1);
    go(two, 0, 8);
    decide();
    uint64_t before = member_of(one)->charged_ns;
    pass(30);
    uint64_t charged = member_of(one)->charged_ns - before;
    CHECK(charged > 19 * MS && charged < 21 * MS);
}

/* Work that shared the GPU is charged for its part of the time: the gate's limit follows what is owed, not what the
 * process reports. */
static void corrected_case(void) {
    static const struct cot_share fifth = {.guarantee_ppm = 200000, .limit_ppm = 200000};
    struct container *one = add(1, half), *two = add(1, fifth);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    go(one, 0, 7);
    decide();
    ask(two, 0, 8, &launch);
    while (!granted(two, 0)) pass(1);
    go(two, 0, 8);
    for (int i = 0; i < 200; i++) {
        two->gates[0].row->used_ns += 1 * MS; /* all of the time is reported */
        two->gates[0].row->pending_ns = 0;
        pass(1);
    }
    const struct cot_member *member = member_of(two);
    CHECK(granted(two, 0) && member->credit_ns < 0);
    const struct cot_lease_terms *terms = &member->terms;
    int64_t left =
        (int64_t)(cot_lease_limit_at(terms->limit_ns, terms->at_ns, terms->rate_ppm, now) - member->digest.used_ns);
    if (terms->at_ns > now) left -= (int64_t)(terms->at_ns - now) / 5;
    CHECK(left - member->credit_ns < (int64_t)(3 * MS) && member->credit_ns - left < (int64_t)(3 * MS));
}

static void wait_and_run(struct container *of, uint64_t length) {
    struct cot_launch launch;
    uint64_t since = now;
    while (!ask(of, 0, 7, &launch)) {
        pass(1);
        CHECK(now - since < 100 * MS);
    }
    struct cot_batch batch = {0};
    cot_batch_add(&of->gates[0], &batch, &launch, now);
    since = now;
    pass(length / MS);
    now += length % MS;
    end(of, 0, &batch, since);
    decide();
}

/* Beside work that does not end a container is charged for half of the time that its own work takes. Its turn goes on
 * by what it was charged, although the gate has counted all of that time, and no other container waits. */
static void terms_case(void) {
    static const struct cot_share capped = {.guarantee_ppm = 500000, .limit_ppm = 800000};
    struct container *one = add(2, capped), *two = add(1, soft);
    struct cot_launch launch;
    ask(two, 0, 8, &launch);
    decide();
    go(two, 0, 8);
    for (int i = 0; i < 20; i++) wait_and_run(one, 5 * MS);
}

/* GPUs that a container holds together and does not use are no reason to decide again at once. */
static void unused_case(void) {
    struct container *one = add(2, half);
    for (int i = 0; i < 10; i++) wait_and_run(one, 200 * US);
    pass(2);
    CHECK(granted(one, 1) && decision.next_ns == now + COT_LEASE_PAGE_HEARTBEAT_NS);
}

/* A process that joins while work of another one is in flight counts from before that work: it may launch what that
 * work waits for, whatever the credit, and no more. */
static void joined_case(void) {
    struct container *one = add(1, half);
    struct cot_launch launch;
    const struct cot_launch_kind kind = {.key = 7};
    ask(one, 0, 7, &launch);
    decide();
    go(one, 0, 7);
    cot_gate_attach(&one->gates[1], &cot_default_gate, one->page, SLOTS, 1, 1, 0, 99);
    one->gates[0].shared->awaited = 1;
    one->gates[0].row->used_ns += 50 * MS;
    CHECK(cot_gate_admit(&one->gates[1], &kind, now, 0, &launch).go);
    CHECK(!cot_gate_admit(&one->gates[1], &kind, now, 0, &launch).go);
    /* One that joins work of so many launches is not known to belong to them. */
    one->gates[0].shared->made += 80;
    cot_gate_attach(&one->gates[1], &cot_default_gate, one->page, SLOTS, 1, 2, 0, 77);
    CHECK(!cot_gate_admit(&one->gates[1], &kind, now, 0, &launch).go);
}

/* A batch is closed by its launches or its length, not by their kinds; a kind that was not measured yet is measured by
 * it, however many known ones came before. */
static void batch_case(void) {
    struct container *one = add(1, half);
    struct cot_launch launch;
    struct cot_gate *gate = &one->gates[0];
    ask(one, 0, 1, &launch);
    decide();
    for (uint64_t kind = 1; kind <= 20; kind++) run(one, 0, kind, 20 * US);
    for (uint64_t kind = 1; kind <= 20; kind++) run(one, 0, kind, 20 * US);
    struct cot_batch batch = {0};
    uint64_t begun = now;
    for (uint32_t i = 0; i < COT_BATCH_LAUNCHES; i++) {
        CHECK(ask(one, 0, i == 30 ? 99 : 1 + i % 20, &launch));
        CHECK(launch.unknown == (i == 30));
        CHECK(cot_batch_add(gate, &batch, &launch, now) == (i == COT_BATCH_LAUNCHES - 1));
    }
    now += 20 * US * (COT_BATCH_LAUNCHES - 1) + 300 * US;
    end(one, 0, &batch, begun);
    decide();
    CHECK(ask(one, 0, 99, &launch));
    CHECK(!launch.unknown && launch.predicted_ns == 300 * US);
    cot_gate_undo(gate, &launch);
    for (uint64_t kind = 1; kind <= 20; kind++) {
        CHECK(ask(one, 0, kind, &launch));
        CHECK(launch.predicted_ns == 20 * US);
        cot_gate_undo(gate, &launch);
    }
    batch = (struct cot_batch){0};
    for (uint32_t i = 1; i <= COT_BATCH_KINDS; i++) {
        CHECK(ask(one, 0, 200 + i, &launch) && launch.unknown);
        CHECK(cot_batch_add(gate, &batch, &launch, now) == (i == COT_BATCH_KINDS));
    }
}

/* A container with two processes that know how long their launches take; one of the first is in flight. Later launches
 * are beyond the credit, but may follow it. */
static struct container *add_two_processes(void) {
    struct container *one = add(1, half);
    const struct cot_launch_kind kind = {.key = 7};
    struct cot_launch launch;
    cot_gate_attach(&one->gates[1], &cot_default_gate, one->page, SLOTS, 1, 1, 0, 99);
    ask(one, 0, 7, &launch);
    decide();
    for (uint32_t i = 0; i < 2; i++) {
        struct cot_batch batch = {0};
        uint64_t begun = now;
        CHECK(cot_gate_admit(&one->gates[i], &kind, now, NULL, &launch).go);
        cot_batch_add(&one->gates[i], &batch, &launch, now);
        now += 100 * US;
        cot_gate_complete(&one->gates[i], &batch, begun, now, 1, true, now);
    }
    go(one, 0, 7);
    one->gates[0].shared->awaited = 1;
    return one;
}

/* A process that was refused, and has not announced its wait or does not sleep yet, must not sleep on once another one
 * made a launch after which it may go: `wake` is not what it was before. */
static void woken_case(void) {
    struct container *one = add_two_processes();
    const struct cot_lease_order *order = cot_lease_order_at(one->page, 0);
    const struct cot_launch_kind kind = {.key = 7};
    struct cot_gate *first = &one->gates[0], *second = &one->gates[1];
    struct cot_launch launch;
    first->row->used_ns += 50 * MS;
    CHECK(cot_gate_admit(second, &kind, now, NULL, &launch).go);
    for (int announced = 0; announced < 2; announced++) {
        struct cot_wait wait = {0};
        CHECK(!cot_gate_admit(second, &kind, now, &wait, &launch).go);
        struct cot_verdict refused = cot_gate_admit(first, &kind, now, NULL, &launch);
        CHECK(!refused.go && !refused.own);
        if (announced) cot_gate_wait(first, true, 0, now);
        now = wait.stuck_ns + 1;
        beat();
        struct cot_verdict gone = cot_gate_admit(second, &kind, now, &wait, &launch);
        CHECK(gone.go && gone.bound);
        CHECK(order->wake != refused.wake);
        CHECK(gone.wakes == announced);
        if (announced) cot_gate_wait(first, false, 0, now);
        CHECK(cot_gate_admit(first, &kind, now, NULL, &launch).go);
    }
}

/* Launches that the driver refused were not made: others need not follow them, but for one. */
static void undone_case(void) {
    struct container *one = add_two_processes();
    const struct cot_launch_kind kind = {.key = 7};
    struct cot_gate *first = &one->gates[0], *second = &one->gates[1];
    struct cot_launch launch;
    uint64_t made = digest_of(one, 0, NULL).launches;
    for (int i = 0; i < 20; i++) {
        CHECK(ask(one, 0, 7, &launch));
        cot_gate_undo(first, &launch);
    }
    CHECK(digest_of(one, 0, NULL).launches == made);
    first->row->used_ns += 50 * MS;
    uint32_t follows = 0;
    while (cot_gate_admit(second, &kind, now, NULL, &launch).go) CHECK(++follows < 20);
    CHECK(follows == 2); /* the one in flight, and one that was refused */
}

/* The time in which a turn that is over may end begins when it is over, not when it seemed so by a prediction. */
static void finishing_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    struct cot_lease_row *row = one->gates[0].row;
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    ask(two, 0, 8, &launch);
    decide();
    member_of(one)->turn_budget_ns = 200 * MS; /* as if its launches took so long */
    row->inflight = row->waiting = 1;
    row->pending_ns = 250 * MS;
    pass(1);
    CHECK(granted(one, 0) && member_of(one)->finishing_ns);
    row->pending_ns = 0;
    for (int i = 0; i < 55; i++) {
        row->used_ns += 1 * MS;
        pass(1);
        CHECK(granted(one, 0));
    }
    row->pending_ns = 200 * MS;
    pass(40);
    CHECK(granted(one, 0));
    pass(15);
    CHECK(!granted(one, 0));
}

/* A kernel of one process in flight, and a launch of another process of its container that comes when the turn is over:
 * on a machine whose processors are busy it may be held up for so long. Returns for how long it waits for its turn. */
static uint64_t wait_beside(bool behind) {
    struct container *one = add(1, half), *two = add(1, half);
    struct cot_gate *late = &one->gates[1];
    struct cot_launch launch;
    cot_gate_attach(late, &cot_default_gate, one->page, SLOTS, 1, 1, 0, 99);
    ask(one, 0, 7, &launch);
    decide();
    run(one, 0, 7, 1 * MS);
    struct cot_batch batch = go(one, 0, 7);
    uint64_t begun = now;
    while (!granted(two, 0)) {
        ask(two, 0, 8, &launch);
        pass(1);
    }
    go(two, 0, 8);
    ask(two, 0, 8, &launch);
    member_of(one)->credit_ns = -(int64_t)(500 * MS); /* what it was charged for, held up for longer */
    struct cot_wait wait = {.behind = behind, .rung_ns = now};
    uint64_t since = now;
    cot_gate_wait(late, true, 0, now);
    while (!cot_gate_admit(late, &(struct cot_launch_kind){.key = 7}, now, &wait, &launch).go) {
        pass(1);
        if (cot_batch_is_overdue(&batch, begun, now)) cot_gate_overdue(&one->gates[0], &batch, now);
        CHECK(now - since < 10000 * MS);
    }
    return now - since;
}

/* The kernel may wait for that launch: what it is charged meanwhile does not lengthen the wait. */
static void late_case(void) {
    CHECK(wait_beside(false) < 200 * MS);
}

/* A launch behind work of its own stream is not what that work waits for: it repays what the container owes. */
static void behind_case(void) {
    CHECK(wait_beside(true) > 800 * MS);
}

int main(int argc, char **argv) {
    static const struct named_case cases[] = {
        {"kept", kept_case},     {"drain", drain_case},   {"processes", processes_case}, {"corrected", corrected_case},
        {"terms", terms_case},   {"unused", unused_case}, {"joined", joined_case},       {"batch", batch_case},
        {"woken", woken_case},   {"undone", undone_case}, {"finishing", finishing_case}, {"late", late_case},
        {"behind", behind_case},
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
