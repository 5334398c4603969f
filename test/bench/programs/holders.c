/* Many processes that hold a card each as an idle tenant does: a context and one allocation.
 *   holders COUNT CARD BYTES
 * Forks COUNT processes, prints one line once all of them hold, and ends with its standard input; its processes end
 * with it. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../../../native/abi/cuda.h"

static abi_result hold(abi_device card, size_t bytes) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return ABI_ERROR_UNKNOWN;
    abi_result (*init)(unsigned) = dlsym(driver, "cuInit");
    abi_result (*retain)(abi_context *, abi_device) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    abi_result (*set)(abi_context) = dlsym(driver, "cuCtxSetCurrent");
    abi_result (*alloc)(abi_devptr *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    abi_context context;
    abi_devptr at;
    abi_result result = init(0);
    if (!result) result = retain(&context, card);
    if (!result) result = set(context);
    if (!result) result = alloc(&at, bytes);
    return result;
}

int main(int argc, char **argv) {
    int count = argc == 4 ? atoi(argv[1]) : 0, ready[2];
    if (count < 1 || pipe(ready) != 0) {
        fputs("usage: holders COUNT CARD BYTES\n", stderr);
        return 2;
    }
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) return perror("holders: fork"), 1;
        if (child > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        abi_result result = hold(atoi(argv[2]), strtoull(argv[3], NULL, 10));
        if (write(ready[1], &result, sizeof result) != sizeof result) return 1;
        for (;;) pause();
    }
    for (int i = 0; i < count; i++) {
        abi_result result;
        if (read(ready[0], &result, sizeof result) != sizeof result || result != ABI_SUCCESS) {
            fprintf(stderr, "holders: a process was answered %d\n", result);
            return 1;
        }
    }
    puts("holding");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
