"""Which model is meant, and whose word is taken for what the model id does not cover."""

from __future__ import annotations

import re
from collections import Counter

import trio

from node.decode.live_backbone import COVER_SECONDS, REACH_SECONDS
from node.importing import Progress
from node.model.store import MIN_PREFIX, SHORT_ID
from node.share.finding import Offers
from node.share.share_list import is_meant
from node.sizes import size_text
from node.swarm.node import SwarmNode
from routing.errors import LocalError, PeerError
from routing.not_reached import describe, short
from routing.wire.model_list import Metadata, Offer

GATHER_SECONDS = 1.0
"""After the first peer that gives a model, for others: what they say of it should be compared."""

GATHER_MOST_SECONDS = 5.0
"""The same while peers are still being dialed: as long as a dial may take."""

LOOK_SECONDS = 0.1
"""Between looks for offers."""

_SHORT = re.compile(rf"[0-9a-f]{{1,{MIN_PREFIX - 1}}}")


async def choose_model(
    node: SwarmNode,
    offers: Offers,
    what: str,
    progress: Progress = lambda what, done, total: None,
) -> tuple[str, str]:
    """Wait for peers that give a model, and say which is meant: its id, and what its sources call it.

    Args:
        what: a name, or the beginning of an id.
        progress: told meanwhile how many have said what they give, and since when it looks.

    Raises:
        LocalError: it may mean several models.
        PeerError: nobody gives one that it means.
    """
    begun = trio.current_time()
    first: float | None = None
    while True:
        found = _meant(offers, what)
        now = trio.current_time()
        if found and first is None:
            first = now
        if first is not None:
            waits = GATHER_MOST_SECONDS if _is_dialing(node) or offers.is_asking else GATHER_SECONDS
            if now - first >= waits:
                break
        if first is None and now - begun >= patience(node, offers):
            raise PeerError(_nobody(node, offers, what))
        progress(_looking(node, offers, what, found, now - begun), 0, 0)
        await trio.sleep(LOOK_SECONDS)
    if len(found) > 1:
        told = "; ".join(f"{model_id} ({_described(each)})" for model_id, each in found.items())
        raise LocalError(f"{what}: several models are offered so, give an id: {told}")
    ((model_id, by_peer),) = found.items()
    names = Counter(offer.name for offer in by_peer.values())
    return model_id, names.most_common(1)[0][0]


def _looking(
    node: SwarmNode, offers: Offers, what: str, found: dict[str, dict[str, Offer]], seconds: float
) -> str:
    """What is done meanwhile, for people; something of it changes each second."""
    if found:
        givers = len({peer_id for by_peer in found.values() for peer_id in by_peer})
        given = f"{givers} peer{'' if givers == 1 else 's'} {'gives' if givers == 1 else 'give'} it"
        return f"looking for {what}: {given}, waiting for others, {seconds:.0f} s"
    asked, known = len(offers.by_peer), len(offers.by_peer.keys() | node.links.wanted)
    return f"looking for {what}: {asked} of {known} peers asked, {seconds:.0f} s"


def _is_dialing(node: SwarmNode) -> bool:
    """Whether a peer has neither answered nor failed yet."""
    links = node.links
    return any(links.find(peer_id) is None and not links.reason(peer_id) for peer_id in links.wanted)


def agreed_metadata(offers: Offers, model_id: str, wanted: str) -> tuple[Metadata, list[str]]:
    """The metadata to take, and who has it.

    Args:
        wanted: the beginning of its digest; "" for what all sources have.

    Raises:
        LocalError: the sources do not agree.
        PeerError: nobody gives the trunk.
    """
    found: dict[Metadata, list[str]] = {}
    for peer_id, offer in offers.of(model_id).items():
        if offer.trunk is not None and offer.trunk.digest.startswith(wanted):
            found.setdefault(offer.trunk, []).append(peer_id)
    if not found:
        which = f" with metadata {wanted}" if wanted else ""
        raise PeerError(
            f"model {model_id[:SHORT_ID]}: no connected peer gives its trunk{which}; `panal model share` "
            "there does, `panal slice get` here fetches experts alone"
        )
    if len(found) > 1:
        told = "; ".join(f"{each.digest[:SHORT_ID]} from {', '.join(peers)}" for each, peers in found.items())
        raise LocalError(
            f"model {model_id[:SHORT_ID]}: its sources have different metadata (tokenizer, chat template, "
            f"rope scaling), which the model id does not cover: {told}; choose with --metadata"
        )
    return next(iter(found.items()))


def patience(node: SwarmNode, offers: Offers) -> float:
    """Seconds to wait without anything new: longer while peers are being looked for or dialed."""
    links = node.links
    may_come = node.is_looking or any(map(links.is_under_way, links.wanted))
    return REACH_SECONDS if may_come or offers.is_asking else COVER_SECONDS


def _meant(offers: Offers, what: str) -> dict[str, dict[str, Offer]]:
    """Offers by model id and peer that may be meant."""
    found: dict[str, dict[str, Offer]] = {}
    for peer_id, offered in offers.by_peer.items():
        for offer in offered:
            if is_meant(what, offer.model_id, offer.name):
                found.setdefault(offer.model_id, {})[peer_id] = offer
    return found


def _nobody(node: SwarmNode, offers: Offers, what: str) -> str:
    told = sorted(
        {f"{offer.name} ({offer.model_id[:SHORT_ID]})" for each in offers.by_peer.values() for offer in each}
    )
    if told:
        rule = f"; of an id give {MIN_PREFIX} digits or more" if _SHORT.fullmatch(what) else ""
        return f"{what}: nobody gives it; there are {', '.join(told)}{rule}"
    reasons = offers.reasons | node.failures()
    why = [describe(peer, reason) for peer, reason in reasons.items()]
    if offers.by_peer:
        why.append(f"{', '.join(map(short, offers.by_peer))} shared none (`panal model share` there does)")
    return f"{what}: nobody gives any model: " + (
        "; ".join(why) or "no peer was found; --peer ADDRESS names one (`panal run` there prints it)"
    )


def _described(offers: dict[str, Offer]) -> str:
    offer = next(iter(offers.values()))
    size = size_text(offer.expert_bytes + offer.trunk_bytes)
    return f"{offer.architecture}, {size}, from {', '.join(sorted(offers))}"
