/* The change of engines itself, without the loader: engines.c and calls.c above engines of this file, which notice
 * calls that are in them when they are not loaded. Made to run under ThreadSanitizer, which cannot see through a
 * preloaded object: what a call reads of an engine, loading and unloading it writes, and only the lanes of calls.c keep
 * the two apart. engine_switch DIR PROCESSES THREADS ROUNDS Each process begins with the first calls of all of its
 * threads at once, while the page in DIR names one engine after the other; threads come and go; calls lie in calls,
 * take their time and ask for other engines. Prints one line of JSON. */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/interposer/libc.h"
#define cot_dlclose close_engine
static void close_engine(void *handle);
/* NOLINTNEXTLINE(bugprone-suspicious-include): what it closes is this file's */
#include "../../../../native/interposer/entry/engine_switch.c"

#define ENGINES 12u /* more than can be loaded at once */
#define LACKING 13u /* has no file */
#define ANSWER 4711u
#define MOST_THREADS 32
#define PATIENCE_S 30

static struct {
    _Atomic uint64_t calls, changes, wrong, refused, bad;
} *shared;
static const char *folder;
static unsigned long rounds;
static int page;

/* ---- engines ---- */

static struct fake {
    struct cot_engine itself;
    struct cot_served served[ENTRY_SERVED];
    int opened;   /* times, under the lock */
    int is_there; /* what a call reads, and who loads or unloads writes */
} fakes[ENGINES + 1];
static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER;
static const struct cot_services *given;
static _Thread_local unsigned luck;

static uint64_t serve(const struct fake *engine, uint64_t depth) {
    uint64_t answer = ANSWER;
    if (!engine->is_there) atomic_fetch_add(&shared->wrong, 1);
    unsigned what = (unsigned)rand_r(&luck) % 64;
    if (what < 8 && depth < 3) answer = entry_cuMemAlloc_v2(depth + 1, 0, 0, 0, 0, 0);
    else if (what < 16) sched_yield();
    else if (what == 17) usleep(100);
    else if (what == 18) given->want_engine(1 + (uint32_t)rand_r(&luck) % LACKING);
    if (!engine->is_there) atomic_fetch_add(&shared->wrong, 1);
    return answer;
}

#define ENGINE_OF(n)                                                                                    \
    static uint64_t serve_##n(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) { \
        return serve(&fakes[n], a);                                                                     \
    }
#define EACH_ENGINE(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
EACH_ENGINE(ENGINE_OF)

static bool start_fake(const struct cot_services *with) {
    return __atomic_load_n(&with->thread, __ATOMIC_RELAXED) == entry_thread_offset();
}
static void note(void) {}

static void make_fakes(void) {
    static entry_function *const functions[] = {NULL,
#define SERVE_OF(n) serve_##n,
                                                EACH_ENGINE(SERVE_OF)
#undef SERVE_OF
    };
    for (uint32_t n = 1; n <= ENGINES; n++) {
        fakes[n].itself = (struct cot_engine){.number = n, .served_count = ENTRY_SERVED, .served = fakes[n].served};
        fakes[n].itself.start = start_fake;
        fakes[n].itself.note = note;
        for (unsigned i = 0; i < ENTRY_SERVED; i++)
            fakes[n].served[i] = (struct cot_served){served_name(i), (void *)functions[n]};
    }
}

bool engine_file_open(const char *where, uint32_t number, struct engine_file *file, char *why, size_t size) {
    if (number == 0 || number > ENGINES) {
        snprintf(why, size, "there is none");
        return false;
    }
    pthread_mutex_lock(&files);
    if (fakes[number].opened++ == 0) fakes[number].is_there = 1;
    pthread_mutex_unlock(&files);
    *file = (struct engine_file){&fakes[number].itself, &fakes[number]};
    return true;
}

static void close_engine(void *handle) {
    struct fake *engine = handle;
    pthread_mutex_lock(&files);
    if (--engine->opened == 0) engine->is_there = 0;
    pthread_mutex_unlock(&files);
}

bool engine_file_fits(const struct cot_engine *engine, uint32_t number, const struct cot_services *with,
                      const struct engine_formats *formats, char *why, size_t size) {
    return engine->number == number;
}

static bool is_only_one(uint32_t number) {
    int count = 0;
    pthread_mutex_lock(&files);
    for (uint32_t n = 1; n <= ENGINES; n++) count += fakes[n].opened;
    bool only = count == 1 && fakes[number].opened == 1;
    pthread_mutex_unlock(&files);
    return only;
}

/* ---- what the names' half would give ---- */

void *shim_real_library(void) {
    return &fakes;
}
int shim_missing(void) {
    return ABI_ERROR_NOT_FOUND;
}
struct cot_services entry_services = {.bytes = sizeof entry_services,
                                      .state = &entry_state.state,
                                      .thread_bytes = sizeof(struct cot_thread),
                                      .want_engine = entry_want_engine};
bool shim_own_folder(char *path, size_t size) {
    return snprintf(path, size, "%s", folder) < (int)size;
}

/* ---- one process ---- */

static pthread_barrier_t together;
static _Atomic bool over;

static void call(void) {
    uint64_t answer = entry_cuMemGetInfo_v2(0, 0, 0, 0, 0, 0);
    atomic_fetch_add_explicit(&shared->calls, 1, memory_order_relaxed);
    if (answer != ANSWER) atomic_fetch_add(&shared->refused, 1);
}

static void *briefly(void *argument) {
    luck = (unsigned)(uintptr_t)argument;
    for (unsigned i = 0; i < luck % 16; i++) call();
    return NULL;
}

static void *call_on(void *argument) {
    pthread_t visitor;
    luck = (unsigned)(uintptr_t)argument;
    pthread_barrier_wait(&together);
    for (unsigned long round = 0; round < rounds; round++) {
        call();
        unsigned what = (unsigned)rand_r(&luck) % 1024;
        if (what == 0 && pthread_create(&visitor, NULL, briefly, (void *)(uintptr_t)rand_r(&luck)) == 0)
            pthread_detach(visitor);
    }
    while (!atomic_load(&over)) { /* so that all are out of the old engine at some time */
        call();
        usleep(200);
    }
    return NULL;
}

static void name_in_page(uint32_t number) {
    if (pwrite(page, &number, sizeof number, offsetof(struct cot_limits_page_header, engine)) != sizeof number) abort();
}

/* As an agent does it, and as an engine that has seen it. */
static void *change(void *argument) {
    luck = (unsigned)(uintptr_t)argument;
    pthread_barrier_wait(&together);
    while (!atomic_load(&over)) {
        uint32_t number = (uint32_t)rand_r(&luck) % (LACKING + 1);
        name_in_page(number);
        entry_services.want_engine(number);
        usleep(200);
    }
    return NULL;
}

static bool settles(uint32_t number) {
    const time_t until = time(NULL) + PATIENCE_S;
    while (time(NULL) < until) {
        entry_services.want_engine(number);
        call();
        if (atomic_load(&entry_state.state.engine) == number && is_only_one(number)) return true;
        usleep(200);
    }
    return false;
}

static int process(unsigned threads, unsigned seed) {
    static const uint32_t alive = 1;
    pthread_t callers[MOST_THREADS], changer;
    entry_state.state.at.alive = (volatile uint32_t *)&alive;
    atomic_store(&entry_state.state.at.attached, 1);
    given = &entry_services;
    luck = seed;
    pthread_barrier_init(&together, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&callers[i], NULL, call_on, (void *)(uintptr_t)(seed + i + 1));
    pthread_create(&changer, NULL, change, (void *)(uintptr_t)seed);
    while (atomic_load(&shared->calls) == 0) usleep(100);
    usleep((useconds_t)(100 * rounds));
    atomic_store(&over, true);
    for (unsigned i = 0; i < threads; i++) pthread_join(callers[i], NULL);
    pthread_join(changer, NULL);
    bool settled = settles(1 + seed % ENGINES);
    atomic_fetch_add(&shared->changes, switches);
    return settled ? 0 : 1;
}

int main(int argc, char **argv) {
    int count = argc == 5 ? atoi(argv[2]) : 0, threads = argc == 5 ? atoi(argv[3]) : 0;
    if (count < 1 || threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "usage: engine_switch DIR PROCESSES THREADS ROUNDS\n");
        return 2;
    }
    char path[4096];
    folder = argv[1];
    rounds = strtoul(argv[4], NULL, 10);
    snprintf(path, sizeof path, "%s/limits", folder);
    page = open(path, O_RDWR | O_CLOEXEC);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page < 0 || shared == MAP_FAILED) return 3;
    make_fakes();
    for (int i = 0; i < count; i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) exit(process((unsigned)threads, (unsigned)i * 100 + 1));
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) atomic_fetch_add(&shared->bad, 1);
    }
    printf("{\"calls\":%" PRIu64 ",\"changes\":%" PRIu64 ",\"wrong\":%" PRIu64 ",\"refused\":%" PRIu64
           ",\"badProcesses\":%" PRIu64 "}\n",
           shared->calls, shared->changes, shared->wrong, shared->refused, shared->bad);
    return 0;
}
