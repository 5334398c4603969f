/* Processes of one container in a storm, timed from inside.
 *   storm start COUNT    COUNT processes, let go together, each from before cuInit to a context of its own; one line of
 *                        milliseconds for each
 *   storm kill TIMES     a process that holds all that it can get is killed; microseconds from SIGKILL to the moment at
 *                        which another one, which asks all the time, has got the memory; a line for each time */
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../native/abi/cuda.h"

#define GRANULE ((size_t)2 << 20)
#define MOST 1024
#define PATIENCE_MS 10000.0

static struct shared {
    _Atomic int ready, go;
    double ms[MOST];
    /* of the kill storm: rounds that the victim holds and the survivor has has asked in vain in, and has won; what is
     * asked for */
    _Atomic int holding, asking, won;
    _Atomic uint64_t held;
} *shared;

static abi_result (*init)(unsigned);
static abi_result (*retain)(abi_context *, abi_device);
static abi_result (*set_current)(abi_context);
static abi_result (*alloc)(abi_devptr *, size_t);
static abi_result (*release)(abi_devptr);

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static bool find_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return false;
    init = (abi_result (*)(unsigned))dlsym(driver, "cuInit");
    retain = (abi_result (*)(abi_context *, abi_device))dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = (abi_result (*)(abi_context))dlsym(driver, "cuCtxSetCurrent");
    alloc = (abi_result (*)(abi_devptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
    release = (abi_result (*)(abi_devptr))dlsym(driver, "cuMemFree_v2");
    return init && retain && set_current && alloc && release;
}

static void must(abi_result result, const char *what) {
    if (result == ABI_SUCCESS) return;
    fprintf(stderr, "storm: %s failed with %d\n", what, result);
    _exit(1);
}

static void start_context(void) {
    abi_context context;
    if (!find_driver()) _exit(3);
    must(init(0), "cuInit");
    must(retain(&context, 0), "a context");
    must(set_current(context), "cuCtxSetCurrent");
}

static void wait_for(_Atomic int *counter, int value) {
    while (atomic_load(counter) < value) usleep(100);
}

/* A starting line that costs nothing while it is waited at: the reader goes on when the last writer closes. */
struct line {
    int ends[2];
};

static void wait_at(struct line *line) {
    char nothing;
    close(line->ends[1]);
    (void)!read(line->ends[0], &nothing, 1);
}

static int start(int count) {
    struct line begin, leave;
    if (pipe(begin.ends) != 0 || pipe(leave.ends) != 0) return 1;
    for (int i = 0; i < count; i++) {
        if (fork() != 0) continue;
        atomic_fetch_add(&shared->ready, 1);
        wait_at(&begin);
        double before = now_ms();
        start_context();
        shared->ms[i] = now_ms() - before;
        /* No process ends before all have started: they are one container's processes at one time. */
        atomic_fetch_add(&shared->ready, 1);
        wait_at(&leave);
        _exit(0);
    }
    wait_for(&shared->ready, count);
    close(begin.ends[1]);
    double until = now_ms() + 6 * PATIENCE_MS;
    while (atomic_load(&shared->ready) < 2 * count && now_ms() < until) usleep(1000);
    bool all = atomic_load(&shared->ready) == 2 * count;
    close(leave.ends[1]);
    while (wait(NULL) > 0) {
    }
    for (int i = 0; all && i < count; i++) printf("%.4f\n", shared->ms[i]);
    return all ? 0 : 1;
}

/* Holds all that can be had, with ever smaller requests. */
static uint64_t fill(void) {
    abi_devptr at;
    uint64_t total = 0;
    for (size_t size = (size_t)1 << 36; size >= GRANULE; size /= 2) {
        while (alloc(&at, size) == ABI_SUCCESS) total += size;
    }
    return total;
}

static void survive(int times) {
    start_context();
    atomic_store(&shared->ready, 1);
    for (int round = 1; round <= times; round++) {
        abi_devptr at;
        wait_for(&shared->holding, round);
        while (alloc(&at, atomic_load(&shared->held)) != ABI_SUCCESS) atomic_store(&shared->asking, round);
        shared->ms[round - 1] = now_ms();
        must(release(at), "a free");
        atomic_store(&shared->won, round);
    }
    _exit(0);
}

/* The survivor is a child, too: a process that forks must not have started CUDA. */
static int kill_storm(int times) {
    pid_t survivor = fork();
    if (survivor == 0) survive(times);
    wait_for(&shared->ready, 1);
    for (int round = 1; round <= times; round++) {
        pid_t victim = fork();
        if (victim == 0) {
            start_context();
            atomic_store(&shared->held, fill());
            atomic_store(&shared->holding, round);
            for (;;) pause();
        }
        wait_for(&shared->asking, round);
        double killed = now_ms(), until = killed + PATIENCE_MS;
        kill(victim, SIGKILL);
        while (atomic_load(&shared->won) < round) {
            if (now_ms() > until) {
                kill(survivor, SIGKILL);
                fputs("storm: the memory of a killed process does not come back\n", stderr);
                return 1;
            }
            usleep(100);
        }
        printf("%.3f\n", (shared->ms[round - 1] - killed) * 1e3);
        waitpid(victim, NULL, 0);
    }
    return waitpid(survivor, NULL, 0) == survivor ? 0 : 1;
}

int main(int argc, char **argv) {
    int count = argc == 3 ? atoi(argv[2]) : 0;
    bool starting = argc == 3 && !strcmp(argv[1], "start"), killing = argc == 3 && !strcmp(argv[1], "kill");
    if (count < 1 || count > MOST || (!starting && !killing)) {
        fputs("usage: storm start COUNT|kill TIMES\n", stderr);
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    return starting ? start(count) : kill_storm(count);
}
