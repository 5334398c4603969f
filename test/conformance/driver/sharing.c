/* Memory and events of other processes, and of other APIs. */
#define SUBJECT "sharing"
#include "../memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A second process, forked before CUDA is used: it gets `size` bytes from the first one and answers with a result. */
static int to_peer[2], from_peer[2];
static void start_peer(CUresult (*body)(const void *), size_t size) {
    char data[128];
    CUcontext context;
    if (pipe(to_peer) || pipe(from_peer)) exit(1);
    if (fork()) {
        close(to_peer[0]);
        close(from_peer[1]);
        return;
    }
    close(to_peer[1]);
    close(from_peer[0]);
    CUresult result = CUDA_ERROR_UNKNOWN;
    if (read(to_peer[0], data, size) == (ssize_t)size && !cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) &&
        !cuCtxSetCurrent(context))
        result = body(data);
    if (write(from_peer[1], &result, sizeof result) < 0) _exit(1);
    _exit(0);
}

static CUresult ask_peer(const void *data, size_t size) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    if (write(to_peer[1], data, size) != (ssize_t)size || read(from_peer[0], &result, sizeof result) < 0)
        return CUDA_ERROR_UNKNOWN;
    return result;
}

static CUcontext use_device(void) {
    CUcontext context = NULL;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    return context;
}

static CUresult read_and_write(const void *data) {
    CUipcMemHandle handle = *(const CUipcMemHandle *)data;
    CUdeviceptr p;
    unsigned char byte = 0;
    CUresult result = cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (!result) result = cuMemcpyDtoH_v2(&byte, p + 100, 1);
    if (!result && byte != 61) return CUDA_ERROR_MAP_FAILED;
    if (!result) result = cuMemsetD8_v2(p, 62, 4096);
    if (!result) result = cuCtxSynchronize();
    return result ? result : cuIpcCloseMemHandle(p);
}

/* Another process reads and writes the same memory. */
RULE(ipc_shares_memory, .source = DRIVER_API "Memory Management, cuIpcGetMemHandle, cuIpcOpenMemHandle",
     .calls = "cuMemAlloc_v2 cuMemsetD8_v2 cuCtxSynchronize cuIpcGetMemHandle cuMemcpyDtoH_v2 "
              "cuMemFree_v2") {
    CUipcMemHandle handle;
    CUdeviceptr p;
    unsigned char byte = 0;
    start_peer(read_and_write, sizeof handle);
    TRUE(use_device());
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemsetD8_v2(p, 61, 4 * MIB));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&handle, p));
    OK(ask_peer(&handle, sizeof handle));
    OK(cuMemcpyDtoH_v2(&byte, p + 100, 1));
    TRUE(byte == 62);
    OK(cuMemFree_v2(p));
}

static CUresult open_twice(const void *data) {
    CUipcMemHandle handle = *(const CUipcMemHandle *)data;
    CUdeviceptr p, q;
    CUresult result = cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (!result) result = cuIpcOpenMemHandle_v2(&q, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (!result && p != q) return CUDA_ERROR_MAP_FAILED;
    if (!result) result = cuIpcCloseMemHandle(p);
    if (!result) result = cuMemsetD8_v2(p, 1, 4096);
    if (!result) result = cuIpcCloseMemHandle(p);
    if (!result && cuMemsetD8_v2(p, 1, 4096) == CUDA_SUCCESS) return CUDA_ERROR_ALREADY_MAPPED;
    return result;
}

/* A handle that is open is counted: the same address, until it is closed as often. */
RULE(ipc_opened_twice, .source = DRIVER_API "Memory Management, cuIpcOpenMemHandle, cuIpcCloseMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcGetMemHandle") {
    CUipcMemHandle handle;
    CUdeviceptr p;
    start_peer(open_twice, sizeof handle);
    TRUE(use_device());
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuIpcGetMemHandle(&handle, p));
    OK(ask_peer(&handle, sizeof handle));
}

static CUresult open_without_flag(const void *data) {
    CUdeviceptr p;
    return cuIpcOpenMemHandle_v2(&p, *(const CUipcMemHandle *)data, 0);
}

/* The flag must be the one that exists. */
RULE(ipc_flag, .source = DRIVER_API "Memory Management, cuIpcOpenMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcGetMemHandle") {
    CUipcMemHandle handle;
    CUdeviceptr p;
    start_peer(open_without_flag, sizeof handle);
    TRUE(use_device());
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuIpcGetMemHandle(&handle, p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, ask_peer(&handle, sizeof handle));
}

static CUresult import_fabric(const void *data) {
    CUmemFabricHandle from = *(const CUmemFabricHandle *)data;
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p = 0;
    unsigned char byte = 0;
    CUresult result = cuMemImportFromShareableHandle(&handle, &from, CU_MEM_HANDLE_TYPE_FABRIC);
    if (!result) result = cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0);
    if (!result) result = cuMemMap(p, 2 * MIB, 0, handle, 0);
    if (!result) result = cuMemSetAccess(p, 2 * MIB, &desc, 1);
    if (!result) result = cuMemcpyDtoH_v2(&byte, p + 100, 1);
    return !result && byte != 63 ? CUDA_ERROR_MAP_FAILED : result;
}

/* Bytes alone, however they are sent, give another process the memory. */
RULE(fabric_handle, .source = GUIDE "Virtual Memory Management, Query for Support",
     .calls = "cuMemExportToShareableHandle cuMemImportFromShareableHandle") {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc desc = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle mine;
    CUmemFabricHandle handle;
    CUdeviceptr p;
    start_peer(import_fabric, sizeof handle);
    TRUE(use_device());
    NEEDS(device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) == 1, "no fabric handles");
    CUresult result = cuMemCreate(&mine, 2 * MIB, &prop, 0);
    NEEDS(result != CUDA_ERROR_NOT_PERMITTED, "no IMEX channel");
    OK(result);
    OK(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(p, 2 * MIB, 0, mine, 0));
    OK(cuMemSetAccess(p, 2 * MIB, &desc, 1));
    OK(cuMemsetD8_v2(p, 63, 2 * MIB));
    OK(cuCtxSynchronize());
    OK(cuMemExportToShareableHandle(&handle, mine, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(ask_peer(&handle, sizeof handle));
}

static CUresult free_opened(const void *data) {
    CUdeviceptr p;
    CUresult result = cuIpcOpenMemHandle_v2(&p, *(const CUipcMemHandle *)data, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return result ? result : cuMemFree_v2(p);
}

/* Memory of another process is closed, not freed. */
RULE(ipc_freed_by_opener, .source = DRIVER_API "Memory Management, cuIpcOpenMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcGetMemHandle") {
    CUipcMemHandle handle;
    CUdeviceptr p;
    start_peer(free_opened, sizeof handle);
    TRUE(use_device());
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuIpcGetMemHandle(&handle, p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, ask_peer(&handle, sizeof handle));
}

/* A handle is opened in another process than its own. */
RULE(ipc_same_process, .source = DRIVER_API "Memory Management, cuIpcOpenMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcGetMemHandle cuIpcOpenMemHandle_v2") {
    primary_context();
    CUipcMemHandle handle;
    CUdeviceptr p, q;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuIpcGetMemHandle(&handle, p));
    FAILS(cuIpcOpenMemHandle_v2(&q, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

/* Handles of the same memory may be made any number of times. */
RULE(ipc_made_often, .source = DRIVER_API "Memory Management, cuIpcGetMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcGetMemHandle cuMemFree_v2") {
    primary_context();
    CUipcMemHandle handle;
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    for (int i = 0; i < 50; i++) OK(cuIpcGetMemHandle(&handle, p));
    OK(cuMemFree_v2(p));
}

/* Memory at an address that was used before has another handle. */
RULE(ipc_unique, .source = DRIVER_API "Memory Management, cuIpcGetMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcGetMemHandle cuMemFree_v2") {
    primary_context();
    CUipcMemHandle a, b;
    CUdeviceptr p, q;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuIpcGetMemHandle(&a, p));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&q, 4 * MIB));
    OK(cuIpcGetMemHandle(&b, q));
    TRUE(memcmp(&a, &b, sizeof a) != 0);
}

/* Only memory of cuMemAlloc has a handle: not the host's, not managed, not pooled. */
RULE(ipc_of_host, .source = DRIVER_API "Memory Management, cuIpcGetMemHandle",
     .calls = "cuMemAllocHost_v2 cuIpcGetMemHandle cuMemAllocManaged cuMemAllocAsync cuStreamSynchronize") {
    primary_context();
    CUipcMemHandle handle;
    CUdeviceptr p;
    void *h;
    OK(cuMemAllocHost_v2(&h, 4096));
    FAILS(cuIpcGetMemHandle(&handle, (CUdeviceptr)(uintptr_t)h));
    OK(cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL));
    FAILS(cuIpcGetMemHandle(&handle, p));
    OK(cuMemAllocAsync(&p, MIB, NULL));
    OK(cuStreamSynchronize(NULL));
    FAILS(cuIpcGetMemHandle(&handle, p));
}

/* Memory that was freed has no handle. */
RULE(ipc_of_freed, .source = DRIVER_API "Memory Management, cuIpcGetMemHandle",
     .calls = "cuMemAlloc_v2 cuMemFree_v2 cuIpcGetMemHandle") {
    primary_context();
    CUipcMemHandle handle;
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 32 * MIB));
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, p));
}

/* A null place for the handle is an invalid value. */
RULE(ipc_null, .source = DRIVER_API "Memory Management, cuIpcGetMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcGetMemHandle") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(NULL, p));
}

/* Bytes that are no handle are not opened. */
RULE(ipc_garbage, .source = DRIVER_API "Memory Management, cuIpcOpenMemHandle", .calls = "cuIpcOpenMemHandle_v2") {
    primary_context();
    CUipcMemHandle handle;
    CUdeviceptr p;
    memset(&handle, 0x5a, sizeof handle);
    FAILS(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

/* Memory of the own process is not closed. */
RULE(ipc_close_own, .source = DRIVER_API "Memory Management, cuIpcCloseMemHandle",
     .calls = "cuMemAlloc_v2 cuIpcCloseMemHandle") {
    primary_context();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    FAILS(cuIpcCloseMemHandle(p));
}

/* An event for other processes must not measure time. */
RULE(ipc_event_flags, .source = DRIVER_API "Event Management, cuEventCreate", .calls = "cuEventCreate") {
    primary_context();
    CUevent event;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS));
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
}

/* An event that was not made for other processes has no handle. */
RULE(ipc_event_not_shared, .source = DRIVER_API "Memory Management, cuIpcGetEventHandle",
     .calls = "cuEventCreate cuIpcGetEventHandle") {
    primary_context();
    CUipcEventHandle handle;
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    FAILS(cuIpcGetEventHandle(&handle, event));
}

static CUresult wait_for_event(const void *data) {
    CUevent event;
    CUresult result = cuIpcOpenEventHandle(&event, *(const CUipcEventHandle *)data);
    if (!result) result = cuEventSynchronize(event);
    if (!result) result = cuEventQuery(event);
    if (!result) result = cuStreamWaitEvent(NULL, event, 0);
    return result ? result : cuEventDestroy_v2(event);
}

/* Another process waits for the event and queries it. */
RULE(ipc_event, .source = DRIVER_API "Memory Management, cuIpcGetEventHandle, cuIpcOpenEventHandle",
     .calls = "cuEventCreate cuEventRecord cuIpcGetEventHandle") {
    CUipcEventHandle handle;
    CUevent event;
    start_peer(wait_for_event, sizeof handle);
    TRUE(use_device());
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, NULL));
    OK(cuIpcGetEventHandle(&handle, event));
    OK(ask_peer(&handle, sizeof handle));
}

static CUresult time_event(const void *data) {
    CUevent event;
    float ms;
    CUresult result = cuIpcOpenEventHandle(&event, *(const CUipcEventHandle *)data);
    return result ? result : cuEventElapsedTime_v2(&ms, event, event);
}

/* An event of another process behaves as one that measures no time. */
RULE(ipc_event_no_time, .source = DRIVER_API "Memory Management, cuIpcOpenEventHandle",
     .calls = "cuEventCreate cuEventRecord cuCtxSynchronize cuIpcGetEventHandle") {
    CUipcEventHandle handle;
    CUevent event;
    start_peer(time_event, sizeof handle);
    TRUE(use_device());
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, NULL));
    OK(cuCtxSynchronize());
    OK(cuIpcGetEventHandle(&handle, event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, ask_peer(&handle, sizeof handle));
}

static CUresult keep_descriptor(const void *data) {
    (void)data;
    return CUDA_SUCCESS;
}

/* The memory is usable after a process that had it open has ended. */
RULE(ipc_peer_ends, .source = DRIVER_API "Memory Management, cuIpcOpenMemHandle",
     .calls = "cuMemAlloc_v2 cuMemsetD8_v2 cuMemFree_v2") {
    CUdeviceptr p;
    char byte = 1;
    start_peer(keep_descriptor, 1);
    TRUE(use_device());
    OK(cuMemAlloc_v2(&p, MIB));
    OK(ask_peer(&byte, 1));
    wait(NULL);
    OK(cuMemsetD8_v2(p, 1, MIB));
    OK(cuMemFree_v2(p));
}

/* Null arguments are invalid values. */
RULE(external_null, .source = DRIVER_API "External Resource Interoperability, cuImportExternalMemory",
     .calls = "cuImportExternalMemory") {
    primary_context();
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = MIB};
    CUexternalMemory memory;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(NULL, &desc));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&memory, NULL));
}

/* A descriptor that is no memory is not imported. */
RULE(external_bad_descriptor, .source = DRIVER_API "External Resource Interoperability, cuImportExternalMemory",
     .calls = "cuImportExternalMemory") {
    primary_context();
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = MIB};
    CUexternalMemory memory;
    desc.handle.fd = 999;
    FAILS(cuImportExternalMemory(&memory, &desc));
}

/* A type of handle that does not exist is refused. */
RULE(external_unknown_type, .source = DRIVER_API "External Resource Interoperability, cuImportExternalMemory",
     .calls = "cuImportExternalMemory") {
    primary_context();
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = 77, .size = MIB};
    CUexternalMemory memory;
    FAILS(cuImportExternalMemory(&memory, &desc));
}

/* A null object is an invalid handle. */
RULE(external_destroy_null, .source = DRIVER_API "External Resource Interoperability, cuDestroyExternalMemory",
     .calls = "cuDestroyExternalMemory") {
    primary_context();
    ONE_OF(cuDestroyExternalMemory(NULL), CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE);
}

/* A descriptor that is no semaphore is not imported. */
RULE(semaphore_bad_descriptor, .source = DRIVER_API "External Resource Interoperability, cuImportExternalSemaphore",
     .calls = "cuImportExternalSemaphore") {
    primary_context();
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD};
    CUexternalSemaphore semaphore;
    desc.handle.fd = 999;
    FAILS(cuImportExternalSemaphore(&semaphore, &desc));
}
