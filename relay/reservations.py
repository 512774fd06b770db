"""What a relay has promised to whom: reservations and circuits, counted against limits. No I/O.

Rules kept here (libp2p specs, `relay/circuit-v2.md`, and our own limits):

1. A reservation belongs to a peer id. Asking again refreshes it: a peer never has two.
2. A reservation ends at its time, or when the last connection to its peer is gone; then its place is free.
3. A circuit goes from any peer to a peer with a reservation. It counts from the CONNECT on, so that one
   which never gets answered holds a place like any other.
4. No relay over relay: what arrived over a circuit gets neither.
5. Whoever `allow` refuses gets neither, as source or as target.
6. Bytes of a circuit are counted each way, its rate both ways together. Sending is never cut off in the
   middle: what was read goes out, and the next read waits until it is paid for.

Times are seconds of any one clock that never goes back; the caller passes `now`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from relay.hop_wire import Limit, Status
from routing.errors import PeerError
from routing.identity import PeerId

_KIB = 1024
_MIB = 1024 * _KIB


class RelayRefused(PeerError):
    """A request that the relay does not serve.

    Attributes:
        status: what the peer is told.
    """

    def __init__(self, status: Status, message: str, *, peer: str) -> None:
        super().__init__(message, peer=peer)
        self.status = status


@dataclass(frozen=True)
class RelayLimits:
    """What a relay gives at most.

    Attributes:
        reservations: peers that can be reached through this relay at once. Each keeps a connection open,
            some 100 KB of memory with Noise and Yamux.
        reservations_per_ip: of one IPv4 address, or one IPv6 /64. A household or an office behind one NAT
            has a few nodes; a thousand from one address are one attacker.
        reservation_seconds: a reservation lives so long without a refresh.
        circuits: at once; each holds two streams and up to twice 64 KiB under way.
        circuits_per_ip: asked for from one address, so that many ids of one machine don't take all.
        circuits_per_source: a backbone has one circuit to each server it can't reach otherwise.
        circuits_per_target: a server is reached by several backbones at once.
        circuit_seconds: after that the ends must dial anew. 0 without limit.
        circuit_bytes: each way; after that the ends must dial anew. 0 without limit.
        circuit_bytes_per_second: of one circuit, both ways together. A token of a large model moves a few
            hundred KB; ten of them a second must pass.
        bytes_per_second: of all circuits together: what the relay's owner gives away.
    """

    reservations: int = 128
    reservations_per_ip: int = 8
    reservation_seconds: int = 3600
    circuits: int = 128
    circuits_per_ip: int = 48
    circuits_per_source: int = 16
    circuits_per_target: int = 16
    circuit_seconds: int = 6 * 3600
    circuit_bytes: int = 16 * 1024 * _MIB
    circuit_bytes_per_second: int = 8 * _MIB
    bytes_per_second: int = 16 * _MIB

    def limit(self) -> Limit:
        """What the ends of a circuit are told."""
        return Limit(self.circuit_seconds, self.circuit_bytes)


@dataclass(frozen=True)
class Reservation:
    """One peer's right to be called through this relay.

    Attributes:
        origin: the address it counts for.
        expires_at: seconds, the caller's clock.
    """

    peer_id: PeerId
    origin: str
    expires_at: float


class TokenBucket:
    """A rate, with a burst of one second's worth. Debt is allowed and has to be waited for."""

    def __init__(self, bytes_per_second: int, now: float) -> None:
        self._rate = float(bytes_per_second)
        self._tokens = self._rate
        self._filled_at = now

    def take(self, count: int, now: float) -> float:
        """Pay for bytes; seconds to wait before asking for more."""
        self._tokens = min(self._rate, self._tokens + max(0.0, now - self._filled_at) * self._rate)
        self._filled_at = now
        self._tokens -= count
        return max(0.0, -self._tokens / self._rate)


class SharedRate:
    """The rate of all circuits together. While it is exceeded each circuit gets an equal part of it.

    So who sends little waits little, however much the others send.

    Attributes:
        circuits: how many share it now.
    """

    def __init__(self, bytes_per_second: int, now: float) -> None:
        self._rate = bytes_per_second
        self._bucket = TokenBucket(bytes_per_second, now)
        self.circuits = 0

    def take(self, count: int, now: float) -> float:
        """Pay for one circuit's bytes; seconds that this circuit has to wait."""
        return min(self._bucket.take(count, now), count * self.circuits / self._rate)


class Circuit:
    """One circuit and what has passed through it.

    Attributes:
        source: the peer that asked for it.
        origin: the address it asked from.
        target: the peer with the reservation.
        over_at: when it must end; None if it may live on.
        to_target: bytes passed on to the target.
        to_source: bytes passed on to the source.
    """

    def __init__(
        self,
        source: PeerId,
        origin: str,
        target: PeerId,
        limits: RelayLimits,
        shared_rate: SharedRate,
        now: float,
    ) -> None:
        self.source = source
        self.origin = origin
        self.target = target
        self.over_at = now + limits.circuit_seconds if limits.circuit_seconds else None
        self.to_target = 0
        self.to_source = 0
        self._bytes = limits.circuit_bytes
        self._own_rate = TokenBucket(limits.circuit_bytes_per_second, now)
        self._shared_rate = shared_rate

    def room(self, *, to_target: bool, at_most: int) -> int:
        """How many bytes may be read next in one direction; 0 once they are used up."""
        if not self._bytes:
            return at_most
        return min(at_most, self._bytes - (self.to_target if to_target else self.to_source))

    def passed(self, count: int, now: float, *, to_target: bool) -> float:
        """Account for bytes that were read; seconds to wait before the next read in this direction."""
        if to_target:
            self.to_target += count
        else:
            self.to_source += count
        return max(self._own_rate.take(count, now), self._shared_rate.take(count, now))


class Reservations:
    """The table of one relay."""

    def __init__(
        self, limits: RelayLimits, now: float, allow: Callable[[PeerId], bool] = lambda peer_id: True
    ) -> None:
        self._limits = limits
        self._allow = allow
        self._reservations: dict[PeerId, Reservation] = {}
        self._per_ip: Counter[str] = Counter()
        self._circuits: set[Circuit] = set()
        self._per_source: Counter[PeerId] = Counter()
        self._per_source_ip: Counter[str] = Counter()
        self._per_target: Counter[PeerId] = Counter()
        self._shared_rate = SharedRate(limits.bytes_per_second, now)

    @property
    def circuits(self) -> int:
        """Circuits open now, half-open ones included."""
        return len(self._circuits)

    def reservations(self, now: float) -> tuple[Reservation, ...]:
        """The reservations that hold now."""
        self._expire(now)
        return tuple(self._reservations.values())

    def reserve(self, peer_id: PeerId, origin: str, now: float, *, relayed: bool) -> Reservation:
        """Make or refresh a reservation.

        Args:
            origin: the address that this peer's connection comes from, see `reservations_per_ip`.
            relayed: the request came over a circuit.

        Raises:
            RelayRefused: why, with the status for the peer.
        """
        self._check_peer(peer_id, relayed=relayed)
        self._expire(now)
        held = self._reservations.get(peer_id)
        if held is None and len(self._reservations) >= self._limits.reservations:
            raise RelayRefused(
                Status.RESERVATION_REFUSED,
                f"all {self._limits.reservations} reservations of this relay are taken",
                peer=peer_id,
            )
        taken = self._per_ip[origin] - (held is not None and held.origin == origin)
        if taken >= self._limits.reservations_per_ip:
            raise RelayRefused(
                Status.RESERVATION_REFUSED,
                f"{origin} has {taken} reservations already, one address gets no more",
                peer=peer_id,
            )
        if held is not None:
            self._drop(peer_id)
        reservation = Reservation(peer_id, origin, now + self._limits.reservation_seconds)
        self._reservations[peer_id] = reservation
        self._per_ip[origin] += 1
        return reservation

    def disconnected(self, peer_id: PeerId) -> None:
        """The last connection to a peer is gone, and its reservation with it."""
        if peer_id in self._reservations:
            self._drop(peer_id)

    def open_circuit(
        self, source: PeerId, origin: str, target: PeerId, now: float, *, relayed: bool
    ) -> Circuit:
        """Take a place for a circuit; give it back with `close_circuit`, whatever comes of it.

        Raises:
            RelayRefused: why, with the status for the peer.
        """
        self._check_peer(source, relayed=relayed)
        if source == target:
            raise RelayRefused(Status.PERMISSION_DENIED, "a circuit from a peer to itself", peer=source)
        self._expire(now)
        if target not in self._reservations or not self._allow(target):
            raise RelayRefused(Status.NO_RESERVATION, f"{target} has no reservation here", peer=source)
        for taken, limit, whose in (
            (len(self._circuits), self._limits.circuits, "this relay"),
            (self._per_source_ip[origin], self._limits.circuits_per_ip, origin),
            (self._per_source[source], self._limits.circuits_per_source, f"caller {source}"),
            (self._per_target[target], self._limits.circuits_per_target, f"target {target}"),
        ):
            if taken >= limit:
                raise RelayRefused(
                    Status.RESOURCE_LIMIT_EXCEEDED, f"all {limit} circuits of {whose} are taken", peer=source
                )
        circuit = Circuit(source, origin, target, self._limits, self._shared_rate, now)
        self._circuits.add(circuit)
        self._shared_rate.circuits = len(self._circuits)
        self._per_source[source] += 1
        self._per_source_ip[origin] += 1
        self._per_target[target] += 1
        return circuit

    def close_circuit(self, circuit: Circuit) -> None:
        """Give back a circuit's place; once or more often."""
        if circuit not in self._circuits:
            return
        self._circuits.discard(circuit)
        self._shared_rate.circuits = len(self._circuits)
        _count_down(self._per_source, circuit.source)
        _count_down(self._per_source_ip, circuit.origin)
        _count_down(self._per_target, circuit.target)

    def _check_peer(self, peer_id: PeerId, *, relayed: bool) -> None:
        if relayed:
            raise RelayRefused(
                Status.PERMISSION_DENIED, "a request over a circuit: no relay over relay", peer=peer_id
            )
        if not self._allow(peer_id):
            raise RelayRefused(Status.PERMISSION_DENIED, f"{peer_id} is not served here", peer=peer_id)

    def _expire(self, now: float) -> None:
        for peer_id in [each.peer_id for each in self._reservations.values() if each.expires_at <= now]:
            self._drop(peer_id)

    def _drop(self, peer_id: PeerId) -> None:
        _count_down(self._per_ip, self._reservations.pop(peer_id).origin)


_Key = TypeVar("_Key", bound=str)


def _count_down(counts: Counter[_Key], key: _Key) -> None:
    # a counter keeps keys at 0, and every stranger would leave one
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
