/* Many processes that allocate and free at random against one grant; optionally some are killed all the time.
 *   racer workers=N bytes=MOST [seconds=S] [kills=PER-SECOND] [attempts=N] [hold=N] [pause=US] [spaces=0|1|2] [seed=N]
 *         [probe=0|1]
 * It goes on until all of those kills were made, and until so many requests were. A worker holds up to `hold` blocks at
 * a time and pauses so long after each step. With spaces=1 each worker is in a PID namespace of its own, with 2 in a
 * user namespace of its own as well. Prints one JSON line: attempts, granted, refused, other failures, kills, longest
 * call in ms, the longest without what the machine took of it (the worker waited for a processor, or a whole processor
 * was away), the longest time that a processor was away, wrong bytes found. Unless probe=0, each worker writes its own
 * pattern into what it gets and checks it before it frees. */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"

#define MOST 64
#define PROBE 64 /* bytes written and checked at both ends of each block */

struct shared {
    _Atomic uint64_t attempts, granted, refused, failed, wrong, started;
    _Atomic uint64_t longest_us, longest_stall_us;
    _Atomic uint64_t away_us, longest_away_us; /* of processors, all of them together, and the longest time of one */
    _Atomic int go, last_error;
};
static struct shared *shared;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void note_most(_Atomic uint64_t *most, double seconds) {
    uint64_t us = seconds > 0 ? (uint64_t)(seconds * 1e6) : 0, seen = atomic_load(most);
    while (us > seen && !atomic_compare_exchange_weak(most, &seen, us)) {
    }
}

/* Seconds that this thread was ready to run and had no processor. */
static double waited_for_cpu(void) {
    static int fd = -1;
    char text[128];
    uint64_t ran, waited;
    if (fd < 0) fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    if (length <= 0) return 0;
    text[length] = 0;
    return sscanf(text, "%" SCNu64 " %" SCNu64, &ran, &waited) == 2 ? (double)waited / 1e9 : 0;
}

#define LOOK_NS 1000000
#define LEAST_AWAY_US 500

/* The host of this machine may take a processor away, with the thread that ran on it and all that wait for it:
 * only a clock shows that. One of these is on each processor, before all others; what it comes too late, the
 * processor was away. */
static void watch_processor(long processor) {
    cpu_set_t only;
    struct sched_param first = {.sched_priority = 1};
    CPU_ZERO(&only);
    CPU_SET((size_t)processor, &only);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (sched_setaffinity(0, sizeof only, &only) != 0 || sched_setscheduler(0, SCHED_FIFO, &first) != 0) _exit(0);
    for (;;) {
        double due = now() + LOOK_NS / 1e9;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        double late_us = (now() - due) * 1e6;
        if (late_us < LEAST_AWAY_US) continue;
        atomic_fetch_add(&shared->away_us, (uint64_t)late_us);
        note_most(&shared->longest_away_us, late_us / 1e6);
    }
}

/* They end with this process. */
static void watch_processors(void) {
    for (long i = 0; i < sysconf(_SC_NPROCESSORS_CONF); i++) {
        pid_t pid = fork();
        if (pid < 0) perror("racer");
        if (pid == 0) watch_processor(i);
    }
}

static struct {
    long workers, kills, spaces, pause, hold, probe;
    double seconds;
    uint64_t bytes, attempts, seed;
} options = {.hold = MOST, .probe = 1, .seed = 1};

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
        if (options.pause) usleep((useconds_t)options.pause);
        if (count < options.hold && rand_r(&seed) % 100 < 60) {
            uint64_t bytes = rand_r(&seed) % 4 == 0
                                 ? 1 + (uint64_t)rand_r(&seed) % 4096
                                 : 1 + ((uint64_t)rand_r(&seed) << 16 ^ (uint64_t)rand_r(&seed)) % most_bytes;
            double queued = waited_for_cpu(), before = now();
            uint64_t away_us = atomic_load(&shared->away_us);
            result = alloc(&held[count].at, bytes);
            double took = now() - before;
            note_most(&shared->longest_us, took);
            if (took > 1e-3) {
                double away = (double)(atomic_load(&shared->away_us) - away_us) / 1e6;
                note_most(&shared->longest_stall_us, took - (waited_for_cpu() - queued) - away);
            }
            atomic_fetch_add(&shared->attempts, 1);
            if (result == ABI_SUCCESS) {
                atomic_fetch_add(&shared->granted, 1);
                uint64_t probe = bytes < PROBE ? bytes : PROBE;
                if (options.probe &&
                    (fill(held[count].at, tag, probe) || fill(held[count].at + bytes - probe, tag, probe)))
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
            uint64_t probe = !options.probe ? 0 : held[k].bytes < PROBE ? held[k].bytes : PROBE;
            if (probe && fetch(back, held[k].at + held[k].bytes - probe, probe)) atomic_fetch_add(&shared->failed, 1);
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

/* As fork, into namespaces of its own where they are asked for. */
static pid_t start(uint64_t sequence, double until) {
    unsigned long flags = (options.spaces > 0 ? CLONE_NEWPID : 0) | (options.spaces > 1 ? CLONE_NEWUSER : 0);
    pid_t pid = flags ? (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL) : fork();
    if (pid == 0) _exit(worker((unsigned)(options.seed + sequence), options.bytes, until));
    if (pid < 0) perror("racer");
    return pid;
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *equals = strchr(argv[i], '='), *end = NULL;
        static const char *const NAMES[] = {"workers", "kills", "spaces",   "pause", "hold",
                                            "probe",   "bytes", "attempts", "seed"};
        long *const places[] = {&options.workers, &options.kills, &options.spaces,
                                &options.pause,   &options.hold,  &options.probe};
        uint64_t *const large[] = {&options.bytes, &options.attempts, &options.seed};
        const size_t small = sizeof places / sizeof *places;
        bool known = false;
        if (equals) *equals++ = 0;
        for (size_t k = 0; equals && k < sizeof NAMES / sizeof *NAMES; k++) {
            if (strcmp(argv[i], NAMES[k]) != 0) continue;
            uint64_t value = strtoull(equals, &end, 10);
            if (k < small) *places[k] = (long)value;
            else *large[k - small] = value;
            known = *equals && !*end;
        }
        if (equals && !strcmp(argv[i], "seconds")) {
            options.seconds = strtod(equals, &end);
            known = *equals && !*end;
        }
        if (known) continue;
        fprintf(stderr, "racer: what is %s?\n", argv[i]);
        exit(2);
    }
    if (options.workers >= 1 && options.workers <= 256 && options.hold >= 1 && options.hold <= MOST &&
        options.bytes > 0)
        return;
    fputs("racer: workers (up to 256), bytes and hold (up to 64) are needed\n", stderr);
    exit(2);
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    int workers = (int)options.workers;
    uint64_t kills = 0, wanted = (uint64_t)(options.seconds * (double)options.kills), sequence = 0;
    double patience = options.attempts || wanted ? 3600 : 0;
    unsigned seed = (unsigned)options.seed;
    pid_t pids[256];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    watch_processors();
    double start_by = now() + 30;
    for (int i = 0; i < workers; i++) {
        if ((pids[i] = start(sequence++, start_by + options.seconds + patience)) < 0) return 1;
    }
    while (now() < start_by && atomic_load(&shared->started) + atomic_load(&shared->failed) < (uint64_t)workers)
        usleep(1000);
    atomic_store(&shared->go, 1);
    double until = now() + options.seconds, next = now();
    while (now() < until || kills < wanted || atomic_load(&shared->attempts) < options.attempts) {
        usleep(2000);
        if (options.kills == 0 || now() < next) continue;
        next += 1.0 / (double)options.kills;
        int i = (int)(rand_r(&seed) % (unsigned)workers);
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
        kills++;
        if ((pids[i] = start(sequence++, until + patience)) < 0) return 1;
    }
    for (int i = 0; i < workers; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < workers; i++) waitpid(pids[i], NULL, 0);
    printf("{\"attempts\":%" PRIu64 ",\"granted\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"failed\":%" PRIu64
           ",\"wrongBytes\":%" PRIu64 ",\"kills\":%" PRIu64 ",\"started\":%" PRIu64
           ",\"longestMs\":%.3f,\"longestStallMs\":%.3f,\"awayMs\":%.3f,\"longestAwayMs\":%.3f,\"lastError\":%d}\n",
           shared->attempts, shared->granted, shared->refused, shared->failed, shared->wrong, kills, shared->started,
           (double)shared->longest_us / 1e3, (double)shared->longest_stall_us / 1e3, (double)shared->away_us / 1e3,
           (double)shared->longest_away_us / 1e3, shared->last_error);
    return 0;
}
