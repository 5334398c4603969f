/* Programs whose work waits for other work: streams that run side by side, kernels that need one another, captures.
 * Each prints one line of JSON, and ends with 1 if a call of the driver failed that should not.
 *
 *   streams two              a kernel that ends when a later one on another stream has started
 *   streams many STREAMS     the same with so many kernels that wait, on a stream each
 *   streams ranks FLAG N MS  one of N processes; each iteration ends when the kernels of all N have started
 *   streams steps FLAG N STEPS  the same with a kernel of 2 ms before each, all launched before the first wait
 *   streams busy MS          a neighbor: kernels of 500 us, eight at a time
 *   streams capture ROUNDS FLAGS  work, then a capture of the same stream, without a wait in between
 *   streams capture-other ROUNDS FLAGS  work on the legacy default stream, then a capture of the stream
 *   streams join ROUNDS      work on a stream, which then joins the capture of another one
 *   streams overlap ROUNDS   two blocking streams, one of which waits for a flag that the host sets by way of the other
 *   streams kinds KINDS MS   launches of so many kinds in turn; 0: each is new
 *   streams rules            what captures and streams forbid, and with which result
 *   streams frees            whether a stream is done after memory that its copies use was freed */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"

static const char KERNELS[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                              "// cotenant-sim: duration_us=50\n.visible .entry brief()\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=500\n.visible .entry work()\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=2000\n.visible .entry layer()\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=1 await=1\n"
                              ".visible .entry consume(.param .u32 flag, .param .u32 value)\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=1 signal=1\n"
                              ".visible .entry produce(.param .u32 flag, .param .u32 value)\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=20 signal=1 await=1\n"
                              ".visible .entry meet(.param .u32 flag, .param .u32 value)\n{\n ret;\n}\n"
                              "// cotenant-sim: duration_us=1 signal=1073741824\n"
                              ".visible .entry leave(.param .u32 flag, .param .u32 value)\n{\n ret;\n}\n";

static abi_result (*launch_kernel)(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   abi_stream, void **, void **);
static abi_result (*stream_create)(abi_stream *, unsigned), (*stream_sync)(abi_stream), (*stream_query)(abi_stream);
static abi_result (*capture_begin)(abi_stream, int), (*capture_end)(abi_stream, abi_graph *);
static abi_result (*instantiate)(abi_graph_exec *, abi_graph, unsigned long long);
static abi_result (*graph_launch)(abi_graph_exec, abi_stream);
static abi_result (*capture_mode)(int *), (*is_capturing)(abi_stream, int *);
static abi_result (*event_create)(abi_event *, unsigned), (*event_record)(abi_event, abi_stream);
static abi_result (*event_query)(abi_event), (*wait_event)(abi_stream, abi_event, unsigned), (*context_sync)(void);
static abi_result (*allocate)(abi_devptr *, size_t), (*copy)(abi_devptr, const void *, size_t);
static abi_result (*free_memory)(abi_devptr), (*allocate_host)(void **, size_t), (*free_host)(void *);
static abi_result (*copy_to_host)(void *, abi_devptr, size_t, abi_stream);
static abi_result (*launch_host)(abi_stream, void (*)(void *), void *);
static abi_function brief, work, layer, consume, produce, meet, leave;
static unsigned failed;

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000;
}

static void must(abi_result result, const char *what) {
    if (result == ABI_SUCCESS) return;
    if (failed++ < 3) fprintf(stderr, "%s: %d\n", what, result);
}
#define MUST(call) must(call, #call)

static abi_result launch(abi_function function, abi_stream stream, unsigned flag, unsigned value) {
    void *parameters[2] = {&flag, &value};
    return launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static abi_stream new_stream(unsigned flags) {
    abi_stream stream = NULL;
    MUST(stream_create(&stream, flags));
    return stream;
}

static bool start(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    abi_result (*init)(unsigned), (*retain)(abi_context *, abi_device), (*set_current)(abi_context);
    abi_result (*load)(abi_module *, const void *), (*get)(abi_function *, abi_module, const char *);
    abi_context context;
    abi_module module;
    if (!driver) return false;
#define FIND(pointer, name)                           \
    do {                                              \
        *(void **)(&(pointer)) = dlsym(driver, name); \
        if (!*(void **)(&(pointer))) return false;    \
    } while (0)
    FIND(init, "cuInit");
    FIND(retain, "cuDevicePrimaryCtxRetain");
    FIND(set_current, "cuCtxSetCurrent");
    FIND(load, "cuModuleLoadData");
    FIND(get, "cuModuleGetFunction");
    FIND(launch_kernel, "cuLaunchKernel");
    FIND(stream_create, "cuStreamCreate");
    FIND(stream_sync, "cuStreamSynchronize");
    FIND(stream_query, "cuStreamQuery");
    FIND(capture_begin, "cuStreamBeginCapture_v2");
    FIND(capture_end, "cuStreamEndCapture");
    FIND(instantiate, "cuGraphInstantiateWithFlags");
    FIND(graph_launch, "cuGraphLaunch");
    FIND(capture_mode, "cuThreadExchangeStreamCaptureMode");
    FIND(is_capturing, "cuStreamIsCapturing");
    FIND(event_create, "cuEventCreate");
    FIND(event_record, "cuEventRecord");
    FIND(event_query, "cuEventQuery");
    FIND(wait_event, "cuStreamWaitEvent");
    FIND(context_sync, "cuCtxSynchronize");
    FIND(allocate, "cuMemAlloc_v2");
    FIND(copy, "cuMemcpyHtoD_v2");
    FIND(free_memory, "cuMemFree_v2");
    FIND(allocate_host, "cuMemAllocHost_v2");
    FIND(free_host, "cuMemFreeHost");
    FIND(copy_to_host, "cuMemcpyDtoHAsync_v2");
    FIND(launch_host, "cuLaunchHostFunc");
    return !init(0) && !retain(&context, 0) && !set_current(context) && !load(&module, KERNELS) &&
           !get(&brief, module, "brief") && !get(&work, module, "work") && !get(&layer, module, "layer") &&
           !get(&consume, module, "consume") && !get(&produce, module, "produce") && !get(&meet, module, "meet") &&
           !get(&leave, module, "leave");
}

static void many(unsigned streams) {
    uint64_t from = now_us();
    abi_stream last = new_stream(ABI_STREAM_NON_BLOCKING), *waiting = calloc(streams + 1, sizeof *waiting);
    if (!waiting) abort();
    for (unsigned i = 0; i < streams; i++) {
        waiting[i] = new_stream(ABI_STREAM_NON_BLOCKING);
        MUST(launch(consume, waiting[i], 1, 1));
    }
    MUST(launch(produce, last, 1, 0));
    for (unsigned i = 0; i < streams; i++) MUST(stream_sync(waiting[i]));
    free(waiting);
    printf("{\"ms\":%.1f}\n", (double)(now_us() - from) / 1e3);
}

static void ranks(unsigned flag, unsigned count, uint64_t ms) {
    abi_stream stream = new_stream(ABI_STREAM_NON_BLOCKING);
    uint64_t from = now_us(), longest = 0;
    unsigned done = 0;
    for (uint64_t now = from, before; now - from < ms * 1000; done++) {
        MUST(launch(meet, stream, flag, count * (done + 1)));
        MUST(stream_sync(stream));
        before = now;
        now = now_us();
        if (now - before > longest) longest = now - before;
    }
    /* The others wait for it no longer. */
    MUST(launch(leave, stream, flag, 0));
    MUST(stream_sync(stream));
    printf("{\"collectives\":%u,\"longestMs\":%.1f}\n", done, (double)longest / 1e3);
}

static void steps(unsigned flag, unsigned count, unsigned steps) {
    abi_stream stream = new_stream(ABI_STREAM_NON_BLOCKING);
    /* The others have come as far. */
    MUST(launch(meet, stream, flag, count));
    MUST(stream_sync(stream));
    uint64_t from = now_us();
    for (unsigned step = 1; step <= steps; step++) {
        MUST(launch(layer, stream, 0, 0));
        MUST(launch(meet, stream, flag, count * (step + 1)));
    }
    MUST(stream_sync(stream));
    printf("{\"stepMs\":%.2f}\n", (double)(now_us() - from) / 1e3 / steps);
}

static void busy(uint64_t ms) {
    abi_stream stream = new_stream(ABI_STREAM_NON_BLOCKING);
    unsigned count = 0;
    for (uint64_t from = now_us(); now_us() - from < ms * 1000; count++) {
        MUST(launch(work, stream, 0, 0));
        if (count % 8 == 7) MUST(stream_sync(stream));
    }
    printf("{\"kernels\":%u}\n", count);
}

/* Launches into the capture for 3 ms, and returns how many of the calls failed. */
static unsigned captured(abi_stream stream) {
    unsigned wrong = 0;
    for (uint64_t from = now_us(); now_us() - from < 3000;) wrong += launch(brief, stream, 0, 0) != ABI_SUCCESS;
    return wrong;
}

static void capture(unsigned rounds, unsigned flags, bool legacy) {
    abi_stream stream = new_stream(flags), on = legacy ? NULL : stream;
    unsigned bad = 0;
    abi_graph graph;
    int last = 0;
    for (int i = 0; i < 20; i++) {
        MUST(launch(brief, on, 0, 0));
        MUST(stream_sync(on));
    }
    for (unsigned i = 0; i < rounds; i++) {
        for (int k = 0; k < 4; k++) MUST(launch(brief, on, 0, 0));
        bool begun = capture_begin(stream, ABI_CAPTURE_GLOBAL) == ABI_SUCCESS;
        unsigned wrong = captured(stream);
        int end = capture_end(stream, &graph);
        if (!begun || wrong || end) bad++, last = end;
        MUST(stream_sync(stream));
    }
    printf("{\"failed\":%u,\"end\":%d}\n", bad, last);
}

static void join(unsigned rounds) {
    abi_stream origin = new_stream(ABI_STREAM_NON_BLOCKING), other = new_stream(ABI_STREAM_NON_BLOCKING);
    abi_event fork, back;
    unsigned bad = 0;
    abi_graph graph;
    int last = 0;
    MUST(event_create(&fork, ABI_EVENT_DISABLE_TIMING));
    MUST(event_create(&back, ABI_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < rounds; i++) {
        for (int k = 0; k < 4; k++) MUST(launch(brief, other, 0, 0));
        MUST(capture_begin(origin, ABI_CAPTURE_RELAXED));
        MUST(event_record(fork, origin));
        MUST(wait_event(other, fork, 0));
        unsigned wrong = captured(other);
        MUST(event_record(back, other));
        MUST(wait_event(origin, back, 0));
        int end = capture_end(origin, &graph);
        if (wrong || end) bad++, last = end;
        MUST(stream_sync(other));
    }
    printf("{\"failed\":%u,\"end\":%d}\n", bad, last);
}

/* The second kernel sets the flag; it is launched only when the third stream's work is done, as the host sees it. A
 * barrier that the program did not ask for, between the two, is a deadlock. */
static void overlap(unsigned rounds) {
    abi_stream a = new_stream(0), b = new_stream(0);
    uint64_t from = now_us();
    for (unsigned round = 1; round <= rounds; round++) {
        MUST(launch(brief, NULL, 0, 0));
        MUST(launch(consume, a, 2, round));
        /* Long enough for a thread of ours to look at the launch on the default stream. */
        for (uint64_t until = now_us() + 2000; now_us() < until;) {
        }
        MUST(launch(brief, b, 0, 0));
        MUST(stream_sync(b));
        MUST(launch(produce, b, 2, 0));
        MUST(stream_sync(a));
    }
    printf("{\"ms\":%.1f}\n", (double)(now_us() - from) / 1e3);
}

static void kinds(unsigned count, uint64_t ms) {
    abi_stream stream = new_stream(ABI_STREAM_NON_BLOCKING);
    uint64_t from = now_us(), launches = 0;
    for (; now_us() - from < ms * 1000; launches++) {
        unsigned kind = (unsigned)(count ? launches % count : launches);
        MUST(launch_kernel(brief, 1 + kind, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        if (launches % 32 == 31) MUST(stream_sync(stream));
    }
    MUST(stream_sync(stream));
    printf("{\"launches\":%llu,\"ms\":%.1f}\n", (unsigned long long)launches, (double)(now_us() - from) / 1e3);
}

/* Begins a capture, makes the call, and shows its result and that of the capture's end. */
#define RULE(name, stream, mode, call)                                   \
    do {                                                                 \
        MUST(capture_begin(stream, mode));                               \
        abi_result called = (call), ended = capture_end(stream, &graph); \
        printf("%s\"%s\":[%d,%d]", separator, name, called, ended);      \
        separator = ",";                                                 \
    } while (0)

static void rules(void) {
    abi_stream blocking = new_stream(0), free = new_stream(ABI_STREAM_NON_BLOCKING);
    abi_stream other = new_stream(ABI_STREAM_NON_BLOCKING);
    abi_event plain, inside;
    abi_devptr memory, more;
    abi_graph graph;
    abi_graph_exec exec;
    int status, relaxed = ABI_CAPTURE_RELAXED;
    char byte = 0;
    const char *separator = "{";
    MUST(event_create(&plain, 0));
    MUST(event_create(&inside, 0));
    MUST(allocate(&memory, 512));
    MUST(event_record(plain, other));
    MUST(stream_sync(other));
    RULE("nothing", free, ABI_CAPTURE_GLOBAL, ABI_SUCCESS);
    MUST(instantiate(&exec, graph, 0));
    RULE("launch a graph", free, ABI_CAPTURE_GLOBAL, graph_launch(exec, free));
    RULE("query the stream", free, ABI_CAPTURE_RELAXED, stream_query(free));
    RULE("wait for the stream", free, ABI_CAPTURE_RELAXED, stream_sync(free));
    RULE("wait for the context", free, ABI_CAPTURE_RELAXED, context_sync());
    RULE("query a captured event", free, ABI_CAPTURE_RELAXED, (MUST(event_record(inside, free)), event_query(inside)));
    RULE("wait for an event of before", free, ABI_CAPTURE_RELAXED, wait_event(free, plain, 0));
    RULE("wait for it as external", free, ABI_CAPTURE_RELAXED, wait_event(free, plain, ABI_EVENT_WAIT_EXTERNAL));
    RULE("legacy beside non-blocking", free, ABI_CAPTURE_RELAXED, launch(brief, NULL, 0, 0));
    RULE("legacy beside blocking", blocking, ABI_CAPTURE_RELAXED, launch(brief, NULL, 0, 0));
    RULE("event on legacy beside blocking", blocking, ABI_CAPTURE_RELAXED, event_record(plain, NULL));
    RULE("is legacy capturing beside blocking", blocking, ABI_CAPTURE_RELAXED, is_capturing(NULL, &status));
    RULE("copy beside blocking", blocking, ABI_CAPTURE_RELAXED, copy(memory, &byte, 1));
    RULE("own stream beside blocking", blocking, ABI_CAPTURE_RELAXED, launch(brief, ABI_STREAM_PER_THREAD, 0, 0));
    RULE("own stream", ABI_STREAM_PER_THREAD, ABI_CAPTURE_RELAXED, launch(brief, ABI_STREAM_PER_THREAD, 0, 0));
    RULE("query another event, global", free, ABI_CAPTURE_GLOBAL, event_query(plain));
    RULE("query another event, relaxed", free, ABI_CAPTURE_RELAXED, event_query(plain));
    RULE("allocate, global", free, ABI_CAPTURE_GLOBAL, allocate(&more, 512));
    MUST(capture_mode(&relaxed));
    RULE("allocate, global, by a relaxed thread", free, ABI_CAPTURE_GLOBAL, allocate(&more, 512));
    printf(",\"capture legacy\":%d}\n", capture_begin(ABI_STREAM_LEGACY, ABI_CAPTURE_GLOBAL));
}

static void take_time(void *nothing) {
    usleep(50000);
}

static void frees(void) {
    abi_stream stream = new_stream(ABI_STREAM_NON_BLOCKING);
    abi_result done[2];
    for (int host = 0; host < 2; host++) {
        abi_devptr memory;
        void *page;
        MUST(allocate(&memory, 4096));
        MUST(allocate_host(&page, 4096));
        MUST(launch_host(stream, take_time, NULL));
        MUST(copy_to_host(page, memory, 4096, stream));
        if (host) MUST(free_host(page));
        else MUST(free_memory(memory));
        done[host] = stream_query(stream);
        MUST(stream_sync(stream));
    }
    printf("{\"device\":%d,\"host\":%d}\n", done[0], done[1]);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    unsigned first = argc > 2 ? (unsigned)atoi(argv[2]) : 0, second = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
    if (!start()) {
        fprintf(stderr, "no driver\n");
        return 3;
    }
    if (!strcmp(what, "two")) many(1);
    else if (!strcmp(what, "many")) many(first);
    else if (!strcmp(what, "ranks")) ranks(first, second, argc > 4 ? (uint64_t)atoi(argv[4]) : 0);
    else if (!strcmp(what, "steps")) steps(first, second, argc > 4 ? (unsigned)atoi(argv[4]) : 1);
    else if (!strcmp(what, "busy")) busy(first);
    else if (!strcmp(what, "capture")) capture(first, second, false);
    else if (!strcmp(what, "capture-other")) capture(first, second, true);
    else if (!strcmp(what, "join")) join(first);
    else if (!strcmp(what, "overlap")) overlap(first);
    else if (!strcmp(what, "kinds")) kinds(first, second);
    else if (!strcmp(what, "rules")) rules();
    else if (!strcmp(what, "frees")) frees();
    else return 2;
    return failed != 0;
}
