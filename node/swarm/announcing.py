"""What this node says of itself: its own advert, issued anew when something changed and before it expires."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from routing.errors import LocalError
from routing.exchange import AdvertExchange
from routing.identity import Identity
from routing.membership import Membership
from routing.remembered import RememberedPeers
from routing.routes import Standing
from routing.wire.advert import Advert, farewell, next_seq, refresh_after, sign_advert
from routing.wire.holdings import Slice
from routing.wire.quote import Quote, lasting

log = logging.getLogger("panal.advert")

FAREWELL_SECONDS = 0.5
"""What connected peers get to take a farewell; Ctrl-C must end the node in under three seconds."""

GATHER = 0.5
"""Seconds that changes are gathered before they are told: reservation, address and verdict come together."""


@dataclass(frozen=True)
class Offered:
    """What a node does for others.

    Attributes:
        load: milliseconds a call arriving now would wait.
        quotes: what it asks; none: nothing.
    """

    name: str = ""
    slices: list[Slice] = field(default_factory=list)
    codecs: list[str] = field(default_factory=list)
    combines: list[str] = field(default_factory=list)
    max_rows: int = 1
    load: int = 0
    versions: list[int] = field(default_factory=list)
    quotes: list[Quote] = field(default_factory=list)


@dataclass(frozen=True)
class Places:
    """Where a node can be reached, as multiaddr texts (routing.wire.advert.Advert)."""

    addresses: list[str]
    control: list[str]
    relays: list[str]
    serves_relay: bool


class Announcer:
    """Issues this node's adverts.

    Args:
        instance: this process's random number.
        offered, places, standing: what to say, asked anew for each advert.
        own_seq: the highest number seen of this identity.
    """

    def __init__(
        self,
        identity: Identity,
        membership: Membership,
        exchange: AdvertExchange,
        remembered: RememberedPeers | None,
        *,
        instance: int,
        lifetime: int,
        offered: Callable[[], Offered],
        places: Callable[[], Places],
        standing: Callable[[], Standing],
        own_seq: Callable[[], int],
    ) -> None:
        self._identity = identity
        self._membership = membership
        self._exchange = exchange
        self._remembered = remembered
        self._instance = instance
        self._lifetime = lifetime
        self._offered = offered
        self._places = places
        self._standing = standing
        self._own_seq = own_seq
        self._changed = trio.Event()
        self._last: Advert | None = None
        self._issued_at = 0.0
        self._has_left = False
        self.data = b""

    def changed(self) -> None:
        """What the advert says is no longer so."""
        self._changed.set()

    async def run(self) -> None:
        """Issue adverts until cancelled."""
        while True:
            self._changed = trio.Event()
            await self._issue()
            with trio.move_on_after(refresh_after(self._lifetime)):
                await self._changed.wait()
                await trio.sleep(GATHER)

    async def leave(self) -> None:
        """Say farewell, so that peers forget this node now and not when its advert ends."""
        if self._last is None:
            return
        self._has_left = True
        now = time.time()
        last = farewell(self._last, seq=self._next_seq(now), issued_at=int(now))
        try:
            await self._exchange.say_farewell(sign_advert(last, self._identity), patience=FAREWELL_SECONDS)
        except LocalError as error:
            log.error("peers were not told that this node leaves: %s", error)

    def _next_seq(self, now: float) -> int:
        if self._remembered is None:
            return next_seq(now, self._own_seq())
        return self._remembered.next_seq(now, self._own_seq())

    async def _issue(self) -> None:
        if self._has_left:
            return  # nothing takes the farewell back
        advert = self._advert(time.time())
        if self._last is not None and _same(advert, self._last) and not self._due():
            return
        try:
            data = sign_advert(advert, self._identity)
            self._exchange.put_own(data)
        except LocalError as error:
            log.error("this node cannot be announced: %s", error)
            return
        self._last, self.data = advert, data
        self._issued_at = trio.current_time()

    def _due(self) -> bool:
        return trio.current_time() - self._issued_at >= refresh_after(self._lifetime) - GATHER

    def _advert(self, now: float) -> Advert:
        offered, places, standing = self._offered(), self._places(), self._standing()
        return Advert(
            swarm_id=self._membership.swarm.id,
            peer_id=self._identity.peer_id,
            instance=self._instance,
            seq=self._next_seq(now),
            issued_at=int(now),
            lifetime=self._lifetime,
            name=offered.name,
            addresses=places.addresses,
            control=places.control,
            relays=places.relays,
            reach=standing.reach,
            mapping=standing.mapping,
            filtering=standing.filtering,
            udp=standing.udp is not False,
            serves_relay=places.serves_relay,
            slices=offered.slices,
            codecs=offered.codecs,
            combines=offered.combines,
            max_rows=offered.max_rows,
            load=offered.load,
            quotes=lasting(offered.quotes, int(now), self._lifetime),
            versions=offered.versions,
            member=self._membership.certificate,
        )


def _same(one: Advert, other: Advert) -> bool:
    """Whether two adverts say the same but for their numbers and load."""

    def said(advert: Advert) -> tuple[object, ...]:
        return (
            advert.addresses,
            advert.control,
            advert.relays,
            advert.reach,
            advert.mapping,
            advert.filtering,
            advert.udp,
            advert.serves_relay,
            advert.slices,
            advert.quotes,
        )

    return said(one) == said(other)
