/* Threads that make their first CUDA calls at the same time: first_calls THREADS. Prints "waiting"; after a line on
 * standard input all threads start, and it prints how many of their calls failed and with what. Then one of them makes
 * a thousand calls a second until the next line, and it prints the same again. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"

#define MOST_THREADS 64

static abi_result (*init)(unsigned), (*retain)(abi_context *, abi_device), (*set_current)(abi_context);
static abi_result (*total)(size_t *, abi_device), (*info)(size_t *, size_t *);
static abi_result (*alloc)(abi_devptr *, size_t), (*release)(abi_devptr);
static _Atomic unsigned calls, failed, ready;
static _Atomic int last_error, go;

static bool check(abi_result result) {
    atomic_fetch_add(&calls, 1);
    if (result == ABI_SUCCESS) return true;
    atomic_store(&last_error, result);
    atomic_fetch_add(&failed, 1);
    return false;
}

static void *rush(void *argument) {
    abi_context context;
    abi_devptr pointer;
    size_t left, all;
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&go)) {
    }
    if (check(init(0)) && check(total(&all, 0)) && check(retain(&context, 0)) && check(set_current(context)) &&
        check(alloc(&pointer, 1 << 16)))
        check(release(pointer));
    check(info(&left, &all));
    return NULL;
}

static void say(void) {
    printf("{\"calls\":%u,\"failed\":%u,\"lastError\":%d}\n", calls, failed, last_error);
    fflush(stdout);
}

static bool next_line(void) {
    char line[64];
    return fgets(line, sizeof line, stdin) != NULL;
}

static _Atomic int stop;
static void *ask(void *argument) {
    abi_context context;
    size_t left, all;
    check(retain(&context, 0));
    check(set_current(context));
    while (!atomic_load(&stop)) {
        check(info(&left, &all));
        usleep(1000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MOST_THREADS], asking;
    int count = argc == 2 ? atoi(argv[1]) : 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || count < 1 || count > MOST_THREADS) return 2;
#define FIND(pointer, name)                        \
    do {                                           \
        *(void **)(pointer) = dlsym(driver, name); \
        if (!*(void **)(pointer)) return 3;        \
    } while (0)
    FIND(&init, "cuInit");
    FIND(&retain, "cuDevicePrimaryCtxRetain");
    FIND(&set_current, "cuCtxSetCurrent");
    FIND(&total, "cuDeviceTotalMem_v2");
    FIND(&info, "cuMemGetInfo_v2");
    FIND(&alloc, "cuMemAlloc_v2");
    FIND(&release, "cuMemFree_v2");
    for (int i = 0; i < count; i++) {
        if (pthread_create(&threads[i], NULL, rush, NULL) != 0) return 3;
    }
    while (atomic_load(&ready) < (unsigned)count) usleep(100);
    printf("waiting\n");
    fflush(stdout);
    next_line();
    atomic_store(&go, 1);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    say();
    if (pthread_create(&asking, NULL, ask, NULL) != 0) return 3;
    next_line();
    atomic_store(&stop, 1);
    pthread_join(asking, NULL);
    say();
    return 0;
}
