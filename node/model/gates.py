"""What `panal verify` found of a model's lossy wires: `models/<model id>/gates.json`, beside the manifest.

Rules
1. A verdict speaks for one build of the engine on one kind of CPU, one trunk, one combine and one wire.
   Combines are kept apart: `rows` rounds every expert's vector, `sum` what they add up to. Where vectors
   cancel the first loses more, where they agree the second does.
2. Cells at home are not rounded. So a pass speaks for backbones with at least as many at home as there were,
   a failure for all.
3. The newest verdict that speaks for a backbone decides.
4. A file that cannot be read says nothing: then nothing has passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from node.model.store import StoreError, replace_file

FILE_NAME = "gates.json"

MAX_GATES = 256
"""Verdicts that are kept, the newest: a few for each build, and builds go out of use."""

MAX_BYTES = 1 << 20
"""Of the file: five times what MAX_GATES take. A larger one is none of ours."""


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One verdict.

    Attributes:
        build: `Library.build_id`.
        trunk: name of the trunk's file, which differs where the metadata differ.
        combine, wire: as in configs.
        home: cells that were computed at home.
        passed: whether a backbone may use this wire.
        rows, servers, cosine_mean, argmax_agreement: what it rests on, for people.
    """

    build: str
    trunk: str
    combine: str
    wire: str
    home: int
    passed: bool
    rows: int
    servers: int
    cosine_mean: float
    argmax_agreement: float

    @property
    def _key(self) -> tuple[str, str, str, str, int]:
        return self.build, self.trunk, self.combine, self.wire, self.home


def read_gates(folder: Path) -> tuple[Gate, ...]:
    """All verdicts in a model's folder, newest last; none if the file is missing or damaged."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=tuple[Gate, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def record_gate(folder: Path, gate: Gate) -> None:
    """Add a verdict; it takes the place of an older one of the same kind.

    Raises:
        StoreError: the folder cannot be written to.
    """
    kept = [old for old in read_gates(folder) if old._key != gate._key]
    try:
        replace_file(folder / FILE_NAME, msgspec.json.encode([*kept, gate][-MAX_GATES:]))
    except OSError as error:
        raise StoreError(f"{folder / FILE_NAME}: cannot be written: {error.strerror}") from None


def has_passed(
    gates: Iterable[Gate], *, build: str, trunk: str, combine: str, wire: str, home: int
) -> bool | None:
    """What the newest verdict that speaks for a backbone says (rules 1 to 3); None if there is none.

    Args:
        home: cells of the model that the backbone computes itself.
    """
    verdict = None
    for gate in gates:
        if (gate.build, gate.trunk, gate.combine, gate.wire) != (build, trunk, combine, wire):
            continue
        if gate.home <= home or not gate.passed:
            verdict = gate.passed
    return verdict
