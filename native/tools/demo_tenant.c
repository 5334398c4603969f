/* Tenants of the demonstration: small CUDA driver API programs that stay within their grant, exceed it, or bypass it.
 *   cotenant-tenant trainer | server | greedy | rogue
 * Each prints what happens to it, one line at a time. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../abi/cuda.h"

#define MIB ((uint64_t)1 << 20)
#define CALL(name, types, ...) ((abi_result(*) types)find(#name))(__VA_ARGS__)

static void *driver;

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) {
        printf("the driver has no %s\n", name);
        exit(3); /* NOLINT(concurrency-mt-unsafe): a tenant is one thread */
    }
    return function;
}

static void must(abi_result result, const char *what) {
    if (result == ABI_SUCCESS) return;
    printf("%s failed with %d\n", what, result);
    exit(1); /* NOLINT(concurrency-mt-unsafe): a tenant is one thread */
}

static void pause_ms(long ms) {
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static abi_function kernel(unsigned us) {
    static abi_module module;
    abi_function function;
    char text[256];
    snprintf(text, sizeof text,
             ".version 6.0\n.target sm_50\n.address_size 64\n// cotenant-sim: duration_us=%u\n.visible .entry "
             "work()\n{\n ret;\n}\n",
             us);
    must(CALL(cuModuleLoadData, (abi_module *, const void *), &module, text), "loading a kernel");
    must(CALL(cuModuleGetFunction, (abi_function *, abi_module, const char *), &function, module, "work"),
         "finding a kernel");
    return function;
}

static void launch(abi_function function) {
    must(CALL(cuLaunchKernel,
              (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi_stream, void **,
               void **),
              function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (abi_stream)NULL, (void **)NULL, (void **)NULL),
         "a launch");
}

static abi_result try_allocate(uint64_t bytes, abi_devptr *at) {
    return CALL(cuMemAlloc_v2, (abi_devptr *, size_t), at, (size_t)bytes);
}

/* Fills blocks with a pattern, runs kernels, and checks that the pattern is intact. */
static void train(unsigned kernel_us, unsigned kernels, long rest_ms) {
    enum { BLOCKS = 8, BYTES = 256 * 1024 };
    abi_devptr blocks[BLOCKS];
    static unsigned char pattern[BYTES], back[BYTES];
    abi_function function = kernel(kernel_us);
    size_t left, total;
    must(CALL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total), "asking for memory");
    printf("sees a GPU of %zu MiB\n", (size_t)(total / MIB));
    for (int i = 0; i < BLOCKS; i++) must(try_allocate(left / 10, &blocks[i]), "allocating memory");
    for (unsigned round = 0;; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            memset(pattern, (int)(round * BLOCKS + (unsigned)i), BYTES);
            must(CALL(cuMemcpyHtoD_v2, (abi_devptr, const void *, size_t), blocks[i], pattern, (size_t)BYTES),
                 "a copy");
        }
        for (unsigned i = 0; i < kernels; i++) launch(function);
        must(CALL(cuCtxSynchronize, (void)), "waiting for kernels");
        unsigned wrong = 0;
        for (int i = 0; i < BLOCKS; i++) {
            must(CALL(cuMemcpyDtoH_v2, (void *, abi_devptr, size_t), back, blocks[i], (size_t)BYTES), "a copy back");
            for (int k = 0; k < BYTES; k++) wrong += back[k] != (unsigned char)(round * BLOCKS + (unsigned)i);
        }
        if (round % 8 == 0) printf("round %u, %u wrong bytes, 0 failed calls\n", round, wrong);
        pause_ms(rest_ms);
    }
}

/* Allocates until it is refused, frees half of it, and starts again. */
static void allocate_all(void) {
    static abi_devptr blocks[4096];
    for (;;) {
        int count = 0;
        abi_result result = ABI_SUCCESS;
        while (count < 4096 && (result = try_allocate(64 * MIB, &blocks[count])) == ABI_SUCCESS) {
            count++;
            if (count % 8 == 0) pause_ms(50);
        }
        printf("has %d MiB and was refused more: %d (%s)\n", count * 64, result,
               result == ABI_ERROR_OUT_OF_MEMORY ? "out of memory" : "?");
        pause_ms(3000);
        while (count > 0) must(CALL(cuMemFree_v2, (abi_devptr), blocks[--count]), "freeing memory");
        pause_ms(500);
    }
}

/* Bypasses the interposer, so nothing refuses it: allocates on and on. */
static void rogue(void) {
    abi_devptr at;
    for (uint64_t held = 0;; held += 128 * MIB) {
        abi_result result = try_allocate(128 * MIB, &at);
        if (result != ABI_SUCCESS) {
            printf("the GPU is full after %" PRIu64 " MiB\n", held / MIB);
            pause_ms(60000);
        }
        printf("allocated %" PRIu64 " MiB, nothing refused it\n", (held + 128 * MIB) / MIB);
        pause_ms(200);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *role = argc == 2 ? argv[1] : "";
    if (strcmp(role, "trainer") != 0 && strcmp(role, "server") != 0 && strcmp(role, "greedy") != 0 &&
        strcmp(role, "rogue") != 0) {
        fputs("usage: cotenant-tenant trainer|server|greedy|rogue\n", stderr);
        return 2;
    }
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        printf("no driver: %s\n", dlerror());
        return 3;
    }
    abi_context context;
    must(CALL(cuInit, (unsigned), 0u), "starting CUDA");
    must(CALL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &context, (abi_device)0), "making a context");
    must(CALL(cuCtxSetCurrent, (abi_context), context), "using a context");
    if (!strcmp(role, "trainer")) train(2000, 100, 20);
    if (!strcmp(role, "server")) train(500, 20, 90);
    if (!strcmp(role, "greedy")) allocate_all();
    rogue();
    return 0;
}
