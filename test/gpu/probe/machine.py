"""The machine that is asked: its own driver, or a simulated node that is started for the probe."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from step import BUILD

#: The card of a simulated node.
SIMULATED_CARD = "h100"


@contextlib.contextmanager
def node(simulated: bool):
    """The environment in which steps find the driver."""
    if not simulated:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory(prefix="ct-") as folder:
        arguments = [str(BUILD / "cotenant-simulator"), "serve", "--dir", folder, "--card", SIMULATED_CARD]
        daemon = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        try:
            daemon.stdout.readline()
            yield {**os.environ, "LD_LIBRARY_PATH": f"{folder}/lib", "COTENANT_PROBE_NODE": folder}
        finally:
            daemon.terminate()
            daemon.wait()


def facts(env: dict):
    """Driver and card, asked in a process of its own; None where no driver library can be loaded."""
    script = "import json, cuda; print(json.dumps(cuda.facts()))"
    folder = str(pathlib.Path(__file__).parent)
    answer = subprocess.run([sys.executable, "-c", script], cwd=folder, env=env, capture_output=True, text=True)
    return json.loads(answer.stdout) if answer.returncode == 0 else None
