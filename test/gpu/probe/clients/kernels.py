"""Kernels that take a known time of the GPU, for as long as they run: a loop of so many turns, measured alone."""

import ctypes
import os
import threading
import time

import cuda

# Counts turns rather than time, so that a kernel that waits for its turn on a shared GPU does not get shorter. Reading
# the clock keeps the compiler from leaving the loop out. A simulated driver reads the comment instead.
_TEXT = """.version 7.0
.target sm_50
.address_size 64
// cotenant-sim: duration_us={us} error=0
.visible .entry work(.param .u64 turns, .param .u64 out)
{{
 .reg .u64 %t<6>;
 .reg .pred %p<3>;
 ld.param.u64 %t0, [turns];
 ld.param.u64 %t1, [out];
 mov.u64 %t2, 0;
 mov.u64 %t3, 0;
again:
 mov.u64 %t4, %clock64;
 xor.b64 %t2, %t2, %t4;
 add.u64 %t3, %t3, 1;
 setp.lt.u64 %p1, %t3, %t0;
 @%p1 bra again;
 setp.ne.u64 %p2, %t2, 81985529216486895;
 @%p2 bra done;
 st.global.u64 [%t1], %t2;
done:
 ret;
}}
"""
_FIRST_TURNS = 20000
_WARM_S = 0.3
_BATCH_S = 0.01


class Load:
    """Made while no other process uses the GPU, because it measures its kernel; unless `measured` is what another one
    found. `batch`: kernels between two synchronizations, about 10 ms of them by default; `blocks`: one for each
    multiprocessor by default."""

    def __init__(self, us: int, measured=None, batch=None, blocks=None):
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(self._module), _TEXT.format(us=us).encode() + b"\0")
        cuda.call("cuModuleGetFunction", ctypes.byref(self._function), self._module, b"work")
        count = ctypes.c_int()
        cuda.call("cuDeviceGetAttribute", ctypes.byref(count), 16, 0)  # multiprocessors
        self._blocks = blocks or count.value
        self._context = ctypes.c_void_p()
        cuda.call("cuCtxGetCurrent", ctypes.byref(self._context))
        self._turns, self._out = ctypes.c_uint64(_FIRST_TURNS), cuda.allocate(8)
        self._parameters = (ctypes.c_void_p * 2)(*(ctypes.cast(ctypes.byref(value), ctypes.c_void_p)
                                                  for value in (self._turns, self._out)))
        self._size = batch or max(2, int(_BATCH_S * 1e6 / us))
        self.done = 0
        if measured:
            self._turns.value, self.kernel_s = measured["turns"], measured["kernelS"]
        else:
            self._measure(us)

    def _measure(self, us: int) -> None:
        warm = time.monotonic() + _WARM_S
        while True:
            took = self._batch(10) / 10
            if time.monotonic() > warm:
                break
        if "COTENANT_PROBE_NODE" not in os.environ:
            self._turns.value = max(1, int(_FIRST_TURNS * us / 1e6 / took))
        self.kernel_s = min(self._batch(self._size) for _ in range(5)) / self._size

    @property
    def turns(self) -> int:
        return self._turns.value

    def run(self) -> None:
        self._stop, self.done, self._began = threading.Event(), 0, time.monotonic()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def put(self, stream=None) -> None:
        cuda.call("cuLaunchKernel", self._function, self._blocks, 1, 1, 32, 1, 1, 0, stream, self._parameters, None)

    def _batch(self, count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self.put()
        cuda.call("cuCtxSynchronize")
        return time.perf_counter() - began

    def _go_on(self) -> None:
        cuda.call("cuCtxSetCurrent", self._context)
        while not self._stop.is_set():
            self._batch(self._size)
            self.done += self._size

    def stop(self) -> dict:
        """How many kernels ran and in which time; their number times their length is what the GPU worked for them."""
        self._stop.set()
        self._thread.join()
        ended = time.monotonic()
        cuda.release(self._out)
        cuda.call("cuModuleUnload", self._module)
        return {"kernels": self.done, "seconds": ended - self._began, "busyS": self.done * self.kernel_s}
