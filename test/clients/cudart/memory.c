/* Memory of GPUs and of the host: taken, given back, copied, filled, described, shared. */
#include <string.h>

#include "cudart.h"

/* No bytes, and none to give back, is success; both still make the context. */
EXPORT rt_result cudaMalloc(abi_devptr *pointer, size_t bytes) {
    rt_result result = rt_enter();
    if (result == ABI_SUCCESS && !pointer) result = ABI_ERROR_INVALID_VALUE;
    if (result == ABI_SUCCESS) *pointer = 0;
    return rt_answer(result == ABI_SUCCESS && bytes ? DRIVER(cuMemAlloc, pointer, bytes) : result);
}
EXPORT rt_result cudaFree(abi_devptr pointer) {
    rt_result result = rt_enter();
    return rt_answer(result == ABI_SUCCESS && pointer ? DRIVER(cuMemFree, pointer) : result);
}
RT_PASS(cudaMemGetInfo, (size_t *free_bytes, size_t *total), cuMemGetInfo, free_bytes, total)
RT_PASS(cudaMallocAsync, (abi_devptr * pointer, size_t bytes, abi_stream stream), cuMemAllocAsync, pointer, bytes,
        stream)
RT_PASS(cudaFreeAsync, (abi_devptr pointer, abi_stream stream), cuMemFreeAsync, pointer, stream)
RT_PASS(cudaMemPoolGetAttribute, (abi_pool pool, int attribute, void *value), cuMemPoolGetAttribute, pool, attribute,
        value)
RT_PASS(cudaMemPoolSetAttribute, (abi_pool pool, int attribute, void *value), cuMemPoolSetAttribute, pool, attribute,
        value)
RT_PASS(cudaMemPoolSetAccess, (abi_pool pool, const abi_access_desc *list, size_t count), cuMemPoolSetAccess, pool,
        list, count)
RT_PASS(cudaMemPoolTrimTo, (abi_pool pool, size_t keep), cuMemPoolTrimTo, pool, keep)

RT_PASS(cudaHostAlloc, (void **pointer, size_t bytes, unsigned flags), cuMemHostAlloc, pointer, bytes, flags)
EXPORT rt_result cudaFreeHost(void *pointer) {
    rt_result result = rt_enter();
    return rt_answer(result == ABI_SUCCESS && pointer ? DRIVER(cuMemFreeHost, pointer) : result);
}
RT_PASS(cudaHostRegister, (void *pointer, size_t bytes, unsigned flags), cuMemHostRegister, pointer, bytes, flags)
RT_PASS(cudaHostUnregister, (void *pointer), cuMemHostUnregister, pointer)

/* ---- copies and fills ---- */

enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

static rt_result copy(abi_devptr to, abi_devptr from, size_t bytes, int kind) {
    switch (kind) {
    case HOST_TO_DEVICE: return DRIVER(cuMemcpyHtoD, to, (const void *)from, bytes);
    case DEVICE_TO_HOST: return DRIVER(cuMemcpyDtoH, (void *)to, from, bytes);
    case DEVICE_TO_DEVICE: return DRIVER(cuMemcpyDtoD, to, from, bytes);
    case HOST_TO_HOST:
    case BY_ADDRESS: return DRIVER(cuMemcpy, to, from, bytes);
    default: return ABI_ERROR_INVALID_VALUE;
    }
}
static rt_result copy_on(abi_devptr to, abi_devptr from, size_t bytes, int kind, abi_stream stream) {
    switch (kind) {
    case HOST_TO_DEVICE: return DRIVER(cuMemcpyHtoDAsync, to, (const void *)from, bytes, stream);
    case DEVICE_TO_HOST: return DRIVER(cuMemcpyDtoHAsync, (void *)to, from, bytes, stream);
    case DEVICE_TO_DEVICE: return DRIVER(cuMemcpyDtoDAsync, to, from, bytes, stream);
    case HOST_TO_HOST:
    case BY_ADDRESS: return DRIVER(cuMemcpyAsync, to, from, bytes, stream);
    default: return ABI_ERROR_INVALID_VALUE;
    }
}
EXPORT rt_result cudaMemcpy(abi_devptr to, abi_devptr from, size_t bytes, int kind) {
    rt_result result = rt_enter();
    return rt_answer(result == ABI_SUCCESS && bytes ? copy(to, from, bytes, kind) : result);
}
EXPORT rt_result cudaMemcpyAsync(abi_devptr to, abi_devptr from, size_t bytes, int kind, abi_stream stream) {
    rt_result result = rt_enter();
    return rt_answer(result == ABI_SUCCESS && bytes ? copy_on(to, from, bytes, kind, stream) : result);
}
EXPORT rt_result cudaMemcpy2DAsync(abi_devptr to, size_t to_pitch, abi_devptr from, size_t from_pitch, size_t width,
                                   size_t height, int kind, abi_stream stream) {
    rt_result result = rt_enter();
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS) result = ABI_ERROR_INVALID_VALUE;
    if (result != ABI_SUCCESS) return rt_answer(result);
    /* Every address means one thing, so it identifies both sides. */
    abi_memcpy_2d rows = {.src_type = ABI_MEMORY_UNIFIED,
                          .src_device = from,
                          .src_pitch = from_pitch,
                          .dst_type = ABI_MEMORY_UNIFIED,
                          .dst_device = to,
                          .dst_pitch = to_pitch,
                          .width_bytes = width,
                          .height = height};
    return rt_answer(DRIVER(cuMemcpy2DAsync, &rows, stream));
}
EXPORT rt_result cudaMemcpyPeerAsync(abi_devptr to, int to_device, abi_devptr from, int from_device, size_t bytes,
                                     abi_stream stream) {
    abi_context to_context, from_context;
    rt_result result = rt_enter();
    if (result == ABI_SUCCESS) result = rt_primary(to_device, &to_context);
    if (result == ABI_SUCCESS) result = rt_primary(from_device, &from_context);
    if (result == ABI_SUCCESS && bytes)
        result = DRIVER(cuMemcpyPeerAsync, to, to_context, from, from_context, bytes, stream);
    return rt_answer(result);
}
RT_PASS(cudaMemset, (abi_devptr to, int value, size_t bytes), cuMemsetD8, to, (unsigned char)value, bytes)
RT_PASS(cudaMemsetAsync, (abi_devptr to, int value, size_t bytes, abi_stream stream), cuMemsetD8Async, to,
        (unsigned char)value, bytes, stream)

/* ---- what a pointer is: cudaPointerAttributes, 24 bytes ---- */

enum { IS_UNREGISTERED, IS_HOST, IS_DEVICE, IS_MANAGED };
struct pointer_attributes {
    int type, device;
    void *on_device, *on_host;
};

EXPORT rt_result cudaPointerGetAttributes(struct pointer_attributes *attributes, void *pointer) {
    unsigned type = 0, managed = 0, flags;
    abi_devptr address = (abi_devptr)pointer;
    rt_result result = rt_enter();
    if (result == ABI_SUCCESS && !attributes) result = ABI_ERROR_INVALID_VALUE;
    if (result != ABI_SUCCESS) return rt_answer(result);
    *attributes = (struct pointer_attributes){IS_UNREGISTERED, -1, NULL, pointer};
    if (DRIVER(cuPointerGetAttribute, &type, ABI_POINTER_MEMORY_TYPE, address) != ABI_SUCCESS) {
        if (DRIVER(cuMemHostGetFlags, &flags, pointer) != ABI_SUCCESS) return ABI_SUCCESS;
        type = ABI_MEMORY_HOST;
    }
    DRIVER(cuPointerGetAttribute, &managed, ABI_POINTER_IS_MANAGED, address);
    attributes->type = managed ? IS_MANAGED : type == ABI_MEMORY_HOST ? IS_HOST : IS_DEVICE;
    attributes->on_device = pointer;
    if (attributes->type == IS_DEVICE) attributes->on_host = NULL;
    if (DRIVER(cuPointerGetAttribute, &attributes->device, ABI_POINTER_DEVICE_ORDINAL, address) != ABI_SUCCESS)
        result = DRIVER(cuCtxGetDevice, &attributes->device);
    return rt_answer(result);
}

/* ---- other processes ---- */

RT_PASS(cudaIpcGetMemHandle, (rt_ipc_handle * handle, abi_devptr pointer), cuIpcGetMemHandle, handle, pointer)
RT_PASS(cudaIpcOpenMemHandle, (abi_devptr * pointer, rt_ipc_handle handle, unsigned flags), cuIpcOpenMemHandle, pointer,
        handle, flags)
RT_PASS(cudaIpcCloseMemHandle, (abi_devptr pointer), cuIpcCloseMemHandle, pointer)
RT_PASS(cudaIpcGetEventHandle, (rt_ipc_handle * handle, abi_event event), cuIpcGetEventHandle, handle, event)
RT_PASS(cudaIpcOpenEventHandle, (abi_event * event, rt_ipc_handle handle), cuIpcOpenEventHandle, event, handle)
