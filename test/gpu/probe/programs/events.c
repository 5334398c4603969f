/* What event pairs cost: launches in batches of 32, bare, with a pair around each batch, and with a pair around each
 * launch, in turns, for who launches and until all has run; and how fine an event's time is. Prints one line of JSON;
 * nanoseconds. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BATCH 32
#define BATCHES 16
#define ROUNDS 60
#define EVENTS (2 * BATCH * BATCHES)
#define PAIRS 1000

typedef int (*launch_call)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                           void **, void **);

static void *driver;

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) {
        fprintf(stderr, "events: no %s\n", name);
        exit(3);
    }
    return function;
}

static void must(int result, const char *what) {
    if (result == 0) return;
    fprintf(stderr, "events: %s answered %d\n", what, result);
    exit(1);
}
#define MUST(call) must(call, #call)

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(double *values, size_t count) {
    qsort(values, count, sizeof *values, order);
    return values[count / 2];
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "events: %s\n", dlerror());
        return 3;
    }
    launch_call launch = find("cuLaunchKernel");
    int (*record)(void *, void *) = find("cuEventRecord"), (*query)(void *) = find("cuEventQuery");
    int (*elapsed)(float *, void *, void *) = find("cuEventElapsedTime"), (*wait)(void) = find("cuCtxSynchronize");
    int (*create)(void **, unsigned) = find("cuEventCreate");
    void *context, *module, *function, *events[EVENTS];
    MUST(((int (*)(unsigned))find("cuInit"))(0));
    MUST(((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context, 0));
    MUST(((int (*)(void *))find("cuCtxSetCurrent"))(context));
    MUST(((int (*)(void **, const void *))find("cuModuleLoadData"))(
        &module, ".version 7.0\n.target sm_50\n.address_size 64\n// cotenant-sim: duration_us=1\n"
                 ".visible .entry work()\n{\n ret;\n}\n"));
    MUST(((int (*)(void **, void *, const char *))find("cuModuleGetFunction"))(&function, module, "work"));
    for (int i = 0; i < EVENTS; i++) MUST(create(&events[i], 0));

    static double costs[3][ROUNDS], whole[3][ROUNDS];
    for (int round = -3; round < ROUNDS; round++) {
        for (int turn = 0; turn < 3; turn++) {
            int form = (turn + round + 3) % 3, next = 0, result = 0;
            uint64_t before = now_ns();
            for (int batch = 0; batch < BATCHES; batch++) {
                if (form == 1) result |= record(events[next++], NULL);
                for (int i = 0; i < BATCH; i++) {
                    if (form == 2) result |= record(events[next++], NULL);
                    result |= launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
                    if (form == 2) result |= record(events[next++], NULL);
                }
                if (form == 1) result |= record(events[next++], NULL);
            }
            uint64_t spent = now_ns() - before;
            must(result, "a launch or an event");
            MUST(wait());
            if (round < 0) continue;
            costs[form][round] = (double)spent / (BATCH * BATCHES);
            whole[form][round] = (double)(now_ns() - before) / (BATCH * BATCHES);
        }
    }

    static double times[PAIRS], steps[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        float ms;
        MUST(record(events[0], NULL));
        MUST(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        MUST(record(events[1], NULL));
        MUST(wait());
        MUST(elapsed(&ms, events[0], events[1]));
        times[i] = (double)ms * 1e6;
    }
    qsort(times, PAIRS, sizeof *times, order);
    /* Times are floats of milliseconds: differences below 1 ns are the number's, not the clock's. */
    int count = 0;
    for (int i = 1; i < PAIRS; i++) {
        if (times[i] - times[i - 1] >= 1) steps[count++] = times[i] - times[i - 1];
    }
    qsort(steps, (size_t)count, sizeof *steps, order);
    uint64_t before = now_ns();
    for (int i = 0; i < 20000; i++) MUST(query(events[0]));
    double query_ns = (double)(now_ns() - before) / 20000;
    double bare = middle(costs[0], ROUNDS), batch = middle(costs[1], ROUNDS), each = middle(costs[2], ROUNDS);
    printf("{\"wholeLaunchNs\": %.1f, \"wholePerBatchNs\": %.1f, \"wholePerLaunchNs\": %.1f, ",
           middle(whole[0], ROUNDS), middle(whole[1], ROUNDS), middle(whole[2], ROUNDS));
    printf("\"launchNs\": %.1f, \"perBatchNs\": %.1f, \"perLaunchNs\": %.1f, \"batch\": %d, \"queryNs\": %.1f, "
           "\"emptyPairMedianNs\": %.0f, \"distinctTimes\": %d, \"smallestStepNs\": %.0f, \"medianStepNs\": %.0f}\n",
           bare, batch, each, BATCH, query_ns, times[PAIRS / 2], count + 1, count ? steps[0] : 0.0,
           count ? steps[count / 2] : 0.0);
    return 0;
}
