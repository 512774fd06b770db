"""`/panal/models/1`: "which models can be copied from you?" (docs/protocol.md, "Models"). Sans-IO.

Request and answer are one JSON object each, bounded and validated: any bytes give a message or
`ModelListError`. Unknown fields are ignored, so that later versions can add some.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from routing.errors import LocalError, PeerError
from routing.wire.codecs import Buffer
from routing.wire.holdings import MAX_SLICES, Slice, slice_fault
from routing.wire.text import sanitise

PROTOCOL_ID = "/panal/models/1"
VERSION = 1

MAX_REQUEST_BYTES = 1_024
"""A request says only which versions are spoken."""

MAX_ANSWER_BYTES = 256 * 2**10
"""A few models of which scattered cells are held; it is asked once a connection."""

MAX_MODELS = MAX_SLICES
"""Of one node: as many as it could announce."""

MAX_NAME_BYTES = 64
"""A model's name is shown in tables and typed by hand."""

MAX_MANIFEST_BYTES = 64 << 20
MAX_METADATA_BYTES = 24 << 20
"""As the readers of both have it (node.model)."""

MAX_BYTES = 1 << 50
"""Of a model: a thousand times the largest known."""

_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
_Word = Annotated[str, msgspec.Meta(pattern="^[a-z0-9_.-]{1,32}\\Z")]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
_Versions = Annotated[
    list[Annotated[int, msgspec.Meta(ge=1, le=255)]], msgspec.Meta(min_length=1, max_length=16)
]
_T = TypeVar("_T")


class ModelListError(PeerError):
    """A peer's bytes are no request or answer of `/panal/models/1`."""


class ModelListRequest(msgspec.Struct, frozen=True):
    """Which models can be copied from you?

    Attributes:
        versions: versions of `/panal/models` the asker speaks.
    """

    versions: _Versions


class Metadata(msgspec.Struct, frozen=True):
    """What a model's file says beside its tensors: tokenizer, chat template, rope scaling.

    Attributes:
        digest: of the metadata file (`ModelFile.METADATA`); the model id does not cover it.
        n_bytes: of that file.
    """

    digest: _Digest
    n_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_METADATA_BYTES)]


class Offer(msgspec.Struct, frozen=True):
    """What can be copied of one model.

    Attributes:
        model_id: 64 hex digits, lower case; all but `cells` follows from it, or is for people.
        name: what its owner calls it; printable, at most MAX_NAME_BYTES.
        architecture: as GGUF has it.
        layers, experts: layers with routed experts, and how many the first of them has.
        expert_bytes, trunk_bytes: of the whole model.
        manifest_bytes: size of the manifest.
        trunk: None if only cells are given; else with which metadata the trunk is.
        cells: which cells are given, as in `/panal/slices/1`; None for none.
    """

    model_id: _Digest
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES * 4)]
    architecture: _Word
    layers: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    experts: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    expert_bytes: _Bytes
    trunk_bytes: _Bytes
    manifest_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_MANIFEST_BYTES)]
    trunk: Metadata | None = None
    cells: Slice | None = None


class ModelList(msgspec.Struct, frozen=True):
    """Everything that can be copied from a node.

    Attributes:
        versions: versions of `/panal/models` it speaks.
        models: one entry a model id.
    """

    versions: _Versions
    models: Annotated[list[Offer], msgspec.Meta(max_length=MAX_MODELS)]


_request_decoder = msgspec.json.Decoder(ModelListRequest)
_list_decoder = msgspec.json.Decoder(ModelList)


def encode_request() -> bytes:
    """The request as bytes, without the frame's length."""
    return msgspec.json.encode(ModelListRequest([VERSION]))


def decode_request(buffer: Buffer, *, peer: str = "") -> ModelListRequest:
    """Read a request.

    Raises:
        ModelListError: if the bytes are none.
    """
    return _decoded(_request_decoder, buffer, MAX_REQUEST_BYTES, "models request", peer)


def encode_list(models: list[Offer]) -> bytes:
    """An answer as bytes, without the frame's length.

    Raises:
        LocalError: it is too large or breaks a rule, so that no peer would take it.
    """
    encoded = msgspec.json.encode(ModelList([VERSION], models))
    try:
        decode_list(encoded)
    except ModelListError as error:
        raise LocalError(f"these models can't be offered: {error}") from error
    return encoded


def decode_list(buffer: Buffer, *, peer: str = "") -> ModelList:
    """Read and check an answer.

    Raises:
        ModelListError: if the bytes are none, a model is there twice, or its runs make no sense.
    """
    told = _decoded(_list_decoder, buffer, MAX_ANSWER_BYTES, "models answer", peer)
    seen: set[str] = set()
    for offer in told.models:
        held = offer.cells
        fault = slice_fault(held) if held is not None else ""
        if offer.model_id in seen:
            fault = "it is there twice"
        elif held is not None and (held.kind, held.model_id) != ("experts", offer.model_id):
            fault = "its cells are another model's, or of another kind"
        seen.add(offer.model_id)
        if fault:
            raise _error(peer, "models answer", f"model {offer.model_id[:12]}: {fault}")
    models = [
        msgspec.structs.replace(offer, name=sanitise(offer.name, MAX_NAME_BYTES)) for offer in told.models
    ]
    return ModelList(told.versions, models)


def _decoded(decoder: msgspec.json.Decoder[_T], buffer: Buffer, limit: int, what: str, peer: str) -> _T:
    if memoryview(buffer).nbytes > limit:
        raise _error(peer, what, f"{memoryview(buffer).nbytes} bytes, more than the {limit} allowed")
    try:
        return decoder.decode(buffer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error(peer, what, str(error)) from error


def _error(peer: str, what: str, fault: str) -> ModelListError:
    text = sanitise(fault, 200)
    return ModelListError(f"{what} of {peer or 'a peer'}: {text}", peer=peer)
