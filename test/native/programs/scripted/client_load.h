/* Commands of client.c that launch kernels for a while, in every form. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "../../../../native/simulator/client/client.h"

#define LOAD_STREAMS 4

struct loader {
    const char *form;
    abi_function function;
    abi_graph_exec exec;
    abi_stream streams[LOAD_STREAMS];
    unsigned at;
};

static abi_result load_graph(uint64_t us, abi_graph_exec *exec) {
    abi_graph graph;
    uint64_t made;
    abi_result result = CALL(cuGraphCreate, (abi_graph *, unsigned), &graph, 0u);
    for (int i = 0; i < 8 && !result; i++) result = graph_node("node-kernel", graph, us, 0, &made);
    return result ? result : graph_instantiate("instantiate", graph, 0, exec);
}

/* How many kernels that is; 0: the driver refused. */
static unsigned load_once(struct loader *of, abi_result *result) {
    typedef abi_result kernel_form(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   abi_stream, void **, void **);
    abi_stream stream = !strcmp(of->form, "streams") ? of->streams[of->at++ % LOAD_STREAMS] : NULL;
    abi_launch_config config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
    abi_launch_of_many many = {of->function, 1, 1, 1, 1, 1, 1, 0, of->streams[0], NULL};
    if (!strcmp(of->form, "graph") || !strcmp(of->form, "graph-ptsz")) {
        const char *name = of->form[5] ? "cuGraphLaunch_ptsz" : "cuGraphLaunch";
        *result = ((abi_result (*)(abi_graph_exec, abi_stream))find(name))(of->exec, stream);
        return *result ? 0 : 8;
    }
    if (!strcmp(of->form, "ptsz")) {
        *result = ((kernel_form *)find("cuLaunchKernel_ptsz"))(of->function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    } else if (!strcmp(of->form, "ex") || !strcmp(of->form, "ex-ptsz")) {
        const char *name = of->form[2] ? "cuLaunchKernelEx_ptsz" : "cuLaunchKernelEx";
        *result = ((abi_result (*)(const abi_launch_config *, abi_function, void **, void **))find(name))(
            &config, of->function, NULL, NULL);
    } else if (!strcmp(of->form, "cooperative") || !strcmp(of->form, "cooperative-ptsz")) {
        const char *name = of->form[11] ? "cuLaunchCooperativeKernel_ptsz" : "cuLaunchCooperativeKernel";
        *result = ((abi_result (*)(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   abi_stream, void **))find(name))(of->function, 1, 1, 1, 1, 1, 1, 0, stream, NULL);
    } else if (!strcmp(of->form, "many")) {
        *result =
            CALL(cuLaunchCooperativeKernelMultiDevice, (const abi_launch_of_many *, unsigned, unsigned), &many, 1u, 0u);
    } else {
        *result = ((kernel_form *)find("cuLaunchKernel"))(of->function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    }
    return *result ? 0 : 1;
}

static abi_result load(const char *form, uint64_t ms, uint64_t us, uint64_t *count) {
    struct loader of = {.form = form};
    double until = now_ms() + (double)ms;
    abi_result result = kernel(&of.function, us, 0);
    if (!result && !strncmp(form, "graph", 5)) result = load_graph(us, &of.exec);
    for (int i = 0; i < LOAD_STREAMS && !result; i++)
        result = CALL(cuStreamCreate, (abi_stream *, unsigned), &of.streams[i], (unsigned)ABI_STREAM_NON_BLOCKING);
    /* What runs ahead of the GPU is bounded, as in programs that look at a result now and then. */
    unsigned ahead = !strcmp(form, "sync") ? 1 : us >= 5000 ? 4 : 64;
    for (unsigned i = 1; !result && now_ms() < until; i++) {
        *count += load_once(&of, &result);
        if (!result && i % ahead == 0) result = CALL(cuCtxSynchronize, (void));
    }
    if (!result) result = CALL(cuCtxSynchronize, (void));
    for (int i = 0; i < LOAD_STREAMS && !result; i++) result = CALL(cuStreamDestroy_v2, (abi_stream), of.streams[i]);
    return result;
}

/* A program at its usual work: memory taken, written, computed on and given back, for so long. The first error ends it.
 */
static abi_result work_on(uint64_t ms, uint64_t bytes, uint64_t us, uint64_t *rounds) {
    double until = now_ms() + (double)ms;
    abi_function function;
    abi_result result = kernel(&function, us, 0);
    for (; !result && now_ms() < until; *rounds += 1) {
        abi_devptr at = 0;
        result = CALL(cuMemAlloc_v2, (abi_devptr *, size_t), &at, (size_t)bytes);
        if (!result)
            result = CALL(cuMemsetD8_v2, (abi_devptr, unsigned char, size_t), at, (unsigned char)1, (size_t)4096);
        if (!result) result = launch(function, 4);
        if (!result) result = CALL(cuCtxSynchronize, (void));
        if (!result) result = CALL(cuMemFree_v2, (abi_devptr), at);
    }
    return result ? result : CALL(cuModuleUnload, (abi_module), module);
}

struct loading {
    uint64_t ms, us, count;
    abi_context context;
    abi_result result;
};

static void *load_in_thread(void *about) {
    struct loading *loading = about;
    loading->result = CALL(cuCtxSetCurrent, (abi_context), loading->context);
    if (!loading->result) loading->result = load("async", loading->ms, loading->us, &loading->count);
    return NULL;
}

/* A child that launches gets an error, and does not wait; the parent's launches go on. */
static abi_result fork_amid_load(uint64_t ms, uint64_t us, uint64_t *status) {
    struct loading loading = {.ms = ms, .us = us};
    pthread_t thread;
    abi_function function;
    abi_result result = CALL(cuCtxGetCurrent, (abi_context *), &loading.context);
    if (!result) result = kernel(&function, us, 0);
    if (result || pthread_create(&thread, NULL, load_in_thread, &loading)) return result ? result : 3;
    for (int i = 0; i < 20; i++) {
        int ended = 0;
        pid_t child = fork();
        if (child == 0) _exit(launch(function, 1) == ABI_SUCCESS ? 1 : 0);
        if (waitpid(child, &ended, 0) != child || ended) *status += 1;
    }
    pthread_join(thread, NULL);
    return loading.result;
}

static void *release_in_thread(void *result) {
    *(abi_result *)result = CALL(cuDevicePrimaryCtxRelease_v2, (abi_device), 0);
    return NULL;
}

/* CUDA begins while another thread is in the driver with a call that ends contexts: the plan keeps it there. */
static abi_result init_amid_release(uint64_t *released) {
    pthread_t thread;
    abi_result ended = ABI_SUCCESS;
    const char *path = getenv("COTENANT_SIM_PLAN");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    struct sim_plan *plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (plan == MAP_FAILED) return ABI_ERROR_UNKNOWN;
    plan->act = SIM_PLAN_PAUSE;
    atomic_store(&plan->at, atomic_load(&plan->calls) + 1);
    if (pthread_create(&thread, NULL, release_in_thread, &ended)) return ABI_ERROR_UNKNOWN;
    while (!atomic_load(&plan->met)) sched_yield();
    abi_result result = CALL(cuInit, (unsigned), 0u);
    atomic_store(&plan->met, 0);
    pthread_join(thread, NULL);
    close(fd);
    *released = ended;
    return result;
}
