"""Verdicts from evidence, what may be probed, and the bytes of `/panal/reach/1`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.contacts import CONTACT_SECONDS, MAX_CONTACTS, Contacts
from relay.rate import Rate
from relay.reach_wire import (
    COPIES,
    MAX_CONTACTED,
    MAX_MESSAGE_BYTES,
    MAX_PORTS,
    Declined,
    DialBack,
    DialedBack,
    Observe,
    Observed,
    Probe,
    Probed,
    ProbeFor,
    ProbeKind,
    ReachError,
    decode_answer,
    decode_probe,
    decode_request,
    encode,
    encode_probe,
    pack_host,
    probe_digest,
)
from relay.reachability import (
    EVIDENCE_SECONDS,
    MAX_EVIDENCE,
    Attempt,
    Dialed,
    Evidence,
    Filtering,
    Mapping,
    Reach,
    Reachability,
    Seen,
    Way,
    bounded,
    can_punch,
    judge,
)
from relay.targets import Scope, objection, plain_host, scope_of

OUTER = ("9.1.2.3", 4190)
INNER = ("192.168.1.10", 4190)
PEERS = {"P1": "8.8.1.1", "P2": "8.8.2.2", "P3": "8.8.3.3"}
NONCE = bytes(range(16))


def seen(peer: str, address: tuple[str, int] = OUTER, when: float = 0.0, **changes: object) -> Seen:
    local = changes.pop("local", INNER)
    host = changes.pop("host", PEERS.get(peer, "8.8.9.9"))
    assert isinstance(local, tuple) and isinstance(host, str)
    return Seen(peer, host, address, local, bool(changes.pop("dialed", True)), when)


def tried(
    asked: str, arrived: bool, way: Way = Way.STRANGER, when: float = 0.0, target: tuple[str, int] = OUTER
) -> Attempt:
    return Attempt(asked, way, "7.7.7.7", target, arrived, when)


def triple(verdict: Reachability) -> tuple[str, str, str]:
    return verdict.reach.value, verdict.mapping.value, verdict.filtering.value


TWO_SEE = (seen("P1"), seen("P2"))


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param((), ("unknown", "unknown", "unknown"), id="nothing"),
        pytest.param(TWO_SEE, ("unknown", "independent", "unknown"), id="seen, not tried"),
        pytest.param((seen("P1"),), ("unknown", "unknown", "unknown"), id="one peer says nothing of mapping"),
        pytest.param(
            (*TWO_SEE, tried("P1", True), tried("P2", True)),
            ("public", "independent", "none"),
            id="full cone",
        ),
        pytest.param(
            (
                seen("P1", local=OUTER),
                seen("P2", local=OUTER),
                tried("P1", True),
                tried("P2", True),
                tried("P1", True, Way.OTHER_PORT),
            ),
            ("public", "none", "none"),
            id="public",
        ),
        pytest.param(
            (
                *TWO_SEE,
                *(tried(peer, True, Way.OTHER_PORT) for peer in ("P1", "P2")),
                *(tried(peer, False) for peer in ("P1", "P2")),
            ),
            ("private", "independent", "address"),
            id="restricted cone",
        ),
        pytest.param(
            (
                *TWO_SEE,
                *(tried(peer, False, Way.OTHER_PORT) for peer in ("P1", "P2")),
                *(tried(peer, False) for peer in ("P1", "P2")),
            ),
            ("private", "independent", "port"),
            id="port-restricted cone",
        ),
        pytest.param(
            (*TWO_SEE, *(tried(peer, False, Way.OTHER_PORT) for peer in ("P1", "P2"))),
            ("private", "independent", "port"),
            id="who keeps out known addresses keeps out strangers",
        ),
        pytest.param(
            (*TWO_SEE, *(tried(peer, True, Way.OTHER_PORT) for peer in ("P1", "P2"))),
            ("unknown", "independent", "address"),
            id="no stranger to try",
        ),
        pytest.param(
            (
                seen("P1", (OUTER[0], 1111)),
                seen("P2", (OUTER[0], 2222)),
                *(tried(peer, False, way) for peer in ("P1", "P2") for way in (Way.OTHER_PORT, Way.STRANGER)),
            ),
            ("private", "dependent", "port"),
            id="symmetric",
        ),
        pytest.param(
            (
                seen("P1", local=OUTER),
                seen("P2", local=OUTER),
                *(tried(peer, False, way) for peer in ("P1", "P2") for way in (Way.OTHER_PORT, Way.STRANGER)),
            ),
            ("private", "none", "port"),
            id="firewall",
        ),
        pytest.param(
            (*TWO_SEE, tried("P1", True)), ("public", "independent", "none"), id="only one peer could try"
        ),
        pytest.param(
            (*TWO_SEE, tried("P1", True), tried("P2", False)),
            ("unknown", "independent", "none"),
            id="one of two",
        ),
        pytest.param(
            (*TWO_SEE, tried("P1", False)),
            ("unknown", "independent", "unknown"),
            id="one silence proves nothing",
        ),
        pytest.param(
            (*TWO_SEE, tried("P1", False), tried("P1", False)),
            ("private", "independent", "unknown"),
            id="one peer, twice silent",
        ),
        pytest.param(
            (*TWO_SEE, tried("P3", True, Way.UNINVITED)), ("public", "independent", "none"), id="uninvited"
        ),
    ],
)
def test_the_verdict_on(evidence: Sequence[Evidence], expected: tuple[str, str, str]) -> None:
    assert triple(judge(evidence, 1.0)) == expected


def test_one_lost_probe_does_not_flip_a_verdict_but_three_in_a_row_do() -> None:
    good = [*TWO_SEE, tried("P1", True), tried("P2", True)]
    assert judge([*good, tried("P1", False)], 1.0).reach is Reach.PUBLIC
    assert judge([*good, tried("P1", False), tried("P2", False)], 1.0).reach is Reach.PUBLIC
    lost = [*good, tried("P1", False), tried("P2", False), tried("P3", False)]
    assert judge(lost, 1.0).reach is Reach.PRIVATE
    assert judge([*lost, tried("P1", True)], 1.0).reach is Reach.PUBLIC


def test_another_address_opens_the_question_again() -> None:
    old = [*TWO_SEE, tried("P1", True), tried("P2", True)]
    moved = ("9.9.9.9", 4190)
    verdict = judge([*old, seen("P1", moved, 1.0), seen("P2", moved, 1.0)], 2.0)
    assert verdict.reach is Reach.UNKNOWN
    assert verdict.addresses == (moved,)


def test_evidence_ages() -> None:
    evidence = [*TWO_SEE, tried("P1", True), tried("P2", True)]
    assert judge(evidence, EVIDENCE_SECONDS - 1).reach is Reach.PUBLIC
    assert judge(evidence, EVIDENCE_SECONDS) == Reachability(
        reason="no peer has said where it sees this node"
    )


def test_peers_of_the_own_network_say_nothing_about_the_outside() -> None:
    lan = [seen(f"L{i}", INNER, host=f"192.168.1.{20 + i}") for i in range(3)]
    let_in = [tried(f"L{i}", True, Way.UNINVITED, target=INNER) for i in range(3)]
    kept_out = [tried("P1", False), tried("P1", False)]
    verdict = judge([*lan, *let_in, seen("P1"), *kept_out], 1.0)
    assert verdict.addresses == (OUTER,)
    assert verdict.reach is Reach.PRIVATE
    assert verdict.mapping is Mapping.UNKNOWN
    alone = judge([*lan, *let_in], 1.0)
    assert (alone.addresses, triple(alone)) == ((INNER,), ("public", "none", "none"))


def test_one_liar_among_three_changes_nothing() -> None:
    honest = [*TWO_SEE, tried("P1", True), tried("P2", True)]
    lies = [seen("P3", ("1.1.1.1", 53)), tried("P3", False), tried("P3", False)]
    assert triple(judge([*honest, *lies], 1.0)) == ("public", "independent", "none")
    assert judge([*lies, *honest], 1.0).addresses == (OUTER,)


def test_connections_that_peers_dialed_show_no_mapping() -> None:
    forwarded = [seen("P1", (OUTER[0], 999), dialed=False), seen("P2", (OUTER[0], 999), dialed=False)]
    assert judge(forwarded, 1.0).mapping is Mapping.UNKNOWN


def test_an_old_observation_is_not_compared_with_a_new_one() -> None:
    rebound = [seen("P1", (OUTER[0], 1111), 0.0), seen("P2", (OUTER[0], 2222), 400.0)]
    assert judge(rebound, 401.0).mapping is Mapping.UNKNOWN


def test_blocked_udp_takes_two_dials_without_an_answer() -> None:
    assert judge([Dialed("P1", False, 0.0)], 1.0).udp is None
    silent = [Dialed("P1", False, 0.0), Dialed("P2", False, 0.0)]
    verdict = judge(silent, 1.0)
    assert verdict.udp is False and "UDP is blocked, or" in verdict.reason
    assert judge([*silent, Dialed("P3", True, 0.0)], 1.0).udp is True


def test_where_strangers_came_in_is_named_first() -> None:
    other = (OUTER[0], 5000)
    verdict = judge([*TWO_SEE, seen("P3", other), tried("P3", True, target=other)], 1.0)
    assert verdict.addresses == (other, OUTER)
    assert verdict.port_kept is True


def test_evidence_is_bounded_and_each_peer_seen_once() -> None:
    many: list[Evidence] = [tried("P1", True, when=float(i)) for i in range(500)]
    kept = bounded([seen("P1"), *many, seen("P1", when=500.0)], 500.0)
    assert len(kept) == MAX_EVIDENCE
    assert [each for each in kept if isinstance(each, Seen)] == [seen("P1", when=500.0)]


@given(st.lists(st.booleans(), max_size=12))
def test_the_verdict_never_says_public_without_an_arrival(arrivals: list[bool]) -> None:
    evidence = [*TWO_SEE, *(tried(f"P{i % 3 + 1}", arrived) for i, arrived in enumerate(arrivals))]
    verdict = judge(evidence, 1.0)
    if verdict.reach is Reach.PUBLIC:
        assert any(arrivals[-3:])
    if verdict.reach is Reach.PRIVATE:
        assert not any(arrivals[-2:])
    assert len(verdict.evidence) == len(evidence)
    assert all("\n" not in line for line in verdict.evidence)


# --- who can punch ---

KINDS = {
    "public": (Reach.PUBLIC, Mapping.NONE, Filtering.NONE, True),
    "full": (Reach.PUBLIC, Mapping.INDEPENDENT, Filtering.NONE, True),
    "restricted": (Reach.PRIVATE, Mapping.INDEPENDENT, Filtering.ADDRESS, True),
    "cone": (Reach.PRIVATE, Mapping.INDEPENDENT, Filtering.PORT, True),
    "firewall": (Reach.PRIVATE, Mapping.NONE, Filtering.PORT, True),
    "symmetric": (Reach.PRIVATE, Mapping.DEPENDENT, Filtering.PORT, True),
    "unknown": (Reach.UNKNOWN, Mapping.UNKNOWN, Filtering.UNKNOWN, None),
    "blocked": (Reach.UNKNOWN, Mapping.UNKNOWN, Filtering.UNKNOWN, False),
}
CANNOT = {("symmetric", "symmetric"), ("symmetric", "cone"), ("symmetric", "firewall")}


@pytest.mark.parametrize("a", KINDS)
@pytest.mark.parametrize("b", KINDS)
def test_who_can_punch(a: str, b: str) -> None:
    possible, reason = can_punch(Reachability(*KINDS[a]), Reachability(*KINDS[b]))
    expected = "blocked" not in (a, b) and not {(a, b), (b, a)} & CANNOT
    assert possible is expected
    assert reason and "\n" not in reason


# --- what may be probed ---


@pytest.mark.parametrize(
    ("host", "scope"),
    [
        ("8.8.8.8", Scope.GLOBAL),
        ("2a00:1450::1", Scope.GLOBAL),
        ("::ffff:8.8.8.8", Scope.GLOBAL),
        ("192.168.0.1", Scope.PRIVATE),
        ("100.64.1.1", Scope.PRIVATE),
        ("198.18.0.1", Scope.PRIVATE),
        ("fd00::1", Scope.PRIVATE),
        ("127.0.0.9", Scope.LOOPBACK),
        ("::1", Scope.LOOPBACK),
        ("169.254.1.1", Scope.LINK),
        ("fe80::1", Scope.LINK),
        ("224.0.0.1", None),
        ("ff02::1", None),
        ("255.255.255.255", None),
        ("240.0.0.1", None),
        ("0.0.0.0", None),
        ("::", None),
        ("fe80::1%eth0", None),
        ("relay 12D3", None),
        ("", None),
    ],
)
def test_scopes(host: str, scope: Scope | None) -> None:
    assert scope_of(host) is scope


@pytest.mark.parametrize(
    ("target", "asker", "allowed"),
    [
        (("8.8.8.8", 4190), "9.9.9.9", True),
        (("8.8.8.8", 4190), "192.168.0.7", True),
        (("8.8.8.8", 443), "9.9.9.9", True),
        (("8.8.8.8", 53), "9.9.9.9", False),
        (("8.8.8.8", 0), "9.9.9.9", False),
        (("8.8.8.8", 70000), "9.9.9.9", False),
        (("192.168.0.1", 4190), "9.9.9.9", False),
        (("192.168.0.1", 4190), "192.168.0.7", True),
        (("127.0.0.1", 4190), "192.168.0.7", False),
        (("127.0.0.1", 4190), "", False),
        (("224.0.0.1", 4190), "224.0.0.1", False),
    ],
)
def test_which_targets_are_refused(target: tuple[str, int], asker: str, allowed: bool) -> None:
    assert (objection(target, asker) is None) is allowed


def test_a_mapped_address_is_written_as_ipv4() -> None:
    assert plain_host("::ffff:1.2.3.4") == "1.2.3.4"
    assert plain_host("2001:DB8:0::1") == "2001:db8::1"
    assert plain_host("carried") == ""


# --- rates and contacts ---


def test_a_rate_counts_each_key_and_starts_again() -> None:
    rate = Rate(2, 60.0)
    assert [rate.allows("a", now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert rate.allows("b", 2.0)
    assert rate.allows("a", 60.0)


def test_a_rate_does_not_grow() -> None:
    rate = Rate(1, 60.0, max_keys=8)
    allowed = [rate.allows(str(i), 0.0) for i in range(100)]
    assert sum(allowed) == 8 and len(rate) == 8
    assert rate.allows("new", 61.0)


def test_contacts_are_forgotten_and_bounded() -> None:
    contacts = Contacts()
    contacts.note("::ffff:1.2.3.4", 0.0)
    contacts.note("relay x", 0.0)
    assert contacts.has("1.2.3.4", CONTACT_SECONDS - 1)
    assert not contacts.has("1.2.3.4", CONTACT_SECONDS)
    for number in range(MAX_CONTACTS + 5):
        contacts.note(f"10.0.{number // 256}.{number % 256}", 1.0)
    assert len(contacts.recent(2.0)) == MAX_CONTACTS
    contacts.note("10.0.1.1", 3.0)
    assert contacts.recent(3.0)[0] == "10.0.1.1"


# --- bytes ---


def test_requests_are_as_long_as_what_is_sent_for_them() -> None:
    on_wire = len(encode_probe(NONCE, ProbeKind.STRANGER)) + 8 + 40
    assert len(encode(DialBack(NONCE))) >= 2 * MAX_PORTS * COPIES * on_wire
    assert len(encode(ProbeFor(NONCE, pack_host("1.2.3.4"), [1]))) >= COPIES * on_wire
    assert len(encode(ProbeFor(NONCE, pack_host("1.2.3.4"), [1, 2]))) >= 2 * COPIES * on_wire
    with pytest.raises(ReachError, match="a request like this has at least"):
        decode_request(msgspec.msgpack.encode(DialBack(NONCE)), peer="P")


@pytest.mark.parametrize(
    "message",
    [
        Observe(),
        DialBack(NONCE, [pack_host("1.2.3.4"), pack_host("2001:db8::1")], 5),
        DialBack(NONCE, [pack_host(f"2001:db8::{i:x}") for i in range(MAX_CONTACTED)]),
        ProbeFor(NONCE, pack_host("1.2.3.4"), [4190]),
    ],
)
def test_requests_come_back_as_they_were(message: Observe | DialBack | ProbeFor) -> None:
    data = encode(message)
    assert len(data) <= MAX_MESSAGE_BYTES
    decoded = decode_request(data)
    if not isinstance(decoded, Observe):
        decoded = msgspec.structs.replace(decoded, padding=b"")
    assert decoded == message


def test_answers_come_back_and_a_refusal_says_why() -> None:
    observed = decode_answer(encode(Observed(pack_host("::ffff:1.2.3.4"), 5, 1.5)), Observed)
    assert observed.address() == ("1.2.3.4", 5)
    assert decode_answer(encode(DialedBack(True, pack_host("1.2.3.4"))), DialedBack).other_port
    with pytest.raises(ReachError, match=r"declined: go away$"):
        decode_answer(encode(Declined("go\naway")), Probed)
    with pytest.raises(ReachError, match="is not the answer"):
        decode_answer(encode(Probed()), Observed)


@pytest.mark.parametrize(
    "data",
    [
        msgspec.msgpack.encode({"type": "observed", "host": b"12345", "port": 5, "time": 1.0}),
        msgspec.msgpack.encode({"type": "observed", "host": b"1234", "port": 0, "time": 1.0}),
        msgspec.msgpack.encode({"type": "observed", "host": b"1234", "port": 5, "time": float("nan")}),
        msgspec.msgpack.encode({"type": "dialed_back", "other_port": True, "helper": b"12345"}),
        bytes(MAX_MESSAGE_BYTES + 1),
        b"",
    ],
)
def test_answers_that_are_none(data: bytes) -> None:
    for kind in (Observed, DialedBack, Probed):
        with pytest.raises(ReachError):
            decode_answer(data, kind, peer="P")


@given(st.binary(max_size=MAX_MESSAGE_BYTES + 8))
def test_any_bytes_are_a_message_or_one_error(data: bytes) -> None:
    for decode in (decode_request, lambda data: decode_answer(data, Observed)):
        try:
            decode(data)
        except ReachError as error:
            assert "\n" not in str(error)
    probe = decode_probe(data)
    assert probe is None or data[0] == 1


def test_a_probe_holds_no_byte_of_the_nonce() -> None:
    for kind in ProbeKind:
        data = encode_probe(NONCE, kind)
        assert len(data) == 18
        assert decode_probe(data) == Probe(kind, probe_digest(NONCE, kind))
        assert decode_probe(data + bytes(46)) == decode_probe(data)
        assert decode_probe(data + bytes(47)) is None
        assert decode_probe(data[:-1]) is None
        assert NONCE[:4] not in data
    assert len({encode_probe(NONCE, kind)[2:] for kind in ProbeKind}) == len(ProbeKind)
