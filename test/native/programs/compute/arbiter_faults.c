/* Test cases for the arbiter and the gate under faults: processes that die, an absent arbiter, pages with invalid
 * values; and random programs. `arbiter_faults NAME [SEED]` runs one. */
#include "arbiter.h"

/* ---- properties: random containers, each with the launches of one process ---- */

struct flying {
    bool is;
    struct cot_batch batch;
    uint64_t begun, ends;
};

/* Random programs under random shares. At no time is work of two under way, unless one did not drain in time; no one is
 * charged more time than passed; each that waits gets its turn; epochs only grow (decide_with). */
static void exclusive(bool scribbled) {
    uint32_t many = 2 + (uint32_t)draw(6);
    bool hard = draw(2);
    for (uint32_t i = 0; i < many; i++) {
        uint32_t part = COT_PPM / many;
        add(1, (struct cot_share){.guarantee_ppm = part, .limit_ppm = hard ? part : COT_PPM});
    }
    struct flying flying[MOST] = {0};
    uint64_t served[MOST] = {0}, waits_since[MOST] = {0}, began = now, length[MOST];
    for (uint32_t i = 0; i < many; i++) length[i] = (20ull << draw(9)) * US;
    uint64_t end_at = now + 4000 * MS;
    while (now < end_at) {
        now += 20 * US + draw(100) * US;
        if (scribbled) {
            /* The first one writes what it likes into its half. */
            uint64_t *words = (uint64_t *)cot_lease_reports_at(containers[0].page);
            uint64_t size = (cot_lease_page_bytes(SLOTS, 1) - COT_LEASE_REPORTS_OFFSET) / 8;
            words[draw(size)] = draw(3) ? draw(1u << 30) : UINT64_MAX - draw(99);
        }
        uint32_t under_way = 0;
        for (uint32_t i = scribbled; i < many; i++) {
            if (flying[i].is && now >= flying[i].ends) {
                uint64_t at_ = now;
                now = flying[i].ends;
                end(&containers[i], 0, &flying[i].batch, flying[i].begun);
                now = at_;
                flying[i].is = false;
            }
        }
        decide();
        for (uint32_t i = scribbled; i < many; i++) {
            struct cot_launch launch;
            if (!flying[i].is && draw(8)) {
                if (ask(&containers[i], 0, 1 + draw(3), &launch)) {
                    flying[i] =
                        (struct flying){.is = true, .begun = now, .ends = now + length[i] / 2 + draw(length[i])};
                    cot_batch_add(&containers[i].gates[0], &flying[i].batch, &launch, now);
                    served[i]++;
                    waits_since[i] = 0;
                } else if (waits_since[i] == 0) {
                    waits_since[i] = now;
                }
            }
            CHECK(!waits_since[i] || now - waits_since[i] < (many * 60ull + 200) * MS);
            under_way += flying[i].is;
        }
        CHECK(under_way <= 1 || scribbled);
    }
    uint64_t charged = 0;
    for (uint32_t i = scribbled; i < many; i++) {
        CHECK(served[i] > 5);
        charged += arbiter.gpus[0].members[containers[i].member[0]].charged_ns;
    }
    CHECK(charged <= now - began);
    CHECK(charged >= (now - began) / (scribbled ? 10 : 4));
}

static void exclusive_case(void) {
    exclusive(false);
}
static void scribbled_case(void) {
    exclusive(true);
    CHECK(arbiter.gpus[0].members[containers[0].member[0]].faults > 0);
}

/* ---- single faults ---- */

/* A process that died with work under way delays no other once the agent knows. */
static void crash_case(void) {
    struct container *one = add(1, soft), *two = add(1, soft);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    go(one, 0, 7);
    ask(two, 0, 8, &launch);
    now += 20 * MS;
    decide();
    CHECK(!granted(two, 0));
    const uint64_t dead[SLOTS] = {1};
    decide_with(dead);
    CHECK(granted(two, 0));
    /* The next process in that slot goes on with the account. */
    uint64_t used = one->gates[0].row->used_ns;
    cot_gate_attach(&one->gates[0], &cot_default_gate, one->page, SLOTS, 1, 0, 0, 99);
    CHECK(one->gates[0].row->used_ns == used && one->gates[0].row->inflight == 0);
}

/* The agent goes away: processes of a container go by one credit, which they compute alike; no cap is exceeded,
 * none is shut out; a new agent goes on where they are. */
static void outage_case(void) {
    struct container *one = add(1, half);
    static struct cot_gate second;
    cot_gate_attach(&second, &cot_default_gate, one->page, SLOTS, 1, 1, 0, 77);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    run(one, 0, 7, 1 * MS);
    decide();
    uint64_t from = now, used = 0;
    struct cot_gate *gates[] = {&one->gates[0], &second};
    now += COT_LEASE_PAGE_STALE_NS;
    while (now < from + 2000 * MS) {
        for (int i = 0; i < 2; i++) {
            struct cot_verdict verdict = cot_gate_admit(gates[i], &(struct cot_launch_kind){.key = 7}, now, 0, &launch);
            CHECK(verdict.away);
            if (!verdict.go) continue;
            struct cot_batch batch = {0};
            cot_batch_add(gates[i], &batch, &launch, now);
            now += 1 * MS;
            used += 1 * MS;
            cot_gate_complete(gates[i], &batch, now - 1 * MS, now, 1, true, now);
        }
        now += 50 * US;
    }
    CHECK(used > 920 * MS && used < 1040 * MS);
    struct cot_lease_record record;
    CHECK(cot_lease_order_read_record(cot_lease_order_at(one->page, 0), &record));
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    struct cot_digest digest = digest_of(one, 0, NULL);
    one->member[0] = cot_arbiter_join(&arbiter, 0, 0, &digest, now);
    cot_arbiter_set_share(&arbiter, 0, 0, &half, now);
    cot_arbiter_adopt(&arbiter, 0, 0, &record, now);
    const struct cot_member *member = &arbiter.gpus[0].members[0];
    CHECK(member->credit_ns < (int64_t)(15 * MS) && member->credit_ns > -(int64_t)(15 * MS));
    CHECK(member->charged_ns >= used && member->charged_ns <= used + used / 10);
    decide();
}

/* What a container that slept through the agent's absence lost of its credit is lost of that credit alone. */
static void slept_case(void) {
    struct container *one = add(1, half);
    struct cot_launch launch;
    ask(one, 0, 7, &launch);
    decide();
    run(one, 0, 7, 1 * MS);
    decide();
    now += 5000 * MS;
    run(one, 0, 7, 1 * MS); /* on its own credit, most of which was not used */
    uint64_t from = now, used = 0;
    for (; now < from + 1000 * MS; now += 500 * US) {
        decide();
        if (!ask(one, 0, 7, &launch)) continue;
        cot_gate_undo(&one->gates[0], &launch);
        run(one, 0, 7, 1 * MS);
        used += 1 * MS;
    }
    CHECK(used > 450 * MS && used < 550 * MS);
}

/* A record half written by an agent that died leaves the one before it. */
static void record_case(void) {
    struct container *one = add(1, half);
    struct cot_lease_order *order = cot_lease_order_at(one->page, 0);
    struct cot_lease_record record = {.at_ns = 1, .limit_ns = 11, .rate_ppm = 5}, found = {0};
    CHECK(!cot_lease_order_read_record(order, &found));
    for (uint64_t i = 1; i < 20; i++) {
        record.limit_ns = i;
        cot_lease_order_record(order, record);
        CHECK(cot_lease_order_read_record(order, &found) && found.limit_ns == i);
        for (int torn = 0; torn < 2; torn++) {
            struct cot_lease_record whole = order->records[torn];
            order->records[torn].limit_ns ^= 8;
            if (i > 1)
                CHECK(cot_lease_order_read_record(order, &found) && (found.limit_ns == i || found.limit_ns == i - 1));
            order->records[torn] = whole;
        }
    }
}

/* A digest believes nothing: sums that cannot overflow, counts within bounds, faults counted. */
static void digest_case(void) {
    struct container *one = add(1, half);
    memset(cot_lease_reports_at(one->page), 0xff, cot_lease_page_bytes(SLOTS, 1) - COT_LEASE_REPORTS_OFFSET);
    struct cot_digest digest = digest_of(one, 0, NULL);
    CHECK(digest.faults > SLOTS && digest.inflight == SLOTS && digest.waiting == 0);
    CHECK(digest.used_ns == 0 && digest.pending_ns == 0 && digest.longest_ns == 0);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct cot_lease_row *row = cot_lease_row_at(one->page, 1, slot, 0);
        *row = (struct cot_lease_row){.stamp = 1, .used_ns = COT_MAX_PLAUSIBLE_NS / 8, .waiting = 60000};
    }
    digest = digest_of(one, 0, NULL);
    CHECK(digest.used_ns <= COT_MAX_PLAUSIBLE_NS && digest.waiting <= 65536);
    /* An account that went back is a fault, and nothing is paid back for it. */
    struct container *two = add(1, half);
    two->gates[0].row->used_ns = 5 * MS;
    decide();
    two->gates[0].row->used_ns = 1 * MS;
    uint64_t charged = arbiter.gpus[0].members[two->member[0]].charged_ns;
    decide();
    CHECK(arbiter.gpus[0].members[two->member[0]].faults == 1);
    CHECK(arbiter.gpus[0].members[two->member[0]].charged_ns == charged);
}

int main(int argc, char **argv) {
    static const struct named_case cases[] = {
        {"exclusive", exclusive_case}, {"scribbled", scribbled_case}, {"crash", crash_case},   {"outage", outage_case},
        {"slept", slept_case},         {"record", record_case},       {"digest", digest_case},
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
