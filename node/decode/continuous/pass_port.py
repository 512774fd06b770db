"""A decoder's way to the experts: it counts each pass apart, and can let one go that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from node.decode.expert_port import Interrupted
from node.decode.lanes import SharedPort
from node.decode.ledger import Spent, TripsLedger
from node.engine.expert_holes import ExpertInputs
from routing.dispatch.errors import ExpertsUnavailable
from routing.wire.codecs import Float32Array


class PatientPort(SharedPort, Protocol):
    """A `SharedPort` whose waits can be ended."""

    def give_up(self, ticket: Any) -> None: ...


class PassPort:
    """An `ExpertPort` over one that others use as well."""

    def __init__(self, port: PatientPort) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._ticket: Any = None
        self._let_go = self._closed = False
        self._ids: dict[int, Any] = {}  # by layer, of the pass under way
        self.ledger = TripsLedger()

    def begin(self) -> None:
        """Before a pass."""
        with self._lock:
            self._let_go = False
        self._ids.clear()
        self.ledger = TripsLedger()

    def leave(self, inputs: ExpertInputs) -> Any:
        if self._let_go or self._closed:
            raise Interrupted("the pass was given up")
        if not inputs.at_home_only:
            self._ids[inputs.call.layer] = inputs.ids
        return self._port.leave(inputs, self.ledger)

    def enter(self, ticket: Any) -> Float32Array:
        with self._lock:
            if self._let_go or self._closed:
                raise Interrupted("the pass was given up")
            self._ticket = ticket
        try:
            return self._port.enter(ticket)
        finally:
            with self._lock:
                self._ticket = None

    def let_go(self, *, for_good: bool = False) -> None:
        """End the pass under way, from any thread; `for_good`: and let none begin any more."""
        with self._lock:
            self._let_go = True
            self._closed |= for_good
            if self._ticket is not None:
                self._port.give_up(self._ticket)

    def spent(self) -> Spent:
        """What this pass has cost so far."""
        return self.ledger.spent()

    def rows_in_need(self, error: ExpertsUnavailable, rows: int) -> Sequence[int] | None:
        """Rows of the pass that failed which chose an expert that could not be had; None: nobody knows."""
        ids = self._ids.get(error.layer)
        if ids is None or len(ids) != rows:
            return None
        missing = set(error.experts)
        return [row for row, chosen in enumerate(ids.tolist()) if not missing.isdisjoint(chosen)]
