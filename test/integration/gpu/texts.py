"""All PTX that the probe hands to a driver, as JSON by module and name: what is a template is filled in as for one microsecond."""

import importlib.util
import json
import pathlib
import sys

PROBE = pathlib.Path(__file__).resolve().parents[2] / "gpu" / "probe"
ENTRY = ".visible .entry"


def filled(text: str) -> str:
    if "{us}" in text:
        return text.format(us=1)
    return text % ((1,) * text.count("%d")) if "%d" in text else text


def texts_of(path: pathlib.Path) -> dict:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {}
    for name, value in vars(module).items():
        text = value.decode().rstrip("\0") if isinstance(value, bytes) else value
        if isinstance(text, str) and text.startswith(".version") and ENTRY in text:
            found[f"{path.relative_to(PROBE)} {name}"] = filled(text)
    return found


def main() -> None:
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(PROBE), str(PROBE / "clients"), str(PROBE / "programs")]
    found = {"texts": {}, "entries": {}}
    for path in sorted(PROBE.rglob("*.py")):
        if ENTRY not in path.read_text():
            continue
        found["entries"][str(path.relative_to(PROBE))] = path.read_text().count(ENTRY)
        found["texts"].update(texts_of(path))
    print(json.dumps(found))


main()
