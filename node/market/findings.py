"""What was found of peers: in memory, and in the book; whom a backbone does not ask for it; and pardons."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

import trio

from market.evidence_sqlite import AuditBook, Evidence
from market.quarantine import Quarantine, Strikes
from market.reputation import Reputation
from market.tally import Tallies
from node.device.folder import NodeFolder
from routing.dispatch.errors import FALSE_WORDS
from routing.errors import LocalError

log = logging.getLogger("panal.audit")

SHOWN = 8
"""False answers that the node tells of, the newest: its status goes out each second. The file has all."""

Bar = Callable[[dict[str, str]], None]
"""Takes the peers that are not to be asked, all of them, with the reason."""


class Findings:
    """Of one backbone.

    Args:
        bar: told at once, and with each `bar`.
        dealt: the credits that each peer has earned here or paid, by receipts that both have signed.

    Attributes:
        reputation, quarantine, tallies: what is known of peers.
        evidence: the last false answers, the newest first.
    """

    def __init__(
        self,
        bar: Bar,
        book: AuditBook,
        reputation: Reputation,
        quarantine: Quarantine,
        dealt: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._tell = bar
        self._book = book
        self._dealt = dealt
        self._writing = trio.Lock()  # the book is for one thread at a time
        self._cannot_write = ""
        self._struck = set(quarantine.all(time.time()))
        self.reputation = reputation
        self.quarantine = quarantine
        self.tallies = Tallies(book.tallies())
        self.evidence = deque(book.evidence(SHOWN), maxlen=SHOWN)

    def bar(self) -> None:
        """Have those in quarantine not asked, and the others asked again."""
        barred = self.quarantine.barred(time.time())
        self._tell({peer_id: barred_until(until) for peer_id, until in barred.items()})

    async def convicted(self, strikes: Strikes, evidence: Evidence) -> None:
        """A peer was; keep that, if the disk takes it: in this process it holds anyway."""
        self.evidence.appendleft(evidence)
        await self._write(self._book.strike, evidence.peer_id, strikes, evidence)

    async def pardon(self, peer_id: str) -> Strikes | None:
        """The owner forgives a peer what stands against it.

        Returns:
            What that was; None: nothing.

        Raises:
            LocalError: it is forgiven in this process, and cannot be written down.
        """
        async with self._writing:
            now = time.time()
            strikes = self.quarantine.pardon(peer_id, now)
            if strikes is None:
                return None
            self.reputation.struck(peer_id, 0)
            marked = [
                replace(each, pardoned=now) if each.peer_id == peer_id else each for each in self.evidence
            ]
            self.evidence = deque(marked, maxlen=SHOWN)
            self.bar()
            log.info("%s is pardoned by the owner: it is asked again", peer_id)
            await trio.to_thread.run_sync(self._book.pardon, peer_id, now)
        return strikes

    async def keep(self) -> None:
        """Write down what is known of peers."""
        for peer_id, credits in self._dealt().items():
            self.reputation.paid(peer_id, credits)
        self._forgive()
        await self._write(self._book.keep_dealings, self.reputation.dealings())
        await self._write(self._book.keep_tallies, self.tallies.all())

    def is_proved(self, peer_id: str) -> bool:
        """Whether what a peer did for this node earns it credit, where a share is run again: enough was found
        right. Time takes strikes back also while nobody keeps this book, in a node without a backbone."""
        if peer_id in self._struck:
            known = self.quarantine.of(peer_id, time.time())
            self.reputation.struck(peer_id, 0 if known is None else known.count)
        return self.reputation.is_proved(peer_id)

    def honours(self, peer_id: str) -> bool:
        """Whether what a peer did for this node earns it credit, where nothing is run again: unless it was
        found out, and that is not forgiven."""
        return self.quarantine.of(peer_id, time.time()) is None

    def _forgive(self) -> None:
        """Take from standing what time has taken back of strikes."""
        standing = self.quarantine.all(time.time())
        for peer_id in self._struck | standing.keys():
            known = standing.get(peer_id)
            self.reputation.struck(peer_id, 0 if known is None else known.count)
        self._struck = set(standing)

    async def _write(self, write: Callable[..., None], *what: object) -> None:
        try:
            async with self._writing:
                await trio.to_thread.run_sync(write, *what)
        except LocalError as error:
            if str(error) != self._cannot_write:
                log.error("%s", error)
            self._cannot_write = str(error)


def barred_until(until: float) -> str:
    """Why a peer is not asked, for people."""
    return f"{FALSE_WORDS}: not asked until {time.strftime('%Y-%m-%d %H:%M', time.gmtime(until))} UTC"


def _nobody(reasons: dict[str, str]) -> None:
    """Nobody asks anybody."""


def known_reputation(book: AuditBook) -> Reputation:
    """What was known of peers when this was written last."""
    reputation = Reputation()
    for peer_id, dealings in book.dealings():
        reputation.restore(peer_id, dealings)
    for peer_id, strikes in Quarantine(book.strikes()).all(time.time()).items():
        reputation.struck(peer_id, strikes.count)
    return reputation


@contextmanager
def found_earlier(folder: NodeFolder) -> Iterator[Findings | None]:
    """What earlier runs found, to be looked at; None if there is no book.

    Raises:
        LocalError: the book cannot be read.
    """
    book = AuditBook.reading(folder.audit)
    if book is None:
        yield None
        return
    with closing(book):
        yield Findings(_nobody, book, known_reputation(book), Quarantine(book.strikes()))
