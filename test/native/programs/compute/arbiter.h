/* Shared by the test programs of the arbiter and the gate, which are connected by the bytes of lease pages: containers,
 * each with a page, its members and the gates of one process, and the arbiter's loop over all of them. Time is a
 * variable here. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "../../../../native/compute/arbiter/arbiter.h"
#include "../../../../native/compute/gate/gate.h"

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

/* One container: a page, its members, a process with a gate per GPU. */
struct container {
    void *page;
    struct cot_gate gates[2];
    uint32_t gpus;
    int member[2];
    bool waits[2];
};
static struct container containers[MOST];
static uint32_t count;

static inline uint64_t draw(uint64_t below) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (seed >> 33) % below;
}

static inline struct cot_digest digest_of(const struct container *of, uint32_t gpu, const uint64_t *dead) {
    struct cot_digest digest;
    cot_digest(of->page, SLOTS, of->gpus, gpu, dead, &digest);
    return digest;
}

static inline struct container *add(uint32_t gpus, struct cot_share share) {
    struct container *new = &containers[count];
    new->gpus = gpus;
    new->page = calloc(1, cot_lease_page_bytes(SLOTS, gpus));
    if (!new->page) abort();
    ((struct cot_lease_page_header *)new->page)->heartbeat_ns = now;
    for (uint32_t gpu = 0; gpu < gpus; gpu++) {
        cot_gate_attach(&new->gates[gpu], &cot_default_gate, new->page, SLOTS, gpus, 0, gpu, 2 * count + 1);
        struct cot_digest digest = digest_of(new, gpu, NULL);
        new->member[gpu] = cot_arbiter_join(&arbiter, gpu, count, &digest, now);
        cot_arbiter_set_share(&arbiter, gpu, (uint32_t)new->member[gpu], &share, now);
    }
    count++;
    return new;
}

static inline void beat(void) {
    for (uint32_t i = 0; i < count; i++) ((struct cot_lease_page_header *)containers[i].page)->heartbeat_ns = now;
}

/* The agent's thread: reports of all, until none needs another look. */
static inline void decide_with(const uint64_t *dead) {
    beat();
    for (uint32_t rounds = 0;; rounds++) {
        CHECK(rounds < 100);
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t gpu = 0; gpu < containers[i].gpus; gpu++) {
                struct cot_digest digest = digest_of(&containers[i], gpu, dead);
                cot_arbiter_report(&arbiter, gpu, (uint32_t)containers[i].member[gpu], &digest, now);
            }
        }
        cot_arbiter_decide(&arbiter, now, &decision);
        bool look = false;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t gpu = 0; gpu < containers[i].gpus; gpu++) {
                uint32_t member = (uint32_t)containers[i].member[gpu];
                struct cot_lease_order *order = cot_lease_order_at(containers[i].page, gpu);
                uint64_t before = order->lease;
                if (cot_mask_has(&decision.dirty[gpu], member)) {
                    cot_arbiter_publish(&arbiter, gpu, member, order);
                    CHECK(cot_lease_epoch(order->lease) > cot_lease_epoch(before));
                }
                cot_lease_order_record(order, cot_arbiter_record(&arbiter, gpu, member, now));
                look = look || cot_mask_has(&decision.look[gpu], member);
            }
        }
        if (!look) return;
    }
}
static inline void decide(void) {
    decide_with(NULL);
}

static inline bool ask(struct container *of, uint32_t gpu, uint64_t key, struct cot_launch *launch) {
    struct cot_gate *gate = &of->gates[gpu];
    struct cot_verdict verdict = cot_gate_admit(gate, &(struct cot_launch_kind){.key = key}, now, 0, launch);
    if (!verdict.go && !verdict.own && !of->waits[gpu]) {
        of->waits[gpu] = true;
        cot_gate_wait(gate, true, 0, now);
    }
    if (verdict.go && of->waits[gpu]) {
        of->waits[gpu] = false;
        cot_gate_wait(gate, false, 0, now);
    }
    return verdict.go;
}

/* One launch from now on; it must be admitted. */
static inline struct cot_batch go(struct container *of, uint32_t gpu, uint64_t key) {
    struct cot_launch launch;
    CHECK(ask(of, gpu, key, &launch));
    struct cot_batch batch = {0};
    cot_batch_add(&of->gates[gpu], &batch, &launch, now);
    return batch;
}

static inline void end(struct container *of, uint32_t gpu, const struct cot_batch *batch, uint64_t begun) {
    cot_gate_complete(&of->gates[gpu], batch, begun, now, 1, true, now);
}

/* A launch of that length, alone, from grant to end. */
static inline void run(struct container *of, uint32_t gpu, uint64_t key, uint64_t length) {
    struct cot_batch batch = go(of, gpu, key);
    uint64_t begun = now;
    now += length;
    end(of, gpu, &batch, begun);
}

/* The same with an agent that comes by meanwhile, as it does. */
static inline void run_on(struct container *of, uint32_t gpu, uint64_t key, uint64_t length) {
    struct cot_batch batch = go(of, gpu, key);
    uint64_t begun = now;
    for (uint64_t left = length; left > 0; left -= left < MS ? left : MS) {
        now += left < MS ? left : MS;
        decide();
    }
    end(of, gpu, &batch, begun);
    decide();
}

static const struct cot_share half = {.guarantee_ppm = 500000, .limit_ppm = 500000};
static const struct cot_share soft = {.guarantee_ppm = 500000, .limit_ppm = COT_PPM};
static const struct cot_share high = {.guarantee_ppm = 500000, .limit_ppm = COT_PPM, .high = true};

static inline bool granted(const struct container *of, uint32_t gpu) {
    return cot_lease_state(cot_lease_order_at(of->page, gpu)->lease) == COT_LEASE_GRANTED;
}

struct named_case {
    const char *name;
    void (*run)(void);
};

/* PROGRAM NAME [SEED] runs one case: it prints what went wrong and ends with 1, or prints nothing. */
static inline int run_case(const struct named_case *cases, size_t many, int argc, char **argv) {
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    for (size_t i = 0; i < many; i++) {
        if (argc < 2 || strcmp(argv[1], cases[i].name) != 0) continue;
        cases[i].run();
        return 0;
    }
    fprintf(stderr, "no such case\n");
    return 2;
}
