"""The five stacks the plane is measured against, each as a server and as a dialed channel of messages.

All carry the same messages (32-bit length, then the bytes) on one stream and answer by the same rules,
`serve_messages`. Run as a process by `bench_plane`:

    plane_stacks.py serve STACK          prints one JSON line with its address, serves until stdin closes
    plane_stacks.py dial STACK ADDRESS   answers a JSON line to each line on stdin: "calls N BYTES",
                                         "bulk BYTES"
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

STACKS = ("plane-qh3", "plane-aioquic", "aioquic-asyncio", "libp2p-tcp-noise", "trio-tcp")

PROTOCOL = "/panal/bench/1"
HOST = "127.0.0.1"
MAX_BYTES = 64 << 20
BULK_MESSAGE_BYTES = 100_000
READ_BYTES = 1 << 16

# first byte of a message
ECHO, SWALLOW, REPORT = 0, 1, 2

Receive = Callable[[], Awaitable[bytes]]
Send = Callable[[bytes], Awaitable[None]]


async def serve_messages(receive: Receive, send: Send) -> None:
    """Echo, swallow, or say how much was swallowed, until the stream ends (an exception of the stack)."""
    swallowed = 0
    while True:
        message = await receive()
        if message[0] == SWALLOW:
            swallowed += len(message)
        elif message[0] == REPORT:
            await send(b"\2" + swallowed.to_bytes(8, "big"))
            swallowed = 0
        else:
            await send(message)


async def calls(receive: Receive, send: Send, count: int, size: int) -> list[float]:
    """Seconds of each of `count` echoes of `size` bytes, one after the other."""
    message = bytes([ECHO]) + os.urandom(size - 1)
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        await send(message)
        answer = await receive()
        taken.append(time.perf_counter() - start)
        assert len(answer) == size
    return taken


async def bulk(receive: Receive, send: Send, size: int) -> float:
    """Seconds to bring `size` bytes to the server, until it says it has them."""
    message = bytes([SWALLOW]) + os.urandom(BULK_MESSAGE_BYTES - 1)
    start = time.perf_counter()
    for _ in range(size // BULK_MESSAGE_BYTES):
        await send(message)
    await send(bytes([REPORT]))
    answer = await receive()
    taken = time.perf_counter() - start
    assert int.from_bytes(answer[1:9], "big") == size // BULK_MESSAGE_BYTES * BULK_MESSAGE_BYTES
    return taken


def framed(read_exactly: Callable[[int], Awaitable[bytes]], write: Send) -> tuple[Receive, Send]:
    """Our messages on any stream of bytes."""

    async def receive() -> bytes:
        return await read_exactly(int.from_bytes(await read_exactly(4), "big"))

    async def send(message: bytes) -> None:
        await write(len(message).to_bytes(4, "big") + message)

    return receive, send


def buffered(read_some: Callable[[int], Awaitable[bytes]]) -> Callable[[int], Awaitable[bytes]]:
    """Exact reads out of few, large ones."""
    buffer = bytearray()

    async def read_exactly(count: int) -> bytes:
        while len(buffer) < count:
            data = await read_some(max(READ_BYTES, count - len(buffer)))
            if not data:
                raise EOFError
            buffer.extend(data)
        taken = bytes(buffer[:count])
        del buffer[:count]
        return taken

    return read_exactly


# --- each stack: an async context manager that serves and yields its address, one that dials ---


def plane_endpoint(stack: str) -> Any:
    from routing.identity import Identity
    from routing.quic.endpoint import Endpoint
    from routing.quic.stream import Stream

    async def handle(stream: Stream) -> None:
        await serve_messages(lambda: stream.receive_message(MAX_BYTES), stream.send_message)

    return Endpoint(
        Identity.generate(),
        listen=(HOST, 0),
        backend=stack.removeprefix("plane-"),
        handlers={PROTOCOL: handle},
    )


@contextlib.asynccontextmanager
async def plane_server(stack: str) -> AsyncIterator[list[Any]]:
    async with trio.open_nursery() as nursery:
        endpoint = plane_endpoint(stack)
        await nursery.start(endpoint.run)
        yield [endpoint.local_address[1], endpoint.peer_id]
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def plane_channel(stack: str, address: list[Any]) -> AsyncIterator[tuple[Receive, Send]]:
    from routing.multiaddr import PeerAddress

    async with trio.open_nursery() as nursery:
        endpoint = plane_endpoint(stack)
        await nursery.start(endpoint.run)
        connection = await endpoint.connect(PeerAddress(HOST, address[0], address[1]))
        stream = connection.open_stream(PROTOCOL)
        yield lambda: stream.receive_message(MAX_BYTES), stream.send_message
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def tcp_server(stack: str) -> AsyncIterator[list[Any]]:
    async def handle(stream: trio.SocketStream) -> None:
        with contextlib.suppress(EOFError, trio.BrokenResourceError):
            await serve_messages(*framed(buffered(stream.receive_some), stream.send_all))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(lambda **kw: trio.serve_tcp(handle, 0, host=HOST, **kw))
        yield [listeners[0].socket.getsockname()[1]]
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def tcp_channel(stack: str, address: list[Any]) -> AsyncIterator[tuple[Receive, Send]]:
    stream = await trio.open_tcp_stream(HOST, address[0])
    yield framed(buffered(stream.receive_some), stream.send_all)
    await stream.aclose()


def libp2p_host() -> Any:
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_pair
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport

    keys = create_new_key_pair()
    noise = Transport(keys, noise_privkey=create_noise_pair().private_key)
    return new_host(key_pair=keys, sec_opt={PROTOCOL_ID: noise}, muxer_preference="YAMUX")


@contextlib.asynccontextmanager
async def libp2p_server(stack: str) -> AsyncIterator[list[Any]]:
    from multiaddr import Multiaddr

    async def handle(stream: Any) -> None:
        with contextlib.suppress(EOFError, Exception):
            await serve_messages(*framed(buffered(stream.read), stream.write))

    host = libp2p_host()
    host.set_stream_handler(PROTOCOL, handle)
    async with host.run(listen_addrs=[Multiaddr(f"/ip4/{HOST}/tcp/0")]):
        address = next(str(each) for each in host.get_addrs() if "/tcp/" in str(each))
        yield [address]


@contextlib.asynccontextmanager
async def libp2p_channel(stack: str, address: list[Any]) -> AsyncIterator[tuple[Receive, Send]]:
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from multiaddr import Multiaddr

    host = libp2p_host()
    async with host.run(listen_addrs=[Multiaddr(f"/ip4/{HOST}/tcp/0")]):
        info = info_from_p2p_addr(Multiaddr(address[0]))
        await host.connect(info)
        stream = await host.new_stream(info.peer_id, [PROTOCOL])
        yield framed(buffered(stream.read), stream.write)


def aioquic_configuration(is_client: bool) -> Any:
    import datetime

    from aioquic.quic.configuration import QuicConfiguration

    from routing.identity import Identity
    from routing.quic.certificate import make_certificate

    made = make_certificate(Identity.generate(), datetime.datetime.now(datetime.UTC))
    configuration = QuicConfiguration(
        is_client=is_client, alpn_protocols=["bench"], verify_mode=ssl.CERT_NONE
    )
    configuration.certificate, configuration.private_key = made.certificate, made.private_key
    return configuration


def asyncio_framed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Receive, Send]:
    async def write(data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    return framed(reader.readexactly, write)


@contextlib.asynccontextmanager
async def aioquic_server(stack: str) -> AsyncIterator[list[Any]]:
    from aioquic.asyncio import serve

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await serve_messages(*asyncio_framed(reader, writer))

    tasks = set()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(handle(reader, writer)))

    server = await serve(HOST, 0, configuration=aioquic_configuration(False), stream_handler=start)
    yield [server._transport.get_extra_info("sockname")[1]]
    server.close()


@contextlib.asynccontextmanager
async def aioquic_channel(stack: str, address: list[Any]) -> AsyncIterator[tuple[Receive, Send]]:
    from aioquic.asyncio import connect

    async with connect(HOST, address[0], configuration=aioquic_configuration(True)) as protocol:

        async def keep_alive() -> None:
            while True:
                await asyncio.sleep(10)
                await protocol.ping()

        task = asyncio.ensure_future(keep_alive())
        yield asyncio_framed(*await protocol.create_stream())
        task.cancel()


KINDS: dict[str, tuple[Any, Any]] = {
    "plane-qh3": (plane_server, plane_channel),
    "plane-aioquic": (plane_server, plane_channel),
    "aioquic-asyncio": (aioquic_server, aioquic_channel),
    "libp2p-tcp-noise": (libp2p_server, libp2p_channel),
    "trio-tcp": (tcp_server, tcp_channel),
}


def run(stack: str, main: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    if stack == "aioquic-asyncio":
        asyncio.run(main(*arguments))  # type: ignore[arg-type]
    else:
        trio.run(main, *arguments)


async def next_line(stack: str) -> str:
    """A line of stdin, without stopping the event loop: connections must stay alive meanwhile."""
    if stack == "aioquic-asyncio":
        return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return await trio.to_thread.run_sync(sys.stdin.readline)


async def serve(stack: str) -> None:
    async with KINDS[stack][0](stack) as address:
        print(json.dumps(address), flush=True)
        await next_line(stack)


async def dial(stack: str, address: list[Any]) -> None:
    async with KINDS[stack][1](stack, address) as (receive, send):
        await calls(receive, send, 20, 12_288)
        print("[]", flush=True)
        while command := (await next_line(stack)).split():
            if command[0] == "calls":
                result: Any = await calls(receive, send, int(command[1]), int(command[2]))
            else:
                result = await bulk(receive, send, int(command[1]))
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    role, name = sys.argv[1:3]
    if role == "serve":
        run(name, serve, name)
    else:
        run(name, dial, name, json.loads(sys.argv[3]))
    os._exit(0)  # py-libp2p and asyncio take seconds to wind down, and nothing is left to do
