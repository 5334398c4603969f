"""Takes of a GPU, one after another, what no allocation asks for: a context, another one, modules, a graph, local
memory, larger limits. Prints a line of JSON after each and goes on when a line comes."""

import ctypes

from staged import HEAD, launch, load, take

import cuda

MIB = cuda.MIB
STACK, PRINTF, HEAP = 0, 1, 2
#: Per thread; a GPU makes room for all threads that it can hold at once.
LOCAL_BYTES = 2048
GRAPH_NODES = 1000

NOTHING = HEAD + ".visible .entry nothing()\n{\n ret;\n}\n"
LOCAL = HEAD + """.visible .entry local(.param .u64 out, .param .u32 first, .param .u32 second)
{
 .local .align 4 .b8 scratch[%d];
 .reg .u64 %%a<6>;
 .reg .u32 %%r<4>;
 ld.param.u64 %%a0, [out];
 ld.param.u32 %%r0, [first];
 ld.param.u32 %%r1, [second];
 mov.u64 %%a1, scratch;
 mul.wide.u32 %%a2, %%r0, 4;
 add.u64 %%a2, %%a1, %%a2;
 mul.wide.u32 %%a3, %%r1, 4;
 add.u64 %%a3, %%a1, %%a3;
 st.local.u32 [%%a2], %%r0;
 st.local.u32 [%%a3], %%r1;
 ld.local.u32 %%r2, [%%a2];
 cvta.to.global.u64 %%a4, %%a0;
 st.global.u32 [%%a4], %%r2;
 ret;
}
""" % LOCAL_BYTES


#: Data of a module's own without initial values: initialized, it would be as long as text, and a driver's compiler slow.
DATA_BYTES = 32 * MIB
BIG = HEAD + """.visible .global .align 8 .u64 data[%d];
.visible .entry reads(.param .u64 out)
{
 .reg .u64 %%a<4>;
 ld.param.u64 %%a0, [out];
 cvta.to.global.u64 %%a1, %%a0;
 ld.global.u64 %%a2, [data];
 st.global.u64 [%%a1], %%a2;
 ret;
}
""" % (DATA_BYTES // 8)


class Stages:
    def start(self) -> None:
        cuda.call("cuInit", 0)

    def context(self) -> None:
        cuda.start()
        cuda.call("cuCtxSynchronize")

    def first_launch(self) -> None:
        self.nothing = load(NOTHING, b"nothing")
        launch(self.nothing)
        cuda.call("cuCtxSynchronize")

    def small_module(self) -> None:
        launch(load(NOTHING.replace("nothing", "another"), b"another"))
        cuda.call("cuCtxSynchronize")

    def two_mib(self) -> None:
        self.block = cuda.allocate(2 * MIB)

    def big_module(self) -> None:
        launch(load(BIG, b"reads"), self.block)
        cuda.call("cuCtxSynchronize")

    def graph(self) -> None:
        stream, self.captured, self.ready = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuStreamCreate", ctypes.byref(stream), 1)
        cuda.call("cuStreamBeginCapture_v2", stream, 0)
        for _ in range(GRAPH_NODES):
            launch(self.nothing, stream=stream)
        cuda.call("cuStreamEndCapture", stream, ctypes.byref(self.captured))
        cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(self.ready), self.captured, ctypes.c_uint64(0))
        self.stream = stream

    def graph_upload(self) -> None:
        cuda.call("cuGraphUpload", self.ready, self.stream)
        cuda.call("cuStreamSynchronize", self.stream)

    def graph_launch(self) -> None:
        cuda.call("cuGraphLaunch", self.ready, self.stream)
        cuda.call("cuStreamSynchronize", self.stream)

    def local_memory(self) -> None:
        launch(load(LOCAL, b"local"), self.block, ctypes.c_uint(3), ctypes.c_uint(77))
        cuda.call("cuCtxSynchronize")

    def limit(self, which: int, value: int) -> None:
        cuda.call("cuCtxSetLimit", which, ctypes.c_size_t(value))
        launch(self.nothing)
        cuda.call("cuCtxSynchronize")

    def stack_limit(self) -> None:
        self.limit(STACK, 2 * LOCAL_BYTES)

    def printf_limit(self) -> None:
        self.limit(PRINTF, 64 * MIB)

    def heap_limit(self) -> None:
        self.limit(HEAP, 256 * MIB)

    def second_context(self) -> None:
        self.second = ctypes.c_void_p()
        cuda.call("cuCtxCreate_v2", ctypes.byref(self.second), 0, 0)
        launch(load(NOTHING, b"nothing"))
        cuda.call("cuCtxSynchronize")

    def second_context_ended(self) -> None:
        cuda.call("cuCtxDestroy_v2", self.second)


ORDER = ("start", "context", "first_launch", "small_module", "two_mib", "big_module", "graph", "graph_upload",
         "graph_launch", "local_memory", "printf_limit", "heap_limit", "stack_limit", "second_context",
         "second_context_ended")


if __name__ == "__main__":
    # What came of a graph that could not be made is what came of making it.
    take(Stages(), ORDER, {"graph_upload": "graph", "graph_launch": "graph"})
