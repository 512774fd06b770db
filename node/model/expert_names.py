"""Which tensors of a GGUF are routed experts, by llama.cpp's tensor names (`llama-arch.cpp`).

Routed experts are stacked: the outermost dimension counts them. Shared experts (`_shexp`), the
router (`ffn_gate_inp`) and norms are part of the trunk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# `chexps` are grovemoe's chunk experts: a second, smaller set that several experts share.
_EXPERT_NAME = re.compile(
    r"blk\.(?P<layer>0|[1-9][0-9]{0,5})\.ffn_(?P<part>gate|up|down|gate_up)_(?P<group>chexps|exps)\."
    r"(?P<what>weight|bias|scale)"
)
_LAYER_NAME = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]{0,5})\..+", re.DOTALL)

GROUPS = ("exps", "chexps")


@dataclass(frozen=True, slots=True, order=True)
class ExpertName:
    """The parsed name of a routed-expert tensor.

    Attributes:
        layer: the block's number, from 0.
        group: "exps" or "chexps".
        part: "gate", "up", "down" or "gate_up" (both in one tensor).
        what: "weight" [in, out, n_expert], "bias" [out, n_expert] or "scale" [n_expert], ggml order.
    """

    layer: int
    group: str
    part: str
    what: str

    @property
    def role(self) -> str:
        """Such as "gate.weight" or "down.scale"."""
        return f"{self.part}.{self.what}"

    @property
    def tensor_name(self) -> str:
        return f"blk.{self.layer}.ffn_{self.part}_{self.group}.{self.what}"


def parse_expert_name(tensor_name: str) -> ExpertName | None:
    """The parts of a routed-expert tensor's name; None for every other tensor."""
    match = _EXPERT_NAME.fullmatch(tensor_name)
    if match is None:
        return None
    return ExpertName(int(match["layer"]), match["group"], match["part"], match["what"])


def layer_of(tensor_name: str) -> int | None:
    """The block a tensor belongs to; None for those outside the blocks (embedding, output)."""
    match = _LAYER_NAME.fullmatch(tensor_name)
    return int(match["layer"]) if match else None
