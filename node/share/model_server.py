"""The model server: answers `/panal/model/1` and `/panal/models/1` (how: node.share.sending)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from node.model.chunks import list_bytes, list_of
from node.share.given import Given, GivenModel
from node.share.sending import COME_AGAIN_MS, Answer, Sender, SentCounts
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.wire import model_files as wire
from routing.wire import model_list
from routing.wire.experts import ProtocolError, Refusal, RefusalCode
from routing.wire.model_files import ModelFile

Reader = Callable[[], Awaitable[bytes]]


class ModelServer:
    """Sends manifests, metadata and trunks to whoever asks, and says what there is."""

    def __init__(self, given: Given, sender: Sender) -> None:
        self._given = given
        self._sender = sender
        self.counts = SentCounts()

    def pause(self, text: str) -> None:
        """Refuse requests from now on, and those of others who share the sender."""
        self._sender.pause(text)

    def resume(self) -> None:
        """Answer them again."""
        self._sender.resume()

    async def serve(self, stream: Stream) -> None:
        """Handler of `/panal/model/1`: requests one after the other; a caller may send some ahead."""
        await trio.to_thread.run_sync(self._given.look, trio.current_time())

        def admit(message: bytes, refused: str) -> Answer | Refusal:
            return self._admit(message, stream.peer_id, refused)

        await self._sender.serve(stream, self.counts, wire.REQUEST_BYTES, admit)

    async def serve_list(self, stream: Stream) -> None:
        """Handler of `/panal/models/1`."""
        while True:
            try:
                message = await stream.receive_message(model_list.MAX_REQUEST_BYTES)
            except StreamClosed:
                return
            model_list.decode_request(message, peer=stream.peer_id)
            await trio.to_thread.run_sync(self._given.look, trio.current_time())
            told = model_list.encode_list([] if self._sender.paused else self._given.offers())
            await self._sender.turn(stream, len(told))
            await stream.send_message(told)

    def _admit(self, message: bytes, peer: str, refused: str) -> Answer | Refusal:
        """What to send, or why nothing. Nothing is read or allocated for it yet."""
        try:
            request = wire.decode_message(message, peer=peer)
        except ProtocolError as error:
            return Refusal(error.call_id, 0, 0, RefusalCode.MALFORMED, str(error))
        if not isinstance(request, wire.ModelRequest):
            return Refusal(0, 0, 0, RefusalCode.MALFORMED, "a request is expected here")
        if refused:
            return wire.refusal_to(request, RefusalCode.OVERLOADED, refused, load=COME_AGAIN_MS)
        manifest = self._given.manifest(request.model_id)
        if manifest is None:
            text = f"model {request.model_id.hex()[:12]} is not shared here"
            return wire.refusal_to(request, RefusalCode.UNKNOWN_MODEL, text)
        if request.file is ModelFile.MANIFEST:
            return self._straight(request, manifest.encoded())
        given = self._given.model(request.model_id)
        if given is None:
            text = f"of model {request.model_id.hex()[:12]} only cells are shared here"
            return wire.refusal_to(request, RefusalCode.UNKNOWN_CALL, text)
        if request.file is ModelFile.TRUNK:
            return self._trunk(request, given)
        if request.metadata.hex() != given.share.metadata:
            text = "another file's metadata is shared here"
            return wire.refusal_to(request, RefusalCode.UNKNOWN_CALL, text)
        return self._straight(request, given.metadata)

    def _straight(self, request: wire.ModelRequest, data: bytes) -> Answer | Refusal:
        """A range of a file that is in memory, or of its list."""
        size = list_bytes(len(data)) if request.lists else len(data)

        async def read() -> bytes:
            whole = data
            if request.lists:
                whole = await trio.to_thread.run_sync(list_of, [memoryview(data)])
            return whole[request.offset : request.offset + request.length]

        return self._answer(request, size, read)

    def _trunk(self, request: wire.ModelRequest, given: GivenModel) -> Answer | Refusal:
        sizes = [list_bytes(part.size) if request.lists else part.size for part in given.trunk.parts]

        async def read() -> bytes:
            if request.lists:
                lists = await given.trunk_lists()
                return lists[request.offset : request.offset + request.length]
            return await trio.to_thread.run_sync(given.read_trunk, request.offset, request.length)

        return self._answer(request, sum(sizes), read)

    def _answer(self, request: wire.ModelRequest, size: int, read: Reader) -> Answer | Refusal:
        if request.offset + request.length > size:
            text = f"bytes {request.offset} to {request.offset + request.length} of {size}"
            return wire.refusal_to(request, RefusalCode.MALFORMED, text)
        return Answer(wire.encode_chunk_header(request), request.length, read)
