"""`/panal/reach/1`, the answering side: tell a peer where we see it, and have it probed.

What it may cost others, and why it can't be aimed at them:

1. Probes go only to the IP address at which the asking peer completed its handshake with us, so that it can
   receive there. A helper is asked for that address only, and takes our word for it a few times a minute: for
   each asker, each target and in all.
2. A request is at least as long as everything that is sent for it (`relay.reach_wire`), so that no bytes are
   won by going through us.
3. Askers are authenticated peers, members of the swarm if it is private; each has a rate.
4. Addresses and ports are refused as `relay.targets` says; a probe holds no byte that the asker chose.
"""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable

import trio

from relay.probes import Probes
from relay.rate import Rate
from relay.reach_wire import (
    COPIES,
    MAX_MESSAGE_BYTES,
    PROTOCOL_ID,
    Answer,
    Declined,
    DialBack,
    DialedBack,
    Observe,
    Observed,
    Probed,
    ProbeFor,
    ProbeKind,
    decode_answer,
    decode_request,
    encode,
    encode_probe,
    pack_host,
    unpack_host,
)
from relay.targets import Address, objection, plain_host, scope_of
from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream

log = logging.getLogger("panal.reach")

COPY_PAUSE = 0.05
"""Seconds between the copies of a probe, so that one burst of loss does not take both."""

HELPER_TIMEOUT = 2.0
"""Seconds for a helper's answer: a round trip over the worst links in use, and its probes."""

HELPERS_TRIED = 3
"""Until one of them sends; each costs the asker time."""

PER_MINUTE = 60.0
DIAL_BACKS_PER_PEER = 10
"""In a minute. A round takes one or two, and rounds follow quickly only at the start."""

PROBES_PER_PEER = 60
"""Requests of one peer to probe for others in a minute: a bootstrap peer that some thirty nodes join."""

PROBES_PER_TARGET = 10
"""Dial-backs and helper's probes to one IP address in a minute, whoever asks: several nodes share a NAT."""

REQUESTS = 240
"""Of all peers in a minute; 16 datagrams of 18 bytes a second at most."""

OBSERVATIONS_PER_PEER = 30
"""In a minute; they cost an answer each."""


class DialBackService:
    """Answers `/panal/reach/1`."""

    def __init__(
        self,
        probes: Probes,
        *,
        wall_clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._probes = probes
        self._endpoint: Endpoint = probes.endpoint
        self._wall_clock = wall_clock
        self._rng = rng or random.Random()
        self._observations = Rate(OBSERVATIONS_PER_PEER, PER_MINUTE)
        self._dial_backs = Rate(DIAL_BACKS_PER_PEER, PER_MINUTE)
        self._probes_for = Rate(PROBES_PER_PEER, PER_MINUTE)
        self._by_target = Rate(PROBES_PER_TARGET, PER_MINUTE)
        self._in_all = Rate(REQUESTS, PER_MINUTE)

    async def serve(self, stream: Stream) -> None:
        """Handler of PROTOCOL_ID: one request, one answer.

        Raises:
            PeerError: the peer sent no request, or is gone.
        """
        request = decode_request(await stream.receive_message(MAX_MESSAGE_BYTES), peer=stream.peer_id)
        connection = stream.connection
        match request:
            case Observe():
                answer = self._observe(connection)
            case DialBack():
                answer = await self._dial_back(connection, request)
            case ProbeFor():
                answer = await self._probe_for(connection, request)
        await stream.send_message(encode(answer), end=True)

    def _observe(self, connection: Connection) -> Answer:
        if not self._observations.allows(connection.peer_id, self._endpoint.now()):
            return Declined("asked too often, wait a minute")
        host, port = connection.remote_address
        packed = b"" if connection.is_carried else pack_host(host)
        if not packed:
            return Declined("this connection is carried by a stream, it shows no address")
        return Observed(packed, port, self._wall_clock())

    async def _dial_back(self, asker: Connection, request: DialBack) -> Answer:
        host, seen_port = plain_host(asker.remote_address[0]), asker.remote_address[1]
        if asker.is_carried or not host:
            return Declined("this connection is carried by a stream, it shows no address")
        if host != plain_host(asker.first_address[0]):
            # not proven: a client may write any sender on a packet
            return Declined("your address has changed since the handshake: connect anew")
        ports = [seen_port] + ([request.port] if request.port not in (0, seen_port) else [])
        problem = self._objection(asker, [(host, port) for port in ports], self._dial_backs)
        if problem is not None:
            return Declined(problem)
        other_port = await self._send_from_other_port(request.nonce, host, ports)
        contacted = {unpack_host(each) for each in request.contacted} | {host}
        for helper in self._helpers(host, contacted):
            if await self._ask(helper, ProbeFor(request.nonce, pack_host(host), ports)):
                return DialedBack(other_port, pack_host(helper.remote_address[0]))
        return DialedBack(other_port)

    async def _probe_for(self, asker: Connection, request: ProbeFor) -> Answer:
        host = unpack_host(request.host)
        targets = [(host, port) for port in request.ports]
        problem = self._objection(asker, targets, self._probes_for)
        if problem is not None:
            return Declined(problem)
        if any(plain_host(each.remote_address[0]) == host for each in self._endpoint.connections):
            return Declined("this node has a connection with that address: its probe would prove nothing")
        for copy in range(COPIES):
            if copy:
                await trio.sleep(COPY_PAUSE)
            for target in targets:
                if not self._probes.send(request.nonce, ProbeKind.STRANGER, target):
                    return Declined(f"this node has no way to {host}")
        return Probed()

    def _objection(self, asker: Connection, targets: list[Address], rate: Rate) -> str | None:
        """Why nothing is sent there for this peer, None if it may be; counts against the rates."""
        asker_host = "" if asker.is_carried else plain_host(asker.remote_address[0])
        for target in targets:
            problem = objection(target, asker_host)
            if problem is not None:
                return problem
        now = self._endpoint.now()
        if not rate.allows(asker.peer_id, now) or not self._in_all.allows("", now):
            return "asked too often, wait a minute"
        if not self._by_target.allows(targets[0][0], now):
            return "that address has been probed too often, wait a minute"
        return None

    def _helpers(self, target: str, contacted: set[str]) -> list[Connection]:
        """Peers that could probe a target as strangers to it, a few, at random."""
        candidates: dict[str, Connection] = {}
        for each in self._endpoint.connections:
            host = plain_host(each.remote_address[0])
            # one in another scope is in our own network, and would come from our own outer address
            if not each.is_carried and host not in contacted and scope_of(host) is scope_of(target):
                candidates.setdefault(host, each)
        return self._rng.sample(list(candidates.values()), min(HELPERS_TRIED, len(candidates)))

    async def _ask(self, helper: Connection, request: ProbeFor) -> bool:
        try:
            stream = helper.open_stream(PROTOCOL_ID)
        except PeerError:
            return False
        sent = False
        try:
            with trio.move_on_after(HELPER_TIMEOUT):
                await stream.send_message(encode(request))
                answer = await stream.receive_message(MAX_MESSAGE_BYTES)
                decode_answer(answer, Probed, peer=helper.peer_id)
                sent = True
        except PeerError as error:
            log.debug("%s did not probe for us: %s", helper.peer_id, error)
        finally:
            stream.reset()
        return sent

    async def _send_from_other_port(self, nonce: bytes, host: str, ports: list[int]) -> bool:
        """Probes from a socket of their own; False if this machine would not send them."""
        bound = self._endpoint.local_address[0]
        if (":" in host) != (":" in bound):
            bound = "::" if ":" in host else "0.0.0.0"  # a dual-stack endpoint and an IPv4 peer
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        datagram = encode_probe(nonce, ProbeKind.OTHER_PORT)
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.bind((bound, 0))
                for copy in range(COPIES):
                    if copy:
                        await trio.sleep(COPY_PAUSE)
                    for port in ports:
                        sender.sendto(datagram, (host, port))
        except OSError as error:
            log.debug("no probe to %s: %s", host, error)
            return False
        return True
