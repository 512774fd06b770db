"""The file that keeps what a node has served: after a restart it goes by that again, and not by guesses.

Written anew each time: a line that says what it is, a digest of the rest, the rest.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from market.ground import Floats
from node.market.served_rate import ServedRate
from routing.errors import LocalError
from routing.private_file import read_private, write_private
from routing.wire.limits import MAX_EXPERT

log = logging.getLogger("panal.market")

MAX_BYTES = 8 * 2**20
"""Four models of 512 layers and 1,024 experts; one of 48 x 128 takes 25,000 bytes."""

LEAST_PAIRS = 1.0
"""What is left of a model's work when it is forgotten: after a day, of a million pairs."""

VALUE = np.dtype("<f4")
"""Of a cell's pairs in the file: seven digits."""

_HEAD = b"panal served 1\n"
_DIGEST_BYTES = 16
_ID_CHARS = 64
_WHAT = "record of work"


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a `ServedRate`: layers' pairs as VALUE by expert."""

    seconds: float
    layers: dict[int, bytes]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says.

    Attributes:
        peer: whose it is.
        at: unix time.
        models: by id.
    """

    peer: str
    at: float
    models: dict[str, _Model]


class ServedMemory:
    """Rates that outlive a process.

    Args:
        path: of the file.
        peer_id: whose work it is.
    """

    def __init__(self, path: Path, peer_id: str) -> None:
        self._path = path
        self._peer_id = peer_id
        self._cannot_write = ""

    def recalled(self, clock: float, now: float) -> dict[str, ServedRate]:
        """As `read`; nothing, with a warning, if it cannot be read.

        Args:
            now: when sums begin to be told.
        """
        try:
            return self.read(clock, now)
        except LocalError as error:
            log.warning("what this node served before is not known and counted anew: %s", error)
            return {}

    def read(self, clock: float, now: float | None = None) -> dict[str, ServedRate]:
        """What was written down, faded by the time that has passed since; nothing if there is no file.

        Args:
            clock: unix time.
            now: see `ServedRate`.

        Raises:
            LocalError: it is damaged, another node's, or open to others.
        """
        if not self._path.exists():
            return {}
        data = read_private(self._path, _WHAT, MAX_BYTES)
        try:
            return decoded(data, self._peer_id, clock, now)
        except LocalError as error:
            raise LocalError(f"{self._path} is {error}") from None

    def save(self, encoded: bytes) -> None:
        """Write `encoded` down; from any thread, one at a time."""
        try:
            write_private(self._path, encoded, _WHAT, replace=True)
        except LocalError as error:
            if str(error) != self._cannot_write:  # it is tried again in two minutes
                log.warning("after a restart what this node served is counted anew: %s", error)
            self._cannot_write = str(error)
        else:
            self._cannot_write = ""

    def encoded(self, rates: Mapping[str, ServedRate], clock: float) -> bytes:
        """Rates as they are now, unix time."""
        models = {
            model_id: _Model(
                rate.seconds, {layer: sums.astype(VALUE).tobytes() for layer, sums in rate.sums.items()}
            )
            for model_id, rate in rates.items()
        }
        rest = msgspec.msgpack.encode(_Saved(self._peer_id, clock, models))
        return _HEAD + _digest(rest) + rest


def decoded(data: bytes, peer_id: str, clock: float, now: float | None) -> dict[str, ServedRate]:
    """As `ServedMemory.read`.

    Raises:
        LocalError: it is damaged, or another node's.
    """
    body = data[len(_HEAD) :]
    rest = body[_DIGEST_BYTES:]
    if len(data) > MAX_BYTES or not data.startswith(_HEAD) or body[:_DIGEST_BYTES] != _digest(rest):
        raise LocalError("no record of work, or damaged")
    try:
        saved = msgspec.msgpack.decode(rest, type=_Saved)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LocalError("no record of work that this version reads") from None
    if saved.peer != peer_id:
        raise LocalError("the record of another node's work")
    if not math.isfinite(saved.at):
        raise LocalError("a record of work of no time")
    rates: dict[str, ServedRate] = {}
    for model_id, model in saved.models.items():
        rate = ServedRate(now, model.seconds, {layer: _sums(data) for layer, data in model.layers.items()})
        is_model = len(model_id) == _ID_CHARS and 0 <= model.seconds < math.inf
        if not is_model or not all(0 <= layer <= MAX_EXPERT for layer in model.layers):
            raise LocalError("a record of work of no model")
        rate.fade(max(0.0, clock - saved.at))
        if rate.pairs >= LEAST_PAIRS:
            rates[model_id] = rate
    return rates


def _sums(data: bytes) -> Floats:
    """
    Raises:
        LocalError: these are no pairs.
    """
    count, rest = divmod(len(data), VALUE.itemsize)
    sums: Floats = np.frombuffer(data[: count * VALUE.itemsize], VALUE).astype(np.float64)
    if rest or count > MAX_EXPERT + 1 or not np.isfinite(sums).all() or (sums < 0).any():
        raise LocalError("a record of work with pairs that are none")
    return sums


def _digest(rest: bytes) -> bytes:
    return hashlib.sha256(rest).digest()[:_DIGEST_BYTES]
