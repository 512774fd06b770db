"""A file on which llama.cpp crashes: one line about it from a process that lives on, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from node.engine.library import EngineError, Library
from node.importing import import_model
from node.model.gguf.errors import GGUFError
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.types import TYPE_BY_NAME, tensor_bytes
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from node.model.store import Store
from node.prover import Crashed, Prover
from routing.errors import LocalError
from tests.model_parts import ModelParts
from tests.ready_panal import run_panal

Parts = Callable[..., ModelParts]
ROOT = Path(__file__).parent.parent.parent
BOUND = 15.0
"""Seconds; every command promises 3 after Ctrl-C, and the machine may be busy."""


def changed(
    source: Path,
    target: Path,
    *,
    numbers: dict[str, int] | None = None,
    tensors: Mapping[str, str | bytes] | None = None,
) -> Path:
    """A copy of a model with other numbers in its metadata (below the architecture's name) and with tensors
    of another type, or filled with a repeated piece of bytes."""
    model = open_model(source)
    metadata = dict(model.metadata)
    for key, value in (numbers or {}).items():
        metadata[f"{model.architecture}.{key}"] = GGUFValue.uint32(value)
    written = []
    with MappedModel(model) as mapped:
        for name, tensor in model.tensors.items():
            kind, data = tensor.type, bytes(mapped.tensor_view(name))
            change = (tensors or {}).get(name)
            if isinstance(change, str):
                kind = TYPE_BY_NAME[change]
                size = tensor_bytes(tensor.shape, kind)
                data = (data * (size // len(data) + 1))[:size]
            elif isinstance(change, bytes):
                data = (change * len(data))[: len(data)]
            written.append(TensorToWrite(name, tensor.shape, kind, data))
    write_gguf(target, metadata, written)
    return target


def heads(demo: Path, target: Path) -> Path:
    """llama.cpp reaches a GGML_ASSERT."""
    return changed(demo, target, numbers={"attention.head_count": 7})


def output(demo: Path, target: Path) -> Path:
    """llama.cpp calls a function that ggml does not have."""
    return changed(demo, target, tensors={"output.weight": "I32"})


def panal(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_panal(*arguments)


def is_refused(done: subprocess.CompletedProcess[str], *named: str) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for text in named:
        assert text in done.stderr


# --- crashes ---


@pytest.mark.slow
@pytest.mark.parametrize("command", ["import", "inspect", "verify", "run", "generate"])
def test_a_crash_is_one_line(tmp_path: Path, demo_model: Path, command: str) -> None:
    path, store = heads(demo_model, tmp_path / "odd.gguf"), tmp_path / "store"
    config = tmp_path / "node.toml"
    config.write_text(
        f'store = "{store}"\n[swarm]\nlisten = "/ip4/127.0.0.1/udp/0/quic-v1"\n'
        f'[backbone]\nmodel = "{path}"\n[[serve]]\nmodel = "{path}"\n'
    )
    arguments = {
        "import": ("model", "import", path, "--store", store),
        "inspect": ("model", "inspect", path),
        "verify": ("verify", path, "--store", store),
        "run": ("run", "-c", config),
        "generate": ("generate", "-c", config, "-p", "x"),
    }[command]
    done = panal(*arguments)
    is_refused(done, str(path), "llama.cpp crashed on it (aborted: ggml", "GGML_ASSERT(", ") failed)")
    assert list(store.glob("models/.*")) == []


@pytest.mark.parametrize(
    ("make", "words"), [(heads, "aborted: ggml"), (output, "crashed on it (segmentation fault)")]
)
def test_this_process_lives_on(
    library: Library, tmp_path: Path, demo_model: Path, make: Callable[[Path, Path], Path], words: str
) -> None:
    store = Store(tmp_path / "store")
    path = make(demo_model, tmp_path / "odd.gguf")
    with pytest.raises(LocalError) as caught:
        import_model(library, store, path)
    message = str(caught.value)
    assert message.startswith(f"{path}: cannot be run in parts: ") and words in message
    assert "\n" not in message and str(store.root) not in message
    assert list(store.root.glob("models/*")) == []
    assert import_model(library, store, demo_model).trunk.is_file()


@pytest.mark.parametrize("kind", ["I32", "I64", "F64", "Q8_K"])
@pytest.mark.parametrize("name", ["token_embd", "blk.1.ffn_gate_inp", "blk.1.attn_q", "blk.1.attn_norm"])
@pytest.mark.slow
def test_types_that_ggml_may_not_know(
    library: Library, tmp_path: Path, demo_model: Path, name: str, kind: str
) -> None:
    path = changed(demo_model, tmp_path / "odd.gguf", tensors={f"{name}.weight": kind})
    try:
        import_model(library, Store(tmp_path / "store"), path)
    except LocalError as error:
        assert str(path) in str(error) and "\n" not in str(error)


# --- what needs no crash to be refused ---


@pytest.mark.parametrize(
    ("key", "value", "but"),
    [
        ("expert_used_count", 0, "a layer has 12 experts"),
        ("expert_used_count", 13, "a layer has 12 experts"),
        ("expert_count", 11, "its layers have 12 experts"),
        ("expert_count", 0, "its layers have 12 experts"),
        ("block_count", 0, "its tensors are of 4 blocks"),
        ("block_count", 3, "its tensors are of 4 blocks"),
        ("block_count", 1000, "its tensors are of 4 blocks"),
    ],
)
def test_contradictions(
    library: Library, tmp_path: Path, demo_model: Path, key: str, value: int, but: str
) -> None:
    path = changed(demo_model, tmp_path / "odd.gguf", numbers={key: value})
    with pytest.raises(GGUFError) as caught:
        import_model(library, Store(tmp_path / "store"), path)
    assert str(path) in str(caught.value) and f"{key} is {value}, but {but}" in str(caught.value)


def test_blocks_that_predict_may_be_left_out(library: Library, tmp_path: Path, demo_model: Path) -> None:
    path = changed(demo_model, tmp_path / "odd.gguf", numbers={"block_count": 5, "nextn_predict_layers": 1})
    import_model(library, Store(tmp_path / "store"), path)


# --- output that proves nothing ---


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"output_norm.weight": b"\x00\x00\x80\x7f"}, "has NaN or infinite"),
        ({"output_norm.weight": b"\x00"}, "is one number all along each row"),
    ],
)
def test_output_that_proves_nothing(
    library: Library, tmp_path: Path, demo_model: Path, tensors: dict[str, bytes], words: str
) -> None:
    path = changed(demo_model, tmp_path / "odd.gguf", tensors=tensors)
    with pytest.raises(LocalError) as caught:
        import_model(library, Store(tmp_path / "store"), path)
    assert f"llama.cpp's own output on the whole file {words}" in str(caught.value)


# --- names that are no text ---


@pytest.mark.slow
def test_a_name_that_is_not_utf8(tmp_path: Path, demo_model: Path) -> None:
    path = tmp_path / os.fsdecode(b"b\xffd.gguf")
    path.write_bytes(demo_model.read_bytes())
    store = tmp_path / "store"
    is_refused(panal("model", "import", path, "--store", store), "b\\udcffd.gguf", "not UTF-8")
    is_refused(panal("verify", path, "--store", store), "b\\udcffd.gguf", "not UTF-8")
    odd_store = tmp_path / os.fsdecode(b"s\xff")
    is_refused(panal("model", "import", demo_model, "--store", odd_store), "s\\udcff", "not UTF-8")
    for flags in ((), ("--json",)):
        done = panal("model", "inspect", path, *flags)
        assert (done.returncode, done.stderr) == (0, "") and "0f13cf2ccf03" in done.stdout


def test_the_store_does_without_a_note_of_such_a_file(tmp_path: Path, demo_model: Path) -> None:
    path = tmp_path / os.fsdecode(b"s\xff.gguf")
    path.symlink_to(demo_model)
    store = Store(tmp_path / "store")
    store.mark_checked(open_model(path))
    assert store.is_checked(open_model(demo_model))
    path.unlink()
    path.write_bytes(demo_model.read_bytes())
    store.mark_checked(open_model(path))
    assert not store.is_checked(open_model(path)) and store.is_checked(open_model(demo_model))


# --- the child ---


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A file at which llama.cpp waits for ever, like one on a network drive that is gone."""
    path = tmp_path / "trunk.gguf"
    os.mkfifo(path)
    return path


@pytest.fixture
def children() -> Iterator[Callable[[], list[int]]]:
    """children() -> the processes of `node.proving` that this one has started and not ended."""

    def living() -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"PPid:\t{os.getpid()}\n" in (folder / "status").read_text()
                if mine and b"node.proving" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    yield living


def quiet(what: str, done: int, total: int) -> None:
    pass


def test_one_child_does_several_jobs(
    library: Library, parts: Parts, tmp_path: Path, demo_model: Path, children: Callable[[], list[int]]
) -> None:
    model = parts("demo")
    odd = tmp_path / "trunk.gguf"
    heads(model.stored.trunk, odd)
    with Prover(library, quiet) as prover:
        calls = prover.read_calls(model.stored.trunk)
        first = children()
        assert len(first) == 1
        assert [(c.layer, c.group, c.n_used, c.recipe) for c in calls] == [
            (c.layer, c.group, 2, c.recipe) for c in model.manifest.calls
        ]
        assert all(isinstance(call.tensors["down.weight"], str) for call in calls)
        with pytest.raises(EngineError, match=r"absent\.gguf: llama\.cpp cannot load it"):
            prover.read_calls(tmp_path / "absent.gguf")
        assert prover.compare(model.path, model.stored.trunk, model.manifest) == ""
        assert children() == first
        with pytest.raises(Crashed, match="GGML_ASSERT"):
            prover.read_calls(odd)
        assert prover.compare(model.path, model.stored.trunk, model.manifest) == ""
        assert len(children()) == 1 and children() != first
    assert children() == []


def test_a_kill_is_told(library: Library, fifo: Path, children: Callable[[], list[int]]) -> None:
    def kill(what: str, done: int, total: int) -> None:
        for pid in children():
            os.kill(pid, signal.SIGKILL)

    with Prover(library, kill) as prover, pytest.raises(Crashed, match=r"was killed .* want of memory"):
        prover.read_calls(fifo)


def test_what_say_raises_ends_the_child(
    library: Library, fifo: Path, children: Callable[[], list[int]]
) -> None:
    beats = 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            raise KeyboardInterrupt

    begun = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), Prover(library, stop) as prover:
        prover.read_calls(fifo)
    assert time.perf_counter() - begun < BOUND
    assert children() == []


def lives(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


WAITING = """
import sys
from pathlib import Path
from node import sigint
from node.cli.progress import Progress
from node.engine import library as llama
from node.interrupt import run_blocking
from node.prover import Prover

def work():
    def say(what, done, total):
        progress.report(what, done, total)
        print(prover._child.pid, flush=True)
    with Prover(llama.load(), say) as prover:
        prover.read_calls(Path(sys.argv[1]))

sigint.arm()
with Progress() as progress:
    try:
        run_blocking(work, progress.stop)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_the_child_ends_with_its_parent(fifo: Path, number: signal.Signals, code: int) -> None:
    """However that ends, and though the child is deep in llama.cpp."""
    parent = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(fifo)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(1.0)  # the child waits at the FIFO
        begun = time.perf_counter()
        parent.send_signal(number)
        parent.communicate(timeout=30)
        while lives(child) and time.perf_counter() - begun < 2 * BOUND:
            time.sleep(0.02)
        seconds = time.perf_counter() - begun
    finally:
        parent.kill()
        parent.wait()
    assert parent.returncode == code
    assert seconds < BOUND
