"""The child process in which llama.cpp meets a file for the first time: `python -m node.proving LIBRARY`.

llama.cpp aborts, or reads where it must not, on some contents that no reader of GGUF can judge. Until a
model is proven it is therefore touched here and not in the process that somebody talks to: this one may
die, and `node.prover` says in one line what it died of.

Jobs come as lines of JSON on stdin, each is answered by one line on stdout. When stdin closes, the process
ends at once, whatever it is doing: it must not outlive the one it works for.
"""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from node.engine import library as llama
from node.engine.gate import gate
from node.engine.library import EngineError, Library
from node.engine.llama_model import LlamaModel
from node.engine.recognise import TracedCall, find_calls
from node.engine.trace import trace
from node.model.gguf.errors import GGUFError
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.held import hold
from node.model.manifest import Manifest, ManifestError
from node.model.recipe import RecipeError
from routing.errors import LocalError

ERRORS: dict[str, type[LocalError]] = {
    kind.__name__: kind for kind in (EngineError, GGUFError, ManifestError, RecipeError, LocalError)
}
"""What the asking side raises again as itself."""


class ReadCalls(msgspec.Struct, frozen=True, tag="read_calls"):
    """Show the MoE calls of a trunk's graph. Paths are bytes: not every file name is text."""

    trunk: bytes


class Compare(msgspec.Struct, frozen=True, tag="compare"):
    """Put a trunk through the gate, against the whole model that starts with the file `model`."""

    model: bytes
    trunk: bytes
    manifest: Manifest


class Calls(msgspec.Struct, frozen=True, tag="calls"):
    """The answer to `ReadCalls`."""

    calls: list[TracedCall]


class Compared(msgspec.Struct, frozen=True, tag="compared"):
    """The answer to `Compare`: why the trunk may not be used; "" if it may."""

    reason: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The answer to any job that met a LocalError: a key of ERRORS, and its text."""

    kind: str
    text: str


Job = ReadCalls | Compare
Answer = Calls | Compared | Refused


def read_calls(library: Library, trunk: Path) -> list[TracedCall]:
    """Every MoE call of a model's graph, read from its trunk: the graph is the whole model's.

    Raises:
        EngineError: llama.cpp cannot load the trunk.
        RecipeError: its experts compute something that no recipe can say.
    """
    with LlamaModel(library, [trunk]) as model:
        return find_calls(trace(model))


def compare(library: Library, path: Path, trunk: Path, manifest: Manifest) -> str:
    """The gate's verdict, with all experts held from the model's own file."""
    model = open_model(path)
    whole = tuple(part.path for part in model.parts)
    with MappedModel(model) as mapped:
        held = {(c.layer, c.group): hold(mapped, c, range(c.n_experts)) for c in manifest.calls}
        return gate(library, whole, trunk, manifest, held)


def answer(library_path: str, job: Job) -> Answer:
    """Do one job."""
    try:
        library = llama.load(library_path)
        if isinstance(job, ReadCalls):
            return Calls(read_calls(library, Path(os.fsdecode(job.trunk))))
        model, trunk = Path(os.fsdecode(job.model)), Path(os.fsdecode(job.trunk))
        return Compared(compare(library, model, trunk, job.manifest))
    except LocalError as error:
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in ERRORS)
        return Refused(kind, _text(str(error)))
    except OSError as error:
        return Refused(LocalError.__name__, _text(f"{error.filename or job.trunk!r}: {error.strerror}"))


def main(library_path: str) -> None:
    """Answer jobs until stdin closes."""
    # An abort is expected now and then: it need not leave an image of a whole model in some folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Answers go where stdout went; whatever C prints goes to stderr and cannot mix with them.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    with suppress(LocalError):  # while the other side still writes a trunk; the first job tells of it
        llama.load(library_path)
    while True:
        job = msgspec.json.decode(jobs.get(), type=Job)
        answers.write(msgspec.json.encode(answer(library_path, job)) + b"\n")
        answers.flush()


def _read_jobs(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)


def _text(message: str) -> str:
    """Without what JSON cannot carry: the bytes of a file name that is no text."""
    return message.encode(errors="backslashreplace").decode()


if __name__ == "__main__":
    main(sys.argv[1])
