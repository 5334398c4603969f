"""A process that serves requests: one JSON request per line on standard input, one answer per line on standard output.
It ends when its input does."""

import json
import os
import sys
import time


def serve(do: dict) -> None:
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = do[given.pop("do")](**given) or {}
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}", "code": getattr(problem, "code", None)}
        print(json.dumps({"at": time.monotonic(), **answer}), flush=True)
    os._exit(0)  # without the driver's own destructors, which can wait for a kernel
