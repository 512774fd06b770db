"""What a config means: paths resolved, addresses and ranges parsed, defaults filled in."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from node.config.market_terms import market_terms
from node.config.settings import (
    BackboneConfig,
    ConfigError,
    DeviceConfig,
    EngineConfig,
    HomeConfig,
    HttpConfig,
    ModelRef,
    NodeConfig,
    RelayConfig,
    ServeConfig,
    SwarmConfig,
    resolve_path,
)
from node.config.shape import (
    BackboneTable,
    DeviceTable,
    HomeTable,
    HttpTable,
    RelayTable,
    ServeTable,
    SwarmTable,
    read_shape,
)
from node.device.schedule import Schedule, Window
from node.ranges import Ranges
from node.sizes import MemoryBudget
from routing.control_address import ControlAddress
from routing.errors import LocalError
from routing.identity import PeerId
from routing.membership import Swarm
from routing.multiaddr import ListenAddress, PeerAddress, parse_tcp_listen

DEFAULT_HTTP = ("127.0.0.1", 4190)
MAX_CONFIG_BYTES = 1 << 20  # MAX_PEERS addresses are 120 KB
Parsed = TypeVar("Parsed")


def default_store(environ: Mapping[str, str]) -> Path:
    """$PANAL_STORE; else ~/.panal, if an earlier panal has begun one; else where the system wants such data.

    On Linux that is $XDG_DATA_HOME/panal, or ~/.local/share/panal.
    """
    if named := environ.get("PANAL_STORE"):
        return resolve_path(named, Path.cwd())
    before = resolve_path("~/.panal", Path.cwd())
    if before.is_dir():
        return before
    from platformdirs import user_data_path

    return user_data_path("panal", appauthor=False)


def load_config(path: Path, environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """Read and check a config file.

    Raises:
        ConfigError: the file cannot be read, or is not a config.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file; panal init writes one") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: over {MAX_CONFIG_BYTES} bytes, too large for a config")
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); is it a config?") from None
    return parse_config(text, path, default_store(environ))


def parse_config(text: str, path: Path, store: Path) -> NodeConfig:
    """Check a config's text. Opens no file.

    Args:
        text: TOML.
        path: where it stands, for messages; relative paths in it start from its folder.
        store: the store if the text names none.

    Raises:
        ConfigError: names path, key, and what is allowed.
    """
    try:
        shape = read_shape(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    check = _Check(path)
    if shape.name is not None and not shape.name.isprintable():
        raise ConfigError(f"{path}: name: {shape.name!r} holds characters that cannot be printed")
    library = shape.engine.library
    folder = store if shape.store is None else check.path("store", shape.store)
    return NodeConfig(
        path=path,
        name=shape.name,
        store=folder,
        identity_path=(
            folder / "identity.key" if shape.identity is None else check.path("identity", shape.identity)
        ),
        swarm=check.swarm(shape.swarm),
        relay=check.relay(shape.relay, control_off=shape.swarm.control == "off"),
        engine=EngineConfig(
            library=None if library is None else check.path("engine.library", library),
            threads=shape.engine.threads or os.cpu_count() or 1,
        ),
        http=check.http(shape.http),
        backbone=None if shape.backbone is None else check.backbone(shape.backbone),
        serve=tuple(check.serve(f"serve[{i}]", table) for i, table in enumerate(shape.serve)),
        device=check.device(shape.device),
        market=market_terms(path, shape.market),
    )


class _Check:
    """Turns the file's texts into what they mean; an error gets file and key put in front."""

    def __init__(self, path: Path) -> None:
        self._file = path
        self._base = path.absolute().parent

    def _parse(self, key: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
        try:
            return parse(text)
        except LocalError as error:
            raise ConfigError(f"{self._file}: {key}: {error}") from None

    def path(self, key: str, text: str) -> Path:
        return self._parse(key, lambda value: resolve_path(value, self._base), text)

    def model(self, key: str, text: str) -> ModelRef:
        return self._parse(key, lambda value: ModelRef.parse(value, self._base), text)

    def swarm(self, table: SwarmTable) -> SwarmConfig:
        peers: list[PeerAddress] = []
        control_peers: list[ControlAddress] = []
        numbers: dict[tuple[PeerId, bool], int] = {}
        for i, text in enumerate(table.peers):
            key = f"swarm.peers[{i}]"
            over_tcp = "/tcp/" in text
            peer: PeerAddress | ControlAddress
            if over_tcp:
                peer = self._parse(key, ControlAddress.parse, text)
            else:
                peer = self._parse(key, PeerAddress.parse, text)
            if peer.peer_id is None:
                raise ConfigError(
                    f"{self._file}: {key}: {text} does not say who must answer; add /p2p/PEER-ID"
                )
            if peer in peers or peer in control_peers:
                raise ConfigError(f"{self._file}: {key}: {text} is named twice")
            if not over_tcp and (peer.peer_id, over_tcp) in numbers:
                raise ConfigError(
                    f"{self._file}: {key}: names the same node as "
                    f"swarm.peers[{numbers[peer.peer_id, over_tcp]}]; every node needs an identity of its "
                    "own (panal init --dir gives one)"
                )
            numbers[peer.peer_id, over_tcp] = i
            if isinstance(peer, PeerAddress):
                peers.append(peer)
            else:
                control_peers.append(peer)
        listen = self._parse("swarm.listen", ListenAddress.parse, table.listen)
        key_bytes = None if table.key is None else self._parse("swarm.key", _swarm_key, table.key)
        swarm = self._parse("swarm.name", lambda name: Swarm(name, key_bytes), table.name)
        if swarm.is_private != (table.member is not None):
            said, lacks = ("key", "member") if swarm.is_private else ("member", "key")
            raise ConfigError(
                f"{self._file}: swarm.{said} without swarm.{lacks}: a private swarm needs both; "
                "panal swarm join writes them"
            )
        return SwarmConfig(
            listen=listen,
            peers=tuple(peers),
            control_peers=tuple(control_peers),
            backend=table.backend,
            swarm=swarm,
            member=None if table.member is None else self.path("swarm.member", table.member),
            lan=table.lan,
            control=self._control(table.control, listen),
            advert_seconds=table.advert_seconds,
            share_cells=table.share_cells,
            share_rate=table.share_rate,
            control_is_chosen=table.control is not None,
        )

    def _control(self, text: str | None, listen: ListenAddress) -> tuple[str, int] | None:
        if text == "off":
            return None
        if text is None:
            return listen.host, listen.port
        return self._tcp("swarm.control", text)

    def _tcp(self, key: str, text: str) -> tuple[str, int]:
        return self._parse(key, parse_tcp_listen, text)

    def relay(self, table: RelayTable, *, control_off: bool) -> RelayConfig:
        def path(key: str, text: str | None) -> Path | None:
            return None if text is None else self.path(f"relay.{key}", text)

        if table.serve and control_off:
            raise ConfigError(
                f'{self._file}: relay.serve: a relay takes TCP connections, and swarm.control is "off": '
                "leave that line out, or this one"
            )
        if table.websocket is not None and not table.serve:
            raise ConfigError(
                f"{self._file}: relay.websocket is the door of a relay: add serve = true, or leave it out"
            )
        if table.certificate is not None and table.websocket is None:
            raise ConfigError(
                f"{self._file}: relay.certificate is for relay.websocket, which is missing: add it, "
                "or leave the certificate out"
            )
        for i, text in enumerate(table.trusted_proxies):
            self._parse(f"relay.trusted_proxies[{i}]", _network, text)
        if (table.certificate is None) != (table.certificate_key is None):
            raise ConfigError(
                f"{self._file}: relay.certificate and relay.certificate_key belong together: give both"
            )
        return RelayConfig(
            table=table,
            websocket=None if table.websocket is None else self._tcp("relay.websocket", table.websocket),
            certificate=path("certificate", table.certificate),
            certificate_key=path("certificate_key", table.certificate_key),
            ca=path("ca", table.ca),
            announce=tuple(
                self._parse(f"relay.announce[{i}]", ControlAddress.parse, text)
                for i, text in enumerate(table.announce)
            ),
        )

    def http(self, table: HttpTable) -> HttpConfig:
        listen: tuple[str, int] | None = DEFAULT_HTTP
        if table.listen == "off":
            listen = None
        elif table.listen is not None:
            listen = self._parse("http.listen", parse_http_listen, table.listen)
        if listen is not None and not ipaddress.ip_address(listen[0]).is_loopback and table.key_file is None:
            raise ConfigError(
                f"{self._file}: http.listen: beyond this machine everybody could use it: name a "
                "http.key_file, whose key every request must show then, or listen at 127.0.0.1"
            )
        for i, host in enumerate(table.hosts):
            self._parse(f"http.hosts[{i}]", _host_name, host)
        return HttpConfig(
            listen=listen,
            is_chosen=table.listen is not None,
            hosts=table.hosts,
            key_file=None if table.key_file is None else self.path("http.key_file", table.key_file),
        )

    def backbone(self, table: BackboneTable) -> BackboneConfig:
        if table.home_memory is not None and table.home:
            raise ConfigError(
                f"{self._file}: backbone.home_memory lets the plan choose cells, [[backbone.home]] names "
                "them: keep one of the two"
            )
        if table.draft == "model" and table.draft_model is None:
            raise ConfigError(
                f'{self._file}: backbone.draft is "model", but backbone.draft_model is missing: name a small '
                "model there, or choose another draft"
            )
        return BackboneConfig(
            model=self.model("backbone.model", table.model),
            combine=table.combine,
            wire=table.wire,
            context=table.context,
            ubatch=table.ubatch,
            deadline=table.deadline,
            draft=table.draft,
            draft_model=(
                None if table.draft_model is None else self.model("backbone.draft_model", table.draft_model)
            ),
            exact=table.exact,
            home_memory=(
                None
                if table.home_memory is None
                else self._parse("backbone.home_memory", MemoryBudget.parse, table.home_memory)
            ),
            home=tuple(self._home(f"backbone.home[{i}]", each) for i, each in enumerate(table.home)),
            sessions=table.sessions,
            queue=table.queue,
            prefix_cache=table.prefix_cache,
        )

    def _home(self, key: str, table: HomeTable) -> HomeConfig:
        experts = table.experts
        return HomeConfig(
            layers=self._parse(f"{key}.layers", Ranges.parse, table.layers),
            experts=None if experts is None else self._parse(f"{key}.experts", Ranges.parse, experts),
        )

    def serve(self, key: str, table: ServeTable) -> ServeConfig:
        layers, experts, memory = table.layers, table.experts, table.memory
        if memory is not None and (layers is not None or experts is not None):
            raise ConfigError(
                f"{self._file}: {key}.memory lets the node choose what it serves, "
                f"{'layers' if layers is not None else 'experts'} names it: keep one of the two"
            )
        return ServeConfig(
            model=self.model(f"{key}.model", table.model),
            layers=None if layers is None else self._parse(f"{key}.layers", Ranges.parse, layers),
            experts=None if experts is None else self._parse(f"{key}.experts", Ranges.parse, experts),
            memory=None if memory is None else self._parse(f"{key}.memory", MemoryBudget.parse, memory),
        )

    def device(self, table: DeviceTable) -> DeviceConfig:
        windows = [
            self._parse(f"device.schedule[{i}]", Window.parse, text) for i, text in enumerate(table.schedule)
        ]
        return DeviceConfig(
            schedule=Schedule(tuple(windows), table.schedule),
            idle_only=table.idle_only,
        )


def _swarm_key(text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-f]{64}", text, re.ASCII):
        raise ConfigError(
            f"{text[:80]!r} is not a swarm's public key: 64 hex digits, as panal swarm join writes"
        )
    return bytes.fromhex(text)


def parse_http_listen(text: str) -> tuple[str, int]:
    """ "127.0.0.1:4190" or "[::1]:4190".

    Raises:
        ConfigError: anything else.
    """
    match = re.fullmatch(
        r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<v4>[0-9.]+)):(?P<port>[0-9]{1,5})", text, re.ASCII
    )
    if match is not None and int(match["port"]) < 1 << 16:
        try:
            return str(ipaddress.ip_address(match["v6"] or match["v4"])), int(match["port"])
        except ValueError:
            pass
    raise ConfigError(f'{text[:80]!r} is no address and port, as 127.0.0.1:4190 or [::1]:4190; or "off"')


def _host_name(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})", text, re.ASCII):
        raise ConfigError(f"{text[:80]!r} is not a host's name, as my.lan; without port and http://")


def _network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ConfigError(f"{text[:80]!r} is no address and no network, as 127.0.0.1 or 10.0.0.0/8") from None
