/* Workers that allocate and free at random while their grant shrinks and grows under them.
 *   resizer PAGE WORKERS ROUNDS CONTEXT-BYTES SMALL-BYTES LARGE-BYTES
 * SMALL and LARGE are what the grant leaves beside the contexts. This program rewrites the page's first GPU as the
 * agent does. After a shrink, once the requests that began before it are over, what all hold together may only fall
 * until it fits. Workers count a block after they have it and until they give it back, so the count is never too high.
 * Prints one JSON line; each worker writes its own pattern into what it gets and checks it before it frees. */
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"
#include "../../../../native/shared-memory/limits_page.h"

#define MOST_WORKERS 64
#define MOST_BLOCKS 64
#define GRANULE (2ull << 20)
#define MOST_GRANULES 16
#define PROBE 64
#define PATIENCE 60.0

static struct shared {
    _Atomic uint64_t held, granted, refused, failed, wrong;
    _Atomic uint32_t ready;
    _Atomic uint64_t calls[MOST_WORKERS];
} *shared;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static abi_result (*alloc)(abi_devptr *, size_t);
static abi_result (*release)(abi_devptr);
static abi_result (*fill)(abi_devptr, unsigned char, size_t);
static abi_result (*fetch)(void *, abi_devptr, size_t);

static bool start(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return false;
    abi_result (*init)(unsigned) = dlsym(driver, "cuInit");
    abi_result (*retain)(abi_context *, abi_device) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    abi_result (*set)(abi_context) = dlsym(driver, "cuCtxSetCurrent");
    alloc = dlsym(driver, "cuMemAlloc_v2");
    release = dlsym(driver, "cuMemFree_v2");
    fill = dlsym(driver, "cuMemsetD8_v2");
    fetch = dlsym(driver, "cuMemcpyDtoH_v2");
    abi_context context;
    return init(0) == ABI_SUCCESS && retain(&context, 0) == ABI_SUCCESS && set(context) == ABI_SUCCESS;
}

struct block {
    abi_devptr at;
    uint64_t bytes;
};

static bool take(struct block *block, uint64_t bytes, unsigned char tag) {
    abi_result result = alloc(&block->at, bytes);
    if (result == ABI_ERROR_OUT_OF_MEMORY) atomic_fetch_add(&shared->refused, 1);
    else if (result != ABI_SUCCESS) atomic_fetch_add(&shared->failed, 1);
    if (result != ABI_SUCCESS) return false;
    atomic_fetch_add(&shared->held, bytes);
    atomic_fetch_add(&shared->granted, 1);
    block->bytes = bytes;
    if (fill(block->at + bytes - PROBE, tag, PROBE)) atomic_fetch_add(&shared->failed, 1);
    return true;
}

static void give(const struct block *block, unsigned char tag) {
    unsigned char back[PROBE];
    if (fetch(back, block->at + block->bytes - PROBE, PROBE)) atomic_fetch_add(&shared->failed, 1);
    for (int i = 0; i < PROBE; i++) {
        if (back[i] != tag) atomic_fetch_add(&shared->wrong, 1);
    }
    atomic_fetch_sub(&shared->held, block->bytes);
    if (release(block->at)) atomic_fetch_add(&shared->failed, 1);
}

static void work(int index, uint32_t workers) {
    struct block blocks[MOST_BLOCKS];
    int count = 0;
    unsigned seed = (unsigned)index * 7919u + 1;
    unsigned char tag = (unsigned char)(index * 31 + 7);
    if (!start()) atomic_fetch_add(&shared->failed, 1);
    atomic_fetch_add(&shared->ready, 1);
    /* What the grant leaves for a context may not be allocated before that exists. */
    while (atomic_load(&shared->ready) < workers) usleep(1000);
    for (;;) {
        if (count < MOST_BLOCKS && rand_r(&seed) % 100 < 60) {
            uint64_t bytes = GRANULE * (1 + (uint64_t)rand_r(&seed) % MOST_GRANULES);
            if (take(&blocks[count], bytes, tag)) count++;
            else if (count == 0) usleep(100);
        } else if (count > 0) {
            int k = rand_r(&seed) % count;
            give(&blocks[k], tag);
            blocks[k] = blocks[--count];
        }
        atomic_fetch_add(&shared->calls[index], 1);
    }
}

static bool rewrite(int fd, uint64_t memory_bytes) {
    struct cot_limits_page_gpu gpu;
    uint64_t generation;
    off_t at = offsetof(struct cot_limits_page, gpus), word = offsetof(struct cot_limits_page_header, generation);
    if (pread(fd, &gpu, sizeof gpu, at) != sizeof gpu ||
        pread(fd, &generation, sizeof generation, word) != sizeof generation)
        return false;
    gpu.memory_bytes = memory_bytes;
    gpu.check = cot_check(&gpu, COT_GPU_WORDS);
    generation++;
    return pwrite(fd, &gpu, sizeof gpu, at) == sizeof gpu &&
           pwrite(fd, &generation, sizeof generation, word) == sizeof generation;
}

/* Every worker has begun a call since, and ended it. */
static bool settle(int workers) {
    uint64_t before[MOST_WORKERS];
    double until = now() + PATIENCE;
    for (int i = 0; i < workers; i++) before[i] = atomic_load(&shared->calls[i]);
    for (int i = 0; i < workers; i++) {
        while (atomic_load(&shared->calls[i]) < before[i] + 2) {
            if (now() > until) return false;
            usleep(50);
        }
    }
    return true;
}

static bool wait_above(uint64_t bytes) {
    for (double until = now() + PATIENCE; atomic_load(&shared->held) <= bytes; usleep(50)) {
        if (now() > until) return false;
    }
    return true;
}

int main(int argc, char **argv) {
    if (argc != 7 || atoi(argv[2]) < 1 || atoi(argv[2]) > MOST_WORKERS) {
        fputs("usage: resizer PAGE WORKERS ROUNDS CONTEXT-BYTES SMALL-BYTES LARGE-BYTES\n", stderr);
        return 2;
    }
    int workers = atoi(argv[2]), rounds = atoi(argv[3]), fd = open(argv[1], O_RDWR);
    uint64_t contexts = strtoull(argv[4], NULL, 10) * (uint64_t)workers, small = strtoull(argv[5], NULL, 10),
             large = strtoull(argv[6], NULL, 10), over = 0, above = 0, samples = 0;
    pid_t pids[MOST_WORKERS];
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fd < 0 || shared == MAP_FAILED || !rewrite(fd, contexts + large)) return perror(argv[1]), 1;
    for (int i = 0; i < workers; i++) {
        if ((pids[i] = fork()) == 0) work(i, (uint32_t)workers);
    }
    while (atomic_load(&shared->ready) < (uint32_t)workers) usleep(1000);
    bool good = true;
    for (int round = 0; good && round < rounds; round++) {
        good = rewrite(fd, contexts + large) && wait_above(small + (large - small) / 2) &&
               rewrite(fd, contexts + small) && settle(workers);
        uint64_t last = atomic_load(&shared->held);
        if (last > small) above++;
        for (double until = now() + 0.02; good && now() < until; samples++) {
            uint64_t held = atomic_load(&shared->held);
            if (held > last && held > small) over++;
            last = held;
            usleep(20);
        }
    }
    for (int i = 0; i < workers; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < workers; i++) waitpid(pids[i], NULL, 0);
    printf("{\"granted\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"wrongBytes\":%" PRIu64
           ",\"samples\":%" PRIu64 ",\"above\":%" PRIu64 ",\"over\":%" PRIu64 "}\n",
           shared->granted, shared->refused, shared->failed, shared->wrong, samples, above, over);
    return good ? 0 : 1;
}
