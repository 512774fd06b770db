"""What a fetch asks a source for: the requests of `/panal/cells/1` and `/panal/model/1` behind one face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from routing.wire import cells, model_files
from routing.wire.experts import ProtocolError, Refusal


class Request(Protocol):
    """A range of bytes asked of a source.

    Attributes:
        protocol_id: of the stream that it goes out on.
        length: bytes asked for.
    """

    @property
    def protocol_id(self) -> str: ...
    @property
    def length(self) -> int: ...

    def encode(self) -> bytes: ...

    def max_reply_bytes(self) -> int:
        """The limit to read the reply with."""

    def read(self, reply: bytes, peer: str) -> memoryview | Refusal:
        """The bytes asked for, unproven, or why there are none.

        Raises:
            ProtocolError: it is no reply to this request.
        """


@dataclass(frozen=True)
class CellsAsked:
    """Bytes of cells, or of their lists."""

    request: cells.CellsRequest
    protocol_id: str = cells.PROTOCOL_ID

    @property
    def length(self) -> int:
        return self.request.length

    def encode(self) -> bytes:
        return cells.encode_request(self.request)

    def max_reply_bytes(self) -> int:
        return cells.max_reply_bytes(self.request)

    def read(self, reply: bytes, peer: str) -> memoryview | Refusal:
        message = cells.decode_message(reply, peer=peer)
        if isinstance(message, cells.CellsRequest):
            raise _a_request(peer)
        if isinstance(message, Refusal):
            return message
        cells.check_chunk(self.request, message, peer)
        return message.data


@dataclass(frozen=True)
class FileAsked:
    """Bytes of a model's manifest, metadata or trunk, or of their lists."""

    request: model_files.ModelRequest
    protocol_id: str = model_files.PROTOCOL_ID

    @property
    def length(self) -> int:
        return self.request.length

    def encode(self) -> bytes:
        return model_files.encode_request(self.request)

    def max_reply_bytes(self) -> int:
        return model_files.max_reply_bytes(self.request)

    def read(self, reply: bytes, peer: str) -> memoryview | Refusal:
        message = model_files.decode_message(reply, peer=peer)
        if isinstance(message, model_files.ModelRequest):
            raise _a_request(peer)
        if isinstance(message, Refusal):
            return message
        model_files.check_chunk(self.request, message, peer)
        return message.data


def _a_request(peer: str) -> ProtocolError:
    return ProtocolError(f"{peer} sent a request where a reply belongs", peer=peer)
