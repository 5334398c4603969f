"""What a step is, and what it is given."""

import dataclasses
import pathlib
import typing

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: Where `make -C native probe` puts its results.
BUILD = ROOT / "native" / "build"
#: What libcotenant.so loads; without it every call of CUDA is refused, which would read as the driver's answer.
ENGINE = f"libcotenant-engine.{(ROOT / 'native/interposer/engine/NUMBER').read_text().strip()}.so"


class NotHere(Exception):
    """This machine cannot answer the question; the text says why (no compiler, no PyTorch, only simulated ...)."""


@dataclasses.dataclass(frozen=True)
class Answer:
    #: One sentence for people.
    answer: str
    #: How it was obtained, in one sentence.
    how: str
    #: The facts, for programs. Bytes and seconds unless a name says otherwise.
    data: dict


@dataclasses.dataclass(frozen=True)
class Context:
    simulated: bool
    #: A few MiB of managed memory may be taken.
    managed: bool
    #: Called with what is known so far: all that remains of a step that fails later, or runs out of time.
    note: typing.Callable[[dict], None] = lambda data: None

    def program(self, *parts: str) -> str:
        """Path of one of our own programs or libraries."""
        path = BUILD.joinpath(*parts)
        if not path.exists():
            raise NotHere(f"{path.relative_to(ROOT)} is not built (make -C native probe)")
        return str(path)


@dataclasses.dataclass(frozen=True)
class Step:
    id: str
    #: Questions that it answers, such as "interposer 7.4", "exporter 9.a".
    questions: typing.Tuple[str, ...]
    title: str
    budget_s: int
    run: typing.Callable[[Context], Answer]
