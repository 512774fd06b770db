"""Fetching cells for a home set: node.share.fetch, in cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from node.home.call_bits import CallBits, CallKey
from node.home.fetched import FetchedCells
from node.share import fetch, target
from node.share.fetch import unrelayed as unrelayed
from routing.dispatch.holders import HOME, LayerHolders
from routing.quic.connection import Connection


@dataclass(frozen=True)
class FetchProgress:
    """How far it is.

    Attributes:
        cells, n_bytes: that have come; bytes count as they come.
        all_cells, all_bytes: that were lacking when it began.
        sources: peers that are being asked.
    """

    cells: int
    n_bytes: int
    all_cells: int
    all_bytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class FetchResult:
    """What came of it.

    Attributes:
        cells: that have come.
        by_peer: bytes that each peer sent.
        missing: cells that nobody gave; empty if all is there.
        dropped: peers that sent what they must not, with what it was.
        given_up: peers that failed again and again, or do not share, with the last reason.
    """

    cells: int
    by_peer: dict[str, int]
    missing: dict[CallKey, int]
    dropped: dict[str, str]
    given_up: dict[str, str]


async def fetch_cells(
    fetched: FetchedCells,
    wanted: CallBits,
    *,
    holders: Callable[[int, int], LayerHolders],
    connection_to: Callable[[str], Connection | None],
    rate: float = math.inf,
    on_progress: Callable[[FetchProgress], None] = lambda progress: None,
) -> FetchResult:
    """Get the cells that are not there yet, in this order, from whoever holds them now.

    Returns when all are there, or when nobody is left who may give the rest. May be cancelled at any time.

    Args:
        wanted: as `call_bits.cells_of` gives them.
        holders: who holds the experts of (layer, call index) now (`HolderTable.holders`).
        connection_to: the connection to a peer, if it may be asked.
        rate: bytes a second that are asked for at most.

    Raises:
        LocalError: the disk has not enough room, or fails.
    """
    lacking = fetched.lacks(wanted)
    fetched.require_room(fetched.bytes_of(lacking))

    def held(key: CallKey) -> Iterator[tuple[str, int]]:
        known = holders(*key)
        for holder in known.holders + known.reserve:
            if holder.peer_id != HOME:
                yield holder.peer_id, holder.held

    def say(so_far: target.Progress) -> None:
        on_progress(
            FetchProgress(so_far.units, so_far.n_bytes, so_far.all_units, so_far.all_bytes, so_far.sources)
        )

    result = await fetch.fetch(
        fetched, lacking, holders=held, connection_to=connection_to, rate=rate, on_progress=say
    )
    return FetchResult(result.units, result.by_peer, result.missing, result.dropped, result.given_up)
