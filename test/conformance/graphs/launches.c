/* Execution control: limits and arguments of launches, attributes of functions, occupancy. */
#define SUBJECT "execution"
#include <string.h>

#include "../rules.h"

#define ONE_THREAD .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = 1, .block_y = 1, .block_z = 1

static CUresult launch(unsigned grid_y, unsigned block_x, unsigned block_z, unsigned shared) {
    return cuLaunchKernel(kernel("nothing"), 1, grid_y, 1, block_x, 1, block_z, shared, NULL, NULL, NULL);
}

RULE(launch_of_one_thread, .source = DRIVER_API "cuLaunchKernel", .calls = "cuLaunchKernel") {
    primary_context();
    OK(launch(1, 1, 1, 0));
    OK(cuCtxSynchronize());
}

RULE(launch_of_the_largest_block, .source = DRIVER_API "cuLaunchKernel", .calls = "cuLaunchKernel") {
    primary_context();
    OK(launch(1, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1, 0));
    OK(cuCtxSynchronize());
}

#define REFUSED(name, grid_y, block_x, block_z, shared)                                                            \
    RULE(launch_of_##name, .source = DRIVER_API "CUdevice_attribute; cuLaunchKernel", .calls = "cuLaunchKernel") { \
        primary_context();                                                                                         \
        ONE_OF(launch(grid_y, block_x, block_z, shared), CUDA_ERROR_INVALID_VALUE,                                 \
               CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);                                                                \
        OK(launch(1, 1, 1, 0));                                                                                    \
    }
REFUSED(an_empty_grid, 0, 1, 1, 0)
REFUSED(an_empty_block, 1, 0, 1, 0)
REFUSED(a_block_that_is_too_large, 1, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) + 1, 1, 0)
REFUSED(a_block_that_is_too_wide, 1, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) + 1, 1, 0)
REFUSED(a_block_that_is_too_deep, 1, 1, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z) + 1, 0)
REFUSED(a_block_of_too_many_threads, 1, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) / 2, 4, 0)
REFUSED(a_grid_that_is_too_high, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) + 1, 1, 1, 0)
REFUSED(too_much_shared_memory, 1, 1, 1, device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK) + 1)

RULE(launch_of_no_function, .source = DRIVER_API "CUDA_ERROR_INVALID_HANDLE", .calls = "cuLaunchKernel") {
    primary_context();
    ONE_OF(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE,
           CUDA_ERROR_INVALID_VALUE);
}

RULE(launch_with_parameters, .source = DRIVER_API "cuLaunchKernel", .calls = "cuLaunchKernel") {
    CUdeviceptr argument = 0;
    void *parameters[] = {&argument};
    primary_context();
    OK(cuLaunchKernel(kernel("one_argument"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    OK(cuCtxSynchronize());
}

RULE(launch_with_a_buffer, .source = DRIVER_API "cuLaunchKernel", .calls = "cuLaunchKernel") {
    CUdeviceptr argument = 0;
    size_t size = sizeof(argument);
    void *extra[] = {(void *)1, &argument, (void *)2, &size, NULL};
    primary_context();
    OK(cuLaunchKernel(kernel("one_argument"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    OK(cuCtxSynchronize());
}

RULE(launch_with_both, .source = DRIVER_API "cuLaunchKernel", .calls = "cuLaunchKernel") {
    CUdeviceptr argument = 0;
    size_t size = sizeof(argument);
    void *parameters[] = {&argument}, *extra[] = {(void *)1, &argument, (void *)2, &size, NULL};
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuLaunchKernel(kernel("one_argument"), 1, 1, 1, 1, 1, 1, 0, NULL, parameters, extra));
}

RULE(launch_in_a_stream_of_another_context, .source = DRIVER_API "cuLaunchKernelEx", .calls = "cuLaunchKernel") {
    new_context();
    CUfunction function = kernel("nothing");
    new_context();
    ONE_OF(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, new_stream(0), NULL, NULL), CUDA_ERROR_INVALID_HANDLE,
           CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE);
}

RULE(launch_without_context, .source = DRIVER_API "CUDA_ERROR_INVALID_CONTEXT", .calls = "cuLaunchKernel") {
    primary_context();
    CUfunction function = kernel("nothing");
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

/* ---- with a configuration ---- */
RULE(launch_by_configuration, .source = DRIVER_API "cuLaunchKernelEx", .calls = "cuLaunchKernelEx") {
    CUlaunchConfig config = {ONE_THREAD};
    primary_context();
    OK(cuLaunchKernelEx(&config, kernel("nothing"), NULL, NULL));
    OK(cuCtxSynchronize());
}

RULE(attributes_are_not_read_when_there_are_none, .source = DRIVER_API "cuLaunchKernelEx",
     .calls = "cuLaunchKernelEx") {
    CUlaunchConfig config = {ONE_THREAD, .attributes = (CUlaunchAttribute *)8};
    primary_context();
    OK(cuLaunchKernelEx(&config, kernel("nothing"), NULL, NULL));
}

RULE(attribute_to_ignore, .source = DRIVER_API "CUlaunchAttributeID", .calls = "cuLaunchKernelEx") {
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_IGNORE};
    CUlaunchConfig config = {ONE_THREAD, .attributes = &attribute, .attribute_count = 1};
    primary_context();
    OK(cuLaunchKernelEx(&config, kernel("nothing"), NULL, NULL));
}

RULE(attribute_that_is_unknown, .source = DRIVER_API "CUlaunchAttributeID", .calls = "cuLaunchKernelEx",
     .recalled = true) {
    CUlaunchAttribute attribute = {.id = 999};
    CUlaunchConfig config = {ONE_THREAD, .attributes = &attribute, .attribute_count = 1};
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, kernel("nothing"), NULL, NULL));
}

RULE(attribute_of_captures_only, .source = DRIVER_API "cuLaunchKernelEx", .calls = "cuLaunchKernelEx") {
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, .value = {1}};
    CUlaunchConfig config = {ONE_THREAD, .attributes = &attribute, .attribute_count = 1};
    primary_context();
    TRUE(cuLaunchKernelEx(&config, kernel("nothing"), NULL, NULL) != CUDA_SUCCESS);
}

RULE(no_configuration, .source = DRIVER_API "cuLaunchKernelEx", .calls = "cuLaunchKernelEx") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(NULL, kernel("nothing"), NULL, NULL));
}

static unsigned most_blocks(void) {
    int blocks = 0;
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel("nothing"), 128, 0));
    return (unsigned)blocks * (unsigned)device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
}

RULE(cooperative_launch_of_all_that_fit, .source = DRIVER_API "cuLaunchCooperativeKernel",
     .calls = "cuLaunchCooperativeKernel cuOccupancyMaxActiveBlocksPerMultiprocessor") {
    primary_context();
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH), "no cooperative launches");
    OK(cuLaunchCooperativeKernel(kernel("nothing"), most_blocks(), 1, 1, 128, 1, 1, 0, NULL, NULL));
    OK(cuCtxSynchronize());
}

RULE(cooperative_launch_of_more_than_fit, .source = DRIVER_API "cuLaunchCooperativeKernel",
     .calls = "cuLaunchCooperativeKernel cuOccupancyMaxActiveBlocksPerMultiprocessor") {
    primary_context();
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH), "no cooperative launches");
    EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
           cuLaunchCooperativeKernel(kernel("nothing"), most_blocks() + 1, 1, 1, 128, 1, 1, 0, NULL, NULL));
}

RULE(cooperative_by_attribute, .source = DRIVER_API "cuLaunchKernelEx",
     .calls = "cuLaunchKernelEx cuOccupancyMaxActiveBlocksPerMultiprocessor") {
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value = {1}};
    primary_context();
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH), "no cooperative launches");
    CUlaunchConfig config = {ONE_THREAD, .attributes = &attribute, .attribute_count = 1};
    config.grid_x = most_blocks() + 1;
    config.block_x = 128;
    EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchKernelEx(&config, kernel("nothing"), NULL, NULL));
}

/* ---- functions ---- */
static int function_attribute(int attribute) {
    int value = -1;
    OK(cuFuncGetAttribute(&value, attribute, kernel("nothing")));
    return value;
}

RULE(function_takes_threads, .source = DRIVER_API "cuFuncGetAttribute", .calls = "cuFuncGetAttribute") {
    primary_context();
    int threads = function_attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    TRUE(threads > 0 && threads <= device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
}

RULE(function_was_compiled, .source = DRIVER_API "cuFuncGetAttribute", .calls = "cuFuncGetAttribute") {
    primary_context();
    TRUE(function_attribute(CU_FUNC_ATTRIBUTE_BINARY_VERSION) >= 10);
    TRUE(function_attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION) >= 0);
}

RULE(attribute_of_no_kind, .source = DRIVER_API "cuFuncGetAttribute", .calls = "cuFuncGetAttribute") {
    int value = 0;
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetAttribute(&value, 99, kernel("nothing")));
}

RULE(attribute_that_is_fixed, .source = DRIVER_API "cuFuncSetAttribute", .calls = "cuFuncSetAttribute") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(kernel("nothing"), CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(kernel("nothing"), CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
}

RULE(attribute_that_can_be_set, .source = DRIVER_API "cuFuncSetAttribute",
     .calls = "cuFuncSetAttribute cuFuncGetAttribute") {
    int value = 0;
    primary_context();
    CUfunction function = kernel("nothing");
    OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    SAME(1024, value);
}

RULE(function_of_no_name, .source = DRIVER_API "cuModuleGetFunction", .calls = "cuModuleGetFunction") {
    CUmodule module = NULL;
    CUfunction function = NULL;
    primary_context();
    OK(cuFuncGetModule(&module, kernel("nothing")));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "there_is_none"));
}

/* ---- occupancy ---- */
RULE(occupancy_falls_with_the_block, .source = DRIVER_API "cuOccupancyMaxActiveBlocksPerMultiprocessor",
     .calls = "cuOccupancyMaxActiveBlocksPerMultiprocessor") {
    int small = 0, large = 0;
    primary_context();
    int threads = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&small, kernel("nothing"), 64, 0));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&large, kernel("nothing"), 1024, 0));
    TRUE(small >= large);
    TRUE(large >= 1 && large * 1024 <= threads);
    TRUE(small * 64 <= threads);
}

RULE(occupancy_of_flags, .source = DRIVER_API "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
     .calls = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags") {
    int plain = 0, with = 0;
    primary_context();
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&plain, kernel("nothing"), 128, 0));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with, kernel("nothing"), 128, 0, 0));
    SAME(plain, with);
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with, kernel("nothing"), 128, 0, 0x100));
}

RULE(occupancy_suggests_a_block, .source = DRIVER_API "cuOccupancyMaxPotentialBlockSize",
     .calls = "cuOccupancyMaxPotentialBlockSize") {
    int grid = 0, block = 0;
    primary_context();
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel("nothing"), NULL, 0, 0));
    TRUE(block > 0 && block <= device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    TRUE(grid > 0);
}

RULE(occupancy_keeps_the_limit, .source = DRIVER_API "cuOccupancyMaxPotentialBlockSize",
     .calls = "cuOccupancyMaxPotentialBlockSize") {
    int grid = 0, block = 0;
    primary_context();
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, kernel("nothing"), NULL, 0, 96));
    TRUE(block > 0 && block <= 96);
}

RULE(occupancy_without_place, .source = DRIVER_API "cuOccupancyMaxActiveBlocksPerMultiprocessor",
     .calls = "cuOccupancyMaxActiveBlocksPerMultiprocessor") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(NULL, kernel("nothing"), 128, 0));
}
