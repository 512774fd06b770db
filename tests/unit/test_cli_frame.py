"""The frame of the command line: quick help, one-line errors, exit codes, `panal init`."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node.cli import main as frame
from node.cli.table import format_table
from node.config import load_config
from routing.errors import LocalError, PeerError

HEAVY = (
    "trio",
    "numpy",
    "msgspec",
    "cryptography",
    "xllamacpp",
    "qh3",
    "aioquic",
    "libp2p",
    "blake3",
    "asyncio",
)
HELP_SECONDS = 0.2  # CPU time: what the user waits for on an idle machine, whatever else runs on this one

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def panal(capfd: pytest.CaptureFixture[str]) -> Run:
    """panal(*arguments) -> exit code, stdout, stderr; in this process."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = frame.main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_help_loads_nothing_heavy_and_is_quick() -> None:
    program = (
        "import sys, time\n"
        "from node.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], time.process_time(), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, seconds = done.stderr.rsplit(" ", 1)
    assert loaded == "[]"
    assert float(seconds) < HELP_SECONDS
    for line in (
        "panal demo",
        "panal verify MODEL.gguf",
        "panal init --serve",
        "panal generate -c node.toml -p",
    ):
        assert line in done.stdout


def test_the_command_is_installed_under_its_name() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("panal"), "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("panal 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["--hel"], "required: COMMAND"),
        (["generate"], "-p/--prompt --prompts is required"),
        (["run", "-c", "x", "y\nz"], "unrecognized arguments: y z"),
        (["generate", "-c", "x", "-p", "y", "-n", "0"], "'0' is not a whole number from 1 to"),
        (["generate", "-c", "x", "-p", "y", "-n", "1e3"], "'1e3' is not a whole number"),
        (["generate", "-c", "x", "-p", "y", "--temp", "nan"], "'nan' is not a number from 0 to 100"),
        (["generate", "-c", "x", "-p", "y", "--top-p", "1.1"], "'1.1' is not a number from 0 to 1"),
        (["generate", "-c", "x", "-p", "y", "--seed", "-1"], "'-1' is not a whole number"),
        (["verify"], "one of the arguments FILE -c/--config is required"),
        (["verify", "a.gguf", "-c", "b.toml"], "not allowed with argument FILE"),
        (["verify", "a.gguf", "--wire", "f64"], "invalid choice: 'f64'"),
        (["verify", "a.gguf", "--batch", "1,,5"], "'' is not a whole number"),
        (["verify", "a.gguf", "--batch", "5,5"], "names a number twice"),
        (["slice", "cut", "m.gguf"], "required: -o/--output"),
        (["slice", "cut", "m.gguf", "-o", "o", "--layers", "3-0"], 'range "3-0" goes backwards'),
        (["model"], "required: COMMAND"),
        (["model", "inspect"], "required: FILE"),
        (["init", "--serve", "m:0-1:0-1:2"], "is not MODEL[:LAYERS[:EXPERTS]]"),
        (["init", "--dir", "a", "-o", "b"], "not allowed with argument"),
    ],
)
def test_usage_errors_are_one_line(panal: Run, arguments: list[str], message: str) -> None:
    code, out, err = panal(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("panal") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LocalError("no such file"), 2, "panal: no such file\n"),
        (PeerError("12D3 went away"), 1, "panal: 12D3 went away\n"),
        (PeerError("evil \x1b[2J\nname"), 1, "panal: evil \\x1b[2J\\nname\n"),
        (
            ExceptionGroup("nursery", [ExceptionGroup("inner", [LocalError("port in use")])]),
            2,
            "panal: port in use\n",
        ),
        (PermissionError(13, "Permission denied", "/root/x"), 2, "panal: /root/x: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("nursery", [KeyboardInterrupt()]), 130, ""),
    ],
)
def test_errors_of_a_command(
    panal: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("node.cli.run.run", fail)
    assert panal("run", "-c", "x") == (code, "", line)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        OSError(5, "Input/output error"),
        ExceptionGroup("g", [LocalError("x"), KeyError("y")]),
    ],
)
def test_bugs_keep_their_traceback(panal: Run, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("node.cli.run.run", fail)
    with pytest.raises(type(error)):
        panal("run", "-c", "x")


def test_a_reader_that_goes_away_costs_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "node.cli.main", "--version"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_init_makes_a_node_and_keeps_its_identity(panal: Run, tmp_path: Path, demo_model: Path) -> None:
    code, out, err = panal("init", "--dir", tmp_path / "a", "--json", "--serve", f"{demo_model}:0-1:0-5")
    assert (code, err) == (0, "")
    report = json.loads(out)
    config = load_config(tmp_path / "a" / "node.toml")
    assert report["config"] == str(config.path)
    assert report["address"].endswith(f"/udp/4190/quic-v1/p2p/{report['peer_id']}")
    assert (str(config.serve[0].layers), str(config.serve[0].experts)) == ("0-1", "0-5")
    assert config.serve[0].model.path == demo_model
    assert config.identity_path == tmp_path / "a" / "store" / "identity.key"
    assert stat.S_IMODE(config.identity_path.stat().st_mode) == 0o600

    code, _, err = panal("init", "--dir", tmp_path / "a")
    assert code == 2
    assert "exists already; --force overwrites it" in err

    code, out, _ = panal(
        "init",
        "--dir",
        tmp_path / "a",
        "--force",
        "--json",
        "--model",
        demo_model,
        "--peer",
        report["address"],
    )
    assert code == 0
    assert json.loads(out)["peer_id"] == report["peer_id"]
    assert str(load_config(tmp_path / "a" / "node.toml").swarm.peers[0]) == report["address"]


def test_init_says_what_comes_next(panal: Run, tmp_path: Path, demo_model: Path) -> None:
    _, out, _ = panal("init", "--dir", tmp_path / "a", "--serve", demo_model)
    assert f"panal run -c {tmp_path / 'a' / 'node.toml'}" in out
    _, out, _ = panal("init", "--dir", tmp_path / "b")
    assert "panal init --force --model MODEL.gguf --peer ADDRESS" in out


def test_init_writes_a_model_beside_the_config_as_a_relative_path(
    panal: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_model: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(demo_model.read_bytes())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PANAL_STORE", str(tmp_path / "store"))
    assert panal("init", "-o", "../node.toml", "--model", "../m.gguf")[0] == 0
    assert 'model = "./m.gguf"' in (tmp_path / "node.toml").read_text()
    assert (tmp_path / "store" / "identity.key").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer", "nonsense"], "panal init: argument --peer: multiaddr 'nonsense'"),
        (
            ["--peer", "/ip4/1.2.3.4/udp/1/quic-v1"],
            "argument --peer: '/ip4/1.2.3.4/udp/1/quic-v1' does not say",
        ),
        (["--listen", "/ip4/1.2.3.4/tcp/1"], "panal init: argument --listen: multiaddr"),
        (["--serve", "none.gguf"], "none.gguf: no such file"),
        (["--model", "none.gguf"], "none.gguf: no such file"),
        (["--serve", "deadbeef:9-1"], '--serve deadbeef:9-1: range "9-1" goes backwards'),
        (["--name", "x" * 41], "name: expected text of length <= 40"),
        (["--name", "\udcff"], "is not UTF-8"),
    ],
)
def test_init_writes_nothing_on_a_mistake(
    panal: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = panal("init", "--dir", tmp_path / "a", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "a").exists()


def test_tables() -> None:
    rows: list[list[object]] = [["layers", 4], ["tokens/s", "61.3"], ["per layer", None]]
    assert format_table(["what", "figure"], rows) == (
        "what       figure\nlayers          4\ntokens/s     61.3\nper layer       -"
    )
    assert format_table(["", ""], [["a", "x y"], ["bcd", "z"]]) == "a    x y\nbcd  z"
    with pytest.raises(ValueError, match="a row of 1 cells under 2 titles"):
        format_table(["a", "b"], [["x"]])
