/* Entry points that launch kernels. */
#include "../sim.h"

static int launch(struct sim_function *function, uint64_t blocks, uint64_t threads, abi_stream handle,
                  void *const *parameters) {
    SIM_STREAM(handle, context, stream);
    if (!function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (blocks == 0 || threads == 0 || threads > 1024) return ABI_ERROR_INVALID_VALUE;
    struct sim_item item;
    int result = sim_kernel(function, blocks, parameters, &item);
    if (result == ABI_SUCCESS && !stream) result = sim_capture_forbids_legacy(context);
    if (result != ABI_SUCCESS) return result;
    struct sim_step step = {.type = ABI_NODE_KERNEL, .item = item};
    if (sim_capture_step(stream, &step, &result)) return result;
    return sim_submit(context, stream, &item, NULL);
}

SIM_ROW(cuLaunchKernel,
        (struct sim_function * function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, abi_stream stream, void **parameters, void **extra),
        launch(function, (uint64_t)gx * gy * gz, (uint64_t)bx * by * bz, stream, parameters))
SIM_SAME(cuLaunchKernel_ptsz,
         (struct sim_function * function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
          unsigned shared, abi_stream stream, void **parameters, void **extra),
         cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, sim_own(stream), parameters, extra))
SIM_EXPORT abi_result cuLaunchKernelEx(const abi_launch_config *config, struct sim_function *function,
                                       void **parameters, void **extra) {
    SIM_ENTER("cuLaunchKernelEx");
    (void)extra;
    if (!config) return ABI_ERROR_INVALID_VALUE;
    return launch(function, (uint64_t)config->grid_x * config->grid_y * config->grid_z,
                  (uint64_t)config->block_x * config->block_y * config->block_z, config->stream, parameters);
}
SIM_EXPORT abi_result cuLaunchKernelEx_ptsz(const abi_launch_config *config, struct sim_function *function,
                                            void **parameters, void **extra) {
    abi_launch_config own = config ? *config : (abi_launch_config){0};
    own.stream = sim_own(own.stream);
    return cuLaunchKernelEx(config ? &own : NULL, function, parameters, extra);
}
SIM_ROW(cuLaunchCooperativeKernel,
        (struct sim_function * function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, abi_stream stream, void **parameters),
        launch(function, (uint64_t)gx * gy * gz, (uint64_t)bx * by * bz, stream, parameters))
SIM_SAME(cuLaunchCooperativeKernel_ptsz,
         (struct sim_function * function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
          unsigned shared, abi_stream stream, void **parameters),
         cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, shared, sim_own(stream), parameters))
