"""What programs share that take of a GPU in stages: modules, launches, and a line of JSON after each stage, which
the process that watches the GPU answers with a line of its own."""

import ctypes
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import cuda  # noqa: E402

HEAD = ".version 7.0\n.target sm_50\n.address_size 64\n"


def load(text: str, name: bytes):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), text.encode() + b"\0")
    cuda.call("cuModuleGetFunction", ctypes.byref(function), module, name)
    return function


def parameters(*arguments):
    return (ctypes.c_void_p * max(1, len(arguments)))(
        *(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments))


def launch(function, *arguments, stream=None) -> None:
    cuda.call("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, parameters(*arguments), None)


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def free_bytes():
    """None where no context is current."""
    try:
        return cuda.free_bytes()
    except cuda.CudaError:
        return None


def take(stages, order: tuple, after: dict) -> None:
    """One method of `stages` after another. One that is in `after` is left out where that one failed, with its code.
    What a stage returns is printed with it, as `facts`, and what comes after it, as `left`."""
    codes = {}
    for index, name in enumerate(order):
        code, more = codes.get(after.get(name), 0), {"facts": {}}
        if code:
            more["skippedAfter"] = camel(after[name])
        else:
            try:
                more["facts"] = getattr(stages, name)() or {}
            except cuda.CudaError as error:
                code, more["problem"] = error.code, str(error)
        codes[name] = code
        left = [camel(later) for later in order[index + 1:]]
        print(json.dumps({"stage": camel(name), "result": code, "freeBytes": free_bytes(), "left": left, **more}), flush=True)
        if not sys.stdin.readline():
            return
