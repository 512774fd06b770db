"""The llama.cpp shared object: found, loaded, checked (`abi`), its functions typed (`signatures`).

One library a process: ggml keeps global state, and two copies of it do not share tensors.
"""

from __future__ import annotations

import ctypes as C
import importlib.util
import os
from collections import deque
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from blake3 import blake3

from node.engine import abi
from node.engine.signatures import GGML, LLAMA
from node.engine.structs import LogCallback
from routing.errors import LocalError

PINNED = "xllamacpp==2026.10.11549"
LOG_LINES = 12  # enough for the reason of a failed load; llama.cpp prints hundreds of lines on success
SPIN_COUNT = (
    1000  # some 30 us: outlasts ggml's barriers within a graph, not a trip (2 cores, 3 nodes: 5x the tokens)
)
SPIN_VARIABLES = frozenset({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})
LEVEL_WARN, LEVEL_ERROR, LEVEL_CONT = 3, 4, 5  # ggml_log_level


class EngineError(LocalError):
    """llama.cpp is missing, of another build, or refused what it was asked."""


class Library:
    """The loaded library. Functions of `signatures` are attributes: `library.llama_decode(...)`.

    Raises:
        EngineError: not found, cannot be loaded, a function is missing, or the ABI guard fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._build_id: str | None = None
        self._recent: deque[str] = deque(maxlen=LOG_LINES)
        _shorten_spinning()
        try:
            self._handle = C.CDLL(str(path))
        except OSError as error:
            raise EngineError(_load_failure(path, str(error))) from None
        for name, (result, arguments) in (GGML | LLAMA).items():
            try:
                function = getattr(self._handle, name)
            except AttributeError:
                raise EngineError(
                    f"{path}: no function {name}; panal needs the llama.cpp of {PINNED}"
                ) from None
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)
        problem = abi.mismatch(self)
        if problem:
            raise EngineError(f"{path}: {problem}; panal needs the llama.cpp of {PINNED}")
        self._log = LogCallback(self._on_log)
        self.llama_log_set(self._log, None)
        self.ggml_cpu_init()
        self.llama_backend_init()

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that __init__ did not set: keeps mypy content about the typed functions.
        raise AttributeError(name)

    def op_name(self, op: int) -> str:
        """Name of a `ggml_op` that a tensor carries, e.g. "MUL_MAT_ID"."""
        return _text(self.ggml_op_name(op))

    def function_name(self, op: str, index: int) -> str:
        """Which function a GLU or UNARY node computes, e.g. "SWIGLU"; "" for other operations."""
        if op == "GLU":
            return _text(self.ggml_glu_op_name(index))
        return _text(self.ggml_unary_op_name(index)) if op == "UNARY" else ""

    def system_info(self) -> str:
        return _text(self.llama_print_system_info()).strip()

    def build_id(self) -> str:
        """Which code computes, on which kind of CPU, in 16 hex digits."""
        if self._build_id is None:
            hasher = blake3(max_threads=blake3.AUTO).update_mmap(self.path)  # 30 ms for the wheel's 106 MB
            self._build_id = hasher.update(self.system_info().encode()).hexdigest()[:16]
        return self._build_id

    def last_errors(self) -> str:
        """The warnings and errors llama.cpp printed last, in one line."""
        return "; ".join(line for line in self._recent if line)

    def forget_errors(self) -> None:
        self._recent.clear()

    def _on_log(self, level: int, text: bytes | None, _data: object) -> None:
        if not text:
            return
        line = " ".join(text.decode(errors="replace").split())
        if level == LEVEL_CONT and self._recent:
            self._recent[-1] = (self._recent[-1] + line)[:400]
        elif level in (LEVEL_WARN, LEVEL_ERROR):
            self._recent.append(line[:400])


def _shorten_spinning() -> None:
    """Let OpenMP's helper threads sleep soon after they run out of work; unless the user decided otherwise.

    By default they spin for milliseconds, which is most of a trip: of a backbone that waits and of servers
    that have answered they would take the cores from whoever computes. libgomp reads this when it is loaded.
    """
    if not SPIN_VARIABLES & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)


def _text(value: bytes | None) -> str:
    return value.decode() if value else "?"


def _load_failure(path: Path, reason: str) -> str:
    if "libgomp" in reason:
        return f"{path}: needs the OpenMP runtime; install it (Debian, Ubuntu: apt install libgomp1)"
    if not path.exists():
        return f"{path}: no such llama.cpp library; correct engine.library, or leave it out to use {PINNED}"
    return f"{path}: cannot be loaded as a llama.cpp library: {reason}"


def default_path() -> Path:
    """Where the pinned wheel keeps its shared object."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        raise EngineError(f"llama.cpp is missing: pip install {PINNED}")
    folder = Path(found.origin).parent
    for pattern in ("xllamacpp*.so", "xllamacpp*.dylib"):
        for candidate in sorted(folder.glob(pattern)):
            return candidate
    try:
        have = version("xllamacpp")
    except PackageNotFoundError:
        have = "?"
    raise EngineError(
        f"{folder}: xllamacpp {have} exports no llama.cpp here; set engine.library to a build of it"
    )


_loaded: Library | None = None


def load(path: str | os.PathLike[str] | None = None) -> Library:
    """The process's library, loaded at first use.

    Args:
        path: another llama.cpp build (`engine.library` in the config); None for the pinned wheel.
    """
    global _loaded
    wanted = Path(path).expanduser() if path else default_path()
    if _loaded is None:
        _loaded = Library(wanted)
    elif _loaded.path != wanted:
        raise EngineError(f"{wanted}: this process already uses {_loaded.path}; one llama.cpp a process")
    return _loaded
