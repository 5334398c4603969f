/* mappings HELD CALLS: maps one piece of memory at HELD addresses, then unmaps and maps again CALLS of them, and unmaps
 * what is left in one call. Under callgrind the instructions of two runs show what a call costs. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../../native/abi/cuda.h"

#define PIECE (2ull << 20)
#define BASE 0x600000000000ull

static void *driver;
#define CALL(name, types, ...) ((abi_result(*) types)dlsym(driver, #name))(__VA_ARGS__)

static void must(abi_result result, const char *what) {
    if (result == ABI_SUCCESS) return;
    fprintf(stderr, "mappings: %s: %d\n", what, result);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    unsigned long held = strtoul(argv[1], NULL, 10), calls = strtoul(argv[2], NULL, 10);
    if (held == 0) return 2;
    abi_context context;
    abi_vmm_handle handle;
    abi_vmm_prop prop = {.type = ABI_ALLOCATION_PINNED, .location = {ABI_LOCATION_DEVICE, 0}};
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 3;
    must(CALL(cuInit, (unsigned), 0u), "cuInit");
    must(CALL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &context, 0), "a context");
    must(CALL(cuMemCreate, (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), &handle, PIECE, &prop,
              0ull),
         "memory");
    abi_result (*map)(abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long) = dlsym(driver, "cuMemMap");
    abi_result (*unmap)(abi_devptr, size_t) = dlsym(driver, "cuMemUnmap");
    for (unsigned long i = 0; i < held; i++) must(map(BASE + i * PIECE, PIECE, 0, handle, 0), "map");
    for (unsigned long i = 0; i < calls; i++) {
        abi_devptr at = BASE + i * 7919 % held * PIECE; /* all over the range */
        must(unmap(at, PIECE), "unmap");
        must(map(at, PIECE, 0, handle, 0), "map again");
    }
    must(unmap(BASE, held * PIECE), "unmap all");
    must(CALL(cuMemRelease, (abi_vmm_handle), handle), "release");
    return 0;
}
