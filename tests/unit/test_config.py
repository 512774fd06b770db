"""The node config: what it means, and the one line said about each mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from node.config import (
    ConfigError,
    ModelRef,
    NodeConfig,
    default_store,
    load_config,
    parse_config,
    render_config,
)
from node.config.meaning import MAX_CONFIG_BYTES
from node.config.settings import MICRO
from node.config.shape import MAX_NAME_CHARS, ServeTable
from node.device.schedule import Schedule
from node.model.store import MIN_PREFIX
from node.ranges import Ranges
from routing.identity import Identity
from routing.multiaddr import ListenAddress, PeerAddress

STORE = Path("/default/store")
WHERE = Path("/etc/panal/node.toml")
PEER_ID = Identity.generate().peer_id
PEER = f"/ip4/192.0.2.7/udp/4190/quic-v1/p2p/{PEER_ID}"
OTHER_PEER = f"/ip4/192.0.2.7/udp/4190/quic-v1/p2p/{Identity.generate().peer_id}"


def parse(text: str) -> NodeConfig:
    return parse_config(text, WHERE, STORE)


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.isprintable(), "one line, nothing for the terminal to obey"
    assert message.startswith(f"{WHERE}: ")
    return message.removeprefix(f"{WHERE}: ")


def test_an_empty_file_is_a_node_that_does_nothing() -> None:
    config = parse("")
    assert config.store == STORE
    assert config.swarm.listen == ListenAddress("0.0.0.0", 4190)
    assert config.swarm.peers == ()
    assert config.engine.threads >= 1
    with pytest.raises(ConfigError, match="no \\[backbone\\]"):
        config.require_backbone()
    with pytest.raises(ConfigError, match="serves nothing"):
        config.require_serve()


def test_everything_said() -> None:
    config = parse(
        f"""
        name = "kitchen"
        store = "data"
        [swarm]
        listen = "/ip6/::/udp/4191/quic-v1"
        peers = ["{PEER}"]
        backend = "aioquic"
        [engine]
        library = "../lib/libllama.so"
        threads = 3
        [backbone]
        model = "/models/m.gguf"
        combine = "sum"
        wire = "int8"
        context = 8192
        ubatch = 64
        deadline = 5
        [[serve]]
        model = "m.gguf"
        layers = "0-3,8"
        [[serve]]
        model = "{"0a" * 32}"
        experts = "4-7"
        """
    )
    assert config.name == "kitchen"
    assert config.store == Path("/etc/panal/data")
    assert config.identity_path == Path("/etc/panal/data/identity.key")
    assert config.swarm.listen == ListenAddress("::", 4191)
    assert config.swarm.peers == (PeerAddress("192.0.2.7", 4190, PEER_ID),)
    assert config.swarm.backend == "aioquic"
    assert config.engine.library == Path("/etc/panal/../lib/libllama.so")
    assert config.engine.threads == 3
    backbone = config.require_backbone()
    assert backbone.model == ModelRef(path=Path("/models/m.gguf"))
    assert (backbone.combine, backbone.wire, backbone.context, backbone.ubatch) == ("sum", "int8", 8192, 64)
    assert backbone.deadline == 5.0
    first, second = config.require_serve()
    assert first.model == ModelRef(path=Path("/etc/panal/m.gguf"))
    assert first.layers == Ranges.parse("0-3,8")
    assert first.experts is None
    assert second.model == ModelRef(model_id="0a" * 32)
    assert second.experts == Ranges.parse("4-7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae = 'x'", "unknown key 'nmae' (did you mean name?); allowed here: name, store, identity,"),
        ("[swarm]\nport = 1", "swarm: unknown key 'port'; allowed here: listen, peers, backend"),
        (
            "[[serve]]\nmodel='m'\n[[serve]]\nmodel='m'\nlayer='1'",
            "serve[1]: unknown key 'layer' (did you mean layers?); allowed here: model, layers, experts",
        ),
        ('["\\u001b[2J"]', "unknown key '\\x1b[2J'; allowed here: name"),
        ("[engine]\nthreads = '2'", "engine.threads: expected a whole number, got text"),
        ("[engine]\nthreads = 0", "engine.threads: expected a whole number >= 1"),
        ("[engine]\nthreads = 99999999999999999999999", "engine.threads: expected a whole number <= 512"),
        ("[engine]\nthreads = true", "engine.threads: expected a whole number, got true or false"),
        ("[engine]\nthreads = 1979-05-27", "engine.threads: expected a whole number, got date"),
        ("[backbone]", "backbone: the key model is missing"),
        ("[market]\nmode='dear'", 'market.mode: \'dear\' is not one of "fixed", "free", "scarcity"'),
        ("[market]\nfloor=200\ncap=100", "market.floor is 200, above market.cap, which is 100"),
        ("[market]\nmode='scarcity'\nfloor=0", "market.floor: expected a whole number >= 1"),
        ("[market]\nmode='fixed'\nfloor=0\ncap=0", "market.floor: expected a whole number >= 1"),
        ("[market]\nprice=1.5", "market.price: expected a whole number, got a number"),
        ("[market]\nbudget_day=-1", "market.budget_day: expected a number >= 1e-06"),
        ("[market]\naudit=2", "market.audit: expected a number <= 1"),
        ('[market]\nvouch="no"', "market.vouch: expected true or false"),
        ("[market]\nvouches=true", "did you mean vouch?"),
        ("[market]\nup_link='20Mbit'", "did you mean uplink?"),
        ("[market]\nuplink='20MB'", "market.uplink: '20MB' is no rate; write it like \"20Mbit\""),
        ("[market]\nuplink=20", "market.uplink: expected text, got a whole number"),
        ("[market]\nsecond=nan", "market.second: expected a number"),
        (
            "[backbone]\nmodel='m'\nwire='f64'",
            'backbone.wire: \'f64\' is not one of "auto", "f16", "f32", "int8"',
        ),
        ("[backbone]\nmodel='m'\ndeadline=nan", "backbone.deadline: expected a number"),
        ("[backbone]\nmodel='m'\ndeadline=1e9", "backbone.deadline: expected a number <= 600.0"),
        ("[backbone]\nmodel=''", "backbone.model: expected text of length >= 1"),
        ("[backbone]\nmodel='m'\n[backbone.wire]", "backbone.wire: expected text, got a table"),
        ('[backbone]\nmodel="a\\u0000b"', "backbone.model: 'a\\x00b' is not a path: it holds a NUL"),
        ("[swarm]\nbackend='tcp'", 'swarm.backend: \'tcp\' is not one of "aioquic", "qh3"'),
        ("[swarm]\npeers='x'", "swarm.peers: expected a list, got text"),
        ("[swarm]\npeers=['x']", "swarm.peers[0]: multiaddr 'x' must begin with '/'"),
        ("[swarm]\npeers=['/ip4/192.0.2.7/udp/1/quic-v1']", "add /p2p/PEER-ID"),
        (f"[swarm]\npeers=['{PEER}', '{PEER}']", f"swarm.peers[1]: {PEER} is named twice"),
        (
            f"[swarm]\npeers=['{PEER}', '{OTHER_PEER}', '{PEER.replace('4190', '4191')}']",
            "swarm.peers[2]: names the same node as swarm.peers[0]; every node needs an identity of its own "
            "(panal init --dir gives one)",
        ),
        ("[backbone]\nmodel='m'\ncontext=0", "backbone.context: expected a whole number >= 1"),
        ("[backbone]\nmodel='m'\ncontext='all'", "backbone.context: expected a whole number, got text"),
        ("[swarm]\nlisten='/ip4/0.0.0.0/tcp/4190'", "swarm.listen: multiaddr"),
        ("swarm = 3", "swarm: expected a table, got a whole number"),
        ("serve = {model='m'}", "serve: expected a list, got a table"),
        ("[[serve]]\nmodel='m'\nexperts='3-0'", 'serve[0].experts: range "3-0" goes backwards'),
        ("[[serve]]\nlayers='3'", "serve[0]: the key model is missing"),
        ("[[serve]]\nmodel='m'\nmemory='6'", "serve[0].memory: '6' is no amount of memory"),
        (
            "[[serve]]\nmodel='m'\nmemory='6 GiB'\nexperts='1'",
            "serve[0].memory lets the node choose what it serves, experts names it: keep one of the two",
        ),
        ("[device]\nschedule = 'mon 1:00-2:00'", "device.schedule: expected a list, got text"),
        (
            "[device]\nschedule = ['mon 1:00-2:00', 'at night']",
            "device.schedule[1]: cannot read 'at night'; write it like \"mon-fri 22:00-07:00\"",
        ),
        ("[device]\nidle_only = 'yes'", "device.idle_only: expected true or false, got text"),
        ("[device]\nidle = true", "device: unknown key 'idle' (did you mean idle_only?)"),
        (f"name = '{'x' * (MAX_NAME_CHARS + 1)}'", "name: expected text of length <= 40"),
        ('name = "a\\nb"', "name: 'a\\nb' holds characters that cannot be printed"),
        ("store = 3", "store: expected text, got a whole number"),
        ("a = ", "not valid TOML: Invalid value (at end of document)"),
        ("name = 'a'\nname = 'b'", "not valid TOML: "),
        ("a = " + "[" * 100_000, "nested too deep"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert message in complaint(text)


@given(st.text(max_size=200))
def test_any_text_gives_a_config_or_one_line(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert "\n" not in str(error)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    ),
    st.sampled_from(
        ["name", "store", "swarm", "engine", "backbone", "serve", "swarm.peers", "engine.threads"]
    ),
)
def test_any_value_at_any_key_gives_a_config_or_one_line(value: object, key: str) -> None:
    try:
        parse(f"{key} = {value!r}".replace("None", "{}").replace("True", "true"))
    except ConfigError as error:
        assert "\n" not in str(error)


def test_files_that_are_no_config(tmp_path: Path) -> None:
    binary = tmp_path / "model.gguf"
    binary.write_bytes(b"GGUF\xff\xfe")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_CONFIG_BYTES + 1))
    for path, message in [
        (tmp_path / "none.toml", "no such config file; panal init writes one"),
        (tmp_path, "cannot be read: Is a directory"),
        (tmp_path / "a\0b", "cannot be read"),
        (binary, "not UTF-8 text (byte 4)"),
        (large, "too large for a config"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert message in str(caught.value)


def test_load_starts_relative_paths_at_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_bytes(b"\xef\xbb\xbf[[serve]]\nmodel = 'm.gguf'\n")
    config = load_config(path, {"PANAL_STORE": "/elsewhere"})
    assert config.serve[0].model.path == tmp_path / "m.gguf"
    assert config.store == Path("/elsewhere")


def test_default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_store({}) == Path("/home/anna/.local/share/panal")
    assert default_store({"PANAL_STORE": ""}) == Path("/home/anna/.local/share/panal")
    assert default_store({"PANAL_STORE": "~/p"}) == Path("/home/anna/p")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_store({}) == Path("/data/panal")


def test_a_store_of_before_stays_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".panal").mkdir()
    assert default_store({}) == tmp_path / ".panal"


def test_model_ref() -> None:
    base = Path("/base")
    assert ModelRef.parse("deadbeef", base) == ModelRef(model_id="deadbeef")
    assert ModelRef.parse("./deadbeef", base) == ModelRef(path=base / "deadbeef")
    assert ModelRef.parse("DEADBEEF", base) == ModelRef(path=base / "DEADBEEF")
    shortest = "beefed"[:MIN_PREFIX]
    assert ModelRef.parse(shortest, base) == ModelRef(model_id=shortest)
    assert ModelRef.parse(shortest[:-1], base) == ModelRef(path=base / shortest[:-1])


def test_the_starter_config_is_valid_and_so_are_its_comments() -> None:
    plain = render_config()
    assert parse(plain) == parse("")
    uncommented = "\n".join(
        line.removeprefix("# ") if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line
        for line in plain.splitlines()
    )
    config = parse(uncommented)
    assert config.name == "kitchen"
    default = parse("[backbone]\nmodel='model.gguf'").require_backbone()
    assert default.context is None  # what the model was trained with: no number in the file says the same
    # nor is there a small model that all have, or an amount of memory
    said = config.require_backbone()
    assert said == replace(default, context=4096, draft_model=said.draft_model, home_memory=said.home_memory)
    assert config.require_serve()[0].layers == Ranges.parse("0-15")
    assert config.device.idle_only and len(config.device.schedule.windows) == 2
    default_market = parse("").market
    assert default_market.is_free
    assert config.market == replace(
        default_market, mode="scarcity", budget_answer=500 * MICRO, budget_day=10_000 * MICRO, uplink=20e6
    )


def test_credits_are_counted_in_micro_credits() -> None:
    market = parse("[market]\nmode='fixed'\nprice=150\nbudget_answer=0.1\nsecond=2\ncredit_line=1e9").market
    assert (market.mode, market.price, market.is_free) == ("fixed", 150, False)
    assert (market.budget_answer, market.budget_day) == (100_000, None)
    assert (market.second, market.credit_line) == (2 * MICRO, 10**15)
    assert market.uplink is None and parse("[market]\nuplink='1.5 Gbit/s'").market.uplink == 1.5e9
    assert market.vouch and not parse("[market]\nvouch=false").market.vouch


def test_a_rendered_context_is_in_force() -> None:
    text = render_config(model="m.gguf", context=1024)
    assert parse(text).require_backbone().context == 1024
    assert "at most 4096" not in text


@given(name=st.text(min_size=1, max_size=MAX_NAME_CHARS).filter(str.isprintable), model=st.text(min_size=1))
def test_rendered_values_come_back(name: str, model: str) -> None:
    assume("\0" not in model and not model.startswith("~"))
    text = render_config(
        name=name,
        store="s",
        listen="/ip4/127.0.0.1/udp/0/quic-v1",
        peers=[PEER],
        model=model,
        serve=[
            ServeTable(model=model, layers="0-3,8"),
            ServeTable(model="m", experts="1"),
            ServeTable(model="m", memory="6 GiB"),
        ],
        idle_only=True,
        schedule=["daily 22:00-07:00", "sat 00:00-24:00"],
    )
    config = parse(text)
    assert config.name == name
    assert config.swarm.listen == ListenAddress("127.0.0.1", 0)
    assert config.swarm.peers == (PeerAddress.parse(PEER),)
    assert config.require_backbone().model == ModelRef.parse(model, WHERE.parent)
    assert [str(table.layers) for table in config.serve] == ["0-3,8", "None", "None"]
    assert [str(table.memory) for table in config.serve] == ["None", "None", "6 GiB"]
    assert config.device.idle_only
    assert config.device.schedule == Schedule.parse(["daily 22:00-07:00", "sat 00:00-24:00"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[swarm]\ncontrol="off"\n[relay]\nserve=true', 'relay.serve: a relay takes TCP connections'),
        ('[relay]\nwebsocket="/ip4/127.0.0.1/tcp/80"', "relay.websocket is the door of a relay"),
        ('[relay]\nserve=true\ncertificate="c.pem"\ncertificate_key="k.pem"', "which is missing"),
        ('[relay]\nserve=true\nwebsocket="/ip4/127.0.0.1/tcp/80"\ncertificate="c"', "belong together"),
        ('[relay]\ntrusted_proxies=["local"]', "proxies[0]: 'local' is no address and no network"),
        ('[swarm]\nkey="abc"\nmember="m"', "swarm.key: 'abc' is not a swarm's public key: 64 hex digits"),
        (f'[swarm]\nkey="{"ab" * 32}"', "swarm.key without swarm.member"),
        ('[swarm]\nmember="m"', "swarm.member without swarm.key"),
        ('[swarm]\nadvert_seconds=5', "swarm.advert_seconds"),
        ('[swarm]\ncontrol="/ip4/0.0.0.0/udp/4190"', "must have the form /ip4/ADDRESS/tcp/PORT"),
        ('[relay]\nserv=true', "did you mean serve?"),
    ],
)  # fmt: skip
def test_swarm_and_relay_keys_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, Path("node.toml"), Path("/store"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_peers_may_be_of_both_planes() -> None:
    peer_id = PEER.rpartition("/")[2]
    tcp, wss = f"/ip4/192.0.2.7/tcp/4190/p2p/{peer_id}", f"/dns4/r.example.org/tcp/443/tls/ws/p2p/{peer_id}"
    config = parse_config(f"[swarm]\npeers = ['{PEER}', '{tcp}', '{wss}']", Path("node.toml"), Path("/store"))
    assert [str(each) for each in config.swarm.peers] == [PEER]
    assert [str(each) for each in config.swarm.control_peers] == [tcp, wss]
    assert config.swarm.control == ("0.0.0.0", 4190) and config.swarm.swarm.name == "panal"
