"""`panal init`: the models it checks, the address and the commands it prints."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from node.cli import main as frame
from node.config import load_config
from node.config.own_address import dialable
from node.model.expert_names import parse_expert_name
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.writer import TensorToWrite, write_gguf
from node.model.slice_file import cut_slice
from routing.identity import Identity
from routing.multiaddr import ListenAddress, PeerAddress

PEER = f"/ip4/192.0.2.7/udp/4190/quic-v1/p2p/{Identity.generate().peer_id}"
MODEL_ID = "0a" * 32

Init = Callable[..., tuple[int, str, str]]


@pytest.fixture
def init(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Init:
    """init(*arguments) -> exit code, stdout, stderr; in tmp_path, into its folder "node"."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = frame.main(["init", "--dir", "node", *map(str, arguments)])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def piece(tmp_path: Path, demo_model: Path) -> Path:
    """A slice file: layers 1-2, experts 4-7."""
    path = tmp_path / "piece.gguf"
    cut_slice(open_model(demo_model), b"{}", MODEL_ID, range(1, 3), range(4, 8), path)
    return path


@pytest.fixture
def dense(tmp_path: Path, demo_model: Path) -> Path:
    """The demo model without its experts."""
    path = tmp_path / "dense.gguf"
    model = open_model(demo_model)
    with MappedModel(model) as mapped:
        tensors = [
            TensorToWrite(tensor.name, tensor.shape, tensor.type, bytes(mapped.tensor_view(tensor.name)))
            for tensor in model.tensors.values()
            if parse_expert_name(tensor.name) is None
        ]
    write_gguf(path, model.metadata, tensors)
    return path


def is_refused(done: tuple[int, str, str], message: str) -> None:
    code, out, err = done
    assert (code, out, err.count("\n")) == (2, "", 1), done
    assert message in err
    assert not Path("node").exists()


class TestModels:
    @pytest.mark.parametrize("ranges", ["", ":0-3", ":1", ":0-3:0-11", "::11"])
    def test_ranges_in_the_model(self, init: Init, demo_model: Path, ranges: str) -> None:
        assert init("--serve", f"{demo_model}{ranges}")[0] == 0

    @pytest.mark.parametrize(
        ("ranges", "message"),
        [
            (":0-4", "layers 0-4: has layers 0-3, not 4"),
            (":9", "layers 9: has layers 0-3, not 9"),
            (":0:12", "experts 12: layer 0 has experts 0-11, not 12"),
            ("::3-40", "experts 3-40: layer 0 has experts 0-11, not 12"),
            (":0,x", "cannot read the range '0,x'"),
        ],
    )
    def test_ranges_outside_the_model(self, init: Init, demo_model: Path, ranges: str, message: str) -> None:
        is_refused(init("--serve", f"{demo_model}{ranges}"), message)

    @pytest.mark.parametrize("ranges", ["", ":1-2", ":2:5", "::4-7"])
    def test_ranges_in_a_slice_file(self, init: Init, piece: Path, ranges: str) -> None:
        assert init("--serve", f"{piece}{ranges}")[0] == 0

    @pytest.mark.parametrize(
        ("ranges", "message"),
        [
            (":0-2", "layers 0-2: has layers 1-2, not 0"),
            (":3", "layers 3: has layers 1-2, not 3"),
            ("::0-3", "experts 0-3: layer 1 has experts 4-7, not 0"),
        ],
    )
    def test_ranges_outside_a_slice_file(self, init: Init, piece: Path, ranges: str, message: str) -> None:
        is_refused(init("--serve", f"{piece}{ranges}"), message)

    def test_layers_that_are_dense(self, init: Init, zoo_file: Callable[..., Path]) -> None:
        model = zoo_file("deepseek2")
        held = {name.layer for each in open_model(model).tensors if (name := parse_expert_name(each))}
        assert 0 not in held
        is_refused(init("--serve", f"{model}:0"), "layers 0 hold no routed experts")
        assert init("--serve", f"{model}:0-{max(held)}")[0] == 0

    @pytest.mark.parametrize("flag", ["--serve", "--model"])
    def test_a_file_that_is_no_moe_model(self, init: Init, tmp_path: Path, dense: Path, flag: str) -> None:
        is_refused(
            init(flag, dense), "dense.gguf: has no routed experts: panal needs a mixture-of-experts model"
        )
        (tmp_path / "letter.gguf").write_text("Dear reader")
        is_refused(init(flag, "letter.gguf"), "letter.gguf: ")

    def test_a_slice_file_is_no_model_to_run(self, init: Init, piece: Path) -> None:
        is_refused(init("--model", piece), "is a slice file; it can be served")

    def test_a_model_id_is_taken_as_it_is(self, init: Init) -> None:
        code, out, _ = init("--serve", f"{MODEL_ID}:90-93", "--model", MODEL_ID)
        assert code == 0 and f"panal model get {MODEL_ID} -c node/node.toml fetches it from peers" in out
        config = load_config(Path("node/node.toml"))
        assert config.require_backbone().model.model_id == MODEL_ID
        assert str(config.serve[0].layers) == "90-93"

    @pytest.mark.parametrize(("ranges", "layers"), [("", "None"), (":1-2", "1-2"), (":1:0-3", "1")])
    def test_a_name_with_colons(
        self, init: Init, tmp_path: Path, demo_model: Path, ranges: str, layers: str
    ) -> None:
        odd = tmp_path / "path:with colon.gguf"
        odd.symlink_to(demo_model)
        assert init("--serve", f"path:with colon.gguf{ranges}")[0] == 0
        (served,) = load_config(Path("node/node.toml")).serve
        assert served.model.path == demo_model
        assert str(served.layers) == layers

    def test_a_missing_file_with_a_colon(self, init: Init) -> None:
        is_refused(
            init("--serve", "disk:none.gguf"),
            "disk: no such file; give a GGUF or slice file, or a model id of the store "
            "(disk:none.gguf: after a colon come layers, then experts)",
        )
        _, _, err = init("--serve", "none.gguf")
        assert "colon" not in err


class TestAddress:
    def test_all_interfaces_become_one_that_can_be_dialed(self) -> None:
        four = dialable(ListenAddress("0.0.0.0", 4190))
        assert PeerAddress.parse(str(four)) == PeerAddress(four.host, 4190)  # refuses 0.0.0.0
        both = dialable(ListenAddress("::", 4190))
        assert PeerAddress.parse(str(both)) == PeerAddress(both.host, 4190)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.bind((four.host, 0))  # only an address of this machine can be bound

    @pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.7", "::1", "2001:db8::7"])
    def test_one_interface_stays_as_it_is(self, host: str) -> None:
        assert dialable(ListenAddress(host, 0)) == ListenAddress(host, 0)

    def test_a_node_that_serves_prints_it(self, init: Init, demo_model: Path) -> None:
        _, out, _ = init("--serve", demo_model, "--listen", "/ip4/127.0.0.1/udp/4191/quic-v1")
        assert "\naddress  /ip4/127.0.0.1/udp/4191/quic-v1/p2p/12D3KooW" in out
        assert "start it, and put its address into the peers of other nodes on this machine" in out
        assert "open" not in out.partition("Next:")[2]
        _, out, _ = init("--serve", demo_model, "--listen", "/ip4/0.0.0.0/udp/4191/quic-v1", "--force")
        assert "start it, with UDP port 4191 open" in out

    def test_port_0_is_not_printed(self, init: Init, demo_model: Path) -> None:
        arguments = ("--serve", demo_model, "--listen", "/ip4/0.0.0.0/udp/0/quic-v1")
        _, out, _ = init(*arguments)
        assert "udp/0" not in out
        assert "\naddress  its port is chosen at each start" in out
        _, out, _ = init(*arguments, "--force", "--json")
        assert json.loads(out)["address"] is None

    @pytest.mark.parametrize("arguments", [["--peer", PEER], []])
    def test_a_node_that_only_asks_prints_none(
        self, init: Init, demo_model: Path, arguments: list[str]
    ) -> None:
        code, out, _ = init("--model", demo_model, *arguments)
        assert code == 0
        assert "\naddress" not in out and "4190" not in out and "port" not in out


def test_the_commands_it_prints_can_be_pasted(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, demo_model: Path
) -> None:
    folder = tmp_path / "my node; it's"
    make = ["init", "--dir", str(folder), "--force"]
    assert frame.main([*make, "--serve", str(demo_model), "--model", str(demo_model), "--peer", PEER]) == 0
    commands = [
        shlex.split(line) for line in capfd.readouterr().out.splitlines() if line.startswith("  panal ")
    ]
    config = str(folder / "node.toml")
    assert commands == [
        ["panal", "run", "-c", config],
        ["panal", "generate", "-c", config, "-p", "Once upon a time"],
    ]
    assert frame.main(make) == 0
    assert (
        f"panal init --force --serve MODEL.gguf --dir {shlex.quote(str(folder))}\n" in capfd.readouterr().out
    )


def test_two_peers_are_two_nodes(init: Init) -> None:
    is_refused(
        init("--peer", PEER, "--peer", PEER.replace("4190", "4191")),
        "swarm.peers[1]: names the same node as swarm.peers[0]",
    )
