"""Record which experts a model's router chooses on text, and which experts its weights say go together: the
data of the scenario `trained`.

Run by `scripts/record_routing MODEL.gguf --learn TEXT --measure TEXT [--tokens N] [--out FILE]`.

The text is read by panal's engine: llama.cpp with the experts lifted out and computed by its own kernels
(which is byte-identical to plain llama.cpp, docs/architecture.md). With `--golden FILE` the choices of the
prompts in such a file, made by plain llama.cpp a token at a time, are compared with those of this engine
(NEAR_TIES)."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from market.affinity import together_by_router
from node.decode.backbone import Backbone
from node.engine import library as llama
from node.engine.context import Row
from node.engine.expert_holes import ExpertInputs
from node.engine.gate import LocalExperts
from node.engine.kernels import Kernels
from node.engine.tokenizer import Tokenizer
from node.importing import import_model
from node.market.bonds import router_weights
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.store import Store
from node.verify.comparison import held_whole
from routing.errors import LocalError
from scripts.simulate.recorded import FILE

WINDOW = 256
"""Tokens that are read at once, each time anew: half of what the small models were trained with."""


class _Noting:
    """All experts are here; their numbers are noted."""

    def __init__(self, inner: LocalExperts) -> None:
        self._inner = inner
        self.noted: dict[int, npt.NDArray[np.int32]] = {}

    def leave(self, inputs: ExpertInputs) -> Any:
        if inputs.call.index == 0:
            self.noted[inputs.call.layer] = inputs.ids.copy()
        return self._inner.leave(inputs)

    def enter(self, ticket: Any) -> npt.NDArray[np.float32]:
        return self._inner.enter(ticket)


class Recorder:
    """Reads token ids; [tokens, layers, used] of expert numbers come out."""

    def __init__(self, backbone: Backbone, port: _Noting) -> None:
        self._backbone, self._port = backbone, port

    def read(self, tokens: Sequence[int]) -> npt.NDArray[np.uint8]:
        found = []
        for start in range(0, len(tokens), WINDOW):
            self._backbone.context.clear()
            part = tokens[start : start + WINDOW]
            # Every row is wanted: of the last layer only wanted rows are computed.
            self._backbone.run([Row(token, place) for place, token in enumerate(part)])
            noted = [self._port.noted[layer] for layer in sorted(self._port.noted)]
            found.append(np.stack(noted, axis=1).astype(np.uint8))
        return np.concatenate(found)


NEAR_TIES = 0.005
"""Share of the choices that may differ from plain llama.cpp's: those were made a token at a time, these many
at a time, which changes last bits, and so which of two nearly equal experts comes fourth."""


def check_golden(recorder: Recorder, golden: Path) -> tuple[int, int]:
    """How many choices are those of plain llama.cpp, of how many.

    Raises:
        LocalError: more than NEAR_TIES are other ones.
    """
    same = compared = 0
    for prompt in json.loads(golden.read_text())["prompts"]:
        layers = [np.array(prompt["experts"][key]) for key in sorted(prompt["experts"], key=int)]
        known = np.stack(layers, axis=1)
        found = recorder.read((prompt["prompt_ids"] + prompt["greedy_ids"])[: len(known)])
        same += int((found[:, :, :, None] == known[:, :, None, :]).any(axis=3).sum())
        compared += known.size
    if same < (1 - NEAR_TIES) * compared:
        raise LocalError(
            f"{compared - same} of {compared} choices are not those of plain llama.cpp ({golden})"
        )
    return same, compared


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="record_routing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--learn", type=Path, required=True, help="text whose choices groups are made of")
    parser.add_argument("--measure", type=Path, required=True, help="held-out text")
    parser.add_argument("--tokens", type=int, default=3072, help="of each text (3072)")
    parser.add_argument("--golden", type=Path, help="choices of plain llama.cpp to compare with")
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args(arguments)
    try:
        record(args)
    except (LocalError, OSError) as error:
        print(f"record_routing: {error}", file=sys.stderr)
        return 2
    return 0


def record(args: argparse.Namespace) -> None:
    library = llama.load()
    with tempfile.TemporaryDirectory(prefix="panal-record-") as folder:
        stored = import_model(library, Store(Path(folder)), args.model)
        with MappedModel(open_model(args.model)) as mapped:
            kernels = Kernels(library, threads=1)
            port = _Noting(LocalExperts(kernels, held_whole(mapped, stored.manifest)))
            backbone = Backbone(library, stored, port, n_ctx=WINDOW, n_ubatch=WINDOW)
            try:
                recorder, tokenizer = Recorder(backbone, port), Tokenizer(backbone.model)
                if args.golden:
                    same, compared = check_golden(recorder, args.golden)
                    print(f"{same} of {compared} choices are those of plain llama.cpp")
                found = {
                    name: recorder.read(tokenizer.encode(path.read_text())[: args.tokens])
                    for name, path in (("learn", args.learn), ("measure", args.measure))
                }
            finally:
                backbone.close()
                kernels.close()
        routers = router_weights(stored.trunk)
    bonds = np.stack([together_by_router(routers[layer]) for layer in sorted(routers)])
    np.savez_compressed(
        args.out, learn=found["learn"], measure=found["measure"], bonds=bonds.astype(np.float16)
    )
    shapes = ", ".join(f"{name} {list(ids.shape)}" for name, ids in found.items())
    print(f"{args.out}: {shapes} (tokens, layers, used); {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
