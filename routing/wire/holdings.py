"""`/panal/slices/1`: after connecting, a node asks "what do you serve?" (docs/protocol.md, "Slices").

Request and answer are one JSON object each. Sans-IO, bounded, validated: any bytes give a message or
`HoldingsError`. Unknown fields are ignored, so that later versions can add some.

Runs are [first, last], both included, ascending and apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from routing.errors import LocalError, PeerError
from routing.wire.codecs import Buffer
from routing.wire.limits import MAX_EXPERT, MAX_ROWS
from routing.wire.text import sanitise

PROTOCOL_ID = "/panal/slices/1"

MAX_REQUEST_BYTES = 1_024
"""A request says only which versions are spoken."""

MAX_ANSWER_BYTES = 64 * 2**10
"""Room for some 500 runs of layers with scattered experts; it is sent once a connection."""

MAX_NAME_BYTES = 64
"""A node's name is shown in tables."""

MAX_SOFTWARE_BYTES = 32
"""Name and version of what it runs."""

MAX_BUILD_BYTES = 64
"""The digest of what computes, as text; ours has 16 hex digits."""

MAX_SLICES = 64
"""Slices in an answer: a node serves a few models, not a library."""

MAX_LAYER_RUNS = 512
"""Runs of layers in a slice: every layer of the deepest models with experts of its own."""

MAX_EXPERT_RUNS = 512
"""Runs of experts in a run of layers: every second one of 1,024."""

MAX_WORDS = 16
"""Codecs or combines listed; there are three of each."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXPERT)]
_Run = tuple[_Number, _Number]
_ExpertRuns = Annotated[list[_Run], msgspec.Meta(min_length=1, max_length=MAX_EXPERT_RUNS)]
_Word = Annotated[str, msgspec.Meta(pattern="^[a-z0-9_.-]{1,32}\\Z")]
_Words = Annotated[list[_Word], msgspec.Meta(max_length=MAX_WORDS)]
_Versions = Annotated[
    list[Annotated[int, msgspec.Meta(ge=1, le=255)]], msgspec.Meta(min_length=1, max_length=16)
]
_T = TypeVar("_T")
_ModelId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]


class HoldingsError(PeerError):
    """A peer's bytes are no request or answer of `/panal/slices/1`."""


class HoldingsRequest(msgspec.Struct, frozen=True):
    """What do you serve?

    Attributes:
        versions: versions of `/panal/slices` the asker speaks.
    """

    versions: _Versions


class Slice(msgspec.Struct, frozen=True):
    """What a node serves of one model.

    Attributes:
        kind: `experts` (runs of experts of runs of layers) or `layers` (whole layers).
        model_id: 64 hex digits, lower case.
        architecture: as GGUF has it (`general.architecture`); for people, the model id decides.
        layers: for kind layers: runs of layers; otherwise empty.
        experts: for kind experts: [layer first, layer last, runs of experts] each; otherwise empty.
    """

    kind: Literal["experts", "layers"]
    model_id: _ModelId
    architecture: _Word
    layers: Annotated[list[_Run], msgspec.Meta(max_length=MAX_LAYER_RUNS)] = []
    experts: Annotated[
        list[tuple[_Number, _Number, _ExpertRuns]], msgspec.Meta(max_length=MAX_LAYER_RUNS)
    ] = []

    def expert_runs(self, layer: int) -> Sequence[tuple[int, int]]:
        """The runs of experts it holds of a layer; empty if none."""
        for first, last, runs in self.experts:
            if first <= layer <= last:
                return runs
        return ()

    def covers(self, other: Slice) -> bool:
        """Whether it holds all that another slice names, in whatever runs."""
        if (self.kind, self.model_id) != (other.kind, other.model_id) or not _within(
            other.layers, self.layers
        ):
            return False
        named = [(first, last) for first, last, _ in other.experts]
        return _within(named, [(first, last) for first, last, _ in self.experts]) and all(
            _within(runs, held)
            for first, last, runs in other.experts
            for held_first, held_last, held in self.experts
            if held_first <= last and first <= held_last
        )

    def layer_numbers(self) -> Iterator[int]:
        """The layers of which it holds anything, ascending."""
        for first, last in [(first, last) for first, last, _ in self.experts] or self.layers:
            yield from range(first, last + 1)


class Holdings(msgspec.Struct, frozen=True):
    """What a node serves, and how.

    Attributes:
        versions: versions of `/panal/experts` it speaks.
        name: what its owner calls it; printable, at most MAX_NAME_BYTES.
        slices: what it serves.
        codecs: names as in `codecs.CODEC_NAMES`; unknown ones are a later version's.
        combines: `rows`, `sum`, `stable`.
        max_rows: rows of x it takes in one request.
        software: what it runs, for people: "panal 0.1.0"; "" if it does not say.
        build: its build class, 16 hex digits: servers of one class give the same bytes for the same request;
            "" if it does not say.
    """

    versions: _Versions
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES * 4)]
    slices: Annotated[list[Slice], msgspec.Meta(max_length=MAX_SLICES)]
    codecs: _Words
    combines: _Words
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)]
    software: Annotated[str, msgspec.Meta(max_length=MAX_SOFTWARE_BYTES * 4)] = ""
    build: Annotated[str, msgspec.Meta(max_length=MAX_BUILD_BYTES * 4)] = ""


_request_decoder = msgspec.json.Decoder(HoldingsRequest)
_holdings_decoder = msgspec.json.Decoder(Holdings)


def encode_request(request: HoldingsRequest) -> bytes:
    """A request as bytes, without the frame's length."""
    return msgspec.json.encode(request)


def decode_request(buffer: Buffer, *, peer: str = "") -> HoldingsRequest:
    """Read a request.

    Raises:
        HoldingsError: if the bytes are none.
    """
    return _decoded(_request_decoder, buffer, MAX_REQUEST_BYTES, "slices request", peer)


def encode_holdings(holdings: Holdings) -> bytes:
    """An answer as bytes, without the frame's length.

    Raises:
        LocalError: if it is too large or breaks a rule, so that no peer would take it.
    """
    encoded = msgspec.json.encode(holdings)
    try:
        decode_holdings(encoded)
    except HoldingsError as error:
        raise LocalError(f"these slices can't be announced: {error}") from error
    return encoded


def decode_holdings(buffer: Buffer, *, peer: str = "") -> Holdings:
    """Read and check an answer.

    Raises:
        HoldingsError: if the bytes are none, or the runs make no sense.
    """
    holdings = _decoded(_holdings_decoder, buffer, MAX_ANSWER_BYTES, "slices answer", peer)
    for number, held in enumerate(holdings.slices):
        fault = slice_fault(held)
        if fault:
            raise _error(peer, "slices answer", f"slice {number}: {fault}")
    return msgspec.structs.replace(
        holdings,
        name=sanitise(holdings.name, MAX_NAME_BYTES),
        software=sanitise(holdings.software, MAX_SOFTWARE_BYTES),
        build=sanitise(holdings.build, MAX_BUILD_BYTES),
    )


def compact_cells(cells: Mapping[int, Iterable[int]]) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Expert numbers by layer as `Slice.experts`: neighbouring layers that are alike share an entry."""
    compact: list[tuple[int, int, list[tuple[int, int]]]] = []
    for layer in sorted(cells):
        runs: list[tuple[int, int]] = []
        for expert in sorted(set(cells[layer])):
            if runs and runs[-1][1] == expert - 1:
                runs[-1] = (runs[-1][0], expert)
            else:
                runs.append((expert, expert))
        if not runs:
            continue
        if compact and compact[-1][1] == layer - 1 and compact[-1][2] == runs:
            compact[-1] = (compact[-1][0], layer, runs)
        else:
            compact.append((layer, layer, runs))
    return compact


def _decoded(decoder: msgspec.json.Decoder[_T], buffer: Buffer, limit: int, what: str, peer: str) -> _T:
    if memoryview(buffer).nbytes > limit:
        raise _error(peer, what, f"{memoryview(buffer).nbytes} bytes, more than the {limit} allowed")
    try:
        return decoder.decode(buffer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error(peer, what, str(error)) from error


def slice_fault(held: Slice) -> str:
    """What is wrong with a slice's runs; "" if nothing."""
    if held.kind == "experts" and (held.layers or not held.experts):
        return "kind experts takes runs of experts and no runs of layers"
    if held.kind == "layers" and (held.experts or not held.layers):
        return "kind layers takes runs of layers and no experts"
    if not _ascending(held.layers) or not _ascending([(first, last) for first, last, _ in held.experts]):
        return "its runs of layers are not ascending and apart"
    if not all(_ascending(runs) for _, _, runs in held.experts):
        return "a layer's runs of experts are not ascending and apart"
    return ""


def _within(inner: Sequence[tuple[int, int]], outer: Sequence[tuple[int, int]]) -> bool:
    """Whether each number of some runs is in others, both ascending and apart."""
    at = 0
    for first, last in inner:
        while first <= last:
            while at < len(outer) and outer[at][1] < first:
                at += 1
            if at == len(outer) or outer[at][0] > first:
                return False
            first = outer[at][1] + 1
    return True


def _ascending(runs: Sequence[tuple[int, int]]) -> bool:
    end = -1
    for first, last in runs:
        if first <= end or last < first:
            return False
        end = last
    return True


def _error(peer: str, what: str, fault: str) -> HoldingsError:
    text = sanitise(fault, 200)
    return HoldingsError(f"{what} of {peer or 'a peer'}: {text}", peer=peer)
