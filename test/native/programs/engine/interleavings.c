/* Interleavings of threads between a driver call and its accounting: the engine is linked in, above a driver
 * that returns given addresses and handles and runs another thread inside its calls (interleaved_driver.h).
 *   interleavings DIR CASE
 * Prints one line of JSON; DIR has the limits page and ledger of a grant of one GPU. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/interposer/engine/contexts/contexts.h"
#include "interleaved_driver.h"
#include "linked_engine.h"

#define BASE (1ull << 40)

abi_result cot_cuMemAlloc_v2(abi_devptr *pointer, size_t bytes);
abi_result cot_cuMemFree_v2(abi_devptr pointer);
abi_result cot_cuCtxCreate_v2(abi_context *out, unsigned flags, abi_device device);
abi_result cot_cuCtxDestroy_v2(abi_context context);
abi_result cot_cuGreenCtxCreate(abi_green_context *out, abi_resource_desc desc, abi_device device, unsigned flags);
abi_result cot_cuGreenCtxDestroy(abi_green_context green);
abi_result cot_cuCtxSetLimit(int limit, size_t value);
abi_result cot_cuGraphInstantiateWithFlags(abi_graph_exec *out, abi_graph graph, unsigned long long flags);
abi_result cot_cuGraphLaunch(abi_graph_exec graph, abi_stream stream);
abi_result cot_cuDeviceGraphMemTrim(abi_device device);

static const char *folder;

/* ---- what threads do ---- */
#define FIRST ((void *)0x1000)
#define SECOND ((void *)0x2000)
#define GREEN ((void *)0x4000)
#define VIEW ((void *)0x4100)
static abi_result last;

static void make(void *handle) {
    abi_context context = NULL;
    next_handle = handle;
    last = cot_cuCtxCreate_v2(&context, 0, 0);
}
static abi_devptr take(uint64_t at, uint64_t bytes) {
    abi_devptr pointer = 0;
    next_address = at;
    last = cot_cuMemAlloc_v2(&pointer, bytes);
    return pointer;
}
static void end_first(void) {
    cot_cuCtxDestroy_v2(FIRST);
}

static uint64_t number; /* what a case has to say beside the account */

/* A large request is given what a small one has just left; the grant is full then. */
static void take_large(void) {
    current = FIRST;
    take(BASE, 3 * MIB);
}
static void take_large_meanwhile(void) {
    wholly(take_large);
}
static void page_left(void) {
    make(FIRST);
    abi_devptr small = take(BASE + 2 * MIB, MIB / 2);
    within = take_large_meanwhile;
    cot_cuMemFree_v2(small);
    for (uint64_t at = BASE + 100 * MIB; last == ABI_SUCCESS; at += 2 * MIB) take(at, 2 * MIB);
    unsigned before = allocations;
    take(BASE + 50 * MIB, MIB / 2);
    number = allocations - before;
}

/* A context ends while another thread allocates in it, and one of the same handle is made: after what was allocated, or
 * before it. */
static void end_and_make_again(void) {
    end_first();
    make(FIRST);
}
static void end_and_make_again_meanwhile(void) {
    wholly(end_and_make_again);
}
static void allocated_before(void) {
    make(FIRST);
    within = end_and_make_again_meanwhile;
    take(BASE, 4 * MIB);
}
static void allocated_after(void) {
    make(FIRST);
    ahead = end_and_make_again_meanwhile;
    take(BASE, 4 * MIB);
}
static void end_first_meanwhile(void) {
    wholly(end_first);
}
static void ended_meanwhile(void) {
    make(FIRST);
    within = end_first_meanwhile;
    take(BASE, 4 * MIB);
}

/* An address is given again before it is out of the tables: by the driver, which has ended the context of the one that
 * had it. */
static void take_in_second(void) {
    current = SECOND;
    take(BASE, 2 * MIB);
}
static void take_and_free_in_second(void) {
    take_in_second();
    cot_cuMemFree_v2(BASE);
}
static void take_in_second_meanwhile(void) {
    wholly(take_in_second);
}
static void take_and_free_in_second_meanwhile(void) {
    wholly(take_and_free_in_second);
}
static void with_two(void) {
    make(SECOND);
    make(FIRST);
    take(BASE, 4 * MIB);
}
static void given_again(void) {
    with_two();
    within = take_in_second_meanwhile;
    end_first();
}
static void given_again_and_freed(void) {
    with_two();
    within = take_and_free_in_second_meanwhile;
    end_first();
}

/* One ended behind the exported names, and its handle is given again. */
static void ended_unseen(void) {
    make(FIRST);
    take(BASE, 4 * MIB);
    driver_destroy(FIRST);
    make(FIRST);
}

/* A green context ends while another thread allocates with its view current, which the primary context has then; or, if
 * it ends as well, no process. */
static void make_green(void) {
    abi_green_context green = NULL;
    next_handle = GREEN;
    last = cot_cuGreenCtxCreate(&green, NULL, 0, 0);
}
static void end_green(void) {
    cot_cuGreenCtxDestroy(GREEN);
}
static void end_green_meanwhile(void) {
    wholly(end_green);
}
static void end_green_and_make_again(void) {
    end_green();
    make_green();
}
static void end_green_and_make_again_meanwhile(void) {
    wholly(end_green_and_make_again);
}
static void take_in_view(void) {
    make_green();
    current = VIEW;
    take(BASE, 4 * MIB);
}
static void retain_primary(void) {
    abi_context context = NULL;
    last = cot_cuDevicePrimaryCtxRetain(&context, 0);
}
static void view_ended_meanwhile(void) {
    retain_primary();
    within = end_green_meanwhile;
    take_in_view();
}
static void view_ended_with_all(void) {
    within = end_green_meanwhile;
    take_in_view();
}
static void view_came_again(void) {
    retain_primary();
    within = end_green_and_make_again_meanwhile;
    take_in_view();
    end_green();
}
/* The heap of a view and of the primary context is one, and is charged for as long as it is there. */
static void heap_shared(void) {
    retain_primary();
    make_green();
    current = VIEW;
    cot_cuCtxSetLimit(ABI_LIMIT_MALLOC_HEAP_SIZE, 6 * MIB);
    current = PRIMARY;
    last = cot_cuCtxSetLimit(ABI_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB);
    end_green();
}

/* The driver refuses to free it; a context of the view's handle comes and goes after that. */
static void view_ended_in_free(void) {
    retain_primary();
    take_in_view();
    within = end_green_meanwhile;
    frees_nothing = true;
    last = cot_cuMemFree_v2(BASE);
    make(VIEW);
    cot_cuCtxDestroy_v2(VIEW);
}

/* Another thread trims the memory of graphs while one is launched: before it has it again, or after that. */
static void trim(void) {
    cot_cuDeviceGraphMemTrim(0);
}
static void trim_meanwhile(void) {
    wholly(trim);
}
static void launch_twice(void (*_Atomic *moment)(void)) {
    abi_graph_exec graph = NULL;
    make(FIRST);
    cot_cuGraphInstantiateWithFlags(&graph, (abi_graph)FIRST, 0);
    cot_cuGraphLaunch(graph, NULL);
    *moment = trim_meanwhile;
    last = cot_cuGraphLaunch(graph, NULL);
}
static void trimmed_before(void) {
    launch_twice(&ahead);
}
static void trimmed_after(void) {
    launch_twice(&within);
}

/* The driver calls the program back while it makes a context, which is current already. */
static void called_back(void) {
    within = take_in_second;
    make(SECOND);
}

/* ---- turns: within the driver's call that makes a context ---- */
static pthread_t other;

static void begin_to_end(void) {
    other = begin(end_first);
    while (!(atomic_load(&cot->lifecycle_owner) >> 31)) sched_yield(); /* it waits */
    number = ends;
}
static void one_waits(void) {
    make(FIRST);
    within = begin_to_end;
    make(SECOND);
    pthread_join(other, NULL);
}

static void end_within(void) {
    end_first();
    number = ends;
}
static void same_thread(void) {
    make(FIRST);
    within = end_within;
    make(SECOND);
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
static void end_meanwhile(void) {
    uint64_t begun = now_ms();
    wholly(end_first);
    number = now_ms() - begun;
}
static void never_answers(void) { /* unless the other one is let by */
    make(FIRST);
    within = end_meanwhile;
    make(SECOND);
}

static void fork_within(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        bool taken = cot_lifecycle_lock(false);
        cot_lifecycle_unlock(taken);
        uint64_t begun = now_ms();
        bool again = cot_lifecycle_lock(false);
        cot_lifecycle_unlock(again);
        _exit(taken && again && now_ms() - begun < 1000 ? 1 : 2);
    }
    if (waitpid(child, &status, 0) == child && WIFEXITED(status)) number = (uint64_t)WEXITSTATUS(status);
}
static void forked(void) {
    within = fork_within;
    make(FIRST);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {{"page-left", page_left},
                 {"allocated-before", allocated_before},
                 {"allocated-after", allocated_after},
                 {"ended-meanwhile", ended_meanwhile},
                 {"given-again", given_again},
                 {"given-again-and-freed", given_again_and_freed},
                 {"ended-unseen", ended_unseen},
                 {"view-ended-meanwhile", view_ended_meanwhile},
                 {"view-ended-with-all", view_ended_with_all},
                 {"view-came-again", view_came_again},
                 {"view-ended-in-free", view_ended_in_free},
                 {"heap-shared", heap_shared},
                 {"trimmed-before", trimmed_before},
                 {"trimmed-after", trimmed_after},
                 {"called-back", called_back},
                 {"one-waits", one_waits},
                 {"same-thread", same_thread},
                 {"never-answers", never_answers},
                 {"forked", forked}};
    if (argc != 3) return fputs("usage: interleavings DIR CASE\n", stderr), 2;
    folder = argv[1];
    alarm(60); /* a wait without end is a failure */
    start_engine(driver_function, folder);
    if (cot_attach() != ABI_SUCCESS) return 3;
    for (unsigned i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(CASES[i].name, argv[2]) != 0) continue;
        CASES[i].run();
        const struct cot_slot_gpu *own = cot_own_row(0);
        printf("{\"held\":%llu,\"pending\":%llu,\"context\":%llu,\"last\":%d,\"turn\":%u,\"number\":%llu}\n",
               (unsigned long long)own->held, (unsigned long long)own->pending, (unsigned long long)own->context,
               (int)last, atomic_load(&cot->lifecycle_owner), (unsigned long long)number);
        return 0;
    }
    return fputs("no such case\n", stderr), 2;
}
