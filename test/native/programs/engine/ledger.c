/* The account itself, without the loader: linear memory, quota, blocks, attaching and reaping are linked in, above a
 * driver of this file that keeps one shared count of what is held. Made to run under ThreadSanitizer, which cannot see
 * through a preloaded object.
 *   ledger DIR PROCESSES THREADS ROUNDS
 * In each of the processes the threads take and free memory of one grant (DIR/limits, DIR/ledger) while one more thread
 * sums the account and looks for the dead; the driver refuses some requests by itself. Prints one line of JSON. */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "linked_engine.h"

#define GRANULE (2ull << 20)
#define PLACES 64
#define PLACE_BYTES (64ull << 20)
#define FIRST_PLACE (1ull << 40)
#define MOST_HELD 4

/* What the driver counts for all processes together, and what came of the requests. */
static struct {
    _Atomic uint64_t held, peak, over, granted, refused, failed, wrong, done;
} *shared;
static const char *folder;
static uint64_t grant;

/* ---- the driver: 64 places of address space, each free again at once, so that threads meet at the same addresses ----
 */
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t place_bytes[PLACES];
static unsigned calls;

static abi_result driver_alloc(abi_devptr *pointer, size_t bytes) {
    uint64_t whole = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    pthread_mutex_lock(&places_lock);
    int place = calls++ % 8 == 0 ? PLACES : 0;
    while (place < PLACES && place_bytes[place]) place++;
    if (place < PLACES) place_bytes[place] = whole;
    pthread_mutex_unlock(&places_lock);
    if (place == PLACES) return ABI_ERROR_UNKNOWN;
    uint64_t held = atomic_fetch_add(&shared->held, whole) + whole, peak = atomic_load(&shared->peak);
    while (held > peak && !atomic_compare_exchange_weak(&shared->peak, &peak, held)) {
    }
    if (held > grant) atomic_fetch_add(&shared->over, 1);
    *pointer = FIRST_PLACE + (uint64_t)place * PLACE_BYTES;
    return ABI_SUCCESS;
}

static abi_result driver_free(abi_devptr pointer) {
    uint64_t place = (pointer - FIRST_PLACE) / PLACE_BYTES;
    pthread_mutex_lock(&places_lock);
    uint64_t bytes = place < PLACES ? place_bytes[place] : 0;
    if (bytes) {
        atomic_fetch_sub(&shared->held, bytes);
        place_bytes[place] = 0;
    }
    pthread_mutex_unlock(&places_lock);
    return bytes ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

static abi_result driver_count(int *count) {
    *count = 1;
    return ABI_SUCCESS;
}

static abi_result driver_uuid(abi_uuid *uuid, abi_device device) {
    memset(uuid, 0x11, sizeof *uuid);
    return ABI_SUCCESS;
}

/* ---- what the loader's half and the other verbs would give ---- */
static void *real(const char *name) {
    return !strcmp(name, "cuMemAlloc_v2")      ? (void *)driver_alloc
           : !strcmp(name, "cuMemFree_v2")     ? (void *)driver_free
           : !strcmp(name, "cuDeviceGetCount") ? (void *)driver_count
           : !strcmp(name, "cuDeviceGetUuid")  ? (void *)driver_uuid
                                               : NULL;
}

abi_result cot_current_context(uint32_t *gpu, void **context) {
    *gpu = 0;
    *context = NULL;
    return ABI_SUCCESS;
}
void cot_block_recheck(const struct cot_block *block) {}
void cot_block_restore(const struct cot_block *block) {
    cot_blocks_add(block);
}
void cot_pools_read_back(void) {}
static void reclaim_nothing(uint32_t gpu) {}
const struct cot_hooks cot_hooks = {
    .attach = cot_lease_page_map, .detach = cot_lease_page_unmap, .reclaim = reclaim_nothing};

abi_result cot_cuMemAlloc_v2(abi_devptr *pointer, size_t bytes);
abi_result cot_cuMemFree_v2(abi_devptr pointer);

/* ---- one process ---- */
static unsigned long rounds;
static _Atomic int ended;

static void *take_and_free(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    abi_devptr held[MOST_HELD];
    int count = 0;
    for (unsigned long round = 0; round < rounds; round++) {
        if (round % 32 == 0) sched_yield(); /* or the first is done before the last has begun */
        if (count < MOST_HELD && rand_r(&seed) % 100 < 60) {
            size_t bytes = 1 + (size_t)rand_r(&seed) % (size_t)(6 * GRANULE);
            if (bytes < 1u << 20) bytes += 1u << 20; /* smaller ones share a granule, which this driver does not know */
            abi_result result = cot_cuMemAlloc_v2(&held[count], bytes);
            if (result == ABI_SUCCESS) count++;
            atomic_fetch_add(result == ABI_SUCCESS               ? &shared->granted
                             : result == ABI_ERROR_OUT_OF_MEMORY ? &shared->refused
                                                                 : &shared->failed,
                             1);
        } else if (count > 0) {
            if (cot_cuMemFree_v2(held[--count]) != ABI_SUCCESS) atomic_fetch_add(&shared->wrong, 1);
        }
    }
    while (count > 0) {
        if (cot_cuMemFree_v2(held[--count]) != ABI_SUCCESS) atomic_fetch_add(&shared->wrong, 1);
    }
    return NULL;
}

/* Reads every count that others write, as a process that reserves does, and as one that looks for the dead. */
static void *sum_and_reap(void *argument) {
    if (cot_attach() != ABI_SUCCESS) atomic_fetch_add(&shared->wrong, 1); /* the first one attaches for all */
    while (!atomic_load(&ended)) {
        /* A count below zero is a huge one. What others only announce counts too, so a sum can pass the grant. */
        if (cot_container_usage(0) > grant * 16) atomic_fetch_add(&shared->wrong, 1);
        if (cot_reap()) atomic_fetch_add(&shared->wrong, 1); /* everybody lives */
    }
    return NULL;
}

/* No process ends before all have come here, or it would rightly be found dead. */
static void meet(uint64_t all) {
    atomic_fetch_add(&shared->done, 1);
    for (int tries = 0; tries < 600000 && atomic_load(&shared->done) < all; tries++) usleep(100); /* if one has died */
}

static int process(int threads, unsigned seed, unsigned processes) {
    pthread_t workers[64], reader;
    pthread_create(&reader, NULL, sum_and_reap, NULL);
    for (int i = 0; i < threads; i++) {
        pthread_create(&workers[i], NULL, take_and_free, (void *)(uintptr_t)(seed + (unsigned)i));
    }
    for (int i = 0; i < threads; i++) pthread_join(workers[i], NULL);
    meet(processes);
    atomic_store(&ended, 1);
    pthread_join(reader, NULL);
    meet(2ull * processes);
    const struct cot_slot_gpu *own = cot_own_row(0);
    return own->held == 0 && own->pending == 0 && own->freed > 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: ledger DIR PROCESSES THREADS ROUNDS\n");
        return 2;
    }
    int processes = atoi(argv[2]), threads = atoi(argv[3]), bad = 0;
    folder = argv[1];
    rounds = strtoul(argv[4], NULL, 10);
    if (processes < 1 || processes > 16 || threads < 1 || threads > 64) return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 3;
    char path[4096];
    struct cot_limits_page_gpu gpu;
    snprintf(path, sizeof path, "%s/limits", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || pread(fd, &gpu, sizeof gpu, offsetof(struct cot_limits_page, gpus)) != sizeof gpu) return 3;
    grant = gpu.memory_bytes;
    start_engine(real, folder);
    pid_t pids[16];
    for (int i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] < 0) return 3;
        if (pids[i] == 0) exit(process(threads, (unsigned)(i * 100 + 1), (unsigned)processes));
    }
    for (int i = 0; i < processes; i++) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        bad += status != 0;
    }
    printf("{\"granted\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"wrong\":%" PRIu64
           ",\"over\":%" PRIu64 ",\"peak\":%" PRIu64 ",\"left\":%" PRIu64 ",\"badProcesses\":%d}\n",
           shared->granted, shared->refused, shared->failed, shared->wrong, shared->over, shared->peak, shared->held,
           bad);
    return 0;
}
