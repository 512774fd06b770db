"""The config file as it is written: tables, keys, types, bounds, and the one line said about a mistake.

Nothing here looks at the machine: texts stay texts, paths are not resolved (`meaning` does both).
"""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.inspect import type_info

Backend = Literal["qh3", "aioquic"]
Combine = Literal["rows", "sum", "stable"]
Wire = Literal["auto", "f32", "f16", "int8"]
Draft = Literal["auto", "off", "self", "ngram", "model"]
MarketMode = Literal["free", "fixed", "scarcity"]
Prefer = Literal["fast", "cheap", "balanced"]

DEFAULT_LISTEN = "/ip4/0.0.0.0/udp/4190/quic-v1"
MAX_NAME_CHARS = 40  # a column of the status table
MAX_PEERS = 1024  # connections are kept warm to all of them: far past what one home line carries
MAX_SERVES = 1024  # slices of one device; 94 layers one by one still fit many times
MAX_WINDOWS = 64  # of a schedule: nine a day
MAX_THREADS = 512  # GGML_MAX_N_THREADS
MAX_CONTEXT = 1 << 20  # tokens; the longest context trained today, and KV memory ends long before
MAX_UBATCH = 8192  # tokens; 16 times llama.cpp's default, a dispatch of them is already tens of MB
MIN_DEADLINE, MAX_DEADLINE = 0.05, 600.0  # seconds: under the first no WAN answers, past it nobody waits
MIN_ADVERT, MAX_ADVERT = (
    10,
    3600,
)  # seconds: DHT operations take seconds, and a stale advert misleads for so long
MIN_SHARE_RATE = 16 << 10  # bytes a second: a piece of node.serve.cell_server; less is share_cells = false
DEFAULT_SHARE_RATE = 16 << 20  # bytes a second: a fifth of a core, and more than most home lines send
MAX_SESSIONS = 64  # each has a KV cache of `context` tokens, and a pass takes 16 of them at most
MAX_QUEUE = 4096  # requests waiting: each is a connection and a prompt in memory
MAX_HTTP_HOSTS = 64  # names of one machine
MAX_RELAY_COUNT = 65536  # reservations, circuits: each costs a connection's memory
MAX_PROXIES = 64  # networks of one CDN
MAX_PERCENT = 100_000  # of the base price: a thousand times; past it nobody buys
MAX_CAP_RATIO = 1_024  # market.scarcity.MAX_RATIO, said without what that imports
MAX_CREDITS = 1e9  # of a limit: in micro-credits it fits 64 bits with room
MAX_SECOND_CREDITS = 1e6  # a second of waiting; past it "balanced" is "fast"

Text = Annotated[str, Meta(min_length=1, max_length=4096)]  # 4096: PATH_MAX
Count = Annotated[int, Meta(ge=1, le=MAX_RELAY_COUNT)]
Percent = Annotated[int, Meta(ge=0, le=MAX_PERCENT)]
Budget = Annotated[float, Meta(ge=0.000001, le=MAX_CREDITS)]
Credits = Annotated[float, Meta(ge=0, le=MAX_CREDITS)]


class SwarmTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[swarm]"""

    listen: Text = DEFAULT_LISTEN
    peers: Annotated[tuple[Text, ...], Meta(max_length=MAX_PEERS)] = ()
    backend: Backend = "qh3"
    name: Text = "panal"
    key: Text | None = None
    member: Text | None = None
    lan: bool = True
    control: Text | None = None
    advert_seconds: Annotated[int, Meta(ge=MIN_ADVERT, le=MAX_ADVERT)] = 600
    share_cells: bool = True
    share_rate: Annotated[int, Meta(ge=MIN_SHARE_RATE)] = DEFAULT_SHARE_RATE


class RelayTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[relay]"""

    serve: bool = False
    use: bool = True
    websocket: Text | None = None
    certificate: Text | None = None
    certificate_key: Text | None = None
    trusted_proxies: Annotated[tuple[Text, ...], Meta(max_length=MAX_PROXIES)] = ()
    announce: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    ca: Text | None = None
    reservations: Count = 128
    reservations_per_ip: Count = 8
    circuits: Count = 128
    circuit_seconds: Annotated[int, Meta(ge=0)] = 6 * 3600
    circuit_bytes: Annotated[int, Meta(ge=0)] = 16 << 30
    circuit_bytes_per_second: Annotated[int, Meta(ge=1024)] = 8 << 20
    bytes_per_second: Annotated[int, Meta(ge=1024)] = 16 << 20


class EngineTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[engine]"""

    library: Text | None = None
    threads: Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None = None


class HomeTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One [[backbone.home]]"""

    layers: Text
    experts: Text | None = None


class BackboneTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[backbone]"""

    model: Text
    combine: Combine = "rows"
    wire: Wire = "f32"
    context: Annotated[int, Meta(ge=1, le=MAX_CONTEXT)] | None = None
    ubatch: Annotated[int, Meta(ge=1, le=MAX_UBATCH)] = 512
    deadline: Annotated[float, Meta(ge=MIN_DEADLINE, le=MAX_DEADLINE)] = 30.0
    draft: Draft = "auto"
    draft_model: Text | None = None
    exact: bool = True
    home_memory: Text | None = None
    home: Annotated[tuple[HomeTable, ...], Meta(max_length=MAX_SERVES)] = ()
    sessions: Annotated[int, Meta(ge=1, le=MAX_SESSIONS)] = 8
    queue: Annotated[int, Meta(ge=0, le=MAX_QUEUE)] = 64
    prefix_cache: bool = True


class HttpTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[http]"""

    listen: Text | None = None
    hosts: Annotated[tuple[Text, ...], Meta(max_length=MAX_HTTP_HOSTS)] = ()
    key_file: Text | None = None


class ServeTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One [[serve]]"""

    model: Text
    layers: Text | None = None
    experts: Text | None = None
    memory: Text | None = None


class DeviceTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[device]"""

    schedule: Annotated[tuple[Text, ...], Meta(max_length=MAX_WINDOWS)] = ()
    idle_only: bool = False


class MarketTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[market]"""

    mode: MarketMode = "free"
    price: Annotated[int, Meta(ge=1, le=MAX_PERCENT)] = 100
    floor: Annotated[int, Meta(ge=1, le=MAX_PERCENT)] = 25
    cap: Percent = 1600
    prefer: Prefer = "fast"
    budget_answer: Budget | None = None
    budget_day: Budget | None = None
    credit_line: Credits = 1000.0
    newcomers: Credits = 200.0
    second: Annotated[float, Meta(ge=0, le=MAX_SECOND_CREDITS)] = 10.0
    audit: Annotated[float, Meta(ge=0, le=1)] = 0.05
    vouch: bool = True
    uplink: Text | None = None


class ConfigShape(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    store: Text | None = None
    identity: Text | None = None
    swarm: SwarmTable = field(default_factory=SwarmTable)
    relay: RelayTable = field(default_factory=RelayTable)
    engine: EngineTable = field(default_factory=EngineTable)
    http: HttpTable = field(default_factory=HttpTable)
    backbone: BackboneTable | None = None
    serve: Annotated[tuple[ServeTable, ...], Meta(max_length=MAX_SERVES)] = ()
    device: DeviceTable = field(default_factory=DeviceTable)
    market: MarketTable = field(default_factory=MarketTable)


def read_shape(text: str) -> ConfigShape:
    """Check a config's text against the shape.

    Raises:
        ValueError: one line with the key path, what is wrong and what is allowed.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise ValueError("not a config: lists or tables are nested too deep") from None
    try:
        return msgspec.convert(data, ConfigShape)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error))) from None


# msgspec's messages: "<what> - at `$.serve[0].layers`", without the tail for the file as a whole
_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_KINDS = {
    "object": "a table",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def _explain(message: str) -> str:
    match = _MESSAGE.fullmatch(message)
    if match is None:  # the pattern takes any text; this keeps the type checker content
        return message
    what, path = match["what"], match["path"] or ""
    at = f"{path}: " if path else ""
    if unknown := _UNKNOWN.fullmatch(what):
        allowed = [entry.encode_name for entry in _type_at(path).fields]
        close = get_close_matches(unknown[1], allowed, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return f"{at}unknown key {unknown[1]!r}{hint}; allowed here: {', '.join(allowed)}"
    if missing := _MISSING.fullmatch(what):
        return f"{at}the key {missing[1]} is missing"
    if what.startswith("Invalid enum value"):
        choices = ", ".join(f'"{value}"' for value in _type_at(path).values)
        return f"{at}{what.removeprefix('Invalid enum value ')} is not one of {choices}"
    return at + re.sub(r"`([^`]*)`", lambda kinds: _spell(kinds[1]), what).replace("Expected", "expected", 1)


def _spell(kinds: str) -> str:
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds.split(" | ") if kind != "null")


def _type_at(path: str) -> Any:
    """msgspec's description of what belongs at a path such as "serve[0].layers"."""
    found: Any = type_info(ConfigShape)
    for key, index in re.findall(r"(\w+)|(\[\d+\])", path):
        if index:
            found = found.item_type
        else:
            found = next(entry.type for entry in found.fields if entry.encode_name == key)
        for alternative in getattr(found, "types", ()):  # `X | None`
            if not isinstance(alternative, msgspec.inspect.NoneType):
                found = alternative
    return found
