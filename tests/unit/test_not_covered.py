"""The line that says which experts nobody holds, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from node.decode.not_covered import PENDING, Asked, describe, name_layers
from routing.identity import Identity
from routing.not_reached import short

PEER = Identity.generate().peer_id
OTHER = Identity.generate().peer_id
QUIC = "/ip4/198.18.0.7/udp/4190/quic-v1"
TCP = "/ip4/198.18.0.7/tcp/4190"
START = "start them or add their address"


def line(
    failures: Mapping[str, str] | None = None,
    strangers: Mapping[str, Sequence[str]] | None = None,
    *,
    lan: bool = True,
    configured: bool = True,
) -> str:
    told = describe(
        {0: [4, 5], 1: [4, 5]}, Asked(failures or {}, strangers or {}, "ab" * 32, lan, configured)
    )
    assert "\n" not in told
    beginning = "no connected peer holds layers 0-1: experts 4-5"
    assert told.startswith(beginning)
    return told.removeprefix(beginning)


def test_equal_layers_are_told_together() -> None:
    assert name_layers({0: [1], 1: [1], 2: [1, 2], 4: [1, 2]}) == (
        "layers 0-1: expert 1; layer 2: experts 1-2; layer 4: experts 1-2"
    )
    many = name_layers({layer: [layer] for layer in range(6)})
    assert many.startswith("layer 0: expert 0; ") and many.endswith("layer 3: expert 3 and 2 more layers")


def test_a_peer_is_named_once_and_short() -> None:
    reason = f"dialing {QUIC}/p2p/{PEER}: no answer within 5 s; {TCP}/p2p/{PEER}: connection refused"
    assert line({f"{QUIC}/p2p/{PEER}": reason}) == (
        f" ({QUIC} (…{PEER[-8:]}): no answer within 5 s; {TCP}: connection refused): {START}"
    )
    assert line({PEER: f"{PEER}: no way to it is known"}) == (
        f" (…{PEER[-8:]}: no way to it is known): {START}"
    )
    assert short(f"{PEER} and {OTHER}") == f"…{PEER[-8:]} and …{OTHER[-8:]}"


def test_a_dial_that_is_still_open_is_named() -> None:
    assert line({f"{QUIC}/p2p/{PEER}": PENDING}) == f" ({QUIC} (…{PEER[-8:]}): not answered yet): {START}"


def test_a_peer_of_another_swarm_is_not_to_be_started() -> None:
    reason = (
        f"{PEER} belongs to another swarm (0123456789abcdef...); "
        f"dialing {PEER} over TCP to 198.18.0.7: {PEER} belongs to another swarm (0123456789abcdef...)"
    )
    told = line({f"{QUIC}/p2p/{PEER}": reason})
    assert told.count("another swarm") == 1 and told.count(PEER[-8:]) == 1
    assert "`panal swarm show`" in told and "`panal swarm join`" in told and START not in told
    told = line({PEER: f"{PEER} is not a member of this swarm: it has no member certificate"})
    assert "`panal swarm join`" in told


def test_a_wrong_id_is_to_be_copied_again() -> None:
    reason = f"{OTHER} answered instead of {PEER}; asked for {PEER}, {OTHER} answered"
    assert line({f"{QUIC}/p2p/{PEER}": reason}) == (
        f" ({QUIC}: …{OTHER[-8:]} answered instead of …{PEER[-8:]}): "
        "copy its address again, as `panal run` prints it there"
    )


def test_advice_for_each_kind_of_reason() -> None:
    told = line({PEER: f"{PEER} belongs to another swarm (01...)", OTHER: "no answer within 5 s"})
    assert "`panal swarm join`" in told and told.endswith(START)


def test_nobody_is_known() -> None:
    told = line(configured=False)
    assert "[swarm] peers is empty and no node was heard on this network" in told and START not in told
    assert "LAN discovery is off" in line(configured=False, lan=False)
    assert line() == f": {START}"


def test_what_connected_peers_serve_instead() -> None:
    told = line(strangers={PEER: ["serves olmoe 0123"], OTHER: []})
    assert told == (
        f" (…{PEER[-8:]} serves olmoe 0123, not abababababab; …{OTHER[-8:]} serves nothing): {START}"
    )
    told = line(strangers={PEER: ["does not speak f32 (wire)"]})
    assert told == f" (…{PEER[-8:]} does not speak f32 (wire)): {START}"


def test_of_thousands_some_are_named() -> None:
    failures = {f"/ip4/198.18.0.{n}/udp/4190/quic-v1": "no answer within 5 s" for n in range(200)}
    told = line(failures)
    assert told.count("no answer") == 8 and "and 192 more" in told
