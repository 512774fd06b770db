"""Servers that a token asks for a layer, on held-out text, by how nodes choose what they hold.

Run by `scripts/bench_placement [options] [MODEL...]`; the trained models by default.

Nodes of one size choose for themselves, again and again, as real ones do by `market.advice`, from what the
others hold; what they earn follows from the choices of the calibration text. Then each token of the held-out
text asks the fewest servers that have its experts. Placements of a scenario are compared in one run:

    random      cells at random
    a layer     cells at random, of one layer if they fit
    advice      without groups of experts
    router      with groups by the router's weights
    choices     with groups by the choices of the calibration text
    runs        as router, but experts are served in whole runs, as nodes do where there is room for one

Counts only: nothing is timed, and load of the machine changes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from market.advice import Means, advise
from market.affinity import (
    between,
    group_cells,
    groups_of,
    servers_touched,
    together_by_choices,
    together_by_router,
)
from market.ground import Bools, Floats, Ground
from market.own_order import ROUND_SECONDS, Patience, own_draws, own_generator
from market.view import View
from node.engine import library as llama
from node.engine.library import Library
from node.engine.tokenizer import Tokenizer
from node.home.calibration import Calibrator
from node.importing import import_model
from node.market.bonds import router_weights
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.store import Store
from routing.errors import LocalError
from scripts.bench.route_lab import REPOSITORY

SHARED = REPOSITORY.parent / "shared" / "models"
MODELS = ("tiny-qwen3moe-32e4.Q8_0.gguf", "tiny-qwen2moe-12e2-shared.Q8_0.gguf")

EXCERPT = 400
"""Tokens of a text that are read at once."""

LOOKS = 60
LOOK_SECONDS = ROUND_SECONDS / 4
"""Looks at the others' adverts until everybody is at rest."""

SCENARIOS = (("less than a layer", 0.25, 2.5), ("less than a layer", 0.25, 6.0), ("a layer", 1.25, 3.0))
"""What a node holds, in layers, and how often all nodes together hold the model."""


@dataclass(frozen=True)
class Traced:
    """A model's choices, by layer [n_tokens, n_used], and what is known of its layers."""

    n_experts: int
    n_used: int
    run_length: int
    learnt: Mapping[int, npt.NDArray[np.int32]]
    held_out: Mapping[int, npt.NDArray[np.int32]]
    routers: Mapping[int, npt.NDArray[np.float32]]

    @property
    def layers(self) -> list[int]:
        return list(self.learnt)


def trace(library: Library, path: Path, store: Path, tokens: int) -> Traced:
    """Run both texts through a model."""
    stored = import_model(library, Store(store), path)
    with (
        MappedModel(open_model(path)) as mapped,
        Calibrator(library, stored, mapped, threads=1, most_tokens=EXCERPT) as calibrator,
    ):
        tokenizer = Tokenizer(calibrator.model)

        def choices(name: str) -> dict[int, npt.NDArray[np.int32]]:
            known = tokenizer.encode((SHARED / name).read_text(encoding="utf-8"))[:tokens]
            parts = [
                calibrator.choices(known[start : start + EXCERPT]) for start in range(0, len(known), EXCERPT)
            ]
            return {layer: np.concatenate([part[layer] for part in parts]) for layer in parts[0]}

        learnt = choices("calibration.txt")
        n_experts = next(iter(calibrator.shapes.values())).n_experts
        n_used = next(iter(learnt.values())).shape[1]
        run = stored.manifest.calls[0].run_length
        return Traced(
            n_experts, n_used, run, learnt, choices("heldout_code.txt"), router_weights(stored.trunk)
        )


class Nodes:
    """Nodes of one size that choose for themselves."""

    def __init__(
        self,
        traced: Traced,
        count: int,
        cells: int,
        together: Callable[[int], Floats] | None,
        seed: int,
        run: int = 1,
    ) -> None:
        self._ids = [f"node {seed} {i}" for i in range(count)]
        self._cells = cells
        self._run = run
        parts = traced.n_experts // run  # of a layer
        part_of = np.arange(traced.n_experts) // run
        layers = np.repeat(np.arange(len(traced.layers)), parts)
        sizes = np.full(len(layers), run)
        grains = max(1, group_cells(traced.n_experts, traced.n_used) // run)
        self._grounds = []
        for peer_id in self._ids:
            group = None
            if together is not None:
                group = np.concatenate(
                    [
                        i * parts
                        + groups_of(
                            between(together(layer), part_of), grains, own_generator(peer_id, "groups", layer)
                        )
                        for i, layer in enumerate(traced.layers)
                    ]
                )
            self._grounds.append(Ground.of(layers, sizes, group))
        counts = [np.bincount(ids.ravel(), minlength=traced.n_experts) for ids in traced.learnt.values()]
        self._demand = np.concatenate(counts).reshape(-1, run).sum(axis=1) + 1.0

    def settle(self) -> Bools:
        """[n_nodes, n_cells], when nobody moves any more, or nearly so."""
        holds = np.zeros((len(self._ids), len(self._demand)), np.bool_)
        patience = [Patience(peer_id) for peer_id in self._ids]
        for look in range(LOOKS):
            shown = holds.copy() if look else holds  # first they come one by one
            for i, (peer_id, ground) in enumerate(zip(self._ids, self._grounds, strict=True)):
                others = shown.sum(axis=0) - shown[i]
                view = View(
                    others.astype(np.float64),
                    np.full(len(others), 100.0),
                    self._demand,
                    float(shown.any(axis=1).sum()),
                )
                now = look * LOOK_SECONDS
                draws = own_draws(peer_id, now, ground)
                found = advise(ground, view, Means(self._cells, math.inf), holds[i], draws)
                ripe = patience[i].ripe(now, found.hurry if found.changes else None)
                if found.changes and (ripe or not holds[i].any()):
                    holds[i] = found.cells
        return np.repeat(holds, self._run, axis=1)


def at_random(traced: Traced, count: int, cells: int, *, one_layer: bool, seed: int) -> Bools:
    """As many cells for each node, by chance; what nobody drew somebody takes for what others have as
    well."""
    rng = np.random.default_rng(seed)
    n, layers = traced.n_experts, len(traced.layers)
    holds = np.zeros((count, layers * n), np.bool_)
    for each in range(count):
        if one_layer:
            order = np.concatenate([layer * n + rng.permutation(n) for layer in rng.permutation(layers)])
        else:
            order = rng.permutation(layers * n)
        holds[each, order[:cells]] = True
    for cell in np.flatnonzero(~holds.any(axis=0)):
        node = int(rng.integers(count))
        spare = np.flatnonzero(holds[node] & (holds.sum(axis=0) > 1))
        holds[node, rng.choice(spare)] = False
        holds[node, cell] = True
    return holds


def touched(traced: Traced, holds: Bools) -> float:
    """On the held-out text; nan if a cell is with nobody."""
    n = traced.n_experts
    if not holds.any(axis=0).all():
        return math.nan
    found = [
        servers_touched(ids, holds[:, i * n : (i + 1) * n]) for i, ids in enumerate(traced.held_out.values())
    ]
    return float(np.mean(found))


def compare(traced: Traced, share: float, replicas: float, seeds: int) -> dict[str, float]:
    """Servers touched, by placement."""
    cells = max(1, round(share * traced.n_experts))
    count = round(replicas * traced.n_experts * len(traced.layers) / cells)
    by_router = {layer: together_by_router(weights) for layer, weights in traced.routers.items()}
    by_choices = {layer: together_by_choices(ids, traced.n_experts) for layer, ids in traced.learnt.items()}
    ways: dict[str, Callable[[int], Bools]] = {
        "random": lambda seed: at_random(traced, count, cells, one_layer=False, seed=seed),
        "a layer": lambda seed: at_random(traced, count, cells, one_layer=True, seed=seed),
        "advice": lambda seed: Nodes(traced, count, cells, None, seed).settle(),
        "router": lambda seed: Nodes(traced, count, cells, by_router.__getitem__, seed).settle(),
        "runs": lambda seed: Nodes(
            traced, count, cells, by_router.__getitem__, seed, traced.run_length
        ).settle(),
        "choices": lambda seed: Nodes(traced, count, cells, by_choices.__getitem__, seed).settle(),
    }
    return {
        name: float(np.mean([touched(traced, way(seed)) for seed in range(seeds)]))
        for name, way in ways.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_placement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", type=Path, help="GGUF files (the trained ones)")
    parser.add_argument("--tokens", type=int, default=6000, metavar="N", help="of each text (6000)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="swarms of each kind (3)")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead")
    args = parser.parse_args(arguments)
    report = []
    try:
        library = llama.load()
        with tempfile.TemporaryDirectory(prefix="panal-bench-") as store:
            for path in args.model or [SHARED / name for name in MODELS]:
                traced = trace(library, path, Path(store), args.tokens)
                for name, share, replicas in SCENARIOS:
                    found = compare(traced, share, replicas, args.seeds)
                    report.append({"model": path.name, "nodes hold": name, "replicas": replicas} | found)
                    if not args.json:
                        show(path.name, name, replicas, found)
    except LocalError as error:
        print(f"bench_placement: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report))
    return 0


def show(model: str, name: str, replicas: float, found: Mapping[str, float]) -> None:
    print(f"{model}, nodes hold {name}, {replicas:g} replicas")
    for way, servers in found.items():
        print(
            f"  {way:<9}{servers:6.3f} servers a token and layer, {servers / found['random']:.2f} of random"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
