/* One process of a random program: finds the driver as most programs do, does what the conductor asks for, and keeps
 * count of what it has, so that later steps can use it. */
#include "worker.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define CONDUCTOR 3 /* its socket: survives an exec */

struct shared *shared;
int gpu_of[GPUS];
static struct sim_plan *plan;
static struct lane lanes[LANES];
static void *driver;

void *driver_find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) {
        fprintf(stderr, "random_programs: no %s: %s\n", name, dlerror());
        _exit(3);
    }
    return function;
}

/* The object's own table of names, read without libc. */
void *driver_behind(const char *name) {
    char path[4200];
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("LD_LIBRARY_PATH"));
    const struct link_map *map = dlopen(path, RTLD_NOW);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (const ElfW(Dyn) *entry = map ? map->l_ld : NULL; entry && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) table = (const void *)entry->d_un.d_ptr;
    }
    if (!symbols || !strings || !table) _exit(3);
    const uint32_t *buckets = table + 4 + (size_t)table[2] * 2, *chain = buckets + table[0];
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++) hash = hash * 33 + (unsigned char)*c;
    for (uint32_t i = buckets[hash % table[0]]; i >= table[1] && i; i++) {
        if (!strcmp(strings + symbols[i].st_name, name)) return (char *)map->l_addr + symbols[i].st_value;
        if (chain[i - table[1]] & 1) break;
    }
    _exit(3);
}

bool worker_injected(void) {
    return atomic_load(&plan->met) && plan->act == SIM_PLAN_FAIL;
}

int other_device(const struct lane *lane, uint64_t number) {
    int device = current_device(lane);
    return device < 0 || number % 4 == 0 ? (int)(number / 4 % GPUS) : device;
}

int current_device(const struct lane *lane) {
    for (unsigned i = 0; i < lane->contexts.count; i++) {
        if (lane->contexts.at[i].handle == lane->current) return lane->contexts.at[i].device;
    }
    return -1;
}

uint64_t whole(int device, uint64_t bytes) {
    uint64_t granule = shared->granule[gpu_of[device]];
    return (bytes + granule - 1) / granule * granule;
}

bool granted(struct lane *lane, abi_result result, int device, uint64_t need) {
    lane->answer.result = result;
    if (result == ABI_ERROR_OUT_OF_MEMORY && device >= 0 && !worker_injected()) {
        lane->answer.refused = true;
        lane->answer.refusals++;
        lane->answer.need[gpu_of[device]] = need;
    }
    return result == ABI_SUCCESS;
}

/* ---- letters ---- */

/* The very file that the other has opened, as a socket would bring it. */
static int file_of(const struct letter *letter) {
    int process = letter->fd < 0 ? -1 : (int)syscall(SYS_pidfd_open, letter->pid, 0);
    int fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, letter->fd, 0);
    if (process >= 0) close(process);
    return fd;
}

bool letter_any(enum letter_kind kind, uint64_t number, struct letter *copy, int *fd) {
    for (unsigned i = 0; i < LETTERS; i++) {
        struct letter *letter = &shared->letters[(number + i) % LETTERS];
        uint32_t version = atomic_load(&letter->version);
        memcpy(copy, letter, sizeof *copy);
        if (version % 2 || copy->kind != kind) continue;
        *fd = file_of(copy);
        if (atomic_load(&letter->version) == version && (*fd >= 0 || copy->fd < 0)) return true;
        if (*fd >= 0) close(*fd);
    }
    return false;
}

void letter_put(uint64_t number, enum letter_kind kind, int fd, uint64_t bytes, const void *text, size_t size) {
    struct letter *letter = &shared->letters[number % LETTERS];
    uint32_t version = atomic_load(&letter->version);
    if (version % 2 || !atomic_compare_exchange_strong(&letter->version, &version, version + 1)) {
        if (fd >= 0) close(fd); /* another is writing it */
        return;
    }
    if (letter->kind != NO_LETTER && letter->pid == getpid() && letter->fd >= 0) close(letter->fd);
    letter->kind = kind;
    letter->pid = getpid();
    letter->fd = fd;
    letter->bytes = bytes;
    if (text) memcpy(letter->text, text, size);
    atomic_store(&letter->version, version + 2);
}

/* ---- what goes with a context ---- */

static void nothing_left_on(struct lane *lane, int device) {
    for (unsigned i = 0; i < lane->contexts.count; i++) {
        if (lane->contexts.at[i].device == device) return;
    }
    for (unsigned i = lane->pieces.count; i-- > 0;) {
        if (lane->pieces.at[i].device == device) REMOVE(lane->pieces, i);
    }
    for (unsigned i = 0; i < lane->graphs.count; i++) lane->graphs.at[i].dead = true;
}

void context_gone(struct lane *lane, abi_context handle) {
    int device = -1;
    for (unsigned i = lane->contexts.count; i-- > 0;) {
        if (lane->contexts.at[i].handle != handle) continue;
        device = lane->contexts.at[i].device;
        REMOVE(lane->contexts, i);
    }
    for (unsigned i = lane->blocks.count; i-- > 0;) {
        if (lane->blocks.at[i].context == handle) REMOVE(lane->blocks, i);
    }
    for (unsigned i = lane->arrays.count; i-- > 0;) {
        if (lane->arrays.at[i].context == handle) REMOVE(lane->arrays, i);
    }
    for (unsigned i = lane->externals.count; i-- > 0;) {
        if (lane->externals.at[i].context == handle) REMOVE(lane->externals, i);
    }
    for (unsigned i = lane->streams.count; i-- > 0;) {
        if (lane->streams.at[i].context != handle) continue;
        CU("cuStreamDestroy_v2", (abi_stream), lane->streams.at[i].handle);
        REMOVE(lane->streams, i);
    }
    if (device >= 0) nothing_left_on(lane, device);
    if (lane->current == handle) go_to(lane, lane->contexts.count ? lane->contexts.at[0].handle : NULL);
}

void context_left(struct lane *lane, abi_context handle, abi_context successor) {
    for (unsigned i = 0; i < lane->blocks.count; i++) {
        if (lane->blocks.at[i].context == handle) lane->blocks.at[i].context = successor;
    }
    for (unsigned i = 0; i < lane->arrays.count; i++) {
        if (lane->arrays.at[i].context == handle) lane->arrays.at[i].context = successor;
    }
    for (unsigned i = 0; i < lane->externals.count; i++) {
        if (lane->externals.at[i].context == handle) lane->externals.at[i].context = successor;
    }
}

void go_to(struct lane *lane, abi_context handle) {
    if (CU("cuCtxSetCurrent", (abi_context), handle) == ABI_SUCCESS) lane->current = handle;
}

/* ---- the ledger, updated ---- */

static bool settle_pool(abi_pool pool) {
    return CU("cuMemPoolTrimTo", (abi_pool, size_t), pool, (size_t)-1) == ABI_SUCCESS;
}

/* A query of free memory looks where the streams are. */
static bool settle_ordered(const struct lane *lane) {
    bool all = true;
    size_t left, total;
    abi_context popped;
    for (unsigned i = 0; i < lane->contexts.count; i++) {
        if (CU("cuCtxPushCurrent_v2", (abi_context), lane->contexts.at[i].handle) != ABI_SUCCESS) return false;
        all = CU("cuCtxSynchronize", (void)) == ABI_SUCCESS && all;
        all = CU("cuMemGetInfo_v2", (size_t *, size_t *), &left, &total) == ABI_SUCCESS && all;
        for (int tries = 0; tries < 2; tries++)
            if (CU("cuCtxPopCurrent_v2", (abi_context *), &popped) == ABI_SUCCESS) break;
    }
    return all;
}

bool settle(struct lane *lane) {
    bool all = true;
    if (lane->ordered_left) all = settle_ordered(lane);
    for (int device = 0; device < (int)GPUS; device++) {
        abi_pool pool;
        all = CU("cuDeviceGetDefaultMemPool", (abi_pool *, abi_device), &pool, device) == ABI_SUCCESS && all;
        all = all && settle_pool(pool);
    }
    for (unsigned i = 0; i < lane->pools.count; i++) all = settle_pool(lane->pools.at[i].handle) && all;
    if (lane->pool_left) { /* a query of free memory waits for what is being freed */
        size_t left, total;
        all = lane->current && CU("cuMemGetInfo_v2", (size_t *, size_t *), &left, &total) == ABI_SUCCESS && all;
    }
    lane->answer.stale = !all || worker_injected();
    lane->ordered_left = lane->ordered_left && lane->answer.stale;
    return all;
}

static void settle_graphs(void) {
    for (int device = 0; device < (int)GPUS; device++) CU("cuDeviceGraphMemTrim", (abi_device), device);
}

/* ---- steps ---- */

static void forget_last_answer(struct lane *lane) {
    lane->answer = (struct answer){.stale = lane->answer.stale, .away = lane->answer.away};
}

static void do_step(struct lane *lane, const struct step *step) {
    if (step->verb < VERB_FIRST || step->verb - VERB_FIRST >= verb_count) return;
    const struct verb *verb = &verbs[step->verb - VERB_FIRST];
    if (!(shared->verbs >> (step->verb - VERB_FIRST) & 1)) return;
    if (verb->alone && lane->lanes > 1) return;
    if (lane->answer.away && verb->run != verb_checkpoint) return;               /* every other call would wait */
    if (!lane->current && verb->run != verb_checkpoint && step->random[5] % 8) { /* little happens without a context */
        if (lane->contexts.count) go_to(lane, lane->contexts.at[0].handle);
        else verb_primary(lane, step);
        if (lane->answer.refused) return;
    }
    verb->run(lane, step);
}

static void bear(const struct request *request, struct answer *answer) {
    char program[4096] = {0};
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) _exit(3);
    pid_t child = fork();
    if (child == 0) {
        close(CONDUCTOR);
        execl(program, program, "--worker", request->socket, (char *)NULL);
        _exit(127);
    }
    answer->born = child;
}

/* The program after this one is the same process, and has other files under the numbers that letters name. */
static void become_another(const struct request *request) {
    char program[4096] = {0};
    for (unsigned i = 0; i < LETTERS; i++) {
        if (shared->letters[i].pid == getpid()) letter_put(i, NO_LETTER, -1, 0, NULL, 0);
    }
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) _exit(3);
    execl(program, program, "--worker", request->socket, (char *)NULL);
    _exit(127);
}

struct share_of_burst {
    const struct request *request;
    struct lane *lane;
};

static void *run_share(void *argument) {
    const struct share_of_burst *share = argument;
    const struct request *request = share->request;
    struct lane *lane = share->lane;
    lane->lanes = request->lanes;
    uint64_t refusals = 0;
    if (lane->current && !lane->answer.away) CU("cuCtxSetCurrent", (abi_context), lane->current);
    for (uint64_t i = lane->index; i < request->count; i += request->lanes) {
        struct step step = step_of(shared->seed, request->first + i);
        forget_last_answer(lane);
        do_step(lane, &step);
        refusals += lane->answer.refusals;
    }
    lane->answer.refusals = refusals;
    return NULL;
}

/* True: its steps are done by several threads at once. */
static void burst(const struct request *request, struct answer *answer) {
    pthread_t threads[LANES];
    struct share_of_burst shares[LANES];
    for (unsigned i = 0; i < request->lanes; i++) shares[i] = (struct share_of_burst){request, &lanes[i]};
    if (request->lanes == 1) {
        run_share(&shares[0]);
    } else {
        for (unsigned i = 0; i < request->lanes; i++) pthread_create(&threads[i], NULL, run_share, &shares[i]);
        for (unsigned i = 0; i < request->lanes; i++) pthread_join(threads[i], NULL);
    }
    *answer = (struct answer){.away = lanes[0].answer.away, .steps = request->count};
    for (unsigned i = 0; i < request->lanes; i++) answer->refusals += lanes[i].answer.refusals;
}

/* What a module is charged is measured beside what other processes allocate and free, so it may be too much for as long
 * as the module is loaded. */
static void settle_modules(struct lane *lane) {
    while (lane->modules.count) {
        CU("cuModuleUnload", (abi_module), lane->modules.at[0]);
        REMOVE(lane->modules, 0);
    }
}

static void do_settle(struct answer *answer) {
    if (lanes[0].answer.away) return;
    bool ordered_left = false; /* perhaps in a context that another lane has, too */
    for (unsigned i = 0; i < LANES; i++) ordered_left = ordered_left || lanes[i].ordered_left;
    for (unsigned i = 0; i < LANES; i++) lanes[i].ordered_left = ordered_left;
    for (unsigned i = 0; i < LANES; i++) settle_modules(&lanes[i]);
    for (unsigned i = 0; i < LANES; i++) settle(&lanes[i]);
    settle_graphs();
    answer->stale = false;
    for (unsigned i = 0; i < LANES; i++) answer->stale = answer->stale || lanes[i].answer.stale;
}

static bool report(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) return false;
    return fd == CONDUCTOR || (dup2(fd, CONDUCTOR) == CONDUCTOR && close(fd) == 0);
}

static void *map_file(const char *name, size_t bytes) {
    const char *path = getenv(name);
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        fprintf(stderr, "random_programs: cannot map %s\n", name);
        _exit(3);
    }
    close(fd);
    return map;
}

static bool start(void) {
    const char *order = getenv("CUDA_VISIBLE_DEVICES");
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (unsigned i = 0; i < GPUS; i++) gpu_of[i] = order && *order == '1' ? (int)(GPUS - 1 - i) : (int)i;
    for (unsigned i = 0; i < LANES; i++) lanes[i].index = i;
    return driver && CU("cuInit", (unsigned), 0u) == ABI_SUCCESS;
}

int worker_main(int argc, char **argv) {
    signal(SIGCHLD, SIG_IGN);
    if (argc != 3 || !report(argv[2])) return 3;
    shared = map_file("RANDOM_PROGRAMS_SHARED", sizeof *shared);
    plan = map_file("COTENANT_SIM_PLAN", sizeof *plan);
    struct answer answer = {.result = start() ? ABI_SUCCESS : ABI_ERROR_NOT_INITIALIZED};
    struct request request;
    for (;;) {
        if (send(CONDUCTOR, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) return 0;
        if (recv(CONDUCTOR, &request, sizeof request, 0) != (ssize_t)sizeof request) return 0;
        answer = (struct answer){.stale = lanes[0].answer.stale, .away = lanes[0].answer.away};
        if (request.order == DO_BURST) {
            burst(&request, &answer);
        } else if (request.order == DO_SETTLE) {
            do_settle(&answer);
        } else if (request.step.verb == VERB_EXIT) {
            return 0;
        } else if (request.step.verb == VERB_EXEC) {
            become_another(&request);
        } else if (request.step.verb == VERB_BEAR) {
            bear(&request, &answer);
        } else {
            lanes[0].lanes = 1;
            if (lanes[0].answer.stale && !lanes[0].answer.away) settle(&lanes[0]);
            forget_last_answer(&lanes[0]);
            do_step(&lanes[0], &request.step);
            answer = lanes[0].answer;
        }
    }
}
