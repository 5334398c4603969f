"""Memory of the GPU in each form that CUDA has, taken and given back by name."""

import ctypes
import os
import socket

import cuda

_held = {}


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class PoolProperties(ctypes.Structure):  # CUmemPoolProps
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("win32", ctypes.c_void_p), ("most", ctypes.c_size_t), ("rest", ctypes.c_ubyte * 56)]


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


assert ctypes.sizeof(Properties) == 32 and ctypes.sizeof(PoolProperties) == 88 and ctypes.sizeof(Access) == 12
GPU = Location(1, 0)
PINNED, POSIX_FD, READ_WRITE = 1, 1, 3


def _touch(at, size: int) -> None:
    cuda.call("cuMemsetD8_v2", at, ctypes.c_ubyte(1), ctypes.c_size_t(size))


def linear(name: str, bytes: int, count: int = 1, touch: bool = True) -> dict:
    """As many of `count` blocks as the GPU gives."""
    blocks = _held.setdefault(name, [])
    for _ in range(count):
        try:
            blocks.append(cuda.allocate(bytes))
        except cuda.CudaError as refused:
            if refused.code != cuda.OUT_OF_MEMORY or not blocks:
                raise
            break
        if touch:
            _touch(blocks[-1], bytes)
    cuda.call("cuCtxSynchronize")
    return {"bytes": len(blocks) * bytes}


def linear_free(name: str) -> None:
    for at in _held.pop(name):
        cuda.release(at)


def pool(name: str, bytes: int) -> None:
    properties, made, at = PoolProperties(PINNED, 0, GPU), ctypes.c_void_p(), cuda.pointer()
    cuda.call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties))
    cuda.call("cuMemAllocFromPoolAsync", ctypes.byref(at), ctypes.c_size_t(bytes), made, None)
    cuda.call("cuStreamSynchronize", None)
    _held[name] = (made, at)


def pool_free(name: str) -> None:
    made, at = _held.pop(name)
    cuda.call("cuMemFreeAsync", at, None)
    cuda.call("cuStreamSynchronize", None)
    cuda.call("cuMemPoolDestroy", made)


def vmm_create(name: str, bytes: int) -> None:
    properties, handle = Properties(PINNED, POSIX_FD, GPU), ctypes.c_uint64()
    cuda.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(bytes), ctypes.byref(properties),
              ctypes.c_ulonglong(0))
    _held[name] = (handle, None)


def vmm_map(name: str, bytes: int) -> None:
    handle, size, at = _held[name][0], ctypes.c_size_t(bytes), cuda.pointer()
    cuda.call("cuMemAddressReserve", ctypes.byref(at), size, ctypes.c_size_t(0), ctypes.c_uint64(0),
              ctypes.c_ulonglong(0))
    cuda.call("cuMemMap", at, size, ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
    cuda.call("cuMemSetAccess", at, size, ctypes.byref(Access(GPU, READ_WRITE)), ctypes.c_size_t(1))
    _held[name] = (handle, at)


def vmm_export(name: str, channel: int) -> None:
    """Sends the block's descriptor over an inherited UNIX socket."""
    descriptor = ctypes.c_int(-1)
    cuda.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), _held[name][0], POSIX_FD,
              ctypes.c_ulonglong(0))
    with socket.socket(fileno=os.dup(channel)) as way:
        socket.send_fds(way, [b"x"], [descriptor.value])
    os.close(descriptor.value)


def vmm_import(name: str, channel: int) -> None:
    with socket.socket(fileno=os.dup(channel)) as way:
        way.settimeout(10)
        _, descriptors, _, _ = socket.recv_fds(way, 1, 1)
    handle = ctypes.c_uint64()
    try:
        cuda.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptors[0]), POSIX_FD)
    finally:
        os.close(descriptors[0])  # which keeps the block
    _held[name] = (handle, None)


def vmm_free(name: str, bytes: int) -> None:
    handle, at = _held.pop(name)
    if at is not None:
        cuda.call("cuMemUnmap", at, ctypes.c_size_t(bytes))
        cuda.call("cuMemAddressFree", at, ctypes.c_size_t(bytes))
    cuda.call("cuMemRelease", handle)


def ipc_handle(name: str) -> dict:
    """Of a linear block."""
    handle = IpcHandle()
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), _held[name][0])
    return {"handle": bytes(handle).hex()}


def ipc_open(name: str, handle: str) -> None:
    at = cuda.pointer()
    cuda.call("cuIpcOpenMemHandle_v2", ctypes.byref(at), IpcHandle.from_buffer_copy(bytes.fromhex(handle)), 1)
    _held[name] = at


def ipc_close(name: str) -> None:
    cuda.call("cuIpcCloseMemHandle", _held.pop(name))


def pinned(name: str, bytes: int) -> None:
    at = ctypes.c_void_p()
    cuda.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(bytes), 0)
    _held[name] = at


def pinned_free(name: str) -> None:
    cuda.call("cuMemFreeHost", _held.pop(name))


def managed(name: str, bytes: int) -> None:
    """Written by the GPU, so that it lies there."""
    at = cuda.pointer()
    cuda.call("cuMemAllocManaged", ctypes.byref(at), ctypes.c_size_t(bytes), 1)
    _held[name] = [at]
    _touch(at, bytes)
    cuda.call("cuCtxSynchronize")


DO = {
    "linear": linear, "linear free": linear_free, "pool": pool, "pool free": pool_free, "vmm create": vmm_create,
    "vmm map": vmm_map, "vmm export": vmm_export, "vmm import": vmm_import, "vmm free": vmm_free,
    "ipc handle": ipc_handle, "ipc open": ipc_open, "ipc close": ipc_close, "pinned": pinned,
    "pinned free": pinned_free, "managed": managed, "managed free": linear_free,
}
