#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct fault {
    char symbol[64];
    int result;
    unsigned long first, count; /* calls first .. first+count-1; count 0 = all from first */
    _Atomic unsigned long calls;
};
static struct fault faults[32];
static int fault_count;
int sim_faults_armed = 1;

static void read_environment(void) {
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
    sim_faults_armed = fault_count > 0;
}

int sim_fault(const char *symbol) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (strcmp(fault->symbol, symbol) != 0) continue;
        unsigned long call = atomic_fetch_add(&fault->calls, 1) + 1;
        if (call >= fault->first && (fault->count == 0 || call < fault->first + fault->count)) return fault->result;
    }
    return 0;
}
