"""The commands as people use them, in processes of their own."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from node.cli.demo import PROMPT
from node.ranges import Ranges
from routing.identity import Identity
from tests.ready_panal import Panal, run_panal
from tests.zoo.make_zoo import make

pytestmark = pytest.mark.slow

LOOPBACK = "/ip4/127.0.0.1/udp/0/quic-v1"
END_SECONDS = 15.0
"""Ctrl-C ends every command within 3; the machine may be busy."""


def panal(*arguments: object, stdin: str | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_panal(*arguments, stdin=stdin or "")
    assert done.returncode == code, done
    return done


@contextmanager
def serving(config: Path) -> Iterator[tuple[Panal, str]]:
    """A `panal run` process and the address it announces."""
    process = Panal(["run", "-c", config, "--json"])
    try:
        yield process, json.loads(process.stdout.readline())["address"]
    finally:
        process.close()


def memory(pid: int, field: str) -> int:
    """A field of /proc/PID/status in bytes."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def test_demo_prints_text_and_a_table() -> None:
    done = panal("demo", "-n", "24")
    assert done.stderr == ""
    for row in ("layers", "trips", "tokens/s", "bytes per token and layer, with the prompt"):
        assert re.search(rf"^{re.escape(row)} +[0-9]", done.stdout, re.MULTILINE), row
    assert len(re.findall(r"^server \d", done.stdout, re.MULTILINE)) == 3
    assert re.search(r"^page +http://127.0.0.1:\d+$", done.stdout, re.MULTILINE)
    report = json.loads(panal("demo", "-n", "24", "--json").stdout)
    assert report["text"].strip() and report["text"].strip() in done.stdout
    # 24 tokens: the prompt's pass gives the first, each further pass one and the guesses that were right;
    # every layer of a pass is one trip.
    assert report["panal"]["passes"] + report["panal"]["accepted"] == 24
    assert report["panal"]["trips"] == report["panal"]["passes"] * 4
    assert len(report["tokens"]) == 24


def test_demo_has_its_page_and_its_api_up() -> None:
    command = [sys.executable, "-m", "node.cli.main", "demo", "-n", "8", "--keep", "--json"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        report = json.loads(demo.stdout.readline())
        with urlopen(report["url"], timeout=30) as page:
            assert page.status == 200 and "<title>panal</title>" in page.read().decode()
        for _ in range(300):  # the page's facts are a second old at most
            with urlopen(f"{report['url']}/api/status", timeout=30) as answer:
                connected = sum(peer["connected"] for peer in json.load(answer)["peers"])
            if connected == 3:
                break
            time.sleep(0.1)
        assert connected == 3
        asked = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        request = Request(f"{report['url']}/v1/completions", json.dumps(asked).encode())
        request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=30) as answer:
            assert json.load(answer)["choices"][0]["text"] == report["text"]
        demo.send_signal(signal.SIGINT)
        assert demo.wait(END_SECONDS) == 0
    finally:
        demo.kill()
        demo.communicate()


def test_slice_files_serve_without_the_model(tmp_path: Path, demo_model: Path) -> None:
    """Three devices that never had the file: two halves of layers 0-1, one all of 2-3."""
    cuts = {"a": ("0-1", "0-5"), "b": ("0-1", "6-11"), "c": ("2-3", "0-11")}
    peers: list[str] = []
    with contextmanager(_servers)(tmp_path, demo_model, cuts) as started:
        peers = [address for _, address in started]
        panal("init", "--dir", tmp_path / "q", "--model", demo_model, *(f"--peer={peer}" for peer in peers))
        config = tmp_path / "q" / "node.toml"
        one = json.loads(panal("generate", "-c", config, "-p", "import os\n", "-n", "20", "--json").stdout)
        two = json.loads(
            panal("generate", "-c", config, "-p", "-", "-n", "20", "--json", stdin="import os\n\n").stdout
        )
        assert one["tokens"] == two["tokens"]
        verdict = json.loads(panal("verify", "-c", config, "--batch", "1,5", "--json").stdout)
        assert verdict["byte_identical"] and verdict["servers"] == 3
        # Sum from servers that hold whole layers alone adds in the same order as one machine.
        text = panal("generate", "-c", config, "-p", "import os\n", "-n", "20", "--stats")
        assert text.stdout.rstrip("\n") == one["text"].rstrip("\n")
        assert "tokens/s" in text.stderr
        seeded = [
            json.loads(
                panal(
                    "generate", "-c", config, "-p", "x", "-n", "16", "--temp", "1", "--seed", seed, "--json"
                ).stdout
            )["tokens"]
            for seed in ("7", "7", "8")
        ]
        assert seeded[0] == seeded[1] != seeded[2]


def _servers(
    tmp_path: Path, model: Path, cuts: dict[str, tuple[str, str]]
) -> Iterator[list[tuple[Panal, str]]]:
    from contextlib import ExitStack

    with ExitStack() as running:
        started = []
        for name, (layers, experts) in cuts.items():
            piece = tmp_path / f"{name}.gguf"
            panal(
                "slice", "cut", model, "--layers", layers, "--experts", experts, "-o", piece,
                "--store", tmp_path / "cutter",
            )  # fmt: skip
            panal("init", "--dir", tmp_path / name, "--listen", LOOPBACK, "--serve", piece)
            started.append(running.enter_context(serving(tmp_path / name / "node.toml")))
            assert not (tmp_path / name / "store" / "models").exists()  # nothing of the model but the slice
        yield started


def test_experts_at_home_and_elsewhere_give_the_same(tmp_path: Path, demo_model: Path) -> None:
    panal("init", "--dir", tmp_path / "s", "--listen", LOOPBACK, "--serve", f"{demo_model}::4-11")
    ask = ("-p", "def f(x):\n", "-n", "24", "--json")
    with serving(tmp_path / "s" / "node.toml") as (_, address):
        panal(
            "init", "--dir", tmp_path / "q", "--model", demo_model, "--peer", address,
            "--serve", f"{demo_model}::0-5",
        )  # fmt: skip
        mixed = json.loads(panal("generate", "-c", tmp_path / "q" / "node.toml", *ask).stdout)
    panal("init", "--dir", tmp_path / "h", "--model", demo_model, "--serve", demo_model)
    home = json.loads(panal("generate", "-c", tmp_path / "h" / "node.toml", *ask).stdout)
    assert mixed["tokens"] == home["tokens"]
    assert home["panal"]["trips"] == 0 and home["panal"]["bytes_out"] == 0
    assert 0 < mixed["panal"]["trips"] < 24 * 4  # some calls found all they needed at home
    assert mixed["panal"]["computed_home"] > 0


def test_a_server_maps_and_does_not_copy(tmp_path: Path) -> None:
    """RssAnon of a server is the same for a model many times larger."""
    anonymous = {}
    for experts in ("f32", "f16"):
        model = tmp_path / f"{experts}.gguf"
        make("qwen3moe", model, experts)
    small = tmp_path / "f16.gguf"
    big = _inflated(tmp_path)
    for name, model in (("small", small), ("big", big)):
        panal("init", "--dir", tmp_path / name, "--listen", LOOPBACK, "--serve", model)
        with serving(tmp_path / name / "node.toml") as (process, _):
            anonymous[name] = memory(process.pid, "RssAnon")
    assert big.stat().st_size > small.stat().st_size + (200 << 20)
    assert anonymous["big"] - anonymous["small"] < 8 << 20


def _inflated(tmp_path: Path) -> Path:
    """The zoo's qwen3moe with 1,024 experts of 768 a layer: 1.1 GB, of holes, so that it costs no disk."""
    from node.model.gguf.map import MappedModel
    from node.model.gguf.split import open_model
    from node.model.gguf.values import GGUFValue
    from node.model.gguf.writer import TensorToWrite, write_gguf

    model = open_model(tmp_path / "f32.gguf")
    metadata = dict(model.metadata)
    metadata["qwen3moe.expert_count"] = GGUFValue.uint32(256)
    metadata["qwen3moe.expert_feed_forward_length"] = GGUFValue.uint32(768)
    tensors = []
    with MappedModel(model) as mapped:
        for tensor in model.tensors.values():
            shape, data = tensor.shape, bytes(mapped.tensor_view(tensor.name))
            if "_exps" in tensor.name:
                wide = tuple(768 if side == 96 else side for side in shape[:2])
                tensors.append(TensorToWrite(tensor.name, (*wide, 256), tensor.type, None))
            elif "ffn_gate_inp" in tensor.name:
                tensors.append(TensorToWrite(tensor.name, (shape[0], 256), tensor.type, data * 32))
            else:
                tensors.append(TensorToWrite(tensor.name, shape, tensor.type, data))
        path = tmp_path / "big.gguf"
        write_gguf(path, metadata, tensors)
    return path


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_run_ends_on_a_signal(tmp_path: Path, demo_model: Path, how: signal.Signals) -> None:
    panal("init", "--dir", tmp_path / "s", "--listen", LOOPBACK, "--serve", demo_model)
    with serving(tmp_path / "s" / "node.toml") as (process, _):
        begun = time.monotonic()
        process.send_signal(how)
        assert process.wait(END_SECONDS) == 0
        assert time.monotonic() - begun < END_SECONDS
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_generate_ends_on_ctrl_c(tmp_path: Path, demo_model: Path) -> None:
    panal("init", "--dir", tmp_path / "s", "--listen", LOOPBACK, "--serve", demo_model)
    with serving(tmp_path / "s" / "node.toml") as (_, address):
        panal("init", "--dir", tmp_path / "q", "--model", demo_model, "--peer", address)
        command = [sys.executable, "-m", "node.cli.main", "generate", "-c", str(tmp_path / "q" / "node.toml")]
        process = subprocess.Popen(
            [*command, "-p", "class A:\n", "-n", "4000", "--temp", "1.5"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(8)  # text is coming
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(END_SECONDS) == 130
        assert time.monotonic() - begun < END_SECONDS
        assert process.stderr.read() == ""


def test_a_reader_that_leaves_is_no_error(tmp_path: Path, demo_model: Path) -> None:
    panal("init", "--dir", tmp_path / "h", "--model", demo_model, "--serve", demo_model)
    command = f'"{sys.executable}" -m node.cli.main generate -c "{tmp_path}/h/node.toml" -p "x = 1" -n 300'
    shell = f"{command} | head -c 5"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert len(done.stdout) == 5


@pytest.mark.parametrize(("context", "ubatch", "tokens"), [(300, 512, 348), (1, 512, 5), (700, 2000, 650)])
def test_a_context_below_the_ubatch(
    tmp_path: Path, demo_model: Path, context: int, ubatch: int, tokens: int
) -> None:
    """llama.cpp aborts on a pass of more rows than its cache; here it is cut into passes, or refused."""
    config = tmp_path / "node.toml"
    config.write_text(
        f'store = "{tmp_path}/store"\n[backbone]\nmodel = "{demo_model}"\ncontext = {context}\n'
        f'ubatch = {ubatch}\n[[serve]]\nmodel = "{demo_model}"\n'
    )
    fits = tokens < context
    done = panal(
        "generate", "-c", config, "-p", "x " * (tokens - 1), "-n", "4", "--json", code=0 if fits else 2
    )
    if fits:
        report = json.loads(done.stdout)
        assert context > report["prompt_tokens"] > 512
    else:
        assert done.stderr.count("\n") == 1
        assert f"do not fit a context of {context}" in done.stderr


def test_a_prompt_is_looked_at_before_anybody_is_waited_for(tmp_path: Path, demo_model: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        f'store = "{tmp_path}/store"\n[swarm]\nlisten = "/ip4/127.0.0.1/udp/4190/quic-v1"\n'
        f'[backbone]\nmodel = "{demo_model}"\ncontext = 24\n'
    )
    done = panal("generate", "-c", config, "-p", "x " * 50, code=2)
    assert "do not fit a context of 24" in done.stderr and "no connected peer" not in done.stderr
    nobody = panal("generate", "-c", config, "-p", "x", code=1)
    assert "layers 0-3: experts 0-11" in nobody.stderr and "[swarm] peers is empty" in nobody.stderr


def test_waiting_for_experts_is_shown_on_a_terminal(tmp_path: Path, demo_model: Path) -> None:
    absent = f"/ip4/127.0.0.1/udp/9/quic-v1/p2p/{Identity.generate().peer_id}"
    config = tmp_path / "node.toml"
    config.write_text(
        f'store = "{tmp_path}/store"\n[swarm]\nlisten = "/ip4/127.0.0.1/udp/4190/quic-v1"\n'
        f'peers = ["{absent}"]\n[backbone]\nmodel = "{demo_model}"\n'
    )
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "node.cli.main", "generate", "-c", str(config), "-p", "x"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # EIO: the other end is closed
        pass
    finally:
        os.close(terminal)
    assert process.wait() == 1
    assert b"looking for experts: 0 of 1 peers reached" in shown
    assert b"no connected peer holds" in shown.rpartition(b"\x1b[K")[2]  # on a line of its own


def test_a_full_context_ends_the_text_and_says_so(tmp_path: Path, demo_model: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        f'store = "{tmp_path}/store"\n[backbone]\nmodel = "{demo_model}"\ncontext = 24\n'
        f'[[serve]]\nmodel = "{demo_model}"\n'
    )
    done = panal("generate", "-c", config, "-p", "def f(", "-n", "100")
    assert "context is full" in done.stderr
    report = json.loads(panal("generate", "-c", config, "-p", "def f(", "-n", "100", "--json").stdout)
    assert report["stopped"] == "context"
    assert report["prompt_tokens"] + len(report["tokens"]) in (24, 25)


def test_the_model_is_never_overwritten_by_its_slice(tmp_path: Path, demo_model: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(demo_model.read_bytes())
    for target in (model, tmp_path / "link.gguf"):
        if target != model:
            target.symlink_to(model)
        done = panal("slice", "cut", model, "--force", "-o", target, "--store", tmp_path / "store", code=2)
        assert "is the model that is to be cut" in done.stderr
    assert model.read_bytes() == demo_model.read_bytes()


def test_a_damaged_store_is_mended_by_importing_again(tmp_path: Path, demo_model: Path) -> None:
    store = tmp_path / "store"
    take = ("model", "import", demo_model, "--store", store, "--json")
    trunk = Path(json.loads(panal(*take).stdout)["trunk"])
    intact = trunk.read_bytes()
    config = tmp_path / "node.toml"
    config.write_text(f'store = "{store}"\n[backbone]\nmodel = "{trunk.parent.name}"\n')
    for damage in (intact[:100_000], intact[:500_000] + b"\x00\x01" + intact[500_002:]):
        trunk.write_bytes(damage)
        if len(damage) != len(intact):
            broken = panal("generate", "-c", config, "-p", "x", code=2)
            assert "import the model again" in broken.stderr
        panal(*take)
        assert trunk.read_bytes() == intact
    (trunk.parent / "manifest.json").write_text("{}")
    assert "import the model again" in panal("generate", "-c", config, "-p", "x", code=2).stderr
    panal(*take)
    assert panal("model", "import", demo_model, "--store", store).returncode == 0


def test_what_connected_peers_serve_instead_is_told(tmp_path: Path, demo_model: Path) -> None:
    other = tmp_path / "other.gguf"
    make("olmoe", other)
    panal("init", "--dir", tmp_path / "s", "--listen", LOOPBACK, "--serve", other)
    with serving(tmp_path / "s" / "node.toml") as (_, address):
        panal("init", "--dir", tmp_path / "q", "--model", demo_model, "--peer", address)
        done = panal("generate", "-c", tmp_path / "q" / "node.toml", "-p", "x", code=1)
        assert "serves olmoe" in done.stderr and "not 0f13cf2ccf03" in done.stderr


def test_verify_counts_experts_at_home(tmp_path: Path, demo_model: Path) -> None:
    panal("init", "--dir", tmp_path / "s", "--listen", LOOPBACK, "--serve", f"{demo_model}::6-11")
    with serving(tmp_path / "s" / "node.toml") as (_, address):
        home = f"{demo_model}::0-5"
        panal("init", "--dir", tmp_path / "q", "--model", demo_model, "--serve", home, "--peer", address)
        done = panal("verify", "-c", tmp_path / "q" / "node.toml", "--batch", "1,7", "--json")
        assert json.loads(done.stdout)["byte_identical"] is True


def test_a_slice_file_can_be_looked_into(tmp_path: Path, demo_model: Path) -> None:
    piece = tmp_path / "p.gguf"
    cut = ("--layers", "1-2", "--experts", "3-5", "-o", piece, "--store", tmp_path / "store")
    panal("slice", "cut", demo_model, *cut)
    report = json.loads(panal("model", "inspect", piece, "--json").stdout)
    assert (report["kind"], report["layers"], report["experts"], report["cells"]) == (
        "slice",
        "1-2",
        "3-5",
        6,
    )
    assert "3-5 of 12" in panal("model", "inspect", piece).stdout


def test_import_ends_on_ctrl_c(tmp_path: Path, demo_model: Path) -> None:
    """At any moment, also inside a callback from C, which would swallow the interrupt."""
    command = [sys.executable, "-m", "node.cli.main", "model", "import", str(demo_model), "--store"]
    codes = list[int]()
    # later and later: on a slow machine the first of them meet Python, which has not come to us yet
    while len(codes) < 8 or (130 not in codes and len(codes) < 24):
        number = len(codes)
        process = subprocess.Popen(
            [*command, str(tmp_path / str(number))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(0.15 * 1.2**number)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=END_SECONDS)
        codes.append(process.returncode)
        # Python has no handler in its first moments: then the signal ends the process, or Python's start.
        if "init_import_site" not in stderr:
            assert "Traceback" not in stderr and "ignored" not in stderr, stderr
            assert process.returncode in (0, 130, -signal.SIGINT)
        assert list((tmp_path / str(number) / "models").glob(".new-*")) == []
    assert 130 in codes


def test_slice_plan_gives_every_cell_to_a_device(tmp_path: Path, demo_model: Path) -> None:
    store = ("--store", str(tmp_path / "store"))
    done = panal("slice", "plan", demo_model, "--device", "3MiB", "--device", "5MiB", "--json", *store)
    devices = json.loads(done.stdout)
    cells = {
        (layer, expert)
        for device in devices
        for table in device["serve"]
        for layer in Ranges.parse(table["layers"])
        for expert in Ranges.parse(table["experts"])
    }
    assert cells == {(layer, expert) for layer in range(4) for expert in range(12)}
    assert devices[0]["bytes"] <= 3 << 20 and devices[1]["bytes"] <= 5 << 20
    # and what it prints for people is a config's text
    text = panal("slice", "plan", demo_model, "--device", "100%", *store).stdout
    assert tomllib.loads(text)["serve"][0]["experts"] == "0-11"
    nearby = os.path.relpath(demo_model)
    text = panal("slice", "plan", nearby, "--device", "100%", *store).stdout
    assert tomllib.loads(text)["serve"][0]["model"] == str(demo_model), "the config may lie anywhere"
    small = panal("slice", "plan", demo_model, "--device", "1MiB", *store, code=2)
    assert "the experts take" in small.stderr and small.stderr.count("\n") == 1
