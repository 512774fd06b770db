"""Who holds which experts: the table the star plans by. Pure; whoever hears of peers writes into it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from routing.dispatch.choice import clear
from routing.dispatch.holders import HOME, Holder, LayerHolders, Slack
from routing.latency import Cost
from routing.tariff import Tariff, noticed, surcharges
from routing.wire.holdings import Holdings

REFERENCE_PAIRS = 4
"""Pairs of the call by which a change of a peer's cost is measured: a decoded token's share at one of a few
servers."""


MAX_FORMER = 256
"""Peers that were connected and are not, whose holdings are remembered to name them when they are missed. The
one lost longest ago is forgotten first: identities cost nothing."""


@dataclass(frozen=True)
class CallShape:
    """What the table must know of a model's MoE call to read others' holdings.

    Attributes:
        n_experts: of this call.
        n_cells: experts of the layer's first call, by which slices are numbered (chunk experts are fewer).
        run_length: experts of a run, if only whole runs at one holder count (combine stable); else 0.
    """

    n_experts: int
    n_cells: int
    run_length: int = 0

    def run(self, first: int, last: int) -> tuple[int, int]:
        """The experts of this call that go with cells first..last, both included."""
        if self.n_experts == self.n_cells:
            return first, last
        return first * self.n_experts // self.n_cells, -(-(last + 1) * self.n_experts // self.n_cells) - 1


@dataclass
class _Peer:
    holdings: Holdings
    connected: bool
    reason: str = ""
    unusable: str = ""
    held: dict[tuple[int, int], int] = field(default_factory=dict)  # experts as bits, worked out once


class HolderTable:
    """Peers' holdings of one model, ready as `LayerHolders`.

    Args:
        model_id: 64 hexadecimal digits.
        calls: shape of every MoE call by (layer, call index).
        unusable: why a peer with such holdings cannot be asked (another protocol version, no such codec); ""
            if it can.
    """

    def __init__(
        self,
        model_id: str,
        calls: Mapping[tuple[int, int], CallShape],
        *,
        unusable: Callable[[Holdings], str] = lambda holdings: "",
    ) -> None:
        self._model_id = model_id
        self._calls = calls
        self._unusable = unusable
        self._costs: Mapping[str, Cost] = {}
        self._doubted: frozenset[str] = frozenset()
        self._barred: Mapping[str, str] = {}
        self._tariff: Tariff | None = None
        self._asked: Mapping[int, Mapping[str, float]] = {}  # by layer and peer
        self._peers: dict[str, _Peer] = {}
        self._home: dict[tuple[int, int], Holder] = {}
        self._ready: dict[tuple[int, int], LayerHolders] = {}

    def set_home(self, held: Mapping[tuple[int, int], Sequence[int]]) -> None:
        """Experts this node computes itself, by (layer, call index)."""
        self._home = {key: Holder.of(HOME, experts) for key, experts in held.items() if experts}
        self._ready = {}

    def connected(self, peer_id: str, holdings: Holdings) -> None:
        """A peer said what it serves."""
        self._peers[peer_id] = _Peer(holdings, True, unusable=self._unusable(holdings))
        self._ready = {}

    def disconnected(self, peer_id: str, reason: str) -> None:
        """A peer cannot be asked now; what it held is remembered, to name it when it is missed."""
        peer = self._peers.pop(peer_id, None)
        if peer is None:
            return
        peer.connected = False
        peer.reason = reason
        peers = {**self._peers, peer_id: peer}  # at the end: the others that are gone went before
        former = [each for each, known in peers.items() if not known.connected]
        for each in former[:-MAX_FORMER]:
            del peers[each]
        self._peers = peers
        self._ready = {}

    def peers(self) -> list[str]:
        """Everybody who is connected and can be asked."""
        return [
            peer_id
            for peer_id, peer in self._peers.items()
            if peer.connected and not peer.unusable and peer_id not in self._barred
        ]

    def bar(self, reasons: Mapping[str, str]) -> None:
        """From now on these peers are not asked for anything, with why in words; all others may be again."""
        if reasons != self._barred:
            self._barred = dict(reasons)
            self._ready = {}

    def build_of(self, peer_id: str) -> str:
        """The build class that a peer told; "" if it did not, or is not known."""
        peer = self._peers.get(peer_id)
        return "" if peer is None else peer.holdings.build

    def weigh(self, costs: Mapping[str, Cost], doubted: Collection[str]) -> None:
        """Take note of what asking each peer costs now, and of whom others are to be asked before.

        Args:
            costs: by peer. Changes by which an answer does not become clearly slower or quicker
                (routing.dispatch.choice) are passed over: else two equal replicas would take turns at every
                breath of the network, and neither's connection would stay warm. What was guessed is not kept
                when it has been measured.
            doubted: peers that are asked only for experts that nobody else holds.
        """
        shown = {peer: self._shown(peer, cost) for peer, cost in costs.items()}
        if shown != self._costs or self._doubted != frozenset(doubted):
            self._costs, self._doubted = shown, frozenset(doubted)
            self._ready = {}

    def price(self, tariff: Tariff | None) -> None:
        """Take note of what each peer asks now; None: nobody asks for anything.

        Changes smaller than a step are passed over (routing.tariff).
        """
        asked: dict[int, dict[str, float]] = {}
        if tariff is not None:
            for layer in {layer for layer, _ in self._calls}:
                before = self._asked.get(layer, {})
                asked[layer] = {
                    peer_id: noticed(tariff.prices(peer_id, layer), before.get(peer_id))
                    for peer_id in self.peers()
                    if self._held(self._peers[peer_id], (layer, 0))
                }
        if asked != self._asked or tariff is not self._tariff:
            self._tariff, self._asked = tariff, asked
            self._ready = {}

    def _shown(self, peer_id: str, cost: Cost) -> Cost:
        before = self._costs.get(peer_id)
        if before is not None and before.guessed == cost.guessed:
            seconds = before.of(REFERENCE_PAIRS)
            if abs(cost.of(REFERENCE_PAIRS) - seconds) <= clear(seconds):
                return before
        return cost

    def holders(self, layer: int, index: int) -> LayerHolders:
        """Who may be asked for a call's experts now."""
        # The decoding thread asks while the event loop writes: what was collected before a change goes into
        # the dictionary that the change has thrown away.
        known, key = self._ready, (layer, index)
        ready = known.get(key)
        if ready is None:
            ready = self._collect(key)
            shape = self._calls[key]
            if shape.run_length:
                ready = ready.by_runs(shape.run_length, shape.n_experts)
            known[key] = ready
        return ready

    def run_lengths(self, layers: Collection[int]) -> list[int]:
        """Of the first calls of these layers: how many experts must be at one holder together."""
        return [self._calls[layer, 0].run_length for layer in layers]

    def missing(self, *, whole_runs: bool = True) -> dict[int, list[int]]:
        """Experts of each layer's first call that nobody connected holds; empty if the model is covered.

        Args:
            whole_runs: experts do not count whose run nobody holds the whole of, where the calls say so.
        """
        lacking = {}
        for (layer, index), shape in sorted(self._calls.items()):
            held = 0
            known = self.holders(layer, index) if whole_runs else self._collect((layer, index))
            for holder in known.holders + known.reserve:
                held |= holder.held
            absent = [expert for expert in range(shape.n_experts) if not held >> expert & 1]
            if absent and index == 0:
                lacking[layer] = absent
        return lacking

    def strangers(self) -> dict[str, list[str]]:
        """Connected peers that cannot be asked: what they serve instead, or why not, in words."""
        told = {}
        for peer_id, peer in sorted(self._peers.items()):
            slices = peer.holdings.slices
            reason = self._barred.get(peer_id, "") or peer.unusable
            if peer.connected and reason and slices:
                told[peer_id] = [reason]
            elif peer.connected and all(held.model_id != self._model_id for held in slices):
                told[peer_id] = [f"serves {held.architecture} {held.model_id[:12]}" for held in slices]
        return told

    def _collect(self, key: tuple[int, int]) -> LayerHolders:
        holders: list[Holder] = []
        reserve: list[Holder] = []
        formerly = {}
        costs, doubted = self._costs, self._doubted
        # A peer that came just now is not better than the known.
        unknown = max(costs.values(), key=lambda cost: cost.of(1), default=Cost(0.0, 0.0))
        # Of a layer's first call: the others are in its price.
        tariff, asked = self._tariff, self._asked.get(key[0], {}) if key[1] == 0 else {}
        unit = 0.0 if tariff is None else tariff.per_unit(asked)
        dearest = max(asked.values(), default=0.0)
        told = np.array(list(asked.values()), np.float64)
        dearer = dict(zip(asked, surcharges(told).tolist(), strict=True))
        for peer_id, peer in sorted(self._peers.items()):
            held = self._held(peer, key)
            if not held:
                continue
            barred = self._barred.get(peer_id, "")
            if peer.connected and not peer.unusable and not barred:
                cost = costs.get(peer_id, unknown)
                price = unit * asked.get(peer_id, dearest) if unit else 0.0
                seconds = cost.seconds + dearer.get(peer_id, 0.0)
                holder = Holder(peer_id, held, seconds, cost.per_pair, price)
                (reserve if peer_id in doubted else holders).append(holder)
            else:
                formerly[peer_id] = (held, barred or peer.unusable or peer.reason)
        for ordered in (holders, reserve):
            ordered.sort(key=lambda each: each.least)
        home = [self._home[key]] if key in self._home else []
        slack = Slack() if tariff is None else tariff.slack
        return LayerHolders(key[0], (*home, *holders), formerly, tuple(reserve), slack=slack)

    def _held(self, peer: _Peer, key: tuple[int, int]) -> int:
        """Experts of a call, as bits, that a peer told of; worked out once."""
        held = peer.held.get(key)
        if held is None:
            held = peer.held[key] = Holder.of_runs("", self._runs(peer.holdings, key)).held
        return held

    def _runs(self, holdings: Holdings, key: tuple[int, int]) -> list[tuple[int, int]]:
        shape = self._calls[key]
        return [
            # A peer's numbers may pass the model's; experts that do not exist are not asked for.
            shape.run(first, min(last, shape.n_cells - 1))
            for held in holdings.slices
            if held.model_id == self._model_id and held.kind == "experts"
            for first, last in held.expert_runs(key[0])
            if first < shape.n_cells
        ]
