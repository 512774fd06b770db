"""A large write on a libp2p stream can be read, and passed on by a relay, while its end is on the way."""

from __future__ import annotations

import trio
import trio.testing

from routing.identity import Identity
from routing.libp2p.muxed_stream import MAX_FRAME_DATA, MuxedStream
from routing.libp2p.secure_channel import secure
from routing.libp2p.yamux import WRITE_BYTES, YamuxConnection
from tests.served import run

WRITTEN = bytes(range(256)) * 256


class Line(trio.abc.Stream):
    """One end of a line in memory that can be cut after so many bytes; what comes later waits."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._left: int | None = None
        self._mended = trio.Event()
        self.writes: list[int] = []

    def cut_after(self, count: int) -> None:
        self._left = count

    def mend(self) -> None:
        self._mended.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        data = bytes(data)
        self.writes.append(len(data))
        if self._left is not None:
            await self._stream.send_all(data[: self._left])
            data, self._left = data[self._left :], max(0, self._left - len(data))
            if not self._left:
                await self._mended.wait()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def aclose(self) -> None:
        await self._stream.aclose()


def test_half_of_a_write_is_there_when_half_has_arrived() -> None:
    async def main() -> None:
        near, far = trio.testing.memory_stream_pair()
        line, identities = Line(near), (Identity.generate(), Identity.generate())
        opened: list[MuxedStream] = []
        connections: list[YamuxConnection] = []

        async def shake_hands(stream: trio.abc.Stream, identity: Identity, *, initiator: bool) -> None:
            channel = await secure(stream, identity, expected=None, initiator=initiator)
            connections.append(
                YamuxConnection(
                    channel,
                    remote="memory",
                    dialed=initiator,
                    early=b"",
                    on_stream=lambda _, stream: opened.append(stream),
                )
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: shake_hands(line, identities[0], initiator=True))
            nursery.start_soon(lambda: shake_hands(far, identities[1], initiator=False))
        dialer = next(each for each in connections if each.dialed)
        async with trio.open_nursery() as nursery:
            for each in connections:
                nursery.start_soon(each.run)
            writer = dialer.open_stream()
            await writer.write(b"x")
            await trio.testing.wait_all_tasks_blocked()
            reader = opened[0]
            assert await reader.read(100) == b"x"

            line.cut_after(len(WRITTEN) // 2)
            line.writes.clear()
            await writer.write(WRITTEN)
            await trio.testing.wait_all_tasks_blocked()
            first = await reader.read(len(WRITTEN))
            assert len(WRITTEN) // 2 - MAX_FRAME_DATA <= len(first) <= len(WRITTEN) // 2
            assert line.writes[0] > WRITE_BYTES - 2 * MAX_FRAME_DATA  # and yet given to the system at once

            line.mend()
            while len(first) < len(WRITTEN):
                first += await reader.read(len(WRITTEN))
            assert first == WRITTEN
            nursery.cancel_scope.cancel()

    run(main)
