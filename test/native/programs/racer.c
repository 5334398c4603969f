/* Many processes that allocate and free at random against one grant; optionally some are killed all the time.
 *   racer WORKERS SECONDS KILLS-PER-SECOND MAX-BYTES SEED [ATTEMPTS]
 * It goes on until all of those kills were made, and with ATTEMPTS until so many requests were. Prints one JSON line:
 * attempts, granted, refused, other failures, kills, longest call in ms, wrong bytes found. Each worker writes its own
 * pattern into what it gets and checks it before it frees. */
#include <dlfcn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../native/abi/cuda.h"

#define MOST 64
#define PROBE 64 /* bytes written and checked at both ends of each block */

struct shared {
    _Atomic uint64_t attempts, granted, refused, failed, wrong, started;
    _Atomic uint64_t longest_us;
    _Atomic int go, last_error;
};
static struct shared *shared;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void note_time(double seconds) {
    uint64_t us = (uint64_t)(seconds * 1e6), seen = atomic_load(&shared->longest_us);
    while (us > seen && !atomic_compare_exchange_weak(&shared->longest_us, &seen, us)) {
    }
}

static int worker(unsigned seed, uint64_t most_bytes, double until) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    abi_result (*init)(unsigned) = dlsym(driver, "cuInit");
    abi_result (*retain)(abi_context *, abi_device) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    abi_result (*set)(abi_context) = dlsym(driver, "cuCtxSetCurrent");
    abi_result (*alloc)(abi_devptr *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    abi_result (*release)(abi_devptr) = dlsym(driver, "cuMemFree_v2");
    abi_result (*fill)(abi_devptr, unsigned char, size_t) = dlsym(driver, "cuMemsetD8_v2");
    abi_result (*fetch)(void *, abi_devptr, size_t) = dlsym(driver, "cuMemcpyDtoH_v2");
    abi_context context;
    abi_result result = init(0);
    while (!result && (result = retain(&context, 0)) == ABI_ERROR_OUT_OF_MEMORY && now() < until) {
        atomic_fetch_add(&shared->refused, 1);
        usleep(1000);
        result = ABI_SUCCESS;
    }
    if (!result) result = set(context);
    if (result) {
        atomic_store(&shared->last_error, result);
        atomic_fetch_add(&shared->failed, 1);
        return 1;
    }
    atomic_fetch_add(&shared->started, 1);
    while (!atomic_load(&shared->go)) usleep(100);
    struct {
        abi_devptr at;
        uint64_t bytes;
    } held[MOST];
    int count = 0;
    unsigned char tag = (unsigned char)(getpid() * 31 + 7), back[PROBE];
    while (now() < until) {
        if (count < MOST && rand_r(&seed) % 100 < 60) {
            uint64_t bytes = rand_r(&seed) % 4 == 0
                                 ? 1 + (uint64_t)rand_r(&seed) % 4096
                                 : 1 + ((uint64_t)rand_r(&seed) << 16 ^ (uint64_t)rand_r(&seed)) % most_bytes;
            double before = now();
            result = alloc(&held[count].at, bytes);
            note_time(now() - before);
            atomic_fetch_add(&shared->attempts, 1);
            if (result == ABI_SUCCESS) {
                atomic_fetch_add(&shared->granted, 1);
                uint64_t probe = bytes < PROBE ? bytes : PROBE;
                if (fill(held[count].at, tag, probe) || fill(held[count].at + bytes - probe, tag, probe))
                    atomic_fetch_add(&shared->failed, 1);
                held[count++].bytes = bytes;
            } else if (result == ABI_ERROR_OUT_OF_MEMORY) {
                atomic_fetch_add(&shared->refused, 1);
                if (count == 0) usleep(100);
            } else {
                atomic_store(&shared->last_error, result);
                atomic_fetch_add(&shared->failed, 1);
            }
        } else if (count > 0) {
            int k = rand_r(&seed) % count;
            uint64_t probe = held[k].bytes < PROBE ? held[k].bytes : PROBE;
            if (fetch(back, held[k].at + held[k].bytes - probe, probe)) atomic_fetch_add(&shared->failed, 1);
            for (uint64_t i = 0; i < probe; i++) {
                if (back[i] != tag) atomic_fetch_add(&shared->wrong, 1);
            }
            if ((result = release(held[k].at))) {
                atomic_store(&shared->last_error, result);
                atomic_fetch_add(&shared->failed, 1);
            }
            held[k] = held[--count];
        }
    }
    while (count > 0) release(held[--count].at);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) {
        fprintf(stderr, "usage: racer WORKERS SECONDS KILLS-PER-SECOND MAX-BYTES SEED [ATTEMPTS]\n");
        return 2;
    }
    int workers = atoi(argv[1]), kills_per_second = atoi(argv[3]);
    double seconds = atof(argv[2]);
    uint64_t most_bytes = strtoull(argv[4], NULL, 10), kills = 0, wanted = (uint64_t)(seconds * kills_per_second);
    uint64_t attempts = argc == 7 ? strtoull(argv[6], NULL, 10) : 0;
    double patience = attempts || wanted ? 3600 : 0;
    unsigned seed = (unsigned)atoi(argv[5]), sequence = 0;
    pid_t pids[256];
    if (workers < 1 || workers > 256) return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double start_by = now() + 30;
    for (int i = 0; i < workers; i++) {
        if ((pids[i] = fork()) == 0) _exit(worker(seed + sequence, most_bytes, start_by + seconds + patience));
        sequence++;
    }
    while (now() < start_by && atomic_load(&shared->started) + atomic_load(&shared->failed) < (uint64_t)workers)
        usleep(1000);
    atomic_store(&shared->go, 1);
    double until = now() + seconds, next = now();
    while (now() < until || kills < wanted || atomic_load(&shared->attempts) < attempts) {
        usleep(2000);
        if (kills_per_second == 0 || now() < next) continue;
        next += 1.0 / kills_per_second;
        int i = (int)(rand_r(&seed) % (unsigned)workers);
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        kills++;
        if ((pids[i] = fork()) == 0) _exit(worker(seed + sequence, most_bytes, until + patience));
        sequence++;
    }
    for (int i = 0; i < workers; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < workers; i++) waitpid(pids[i], NULL, 0);
    printf("{\"attempts\":%" PRIu64 ",\"granted\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"failed\":%" PRIu64
           ",\"wrongBytes\":%" PRIu64 ",\"kills\":%" PRIu64 ",\"started\":%" PRIu64
           ",\"longestMs\":%.3f,\"lastError\":%d}\n",
           shared->attempts, shared->granted, shared->refused, shared->failed, shared->wrong, kills, shared->started,
           (double)shared->longest_us / 1e3, shared->last_error);
    return 0;
}
