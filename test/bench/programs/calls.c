/* Times calls of the driver from inside one process. One command a line, one answer a line: the median and the 99th
 * percentile of nanoseconds per call over blocks of calls.
 *   launch CALLS BLOCK AT        cuLaunchKernel
 *   alloc PAIRS BLOCK AT BYTES   cuMemAlloc and cuMemFree of BYTES
 *   dlsym CALLS BLOCK AT         look-ups of cuMemAlloc_v2
 *   gpa CALLS BLOCK AT           look-ups of the same by cuGetProcAddress
 *   hold COUNT BYTES             allocates and keeps
 * It begins at AT on CLOCK_MONOTONIC in nanoseconds (0: at once), so that several processes can begin together. The
 * median over short blocks leaves out what neighbors on the machine took. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../native/abi/cuda.h"

#define MOST_BLOCKS 100000

typedef abi_result (*launch_call)(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  abi_stream, void **, void **);
typedef abi_result (*alloc_call)(abi_devptr *, size_t);
typedef abi_result (*free_call)(abi_devptr);
typedef abi_result (*plain_call)(void);
typedef abi_result (*get_call)(const char *, void **, int, uint64_t, int *);
#define ASKED_VERSION 12000

static uint64_t block_ns[MOST_BLOCKS];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void must(abi_result result, const char *what) {
    if (result == ABI_SUCCESS) return;
    fprintf(stderr, "calls: %s failed with %d\n", what, result);
    exit(1);
}

static int order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void answer(uint64_t blocks, uint64_t block) {
    qsort(block_ns, blocks, sizeof *block_ns, order);
    uint64_t middle = blocks / 2, high = blocks * 99 / 100;
    double calls = (double)block;
    printf("%.4f %.4f\n", (double)block_ns[middle] / calls, (double)block_ns[high] / calls);
    fflush(stdout);
}

static void *find(void *driver, const char *name) {
    void *function = dlsym(driver, name);
    if (!function) {
        fprintf(stderr, "calls: no %s: %s\n", name, dlerror());
        exit(3);
    }
    return function;
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "calls: %s\n", dlerror());
        return 3;
    }
    launch_call launch = (launch_call)find(driver, "cuLaunchKernel");
    alloc_call alloc = (alloc_call)find(driver, "cuMemAlloc_v2");
    free_call release = (free_call)find(driver, "cuMemFree_v2");
    get_call get = (get_call)find(driver, "cuGetProcAddress_v2");
    plain_call synchronize = (plain_call)find(driver, "cuCtxSynchronize");
    abi_context context;
    abi_module module;
    abi_function function;
    must(((abi_result (*)(unsigned))find(driver, "cuInit"))(0), "cuInit");
    must(((abi_result (*)(abi_context *, abi_device))find(driver, "cuDevicePrimaryCtxRetain"))(&context, 0),
         "a context");
    must(((abi_result (*)(abi_context))find(driver, "cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    must(((abi_result (*)(abi_module *, const void *))find(driver, "cuModuleLoadData"))(
             &module, ".version 6.0\n.target sm_50\n.address_size 64\n// cotenant-sim: duration_us=1\n"
                      ".visible .entry work()\n{\n ret;\n}\n"),
         "a module");
    must(((abi_result (*)(abi_function *, abi_module, const char *))find(driver, "cuModuleGetFunction"))(
             &function, module, "work"),
         "a kernel");
    char line[256], command[16];
    uint64_t calls, block, at, bytes;
    while (fgets(line, sizeof line, stdin)) {
        int words =
            sscanf(line, "%15s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, command, &calls, &block, &at, &bytes);
        if (words == 3 && !strcmp(command, "hold")) {
            abi_devptr pointer;
            for (uint64_t i = 0; i < calls; i++) must(alloc(&pointer, block), "hold");
            puts("0 0");
            fflush(stdout);
            continue;
        }
        bool launching = words == 4 && !strcmp(command, "launch"), allocating = words == 5 && !strcmp(command, "alloc");
        bool looking = words == 4 && !strcmp(command, "dlsym"), asking = words == 4 && !strcmp(command, "gpa");
        if ((!launching && !allocating && !looking && !asking) || block == 0 || calls / block > MOST_BLOCKS) {
            fprintf(stderr, "calls: what is this? %s", line);
            return 2;
        }
        uint64_t blocks = calls / block;
        abi_result result = 0;
        while (at && now_ns() < at) {
        }
        for (uint64_t i = 0; i < blocks; i++) {
            uint64_t before = now_ns();
            if (launching) {
                for (uint64_t k = 0; k < block; k++) result |= launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
            } else if (looking) {
                for (uint64_t k = 0; k < block; k++) result |= !dlsym(driver, "cuMemAlloc_v2");
            } else if (asking) {
                void *address;
                for (uint64_t k = 0; k < block; k++) result |= get("cuMemAlloc", &address, ASKED_VERSION, 0, NULL);
            } else {
                for (uint64_t k = 0; k < block; k++) {
                    abi_devptr pointer;
                    result |= alloc(&pointer, bytes);
                    result |= release(pointer);
                }
            }
            block_ns[i] = now_ns() - before;
            if (launching) result |= synchronize();
        }
        must(result, line);
        answer(blocks, block);
    }
    return 0;
}
