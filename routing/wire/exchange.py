"""`/panal/adverts/1`: connected peers keep each other's adverts fresh (docs/protocol.md, "Exchange").

A long poll. The asker names how far it has read (a cursor) and how long it will wait; the answer holds
what has changed since, each advert with its age, and the next cursor. Request and answer are one
msgpack map each. Any bytes give a message or `ExchangeError`; unknown fields are ignored.

What an advert is worth is not looked at here: `routing.adverts.AdvertTable.offer` does that.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from routing.errors import PeerError
from routing.wire.advert import MAX_ADVERT_BYTES, MAX_LIFETIME
from routing.wire.codecs import Buffer
from routing.wire.text import sanitise

PROTOCOL_ID = "/panal/adverts/1"

MAX_REQUEST_BYTES = 1_024
"""Three numbers."""

MAX_ANSWER_BYTES = 256 * 2**10
"""A whole swarm of 400 ordinary nodes in a few answers, and nothing that hurts to hold."""

MAX_ADVERTS = 64
"""In one answer: 64 signatures are 10 ms of the receiver's time."""

MAX_WAIT_MS = 20_000
"""How long a request may be held: below the 30 s after which NATs and idle timers forget."""

ENTRY_OVERHEAD = 12
"""Bytes of an answer that an advert costs besides its own: three headers and its age."""

ANSWER_OVERHEAD = 128
"""Bytes of an answer without adverts, rounded up."""

MAX_AGE_MS = MAX_LIFETIME * 1000

_T = TypeVar("_T")
_Number = Annotated[int, msgspec.Meta(ge=0)]


class ExchangeError(PeerError):
    """A peer's bytes are no request or answer of `/panal/adverts/1`."""


class ChangesRequest(msgspec.Struct, frozen=True):
    """What has changed since?

    Attributes:
        epoch: u64 of the answer before; 0 the first time.
        counter: of the answer before; 0 the first time.
        wait_ms: how long the answer may be held back while nothing has changed.
    """

    epoch: _Number
    counter: _Number
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_WAIT_MS)]


class ChangesAnswer(msgspec.Struct, frozen=True):
    """What has changed.

    Attributes:
        epoch: of the answerer's table. Another one than asked with: everything is told from the start.
        counter: to ask with next.
        more: there is more already.
        adverts: (age in milliseconds, the advert's bytes), oldest change first. The age is the time since it
            was issued, as far as those who passed it on can tell.
    """

    epoch: _Number
    counter: _Number
    more: bool
    adverts: Annotated[
        list[
            tuple[
                Annotated[int, msgspec.Meta(ge=0, le=MAX_AGE_MS)],
                Annotated[bytes, msgspec.Meta(max_length=MAX_ADVERT_BYTES)],
            ]
        ],
        msgspec.Meta(max_length=MAX_ADVERTS),
    ]


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(ChangesRequest)
_answer_decoder = msgspec.msgpack.Decoder(ChangesAnswer)


def encode_request(request: ChangesRequest) -> bytes:
    """A request as bytes, without the frame's length."""
    return _encoder.encode(request)


def decode_request(buffer: Buffer, *, peer: str = "") -> ChangesRequest:
    """Read a request.

    Raises:
        ExchangeError: if the bytes are none.
    """
    return _decoded(_request_decoder, buffer, MAX_REQUEST_BYTES, "adverts request", peer)


def encode_answer(answer: ChangesAnswer) -> bytes:
    """An answer as bytes, without the frame's length."""
    return _encoder.encode(answer)


def decode_answer(buffer: Buffer, *, peer: str = "") -> ChangesAnswer:
    """Read an answer; its adverts are still bytes.

    Raises:
        ExchangeError: if the bytes are none.
    """
    return _decoded(_answer_decoder, buffer, MAX_ANSWER_BYTES, "adverts answer", peer)


def _decoded(decoder: msgspec.msgpack.Decoder[_T], buffer: Buffer, limit: int, what: str, peer: str) -> _T:
    size = memoryview(buffer).nbytes
    if size > limit:
        raise _error(peer, what, f"{size} bytes, more than the {limit} allowed")
    try:
        return decoder.decode(buffer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error(peer, what, str(error)) from None


def _error(peer: str, what: str, fault: str) -> ExchangeError:
    return ExchangeError(f"{what} of {peer or 'a peer'}: {sanitise(fault, 200)}", peer=peer)
