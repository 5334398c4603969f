"""Structures that calls of the driver take, as native/abi/cuda.h has them."""

import ctypes

PINNED, DEVICE = 1, 1


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class VmmProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
        ("win32_metadata", ctypes.c_void_p), ("compression", ctypes.c_ubyte), ("rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_uint16), ("reserved", ctypes.c_ubyte * 4),
    ]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
        ("win32_attributes", ctypes.c_void_p), ("max_size", ctypes.c_size_t), ("usage", ctypes.c_uint16),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR in its second layout."""

    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int), ("channels", ctypes.c_uint),
    ]


def check() -> None:
    for layout, size in ((VmmProp, 32), (PoolProps, 88), (ArrayDescriptor, 24)):
        if ctypes.sizeof(layout) != size:
            raise TypeError(f"{layout.__name__} has {ctypes.sizeof(layout)} bytes instead of {size}")


check()


def on_gpu(layout):
    """Properties of pinned memory on the first GPU."""
    return layout(type=PINNED, location=Location(DEVICE, 0))
