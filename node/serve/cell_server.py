"""The cell server: answers `/panal/cells/1` with the weights a node holds (how: node.share.sending).

A list of digests is made when it is asked for, expert by expert: what was read for it is about to be asked
for itself, and its pages are at hand then. Lists are kept, since several peers may fetch the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

import trio

from node.model.chunks import list_bytes, list_of
from node.serve.cells import HeldCall
from node.share.sending import COME_AGAIN_MS, HASHED_PER_SENT, Answer, Sender, SentCounts
from routing.quic.stream import Stream
from routing.wire import cells as wire
from routing.wire.experts import ProtocolError, Refusal, RefusalCode

CellCounts = SentCounts

MAX_KEPT_LISTS = 4 << 20
"""Bytes of lists that are kept: those of 30 GB of experts."""


class CellSource(Protocol):
    """What can be sent."""

    def knows(self, model_id: bytes) -> bool: ...

    def find(self, model_id: bytes, layer: int, index: int) -> HeldCall | None: ...


class CellServer:
    """Sends cells to whoever asks.

    Args:
        rate: bytes a second for all callers together.
        sender: shared with others who send; `rate` is its business then.
    """

    def __init__(self, cells: CellSource, *, rate: float = 0.0, sender: Sender | None = None) -> None:
        self._cells = cells
        self._sender = sender or Sender(rate=rate)
        self._lists: OrderedDict[tuple[bytes, int, int, int], bytes] = OrderedDict()
        self._kept = 0
        self.counts = SentCounts()

    def pause(self, text: str) -> None:
        """Refuse requests from now on, and those of others who share the sender."""
        self._sender.pause(text)

    def resume(self) -> None:
        """Answer them again."""
        self._sender.resume()

    def swap(self, cells: CellSource) -> None:
        """Give these from now on."""
        self._cells = cells

    @property
    def is_busy(self) -> bool:
        """Whether anybody is being served."""
        return self._sender.is_busy

    async def serve(self, stream: Stream) -> None:
        """Handler of `/panal/cells/1`: requests one after the other; a caller may send some ahead."""

        def admit(message: bytes, refused: str) -> Answer | Refusal:
            return self._admit(message, stream, refused)

        await self._sender.serve(stream, self.counts, wire.REQUEST_BYTES, admit)

    def _admit(self, message: bytes, stream: Stream, refused: str) -> Answer | Refusal:
        """What to send, or why nothing. Nothing is read or allocated for it yet."""
        try:
            request = wire.decode_message(message, peer=stream.peer_id)
        except ProtocolError as error:
            return Refusal(error.call_id, 0, 0, RefusalCode.MALFORMED, str(error))
        if not isinstance(request, wire.CellsRequest):
            return Refusal(0, 0, 0, RefusalCode.MALFORMED, "a request is expected here")
        if refused:
            return wire.refusal_to(request, RefusalCode.OVERLOADED, refused, load=COME_AGAIN_MS)
        if not self._cells.knows(request.model_id):
            text = f"model {request.model_id.hex()[:12]} is not served here"
            return wire.refusal_to(request, RefusalCode.UNKNOWN_MODEL, text)
        held = self._cells.find(request.model_id, request.layer, request.call_index)
        if held is None:
            text = f"nothing of layer {request.layer} is served here"
            return wire.refusal_to(request, RefusalCode.UNKNOWN_CALL, text)
        asked = range(request.first, request.first + request.count)
        missing = tuple(sorted(set(asked).difference(held.experts())))
        if missing:
            text = f"layer {request.layer}: not all experts are served here"
            return wire.refusal_to(request, RefusalCode.NOT_HELD, text, missing=missing)
        one = list_bytes(held.call.bytes_per_cell) if request.lists else held.call.bytes_per_cell
        if request.offset + request.length > request.count * one:
            text = f"bytes {request.offset} to {request.offset + request.length} of {request.count * one}"
            return wire.refusal_to(request, RefusalCode.MALFORMED, text)

        async def read() -> bytes:
            if request.lists:
                return await self._read_lists(stream, held, request)
            return await trio.to_thread.run_sync(read_blob, held, request)

        return Answer(wire.encode_chunk_header(request), request.length, read)

    async def _read_lists(self, stream: Stream, held: HeldCall, request: wire.CellsRequest) -> bytes:
        """The range of lists that a request asks for: those of other experts are not made."""
        one = list_bytes(held.call.bytes_per_cell)
        first, last = request.offset // one, (request.offset + request.length - 1) // one
        found = bytearray()
        for expert in range(request.first + first, request.first + last + 1):
            key = (request.model_id, request.layer, request.call_index, expert)
            if key in self._lists:
                self._lists.move_to_end(key)
                found += self._lists[key]
                continue
            made = await trio.to_thread.run_sync(list_of_expert, held, expert)
            found += made
            self._keep(key, made)
            await self._sender.own_turn(held.call.bytes_per_cell // HASHED_PER_SENT)
        start = request.offset - first * one
        return bytes(found[start : start + request.length])

    def _keep(self, key: tuple[bytes, int, int, int], made: bytes) -> None:
        if key in self._lists:
            return
        self._lists[key] = made
        self._kept += len(made)
        while self._kept > MAX_KEPT_LISTS:
            self._kept -= len(self._lists.popitem(last=False)[1])


def list_of_expert(held: HeldCall, expert: int) -> bytes:
    """The list of a held expert's chunks."""
    return list_of(expert_parts(held, expert))


def expert_parts(held: HeldCall, expert: int) -> Iterator[memoryview]:
    """A held expert's tensors where they lie, in the manifest's order."""
    run = held.run_with(expert)
    for tensor in held.call.tensors:
        start = (expert - run.first) * tensor.bytes_per_expert
        yield run.tensors[tensor.role].data[start : start + tensor.bytes_per_expert].data


def read_blob(held: HeldCall, request: wire.CellsRequest) -> bytes:
    """The bytes of a request, copied out of the map. All its experts are held, the range is in their blob."""
    size = held.call.bytes_per_cell
    position, end = request.offset, request.offset + request.length
    parts: list[bytes] = []
    while position < end:
        number, within = divmod(position, size)
        for part in expert_parts(held, request.first + number):
            if within >= len(part):
                within -= len(part)
                continue
            piece = part[within : within + end - position]
            parts.append(piece.tobytes())
            position, within = position + len(piece), 0
            if position == end:
                break
    return b"".join(parts)
