/* Limits of a context, multicast objects, and saving and restoring a process. */
#define SUBJECT "limits"
#include "../memory.h"

#include <unistd.h>

static size_t limit(int which) {
    size_t value = (size_t)-1;
    return cuCtxGetLimit(&value, which) == CUDA_SUCCESS ? value : (size_t)-1;
}

/* Stack, printf buffer and heap have sizes at first. */
RULE(limit_reported, .source = DRIVER_API "Context Management, cuCtxGetLimit", .calls = "cuInit") {
    primary_context();
    TRUE(limit(CU_LIMIT_STACK_SIZE) > 0 && limit(CU_LIMIT_STACK_SIZE) != (size_t)-1);
    TRUE(limit(CU_LIMIT_PRINTF_FIFO_SIZE) > 0 && limit(CU_LIMIT_PRINTF_FIFO_SIZE) != (size_t)-1);
    TRUE(limit(CU_LIMIT_MALLOC_HEAP_SIZE) > 0 && limit(CU_LIMIT_MALLOC_HEAP_SIZE) != (size_t)-1);
}

/* A limit that was set is reported, as it is or rounded. */
RULE(limit_set, .source = DRIVER_API "Context Management, cuCtxSetLimit", .calls = "cuCtxSetLimit") {
    primary_context();
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    TRUE(limit(CU_LIMIT_STACK_SIZE) >= 4096 && limit(CU_LIMIT_STACK_SIZE) < 8192);
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 * MIB));
    TRUE(limit(CU_LIMIT_PRINTF_FIFO_SIZE) >= 2 * MIB && limit(CU_LIMIT_PRINTF_FIFO_SIZE) < 4 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB));
    TRUE(limit(CU_LIMIT_MALLOC_HEAP_SIZE) >= 16 * MIB && limit(CU_LIMIT_MALLOC_HEAP_SIZE) < 32 * MIB);
}

/* A limit is the context's: another context keeps its own. */
RULE(limit_of_a_context, .source = DRIVER_API "Context Management, cuCtxSetLimit",
     .calls = "cuCtxSetLimit cuCtxSetCurrent") {
    primary_context();
    CUcontext mine = current_context();
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 32 * MIB));
    new_context();
    TRUE(limit(CU_LIMIT_MALLOC_HEAP_SIZE) < 32 * MIB);
    OK(cuCtxSetCurrent(mine));
    TRUE(limit(CU_LIMIT_MALLOC_HEAP_SIZE) >= 32 * MIB);
}

#define SET_LIMIT DRIVER_API "Context Management, cuCtxSetLimit"
static CUfunction caller_of(const char *code) {
    CUmodule module = NULL;
    CUfunction function = NULL;
    OK(cuModuleLoadData(&module, code));
    OK(cuModuleGetFunction(&function, module, "caller"));
    return function;
}
static void launch_and_wait(CUfunction function) {
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
}

/* The buffer of printf must be set before a kernel that uses it is launched. */
RULE(limit_of_printf_after_use, .source = SET_LIMIT, .calls = "cuCtxSetLimit cuLaunchKernel") {
    static const char CODE[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                               ".extern .func (.param .b32 length) vprintf (.param .b64 format, .param .b64 values);\n"
                               ".global .align 1 .b8 text[1] = {0};\n"
                               ".visible .entry caller() {\n.reg .b64 %at;\n"
                               "mov.u64 %at, text;\ncvta.global.u64 %at, %at;\n{\n"
                               ".param .b64 format;\nst.param.b64 [format], %at;\n"
                               ".param .b64 values;\nst.param.b64 [values], 0;\n.param .b32 length;\n"
                               "call.uni (length), vprintf, (format, values);\n}\nret;\n}\n";
    primary_context();
    CUfunction function = caller_of(CODE);
    launch_and_wait(kernel("nothing"));
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 * MIB));
    launch_and_wait(function);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 4 * MIB));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB));
}

/* And the heap before a kernel that allocates. */
RULE(limit_of_heap_after_use, .source = SET_LIMIT, .calls = "cuCtxSetLimit cuGraphLaunch") {
    static const char CODE[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                               ".extern .func (.param .b64 at) malloc (.param .b64 bytes);\n"
                               ".extern .func free (.param .b64 at);\n"
                               ".visible .entry caller() {\n.reg .b64 %at;\n{\n"
                               ".param .b64 bytes;\nst.param.b64 [bytes], 16;\n.param .b64 at;\n"
                               "call.uni (at), malloc, (bytes);\nld.param.b64 %at, [at];\n}\n{\n"
                               ".param .b64 at;\nst.param.b64 [at], %at;\ncall.uni free, (at);\n}\nret;\n}\n";
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    primary_context();
    CUfunction function = caller_of(CODE);
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 32 * MIB));
}

/* The depth of synchronization is a limit below compute capability 9.0 only. */
RULE(limit_sync_depth, .source = DRIVER_API "Context Management, cuCtxSetLimit", .calls = "cuCtxSetLimit") {
    primary_context();
    EXPECT(device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 9 ? CUDA_ERROR_UNSUPPORTED_LIMIT
                                                                               : CUDA_SUCCESS,
           cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 4));
}

/* 2048 launches of the device may be pending at first, and more can be asked for. */
RULE(limit_pending_launches, .source = DRIVER_API "Context Management, cuCtxSetLimit", .calls = "cuCtxSetLimit") {
    primary_context();
    TRUE(limit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT) == 2048);
    OK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 4096));
    TRUE(limit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT) >= 4096);
}

/* The granularity of L2 fetches is between 0 and 128 bytes, and a hint. */
RULE(limit_fetch, .source = DRIVER_API "Context Management, cuCtxSetLimit", .calls = "cuCtxSetLimit") {
    primary_context();
    OK(cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 32));
    TRUE(limit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY) <= 128);
}

/* The persisting L2 cache is a hint that never exceeds what the device has. */
RULE(limit_persisting_cache, .source = DRIVER_API "Context Management, cuCtxSetLimit", .calls = "cuCtxSetLimit") {
    primary_context();
    size_t most = (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
    NEEDS(most > 0, "needs a persisting L2 cache");
    OK(cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, most / 2));
    TRUE(limit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE) <= most);
}

/* The limits of shared graphics contexts cannot be set. */
RULE(limit_only_queried, .source = DRIVER_API "Data types, int", .calls = "cuCtxSetLimit") {
    primary_context();
    FAILS(cuCtxSetLimit(CU_LIMIT_SHMEM_SIZE, 1024));
    FAILS(cuCtxSetLimit(CU_LIMIT_CIG_ENABLED, 1));
}

/* A limit that does not exist is an invalid value or not supported. */
RULE(limit_unknown, .source = DRIVER_API "Context Management, cuCtxGetLimit", .calls = "cuCtxGetLimit cuCtxSetLimit") {
    primary_context();
    size_t value;
    ONE_OF(cuCtxGetLimit(&value, 99), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNSUPPORTED_LIMIT);
    ONE_OF(cuCtxSetLimit(99, 1), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNSUPPORTED_LIMIT);
}

/* A null place for the limit is an invalid value. */
RULE(limit_null, .source = DRIVER_API "Context Management, cuCtxGetLimit", .calls = "cuCtxGetLimit") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE));
}

/* A limit is set in a current context. */
RULE(limit_without_context, .source = DRIVER_API "Context Management, cuCtxSetLimit",
     .calls = "cuCtxSetCurrent cuCtxSetLimit") {
    primary_context();
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
}

static CUmulticastObjectProp team(unsigned devices, size_t size) {
    return (CUmulticastObjectProp){.numDevices = devices, .size = size};
}

/* A device without multicast has no multicast objects. */
RULE(multicast_not_supported,
     .source = DRIVER_API
     "Multicast Object Management, cuMulticastCreate; Device Management, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED",
     .calls = "cuMulticastCreate cuMulticastGetGranularity") {
    primary_context();
    CUmulticastObjectProp prop = team(2, 2 * MIB);
    CUmemGenericAllocationHandle h;
    size_t size;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 0,
          "the device attribute MULTICAST_SUPPORTED is not 0");
    FAILS(cuMulticastCreate(&h, &prop));
    FAILS(cuMulticastGetGranularity(&size, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
}

/* The recommended granularity is a multiple of the minimum. */
RULE(multicast_granularity, .source = DRIVER_API "Multicast Object Management, cuMulticastGetGranularity",
     .calls = "cuMulticastGetGranularity") {
    primary_context();
    CUmulticastObjectProp prop = team(1, 2 * MIB);
    size_t least = 0, good = 0;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 1,
          "the device attribute MULTICAST_SUPPORTED is not 1");
    OK(cuMulticastGetGranularity(&least, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    OK(cuMulticastGetGranularity(&good, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED));
    TRUE(least > 0 && good % least == 0);
}

/* The size is a multiple of the minimum granularity. */
RULE(multicast_size, .source = DRIVER_API "Multicast Object Management, cuMulticastCreate",
     .calls = "cuMulticastCreate") {
    primary_context();
    CUmulticastObjectProp prop = team(1, 2 * MIB + 4096);
    CUmemGenericAllocationHandle h;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 1,
          "the device attribute MULTICAST_SUPPORTED is not 1");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate(&h, &prop));
}

/* Flags are for the future and must be zero. */
RULE(multicast_flags, .source = DRIVER_API "Multicast Object Management, cuMulticastCreate",
     .calls = "cuMulticastCreate") {
    primary_context();
    CUmulticastObjectProp prop = team(1, 2 * MIB);
    CUmemGenericAllocationHandle h;
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 1,
          "the device attribute MULTICAST_SUPPORTED is not 1");
    prop.flags = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate(&h, &prop));
}

/* Memory of cuMemCreate is no multicast object. */
RULE(multicast_of_memory, .source = DRIVER_API "Multicast Object Management, cuMulticastAddDevice",
     .calls = "cuMemCreate cuMulticastAddDevice") {
    primary_context();
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle h;
    OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
    FAILS(cuMulticastAddDevice(h, 0));
}

/* A process is running at first. */
RULE(checkpoint_running, .source = DRIVER_API "CUDA Checkpointing, cuCheckpointProcessGetState",
     .calls = "cuCheckpointProcessGetState") {
    primary_context();
    int state = 77;
    OK(cuCheckpointProcessGetState(getpid(), &state));
    TRUE(state == CU_PROCESS_STATE_RUNNING);
}

/* A process that does not exist has no state. */
RULE(checkpoint_unknown_process, .source = DRIVER_API "CUDA Checkpointing, cuCheckpointProcessGetState",
     .calls = "cuCheckpointProcessGetState") {
    primary_context();
    int state;
    FAILS(cuCheckpointProcessGetState(-1, &state));
    FAILS(cuCheckpointProcessGetState(0x3ffffff, &state));
}

/* A null place for the state is an invalid value. */
RULE(checkpoint_before_the_driver_is_initialized, .source = DRIVER_API "Initialization, cuInit",
     .calls = "cuCheckpointProcessGetState") {
    int state;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuCheckpointProcessGetState(getpid(), &state));
}

RULE(checkpoint_null, .source = DRIVER_API "CUDA Checkpointing, cuCheckpointProcessGetState",
     .calls = "cuCheckpointProcessGetState") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(getpid(), NULL));
}

/* A running process is neither saved, nor restored, nor unlocked. */
RULE(checkpoint_order,
     .source = DRIVER_API
     "CUDA Checkpointing, cuCheckpointProcessCheckpoint, cuCheckpointProcessRestore, cuCheckpointProcessUnlock",
     .calls = "cuCheckpointProcessCheckpoint cuCheckpointProcessRestore cuCheckpointProcessUnlock") {
    primary_context();
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(getpid(), NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(getpid(), NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(getpid(), NULL));
}

/* A process that is locked is not locked again, nor restored. */
RULE(checkpoint_locked, .source = DRIVER_API "CUDA Checkpointing, cuCheckpointProcessLock",
     .calls = "cuCheckpointProcessLock cuCheckpointProcessGetState cuCheckpointProcessRestore "
              "cuCheckpointProcessUnlock") {
    primary_context();
    int state = 77;
    OK(cuCheckpointProcessLock(getpid(), NULL));
    OK(cuCheckpointProcessGetState(getpid(), &state));
    TRUE(state == CU_PROCESS_STATE_LOCKED);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessLock(getpid(), NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(getpid(), NULL));
    OK(cuCheckpointProcessUnlock(getpid(), NULL));
    OK(cuCheckpointProcessGetState(getpid(), &state));
    TRUE(state == CU_PROCESS_STATE_RUNNING);
}

/* Memory has its contents and its address after it was saved and restored. */
RULE(checkpoint_contents,
     .source = DRIVER_API "CUDA Checkpointing, cuCheckpointProcessCheckpoint, cuCheckpointProcessRestore",
     .calls = "cuMemAlloc_v2 cuMemsetD8_v2 cuCtxSynchronize cuCheckpointProcessLock "
              "cuCheckpointProcessCheckpoint cuCheckpointProcessGetState cuCheckpointProcessUnlock "
              "cuCheckpointProcessRestore cuMemcpyDtoH_v2 cuMemFree_v2") {
    primary_context();
    int state = 77;
    CUdeviceptr p;
    unsigned char back = 0;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemsetD8_v2(p, 83, 4 * MIB));
    OK(cuCtxSynchronize());
    OK(cuCheckpointProcessLock(getpid(), NULL));
    OK(cuCheckpointProcessCheckpoint(getpid(), NULL));
    OK(cuCheckpointProcessGetState(getpid(), &state));
    TRUE(state == CU_PROCESS_STATE_CHECKPOINTED);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(getpid(), NULL));
    OK(cuCheckpointProcessRestore(getpid(), NULL));
    OK(cuCheckpointProcessGetState(getpid(), &state));
    TRUE(state == CU_PROCESS_STATE_LOCKED);
    OK(cuCheckpointProcessUnlock(getpid(), NULL));
    OK(cuMemcpyDtoH_v2(&back, p + 4 * MIB - 1, 1));
    TRUE(back == 83);
    OK(cuMemFree_v2(p));
}

/* A CUDA process has a thread that restores it. */
RULE(checkpoint_thread, .source = DRIVER_API "CUDA Checkpointing, cuCheckpointProcessGetRestoreThreadId",
     .calls = "cuCheckpointProcessGetRestoreThreadId") {
    primary_context();
    int tid = -1;
    OK(cuCheckpointProcessGetRestoreThreadId(getpid(), &tid));
    TRUE(tid > 0);
}
