"""The cells a node holds: for each call of each model, runs of experts ready for the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from node.engine.kernels import Kernels
from node.model.held import HeldExperts
from node.model.manifest import ExpertCall, Manifest
from routing.dispatch.combine import add_runs, add_slots
from routing.errors import LocalError
from routing.wire.codecs import Float32Array
from routing.wire.holdings import Slice, compact_cells


class HeldCall:
    """All that is held of one call, in runs that do not overlap.

    Attributes:
        is_whole: no expert is missing.
    """

    def __init__(self, call: ExpertCall) -> None:
        self.call = call
        self.runs: list[HeldExperts] = []
        self.is_whole = False
        self._run_of = np.full(call.n_experts, -1, np.int16)

    def add(self, held: HeldExperts, only: npt.NDArray[np.bool_] | None = None) -> None:
        """Take a run; experts that are held already stay where they are. It may come again with more of them.

        Args:
            only: [n_experts of the call], those that count as held, as if the others were not in the run. So
                a few scattered experts are one run, with one graph.
        """
        place = self._run_of[held.first : held.first + held.n_held]
        taken = place < 0
        if only is not None:
            taken &= only[held.first : held.first + held.n_held]
        number = next((number for number, run in enumerate(self.runs) if run is held), len(self.runs))
        if number == len(self.runs):
            self.runs.append(held)  # before it is named: another thread may be computing
        place[taken] = number
        self.is_whole = bool((self._run_of >= 0).all())

    def run_with(self, expert: int) -> HeldExperts:
        """The run that an expert lies in; it must be held."""
        return self.runs[int(self._run_of[expert])]

    def copy(self) -> HeldCall:
        """The same runs; what is added to the copy is not added here."""
        twin = HeldCall(self.call)
        twin.runs = list(self.runs)
        twin.is_whole = self.is_whole
        twin._run_of = self._run_of.copy()
        return twin

    def experts(self) -> list[int]:
        return [int(expert) for expert in np.flatnonzero(self._run_of >= 0)]

    def holds(self, experts: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Which of these experts of the model are held, in the shape they come in."""
        held: npt.NDArray[np.bool_] = self._run_of[experts] >= 0
        return held

    def missing(self, experts: npt.NDArray[np.uint16]) -> tuple[int, ...]:
        """Those of the experts that are not held, ascending."""
        known = experts < self.call.n_experts
        absent = experts[~known].tolist()
        absent += experts[known][self._run_of[experts[known]] < 0].tolist()
        return tuple(sorted(set(absent)))

    def compute(
        self,
        kernels: Kernels,
        x: Float32Array,
        counts: npt.NDArray[np.uint16],
        experts: npt.NDArray[np.integer[Any]],
        weights: Float32Array | None,
    ) -> Float32Array:
        """Rows [n_pairs, n_out] of pairs whose experts are all held. Rows of an expert stay together."""
        if len(self.runs) == 1:
            return kernels.run(self.runs[0], x, counts, experts, weights)
        run_of_pair = self._run_of[experts]
        chosen = np.unique(run_of_pair)
        if len(chosen) == 1:
            return kernels.run(self.runs[int(chosen[0])], x, counts, experts, weights)
        row_of_pair = np.repeat(np.arange(len(x)), counts)
        result = np.empty((len(experts), self.call.n_out), np.float32)
        for number in chosen:
            pairs = np.flatnonzero(run_of_pair == number)
            ones = np.ones(len(pairs), np.uint16)
            result[pairs] = kernels.run(
                self.runs[int(number)],
                x[row_of_pair[pairs]],
                ones,
                experts[pairs],
                weights[pairs] if weights is not None else None,
            )
        return result

    def routed(
        self,
        kernels: Kernels,
        x: Float32Array,
        ids: npt.NDArray[np.int32],
        weights: Float32Array | None,
        *,
        by_runs: bool = False,
    ) -> Float32Array:
        """Routed output [n_tokens, n_out], if all experts are held; arguments as `Kernels.routed`.

        Args:
            by_runs: added as combine stable adds, not in slot order.
        """
        if len(self.runs) == 1 and not by_runs:
            return kernels.routed(self.runs[0], x, ids, weights)
        counts = np.full(len(x), ids.size // len(x), np.uint16)
        rows = self.compute(
            kernels, x, counts, ids.reshape(-1), None if weights is None else weights.reshape(-1)
        )
        if by_runs:
            return add_runs(rows, ids, self.call.run_length)
        return add_slots(rows.reshape(*ids.shape, -1))


class Cells:
    """Everything a node serves, by model."""

    def __init__(self) -> None:
        self._calls: dict[bytes, dict[tuple[int, int], HeldCall]] = {}
        self._manifests: dict[bytes, Manifest] = {}

    def add(
        self,
        model_id: str,
        manifest: Manifest,
        held: Mapping[tuple[int, str], HeldExperts],
        only: Mapping[tuple[int, str], npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        """Take runs of a model's experts, keyed by (layer, group); `only` as for `HeldCall.add`."""
        key = bytes.fromhex(model_id)
        self._manifests[key] = manifest
        calls = self._calls.setdefault(key, {})
        for call in manifest.calls:
            run = held.get((call.layer, call.group))
            if run is not None:
                mask = None if only is None else only.get((call.layer, call.group))
                calls.setdefault((call.layer, call.index), HeldCall(call)).add(run, mask)

    def copy(self) -> Cells:
        """The same runs; what is added to the copy is not added here."""
        twin = Cells()
        twin._manifests = dict(self._manifests)
        twin._calls = {
            model_id: {key: call.copy() for key, call in calls.items()}
            for model_id, calls in self._calls.items()
        }
        return twin

    def models(self) -> list[bytes]:
        """The ids of the models of which anything is held."""
        return list(self._calls)

    def knows(self, model_id: bytes) -> bool:
        return model_id in self._calls

    def manifest(self, model_id: bytes) -> Manifest:
        """Of a model that it knows."""
        return self._manifests[model_id]

    def find(self, model_id: bytes, layer: int, index: int) -> HeldCall | None:
        return self._calls.get(model_id, {}).get((layer, index))

    def experts(self, model_id: bytes) -> dict[tuple[int, int], list[int]]:
        """What is held of a model, by (layer, call index)."""
        return {key: call.experts() for key, call in self._calls.get(model_id, {}).items()}

    def count(self) -> int:
        """Cells held, over all models."""
        return sum(len(call.experts()) for calls in self._calls.values() for call in calls.values())

    def slices(self) -> Sequence[Slice]:
        """What to tell peers. Runs are those of each layer's first call; the others follow from it."""
        told = []
        for model_id, calls in self._calls.items():
            cells = {layer: call.experts() for (layer, index), call in calls.items() if index == 0}
            if not cells:
                raise LocalError(
                    f"model {model_id.hex()[:12]}: only chunk experts are held; serve whole layers"
                )
            told.append(
                Slice(
                    kind="experts",
                    model_id=model_id.hex(),
                    architecture=self._manifests[model_id].architecture,
                    experts=compact_cells(cells),
                )
            )
        return told
