/* Cases for the arbiter and the gate, joined by the bytes of compute pages. `arbiter NAME [SEED]` runs one case; it
 * prints what went wrong and ends with 1, or prints nothing. Time is a number here. */
#include <stdio.h>
#include <stdlib.h>

#include "../../../native/arbiter/arbiter.h"
#include "../../../native/arbiter/gate.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SLOTS 8u
#define MOST 16u

#define CHECK(what)                                                                 \
    do {                                                                            \
        if (!(what)) {                                                              \
            printf("line %d: not so: %s (at %lu us)\n", __LINE__, #what, now / US); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

static uint64_t now = 1000 * MS, seed = 1;
static struct cot_arbiter arbiter;
static struct cot_decision decision;

/* One container: a page, its members, a process with a gate per card. */
struct container {
    void *page;
    struct cot_gate gates[2];
    uint32_t cards;
    int member[2];
    bool waits[2];
};
static struct container containers[MOST];
static uint32_t count;

static uint64_t draw(uint64_t below) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % below;
}

static struct cot_digest digest_of(const struct container *of, uint32_t card, const uint64_t *dead) {
    struct cot_digest digest;
    cot_digest(of->page, SLOTS, of->cards, card, dead, &digest);
    return digest;
}

static struct container *add(uint32_t cards, struct cot_share share) {
    struct container *new = &containers[count];
    new->cards = cards;
    new->page = calloc(1, cot_compute_bytes(SLOTS, cards));
    if (!new->page) abort();
    ((struct cot_compute_header *)new->page)->heartbeat_ns = now;
    for (uint32_t card = 0; card < cards; card++) {
        cot_gate_attach(&new->gates[card], &cot_default_gate, new->page, SLOTS, cards, 0, card, 2 * count + 1);
        new->gates[card].others = new->gates;
        new->gates[card].others_count = cards;
        struct cot_digest digest = digest_of(new, card, NULL);
        new->member[card] = cot_arbiter_join(&arbiter, card, count, &digest, now);
        cot_arbiter_share(&arbiter, card, (uint32_t)new->member[card], &share, now);
    }
    count++;
    return new;
}

static void beat(void) {
    for (uint32_t i = 0; i < count; i++) ((struct cot_compute_header *)containers[i].page)->heartbeat_ns = now;
}

/* The agent's thread: reports of all, until nobody needs another look. */
static void decide_with(const uint64_t *dead) {
    beat();
    for (uint32_t rounds = 0;; rounds++) {
        CHECK(rounds < 100);
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t card = 0; card < containers[i].cards; card++) {
                struct cot_digest digest = digest_of(&containers[i], card, dead);
                cot_arbiter_report(&arbiter, card, (uint32_t)containers[i].member[card], &digest, now);
            }
        }
        cot_arbiter_decide(&arbiter, now, &decision);
        bool look = false;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t card = 0; card < containers[i].cards; card++) {
                uint32_t member = (uint32_t)containers[i].member[card];
                struct cot_compute_order *order = cot_order_at(containers[i].page, card);
                uint64_t before = order->lease;
                if (decision.dirty[card] >> member & 1) {
                    cot_arbiter_publish(&arbiter, card, member, order);
                    CHECK(cot_lease_epoch(order->lease) > cot_lease_epoch(before));
                }
                cot_order_record(order, cot_arbiter_record(&arbiter, card, member, now));
                look = look || decision.look[card] >> member & 1;
            }
        }
        if (!look) return;
    }
}
static void decide(void) {
    decide_with(NULL);
}

static bool ask(struct container *of, uint32_t card, uint64_t key, struct cot_launch *launch) {
    struct cot_gate *gate = &of->gates[card];
    struct cot_verdict verdict = cot_gate_admit(gate, key, now, launch);
    if (!verdict.go && !verdict.own && !of->waits[card]) {
        of->waits[card] = true;
        cot_gate_wait(gate, true, 0, now);
    }
    if (verdict.go && of->waits[card]) {
        of->waits[card] = false;
        cot_gate_wait(gate, false, 0, now);
    }
    return verdict.go;
}

/* One launch from now on; it must be admitted. */
static struct cot_batch go(struct container *of, uint32_t card, uint64_t key) {
    struct cot_launch launch;
    CHECK(ask(of, card, key, &launch));
    struct cot_batch batch = {0};
    cot_batch_add(&of->gates[card], &batch, &launch, now);
    return batch;
}

static void end(struct container *of, uint32_t card, const struct cot_batch *batch, uint64_t begun) {
    cot_gate_complete(&of->gates[card], batch, begun, now, 1, true, now);
}

/* A launch of that length, alone, from grant to end. */
static void run(struct container *of, uint32_t card, uint64_t key, uint64_t length) {
    struct cot_batch batch = go(of, card, key);
    uint64_t begun = now;
    now += length;
    end(of, card, &batch, begun);
}

/* The same with an agent that comes by meanwhile, as it does. */
static void run_on(struct container *of, uint32_t card, uint64_t key, uint64_t length) {
    struct cot_batch batch = go(of, card, key);
    uint64_t begun = now;
    for (uint64_t left = length; left > 0; left -= left < MS ? left : MS) {
        now += left < MS ? left : MS;
        decide();
    }
    end(of, card, &batch, begun);
    decide();
}

static const struct cot_share half = {.guarantee_ppm = 500000, .limit_ppm = 500000};
static const struct cot_share soft = {.guarantee_ppm = 500000, .limit_ppm = COT_PPM};
static const struct cot_share high = {.guarantee_ppm = 500000, .limit_ppm = COT_PPM, .high = true};

static bool granted(const struct container *of, uint32_t card) {
    return cot_lease_state(cot_order_at(of->page, card)->lease) == COT_LEASE_GRANTED;
}

/* ---- properties: random containers, each with the launches of one process ---- */

struct flying {
    bool is;
    struct cot_batch batch;
    uint64_t begun, ends;
};

/* Random programs under random shares. At no time is work of two under way, unless one did not drain in time; nobody is
 * charged more time than passed; whoever waits gets its turn; epochs only grow (decide_with). */
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
            uint64_t *words = (uint64_t *)cot_reports_at(containers[0].page);
            uint64_t size = (cot_compute_bytes(SLOTS, 1) - COT_COMPUTE_REPORTS_AT) / 8;
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
        charged += arbiter.cards[0].members[containers[i].member[0]].charged_ns;
    }
    CHECK(charged <= now - began);
    CHECK(charged >= (now - began) / (scribbled ? 10 : 4));
}

static void exclusive_case(void) {
    exclusive(false);
}
static void scribbled_case(void) {
    exclusive(true);
    CHECK(arbiter.cards[0].members[containers[0].member[0]].faults > 0);
}

/* ---- single behaviours ---- */

/* Rule 1: of a launch whose length nobody knows, one is under way. */
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

/* Rule 3: what the arbiter said of when to come back binds nobody. */
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

/* Rule 4: whoever waits for a peer's long launch keeps what it is owed for that time. */
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
    CHECK(arbiter.cards[0].members[two->member[0]].credit_ns > (int64_t)(45 * MS));
}

/* Rule 5: one that pauses for a moment is waited for, if it is owed the card and the other's launches are long; and one
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
    uint64_t before = arbiter.cards[0].members[one->member[0]].virtual_ns;
    for (int i = 0; i < 50; i++) run_on(two, 0, 8, 20 * MS);
    ask(one, 0, 7, &launch);
    decide();
    const struct cot_card *card = &arbiter.cards[0];
    uint64_t after = card->members[one->member[0]].virtual_ns;
    CHECK(after > before && card->virtual_ns - after <= 2 * cot_default_tuning.quantum_ns);
}

/* A holder without work loses the card to whoever wants it, and keeps it otherwise. */
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

/* A holder that neither ends its work nor says anything is passed by, pays for the wait, and is in nobody's way after.
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
    const struct cot_member *member = &arbiter.cards[0].members[one->member[0]];
    CHECK(member->overruns == 1 && member->outcast);
    CHECK(member->charged_ns > 40 * MS);
    struct cot_batch batch = go(two, 0, 8);
    decide();
    uint64_t begun = now;
    now += 1 * MS;
    end(two, 0, &batch, begun);
    decide();
    uint64_t contended = arbiter.cards[0].members[two->member[0]].contended_ns;
    CHECK(contended > 400 * US && contended < 600 * US); /* half of its millisecond was the other's */
}

/* A process that died with work under way holds nobody up once the agent knows. */
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

/* High may launch behind what is under way at once, others queue little beside it, and nobody pays for the other. */
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
    const struct cot_member *first = &arbiter.cards[0].members[one->member[0]];
    const struct cot_member *second = &arbiter.cards[0].members[two->member[0]];
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
    end(two, 0, &behind, asked); /* as events tell it: it waited on the card */
    decide();
    CHECK(second->charged_ns == 300 * US);
    for (int i = 0; i < 20; i++) {
        ask(one, 0, 7, &launch);
        run(two, 0, 8, 5 * MS);
        decide();
        CHECK(granted(two, 0) && !granted(one, 0));
    }
}

/* The agent goes away: processes of a container go by one credit, which they compute alike; no cap is exceeded, nobody
 * is shut out; a new agent goes on where they are. */
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
    now += COT_COMPUTE_STALE_NS;
    while (now < from + 2000 * MS) {
        for (int i = 0; i < 2; i++) {
            struct cot_verdict verdict = cot_gate_admit(gates[i], 7, now, &launch);
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
    struct cot_compute_record record;
    CHECK(cot_order_read_record(cot_order_at(one->page, 0), &record));
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    struct cot_digest digest = digest_of(one, 0, NULL);
    one->member[0] = cot_arbiter_join(&arbiter, 0, 0, &digest, now);
    cot_arbiter_share(&arbiter, 0, 0, &half, now);
    cot_arbiter_adopt(&arbiter, 0, 0, &record, now);
    const struct cot_member *member = &arbiter.cards[0].members[0];
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
    run(one, 0, 7, 1 * MS); /* on its own credit, most of which nobody used */
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
    struct cot_compute_order *order = cot_order_at(one->page, 0);
    struct cot_compute_record record = {.at_ns = 1, .limit_ns = 11, .rate_ppm = 5}, found = {0};
    CHECK(!cot_order_read_record(order, &found));
    for (uint64_t i = 1; i < 20; i++) {
        record.limit_ns = i;
        cot_order_record(order, record);
        CHECK(cot_order_read_record(order, &found) && found.limit_ns == i);
        for (int torn = 0; torn < 2; torn++) {
            struct cot_compute_record whole = order->records[torn];
            order->records[torn].limit_ns ^= 8;
            if (i > 1) CHECK(cot_order_read_record(order, &found) && (found.limit_ns == i || found.limit_ns == i - 1));
            order->records[torn] = whole;
        }
    }
}

/* A digest believes nothing: sums that cannot overflow, counts within bounds, faults counted. */
static void digest_case(void) {
    struct container *one = add(1, half);
    memset(cot_reports_at(one->page), 0xff, cot_compute_bytes(SLOTS, 1) - COT_COMPUTE_REPORTS_AT);
    struct cot_digest digest = digest_of(one, 0, NULL);
    CHECK(digest.faults > SLOTS && digest.inflight == SLOTS && digest.waiting == 0);
    CHECK(digest.used_ns == 0 && digest.pending_ns == 0 && digest.longest_ns == 0);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct cot_compute_row *row = cot_row_at(one->page, 1, slot, 0);
        *row = (struct cot_compute_row){.stamp = 1, .used_ns = COT_COMPUTE_SANE_NS / 8, .waiting = 60000};
    }
    digest = digest_of(one, 0, NULL);
    CHECK(digest.used_ns <= COT_COMPUTE_SANE_NS && digest.waiting <= 65536);
    /* An account that went back is a fault, and nothing is paid back for it. */
    struct container *two = add(1, half);
    two->gates[0].row->used_ns = 5 * MS;
    decide();
    two->gates[0].row->used_ns = 1 * MS;
    uint64_t charged = arbiter.cards[0].members[two->member[0]].charged_ns;
    decide();
    CHECK(arbiter.cards[0].members[two->member[0]].faults == 1);
    CHECK(arbiter.cards[0].members[two->member[0]].charged_ns == charged);
}

/* ---- several cards ---- */

/* Two containers with two cards each whose launches on both cards need one another, started from opposite ends: both
 * get both cards, in turns, and nobody is passed by. */
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
                uint32_t card = (i + k) % 2; /* the second one begins with the second card */
                if (up[i][card] || (k == 1 && !up[i][i])) continue;
                if (!ask(pair[i], card, 7 + card, &launch)) continue;
                batch[i][card] = (struct cot_batch){0};
                cot_batch_add(&pair[i]->gates[card], &batch[i][card], &launch, now);
                up[i][card] = true;
                CHECK(card == 1 || !alone_begun);
            }
            if (!up[i][0] || !up[i][1]) continue; /* either half waits for the other on its card */
            CHECK(!up[1 - i][0] && !up[1 - i][1]);
            uint64_t begun = now;
            now += 1 * MS;
            for (uint32_t card = 0; card < 2; card++) {
                end(pair[i], card, &batch[i][card], begun);
                up[i][card] = false;
            }
            done[i]++;
        }
        decide();
    }
    CHECK(alone_done > 20);
    for (uint32_t card = 0; card < 2; card++) {
        for (uint32_t i = 0; i < 2; i++) CHECK(arbiter.cards[card].members[pair[i]->member[card]].overruns == 0);
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
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"exclusive", exclusive_case},
        {"scribbled", scribbled_case},
        {"probe", probe_case},
        {"depth", depth_case},
        {"wake", wake_case},
        {"credit", credit_case},
        {"anticipation", anticipation_case},
        {"idle", idle_case},
        {"overrun", overrun_case},
        {"crash", crash_case},
        {"high", high_case},
        {"outage", outage_case},
        {"slept", slept_case},
        {"record", record_case},
        {"digest", digest_case},
        {"gang", gang_case},
        {"catch-up", catch_up_case},
    };
    if (argc > 3 && !strcmp(argv[1], "policy")) {
        policy_case(argc, argv);
        return 0;
    }
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc < 2 || strcmp(argv[1], cases[i].name) != 0) continue;
        cases[i].run();
        return 0;
    }
    fprintf(stderr, "no such case\n");
    return 2;
}
