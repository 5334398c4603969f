/* Processes at full rate that are killed, forked and replaced by exec all the time: kill_fork_exec WORKERS THREADS
 *   SEED KILLS
 * Each worker's threads allocate, free, use pools and launch; its first thread forks children that call too, or
 * executes the program again in its place; and workers are killed and restarted. The results of workers are counted;
 * the driver refuses a forked child, but must return. Lines on standard input: after the first one and KILLS kills, no
 * process is killed any more, the workers continue, and their PIDs are printed; at the second line they stop, keep
 * their memory, and the counts are printed; the third one ends all. */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
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

#define MOST_WORKERS 16
#define MOST_THREADS 8
#define HELD 8
#define SHARED_FD 200
#define KILL_US 15000
#define HANGS_AFTER_S 20.0

struct shared {
    _Atomic uint64_t calls, failed, kills, forks, execs, started, child_calls, child_unlike, hung;
    _Atomic int last_error, calm, stop, leave;
    int threads;
    struct place {
        _Atomic int paused; /* all threads have stopped, and hold what they have */
        /* When the call began that the thread is in, by pid << 32 | ms; 0: in none. The last one is that of children.
         */
        _Atomic uint64_t since[MOST_THREADS + 1];
    } place[MOST_WORKERS];
};
static struct shared *shared;
static struct place *own;

static abi_result (*init)(unsigned), (*retain)(abi_context *, abi_device), (*set_current)(abi_context);
static abi_result (*alloc)(abi_devptr *, size_t), (*release)(abi_devptr);
static abi_result (*alloc_async)(abi_devptr *, size_t, abi_stream), (*release_async)(abi_devptr, abi_stream);
static abi_result (*info)(size_t *, size_t *), (*synchronize)(void);
static abi_result (*load)(abi_module *, const void *), (*get)(abi_function *, abi_module, const char *);
static abi_result (*launch)(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            abi_stream, void **, void **);
static abi_context context;
static abi_function function;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- calls ---- */

static _Thread_local unsigned line_of_calls;

static void begin_call(void) {
    uint64_t ms = (uint64_t)(now() * 1000) & UINT32_MAX;
    atomic_store_explicit(&own->since[line_of_calls], (uint64_t)getpid() << 32 | ms, memory_order_relaxed);
}

static bool end_call(abi_result result) {
    atomic_store_explicit(&own->since[line_of_calls], 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&shared->calls, 1, memory_order_relaxed);
    if (result == ABI_SUCCESS) return true;
    atomic_store(&shared->last_error, result);
    atomic_fetch_add(&shared->failed, 1);
    return false;
}
#define CALL(call) (begin_call(), end_call(call))

static _Atomic int arrived;
static void *work(void *argument) {
    unsigned seed = (unsigned)(getpid() * 64) + (unsigned)(uintptr_t)argument;
    abi_devptr held[HELD] = {0}, pooled;
    size_t left, total;
    line_of_calls = (unsigned)(uintptr_t)argument;
    CALL(set_current(context));
    for (unsigned round = 0; !atomic_load_explicit(&shared->stop, memory_order_relaxed); round++) {
        abi_devptr *place = &held[rand_r(&seed) % HELD];
        size_t bytes = 1 + (((size_t)rand_r(&seed) << 8) ^ (size_t)rand_r(&seed)) % (1u << 20);
        if (*place) {
            CALL(release(*place));
            *place = 0;
        } else if (!CALL(alloc(place, bytes))) {
            *place = 0;
        }
        if (CALL(alloc_async(&pooled, bytes, NULL))) CALL(release_async(pooled, NULL));
        for (int i = 0; i < 4; i++) CALL(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        if (round % 8 == 0) {
            CALL(info(&left, &total));
            CALL(synchronize());
        }
    }
    if (atomic_fetch_add(&arrived, 1) + 1 == shared->threads) {
        /* What pools gave back to the GPU is seen in the account with the next call that concerns them. */
        CALL(synchronize());
        if (CALL(alloc_async(&pooled, 1, NULL))) CALL(release_async(pooled, NULL));
        atomic_store(&own->paused, 1);
    }
    while (!atomic_load(&shared->leave)) usleep(1000);
    return NULL;
}

/* ---- what becomes of a worker ---- */

static void again(char **argv) {
    atomic_fetch_add(&shared->execs, 1);
    execv("/proc/self/exe", argv);
    _exit(4);
}

/* Its parent's threads may have left libc's locks in any state: a raw clone says so, and such a child only calls. */
static _Noreturn void child(unsigned seed) {
    abi_devptr pointer;
    size_t left, total;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    line_of_calls = MOST_THREADS;
    for (unsigned i = 0, end = (unsigned)rand_r(&seed) % 64; i < end; i++) {
        begin_call();
        abi_result results[] = {alloc(&pointer, 1 << 20), info(&left, &total), release(0x1000), init(0),
                                set_current(context)};
        atomic_store(&own->since[line_of_calls], 0);
        for (unsigned k = 0; k < sizeof results / sizeof *results; k++) {
            atomic_fetch_add(&shared->child_calls, 1);
            if (results[k] != ABI_ERROR_NOT_INITIALIZED) atomic_fetch_add(&shared->child_unlike, 1);
        }
    }
    _exit(0);
}

static bool have_child(unsigned seed, bool raw) {
    int status;
    atomic_fetch_add(&shared->forks, 1);
    pid_t pid = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
    if (pid == 0) child(seed);
    if (pid < 0) return false;
    if (seed % 4 == 0) { /* amid its calls, perhaps */
        usleep(seed % 2000);
        kill(pid, SIGKILL);
    }
    while (waitpid(pid, &status, 0) != pid) {
    }
    atomic_store(&own->since[MOST_THREADS], 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0;
}

static bool find(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const struct {
        void *pointer;
        const char *name;
    } names[] = {
        {&init, "cuInit"},
        {&retain, "cuDevicePrimaryCtxRetain"},
        {&set_current, "cuCtxSetCurrent"},
        {&alloc, "cuMemAlloc_v2"},
        {&release, "cuMemFree_v2"},
        {&alloc_async, "cuMemAllocAsync"},
        {&release_async, "cuMemFreeAsync"},
        {&info, "cuMemGetInfo_v2"},
        {&synchronize, "cuCtxSynchronize"},
        {&load, "cuModuleLoadData"},
        {&get, "cuModuleGetFunction"},
        {&launch, "cuLaunchKernel"},
    };
    for (size_t i = 0; driver && i < sizeof names / sizeof *names; i++) {
        *(void **)names[i].pointer = dlsym(driver, names[i].name);
        if (!*(void **)names[i].pointer) return false;
    }
    return driver != NULL;
}

static int worker(char **argv) {
    static const char KERNEL[] = ".version 8.0\n.target sm_80\n.address_size 64\n// cotenant-sim: duration_us=1\n"
                                 ".visible .entry work()\n{\n ret;\n}\n";
    unsigned seed = (unsigned)getpid() * 31 + (unsigned)time(NULL);
    pthread_t threads[MOST_THREADS] = {0};
    abi_module module;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
    if (shared == MAP_FAILED || !find()) return 3;
    own = &shared->place[atoi(argv[2])];
    atomic_store(&own->paused, 0);
    if (!CALL(init(0)) || !CALL(retain(&context, 0)) || !CALL(set_current(context)) || !CALL(load(&module, KERNEL)) ||
        !CALL(get(&function, module, "work")))
        return 1;
    for (int i = 0; i < shared->threads; i++) {
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) != 0) return 3;
    }
    atomic_fetch_add(&shared->started, 1);
    while (!atomic_load(&shared->calm)) {
        unsigned what = (unsigned)rand_r(&seed) % 8;
        usleep((useconds_t)rand_r(&seed) % 20000);
        if (what == 0) again(argv);
        if (what < 4 && !have_child((unsigned)rand_r(&seed), what % 2)) atomic_fetch_add(&shared->child_unlike, 1);
    }
    for (int i = 0; i < shared->threads; i++) pthread_join(threads[i], NULL);
    return 0;
}

/* ---- who starts and kills them ---- */

static pid_t start(int index) {
    char number[16];
    char *words[] = {"kill_fork_exec", "worker", number, NULL};
    snprintf(number, sizeof number, "%d", index);
    memset((void *)shared->place[index].since, 0, sizeof shared->place[index].since);
    pid_t pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", words);
        _exit(4);
    }
    return pid;
}

/* Counts calls that do not come back. */
static void look_for_the_hung(int workers) {
    uint32_t ms = (uint32_t)(uint64_t)(now() * 1000);
    for (int i = 0; i < workers; i++) {
        for (unsigned k = 0; k <= MOST_THREADS; k++) {
            uint64_t since = atomic_load(&shared->place[i].since[k]);
            if (since && (int32_t)(ms - (uint32_t)since) > (int32_t)(HANGS_AFTER_S * 1000)) {
                fprintf(stderr, "upheaval: process %d is in a call that does not end\n", (int)(since >> 32));
                atomic_fetch_add(&shared->hung, 1);
                atomic_store(&shared->place[i].since[k], 0);
            }
        }
    }
}

static _Atomic int lines;
static void *read_lines(void *argument) {
    char line[64];
    while (fgets(line, sizeof line, stdin)) atomic_fetch_add(&lines, 1);
    atomic_store(&lines, 3);
    return NULL;
}

/* A worker whose program runs again in its place just now comes back; one that has ended by itself is a failure. */
static bool wait_for_pauses(int workers) {
    double until = now() + HANGS_AFTER_S * 2;
    for (int i = 0; i < workers;) {
        look_for_the_hung(workers);
        if (atomic_load(&shared->place[i].paused)) i++;
        else if (now() > until) return false;
        else usleep(1000);
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "worker")) return worker(argv);
    int workers = argc == 5 ? atoi(argv[1]) : 0, threads = argc == 5 ? atoi(argv[2]) : 0;
    if (workers < 1 || workers > MOST_WORKERS || threads < 1 || threads > MOST_THREADS) return 2;
    unsigned seed = (unsigned)atoi(argv[3]);
    pid_t pids[MOST_WORKERS];
    pthread_t reader;
    int fd = memfd_create("kill_fork_exec", 0);
    if (fd < 0 || ftruncate(fd, sizeof *shared) != 0 || dup2(fd, SHARED_FD) < 0) return 3;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return 3;
    shared->threads = threads;
    for (int i = 0; i < workers; i++) {
        if ((pids[i] = start(i)) < 0) return 3;
    }
    if (pthread_create(&reader, NULL, read_lines, NULL) != 0) return 3;
    while (atomic_load(&lines) < 1 || atomic_load(&shared->kills) < strtoull(argv[4], NULL, 10)) {
        usleep(KILL_US);
        int i = (int)((unsigned)rand_r(&seed) % (unsigned)workers);
        look_for_the_hung(workers);
        if (kill(pids[i], SIGKILL) != 0 || waitpid(pids[i], NULL, 0) != pids[i]) return 3;
        atomic_fetch_add(&shared->kills, 1);
        if ((pids[i] = start(i)) < 0) return 3;
    }
    atomic_store(&shared->calm, 1);
    printf("[");
    for (int i = 0; i < workers; i++) printf("%s%d", i ? "," : "", (int)pids[i]);
    printf("]\n");
    fflush(stdout);
    while (atomic_load(&lines) < 2) {
        usleep(1000);
        look_for_the_hung(workers);
    }
    atomic_store(&shared->stop, 1);
    bool paused = wait_for_pauses(workers);
    printf("{\"calls\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"lastError\":%d,\"kills\":%" PRIu64 ",\"forks\":%" PRIu64
           ",\"execs\":%" PRIu64 ",\"started\":%" PRIu64 ",\"childCalls\":%" PRIu64 ",\"childUnlike\":%" PRIu64
           ",\"hung\":%" PRIu64 ",\"paused\":%s}\n",
           shared->calls, shared->failed, shared->last_error, shared->kills, shared->forks, shared->execs,
           shared->started, shared->child_calls, shared->child_unlike, shared->hung, paused ? "true" : "false");
    fflush(stdout);
    while (atomic_load(&lines) < 3) usleep(1000);
    atomic_store(&shared->leave, 1);
    for (int i = 0; i < workers; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < workers; i++) waitpid(pids[i], NULL, 0);
    return 0;
}
