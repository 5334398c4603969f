/* A random program of streams, events, captures and kernels that need one another: random_streams SEED STEPS RANK RANKS
 * FLAG. Each of RANKS processes carries out its part of the same list of steps; a step waits for what comes before it
 * in the list alone, so that every such list ends without a gate, and any step may be left out. STEPS: a digit for
 * each, 0 if it is. FLAG: the first of as many flags and one more that no other program uses. Prints each call and its
 * result; whether work had ended when that was asked is left out.
 *
 * In some steps a process is stopped for a time, or killed at work, when it has met all others as often as they have
 * met it. Then the others go on without it, or are killed as well once they have launched a kernel that waits for it.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"

static const char KERNELS[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                              "// cotenant-sim: duration_us=50\n.visible .entry brief()\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=700\n.visible .entry work()\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=1 await=1\n"
                              ".visible .entry consume(.param .u32 flag, .param .u32 value)\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=1 signal=1\n"
                              ".visible .entry produce(.param .u32 flag, .param .u32 value)\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=20 signal=1 await=1\n"
                              ".visible .entry meet(.param .u32 flag, .param .u32 value)\n{\n ret;\n}\n";
enum { BRIEF, WORK, CONSUME, PRODUCE, MEET, FUNCTIONS };
static const char *const NAMES[FUNCTIONS] = {"brief", "work", "consume", "produce", "meet"};
enum { STREAMS = 6, EVENTS = 4, GRAPHS = 3 };

static void *driver;
static abi_function functions[FUNCTIONS];
static abi_stream streams[STREAMS] = {NULL, ABI_STREAM_PER_THREAD}; /* the rest are created */
static abi_stream last;  /* of kernels that others wait for: it waits for nothing */
static abi_stream meets; /* of those that wait for other processes */
static abi_event events[EVENTS];
static abi_graph_exec graphs[GRAPHS];
static uint64_t state;
static unsigned step;

#define CALL(name, types, ...) (((abi_result(*) types)dlsym(driver, name))(__VA_ARGS__))

static unsigned draw(unsigned below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % below;
}

static void say(const char *what, abi_result result, long long more) {
    printf("%u %s %d %lld\n", step, what, result, more);
}

/* Whether work had ended depends on time. */
static abi_result asked(abi_result result) {
    return result == ABI_ERROR_NOT_READY ? ABI_SUCCESS : result;
}

static abi_result launch(int function, abi_stream stream, unsigned flag, unsigned value) {
    void *parameters[2] = {&flag, &value};
    return CALL("cuLaunchKernel",
                (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi_stream,
                 void **, void **),
                functions[function], 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static abi_stream new_stream(unsigned flags) {
    abi_stream stream = NULL;
    say("create stream", CALL("cuStreamCreate", (abi_stream *, unsigned), &stream, flags), flags);
    return stream;
}

static bool start(void) {
    abi_context context;
    abi_module module;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || CALL("cuInit", (unsigned), 0) ||
        CALL("cuDevicePrimaryCtxRetain", (abi_context *, abi_device), &context, 0) ||
        CALL("cuCtxSetCurrent", (abi_context), context) ||
        CALL("cuModuleLoadData", (abi_module *, const void *), &module, KERNELS))
        return false;
    for (int i = 0; i < FUNCTIONS; i++) {
        if (CALL("cuModuleGetFunction", (abi_function *, abi_module, const char *), &functions[i], module, NAMES[i]))
            return false;
    }
    for (unsigned i = 2; i < STREAMS; i++) streams[i] = new_stream(i % 2 ? ABI_STREAM_NON_BLOCKING : 0);
    for (unsigned i = 0; i < EVENTS; i++)
        if (CALL("cuEventCreate", (abi_event *, unsigned), &events[i], 0)) return false;
    return true;
}

static void end_capture(abi_stream stream, unsigned place) {
    abi_graph graph = NULL;
    size_t nodes = 0;
    abi_result result = CALL("cuStreamEndCapture", (abi_stream, abi_graph *), stream, &graph);
    if (result == ABI_SUCCESS) CALL("cuGraphGetNodes", (abi_graph, void *, size_t *), graph, NULL, &nodes);
    say("end capture", result, (long long)nodes);
    if (result) return;
    if (graphs[place]) say("destroy exec", CALL("cuGraphExecDestroy", (abi_graph_exec), graphs[place]), place);
    graphs[place] = NULL;
    say("instantiate",
        CALL("cuGraphInstantiateWithFlags", (abi_graph_exec *, abi_graph, unsigned long long), &graphs[place], graph,
             0ull),
        place);
    say("destroy graph", CALL("cuGraphDestroy", (abi_graph), graph), place);
}

static void nothing(void *unused) {}
static void go_on(int number) {}

static void end_captures(void) {
    for (unsigned i = 0; i < STREAMS; i++) end_capture(streams[i], 0);
}

/* `again_us`: and each time that has passed after it; 0: once. */
static void signal_after(int number, long us, long again_us) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
    struct itimerspec times = {.it_value = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 + 1},
                               .it_interval = {.tv_nsec = again_us * 1000}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &times, NULL)) abort();
}

/* Its launches that others wait for have begun, so that they do not need it any more. */
static void meet_all(void) {
    end_captures();
    say("sync", CALL("cuStreamSynchronize", (abi_stream), meets), 0);
}

/* Killed while it launches, or waits to. */
static void be_killed(unsigned us) {
    say("killed", ABI_SUCCESS, 0);
    signal_after(SIGKILL, us, 0);
    for (unsigned i = 0;; i++) launch(WORK, streams[2 + i % (STREAMS - 2)], 0, 0);
}

/* Beside a kernel that never ends, for what it waits for was killed. */
static void be_abandoned(unsigned flag, unsigned value, unsigned us) {
    meet_all();
    say("meet", launch(MEET, meets, flag, value), 0);
    for (unsigned i = 0; i < 20; i++) {
        say("launch", launch(BRIEF, last, 0, 0), 0);
        say("sync", CALL("cuStreamSynchronize", (abi_stream), last), 0);
    }
    be_killed(us);
}

static void carry_out(unsigned kind, unsigned a, unsigned b, unsigned flag) {
    abi_stream stream = streams[a % STREAMS];
    abi_event event = events[b % EVENTS];
    unsigned place = b % GRAPHS, created = 2 + a % (STREAMS - 2);
    int number = 0;
    abi_devptr memory = 0;
    char byte = 0;
    if (kind < 25) {
        for (unsigned i = 0; i <= b % 6; i++) say("launch", launch(b % 3 ? BRIEF : WORK, stream, 0, 0), a % STREAMS);
    } else if (kind < 33) {
        say("consume", launch(CONSUME, stream, flag, 1), a % STREAMS);
        say("produce", launch(PRODUCE, last, flag, 0), 0);
    } else if (kind < 40) {
        say("record", CALL("cuEventRecord", (abi_event, abi_stream), event, stream), a % STREAMS);
    } else if (kind < 47) {
        say("wait event", CALL("cuStreamWaitEvent", (abi_stream, abi_event, unsigned), stream, event, 0), a % STREAMS);
    } else if (kind < 57) {
        say("begin capture", CALL("cuStreamBeginCapture_v2", (abi_stream, int), stream, (int)(b % 3)), a % STREAMS);
    } else if (kind < 69) {
        end_capture(stream, place);
    } else if (kind < 77) {
        if (!graphs[place]) return;
        say("launch graph", CALL("cuGraphLaunch", (abi_graph_exec, abi_stream), graphs[place], stream), place);
    } else if (kind < 81) {
        say("sync", CALL("cuStreamSynchronize", (abi_stream), stream), a % STREAMS);
    } else if (kind < 83) {
        say("query", asked(CALL("cuStreamQuery", (abi_stream), stream)), a % STREAMS);
    } else if (kind < 85) {
        say("query event", asked(CALL("cuEventQuery", (abi_event), event)), b % EVENTS);
    } else if (kind < 89) {
        abi_result result = CALL("cuStreamIsCapturing", (abi_stream, int *), stream, &number);
        say("is capturing", result, number);
    } else if (kind < 91) {
        number = (int)(b % 3);
        abi_result result = CALL("cuThreadExchangeStreamCaptureMode", (int *), &number);
        say("exchange mode", result, number);
    } else if (kind < 93) {
        abi_result result = CALL("cuMemAlloc_v2", (abi_devptr *, size_t), &memory, (size_t)4096);
        say("allocate", result, 0);
        if (!result)
            say("copy", CALL("cuMemcpyHtoD_v2", (abi_devptr, const void *, size_t), memory, &byte, (size_t)1), 0);
        if (!result) say("free", CALL("cuMemFree_v2", (abi_devptr), memory), 0);
    } else if (kind < 94) {
        say("host function", CALL("cuLaunchHostFunc", (abi_stream, void (*)(void *), void *), stream, nothing, NULL),
            0);
    } else if (kind < 95) {
        say("wait for all", CALL("cuCtxSynchronize", (void)), 0);
    } else if (kind < 97) {
        say("destroy stream", CALL("cuStreamDestroy_v2", (abi_stream), streams[created]), created);
        streams[created] = new_stream(b % 2);
    } else if (kind < 98) {
        usleep(b % 3000);
    } else {
        say("stop", ABI_SUCCESS, 0);
        signal_after(SIGCONT, b % 10000 + (100 << a % 13), 900000);
        signal_after(SIGSTOP, b % 10000, 0);
    }
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    state = strtoull(argv[1], NULL, 10);
    unsigned steps = (unsigned)strlen(argv[2]), rank = (unsigned)atoi(argv[3]), ranks = (unsigned)atoi(argv[4]);
    unsigned flag = (unsigned)atoi(argv[5]), met = 0, killed = 0, left = ranks;
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    /* A timer whose signal is ignored need not go on. */
    if (sigaction(SIGCONT, &(struct sigaction){.sa_handler = go_on, .sa_flags = SA_RESTART}, NULL)) return 3;
    if (!start()) return 3;
    meets = new_stream(ABI_STREAM_NON_BLOCKING);
    last = new_stream(ABI_STREAM_NON_BLOCKING);
    for (draw(2), step = 1; step <= steps; step++) {
        unsigned owner = draw(ranks), kind = draw(110), a = draw(1 << 20), b = draw(1 << 20);
        if (argv[2][step - 1] == '0' || (killed >> owner & 1 && kind < 100)) continue;
        if (kind == 99 && b % 3 == 0) {
            bool abandons = a % 2;
            if (owner == rank) {
                meet_all();
                be_killed(b % 30000);
            }
            if (abandons) be_abandoned(flag, met + left, b % 300000);
            killed |= 1u << owner;
            left--;
        } else if (kind < 100) {
            if (owner == rank) carry_out(kind, a, b, flag + step);
        } else {
            met += left;
            say("meet", launch(MEET, meets, flag, met), met);
            if (b % 2) say("sync", CALL("cuStreamSynchronize", (abi_stream), meets), -1);
        }
    }
    end_captures();
    say("wait for all", CALL("cuCtxSynchronize", (void)), 0);
    return 0;
}
