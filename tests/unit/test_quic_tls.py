"""libp2p's TLS identity: who is let in, by client and by server, checked on two engines in memory."""

from __future__ import annotations

import datetime

import pytest
from aioquic.tls import Context
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from routing.identity import Identity, PeerId
from routing.membership import OPEN_SWARM, MemberCertificate, Membership, Swarm, proof
from routing.quic import tls
from routing.quic.certificate import (
    EXTENSION_OID,
    MEMBERSHIP_OID,
    BadCertificate,
    NodeCertificate,
    make_certificate,
    membership_shown,
    verify_certificate,
)
from routing.quic.core import BACKENDS, Backend, CoreSettings, QuicCore, load_backend
from routing.quic.limits import CONNECTION_WINDOW, STREAM_WINDOW

NOW = datetime.datetime.now(datetime.UTC)
CLIENT, SERVER = ("192.0.2.1", 1111), ("192.0.2.2", 2222)


class Notes:
    """A CoreListener that writes down what it is told."""

    def __init__(self) -> None:
        self.complete = False
        self.data = b""
        self.closed: list[str] = []

    def on_handshake_complete(self) -> None:
        self.complete = True

    def on_stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        self.data += data

    def on_closed(self, reason: str) -> None:
        self.closed.append(reason)

    def on_stream_reset(self, stream_id: int, code: int) -> None: ...
    def on_stop_sending(self, stream_id: int, code: int) -> None: ...
    def on_connection_id(self, connection_id: bytes) -> None: ...
    def on_connection_id_retired(self, connection_id: bytes) -> None: ...
    def on_terminated(self) -> None: ...


class Pair:
    """A client and a server engine with a perfect network between them."""

    def __init__(
        self,
        client: NodeCertificate,
        server: NodeCertificate,
        *,
        backends: tuple[Backend, Backend] = ("qh3", "qh3"),
        client_expects: PeerId | None = None,
        server_expects: PeerId | None = None,
        swarms: tuple[Swarm, Swarm] = (OPEN_SWARM, OPEN_SWARM),
    ) -> None:
        self.client_notes, self.server_notes = Notes(), Notes()
        self.client = load_backend(backends[0])(
            settings(client, swarms[0]), self.client_notes, None, client_expects
        )
        self.now = 100.0
        self.client.connect(SERVER, self.now)
        first = self.client.datagrams_to_send(self.now)
        size = first[0][0][5]
        original_destination = first[0][0][6 : 6 + size]
        self.server = load_backend(backends[1])(
            settings(server, swarms[1]), self.server_notes, original_destination, server_expects
        )
        for data, *_ in first:
            self.server.receive_datagram(data, CLIENT, self.now)

    def step(self) -> None:
        self.now += 0.02
        self._carry(self.server, self.client, SERVER)
        self._carry(self.client, self.server, CLIENT)
        for core in (self.client, self.server):
            timer = core.next_timer()
            if timer is not None and timer <= self.now:
                core.handle_timer(self.now)

    def _carry(self, source: QuicCore, target: QuicCore, address: tuple[str, int]) -> None:
        for data, *_ in source.datagrams_to_send(self.now):
            target.receive_datagram(data, address, self.now)

    def try_to_talk(self) -> None:
        """Run the handshake, and let each side that believes in it send at once."""
        for _ in range(30):
            for core, notes in ((self.client, self.client_notes), (self.server, self.server_notes)):
                if notes.complete and not notes.closed:
                    stream_id = core.open_stream()
                    if stream_id is not None:
                        core.send(stream_id, b"secret", False)
            self.step()


def settings(certificate: NodeCertificate, swarm: Swarm = OPEN_SWARM) -> CoreSettings:
    return CoreSettings(certificate, STREAM_WINDOW, CONNECTION_WINDOW, idle_timeout=30.0, swarm=swarm)


def forged(victim: Identity) -> NodeCertificate:
    """A certificate that names the victim's key, with a signature by somebody else."""
    thief = Identity.generate()

    class Forger:
        def public_key(self) -> ed25519.Ed25519PublicKey:
            return victim.public_key

        def sign(self, data: bytes) -> bytes:
            return thief.private_key.sign(data)

    return make_certificate(Identity(Forger(), victim.peer_id), NOW)  # type: ignore[arg-type]


def certificate_with(
    extension: bytes | None,
    *,
    valid_until: datetime.datetime | None = None,
    oid: x509.ObjectIdentifier = EXTENSION_OID,
) -> NodeCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - datetime.timedelta(days=10))
        .not_valid_after(valid_until or NOW + datetime.timedelta(days=1))
    )
    if extension is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(oid, extension), critical=True)
    return NodeCertificate(builder.sign(key, hashes.SHA256()), key)


def expired(identity: Identity) -> NodeCertificate:
    return make_certificate(identity, NOW - datetime.timedelta(days=4000))


BAD = {
    "forged": lambda: forged(Identity.generate()),
    "no identity": lambda: certificate_with(None),
    "junk extension": lambda: certificate_with(b"\x30\x03abc"),
    "expired": lambda: expired(Identity.generate()),
}


@pytest.mark.parametrize("server_backend", BACKENDS)
@pytest.mark.parametrize("client_backend", BACKENDS)
def test_both_sides_learn_who_the_other_is(client_backend: Backend, server_backend: Backend) -> None:
    client, server = Identity.generate(), Identity.generate()
    pair = Pair(
        make_certificate(client, NOW),
        make_certificate(server, NOW),
        backends=(client_backend, server_backend),
        client_expects=server.peer_id,
        server_expects=client.peer_id,
    )
    pair.try_to_talk()
    assert pair.client_notes.complete and pair.server_notes.complete
    assert pair.client.peer_id == server.peer_id
    assert pair.server.peer_id == client.peer_id
    assert pair.server_notes.data.startswith(b"secret"), "the control: honest peers do talk"


@pytest.mark.parametrize("backend", BACKENDS)
def test_client_refuses_another_peer_than_it_asked_for(backend: Backend) -> None:
    wanted, other = Identity.generate(), Identity.generate()
    pair = Pair(
        make_certificate(Identity.generate(), NOW),
        make_certificate(other, NOW),
        backends=(backend, backend),
        client_expects=wanted.peer_id,
    )
    pair.try_to_talk()
    assert not pair.client_notes.complete and not pair.server_notes.complete
    assert pair.client.refusal is not None and other.peer_id in pair.client.refusal
    assert pair.client_notes.data == pair.server_notes.data == b""
    assert pair.client_notes.closed and pair.server_notes.closed


@pytest.mark.parametrize("backend", BACKENDS)
def test_server_refuses_another_peer_than_it_expects(backend: Backend) -> None:
    pair = Pair(
        make_certificate(Identity.generate(), NOW),
        make_certificate(Identity.generate(), NOW),
        backends=(backend, backend),
        server_expects=Identity.generate().peer_id,
    )
    pair.try_to_talk()
    assert not pair.server_notes.complete
    assert pair.server_notes.data == pair.client_notes.data == b""
    assert pair.client_notes.closed


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", BAD)
def test_a_certificate_that_proves_nothing_is_refused(kind: str, backend: Backend, role: str) -> None:
    good, bad = make_certificate(Identity.generate(), NOW), BAD[kind]()
    client, server = (bad, good) if role == "client" else (good, bad)
    pair = Pair(client, server, backends=(backend, backend))
    pair.try_to_talk()
    refuser, notes = (
        (pair.server, pair.server_notes) if role == "client" else (pair.client, pair.client_notes)
    )
    assert not notes.complete and refuser.peer_id is None
    assert refuser.refusal is not None
    assert pair.client_notes.data == pair.server_notes.data == b"", "an application byte passed"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_without_certificate_is_refused(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    good = make_certificate(Identity.generate(), NOW)
    plain_finish = Context._client_handle_finished

    def finish_without_certificate(context: Context, *arguments: object) -> None:
        context.certificate = None
        plain_finish(context, *arguments)

    monkeypatch.setattr(tls.MutualContext, "_client_handle_finished", finish_without_certificate)
    pair = Pair(good, good, backends=(backend, backend))
    pair.try_to_talk()
    assert not pair.server_notes.complete and pair.server_notes.data == b""
    assert pair.server.refusal == "the client sent no certificate"


def test_verification_by_itself() -> None:
    identity = Identity.generate()
    certificate = make_certificate(identity, NOW).certificate
    assert verify_certificate(certificate, [], NOW) == identity.peer_id
    for when in (NOW - datetime.timedelta(days=2), NOW + datetime.timedelta(days=3651)):
        with pytest.raises(BadCertificate, match="expired"):
            verify_certificate(certificate, [], when)
    with pytest.raises(BadCertificate, match="exactly one"):
        verify_certificate(certificate, [certificate], NOW)
    with pytest.raises(BadCertificate, match="forged"):
        verify_certificate(forged(identity).certificate, [], NOW)


@pytest.mark.parametrize(
    "extension",
    [b"", b"\x30", b"\x30\x80", b"\x30\x84\xff\xff\xff\xff", b"\x30\x02\x04\x05", b"\x30\x00", bytes(5000)],
)
def test_malformed_extensions(extension: bytes) -> None:
    with pytest.raises(BadCertificate) as error:
        verify_certificate(certificate_with(extension).certificate, [], NOW)
    assert "\n" not in str(error.value)


def test_every_flipped_bit_of_the_extension_is_noticed() -> None:
    identity = Identity.generate()
    good = make_certificate(identity, NOW).certificate
    value = good.extensions.get_extension_for_oid(EXTENSION_OID).value
    assert isinstance(value, x509.UnrecognizedExtension)
    for position in range(len(value.value)):
        changed = bytearray(value.value)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises(BadCertificate):
            # signed by a key of its own: the extension's signature is over another key anyway, so this
            # shows that parsing stays strict for whatever stands there
            verify_certificate(certificate_with(bytes(changed)).certificate, [], NOW)


# --- membership ---

SWARM_KEY = Identity.generate().private_key
PRIVATE = Swarm("casa", SWARM_KEY.public_key().public_bytes_raw())
ONE_DAY = datetime.timedelta(days=1)


def member(
    identity: Identity, *, of: Swarm = PRIVATE, named: PeerId | None = None, begun: datetime.datetime = NOW
) -> NodeCertificate:
    """A node with a certificate of membership, by the key of PRIVATE, for one day."""
    claim = MemberCertificate.issue(SWARM_KEY, PRIVATE, named or identity.peer_id, begun.timestamp(), 1)
    return make_certificate(identity, NOW, Membership(of, claim.encode()))


def stolen_body(identity: Identity) -> NodeCertificate:
    """A certificate of membership that the node has signed for itself, with a key that is not the swarm's."""
    thief = Identity.generate().private_key
    swarm = Swarm("casa", thief.public_key().public_bytes_raw())
    claim = MemberCertificate.issue(thief, swarm, identity.peer_id, NOW.timestamp(), 1).encode()
    body = claim[:1] + PRIVATE.id + claim[33:-64]
    return make_certificate(identity, NOW, Membership(PRIVATE, body + thief.sign(b"panal-member-1\0" + body)))


OUTSIDERS = {
    "a node of another program": (lambda i: make_certificate(i, NOW), "shows no membership"),
    "of the open swarm": (lambda i: make_certificate(i, NOW, Membership()), "belongs to another swarm"),
    "without certificate": (lambda i: make_certificate(i, NOW, Membership(PRIVATE)), "not a member"),
    "expired": (lambda i: member(i, begun=NOW - 2 * ONE_DAY), "expired on"),
    "not yet valid": (lambda i: member(i, begun=NOW + ONE_DAY), "in the future"),
    "with another's certificate": (
        lambda i: member(i, named=Identity.generate().peer_id),
        "another peer id",
    ),
    "signed by another key": (stolen_body, "another key"),
    "junk": (lambda i: make_certificate(i, NOW, Membership(PRIVATE, b"x" * 50)), "malformed"),
}


@pytest.mark.parametrize("server_backend", BACKENDS)
@pytest.mark.parametrize("client_backend", BACKENDS)
def test_members_of_a_private_swarm_talk(client_backend: Backend, server_backend: Backend) -> None:
    pair = Pair(
        member(Identity.generate()),
        member(Identity.generate()),
        backends=(client_backend, server_backend),
        swarms=(PRIVATE, PRIVATE),
    )
    pair.try_to_talk()
    assert pair.client_notes.complete and pair.server_notes.complete
    assert pair.server_notes.data.startswith(b"secret")


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", OUTSIDERS)
def test_who_is_no_member_gets_no_byte(kind: str, backend: Backend, role: str) -> None:
    make, words = OUTSIDERS[kind]
    outsider = Identity.generate()
    inside, outside = member(Identity.generate()), make(outsider)
    # the outsider's own gate lets the member in: only the other side's is between them
    client, server = (outside, inside) if role == "client" else (inside, outside)
    pair = Pair(client, server, backends=(backend, backend), swarms=(PRIVATE, PRIVATE))
    pair.try_to_talk()
    gate, notes, refused = (
        (pair.server, pair.server_notes, pair.client_notes)
        if role == "client"
        else (pair.client, pair.client_notes, pair.server_notes)
    )
    assert not notes.complete and gate.peer_id is None
    assert gate.refusal is not None and gate.refusal.startswith(f"{outsider.peer_id} ")
    assert words in gate.refusal and len(gate.refusal.splitlines()) == 1
    assert refused.closed and words in refused.closed[0], "the refused side is told why"
    assert pair.client_notes.data == pair.server_notes.data == b"", "an application byte passed"


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_open_swarms_of_two_names_do_not_mix(backend: Backend, role: str) -> None:
    other = Swarm("other")
    ours, theirs = (
        make_certificate(Identity.generate(), NOW, Membership(swarm)) for swarm in (OPEN_SWARM, other)
    )
    # one side's gate is taken away, so that the other's is what holds
    swarms = (other, other) if role == "server" else (OPEN_SWARM, OPEN_SWARM)
    pair = Pair(ours, theirs, backends=(backend, backend), swarms=swarms)
    pair.try_to_talk()
    refusal = pair.server.refusal if role == "server" else pair.client.refusal
    assert refusal is not None and "belongs to another swarm" in refusal
    assert pair.client_notes.data == pair.server_notes.data == b""


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_open_swarm_takes_nodes_of_other_programs(backend: Backend) -> None:
    foreign = make_certificate(Identity.generate(), NOW)
    ours = make_certificate(Identity.generate(), NOW, Membership())
    for client, server in ((foreign, ours), (ours, foreign)):
        pair = Pair(client, server, backends=(backend, backend))
        pair.try_to_talk()
        assert pair.client_notes.complete and pair.server_notes.complete


def test_membership_in_a_certificate() -> None:
    identity = Identity.generate()
    assert membership_shown(make_certificate(identity, NOW).certificate) is None
    assert membership_shown(make_certificate(identity, NOW, Membership()).certificate) == OPEN_SWARM.id
    claim = MemberCertificate.issue(SWARM_KEY, PRIVATE, identity.peer_id, NOW.timestamp(), 1)
    membership = Membership(PRIVATE, claim.encode())
    certificate = make_certificate(identity, NOW, membership).certificate
    assert membership_shown(certificate) == proof(membership)
    assert verify_certificate(certificate, [], NOW) == identity.peer_id
    extension = certificate.extensions.get_extension_for_oid(MEMBERSHIP_OID)
    assert not extension.critical, "libp2p nodes of other programs would refuse it"


@pytest.mark.parametrize(
    "extension",
    [b"", b"\x04", b"\x04\x02a", b"\x04\x01ab", b"\x30\x00", b"\x04\x84\xff\xff\xff\xff", bytes(9999)],
)
def test_malformed_membership_extensions(extension: bytes) -> None:
    with pytest.raises(BadCertificate, match="membership extension") as error:
        membership_shown(certificate_with(extension, oid=MEMBERSHIP_OID).certificate)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_membership_costs_no_round_trip(backend: Backend) -> None:
    """All of the server's first flight must fit three times the client's first datagrams (RFC 9000, 8.1)."""
    pair = Pair(
        member(Identity.generate()),
        member(Identity.generate()),
        backends=(backend, backend),
        swarms=(PRIVATE, PRIVATE),
    )
    pair.step()
    assert pair.client_notes.complete and pair.server_notes.complete
