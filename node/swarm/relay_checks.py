"""The part of `panal netcheck` over TCP: who takes it, who is a node of this swarm, and who relays.

That somebody takes TCP proves little. A node of this swarm is one that QUIC, carried in that connection,
leads to; a relay is of use once it has granted a reservation.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import trio

from node.swarm.carrying import Carrying
from node.swarm.control import Control
from relay.circuit import CircuitRefused, RelayReservation
from relay.dial_ends import ADVICE, End, end_of
from relay.hop_wire import HOP_PROTOCOL, Limit, Status
from relay.netcheck import Bearing, Check, bearing_of
from relay.netcheck import Status as Verdict
from routing.control_address import ControlAddress
from routing.errors import LocalError, PeerError
from routing.multiaddr import PeerAddress
from routing.quic.carried import PROTOCOL_ID as DATAGRAMS
from routing.quic.connection import CLOSE_NORMAL

CONNECT_TIMEOUT = 8.0
"""Seconds for one address: TCP, TLS, WebSocket and Noise are some eight round trips."""

ANSWER_TIMEOUT = 5.0
"""Seconds for a ping, and for what the peer says of itself."""

PINGS = 3

MAX_CHECKED = 32
"""Addresses dialed; a config may name a thousand."""


@dataclass(frozen=True)
class Place:
    """An address to check.

    Attributes:
        guessed: nobody has said that somebody takes TCP there.
    """

    address: ControlAddress
    guessed: bool


def places(control_peers: Iterable[ControlAddress], peers: Iterable[PeerAddress]) -> list[Place]:
    """What to check: the configured addresses; for other peers the TCP port of the same number as UDP's."""
    named = list(dict.fromkeys(control_peers))
    known = {each.peer_id for each in named}
    guessed = dict.fromkeys(
        ControlAddress.of(each.host, each.port, each.peer_id)
        for each in peers
        if each.peer_id is not None and each.peer_id not in known
    )
    found = [Place(each, False) for each in named] + [Place(each, True) for each in guessed]
    return found[:MAX_CHECKED]


async def check_relays(control: Control, carrying: Carrying, where: Sequence[Place]) -> list[Check]:
    """Checks `TCP ...`, `relay ...` and for panal nodes `QUIC over TCP ...` for each address that is reached;
    one for each that is not.

    Guesses that prove wrong are left out.
    """
    found: dict[Place, list[Check]] = {}

    async def check(place: Place) -> None:
        found[place] = await _check(control, carrying, place)

    async with trio.open_nursery() as nursery:
        for place in where:
            nursery.start_soon(check, place)
    return [each for place in where for each in found[place]]


async def _check(control: Control, carrying: Carrying, place: Place) -> list[Check]:
    address = place.address
    kind = "TCP" if address.transport == "tcp" else "WebSocket"
    name = f"{kind} {address}"
    assert address.peer_id is not None
    try:
        await control.connect(address, timeout=CONNECT_TIMEOUT)
        took = [await control.host.ping(address.peer_id, timeout=ANSWER_TIMEOUT) for _ in range(PINGS)]
    except (PeerError, LocalError) as error:
        end = end_of(error)
        if place.guessed and end is not End.OTHER_PEER:
            return []
        reason = str(error).removeprefix(f"{address}: ")
        advice = ADVICE[end]
        if end is End.SILENCE:
            advice += "; where only HTTPS gets out, a relay's WebSocket on port 443 may"
        return [Check(name, Verdict.FAIL, reason, advice, bearing_of(end))]
    detail = f"round trip {statistics.median(took) * 1000:.0f} ms"
    info = None
    with trio.move_on_after(ANSWER_TIMEOUT):
        info = await control.host.wait_identified(address.peer_id)
    protocols = () if info is None else info.protocols
    found = [Check(name, Verdict.PASS, detail, bearing=Bearing.ANSWER)]
    if DATAGRAMS in protocols:
        found.append(await _check_carried(control, carrying, address, f"QUIC over {kind} {address}"))
    return [*found, await _check_reservation(control, address, relays=HOP_PROTOCOL in protocols)]


async def _check_carried(control: Control, carrying: Carrying, address: ControlAddress, name: str) -> Check:
    """Whether it is a node of this swarm, by the handshake that all nodes make."""
    assert address.peer_id is not None
    try:
        stream = await control.stream_to(address, DATAGRAMS, timeout=CONNECT_TIMEOUT)
        connection = await carrying.connect(address.peer_id, stream)
    except (PeerError, LocalError) as error:
        end = end_of(error)
        _, _, reason = str(error).rpartition(f"{address}: ")
        # it is there: TCP was answered
        advice = ADVICE[End.REFUSAL if end is End.SILENCE else end]
        return Check(name, Verdict.FAIL, reason, advice, bearing_of(end))
    connection.shut(CLOSE_NORMAL, "checked")
    return Check(name, Verdict.PASS, "a node of this swarm", bearing=Bearing.WAY_IN)


async def _check_reservation(control: Control, address: ControlAddress, *, relays: bool) -> Check:
    name = f"relay {address}"
    assert address.peer_id is not None
    if not relays:
        return Check(name, Verdict.SKIP, "it does not relay for others")
    try:
        await control.show_membership(address)
        detail = _granted(await control.client.reserve(address))
        return Check(name, Verdict.PASS, detail, bearing=Bearing.WAY_IN)
    except CircuitRefused as error:
        reason = str(error).removeprefix(f"relay {address} ")
        return Check(name, Verdict.FAIL, reason, _advice(error.status), Bearing.REFUSAL)
    except (PeerError, LocalError) as error:
        reason, advice = str(error).removeprefix(f"{address} "), "name another relay in [swarm] peers"
        return Check(name, Verdict.FAIL, reason, advice, Bearing.REFUSAL)


def _granted(reservation: RelayReservation) -> str:
    return f"grants a reservation, {_limits(reservation.limit)}"


def _limits(limit: Limit | None) -> str:
    if limit is None:
        return "without limits"
    named = []
    if limit.duration:
        named.append(_span(limit.duration))
    if limit.data:
        named.append(f"{_size(limit.data)} each way")
    return f"a circuit lasts for {' or '.join(named)}"


def _advice(status: int | None) -> str:
    if status == Status.RESERVATION_REFUSED:
        return (
            "it is full, or has enough of this network's address: try later, or name another relay "
            "in [swarm] peers"
        )
    if status == Status.PERMISSION_DENIED:
        return "it relays for others than this node: name another one, or join its swarm (panal swarm join)"
    return "name another relay in [swarm] peers"


def _span(seconds: int) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _size(count: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.3g} {unit}"
    return f"{count} bytes"
