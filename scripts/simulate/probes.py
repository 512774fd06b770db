"""What servers find out about identities that only claim cells: they probe them, as `node.market.probing`
does."""

from __future__ import annotations

from market.answering import REFRESH_SECONDS, Answering
from scripts.simulate.world import Draws, generator


class _Dice:
    """A numpy generator, as `market.answering` draws."""

    def __init__(self, seed: int) -> None:
        self._rng = generator(seed, Draws.PROBES)

    def random(self) -> float:
        return float(self._rng.random())

    def randrange(self, stop: int, /) -> int:
        return int(self._rng.integers(stop))


class Probes:
    """One server's probes, for all: each sends as many, and finds out as much.

    Args:
        servers: how many others have answered by now, each asked at another time.
        phantoms: identities that are heard of now, and answer nobody; who is found out comes under a new one.
        now: seconds.
    """

    def __init__(self, seed: int, servers: int, phantoms: int, now: float) -> None:
        self._dice, self._known, self._at = _Dice(seed), Answering(), now
        self._servers = [f"server-{number}" for number in range(servers)]
        self._made = phantoms
        self._phantoms = [f"phantom-{number}" for number in range(phantoms)]
        for place, each in enumerate(self._servers):
            self._known.answered(each, "", now - REFRESH_SECONDS * (1 - place / servers))

    def stranger(self, now: float) -> float:
        """How far at this time a phantom counts that has not been found out."""
        everybody = self._servers + self._phantoms
        while self._at <= now:
            chosen = self._known.next(everybody, self._at, self._dice)
            if chosen in self._phantoms:
                self._known.failed(chosen, self._at)
            elif chosen is not None:
                self._known.answered(chosen, "", self._at)
            self._at += self._known.pause(everybody, self._at, self._dice)
        answers = self._known.answers(now)
        for place, each in enumerate(self._phantoms):
            if answers.weight(each) == 0:  # found out: a new identity claims the same
                self._made += 1
                self._phantoms[place] = f"phantom-{self._made}"
        return answers.stranger
