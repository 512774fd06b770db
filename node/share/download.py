"""What is fetched of a model, and where it goes: the target of `node.share.fetch`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from node.home.call_bits import numbers, run_bits
from node.model.chunks import list_bytes
from node.share import fetch
from node.share.growing import GrowingBlob
from node.share.requests import CellsAsked, FileAsked, Request
from node.share.target import WrongBytes
from node.share.work import EVERY
from routing.wire import cells, model_files
from routing.wire.experts import Refusal
from routing.wire.model_files import ModelFile

LIST_AHEAD_BYTES = 32 << 20
"""Lists are asked for so far ahead of what they prove: a source reads it all through to make them, and should
still have it in memory when it is asked for."""

LISTED_BYTES = 2 << 20
"""What the lists prove that are asked for together: as much as is asked for ahead (fetch.WINDOW_BYTES), so
that several sources begin at once, each with lists of its own."""


class Key(NamedTuple):
    """A blob of a model, or its lists.

    Attributes:
        file: the model's file that it is; None for cells.
        layer, call: whose cells they are.
        lists: the blob's lists are meant.
    """

    file: ModelFile | None
    layer: int = 0
    call: int = 0
    lists: bool = False

    @property
    def data(self) -> Key:
        """The same but for `lists`."""
        return self._replace(lists=False)

    @property
    def label(self) -> str:
        """For errors."""
        what = f"layer {self.layer}" if self.file is None else f"the {self.file.name.lower()}"
        if self.call:
            what += f" (call {self.call})"
        return f"a list of digests of {what}" if self.lists else what


class Download:
    """Blobs of one model that are being fetched; a target of `fetch`.

    Args:
        model_id: 32 bytes.
        metadata: digest of the metadata that is wanted, if any.
    """

    def __init__(self, model_id: bytes, metadata: bytes = bytes(32)) -> None:
        self._model_id = model_id
        self._metadata = metadata
        self._blobs: dict[Key, list[GrowingBlob]] = {}
        self._units: dict[tuple[Key, int], int] = {}  # worked out once
        self._promised: dict[tuple[Key, str], int] = {}  # units whose lists a peer was asked for

    def add(self, key: Key, blob: GrowingBlob) -> None:
        """Fetch this too. There may be several of a key, which want different parts: of two slice files."""
        self._blobs.setdefault(key, []).append(blob)

    def lacking(self) -> dict[Key, int]:
        """What is not there yet, in the order in which it is to come."""
        found: dict[Key, int] = {}
        for key, blobs in self._blobs.items():
            lists = units = 0
            for blob in blobs:
                lists |= blob.lists_lacking()
                units |= blob.lacking()
            found |= {key: units} if units else {}
            found |= {key._replace(lists=True): lists} if lists else {}
        return found

    def askable(self, key: Key, peer_id: str) -> int:
        """The units that a peer may be asked for now: what can be proven when it comes, and lists of what is
        next. Replies come in the order of requests: what a list proves may be asked for right behind it."""
        found = 0 if key.lists else self._promised.get((key, peer_id), 0)
        for blob in self._blobs[key.data]:
            found |= blob.lists_due(LIST_AHEAD_BYTES) if key.lists else blob.provable
        return found

    def units(self, key: Key, experts: int) -> int:
        """The units of a call's experts, both as bits; of files all, whatever is said."""
        if key.file is not None:
            return EVERY
        known = self._units.get((key, experts))
        if known is None:
            blob = self._blobs[key.data][0].blob
            known = 0
            for number, part in enumerate(blob.with_list if key.lists else range(len(blob.parts))):
                if experts >> part & 1:
                    units = range(number, number + 1) if key.lists else blob.units_of(part)
                    known |= run_bits(units.start, len(units))
            self._units[key, experts] = known
        return known

    # --- fetch.Target ---

    def bytes_of(self, units: Mapping[Key, int]) -> int:
        """What these units take; lists count as nothing, they are so small."""
        total = 0
        for key, bits in units.items():
            if not key.lists:
                blob = self._blobs[key][0].blob
                total += sum(blob.span(unit)[1] for unit in numbers(bits))
        return total

    def fit(self, key: Key, first: int, count: int) -> int:
        """How many of these neighbours are asked for together."""
        blob = self._owner(key, first)
        if key.lists:
            return blob.lists_blob.fit(first, count, LISTED_BYTES)
        return blob.blob.fit(first, count, fetch.ASK_BYTES)

    def incoming(self, key: Key, first: int, count: int) -> IncomingUnits:
        """A place for units that are coming. They are of one file."""
        return IncomingUnits(key, self._owner(key, first), first, count)

    def taken(self, key: Key, first: int, count: int, peer_id: str) -> None:
        """These are being asked of a peer: what lists prove, it may be asked for too."""
        if key.lists:
            promised = self._promised.get((key.data, peer_id), 0)
            self._promised[key.data, peer_id] = promised | self._listed(key, first, count)

    def given_back(self, key: Key, first: int, count: int, peer_id: str) -> None:
        """These are not asked of it any more."""
        if key.lists:
            self._promised[key.data, peer_id] &= ~self._listed(key, first, count)

    def request(self, key: Key, first: int, count: int, offset: int, length: int, call_id: int) -> Request:
        """How a range of bytes of these units is asked for."""
        grown = self._owner(key, first)
        start, _ = grown.lists_blob.span(first) if key.lists else grown.blob.span(first)
        if key.file is not None:
            metadata = self._metadata if key.file is ModelFile.METADATA else bytes(32)
            return FileAsked(
                model_files.ModelRequest(
                    self._model_id, key.file, call_id, start + offset, length, key.lists, metadata
                )
            )
        one = grown.blob.parts[0].size  # cells of a call are all alike
        if key.lists:
            one = list_bytes(one)
        expert, within = divmod(start + offset, one)
        last = (start + offset + length - 1) // one
        return CellsAsked(
            cells.CellsRequest(
                self._model_id,
                key.layer,
                key.call,
                call_id,
                expert,
                last - expert + 1,
                within,
                length,
                key.lists,
            )
        )

    def missed(self, key: Key, refusal: Refusal) -> int:
        """The units of the experts that a refusal names, as bits."""
        return self.units(key, sum(1 << expert for expert in set(refusal.missing)))

    def note(self, key: Key, units: Iterable[int]) -> None:
        """These have come."""
        for unit in units:
            owner = self._owner(key, unit)
            (owner.note_list if key.lists else owner.note)(unit)

    def seal(self) -> None:
        """Have what is there survive a power cut."""
        for file in {id(blob.file): blob.file for blobs in self._blobs.values() for blob in blobs}.values():
            file.sync()

    def _listed(self, key: Key, first: int, count: int) -> int:
        """The units that lists prove, as bits."""
        blob = self._blobs[key.data][0]
        found = 0
        for unit in range(first, first + count):
            units = blob.blob.units_of(blob.lists_blob.part(unit))
            found |= run_bits(units.start, len(units))
        return found

    def _owner(self, key: Key, unit: int) -> GrowingBlob:
        """Whose unit it is, of the blobs of a key."""
        blobs = self._blobs[key.data]
        part = blobs[0].lists_blob.part(unit) if key.lists else blobs[0].blob.part_of(unit)
        return next(blob for blob in blobs if part in blob.wanted)


class IncomingUnits:
    """Units of one blob on their way from a peer, byte by byte in order.

    Attributes:
        size: bytes that are to come.
        complete: units that have come, are right and in their places.
    """

    def __init__(self, key: Key, blob: GrowingBlob, first: int, count: int) -> None:
        self._key = key
        self._blob = blob
        self._spans = [
            blob.lists_blob.span(unit) if key.lists else blob.blob.span(unit)
            for unit in range(first, first + count)
        ]
        self._first = first
        self._coming = bytearray()  # of a unit that is not complete
        self.size = sum(size for _, size in self._spans)
        self.complete: list[int] = []

    def take(self, data: memoryview) -> None:
        """The next bytes. Whatever is raised, `complete` says what came before it.

        Raises:
            WrongBytes: a unit is there to its end and not right.
            LocalError: the disk is full, or fails.
        """
        while data:
            number = len(self.complete)
            _, size = self._spans[number]
            piece, data = data[: size - len(self._coming)], data[size - len(self._coming) :]
            if len(piece) < size:
                self._coming += piece
                if len(self._coming) < size:
                    return
                piece = memoryview(bytes(self._coming))
                self._coming.clear()
            self._put(self._first + number, piece)
            self.complete.append(self._first + number)

    def close(self) -> None:
        """Give up what has come of a unit that is not complete."""
        self._coming.clear()

    def _put(self, unit: int, data: memoryview) -> None:
        grown = self._blob
        if self._key.lists:
            if not grown.lists_blob.proves(unit, data):
                raise WrongBytes(self._key.label)
            grown.put_list(unit, data)
            return
        part = grown.blob.part_of(unit)
        is_proven = part in grown.lists or not list_bytes(grown.blob.parts[part].size)
        if not is_proven or not grown.blob.proves(unit, data, grown.lists):
            expert = f"expert {part} of " if self._key.file is None else ""
            raise WrongBytes(
                expert + self._key.label + ("" if is_proven else ", without the list that proves it")
            )
        grown.put(unit, data)
