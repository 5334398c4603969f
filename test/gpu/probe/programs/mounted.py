"""Runs a program where our object lies over the driver's file:

    unshare -m --propagation private python3 mounted.py DRIVER WORK OBJECT GRANT COMMAND...

DRIVER is the driver's own file. WORK is an empty folder: WORK/lib/libcuda.so.1 becomes the real driver under its other
name, and a copy of DRIVER's folder with our object, its engines, the limits page and the ledger in it is bound over that folder. All
of it is this mount namespace's alone and ends with the program. WORK/begun says when COMMAND was begun."""

import os
import pathlib
import shutil
import subprocess
import sys
import time


def main() -> None:
    driver, work = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    ours, grant = sys.argv[3], pathlib.Path(sys.argv[4])
    original, over, real = work / "original", work / "over", work / "lib"
    for folder in (original, over, real):
        folder.mkdir()
    # With what is mounted inside it: container toolkits mount each of the driver's files.
    subprocess.run(["mount", "--rbind", str(driver.parent), str(original)], check=True)
    for entry in os.scandir(original):
        if entry.name == driver.name:
            continue
        # Links stay as they are, so that libcuda.so.1 leads to the file that is ours now.
        os.symlink(os.readlink(entry.path) if entry.is_symlink() else entry.path, over / entry.name)
    shutil.copyfile(ours, over / driver.name)
    os.chmod(over / driver.name, 0o755)
    for path in (grant / "limits", grant / "ledger", *grant.glob("libcotenant-engine.*.so")):
        os.symlink(path, over / path.name)
    os.symlink(original / driver.name, real / "libcuda.so.1")
    subprocess.run(["mount", "--bind", str(over), str(driver.parent)], check=True)
    paths = [str(driver.parent), str(real), os.environ.get("LD_LIBRARY_PATH", "")]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}
    (work / "begun").write_text(str(time.monotonic_ns()))
    os.execvpe(sys.argv[5], sys.argv[5:], env)


main()
