/* Keeps a number of short-lived processes on the GPU: pid_churn DRIVER WORKERS MIB LIFE_MS FIRST_PID LAST_PID. Their
 * PIDs come from that range, which other programs use too, so that PIDs are reused at once. Exit code 4: no permission
 * to choose PIDs. At the end of its standard input it ends them and prints "started failed signaled", where `signaled`
 * counts those ended by another process's signal. */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "../../../../native/abi/cuda.h"
#include "pids.h"

#define MOST 256
enum { FAILED = 9 };

static const char *driver;
static uint64_t mib, life_ms;

static void work(unsigned seed) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    random_state = seed;
    void *library = dlopen(driver, RTLD_NOW);
    abi_result (*init)(unsigned), (*create)(abi_context *, unsigned, abi_device), (*alloc)(abi_devptr *, size_t);
    if (!library) _exit(FAILED);
    init = (abi_result (*)(unsigned))dlsym(library, "cuInit");
    create = (abi_result (*)(abi_context *, unsigned, abi_device))dlsym(library, "cuCtxCreate_v2");
    alloc = (abi_result (*)(abi_devptr *, size_t))dlsym(library, "cuMemAlloc_v2");
    abi_context context;
    abi_devptr at;
    if (!init || !create || !alloc || init(0) || create(&context, 0, 0) || alloc(&at, mib << 20)) _exit(FAILED);
    const uint64_t ms = life_ms / 2 + random_next() % life_ms;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
    _exit(0);
}

static pid_t start(pid_t first, pid_t last) {
    const unsigned seed = random_next();
    const pid_t made = fork_within(first, last);
    if (made == 0) work(seed);
    return made;
}

int main(int count, char **words) {
    if (count != 7) return 2;
    driver = words[1];
    mib = strtoull(words[3], NULL, 10);
    life_ms = strtoull(words[4], NULL, 10);
    const int workers = atoi(words[2]);
    const pid_t first = atoi(words[5]), last = atoi(words[6]);
    static pid_t alive[MOST];
    uint64_t started = 0, failed = 0, signaled = 0;
    random_state = (uint64_t)getpid();
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (bool ending = false; !ending;) {
        char byte;
        ending = poll(&input, 1, 20) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
        for (int i = 0; i < workers && i < MOST; i++) {
            int status;
            if (alive[i] > 0 && ending) kill(alive[i], SIGUSR2);
            if (alive[i] > 0 && waitpid(alive[i], &status, ending ? 0 : WNOHANG) == alive[i]) {
                alive[i] = 0;
                failed += WIFEXITED(status) && WEXITSTATUS(status) == FAILED;
                signaled += WIFSIGNALED(status) && !(ending && WTERMSIG(status) == SIGUSR2);
            }
            if (alive[i] <= 0 && !ending) {
                alive[i] = start(first, last);
                started += alive[i] > 0;
            }
        }
    }
    printf("%llu %llu %llu\n", (unsigned long long)started, (unsigned long long)failed, (unsigned long long)signaled);
    return 0;
}
