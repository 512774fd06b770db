"""What callers owe this node for its work: between the expert server and the accounts."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from node.market.further import Further
from routing.dispatch.unpaid import Unpaid
from routing.wire.experts import ExpertsRequest

MAX_MET = 1024
"""Callers whose networks are not looked up again: four times as many as can be connected."""


class Payee(Protocol):
    """The accounts of those who owe this node (market.accounts_payee)."""

    def met(self, peer: str, subnet: str) -> None:
        """Where a peer is."""

    drawn: int

    def refusal(self, peer: str, now: float, pending: int = 0, *, is_alone: bool = False) -> str:
        """Why a peer is not served, with `pending` micro-credits of its calls under way (`is_alone`: of this
        one alone); "" if it is: then `drawn` is what the last of them took of the newcomers' pool."""

    def give_back(self, peer: str, credits: int, subnet: str, since: float) -> None:
        """What a call drew that got no answer, and for which subnet."""

    def served(
        self, peer: str, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float
    ) -> None:
        """A first call of a layer has been answered for a peer."""

    def lent(self, peer: str, credits: int, now: float) -> None:
        """A further one, for so many micro-credits."""


class Prices(Protocol):
    """What this node asks (node.market.quotes_port)."""

    def total_lowest(self, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float) -> int:
        """The least that these pairs may be paid with."""


class PricedCalls:
    """The server's `Accounts`. What is being computed counts as owed: else a caller could have as much under
    way at once as the server takes, and pass its line by all of it.

    Args:
        now: unix seconds.
        whence: a peer's network, "" if it is this node's own; None if that is not known now.

    Attributes:
        unpaid: callers that were refused, and why.
        further: what further calls of a layer cost; None: nothing.
    """

    def __init__(
        self,
        payee: Payee,
        prices: Prices,
        now: Callable[[], float],
        whence: Callable[[str], str | None] = lambda peer_id: "",
    ) -> None:
        self._payee = payee
        self._prices = prices
        self._now = now
        self._whence = whence
        self._met: OrderedDict[str, str] = OrderedDict()  # their networks
        self._pending: Counter[str] = Counter()
        self.unpaid = Unpaid()
        self.further: Further | None = None
        self._costs: dict[int, int] = {}  # by id of a request under way
        self._drawn: dict[int, tuple[int, str, float]] = {}  # what they took of the pool, as whom, and when

    def refusal(self, peer_id: str, request: ExpertsRequest) -> str:
        """Why a call is not computed; "" if it is, and then it is under way."""
        subnet = self._network(peer_id)
        self._payee.met(peer_id, subnet)  # each time: accounts of strangers are forgotten
        now = self._now()
        if request.call_index == 0:
            cost = self._prices.total_lowest(request.model_id, request.layer, request.experts, now)
        else:
            cost = self._further_cost(request, now)
        pending = self._pending[peer_id]
        why = self._payee.refusal(peer_id, now, pending + cost, is_alone=not pending)
        if not why:
            self._pending[peer_id] += cost
            self._costs[id(request)] = cost
            if self._payee.drawn:
                self._drawn[id(request)] = self._payee.drawn, subnet, now
            self.unpaid.served(peer_id)
        else:
            self.unpaid.refused(peer_id, why)
            if not self._pending[peer_id]:
                del self._pending[peer_id]
        return why

    def served(self, peer_id: str, request: ExpertsRequest) -> None:
        """A call's answer is about to leave."""
        self._ended(peer_id, request)
        if self._drawn:
            self._drawn.pop(id(request), None)
        now = self._now()
        if request.call_index == 0:
            self._payee.served(peer_id, request.model_id, request.layer, request.experts, now)
        elif cost := self._further_cost(request, now):
            self._payee.lent(peer_id, cost, now)

    def dropped(self, peer_id: str, request: ExpertsRequest) -> None:
        """A call has got no answer."""
        self._ended(peer_id, request)
        drawn = self._drawn.pop(id(request), None)
        if drawn is not None:
            self._payee.give_back(peer_id, *drawn)

    def _further_cost(self, request: ExpertsRequest, now: float) -> int:
        share = None if self.further is None else self.further.share(request)
        if share is None:
            return 0
        cells = share.cells(request.experts)
        return share.price(self._prices.total_lowest(request.model_id, request.layer, cells, now))

    def _network(self, peer_id: str) -> str:
        known = self._met.get(peer_id)
        if known is None:
            known = self._whence(peer_id)
            if known is None:
                return ""
            self._met[peer_id] = known
            if len(self._met) > MAX_MET:
                self._met.popitem(last=False)
        return known

    def _ended(self, peer_id: str, request: ExpertsRequest) -> None:
        self._pending[peer_id] -= self._costs.pop(id(request))
        if not self._pending[peer_id]:
            del self._pending[peer_id]
