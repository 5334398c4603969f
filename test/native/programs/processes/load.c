/* A tenant at full rate: threads allocate, free, use pools and launch until a line arrives on standard input; then it
 * prints how many calls it made, how many failed and with what, and keeps its memory until the next line. Then it frees
 * everything, and prints the same again. load THREADS MAX-BYTES [LIBRARY] Prints "ready" once every thread has done a
 * round. */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"

#define MOST_THREADS 64
#define HELD 8

static abi_result (*alloc)(abi_devptr *, size_t), (*release)(abi_devptr);
static abi_result (*alloc_async)(abi_devptr *, size_t, abi_stream), (*release_async)(abi_devptr, abi_stream);
static abi_result (*info)(size_t *, size_t *), (*set_current)(abi_context), (*synchronize)(void);
static abi_result (*launch)(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            abi_stream, void **, void **);
static abi_context context;
static abi_function function;
static uint64_t most_bytes;
static _Atomic uint64_t calls, failed, rounds, paused;
static _Atomic int last_error, stop, leave;

static bool check(abi_result result) {
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    if (result == ABI_SUCCESS) return true;
    atomic_store(&last_error, result);
    atomic_fetch_add(&failed, 1);
    return false;
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    abi_devptr held[HELD] = {0}, pooled;
    size_t left, total;
    check(set_current(context));
    for (uint64_t round = 0; !atomic_load_explicit(&stop, memory_order_relaxed); round++) {
        abi_devptr *place = &held[rand_r(&seed) % HELD];
        size_t bytes = 1 + (((size_t)rand_r(&seed) << 8) ^ (size_t)rand_r(&seed)) % most_bytes;
        if (*place) {
            check(release(*place));
            *place = 0;
        } else if (!check(alloc(place, bytes))) {
            *place = 0;
        }
        if (check(alloc_async(&pooled, bytes, NULL))) check(release_async(pooled, NULL));
        for (int i = 0; i < 4; i++) check(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        if (round % 8 == 0) {
            check(info(&left, &total));
            check(synchronize());
        }
        if (round == 0) atomic_fetch_add(&rounds, 1);
    }
    atomic_fetch_add(&paused, 1);
    while (!atomic_load(&leave)) usleep(1000);
    for (int i = 0; i < HELD; i++) {
        if (held[i]) check(release(held[i]));
    }
    return NULL;
}

static void say(void) {
    printf("{\"calls\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"lastError\":%d}\n", calls, failed, last_error);
    fflush(stdout);
}

static bool next_line(void) {
    char line[64];
    return fgets(line, sizeof line, stdin) != NULL;
}

int main(int argc, char **argv) {
    static const char KERNEL[] = ".version 8.0\n.target sm_80\n.address_size 64\n// cotenant-sim: duration_us=1\n"
                                 ".visible .entry work()\n{\n ret;\n}\n";
    pthread_t threads[MOST_THREADS];
    if (argc < 3) {
        fprintf(stderr, "usage: load THREADS MOST-BYTES [LIBRARY]\n");
        return 2;
    }
    int count = atoi(argv[1]);
    most_bytes = strtoull(argv[2], NULL, 10);
    void *driver = dlopen(argc > 3 ? argv[3] : "libcuda.so.1", RTLD_NOW);
    if (!driver || count < 1 || count > MOST_THREADS || most_bytes == 0) return 3;
#define FIND(pointer, name)                        \
    do {                                           \
        *(void **)(pointer) = dlsym(driver, name); \
        if (!*(void **)(pointer)) return 3;        \
    } while (0)
    abi_result (*init)(unsigned), (*retain)(abi_context *, abi_device);
    abi_result (*load)(abi_module *, const void *), (*get)(abi_function *, abi_module, const char *);
    abi_module module;
    FIND(&init, "cuInit");
    FIND(&retain, "cuDevicePrimaryCtxRetain");
    FIND(&load, "cuModuleLoadData");
    FIND(&get, "cuModuleGetFunction");
    FIND(&alloc, "cuMemAlloc_v2");
    FIND(&release, "cuMemFree_v2");
    FIND(&alloc_async, "cuMemAllocAsync");
    FIND(&release_async, "cuMemFreeAsync");
    FIND(&info, "cuMemGetInfo_v2");
    FIND(&set_current, "cuCtxSetCurrent");
    FIND(&synchronize, "cuCtxSynchronize");
    FIND(&launch, "cuLaunchKernel");
    if (!check(init(0)) || !check(retain(&context, 0)) || !check(set_current(context)) ||
        !check(load(&module, KERNEL)) || !check(get(&function, module, "work"))) {
        say();
        return 1;
    }
    for (int i = 0; i < count; i++) {
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(getpid() * 64 + i)) != 0) return 3;
    }
    while (atomic_load(&rounds) < (uint64_t)count) usleep(1000);
    printf("ready\n");
    fflush(stdout);
    next_line();
    atomic_store(&stop, 1);
    while (atomic_load(&paused) < (uint64_t)count) usleep(1000);
    /* What pools gave back to the GPU is seen in the account with the next call that concerns them. */
    abi_devptr pooled;
    check(synchronize());
    if (check(alloc_async(&pooled, 1, NULL))) check(release_async(pooled, NULL));
    say();
    next_line();
    atomic_store(&leave, 1);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    say();
    return 0;
}
