"""Bad input to every command: one line on stderr that says what and where, exit code 2, no traceback."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.model.expert_names import parse_expert_name
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.writer import TensorToWrite, write_gguf
from tests.ready_panal import run_panal

UNKNOWN_MODEL = "0123456789ab"
PEER = "12D3KooWAkiRhEHk2yFAbqK2YdPZe21NLozHxDLpmJ9Vo9eq6FAE"


@dataclass(frozen=True)
class Bench:
    """A folder with one of each thing that is wrong."""

    folder: Path
    store: Path
    demo: Path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    @property
    def missing(self) -> Path:
        return self.folder / "absent.gguf"

    @property
    def not_gguf(self) -> Path:
        return self.write("letter.gguf", "Dear reader, this is not a model.\n" * 40)

    @property
    def truncated(self) -> Path:
        path = self.folder / "half.gguf"
        path.write_bytes(self.demo.read_bytes()[: 1 << 20])
        return path

    @property
    def dense(self) -> Path:
        """The demo model without its experts: a dense model as far as panal is concerned."""
        path = self.folder / "dense.gguf"
        model = open_model(self.demo)
        with MappedModel(model) as mapped:
            tensors = [
                TensorToWrite(tensor.name, tensor.shape, tensor.type, bytes(mapped.tensor_view(tensor.name)))
                for tensor in model.tensors.values()
                if parse_expert_name(tensor.name) is None
            ]
        write_gguf(path, model.metadata, tensors)
        return path

    def config(self, name: str, extra: str, *, head: str = "") -> Path:
        """A config of this bench's store with more in it."""
        return self.write(name, f'store = "{self.store}"\n{head}\n{extra}\n')

    def serving(self, model: object, extra: str = "", *, head: str = "") -> Path:
        listen = '[swarm]\nlisten = "/ip4/127.0.0.1/udp/0/quic-v1"\n' if "[swarm]" not in extra else ""
        return self.config("serve.toml", f'{listen}{extra}\n[[serve]]\nmodel = "{model}"\n', head=head)

    def asking(self, model: object, extra: str = "", *, head: str = "") -> Path:
        return self.config("ask.toml", f'{extra}\n[backbone]\nmodel = "{model}"\n', head=head)


@pytest.fixture
def bench(tmp_path: Path, demo_model: Path) -> Bench:
    return Bench(tmp_path, tmp_path / "store", demo_model)


def panal(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_panal(*arguments)


def is_refused(done: subprocess.CompletedProcess[str], *named: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr with all of `named` in it."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("panal")
    for text in named:
        assert text in lines[0], lines[0]


FileCommand = Callable[[Bench, object], subprocess.CompletedProcess[str]]

FILE_COMMANDS: dict[str, FileCommand] = {
    "model inspect": lambda b, f: panal("model", "inspect", f),
    "model import": lambda b, f: panal("model", "import", f, "--store", b.store),
    "slice cut": lambda b, f: panal("slice", "cut", f, "-o", b.folder / "out.gguf", "--store", b.store),
    "verify": lambda b, f: panal("verify", f, "--store", b.store),
    "verify -c": lambda b, f: panal("verify", "-c", b.asking(f)),
    "run": lambda b, f: panal("run", "-c", b.serving(f)),
    "generate": lambda b, f: panal("generate", "-c", b.asking(f), "-p", "x"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", FILE_COMMANDS)
@pytest.mark.parametrize("kind", ["missing", "not_gguf", "truncated", "dense"])
def test_a_file_that_is_no_model(bench: Bench, command: str, kind: str) -> None:
    path: Path = getattr(bench, kind)
    is_refused(FILE_COMMANDS[command](bench, path), path.name)
    leftovers = list((bench.store / "models").glob("*")) if bench.store.exists() else []
    assert leftovers == []


@pytest.mark.slow
def test_init_refuses_a_missing_model(bench: Bench) -> None:
    is_refused(panal("init", "--dir", bench.folder / "n", "--serve", bench.missing), "absent.gguf")
    is_refused(panal("init", "--dir", bench.folder / "n", "--model", bench.missing), "absent.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify -c", "run", "generate", "slice cut"])
def test_a_model_id_that_is_not_in_the_store(bench: Bench, command: str) -> None:
    is_refused(FILE_COMMANDS[command](bench, UNKNOWN_MODEL), UNKNOWN_MODEL)


CONFIG_COMMANDS: dict[str, Callable[[Path], subprocess.CompletedProcess[str]]] = {
    "run": lambda config: panal("run", "-c", config),
    "generate": lambda config: panal("generate", "-c", config, "-p", "x"),
    "verify -c": lambda config: panal("verify", "-c", config),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", CONFIG_COMMANDS)
class TestConfigs:
    def both(self, bench: Bench, extra: str, *, head: str = "") -> Path:
        """A config that could serve and ask, but for what is added."""
        demo = bench.demo
        return bench.config(
            "node.toml", f'{extra}\n[backbone]\nmodel = "{demo}"\n[[serve]]\nmodel = "{demo}"\n', head=head
        )

    def test_missing(self, bench: Bench, command: str) -> None:
        is_refused(CONFIG_COMMANDS[command](bench.folder / "none.toml"), "none.toml", "panal init")

    def test_not_toml(self, bench: Bench, command: str) -> None:
        is_refused(CONFIG_COMMANDS[command](bench.write("bad.toml", "name = = 3")), "bad.toml", "TOML")

    def test_unknown_key(self, bench: Bench, command: str) -> None:
        config = self.both(bench, '[swarm]\nlisten_on = "x"')
        is_refused(CONFIG_COMMANDS[command](config), "node.toml", "listen_on", "listen")

    def test_bad_multiaddr(self, bench: Bench, command: str) -> None:
        config = self.both(bench, '[swarm]\npeers = ["/ip4/1.2.3.4/tcp/1/p2p/nobody"]')
        is_refused(CONFIG_COMMANDS[command](config), "node.toml", "swarm.peers[0]", "tcp")

    def test_peer_without_identity(self, bench: Bench, command: str) -> None:
        config = self.both(bench, '[swarm]\npeers = ["/ip4/1.2.3.4/udp/1/quic-v1"]')
        is_refused(CONFIG_COMMANDS[command](config), "swarm.peers[0]", "/p2p/")

    def test_key_that_others_can_read(self, bench: Bench, command: str) -> None:
        key = bench.folder / "open.key"
        assert panal("init", "--dir", bench.folder / "other").returncode == 0
        key.write_bytes((bench.folder / "other" / "store" / "identity.key").read_bytes())
        key.chmod(0o644)
        config = self.both(bench, "", head='identity = "open.key"')
        is_refused(CONFIG_COMMANDS[command](config), "open.key", "chmod 600")

    def test_key_that_is_no_key(self, bench: Bench, command: str) -> None:
        key = bench.write("odd.key", "secret")
        key.chmod(0o600)
        config = self.both(bench, "", head='identity = "odd.key"')
        is_refused(CONFIG_COMMANDS[command](config), "odd.key")

    def test_library_that_is_none(self, bench: Bench, command: str) -> None:
        config = self.both(bench, '[engine]\nlibrary = "absent.so"')
        is_refused(CONFIG_COMMANDS[command](config), "absent.so")


@pytest.mark.slow
def test_a_table_that_is_needed_and_not_there(bench: Bench) -> None:
    is_refused(panal("generate", "-c", bench.serving(bench.demo), "-p", "x"), "serve.toml", "[backbone]")


@pytest.mark.slow
def test_port_in_use(bench: Bench) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        config = bench.serving(bench.demo, f'[swarm]\nlisten = "/ip4/127.0.0.1/udp/{port}/quic-v1"\n')
        is_refused(panal("run", "-c", config), str(port), "in use")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "experts", "named"),
    [("9", "0", "layers"), ("0-4", "0", "layers"), ("0", "12", "experts"), ("0", "3-40", "experts")],
)
def test_ranges_outside_the_model(bench: Bench, layers: str, experts: str, named: str) -> None:
    cut = ("slice", "cut", bench.demo, "--layers", layers, "--experts", experts)
    is_refused(panal(*cut, "-o", bench.folder / "o.gguf", "--store", bench.store), named)
    assert not (bench.folder / "o.gguf").exists()
    table = f'layers = "{layers}"\nexperts = "{experts}"\n'
    config = bench.config("r.toml", f'[[serve]]\nmodel = "{bench.demo}"\n{table}')
    is_refused(panal("run", "-c", config), named)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("verify",),
        ("verify", "x.gguf", "--servers", "0"),
        ("verify", "x.gguf", "--wire", "f64"),
        ("verify", "x.gguf", "--batch", "1,,2"),
        ("verify", "-c", "x.toml", "--servers", "2"),
        ("generate", "-p", "x"),
        ("generate", "-c", "x.toml", "-p", "x", "--temp", "nan"),
        ("slice", "cut", "x.gguf", "--layers", "3-1", "-o", "y"),
        ("init", "--peer", "/ip4/1.2.3.4/udp/99999/quic-v1/p2p/" + PEER, "--dir", "/tmp/panal-never"),
        ("model",),
        ("fly",),
    ],
)
def test_arguments(arguments: tuple[str, ...]) -> None:
    done = panal(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("/tmp/panal-never").exists()


@pytest.mark.slow
def test_more_servers_than_experts(bench: Bench) -> None:
    is_refused(panal("verify", bench.demo, "--servers", "13", "--store", bench.store), "13 servers", "12")


@pytest.mark.slow
def test_a_store_that_cannot_be_written(bench: Bench) -> None:
    blocked = bench.write("blocked", "a file, not a folder")
    is_refused(panal("model", "import", bench.demo, "--store", blocked / "store"), "blocked")
