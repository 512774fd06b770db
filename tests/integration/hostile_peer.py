"""A peer that means ill, as a process of its own: `python -m tests.integration.hostile_peer ATTACK TARGET`.

TARGET is a file with a `Target` as JSON. What an attack has done so far is printed as a line of JSON twice a
second; it goes on until it is killed. Its sockets are bound to another loopback address than the honest
client's.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from node.swarm import dial_me
from relay import punch_plan, reach_wire
from relay.circuit import RelayClient
from relay.hop_wire import HOP_PROTOCOL, HopMessage, HopType, encode_hop
from relay.websocket import open_websocket
from routing.byte_stream import ByteStream
from routing.control_address import ControlAddress
from routing.errors import PanalError
from routing.identity import Identity
from routing.libp2p.advert_records import record_key
from routing.libp2p.delimited import write_delimited
from routing.libp2p.host import PING, ControlHost
from routing.libp2p.kad_wire import KAD, Kind, Message, encode_message
from routing.libp2p.secure_channel import SecureChannel, secure
from routing.libp2p.yamux import YAMUX
from routing.libp2p.yamux_frames import RST, SYN, encode_frame
from routing.libp2p.yamux_frames import Kind as FrameKind
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint, Handler
from routing.quic.stream import Stream
from routing.wire import cells, exchange, holdings, messages
from routing.wire.advert import HEADER_BYTES, MAX_ADVERT_BYTES, Advert, sign_advert
from routing.wire.holdings import Slice

HOST = "127.0.0.2"
BYSTANDER = "127.0.0.3"
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Target:
    """What the attacker knows of the node.

    Attributes:
        quic, control: its addresses, with its peer id.
        websocket: its WebSocket port.
        swarm_id, model_id: hexadecimal.
        expert_call: a right request of `/panal/experts/1`, and one with a large answer, hexadecimal.
        quic_protocols, control_protocols: what it serves.
        bystander: UDP and TCP port at BYSTANDER of somebody who has nothing to do with it.
    """

    quic: str
    control: str
    websocket: int
    swarm_id: str
    model_id: str
    expert_call: str
    large_call: str
    quic_protocols: list[str]
    control_protocols: list[str]
    bystander: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Hostile:
    """What attacks share.

    Attributes:
        done: counts of what was tried, by name.
    """

    target: Target
    nursery: trio.Nursery
    done: Counter[str] = field(default_factory=Counter)
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    @property
    def quic(self) -> PeerAddress:
        return PeerAddress.parse(self.target.quic)

    @property
    def control(self) -> ControlAddress:
        return ControlAddress.parse(self.target.control)

    # --- QUIC ---

    @asynccontextmanager
    async def endpoint(self, handlers: dict[str, Handler] | None = None) -> AsyncIterator[Endpoint]:
        async with trio.open_nursery() as nursery:
            endpoint = Endpoint(Identity.generate(), listen=(HOST, 0), handlers=handlers or {})
            await nursery.start(endpoint.run)
            yield endpoint
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def connected(self, handlers: dict[str, Handler] | None = None) -> AsyncIterator[Connection]:
        async with self.endpoint(handlers) as endpoint:
            yield await endpoint.connect(self.quic, timeout=3)

    # --- TCP ---

    async def tcp(self) -> trio.SocketStream:
        control = self.control
        return await trio.open_tcp_stream(control.host, control.port, local_address=HOST)

    @asynccontextmanager
    async def host(self) -> AsyncIterator[ControlHost]:
        """A control host with a connection to the node."""
        async with trio.open_nursery() as nursery:
            host = ControlHost(Identity.generate(), listen=None)
            await nursery.start(host.run)
            await host.connect_over(await self.tcp(), self.control.peer_id, remote="127.0.0.1", timeout=5)
            yield host
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[SecureChannel]:
        """A connection up to Yamux, and no Yamux of ours."""
        stream = await self.tcp()
        try:
            with trio.fail_after(5):
                channel = await secure(
                    stream, Identity.generate(), expected=self.control.peer_id, initiator=True
                )
                await channel.negotiate(YAMUX, initiator=True)
            yield channel
        finally:
            await trio.aclose_forcefully(stream)

    # --- adverts ---

    def advert(self, identity: Identity, **fields: Any) -> bytes:
        now = time.time()
        base: dict[str, Any] = {
            "swarm_id": bytes.fromhex(self.target.swarm_id),
            "peer_id": str(identity.peer_id),
            "instance": 1,
            "seq": int(now * 1000),
            "issued_at": int(now),
            "reach": "public",
            "addresses": [f"/ip4/{BYSTANDER}/udp/{self.target.bystander}/quic-v1"],
            "control": [f"/ip4/{BYSTANDER}/tcp/{self.target.bystander}"],
            "slices": [Slice("experts", self.target.model_id, "qwen2moe", experts=[(0, 3, [(0, 11)])])],
        }
        return sign_advert(Advert(**(base | fields)), identity)

    def bad_adverts(self) -> list[bytes]:
        """One of each kind that must be refused."""
        now = int(time.time())
        who = Identity.generate()
        good = self.advert(who)
        return [
            self.advert(who, issued_at=now - 5000, seq=5),
            self.advert(who, issued_at=now + 5000, seq=(now + 5000) * 1000),
            self.advert(who, swarm_id=bytes(32)),
            good[:-1] + bytes([good[-1] ^ 1]),
            good[:1] + bytes(64) + good[HEADER_BYTES:],
            good + bytes(MAX_ADVERT_BYTES),
            self.rng.randbytes(500),
            b"",
        ]


Attack = Callable[[Hostile], Awaitable[None]]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Register it under its name."""
    ATTACKS[function.__name__] = function
    return function


async def again(hostile: Hostile, once: Callable[[], Awaitable[None]]) -> None:
    """An attempt after the other, whatever becomes of each."""
    while True:
        try:
            await once()
        except (PanalError, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            hostile.done["refused"] += 1
        except BaseExceptionGroup as group:
            if group.split((PanalError, OSError, trio.BrokenResourceError, trio.TooSlowError))[1]:
                raise
            hostile.done["refused"] += 1
        await trio.sleep(0.002)


async def many(hostile: Hostile, count: int, once: Callable[[], Awaitable[None]]) -> None:
    """The same, `count` at a time."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(again, hostile, once)


# --- adverts ---


def serve_adverts(hostile: Hostile, batch: Callable[[], list[bytes]]) -> Handler:
    """Answers each request of `/panal/adverts/1` at once, with more where that came from."""

    async def serve(stream: Stream) -> None:
        counter = 0
        while True:
            await stream.receive_message(exchange.MAX_REQUEST_BYTES)
            adverts = batch()
            counter += 1
            hostile.done["adverts"] += len(adverts)
            answer = exchange.ChangesAnswer(1, counter, True, [(0, each) for each in adverts])
            await stream.send_message(msgspec.msgpack.encode(answer))

    return serve


@attack
async def bad_adverts_by_exchange(hostile: Hostile) -> None:
    """Replayed, expired, early, foreign, wrongly signed, oversized, and noise, as fast as they are taken."""
    replay: list[bytes] = [hostile.advert(Identity.generate())]

    def batch() -> list[bytes]:
        bad = [each for each in hostile.bad_adverts() if len(each) <= MAX_ADVERT_BYTES]
        return replay * 20 + bad[hostile.done["adverts"] % len(bad) :][:1] * 10

    async def once() -> None:
        async with hostile.connected({exchange.PROTOCOL_ID: serve_adverts(hostile, batch)}):
            await trio.sleep(1)

    await many(hostile, 4, once)


@attack
async def oversized_adverts_by_exchange(hostile: Hostile) -> None:
    """Answers that hold what must not be, or are larger than any may be."""

    async def serve(stream: Stream) -> None:
        while True:
            await stream.receive_message(exchange.MAX_REQUEST_BYTES)
            hostile.done["adverts"] += 1
            if hostile.done["adverts"] % 2:
                await stream.send_bytes(b"\xff\xff\xff\xff" + bytes(100_000))
            else:
                oversized = hostile.bad_adverts()[-3]
                answer = exchange.ChangesAnswer(1, 1, True, [(0, oversized)] * 20)
                await stream.send_message(msgspec.msgpack.encode(answer))

    async def once() -> None:
        async with hostile.connected({exchange.PROTOCOL_ID: serve}):
            await trio.sleep(0.2)

    await many(hostile, 4, once)


@attack
async def adverts_of_nobody(hostile: Hostile) -> None:
    """Proper adverts of thousands of identities that do not exist; then the same over other connections."""
    pool = [
        hostile.advert(Identity.generate(), addresses=[f"/ip4/8.{i % 200}.{i // 200}.1/udp/4001/quic-v1"])
        for i in range(3000)
    ]

    def batch() -> list[bytes]:
        start = hostile.done["adverts"] % len(pool)
        return pool[start : start + exchange.MAX_ADVERTS]

    async def once() -> None:
        async with hostile.connected({exchange.PROTOCOL_ID: serve_adverts(hostile, batch)}):
            await trio.sleep(1)

    await many(hostile, 4, once)


@attack
async def servers_that_do_not_exist(hostile: Hostile) -> None:
    """As many adverts as there is room for, of servers of every expert, all where the bystander is."""
    pool = [hostile.advert(Identity.generate()) for _ in range(600)]

    def batch() -> list[bytes]:
        start = hostile.done["adverts"] % len(pool)
        return pool[start : start + exchange.MAX_ADVERTS]

    async with hostile.connected({exchange.PROTOCOL_ID: serve_adverts(hostile, batch)}):
        await trio.sleep_forever()


@attack
async def adverts_by_dht(hostile: Hostile) -> None:
    """PUT_VALUE of the same, and of records under wrong keys."""
    swarm_id = bytes.fromhex(hostile.target.swarm_id)

    async def once() -> None:
        async with hostile.host() as host:
            for _ in range(20):
                who = Identity.generate()
                good = hostile.advert(who)
                for value in [good, good, *hostile.bad_adverts()]:
                    key = hostile.rng.choice([record_key(swarm_id, who.peer_id), b"/panal/x", b""])
                    stream = await host.open_stream(host.connected_peers[0], KAD, timeout=3)
                    await write_delimited(stream, encode_message(Message(Kind.PUT_VALUE, key, value)))
                    hostile.done["puts"] += 1
                    stream.close_write()
                    with contextlib.suppress(PanalError):
                        while await stream.read(65536):
                            hostile.done["answers"] += 1

    await many(hostile, 8, once)


# --- relays ---


@attack
async def thousand_reservations(hostile: Hostile) -> None:
    """Identity after identity asks for a reservation, and stays as long as it is let."""

    async def once() -> None:
        async with hostile.host() as host:
            hostile.done["asked"] += 1
            await RelayClient(host).reserve(hostile.control)
            hostile.done["granted"] += 1
            await trio.sleep(0.5)

    await many(hostile, 40, once)


@attack
async def reserve_requests(hostile: Hostile) -> None:
    """Requests of one connection after the other, and streams on which none comes."""

    async def once() -> None:
        async with hostile.host() as host:
            for number in range(200):
                stream = await host.open_stream(host.connected_peers[0], HOP_PROTOCOL, timeout=3)
                hostile.done["asked"] += 1
                if number % 8:
                    await write_delimited(stream, encode_hop(HopMessage(HopType.RESERVE)))
                    stream.close_write()

    await many(hostile, 8, once)


@attack
async def slow_circuits(hostile: Hostile) -> None:
    """Circuits whose one end sends what it can and whose other end reads nothing."""

    async def idle(circuit: ByteStream) -> None:
        await trio.sleep_forever()

    async def fill(stream: ByteStream) -> None:
        while True:
            await stream.write(bytes(65536))
            hostile.done["bytes"] += 65536

    async def once() -> None:
        async with hostile.host() as reader, hostile.host() as writer, trio.open_nursery() as nursery:
            client = RelayClient(reader)
            client.accept_datagram_circuits(idle)
            await client.reserve(hostile.control)
            for _ in range(16):
                circuit = await RelayClient(writer).open_datagram_circuit(hostile.control, reader.peer_id)
                hostile.done["circuits"] += 1
                nursery.start_soon(fill, circuit)
            await trio.sleep(8)
            nursery.cancel_scope.cancel()

    await many(hostile, 4, once)


# --- streams ---


@attack
async def ten_thousand_quic_streams(hostile: Hostile) -> None:
    """Opened as fast as they are allowed, reset at once or left open without a word."""

    async def once() -> None:
        async with hostile.connected() as connection:
            for number in range(10_000):
                protocol = hostile.rng.choice([*hostile.target.quic_protocols, "/no/such/thing"])
                try:
                    stream = connection.open_stream(protocol)
                except PanalError:
                    if not connection.is_open:
                        raise
                    await trio.sleep(0.001)
                    continue
                await stream.send_bytes(b"\0\0")
                hostile.done["streams"] += 1
                if number % 3:
                    stream.reset()
                if number % 20 == 0:
                    await trio.sleep(0)

    await many(hostile, 2, once)


@attack
async def ten_thousand_yamux_streams(hostile: Hostile) -> None:
    """SYN after SYN, some of them reset in the same breath."""

    async def once() -> None:
        async with hostile.channel() as channel:
            for first in range(1, 20_000, 200):
                frames = b""
                for number in range(first, first + 200, 2):
                    frames += encode_frame(FrameKind.WINDOW_UPDATE, SYN, number, 0)
                    if number % 4 == 1:
                        frames += encode_frame(FrameKind.WINDOW_UPDATE, RST, number, 0)
                await channel.write(frames)
                hostile.done["streams"] += 100
                with trio.move_on_after(0.002):
                    await channel.read()

    await many(hostile, 4, once)


@attack
async def yamux_resets(hostile: Hostile) -> None:
    """Streams that are opened and reset at once, without end, and all answers are read."""
    await many(
        hostile,
        2,
        lambda: flood_yamux(
            hostile,
            lambda number: (
                encode_frame(FrameKind.WINDOW_UPDATE, SYN, number, 0)
                + encode_frame(FrameKind.WINDOW_UPDATE, RST, number, 0)
            ),
        ),
    )


@attack
async def yamux_pings(hostile: Hostile) -> None:
    """PINGs without end, and all answers are read."""
    await many(
        hostile, 4, lambda: flood_yamux(hostile, lambda number: encode_frame(FrameKind.PING, SYN, 0, number))
    )


async def flood_yamux(hostile: Hostile, frame: Callable[[int], bytes]) -> None:
    async with hostile.channel() as channel, trio.open_nursery() as nursery:

        async def read() -> None:
            while await channel.read():
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(read)
        number = 1
        while True:
            burst = b""
            for _ in range(2000):
                burst += frame(number)
                number += 2
            hostile.done["frames"] += 2000
            await channel.write(burst)


# --- requests ---


@attack
async def requests_without_end(hostile: Hostile) -> None:
    """Small requests of each protocol, hundreds under way, all answers read."""
    small = {
        holdings.PROTOCOL_ID: holdings.encode_request(holdings.HoldingsRequest(versions=[1])),
        exchange.PROTOCOL_ID: exchange.encode_request(exchange.ChangesRequest(0, 0, 0)),
        messages.PROTOCOL_ID: bytes(64),
    }

    async def once() -> None:
        async with hostile.connected() as connection, trio.open_nursery() as nursery:

            async def ask(protocol: str, request: bytes) -> None:
                while True:
                    stream = connection.open_stream(protocol)
                    try:
                        while True:
                            for _ in range(50):
                                await stream.send_message(request)
                            for _ in range(50):
                                await stream.receive_message(1 << 20)
                                hostile.done["answers"] += 1
                    except PanalError:
                        if not connection.is_open:
                            return
                        await trio.sleep(0.01)

            for protocol, request in small.items():
                for _ in range(8):
                    nursery.start_soon(ask, protocol, request)

    await many(hostile, 2, once)


@attack
async def cells_without_end(hostile: Hostile) -> None:
    """Large chunks, asked for ahead on fifty streams of each of three connections; a third is never read."""
    request = cells.encode_request(
        cells.CellsRequest(bytes.fromhex(hostile.target.model_id), 0, 0, 1, 0, 4, 0, 250_000)
    )

    async def once() -> None:
        async with hostile.connected() as connection, trio.open_nursery() as nursery:

            async def ask(reads: bool) -> None:
                while connection.is_open:
                    with contextlib.suppress(PanalError):
                        stream = connection.open_stream(cells.PROTOCOL_ID)
                        for _ in range(20):
                            await stream.send_message(request)
                        while True:
                            if not reads:
                                await trio.sleep(5)
                            await stream.receive_message(1 << 20)
                            hostile.done["answers"] += 1
                            await stream.send_message(request)
                    await trio.sleep(0.01)

            for number in range(50):
                nursery.start_soon(ask, number % 3 > 0)

    await many(hostile, 3, once)


@attack
async def calls_without_end(hostile: Hostile) -> None:
    """Right calls, as the honest client makes them, fifty streams of them at once."""
    call = bytes.fromhex(hostile.target.expert_call)

    async def once() -> None:
        async with hostile.connected() as connection, trio.open_nursery() as nursery:

            async def ask() -> None:
                stream = connection.open_stream(messages.PROTOCOL_ID)
                with contextlib.suppress(PanalError):
                    while True:
                        for _ in range(4):
                            await stream.send_message(call)
                        for _ in range(4):
                            await stream.receive_message(1 << 20)
                            hostile.done["answers"] += 1

            for _ in range(50):
                nursery.start_soon(ask)

    await many(hostile, 2, once)


@attack
async def slow_readers_of_experts(hostile: Hostile) -> None:
    """Large answers are asked for on all streams there are, and not one byte of them is read."""
    call = bytes.fromhex(hostile.target.large_call)

    async def once() -> None:
        async with hostile.connected() as connection:
            for _ in range(90):
                stream = connection.open_stream(messages.PROTOCOL_ID)
                await stream.send_message(call)
                await stream.send_message(call)
                hostile.done["asked"] += 2
            await trio.sleep(10)

    await many(hostile, 4, once)


@attack
async def slow_readers_of_adverts(hostile: Hostile) -> None:
    """The table is asked for again and again, and not read."""
    request = exchange.encode_request(exchange.ChangesRequest(0, 0, 0))

    async def once() -> None:
        async with hostile.connected() as connection:
            streams = [connection.open_stream(exchange.PROTOCOL_ID) for _ in range(2)]
            for _ in range(3000):
                for stream in streams:
                    await stream.send_message(request)
                    hostile.done["asked"] += 1
            await trio.sleep(3)

    await many(hostile, 4, once)


# --- handshakes ---


@attack
async def udp_noise(hostile: Hostile) -> None:
    """Datagrams that look like first ones of a connection, and are none; and plain noise."""
    where = (hostile.quic.host, hostile.quic.port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((HOST, 0))
        while True:
            for _ in range(50):
                kind = hostile.rng.randrange(4)
                noise = hostile.rng.randbytes(1250)
                if kind < 2:
                    noise = (
                        b"\xc0\0\0\0\x01\x08"
                        + noise[:8]
                        + b"\x08"
                        + noise[8:16]
                        + b"\0\x44\xd0"
                        + noise[:1230]
                    )
                elif kind == 2:
                    noise = b"\x01\x03" + noise[:16]
                with contextlib.suppress(OSError):
                    sender.sendto(noise[:1300], where)
                hostile.done["datagrams"] += 1
            await trio.sleep(0.001)


@attack
async def udp_first_flights(hostile: Hostile) -> None:
    """True first flights, each from another port, and nothing after that."""
    where = (hostile.quic.host, hostile.quic.port)
    recorder = Endpoint(Identity.generate(), listen=(HOST, 0), accept=False)
    recorded: list[bytes] = []
    recorder._udp.send = lambda datagrams: recorded.extend(bytes(each[0]) for each in datagrams) or 0  # type: ignore[method-assign,func-returns-value]
    flights = []
    for _ in range(200):
        connection = recorder._new_connection(where)
        connection.core.connect(where, trio.current_time())
        connection.flush()
        flights.append(recorded[:])
        recorded.clear()
    recorder._udp.close()
    while True:
        for flight in flights:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind((HOST, 0))
                for datagram in flight:
                    sender.sendto(datagram, where)
                    hostile.done["datagrams"] += 1
            if hostile.done["datagrams"] % 5 == 0:
                await trio.sleep(0.001)


@attack
async def quic_handshakes(hostile: Hostile) -> None:
    """Whole handshakes, each connection closed as soon as it is there."""

    async def once() -> None:
        async with hostile.endpoint() as endpoint:
            while True:
                connection = await endpoint.connect(hostile.quic, timeout=2, fresh=True)
                hostile.done["handshakes"] += 1
                await connection.aclose()

    await many(hostile, 12, once)


@attack
async def tcp_connections(hostile: Hostile) -> None:
    """Connections that say nothing, little, or something else than libp2p."""

    async def once() -> None:
        stream = await hostile.tcp()
        try:
            hostile.done["connections"] += 1
            kind = hostile.rng.randrange(3)
            if kind:
                await stream.send_all(
                    hostile.rng.randbytes(100) if kind == 1 else b"\x13/multistream/1.0.0\n"
                )
                with trio.move_on_after(0.5):
                    await stream.receive_some(100)
            elif hostile.rng.random() < 0.1:
                await trio.sleep(3)
        finally:
            await trio.aclose_forcefully(stream)

    await many(hostile, 40, once)


@attack
async def noise_handshakes(hostile: Hostile) -> None:
    """Whole handshakes over TCP, each connection closed as soon as it is there."""

    async def once() -> None:
        async with hostile.channel():
            hostile.done["handshakes"] += 1

    await many(hostile, 12, once)


@attack
async def websocket_upgrades(hostile: Hostile) -> None:
    """Upgrades with nothing behind them, half requests, endless headers."""

    async def once() -> None:
        hostile.done["upgrades"] += 1
        kind = hostile.rng.randrange(3)
        if not kind:
            # from the honest client's address: the door counts both together
            stream = await open_websocket("127.0.0.1", hostile.target.websocket, tls=None)
            try:
                await stream.send_all(hostile.rng.randbytes(1000))
                with trio.move_on_after(0.1):
                    await stream.receive_some()
            finally:
                await trio.aclose_forcefully(stream)
            return
        raw = await trio.open_tcp_stream("127.0.0.1", hostile.target.websocket, local_address=HOST)
        try:
            await raw.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n")
            if kind == 1:
                while True:
                    await raw.send_all(b"X-A: " + b"a" * 8000 + b"\r\n")
            with trio.move_on_after(1):
                await raw.receive_some()
        finally:
            await trio.aclose_forcefully(raw)

    await many(hostile, 24, once)


# --- what makes the node send to others ---


@attack
async def probes_at_others(hostile: Hostile) -> None:
    """Dial-backs, probes for others, punches and call-backs that all name a bystander."""
    victim = (BYSTANDER, hostile.target.bystander)
    packed = reach_wire.pack_host(victim[0])

    async def ask(connection: Connection, protocol: str, *requests: bytes) -> None:
        stream = connection.open_stream(protocol)
        try:
            with trio.move_on_after(6):
                for request in requests:
                    await stream.send_message(request)
                    hostile.done["asked"] += 1
                    await stream.receive_message(4096)
        except PanalError:
            hostile.done["declined"] += 1
        finally:
            stream.reset()

    async def once() -> None:
        nonce = hostile.rng.randbytes(16)
        addresses = punch_plan.pack_addresses([victim] * 4)
        async with hostile.connected() as connection, trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(
                    ask, connection, reach_wire.PROTOCOL_ID,
                    reach_wire.encode(reach_wire.DialBack(nonce, [], victim[1])),
                )  # fmt: skip
                nursery.start_soon(
                    ask, connection, reach_wire.PROTOCOL_ID,
                    reach_wire.encode(reach_wire.ProbeFor(nonce, packed, [victim[1]])),
                )  # fmt: skip
                nursery.start_soon(
                    ask, connection, punch_plan.PROTOCOL_ID,
                    punch_plan.encode(punch_plan.CallBack(nonce, addresses)),
                )  # fmt: skip
                nursery.start_soon(
                    ask, connection, punch_plan.PROTOCOL_ID,
                    punch_plan.encode(punch_plan.Connect(nonce, addresses)),
                    punch_plan.encode(punch_plan.Sync()),
                )  # fmt: skip
                nursery.start_soon(ask, connection, dial_me.PROTOCOL_ID, b"")

    await many(hostile, 8, once)


@attack
async def dials_to_others(hostile: Hostile) -> None:
    """Adverts of many identities, all of which name a bystander, and then "dial me"."""

    victim_control = f"/ip4/{BYSTANDER}/tcp/{hostile.target.bystander}"

    def batch() -> list[bytes]:
        return [
            hostile.advert(
                Identity.generate(),
                relays=[f"{victim_control}/p2p/{Identity.generate().peer_id}"],
                serves_relay=True,
            )
            for _ in range(8)
        ]

    async def once() -> None:
        async with trio.open_nursery() as nursery:
            handlers = {exchange.PROTOCOL_ID: serve_adverts(hostile, batch)}
            endpoint = Endpoint(Identity.generate(), listen=(HOST, 0), handlers=handlers)
            await nursery.start(endpoint.run)
            own = hostile.advert(endpoint.identity)
            handlers[exchange.PROTOCOL_ID] = serve_adverts(hostile, lambda: [own])
            connection = await endpoint.connect(hostile.quic, timeout=3)
            for _ in range(6):
                stream = connection.open_stream(dial_me.PROTOCOL_ID)
                await stream.send_message(b"")
                hostile.done["asked"] += 1
                with trio.move_on_after(2):
                    await stream.receive_message(400)
                stream.reset()
            nursery.cancel_scope.cancel()

    await many(hostile, 8, once)


# --- garbage ---


@attack
async def garbage_on_every_quic_protocol(hostile: Hostile) -> None:
    """Noise, claimed lengths, cut and changed messages on all that the node serves over QUIC."""
    valid = [bytes.fromhex(hostile.target.expert_call), b"\x80", b"{}", bytes(64), exchange.encode_request(
        exchange.ChangesRequest(0, 0, 20_000))]  # fmt: skip
    valid += [reach_wire.encode(reach_wire.Observe()), punch_plan.encode(punch_plan.Sync())]

    async def once() -> None:
        async with hostile.connected() as connection:
            for protocol in hostile.target.quic_protocols * 20:
                stream = connection.open_stream(protocol)
                hostile.done[protocol] += 1
                with contextlib.suppress(PanalError):
                    await stream.send_bytes(_spoilt(hostile.rng, valid))
                    with trio.move_on_after(0.01):
                        await stream.receive_message(1 << 20)
                stream.reset()

    await many(hostile, 3, once)


@attack
async def garbage_on_every_control_protocol(hostile: Hostile) -> None:
    """The same on all that it serves over TCP, in its framing: bytes as they come."""
    valid = [encode_hop(HopMessage(HopType.RESERVE)), b"\x12/multistream/1.0.0", bytes(32)]
    valid += [
        encode_message(Message(Kind.FIND_NODE, b"x")),
        encode_message(Message(Kind.GET_PROVIDERS, b"y")),
    ]

    async def once() -> None:
        async with hostile.host() as host:
            for protocol in hostile.target.control_protocols * 10:
                stream = await host.open_stream(host.connected_peers[0], protocol, timeout=3)
                hostile.done[protocol] += 1
                with contextlib.suppress(PanalError):
                    body = hostile.rng.choice(valid)
                    await stream.write(hostile.rng.choice([
                        hostile.rng.randbytes(300), struct.pack("B", len(body)) + body, b"\xff" * 10,
                        struct.pack(">H", 1200) + hostile.rng.randbytes(1200), body,
                    ]))  # fmt: skip
                    with trio.move_on_after(0.01):
                        await stream.read(4096)
                stream.abort()

    await many(hostile, 3, once)


@attack
async def garbage_in_carried_paths(hostile: Hostile) -> None:
    """Streams of `/panal/datagrams/1` by the hundred, with noise for datagrams or none at all."""
    from routing.quic.carried import PROTOCOL_ID

    async def once() -> None:
        async with hostile.host() as host:
            streams = []
            for _ in range(120):
                stream = await host.open_stream(host.connected_peers[0], PROTOCOL_ID, timeout=3)
                streams.append(stream)
                hostile.done["paths"] += 1
                noise = b"\xc0\0\0\0\x01\x08" + hostile.rng.randbytes(1194)
                await stream.write(struct.pack(">H", len(noise)) + noise)
            await trio.sleep(1)

    await many(hostile, 4, once)


@attack
async def tiny_datagrams(hostile: Hostile) -> None:
    """Carried datagrams that are no QUIC, the shortest that are taken and shorter ones, without end."""
    from routing.quic.carried import PROTOCOL_ID

    async def once() -> None:
        async with hostile.host() as host:
            stream = await host.open_stream(host.connected_peers[0], PROTOCOL_ID, timeout=3)
            size = hostile.rng.choice([1, 21, 22])
            while True:
                await stream.write((struct.pack(">H", size) + b"\x40" * size) * 3000)
                hostile.done["datagrams"] += 3000

    await many(hostile, 4, once)


@attack
async def pings_in_one_stream(hostile: Hostile) -> None:
    """libp2p's ping, as many as its stream takes."""

    async def once() -> None:
        async with hostile.host() as host, trio.open_nursery() as nursery:
            stream = await host.open_stream(host.connected_peers[0], PING, timeout=3)

            async def read() -> None:
                while await stream.read(65536):
                    pass

            nursery.start_soon(read)
            while True:
                await stream.write(bytes(65536))
                hostile.done["pings"] += 2048

    await many(hostile, 4, once)


def _spoilt(rng: random.Random, valid: list[bytes]) -> bytes:
    body = bytearray(rng.choice(valid))
    match rng.randrange(5):
        case 0:
            return b"\xff\xff\xff\xff" + bytes(body)
        case 1:
            return len(body).to_bytes(4, "big") + bytes(body[: len(body) // 2])
        case 2:
            body = bytearray(rng.randbytes(rng.randrange(1, 400)))
        case 3:
            for _ in range(3):
                body[rng.randrange(len(body))] = rng.randrange(256)
    return len(body).to_bytes(4, "big") + bytes(body)


async def main(name: str, target: Target) -> None:
    # an attacker that nobody watches any more must not go on
    parent = os.getppid()
    async with trio.open_nursery() as nursery:
        hostile = Hostile(target, nursery)
        nursery.start_soon(ATTACKS[name], hostile)
        while os.getppid() == parent:
            await trio.sleep(REPORT_SECONDS)
            print(json.dumps(hostile.done), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Target(**json.loads(Path(sys.argv[2]).read_text())))
