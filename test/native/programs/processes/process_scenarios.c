/* What programs do beside CUDA calls, as scenarios; each prints results of the driver, one line in all.
 *   process_scenarios threads COUNT ROUNDS   threads that allocate and free at once: failures, free bytes before and
 * after process_scenarios signals ROUNDS         the same under a timer's signals every 200 us, without SA_RESTART: and
 * signals seen process_scenarios ended ROUNDS           a context ends in one thread while another allocates in it:
 * calls that came too late or failed otherwise, free bytes of the GPU before and after process_scenarios exit frees and
 * asks in a handler of exit, and ends with code 9 process_scenarios unload PATH            closes the library at PATH
 * and calls into it: what cuInit answers, before and after */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"
#include "../../../../native/abi/cuda_arrays.h"

static abi_result (*init)(unsigned);
static abi_result (*retain)(abi_context *, abi_device);
static abi_result (*set_current)(abi_context);
static abi_result (*alloc)(abi_devptr *, size_t);
static abi_result (*release)(abi_devptr);
static abi_result (*info)(size_t *, size_t *);
static abi_context context;

static bool start(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return false;
    init = (abi_result (*)(unsigned))dlsym(driver, "cuInit");
    retain = (abi_result (*)(abi_context *, abi_device))dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = (abi_result (*)(abi_context))dlsym(driver, "cuCtxSetCurrent");
    alloc = (abi_result (*)(abi_devptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
    release = (abi_result (*)(abi_devptr))dlsym(driver, "cuMemFree_v2");
    info = (abi_result (*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2");
    return init(0) == ABI_SUCCESS && retain(&context, 0) == ABI_SUCCESS && set_current(context) == ABI_SUCCESS;
}

static size_t left(void) {
    size_t left_bytes = 0, total = 0;
    info(&left_bytes, &total);
    return left_bytes;
}

static _Atomic uint64_t failures, refusals;

static void churn(unsigned seed, int rounds) {
    abi_devptr held[8];
    int count = 0;
    for (int i = 0; i < rounds; i++) {
        if (count < 8 && rand_r(&seed) % 2) {
            abi_result result = alloc(&held[count], 1 + (size_t)rand_r(&seed) % (4u << 20));
            if (result == ABI_SUCCESS) count++;
            else atomic_fetch_add(result == ABI_ERROR_OUT_OF_MEMORY ? &refusals : &failures, 1);
        } else if (count > 0) {
            count--;
            if (release(held[count]) != ABI_SUCCESS) atomic_fetch_add(&failures, 1);
        }
    }
    while (count > 0) {
        if (release(held[--count]) != ABI_SUCCESS) atomic_fetch_add(&failures, 1);
    }
}

static int rounds_of_threads;
static void *thread(void *seed) {
    if (set_current(context) != ABI_SUCCESS) atomic_fetch_add(&failures, 1);
    churn((unsigned)(uintptr_t)seed, rounds_of_threads);
    return NULL;
}

static int threads(int count, int rounds) {
    pthread_t ids[64];
    size_t before = left();
    rounds_of_threads = rounds;
    for (int i = 0; i < count; i++) pthread_create(&ids[i], NULL, thread, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < count; i++) pthread_join(ids[i], NULL);
    printf("%" PRIu64 " %zu %zu %" PRIu64 "\n", failures, before, left(), refusals);
    return 0;
}

static volatile sig_atomic_t seen;
static void note(int number) {
    seen++;
}

static int signals(int rounds) {
    struct sigaction action = {.sa_handler = note};
    struct itimerval every = {.it_interval = {.tv_usec = 200}, .it_value = {.tv_usec = 200}};
    size_t before = left();
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    churn(1, rounds);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    printf("%" PRIu64 " %zu %zu %d\n", failures, before, left(), (int)seen);
    return 0;
}

static abi_result (*make)(abi_context *, unsigned, abi_device);
static abi_result (*end)(abi_context);
static abi_result (*alloc_managed)(abi_devptr *, size_t, unsigned);
static abi_result (*make_array)(abi_array *, const abi_array_shape *);
static _Atomic(abi_context) ending;
static _Atomic int begun;
static _Atomic uint64_t late;

/* Each round: waits for a context, says that it has it, and asks for memory there, which the other one ends meanwhile.
 */
static void *allocate_in_ending(void *argument) {
    const abi_array_shape shape = {.width = 1 << 16, .height = 16, .format = 0x20 /* floats */, .channels = 1};
    for (int round = 0; round < *(const int *)argument; round++) {
        abi_context mine;
        while (!(mine = atomic_load(&ending))) sched_yield();
        if (set_current(mine) != ABI_SUCCESS) atomic_fetch_add(&failures, 1);
        atomic_store(&begun, 1);
        /* At once, and after a while in which the other one surely comes first, on one processor, too. */
        for (int i = 0; i < round % 4; i++) sched_yield();
        abi_devptr pointer;
        abi_array array;
        abi_result result = round % 3 == 0   ? alloc(&pointer, 4u << 20)
                            : round % 3 == 1 ? alloc_managed(&pointer, 4u << 20, 1)
                                             : make_array(&array, &shape);
        /* The driver has the second for programs that ask it only for the context's device, as the interposer does. */
        if (result == ABI_ERROR_CONTEXT_IS_DESTROYED || result == ABI_ERROR_INVALID_CONTEXT) atomic_fetch_add(&late, 1);
        else if (result != ABI_SUCCESS) atomic_fetch_add(&failures, 1);
        atomic_store(&ending, NULL);
    }
    return NULL;
}

static int ended(int rounds) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    make = (abi_result (*)(abi_context *, unsigned, abi_device))dlsym(driver, "cuCtxCreate_v2");
    end = (abi_result (*)(abi_context))dlsym(driver, "cuCtxDestroy_v2");
    alloc_managed = (abi_result (*)(abi_devptr *, size_t, unsigned))dlsym(driver, "cuMemAllocManaged");
    make_array = (abi_result (*)(abi_array *, const abi_array_shape *))dlsym(driver, "cuArrayCreate_v2");
    size_t before = left();
    pthread_t other;
    pthread_create(&other, NULL, allocate_in_ending, &rounds);
    for (int round = 0; round < rounds; round++) {
        abi_context made;
        if (make(&made, 0, 0) != ABI_SUCCESS) return fputs("lives: no context\n", stderr), 1;
        atomic_store(&begun, 0);
        atomic_store(&ending, made);
        while (!atomic_load(&begun)) sched_yield();
        for (volatile int i = 0; i < round % 64 * 16; i++) continue;
        if (end(made) != ABI_SUCCESS) atomic_fetch_add(&failures, 1);
        while (atomic_load(&ending)) sched_yield();
        set_current(context);
    }
    pthread_join(other, NULL);
    printf("%" PRIu64 " %" PRIu64 " %zu %zu\n", late, failures, before, left());
    return 0;
}

static abi_devptr last;
static void at_end(void) {
    size_t before = left();
    abi_result result = release(last);
    printf("%d %zu %zu\n", result, before, left());
    fflush(stdout);
}

static int leave(void) {
    if (alloc(&last, 32u << 20) != ABI_SUCCESS || atexit(at_end) != 0) return 1;
    exit(9);
}

static int unload(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return fprintf(stderr, "lives: %s\n", dlerror()), 3;
    abi_result (*entry)(unsigned) = (abi_result (*)(unsigned))dlsym(library, "cuInit");
    abi_result before = entry(0);
    for (int i = 0; i < 3; i++) dlclose(library);
    printf("%d %d\n", before, entry(0));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "unload")) return unload(argv[2]);
    if (argc < 2 || !start()) return fputs("lives: no driver\n", stderr), 3;
    if (argc == 4 && !strcmp(argv[1], "threads") && atoi(argv[2]) <= 64) return threads(atoi(argv[2]), atoi(argv[3]));
    if (argc == 3 && !strcmp(argv[1], "signals")) return signals(atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "ended")) return ended(atoi(argv[2]));
    if (argc == 2 && !strcmp(argv[1], "exit")) return leave();
    return 2;
}
