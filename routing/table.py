"""Who holds which experts: the table the star plans by. Pure; whoever hears of peers writes into it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from routing.dispatch.plan import HOME, Holder, LayerHolders
from routing.wire.holdings import Holdings


@dataclass(frozen=True)
class CallShape:
    """What the table must know of a model's MoE call to read others' holdings.

    Attributes:
        n_experts: of this call.
        n_cells: experts of the layer's first call, by which slices are numbered (chunk experts are fewer).
    """

    n_experts: int
    n_cells: int

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
        self._suspects: dict[str, float] = {}  # peer -> until when
        self._forgive_at = math.inf
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
        peer = self._peers.get(peer_id)
        if peer is not None:
            peer.connected = False
            peer.reason = reason
            self._ready = {}

    def suspect(self, peer_id: str, until: float) -> None:
        """A peer failed a call: until then it is asked only for experts that nobody else holds."""
        self._suspects[peer_id] = until
        self._forgive_at = min(self._suspects.values())
        self._ready = {}

    def forgive(self, now: float) -> None:
        """Take back peers whose time as suspects is over. Costs one comparison while there is none."""
        if now < self._forgive_at:
            return
        self._suspects = {peer: until for peer, until in self._suspects.items() if until > now}
        self._forgive_at = min(self._suspects.values(), default=math.inf)
        self._ready = {}

    def holders(self, layer: int, index: int) -> LayerHolders:
        """Who may be asked for a call's experts now."""
        # The decoding thread asks while the event loop writes: what was collected before a change goes into
        # the dictionary that the change has thrown away.
        known, key = self._ready, (layer, index)
        ready = known.get(key)
        if ready is None:
            ready = known[key] = self._collect(key)
        return ready

    def missing(self) -> dict[int, list[int]]:
        """Experts of each layer's first call that nobody connected holds; empty if the model is covered."""
        lacking = {}
        for (layer, index), shape in sorted(self._calls.items()):
            held = 0
            known = self.holders(layer, index)
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
            if peer.connected and peer.unusable:
                told[peer_id] = [peer.unusable]
            elif peer.connected and all(held.model_id != self._model_id for held in slices):
                told[peer_id] = [f"serves {held.architecture} {held.model_id[:12]}" for held in slices]
        return told

    def _collect(self, key: tuple[int, int]) -> LayerHolders:
        holders, formerly = [], {}
        if key in self._home:
            holders.append(self._home[key])
        for peer_id, peer in sorted(self._peers.items()):
            holder = Holder.of_runs(peer_id, self._runs(peer.holdings, key))
            if not holder.held:
                continue
            if peer.connected and not peer.unusable:
                holders.append(holder)
            else:
                formerly[peer_id] = (holder.held, peer.unusable or peer.reason)
        trusted = [holder for holder in holders if holder.peer_id not in self._suspects]
        reserve = [holder for holder in holders if holder.peer_id in self._suspects]
        return LayerHolders(key[0], tuple(trusted), formerly, tuple(reserve))

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
