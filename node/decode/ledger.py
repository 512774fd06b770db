"""What an answer cost in trips, bytes and waiting: counted where it happens, shown to whoever asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from market.credits import credits_text
from routing.dispatch.call import CallStats


@dataclass(frozen=True, slots=True)
class PassDone:
    """A pass that succeeded.

    Attributes:
        rows: tokens computed, guesses included.
        drafted, accepted: guesses verified, and those that were right.
        tokens: chosen after it; none after a piece of the prompt that is not its last, several when guesses
            were right.
        decoding: it was made for tokens after the first one.
        drafting: seconds spent on guessing before it; seconds: the pass itself.
    """

    rows: int
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    decoding: bool = False
    drafting: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Spent:
    """What trips have cost so far.

    Attributes:
        waited: seconds that the decoding thread stood waiting.
    """

    trips: int = 0
    waited: float = 0.0


class TripsReport(msgspec.Struct, frozen=True):
    """The ledger as people and programs get it.

    Attributes:
        passes: times the whole model was run; tokens: rows in all of them, wrong guesses included.
        calls_per_pass: MoE calls (layers with routed experts) in a pass; the most there were: a pass that
            wants no output skips the last layer.
        trips: waits for remote experts: a call asks all its servers at once and waits once.
        trips_per_token: trips over tokens; trips_per_pass: trips over passes.
        decoded: tokens chosen after the prompt's own; decode_passes, decode_trips: what they took.
        trips_per_layer_token: decode_trips over calls_per_pass x decoded: 1 is a trip for every layer of
            every token, the figure that matters most.
        bytes_per_token: both ways together, over the tokens chosen after the prompt's own.
        drafted, accepted: guesses that were verified, and those that were right.
        drafting: seconds spent on guessing.
        bytes_out, bytes_back: on the wire, frames included.
        bytes_per_token_layer: both ways together, over (token, MoE call) pairs that were sent out.
        waited: seconds the decoding thread stood waiting; computed_home: seconds in kernels at home.
        slowest_peer: who was last to answer most often; "" without remote experts.
        hedges, hedges_won: requests sent because another's answer was late; those whose answers were taken.
        moved: parts of calls that failed and were given to other peers.
        late, failures: how often each peer's answer was late, and how often it failed.
        cost: micro-credits that peers' answers cost, also those to calls that failed.
        cost_by_peer: the same of each.
    """

    passes: int
    tokens: int
    calls_per_pass: int
    trips: int
    trips_per_token: float
    trips_per_pass: float
    bytes_out: int
    bytes_back: int
    bytes_per_token_layer: float
    waited: float
    computed_home: float
    slowest_peer: str
    hedges: int = 0
    hedges_won: int = 0
    moved: int = 0
    late: dict[str, int] = {}
    failures: dict[str, int] = {}
    decoded: int = 0
    decode_passes: int = 0
    decode_trips: int = 0
    trips_per_layer_token: float = 0.0
    bytes_per_token: float = 0.0
    drafted: int = 0
    accepted: int = 0
    drafting: float = 0.0
    cost: int = 0
    cost_by_peer: dict[str, int] = {}


SUMS = (
    "passes", "tokens", "calls", "trips", "bytes_out", "bytes_back", "waited", "computed_home", "hedges",
    "hedges_won", "moved", "decoded", "decode_passes", "decode_trips", "decode_bytes", "drafted", "accepted",
    "drafting",
)  # fmt: skip
"""What of a ledger is simply added to another's."""


@dataclass
class TripsLedger:
    """Running totals of one answer, or of one verification."""

    passes: int = 0
    tokens: int = 0
    calls: int = 0
    trips: int = 0
    bytes_out: int = 0
    bytes_back: int = 0
    waited: float = 0.0
    computed_home: float = 0.0
    hedges: int = 0
    hedges_won: int = 0
    moved: int = 0
    late: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    cost_by_peer: Counter[str] = field(default_factory=Counter)
    used: dict[str, float] = field(default_factory=dict)
    """When each peer has answered last, by `time.perf_counter`."""
    decoded: int = 0
    decode_passes: int = 0
    decode_trips: int = 0
    decode_bytes: int = 0
    drafted: int = 0
    accepted: int = 0
    drafting: float = 0.0
    _slowest: dict[str, int] = field(default_factory=dict)
    _tokens_sent: int = 0
    _calls_before: int = 0
    _most_calls: int = 0
    _trips_before: int = 0
    _bytes_before: int = 0

    @property
    def cost(self) -> int:
        """Micro-credits, all peers together."""
        return sum(self.cost_by_peer.values())

    def count_call(self, stats: CallStats, tokens: int, waited: float) -> None:
        """Add one MoE call that went through the star."""
        self.calls += 1
        self.trips += stats.trips
        self.bytes_out += stats.bytes_out
        self.bytes_back += stats.bytes_back
        self.waited += waited
        if stats.trips:
            self._tokens_sent += tokens
        if stats.slowest is not None:
            peer = stats.slowest.peer_id
            self._slowest[peer] = self._slowest.get(peer, 0) + 1

    def count_faults(self, stats: CallStats, now: float = 0.0) -> None:
        """Add what went wrong in a call, and what it cost, whether or not it succeeded in the end."""
        self.hedges += stats.hedges
        self.hedges_won += stats.hedges_won
        self.moved += stats.moved
        self.late.update(stats.late)
        self.failures.update(failure.peer_id for failure in stats.failures)
        for server in stats.servers:
            self.used[server.peer_id] = now
            if server.price:
                self.cost_by_peer[server.peer_id] += server.price

    def count_home(self, seconds: float, *, whole: bool) -> None:
        """Add what was computed at home; `whole`: the call needed nobody else."""
        self.computed_home += seconds
        self.calls += whole

    def count_pass(self, done: PassDone) -> None:
        """End a pass that succeeded."""
        self._most_calls = max(self._most_calls, self.calls - self._calls_before)
        self._calls_before = self.calls
        self.passes += 1
        self.tokens += done.rows
        self.drafted += done.drafted
        self.accepted += done.accepted
        self.drafting += done.drafting
        if done.decoding:
            self.decoded += done.tokens
            self.decode_passes += 1
            self.decode_trips += self.trips - self._trips_before
            self.decode_bytes += self.bytes_out + self.bytes_back - self._bytes_before
        self._trips_before = self.trips
        self._bytes_before = self.bytes_out + self.bytes_back

    def add(self, other: TripsLedger) -> None:
        """Take in what another has counted, of passes that were made beside these."""
        self._most_calls = max(self._most_calls, other._most_calls)
        self._tokens_sent += other._tokens_sent
        for peer, count in other._slowest.items():
            self._slowest[peer] = self._slowest.get(peer, 0) + count
        self.late.update(other.late)
        self.failures.update(other.failures)
        self.cost_by_peer.update(other.cost_by_peer)
        self._use(other)
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_part(self, shared: TripsLedger, first: int, rows: int, of: int) -> None:
        """Take in a pass that others took part in: its trips whole, what it took by rows.

        Args:
            shared: of that pass alone.
            first, rows: which of its rows; of: how many it had. Parts of all rows add up to the whole, to the
                byte and to the micro-credit of each peer.
        """

        def part(amount: int) -> int:
            return amount * (first + rows) // of - amount * first // of

        for name in SUMS:
            amount = getattr(shared, name)
            if name in ("bytes_out", "bytes_back"):
                amount = part(amount)
            elif name in ("waited", "computed_home"):
                amount = amount * rows / of
            setattr(self, name, getattr(self, name) + amount)
        self._tokens_sent += part(shared._tokens_sent)
        for peer, amount in shared.cost_by_peer.items():
            if mine := part(amount):
                self.cost_by_peer[peer] += mine
        self._use(shared)
        for peer, count in shared._slowest.items():
            self._slowest[peer] = self._slowest.get(peer, 0) + count
        self.late.update(shared.late)
        self.failures.update(shared.failures)

    def _use(self, other: TripsLedger) -> None:
        for peer, at in other.used.items():
            self.used[peer] = max(at, self.used.get(peer, at))

    def spent(self) -> Spent:
        """The trips so far."""
        return Spent(self.trips, self.waited)

    def report(self) -> TripsReport:
        def per(amount: float, of: int, digits: int) -> float:
            return round(amount / of, digits) if of else 0.0

        return TripsReport(
            passes=self.passes,
            tokens=self.tokens,
            calls_per_pass=self._most_calls,
            trips=self.trips,
            trips_per_token=per(self.trips, self.tokens, 3),
            trips_per_pass=per(self.trips, self.passes, 3),
            bytes_out=self.bytes_out,
            bytes_back=self.bytes_back,
            bytes_per_token_layer=per(self.bytes_out + self.bytes_back, self._tokens_sent, 1),
            waited=round(self.waited, 4),
            computed_home=round(self.computed_home, 4),
            slowest_peer=max(self._slowest, key=lambda peer: self._slowest[peer], default=""),
            hedges=self.hedges,
            hedges_won=self.hedges_won,
            moved=self.moved,
            late=dict(self.late),
            failures=dict(self.failures),
            decoded=self.decoded,
            decode_passes=self.decode_passes,
            decode_trips=self.decode_trips,
            trips_per_layer_token=per(self.decode_trips, self._most_calls * self.decoded, 4),
            bytes_per_token=per(self.decode_bytes, self.decoded, 1),
            drafted=self.drafted,
            accepted=self.accepted,
            drafting=round(self.drafting, 4),
            cost=self.cost,
            cost_by_peer=dict(self.cost_by_peer),
        )


def cost_rows(trips: TripsReport, wire: str, routes: Sequence[Mapping[str, object]]) -> list[tuple[str, str]]:
    """What went over the network, as names and values for people."""
    rows = [
        ("wire", wire),
        ("bytes per token, after the prompt", f"{trips.bytes_per_token:,.0f}" if trips.decoded else "-"),
        ("bytes per token and layer, with the prompt", f"{trips.bytes_per_token_layer:,.0f}"),
        ("bytes out", f"{trips.bytes_out:,}"),
        ("bytes back", f"{trips.bytes_back:,}"),
        ("seconds waited", f"{trips.waited:.2f}"),
    ]
    if trips.computed_home:
        rows.append(("seconds computed at home", f"{trips.computed_home:.2f}"))
    if trips.hedges:
        rows.append(("sent twice (of use)", f"{trips.hedges} ({trips.hedges_won})"))
    if trips.moved:
        rows.append(("parts moved to others", str(trips.moved)))
    if trips.slowest_peer:
        rows.append(("slowest peer", trips.slowest_peer))
    names = {str(route["peer"]): str(route["name"] or str(route["peer"])[-8:]) for route in routes}
    if trips.cost:
        rows.append(("cost", credits_text(trips.cost)))
        for peer, cost in sorted(trips.cost_by_peer.items(), key=lambda each: -each[1]):
            rows.append((f"cost at {names.get(peer, peer[-8:])}", credits_text(cost)))
    for route in routes:
        rows.append((f"route to {names[str(route['peer'])]}", f"{route['route']} ({route['reason']})"))
    return rows
