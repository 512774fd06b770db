"""The commented config that `panal init` writes: what was asked for in force, the rest as comments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from node.config.shape import DEFAULT_LISTEN, ServeTable
from routing.errors import LocalError

_HEAD = "# A panal node. Relative paths start from this file's folder.\n"

_SWARM_NOTE = """\
# The UDP socket of `panal run`; TCP at the same port is the control plane. Where experts are served, open
# both in the firewall if you can: without, peers punch through or use a relay. Asking needs none.
"""

_PEERS_NOTE = """\
# Nodes to begin with (`panal run` prints its address), or any libp2p relay or DHT server (/ip4/.../tcp/...).
# One is enough, and on one network none is needed.
"""

_SWARM_REST = """\
# lan = true           # look for nodes on this network, and be found there
# The open swarm, unless `panal swarm join` writes name, key and member of a private one here.
# control = "/ip4/0.0.0.0/tcp/4190"    # or "off": no DHT, no relays; default: the port of `listen`
# advert_seconds = 600 # how long what this node says of itself lives
# share_cells = true   # peers may copy what this node serves, to compute it themselves
# share_rate = 16777216    # bytes a second for that at most; it yields to everything else on the line anyway
"""

_RELAY = """\
# For peers that cannot be reached: pass on what they send each other, without being able to read it.
# [relay]
# serve = true         # be a relay; needs an address that others can reach over TCP
# use = true           # false: never go through one
# websocket = "/ip4/127.0.0.1/tcp/8080"    # also for networks that let out only HTTPS; behind nginx or a CDN
# trusted_proxies = ["127.0.0.1"]          # whose X-Forwarded-For is believed
# announce = ["/dns4/relay.example.org/tcp/443/tls/ws"]    # where others reach it
# certificate = "fullchain.pem"            # a WebSocket listener that stands alone; with certificate_key
# certificate_key = "key.pem"
# ca = "ca.pem"                            # who signed the relays' certificates, if the system does not know
# reservations = 128   # peers reachable through this node; reservations_per_ip = 8
# circuits = 128       # at once; circuit_seconds, circuit_bytes, circuit_bytes_per_second, bytes_per_second
"""

_ENGINE = """\
[engine]
{threads}
# library = "/path/libllama.so"   # another llama.cpp build of the same version
"""

_HTTP = """\
# The status page, its JSON and the OpenAI-compatible API; for this machine alone, unless you say otherwise.
# [http]
# listen = "127.0.0.1:4190"    # default: the first free port from 4190 on; "off": none
# hosts = ["my.lan"]           # further names that it answers to
# key_file = "http.key"        # the key that every request must show; needed to listen beyond this machine
"""

_BACKBONE_NOTE = """\
# The model whose trunk runs here: `panal run` answers with it, so do panal generate and panal chat.
"""

_BACKBONE_REST = """\
# combine = "rows"    # "rows": the same bytes as one machine; "sum", "stable": less traffic
# wire = "f32"        # or "f16", "int8": fewer bytes, other last bits; "auto": what passed verify
# context = 4096      # tokens; default: what the model was trained with, at most 4096
# ubatch = 512        # tokens computed at once
# deadline = 30.0     # seconds a call to an expert server may take
# draft = "auto"      # who guesses tokens ahead, to save trips: "self", "ngram", "model", "off", or "auto"
# draft_model = "small.gguf"   # a small whole model with the same vocabulary, to guess with
# exact = true        # guessing changes no token (rows, stable); false: less computing, rarely other tokens
# home_memory = "4 GiB"    # or "50%": experts computed here, chosen to save trips (panal home plan measures)
#   (or name them in [[backbone.home]] tables: layers, and experts if not all of these layers)
# sessions = 8        # answers of the API under way together; each has a KV cache of its own
# queue = 64          # requests that may wait for that
# prefix_cache = true # what a prompt has in common with earlier ones is not computed again
"""

_SERVE_NOTE = """\
# What this node computes for others: a GGUF file, a slice file, or a model id of the store.
"""

_SERVE_REST = """\
# layers = "0-15"     # default: all that the file holds; "0-3,8" is possible
# experts = "0-31"    # default: all that the file holds
#   (or the key memory, as "6 GiB", instead of both: the node chooses what the swarm lacks most)
"""

_DEVICE = """\
# When this device serves; it stays its owner's. `panal pause` and `panal resume` work at any time.
# [device]
# schedule = ["mon-fri 22:00-07:00", "sat-sun 00:00-24:00"]    # by the clock of this device; default: always
# idle_only = true    # only while nobody else uses it: other programs, keyboard and mouse, or on battery
"""

_MARKET = """\
# What computing for others is worth. Credits are owed between two nodes, by receipts that both sign; a token
# of a model the size of Qwen3-30B-A3B costs about one. Without this table nothing is asked and nothing paid.
# [market]
# mode = "scarcity"    # prices follow what the swarm lacks; "fixed": always `price`; "free": default
# price = 100          # per cent of a cell's base price, for "fixed"
# floor = 25           # the least and the most that "scarcity" asks, likewise
# cap = 1600
# prefer = "fast"      # among servers of the same: the nearest; "cheap": the cheapest; or "balanced":
# second = 10.0        # which takes a second of waiting to be worth so many credits
# budget_answer = 500.0    # an answer ends when it has cost so many credits; default: no end
# budget_day = 10000.0     # and none begins on a day (UTC) that has cost so many
# credit_line = 1000.0     # what a peer may owe this node at most
# newcomers = 200.0    # what all peers without a history may come to owe in a day, together
# audit = 0.05         # share of calls that are computed once more elsewhere, to find who lies
# uplink = "20Mbit"    # what this device's line sends a second; default: that is no limit
# vouch = true         # tell peers that have signed receipts with this node whom it paid last, and how much
"""


def render_config(
    *,
    name: str | None = None,
    store: str | None = None,
    identity: str | None = None,
    listen: str = DEFAULT_LISTEN,
    peers: Sequence[str] = (),
    threads: int | None = None,
    model: str | None = None,
    context: int | None = None,
    home_memory: str | None = None,
    serve: Sequence[ServeTable] = (),
    relay: bool = False,
    http: str | None = None,
    idle_only: bool = False,
    schedule: Sequence[str] = (),
) -> str:
    """A config as TOML text. Values are only quoted; `parse_config` is what checks them.

    Args:
        name, store, identity, listen, peers, threads: as in the file.
        model, context, home_memory: the backbone's; no model leaves the table as a comment.
        serve: the [[serve]] tables; none leaves an example as a comment.
        relay: whether the node relays for others.
        http: where the page and the API are, or "off"; None leaves the table as a comment.
        idle_only, schedule: as in the file.

    Raises:
        LocalError: a value cannot be written as UTF-8.
    """
    parts = [
        _HEAD
        + (f"name = {_quote(name)}\n" if name is not None else '# name = "kitchen"\n')
        + (
            f"store = {_quote(store)}\n"
            if store is not None
            else '# store = "store"    # default: ~/.panal if it is there, else ~/.local/share/panal\n'
        )
        + (
            f"identity = {_quote(identity)}\n"
            if identity is not None
            else '# identity = "identity.key"    # default: in the store; one for each node\n'
        ),
        "[swarm]\n"
        + _SWARM_NOTE
        + f"listen = {_quote(listen)}\n"
        + _PEERS_NOTE
        + _peers(peers)
        + '# backend = "qh3"    # or "aioquic": slower, for lossy lines\n'
        + _SWARM_REST,
        _RELAY.replace("# [relay]\n# serve = true         #", "[relay]\nserve = true           #")
        if relay
        else _RELAY,
        _ENGINE.format(
            threads="# threads = 2                     # default: one for each core"
            if threads is None
            else f"threads = {threads}"
        ),
        _HTTP
        if http is None
        else _HTTP.replace('# [http]\n# listen = "127.0.0.1:4190"', f"[http]\nlisten = {_quote(http)}"),
    ]
    if model is None:
        parts.append(_BACKBONE_NOTE + '# [backbone]\n# model = "model.gguf"\n' + _BACKBONE_REST)
    else:
        rest = (
            _BACKBONE_REST
            if context is None
            else re.sub(r"# context = 4096 +#.*", f"context = {context}      # tokens", _BACKBONE_REST)
        )
        if home_memory is not None:
            rest = rest.replace('# home_memory = "4 GiB"', f"home_memory = {_quote(home_memory)}", 1)
        parts.append(_BACKBONE_NOTE + f"[backbone]\nmodel = {_quote(model)}\n" + rest)
    if not serve:
        parts.append(_SERVE_NOTE + '# [[serve]]\n# model = "model.gguf"\n' + _SERVE_REST)
    for i, table in enumerate(serve):
        lines = [f"[[serve]]\nmodel = {_quote(table.model)}\n"]
        if table.layers is not None:
            lines.append(f"layers = {_quote(table.layers)}\n")
        if table.experts is not None:
            lines.append(f"experts = {_quote(table.experts)}\n")
        if table.memory is not None:
            lines.append(f"memory = {_quote(table.memory)}    # what to serve within it the node chooses\n")
        parts.append((_SERVE_NOTE if i == 0 else "") + "".join(lines))
    parts.append(_device(idle_only, schedule))
    parts.append(_MARKET)
    return "\n".join(parts)


def _device(idle_only: bool, schedule: Sequence[str]) -> str:
    text = _DEVICE
    if idle_only or schedule:
        text = text.replace("# [device]", "[device]")
    if idle_only:
        text = text.replace("# idle_only", "idle_only")
    if schedule:
        windows = ", ".join(_quote(window) for window in schedule)
        text = re.sub(r"# schedule = .*?]", lambda _: f"schedule = [{windows}]", text)
    return text


def _peers(peers: Sequence[str]) -> str:
    if not peers:
        return "peers = []\n"
    return "peers = [\n" + "".join(f"    {_quote(peer)},\n" for peer in peers) + "]\n"


def _quote(text: str) -> str:
    """A TOML basic string: JSON's escapes are all TOML's too, but TOML also wants DEL escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LocalError(f"{text!r} is not UTF-8 and cannot stand in a config; rename it") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
