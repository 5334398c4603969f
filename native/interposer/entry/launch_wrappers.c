/* Wrappers of the launch functions, for containers whose compute is leased. The trampolines lead here by way of the
 * launch gate. Each wrapper asks the engine to admit the launch, calls the driver, and reports the result to the
 * engine. The engine needs a launch's stream and a key that identifies the kind of launch. No lock is held
 * here. */
#include "entry.h"

#define GRAPHS 2u /* the family of all graphs */

/* Keys are never 0; that of a function is even, those of its kinds are odd. */
static struct cot_gated_launch launch_of(abi_stream stream, const void *function, uint64_t blocks, uint64_t threads) {
    uint64_t family = (uint64_t)(uintptr_t)function * 0x9e3779b97f4a7c15ull;
    uint64_t key = (family ^ family >> 29 ^ blocks) * 0xff51afd7ed558ccdull;
    key = (key ^ key >> 32 ^ threads) * 0xc4ceb9fe1a85ec53ull;
    return (struct cot_gated_launch){.bytes = sizeof(struct cot_gated_launch),
                                     .stream = stream,
                                     .key = key | 1,
                                     .family = blocks ? (family | 1) - 1 : GRAPHS,
                                     .blocks = blocks};
}

static inline uint64_t volume(unsigned x, unsigned y, unsigned z) {
    return (uint64_t)x * y * z;
}

/* In the per-thread forms NULL is the per-thread default stream. */
static inline abi_stream own_stream(abi_stream stream) {
    return stream ? stream : ABI_STREAM_PER_THREAD;
}

static inline abi_result admit(struct cot_gated_launch *launch) {
    return (abi_result)entry_cotenant_admit((uint64_t)(uintptr_t)launch, 0, 0, 0, 0, 0);
}
static inline void launched(struct cot_gated_launch *launch, abi_result result) {
    entry_cotenant_launched((uint64_t)(uintptr_t)launch, (uint64_t)result, 0, 0, 0, 0);
}

#define FORM(symbol, parameters, types, what, ...)                                          \
    static abi_result leased_##symbol parameters {                                          \
        struct cot_gated_launch launch = what;                                              \
        abi_result result = admit(&launch);                                                 \
        if (result != ABI_SUCCESS) return result;                                           \
        result = ((abi_result(*) types)shim_resolved_target(COT_AT_##symbol))(__VA_ARGS__); \
        launched(&launch, result);                                                          \
        return result;                                                                      \
    }

#define GRID_PARAMETERS \
    abi_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define GRID_TYPES abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
#define GRID function, gx, gy, gz, bx, by, bz, shared
#define LAUNCH_ON(stream) launch_of(stream, function, volume(gx, gy, gz), volume(bx, by, bz))

FORM(cuLaunchKernel, (GRID_PARAMETERS, abi_stream stream, void **parameters, void **extra),
     (GRID_TYPES, abi_stream, void **, void **), LAUNCH_ON(stream), GRID, stream, parameters, extra)
FORM(cuLaunchKernel_ptsz, (GRID_PARAMETERS, abi_stream stream, void **parameters, void **extra),
     (GRID_TYPES, abi_stream, void **, void **), LAUNCH_ON(own_stream(stream)), GRID, stream, parameters, extra)
FORM(cuLaunchCooperativeKernel, (GRID_PARAMETERS, abi_stream stream, void **parameters),
     (GRID_TYPES, abi_stream, void **), LAUNCH_ON(stream), GRID, stream, parameters)
FORM(cuLaunchCooperativeKernel_ptsz, (GRID_PARAMETERS, abi_stream stream, void **parameters),
     (GRID_TYPES, abi_stream, void **), LAUNCH_ON(own_stream(stream)), GRID, stream, parameters)

static struct cot_gated_launch launch_of_config(const abi_launch_config *config, abi_function function) {
    if (!config) return launch_of(NULL, function, 1, 1); /* the driver will refuse it */
    return launch_of(config->stream, function, volume(config->grid_x, config->grid_y, config->grid_z),
                     volume(config->block_x, config->block_y, config->block_z));
}
static struct cot_gated_launch own_launch_of_config(const abi_launch_config *config, abi_function function) {
    struct cot_gated_launch launch = launch_of_config(config, function);
    launch.stream = own_stream(launch.stream);
    return launch;
}
#define CONFIG_PARAMETERS (const abi_launch_config *config, abi_function function, void **parameters, void **extra)
#define CONFIG_TYPES (const abi_launch_config *, abi_function, void **, void **)
FORM(cuLaunchKernelEx, CONFIG_PARAMETERS, CONFIG_TYPES, launch_of_config(config, function), config, function,
     parameters, extra)
FORM(cuLaunchKernelEx_ptsz, CONFIG_PARAMETERS, CONFIG_TYPES, own_launch_of_config(config, function), config, function,
     parameters, extra)

/* The oldest forms: the grid was set on the function before. */
FORM(cuLaunch, (abi_function function), (abi_function), launch_of(NULL, function, 1, 1), function)
FORM(cuLaunchGrid, (abi_function function, int width, int height), (abi_function, int, int),
     launch_of(NULL, function, (uint64_t)(unsigned)width *(unsigned)height, 1), function, width, height)
FORM(cuLaunchGridAsync, (abi_function function, int width, int height, abi_stream stream),
     (abi_function, int, int, abi_stream), launch_of(stream, function, (uint64_t)(unsigned)width *(unsigned)height, 1),
     function, width, height, stream)

FORM(cuGraphLaunch, (abi_graph_exec graph, abi_stream stream), (abi_graph_exec, abi_stream),
     launch_of(stream, graph, 0, 0), graph, stream)
FORM(cuGraphLaunch_ptsz, (abi_graph_exec graph, abi_stream stream), (abi_graph_exec, abi_stream),
     launch_of(own_stream(stream), graph, 0, 0), graph, stream)

/* One launch for each GPU in the list. */
static abi_result leased_cuLaunchCooperativeKernelMultiDevice(const abi_launch_of_many *list, unsigned count,
                                                              unsigned flags) {
    typedef abi_result call(const abi_launch_of_many *, unsigned, unsigned);
    call *target = (call *)shim_resolved_target(COT_AT_cuLaunchCooperativeKernelMultiDevice);
    struct cot_gated_launch launches[COT_MAX_GPUS];
    unsigned admitted = 0, most = list && count <= COT_MAX_GPUS ? count : 0;
    abi_result result = ABI_SUCCESS;
    for (; admitted < most && result == ABI_SUCCESS; admitted++) {
        const abi_launch_of_many *one = &list[admitted];
        launches[admitted] = launch_of(one->stream, one->function, volume(one->grid_x, one->grid_y, one->grid_z),
                                       volume(one->block_x, one->block_y, one->block_z));
        launches[admitted].of_stream = true;
        result = admit(&launches[admitted]);
    }
    bool refused = result != ABI_SUCCESS;
    if (!refused) result = target(list, count, flags);
    for (unsigned i = 0; i < admitted - refused; i++) launched(&launches[i], result);
    return result;
}

/* A gated entry point without a wrapper does not compile. */
void *entry_leased_wrapper(uint64_t index) {
    switch (index) {
#define CASE(at, symbol) \
    case at: return (void *)leased_##symbol;
        COT_CUDA_GATED(CASE)
#undef CASE
    default: return NULL;
    }
}
