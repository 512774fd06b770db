"""Which wire a backbone uses: the config's, or with `auto` the smallest that has passed the model's gate.

The gate of a lossy wire is `panal verify` over that wire, on this device (node.model.gates). Until there is
a verdict `auto` is f32, which needs none.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node.engine.library import Library
from node.model.gates import has_passed, read_gates
from node.model.store import StoredModel
from node.serve.cells import Cells
from routing.wire.codecs import CODEC_NAMES, Codec

AUTO = "auto"

LOSSY = ("int8", "f16")
"""Smallest first. f32 rounds nothing."""


@dataclass(frozen=True)
class WireChoice:
    """The wire of a backbone.

    Attributes:
        codec: what is used.
        combine: what it is used with.
        untried: a smaller one of which no verdict speaks; "" if there is none, or the config names the wire.
    """

    codec: Codec
    combine: str
    untried: str = ""

    def hint(self, config: Path) -> str:
        """One line that says what `auto` came to and what could make it smaller; "" if nothing could."""
        if not self.untried:
            return ""
        command = f"panal verify -c {shlex.quote(str(config))} --wire {self.untried} --combine {self.combine}"
        return (
            f"wire auto: {self.codec.name.lower()}; whether this model works with {self.untried} and "
            f"{self.combine} has not been verified here: {command}"
        )


def choose_wire(wire: str, combine: str, passed: Callable[[str], bool | None]) -> WireChoice:
    """Resolve a config's wire. Pure.

    Args:
        passed: what the gate says of a lossy wire; None: nothing.
    """
    if wire != AUTO:
        return WireChoice(CODEC_NAMES[wire], combine)
    untried = ""
    for name in LOSSY:
        verdict = passed(name)
        if verdict:
            return WireChoice(CODEC_NAMES[name], combine, untried)
        if verdict is None:
            untried = untried or name
    return WireChoice(Codec.F32, combine, untried)


def wire_for(
    wire: str, combine: str, stored: StoredModel, library: Library, home: Cells | None
) -> WireChoice:
    """`choose_wire` by what was recorded in the store of this model.

    Args:
        home: cells computed here.
    """
    gates = read_gates(stored.folder) if wire == AUTO else ()
    build = library.build_id() if gates else ""
    at_home = cells_at_home(stored, home)
    return choose_wire(
        wire,
        combine,
        lambda name: has_passed(
            gates, build=build, trunk=stored.trunk.name, combine=combine, wire=name, home=at_home
        ),
    )


def cells_at_home(stored: StoredModel, home: Cells | None) -> int:
    """How many of a model's cells are computed here."""
    if home is None:
        return 0
    key = bytes.fromhex(stored.model_id)
    calls = [home.find(key, call.layer, call.index) for call in stored.manifest.calls]
    return sum(len(held.experts()) for held in calls if held is not None)
