#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"

struct fault {
    char symbol[64];
    int result;
    unsigned long first, count; /* calls first .. first+count-1; count 0 = all from first on */
    _Atomic unsigned long calls;
};
static struct fault faults[32];
static int fault_count;
int sim_faults_armed = 1;

static struct sim_plan *plan;

static void open_plan(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (map != MAP_FAILED) plan = map;
    else fprintf(stderr, "simulated driver: COTENANT_SIM_PLAN: cannot map %s\n", path);
}

static int follow_plan(const char *symbol) {
    if (atomic_fetch_add(&plan->calls, 1) + 1 != atomic_load(&plan->at)) return 0;
    snprintf(plan->symbol, sizeof plan->symbol, "%s", symbol);
    atomic_store(&plan->met, 1);
    if (plan->act == SIM_PLAN_DIE) raise(SIGKILL);
    while (plan->act == SIM_PLAN_PAUSE && atomic_load(&plan->met)) sched_yield();
    return plan->act == SIM_PLAN_FAIL ? plan->result : 0;
}

static void read_environment(void) {
    const char *planned = getenv("COTENANT_SIM_PLAN");
    if (planned) open_plan(planned);
    const char *text = getenv("COTENANT_SIM_FAULTS");
    while (text && *text && fault_count < (int)(sizeof faults / sizeof *faults)) {
        struct fault *fault = &faults[fault_count];
        int length = 0;
        fault->first = 1;
        if (sscanf(text, "%63[A-Za-z0-9_]=%d%n", fault->symbol, &fault->result, &length) != 2) {
            fprintf(stderr,
                    "simulated driver: COTENANT_SIM_FAULTS: want SYMBOL=RESULT[@FIRST][xCOUNT],...; ignored from: %s\n",
                    text);
            break;
        }
        char *rest = (char *)text + length;
        if (*rest == '@') fault->first = strtoul(rest + 1, &rest, 10);
        if (*rest == 'x') fault->count = strtoul(rest + 1, &rest, 10);
        text = rest + (*rest == ',');
        fault_count++;
    }
    sim_faults_armed = fault_count > 0 || plan;
}

int sim_fault(const char *symbol) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
    int planned = plan ? follow_plan(symbol) : 0;
    if (planned) return planned;
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (strcmp(fault->symbol, symbol) != 0) continue;
        unsigned long call = atomic_fetch_add(&fault->calls, 1) + 1;
        if (call >= fault->first && (fault->count == 0 || call < fault->first + fault->count)) return fault->result;
    }
    return 0;
}
