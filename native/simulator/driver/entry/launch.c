/* Entry points that launch kernels. */
#include "../sim.h"

/* Limits of devices of compute capability 3.0 and later (CUDA C++ Programming Guide, technical specifications). */
enum { MOST_THREADS = 1024, MOST_BLOCK_Z = 64, MOST_GRID_YZ = 65535 };

struct shape {
    unsigned grid[3], block[3], shared;
    bool cooperative;
};

static int check(const struct sim_function *function, const struct shape *shape) {
    const unsigned *grid = shape->grid, *block = shape->block;
    if (!function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2]) return ABI_ERROR_INVALID_VALUE;
    if (grid[0] > INT32_MAX || grid[1] > MOST_GRID_YZ || grid[2] > MOST_GRID_YZ) return ABI_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (threads > MOST_THREADS || block[2] > MOST_BLOCK_Z) return ABI_ERROR_INVALID_VALUE;
    if (shape->shared > function->dynamic_shared) return ABI_ERROR_INVALID_VALUE;
    return ABI_SUCCESS;
}

static int launch(struct sim_function *function, const struct shape *shape, abi_stream handle,
                  void *const *parameters) {
    SIM_STREAM(handle, context, stream);
    SIM_TRY(check(function, shape));
    struct sim_context *of_function = function->module->context;
    if (of_function && sim_root(of_function) != sim_root(context)) return ABI_ERROR_INVALID_HANDLE;
    uint64_t blocks = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
    unsigned threads = shape->block[0] * shape->block[1] * shape->block[2];
    uint64_t at_once = (uint64_t)sim_occupancy(threads) * sim.facts->gpus[context->gpu].sm_count;
    if (shape->cooperative && blocks > at_once) return ABI_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    struct sim_item item;
    int result = sim_kernel(function, blocks, parameters, &item);
    if (result == ABI_SUCCESS && !stream) result = sim_capture_forbids_legacy(context);
    if (result != ABI_SUCCESS) return result;
    struct sim_step step = {.type = ABI_NODE_KERNEL, .item = item, .fixed_limits = function->fixed_limits};
    if (sim_capture_step(stream, &step, &result)) return result;
    if (function->fixed_limits) sim_limits_fix(context, function->fixed_limits);
    return sim_submit(context, stream, &item, NULL);
}

/* CUlaunchAttribute, 72 bytes */
struct attribute {
    int id, padding, value[16];
};
enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_UPDATABLE = 13, ATTRIBUTES = 17 };

static int read_attributes(const abi_launch_config *config, struct shape *shape) {
    const struct attribute *attributes = config->attributes;
    if (config->attribute_count && !attributes) return ABI_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        if (attributes[i].id < 0 || attributes[i].id >= ATTRIBUTES) return ABI_ERROR_INVALID_VALUE;
        if (attributes[i].id == ATTRIBUTE_COOPERATIVE) shape->cooperative = attributes[i].value[0] != 0;
        /* Of captured launches only, and no such node is simulated. */
        if (attributes[i].id == ATTRIBUTE_UPDATABLE && attributes[i].value[0]) return ABI_ERROR_NOT_SUPPORTED;
    }
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuLaunchKernel(struct sim_function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                     unsigned by, unsigned bz, unsigned shared, abi_stream stream, void **parameters,
                                     void **extra) {
    SIM_ENTER("cuLaunchKernel");
    if (parameters && extra) return ABI_ERROR_INVALID_VALUE;
    return launch(function, &(struct shape){{gx, gy, gz}, {bx, by, bz}, shared, false}, stream, parameters);
}
SIM_EXPORT abi_result cuLaunchKernel_ptsz(struct sim_function *function, unsigned gx, unsigned gy, unsigned gz,
                                          unsigned bx, unsigned by, unsigned bz, unsigned shared, abi_stream stream,
                                          void **parameters, void **extra) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, sim_own(stream), parameters, extra);
}
SIM_EXPORT abi_result cuLaunchKernelEx(const abi_launch_config *config, struct sim_function *function,
                                       void **parameters, void **extra) {
    SIM_ENTER("cuLaunchKernelEx");
    if (!config || (parameters && extra)) return ABI_ERROR_INVALID_VALUE;
    struct shape shape = {{config->grid_x, config->grid_y, config->grid_z},
                          {config->block_x, config->block_y, config->block_z},
                          config->shared_bytes,
                          false};
    SIM_TRY(read_attributes(config, &shape));
    return launch(function, &shape, config->stream, parameters);
}
SIM_EXPORT abi_result cuLaunchKernelEx_ptsz(const abi_launch_config *config, struct sim_function *function,
                                            void **parameters, void **extra) {
    abi_launch_config own = config ? *config : (abi_launch_config){0};
    own.stream = sim_own(own.stream);
    return cuLaunchKernelEx(config ? &own : NULL, function, parameters, extra);
}
SIM_EXPORT abi_result cuLaunchCooperativeKernel(struct sim_function *function, unsigned gx, unsigned gy, unsigned gz,
                                                unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                                abi_stream stream, void **parameters) {
    SIM_ENTER("cuLaunchCooperativeKernel");
    return launch(function, &(struct shape){{gx, gy, gz}, {bx, by, bz}, shared, true}, stream, parameters);
}
SIM_EXPORT abi_result cuLaunchCooperativeKernel_ptsz(struct sim_function *function, unsigned gx, unsigned gy,
                                                     unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                                     unsigned shared, abi_stream stream, void **parameters) {
    return cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, shared, sim_own(stream), parameters);
}
