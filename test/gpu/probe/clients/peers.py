"""One of two processes that need each other at each step, as the ranks of a collective do: a kernel that works, then one
that waits on its GPU until the other's has come as far, and takes a number from it. The numbers meet in host memory that
both GPUs see. A simulated GPU runs no code: there the processes exchange their numbers themselves, once both kernels
have ended. It stands in for NCCL, without anything but the driver."""

import ctypes
import mmap
import os
import pathlib
import socket
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

import cuda  # noqa: E402
import kernels  # noqa: E402
import served  # noqa: E402

#: Of each rank in the shared memory: how far it has come, and at 8 and 12 the numbers of its last two steps.
RANK_BYTES, SHARED_BYTES = 64, 4096
PORTABLE, MAPPED = 1, 2
#: A kernel that waits gives up after it, so that nothing hangs for good.
PATIENCE_NS = 5_000_000_000
CONNECT_S = 20
MEET = """.version 7.0
.target sm_50
.address_size 64
// cotenant-sim: duration_us=20 error=0
.visible .entry meet(.param .u64 shared, .param .u32 rank, .param .u32 step, .param .u64 own, .param .u64 ns)
{
 .reg .u64 %a<10>;
 .reg .u32 %r<9>;
 .reg .pred %p<2>;
 ld.param.u64 %a0, [shared];
 ld.param.u32 %r0, [rank];
 ld.param.u32 %r1, [step];
 ld.param.u64 %a1, [own];
 ld.param.u64 %a2, [ns];
 cvta.to.global.u64 %a0, %a0;
 cvta.to.global.u64 %a1, %a1;
 mul.wide.u32 %a3, %r0, 64;
 add.u64 %a3, %a3, %a0;
 xor.b32 %r2, %r0, 1;
 mul.wide.u32 %a4, %r2, 64;
 add.u64 %a4, %a4, %a0;
 and.b32 %r3, %r1, 1;
 mul.wide.u32 %a5, %r3, 4;
 add.u64 %a6, %a3, %a5;
 add.u64 %a7, %a4, %a5;
 ld.global.u32 %r4, [%a1];
 st.volatile.global.u32 [%a6+8], %r4;
 membar.sys;
 st.volatile.global.u32 [%a3], %r1;
 membar.sys;
 mov.u64 %a8, %globaltimer;
 add.u64 %a8, %a8, %a2;
again:
 ld.volatile.global.u32 %r5, [%a4];
 setp.ge.u32 %p0, %r5, %r1;
 @%p0 bra met;
 mov.u64 %a9, %globaltimer;
 setp.lt.u64 %p1, %a9, %a8;
 @%p1 bra again;
 ld.global.u32 %r6, [%a1+4];
 add.u32 %r6, %r6, 1;
 st.global.u32 [%a1+4], %r6;
 ret;
met:
 membar.sys;
 ld.volatile.global.u32 %r7, [%a7+8];
 add.u32 %r8, %r4, %r7;
 mad.lo.u32 %r8, %r8, 3, %r1;
 st.global.u32 [%a1], %r8;
 ret;
}
"""


def mixed(one: int, other: int, step: int) -> int:
    """What both have after a step, as the kernel works it out."""
    return ((one + other) * 3 + step) % (1 << 32)


def connection(rank: int, path: str) -> socket.socket:
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(path)
            door.listen(1)
            door.settimeout(CONNECT_S)
            return door.accept()[0]
    deadline = time.monotonic() + CONNECT_S
    while True:
        way = socket.socket(socket.AF_UNIX)
        try:
            way.connect(path)
            return way
        except OSError:
            way.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Peer:
    def __init__(self, rank: int, device: int, folder: str):
        cuda.start(device)
        self.rank, self.steps_done, self.launches = rank, 0, 0
        self.simulated = "COTENANT_PROBE_NODE" in os.environ
        self.work = None
        module, self.meet = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(module), MEET.encode() + b"\0")
        cuda.call("cuModuleGetFunction", ctypes.byref(self.meet), module, b"meet")
        with open(f"{folder}/numbers", "a+b") as file:
            file.truncate(SHARED_BYTES)
            self.memory = mmap.mmap(file.fileno(), SHARED_BYTES)
        here = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)))
        cuda.call("cuMemHostRegister_v2", here, ctypes.c_size_t(SHARED_BYTES), PORTABLE | MAPPED)
        self.shared, self.own = cuda.pointer(), cuda.allocate(8)
        cuda.call("cuMemHostGetDevicePointer_v2", ctypes.byref(self.shared), here, 0)
        #: The numbers that both should have: this one's and the other's.
        self.expected = [rank + 1, 2 - rank]
        self.put_number(rank + 1)
        self.way = connection(rank, f"{folder}/way")
        self.way.settimeout(60)

    def put_number(self, value: int) -> None:
        both = (ctypes.c_uint32 * 2)(value, 0)
        cuda.call("cuMemcpyHtoD_v2", self.own, both, ctypes.c_size_t(8))

    def numbers(self) -> tuple:
        """The rank's number, and how often a kernel gave up waiting."""
        both = (ctypes.c_uint32 * 2)()
        cuda.call("cuMemcpyDtoH_v2", both, self.own, ctypes.c_size_t(8))
        return both[0], both[1]

    def exchange(self, value: int) -> int:
        self.way.sendall(value.to_bytes(4, "little"))
        received = b""
        while len(received) < 4:
            more = self.way.recv(4 - len(received))
            if not more:
                raise EOFError("the other process has ended")
            received += more
        return int.from_bytes(received, "little")

    def step(self) -> None:
        self.steps_done += 1
        self.work.put()
        values = (self.shared, ctypes.c_uint32(self.rank), ctypes.c_uint32(self.steps_done), self.own,
                  ctypes.c_uint64(PATIENCE_NS))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p)
                                                     for value in values))
        cuda.call("cuLaunchKernel", self.meet, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
        self.launches += 2
        self.expected = [mixed(*self.expected, self.steps_done)] * 2
        if self.simulated:
            cuda.call("cuCtxSynchronize")
            value, _ = self.numbers()
            self.put_number(mixed(value, self.exchange(value), self.steps_done))


_peer = None


def start(**how) -> None:
    global _peer
    _peer = Peer(**how)


def prepare(us: int, measured=None) -> dict:
    """The kernel that works, measured alone, or as another process measured it."""
    _peer.work = kernels.Load(us, measured)
    return {"kernelS": _peer.work.kernel_s, "turns": _peer.work.turns}


def steps(count: int) -> dict:
    began = time.perf_counter()
    for _ in range(count):
        _peer.step()
    cuda.call("cuCtxSynchronize")
    took = time.perf_counter() - began
    value, gave_up = _peer.numbers()
    return {"seconds": took, "right": value == _peer.expected[0] and gave_up == 0, "launches": _peer.launches,
            "gaveUp": gave_up}


if __name__ == "__main__":
    served.serve({"start": start, "prepare": prepare, "steps": steps})
