/* Many processes that hold a GPU each as a tenant does: a context, one allocation, a kernel that could run.
 *   holders COUNT GPU BYTES
 * Forks COUNT processes, prints one line once all of them hold, and ends with its standard input; its processes end
 * with it. At the first line that it is given, one of them begins to run its kernel of 1 ms once a second. */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "../../../native/abi/cuda.h"

static const char IMAGE[] = ".version 6.0\n.target sm_50\n.address_size 64\n// cotenant-sim: duration_us=1000\n"
                            ".visible .entry work()\n{\n\tret;\n}\n";

typedef abi_result launch_call(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               abi_stream, void **, void **);

static struct {
    launch_call *launch;
    abi_function function;
} work;

static abi_result hold(abi_device gpu, size_t bytes) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return ABI_ERROR_UNKNOWN;
    abi_result (*init)(unsigned) = dlsym(driver, "cuInit");
    abi_result (*retain)(abi_context *, abi_device) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    abi_result (*set)(abi_context) = dlsym(driver, "cuCtxSetCurrent");
    abi_result (*alloc)(abi_devptr *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    abi_result (*load)(abi_module *, const void *) = dlsym(driver, "cuModuleLoadData");
    abi_result (*find)(abi_function *, abi_module, const char *) = dlsym(driver, "cuModuleGetFunction");
    work.launch = (launch_call *)dlsym(driver, "cuLaunchKernel");
    abi_context context;
    abi_module module;
    abi_devptr at;
    abi_result result = init(0);
    if (!result) result = retain(&context, gpu);
    if (!result) result = set(context);
    if (!result) result = alloc(&at, bytes);
    if (!result) result = load(&module, IMAGE);
    if (!result) result = find(&work.function, module, "work");
    return result;
}

/* Waits for the signal with it blocked, so that one that comes early is not lost. */
static void go_on(const sigset_t *signals) {
    int signal_number;
    if (sigwait(signals, &signal_number) != 0) _exit(1);
    for (;;) {
        if (work.launch(work.function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != ABI_SUCCESS) _exit(1);
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    }
}

int main(int argc, char **argv) {
    int count = argc == 4 ? atoi(argv[1]) : 0, ready[2];
    pid_t worker = 0;
    if (count < 1 || pipe(ready) != 0) {
        fputs("usage: holders COUNT GPU BYTES\n", stderr);
        return 2;
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child < 0) return perror("holders: fork"), 1;
        if (i == 0) worker = child;
        if (child > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        abi_result result = hold(atoi(argv[2]), strtoull(argv[3], NULL, 10));
        if (write(ready[1], &result, sizeof result) != sizeof result) return 1;
        go_on(&signals);
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
    bool is_given = false;
    for (int letter; (letter = getchar()) != EOF;) {
        if (letter != '\n' || is_given) continue;
        is_given = true;
        kill(worker, SIGUSR1);
    }
    return 0;
}
