/* A program that contains its driver, like one that uses the GPU without NVIDIA's library: no library is loaded, so no
 * preload list is read, and no CUDA name is looked up. Linked statically with the simulated driver's objects. Commands
 * as of client.c: init, context DEVICE, alloc BYTES; each prints the driver's result and a value. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../../native/abi/cuda.h"

abi_result cuInit(unsigned flags);
abi_result cuDevicePrimaryCtxRetain(abi_context *context, abi_device device);
abi_result cuCtxSetCurrent(abi_context context);
abi_result cuMemAlloc_v2(abi_devptr *at, size_t bytes);

/* The driver finds its node by the path of the object that it lies in, which a static libc does not provide. */
int dladdr(const void *address, Dl_info *info) {
    static char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    (void)address;
    *info = (Dl_info){.dli_fname = path};
    return length > 0;
}

int main(void) {
    char line[256], word[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        uint64_t value = 0;
        abi_context context;
        abi_devptr at = 0;
        abi_result result = -1;
        if (sscanf(line, "%31s %" SCNu64, word, &value) < 1) continue;
        if (!strcmp(word, "init")) result = cuInit(0);
        if (!strcmp(word, "context")) {
            result = cuDevicePrimaryCtxRetain(&context, (abi_device)value);
            if (!result) result = cuCtxSetCurrent(context);
        }
        if (!strcmp(word, "alloc")) result = cuMemAlloc_v2(&at, (size_t)value);
        printf("%d %" PRIu64 "\n", (int)result, (uint64_t)at);
    }
    return 0;
}
