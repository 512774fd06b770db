"""Who answers: which holders of cells are there, as this node has found by asking them. Pure.

1. A peer that has answered, to a probe or by being connected, counts for ANSWER_HOLDS from then on.
2. One that was probed and failed SILENT_AFTER times in a row counts nothing, for as long or until it answers.
   All others are only heard of: their adverts are their own word.
3. If nearly nothing answers this node, its own way out is to blame (a firewall, a network of its own): then
   nobody is called silent.
4. What answers in one network fails together, and may be one machine with ten identities: of each cell it is
   one replica, and it has one word.
5. Who has not been asked yet counts as strangers did lately: a little, and less the fewer of them answered.
6. Whose advert has ended, or says that it was started again, is forgotten: it has to answer anew.

`now` is any clock that runs evenly, in seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from market.view import STRANGER

ANSWER_HOLDS = 3_600.0
"""Seconds. Whoever is gone says farewell or lets its advert end, in ten minutes at most; what is left to find
is a claim that nobody stands behind, and these do not come and go."""

REFRESH_SECONDS = ANSWER_HOLDS / 2
"""After an answer, or a silence that is proven, until it is asked again: half of the time is to spare."""

RETRY_SECONDS = 60.0
"""After a first failure: a node that was being restarted, or had just taken up other cells, is back."""

COMPANY_SECONDS = 10.0
"""The same where others that had answered have just failed, too: so many do not restart, or lose a packet, at
once."""

SILENT_AFTER = 2
"""Failures in a row: one may be a lost packet, two a minute apart rarely are."""

SURE_ANSWERS, LEAST_SHARE = 3, 0.1
"""Failures count if so many have answered, or such a share of all that were asked. With less this node may be
behind something. Whoever makes claims enough for that wins no more than strangers have (`market.view`)."""

MOST_DOUBLINGS = 4
"""Of the time after which one that is silent is asked again: from half an hour to eight. There may be a
thousand of them, and they must not take the place of those that answer."""

SUSPECTS = 8
"""Peers that are asked out of turn when one that had answered fails: those asked longest ago. A lone failure
ends there; where a third has vanished at once each finds two or three more, until all have been asked."""

FIRST_PROBES = 16
"""Of strangers, that are remembered for what the next one's claim is worth. Identities cost nothing: those
made anew whenever some are found out are soon worth a tenth."""

MAX_PEERS = 4_096 + 256
"""As many as a table has adverts, and connections beyond them; who was asked longest ago goes first."""

PROBE_SECONDS = 10.0
"""Between two probes: 360 an hour. In a swarm of a thousand servers that all do so each gets one in ten
seconds, as many as it sends; one takes 10 ms of CPU of both sides together, and 8 KB both ways."""

QUICK_SECONDS = 2.5
"""The same while some that had answered have failed, or half of the holders or more have done neither: a
swarm of a thousand is half known after 20 minutes. Four handshakes in ten seconds are a hundredth of what a
server lets in."""

JITTER = 0.2
"""Part of a pause that is random, so that nodes started together do not probe together."""


class Draws(Protocol):
    """What of `random.Random` is needed."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True)
class Answers:
    """What is known at one time.

    Attributes:
        answered: peers that have answered, and the network of each: its own where none is known.
        counted: of these one of each network.
        silent: peers that do not answer, and are there for nobody.
        stranger: how far all others count.
    """

    answered: Mapping[str, str] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    stranger: float = STRANGER

    @classmethod
    def of(
        cls, networks: Mapping[str, str], silent: Collection[str] = (), stranger: float = STRANGER
    ) -> Answers:
        """From the networks of those that have answered, "" where it is not known."""
        answered = {peer_id: network or f"{peer_id} itself" for peer_id, network in networks.items()}
        return cls(answered, one_a_network(networks.items()), frozenset(silent), stranger)

    def without(self, peer_ids: Collection[str]) -> Answers:
        """The same where these are there for nobody: who is not asked for its false answers replaces none."""
        if not peer_ids:
            return self
        answered = {peer_id: known for peer_id, known in self.answered.items() if peer_id not in peer_ids}
        counted = one_a_network(answered.items())
        return Answers(answered, counted, self.silent.union(peer_ids), self.stranger)

    def weight(self, peer_id: str) -> float:
        """How far a holder's word goes (`market.view`)."""
        if peer_id in self.counted:
            return 1.0
        return 0.0 if peer_id in self.silent else self.stranger

    def counts(self, holders: Iterable[str]) -> tuple[int, int, int]:
        """How many of these have answered, are silent, and were only heard of."""
        answered = silent = heard = 0
        for peer_id in holders:
            if peer_id in self.answered:
                answered += 1
            elif peer_id in self.silent:
                silent += 1
            else:
                heard += 1
        return answered, silent, heard


NOBODY = Answers()

GONE = -1
"""Of a peer that has neither an advert nor a connection; instances are not below 0."""


@dataclass(slots=True)
class _Peer:
    """Attributes:
    asked: when it was last asked, or seen connected. answered: when it last answered.
    failures: in a row, since then. was_lost: the first of them was a lost connection.
    in_company: when it failed last, others that had answered had just done so.
    instance: of its process, as its advert said.
    """

    asked: float
    answered: float = -math.inf
    network: str = ""
    failures: int = 0
    was_lost: bool = False
    in_company: bool = False
    instance: int | None = None

    def has_answered(self, now: float) -> bool:
        return self.failures < SILENT_AFTER and now - self.answered < ANSWER_HOLDS

    def is_silent(self, now: float) -> bool:
        return self.failures >= SILENT_AFTER and now - self.asked < 2 * self.refresh

    @property
    def is_settled(self) -> bool:
        return self.failures >= SILENT_AFTER or (self.failures == 0 and self.answered == self.asked)

    @property
    def refresh(self) -> float:
        """Seconds after which it is asked again, once it is settled."""
        return REFRESH_SECONDS * 2.0 ** min(max(0, self.failures - SILENT_AFTER), MOST_DOUBLINGS)

    @property
    def due(self) -> float:
        if self.is_settled:
            return self.asked + self.refresh
        return self.asked + (COMPANY_SECONDS if self.in_company else RETRY_SECONDS)


class Answering:
    """What one node knows of who answers it."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}  # in the order in which they were asked
        self._turn = -1
        self._suspects = 0  # how many are still to be asked out of turn
        self._first: deque[bool] = deque(maxlen=FIRST_PROBES)  # whether strangers answered when first asked

    def __len__(self) -> int:
        return len(self._peers)

    # --- what has happened ---

    def answered(self, peer_id: str, network: str, now: float) -> None:
        """It answered a probe, or is connected.

        Args:
            network: where from; "" if that is this node's own network, or unknown.
        """
        self._met(peer_id, True)
        peer = self._asked(peer_id, now)
        peer.answered, peer.network, peer.failures, peer.was_lost = now, network, 0, False

    def failed(self, peer_id: str, now: float) -> None:
        """It did not answer, or is not what its advert says."""
        self._met(peer_id, False)
        peer = self._asked(peer_id, now)
        peer.in_company = self._suspects > 0
        if peer.failures < SILENT_AFTER and (
            peer.was_lost or (peer.failures == 0 and peer.answered > -math.inf)
        ):
            self._suspects = min(self._suspects + SUSPECTS, len(self._peers))
        peer.failures += 1

    def lost(self, peer_id: str, now: float) -> None:
        """It was connected and is not any more: it may be gone. Until it has answered anew it is only heard
        of, and its turn to be asked is now; if it does not answer, it is silent."""
        peer = self._asked(peer_id, now - RETRY_SECONDS)
        peer.answered, peer.failures, peer.was_lost = -math.inf, SILENT_AFTER - 1, True
        peer.in_company = False

    def has_ever_answered(self, peer_id: str) -> bool:
        """Whether it has answered at any time, under the advert that it has now."""
        peer = self._peers.get(peer_id)
        return peer is not None and (peer.answered > -math.inf or peer.was_lost)

    def untold(self, peer_id: str, now: float) -> None:
        """It was asked, and whether it answers cannot be told: it is asked again later."""
        self._asked(peer_id, now)

    def keep(self, instances: Mapping[str, int | None]) -> None:
        """Forget all others, and what was known of those that have been started again since.

        Args:
            instances: of the processes, as their adverts say, by peer id; None where there is no advert.
        """
        kept = {}
        for peer_id, peer in self._peers.items():
            instance = instances.get(peer_id, GONE)
            if instance == GONE or (None not in (instance, peer.instance) and instance != peer.instance):
                continue
            peer.instance = peer.instance if instance is None else instance
            kept[peer_id] = peer
        self._peers = kept

    # --- what follows ---

    def answers(self, now: float) -> Answers:
        """Who has answered, and who does not."""
        networks = {peer_id: peer.network for peer_id, peer in self._peers.items() if peer.has_answered(now)}
        silent = [peer_id for peer_id, peer in self._peers.items() if peer.is_silent(now)]
        known = len(networks)
        is_blind = known < SURE_ANSWERS and known < LEAST_SHARE * (known + len(silent))
        strangers = (1 + sum(self._first)) / (1 + len(self._first))
        return Answers.of(networks, [] if is_blind else silent, STRANGER * strangers)

    def next(self, holders: Sequence[str], now: float, rng: Draws) -> str | None:
        """Whom of these to probe next; None while nobody is due.

        Five kinds take turns, those that answer the most often: who was never asked (any of them), who has
        answered and is due, who failed and is asked once more, who is silent, and who is asked out of turn
        because others failed (the longest ago first). In a large swarm some of each always wait, and
        identities without end must not keep this node from finding out about those it has met.
        """
        fresh = [peer_id for peer_id in holders if peer_id not in self._peers]
        if fresh:
            fresh = [fresh[rng.randrange(len(fresh))]]
        known = sorted((peer.asked, peer_id, peer) for peer_id, peer in self._of(holders))
        due = [(peer_id, peer) for _, peer_id, peer in known if peer.due <= now]
        answered = [peer_id for peer_id, peer in due if peer.is_settled and peer.failures == 0]
        again = [peer_id for peer_id, peer in due if not peer.is_settled]
        silent = [peer_id for peer_id, peer in due if peer.is_settled and peer.failures > 0]
        suspects = [peer_id for _, peer_id, peer in known if self._is_suspect(peer, now)]
        turns = (fresh, answered, again, answered, fresh, suspects, answered, silent)
        for _ in turns:
            self._turn = (self._turn + 1) % len(turns)
            kind = turns[self._turn]
            if kind:
                self._suspects -= kind is suspects
                return kind[0]
        self._suspects = 0
        return None

    def pause(self, holders: Sequence[str], now: float, rng: Draws) -> float:
        """Seconds until the next probe of one of these."""
        known = [peer for _, peer in self._of(holders)]
        answered = sum(peer.has_answered(now) for peer in known)
        there = len(holders) - sum(peer.is_silent(now) for peer in known)
        waits = len(known) < len(holders) or any(peer.due <= now for peer in known)
        is_urgent = any(self._is_suspect(peer, now) or (peer.was_lost and peer.due <= now) for peer in known)
        is_quick = is_urgent or (waits and answered * 2 <= there)
        return (QUICK_SECONDS if is_quick else PROBE_SECONDS) * (1 - JITTER / 2 + JITTER * rng.random())

    def _of(self, holders: Sequence[str]) -> list[tuple[str, _Peer]]:
        return [(peer_id, self._peers[peer_id]) for peer_id in holders if peer_id in self._peers]

    def _is_suspect(self, peer: _Peer, now: float) -> bool:
        return self._suspects > 0 and peer.has_answered(now) and now - peer.asked >= RETRY_SECONDS

    def _met(self, peer_id: str, answers: bool) -> None:
        if peer_id not in self._peers:
            self._first.append(answers)

    def _asked(self, peer_id: str, now: float) -> _Peer:
        peer = self._peers.pop(peer_id, None) or _Peer(now)
        if len(self._peers) >= MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        peer.asked = now
        self._peers[peer_id] = peer
        return peer


def one_a_network(peers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Of peers with their networks, one of each network (always the same), and all without a known one."""
    first: dict[str, str] = {}
    for peer_id, network in sorted(peers):
        first.setdefault(network or f"{peer_id} itself", peer_id)
    return frozenset(first.values())
