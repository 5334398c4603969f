/* Test cases for containers whose work waits for one another's: `arbiter_gangs NAME` runs one. Containers are digests
 * here, as their tenants would report them: A on GPU 0, B and N on GPU 1. */
#include <stdio.h>
#include <stdlib.h>

#include "../../../../native/compute/arbiter/arbiter.h"

#define MS UINT64_C(1000000)
#define CHECK(what)                                                                    \
    do {                                                                               \
        if (!(what)) {                                                                 \
            printf("line %d: not so: %s (at %lu ms)\n", __LINE__, #what, now_ns / MS); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

enum { A, B, N, CONTAINERS };
static const uint32_t gpu_of[CONTAINERS] = {0, 1, 1};
static uint32_t member_of[CONTAINERS];
static uint64_t now_ns = 1000 * MS;
static struct cot_arbiter arbiter;
static struct cot_digest digests[CONTAINERS];

static struct cot_member *member(int container) {
    return &arbiter.gpus[gpu_of[container]].members[member_of[container]];
}

static bool granted(int container) {
    return member(container)->state == COT_LEASE_GRANTED;
}

/* Reports of all, until none needs another look. */
static void decide(void) {
    struct cot_decision decision;
    uint32_t looks = 0;
    do {
        CHECK(looks++ < 64); /* a GPU changes hands once or twice in a round */
        for (int i = 0; i < CONTAINERS; i++) cot_arbiter_report(&arbiter, gpu_of[i], member_of[i], &digests[i], now_ns);
        cot_arbiter_decide(&arbiter, now_ns, &decision);
    } while (cot_mask_next(&decision.look[0], 0) < COT_ARBITER_MEMBERS ||
             cot_mask_next(&decision.look[1], 0) < COT_ARBITER_MEMBERS);
}

static void join_all(void) {
    static const struct cot_share half = {.guarantee_ppm = 500000, .limit_ppm = 500000};
    cot_arbiter_init(&arbiter, &cot_default_tuning);
    for (int i = 0; i < CONTAINERS; i++) {
        member_of[i] = (uint32_t)cot_arbiter_join(&arbiter, gpu_of[i], (uint32_t)i + 1, &digests[i], now_ns);
        cot_arbiter_set_share(&arbiter, gpu_of[i], member_of[i], &half, now_ns);
    }
    decide();
}

/* Work of A that ran for longer than predicted ends, `after_ns` after a launch of B that had waited. */
static void end_after_launch(uint64_t after_ns) {
    digests[A].inflight = 1;
    digests[A].launches++;
    decide();
    digests[B].waiting = 1;
    now_ns += 30 * MS;
    decide();
    digests[B].waiting = 0;
    digests[B].launches++;
    digests[B].used_ns += 1 * MS;
    decide();
    now_ns += after_ns;
    digests[A].inflight = 0;
    digests[A].used_ns += 1 * MS;
    decide();
    now_ns += 100 * MS;
    decide();
}

static void find_case(void) {
    join_all();
    for (int i = 0; i < 3; i++) {
        CHECK(member(A)->gang != member(B)->gang);
        end_after_launch(1 * MS);
    }
    CHECK(member(A)->gang == member(B)->gang && member(A)->multi_gpu && member(B)->multi_gpu);
    /* It must be found again and again. */
    now_ns += 40000 * MS;
    decide();
    CHECK(member(A)->gang != member(B)->gang && !member(A)->multi_gpu && !member(B)->multi_gpu);
}

/* Ends at other times than launches say nothing. */
static void chance_case(void) {
    join_all();
    for (int i = 0; i < 40; i++) end_after_launch(i % 2 ? 1 * MS : 20 * MS);
    CHECK(member(A)->gang != member(B)->gang);
}

/* Linked to a container that cannot have a turn, for it owes a lot, a container is held back for a moment only. */
static void held_back_case(void) {
    join_all();
    for (int i = 0; i < 3; i++) end_after_launch(1 * MS);
    CHECK(member(A)->gang == member(B)->gang);
    member(A)->credit_ns = -(int64_t)(10000 * MS);
    digests[A].waiting = digests[B].waiting = digests[N].waiting = 1;
    uint64_t since = now_ns, had = 0;
    for (int i = 0; i < 1000; i++) {
        now_ns += 1 * MS;
        for (int k = B; k <= N; k++) {
            if (granted(k)) digests[k].used_ns += 1 * MS, digests[k].launches++;
            had += granted(k) && k == B;
        }
        decide();
        CHECK(had || now_ns - since < 150 * MS);
    }
    CHECK(member(A)->gang != member(B)->gang);
    CHECK(had > 350); /* of 1,000 ms */
}

/* Each GPU that the gang wants is claimed, or none: not one that another container would take back at once. */
static void outranked_case(void) {
    static const struct cot_share high = {.guarantee_ppm = 500000, .limit_ppm = COT_PPM, .high = true};
    join_all();
    for (int i = 0; i < 3; i++) end_after_launch(1 * MS);
    CHECK(member(A)->gang == member(B)->gang);
    cot_arbiter_set_share(&arbiter, gpu_of[N], member_of[N], &high, now_ns);
    digests[A].waiting = digests[B].waiting = digests[N].waiting = 1;
    for (int i = 0; i < 100; i++) {
        now_ns += 1 * MS;
        decide();
        CHECK(granted(N) || member(N)->digest.waiting == 0);
        if (granted(N)) digests[N].used_ns += 1 * MS, digests[N].launches++;
        digests[N].waiting = i % 20 < 10;
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"find", find_case}, {"chance", chance_case}, {"held-back", held_back_case}, {"outranked", outranked_case}};
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) != 0) continue;
        cases[i].run();
        return 0;
    }
    return 2;
}
