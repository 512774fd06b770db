"""Several tries at one thing, each started a little after the one before; the first that works wins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from routing.errors import HeldBack, LocalError, PeerError

NEXT_ADDRESS = 0.25
"""Seconds before the next address of a peer is dialed beside the one before (RFC 8305, section 5)."""

MAX_TRIED = 6
"""Addresses dialed in one attempt: a peer that names many gets no more than this from us."""

T = TypeVar("T")


async def first(
    peer_id: str,
    dials: Sequence[Callable[[], Awaitable[T]]],
    discard: Callable[[T], object],
    *,
    stagger: float = NEXT_ADDRESS,
) -> T:
    """The first of several dials that works, each started a little after the one before.

    Args:
        discard: closes what another dial has brought in the same turn of the loop.
        stagger: seconds each is given before the next is started beside it.

    Raises:
        PeerError, LocalError: none worked; HeldBack, if one was not tried.
    """
    won: list[T] = []
    errors: list[PeerError | LocalError] = []
    async with trio.open_nursery() as nursery:

        async def run(dial: Callable[[], Awaitable[T]], over: trio.Event) -> None:
            try:
                won.append(await dial())
                for late in won[1:]:
                    discard(late)
                del won[1:]
                nursery.cancel_scope.cancel()
            except (PeerError, LocalError) as error:
                errors.append(error)
            finally:
                over.set()

        for dial in dials[:MAX_TRIED]:
            over = trio.Event()
            nursery.start_soon(run, dial, over)
            with trio.move_on_after(stagger):
                await over.wait()
    if won:
        return won[0]
    if len(errors) == 1:
        raise errors[0]
    kind = HeldBack if any(isinstance(each, HeldBack) for each in errors) else PeerError
    raise kind("; ".join(dict.fromkeys(map(str, errors))) or "no address is known", peer=peer_id)
