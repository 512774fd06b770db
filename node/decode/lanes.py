"""Lanes: several contexts on one loaded model, each on a thread of its own: one computes while others wait.

A pass waits for its experts once a layer. Sequences that lie in different lanes wait for different calls at
the same time, and the backbone's own work for one fills the waits of the others. Weights are loaded once,
caches are per lane. Lanes compute in turns, so that together they use as many cores as one does.

What lanes cannot do: split one sequence. A context attends to its own cache only; llama.cpp lets contexts
share a cache for a few kinds of drafting heads alone, and a copy (llama_state_seq_get_data) needs a finished
one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from node.decode.backbone import Backbone
from node.decode.ledger import TripsLedger
from node.engine.context import DEFAULT_UBATCH
from node.engine.expert_holes import ExpertInputs
from routing.wire.codecs import Float32Array


class SharedPort(Protocol):
    """An `ExpertPort` for several threads, each with its own ledger."""

    def leave(self, inputs: ExpertInputs, ledger: TripsLedger) -> Any: ...

    def enter(self, ticket: Any) -> Float32Array: ...


class LanePort:
    """One lane's `ExpertPort`: while it waits, it is another lane's turn."""

    def __init__(self, port: SharedPort, ledger: TripsLedger, turn: threading.Lock) -> None:
        self._port = port
        self._ledger = ledger
        self._turn = turn

    def leave(self, inputs: ExpertInputs) -> Any:
        return self._port.leave(inputs, self._ledger)

    def enter(self, ticket: Any) -> Float32Array:
        self._turn.release()
        try:
            return self._port.enter(ticket)
        finally:
            self._turn.acquire()


@dataclass(frozen=True, eq=False)
class Lane:
    """A context with what belongs to it alone."""

    backbone: Backbone
    ledger: TripsLedger


class Lanes:
    """Lanes on the model of one backbone.

    Args:
        beside: whose model they share; to be closed after them.
        count: how many.
        n_ctx, n_ubatch, threads, n_sequences, own_caches: of each, as for `Backbone`.

    Raises:
        EngineError: llama.cpp makes no such context (too little memory for the caches).
    """

    def __init__(
        self,
        beside: Backbone,
        port: SharedPort,
        *,
        count: int,
        n_ctx: int | None = None,
        n_ubatch: int = DEFAULT_UBATCH,
        threads: int = 1,
        n_sequences: int = 1,
        own_caches: bool = False,
    ) -> None:
        self._turn = threading.Lock()
        self._failed: BaseException | None = None
        self.lanes: list[Lane] = []
        try:
            for _ in range(count):
                ledger = TripsLedger()
                backbone = Backbone(
                    beside.model.library,
                    beside.stored,
                    LanePort(port, ledger, self._turn),
                    n_ctx=n_ctx,
                    n_ubatch=n_ubatch,
                    threads=threads,
                    n_sequences=n_sequences,
                    own_caches=own_caches,
                    model=beside.model,
                )
                self.lanes.append(Lane(backbone, ledger))
        except BaseException:
            self.close()
            raise

    def run(self, step: Callable[[Lane], bool]) -> None:
        """Let each lane step on a thread of its own until its step says that there is nothing more to do.

        A step has the turn: what it shares with other lanes' steps needs no lock, except across a pass.

        Raises:
            BaseException: what a step raised first; the other lanes end with the step they are at.
        """
        self._failed = None
        threads = [threading.Thread(target=self._work, args=(lane, step)) for lane in self.lanes[1:]]
        for thread in threads:
            thread.start()
        self._work(self.lanes[0], step)
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed

    def _work(self, lane: Lane, step: Callable[[Lane], bool]) -> None:
        try:
            while self._failed is None:
                with self._turn:
                    if not step(lane):
                        return
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, on its thread
            self._failed = self._failed or error

    def ledger(self) -> TripsLedger:
        """What all of them have counted."""
        total = TripsLedger()
        for lane in self.lanes:
            total.add(lane.ledger)
        return total

    def close(self) -> None:
        for lane in self.lanes:
            lane.backbone.close()
        self.lanes.clear()
