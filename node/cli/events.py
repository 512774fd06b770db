"""What happens in the swarm as lines of JSON on stdout: `panal run --events`."""

from __future__ import annotations

import json

from node.swarm.watching import Watching
from relay.reachability import Reachability
from routing.advert_rows import Offer, Outcome
from routing.routes import Route
from routing.wire.holdings import Holdings


def event_printer() -> Watching:
    """Prints each event as it comes, in the words of the advert and of the route policy."""

    def say(event: str, **fields: object) -> None:
        print(json.dumps({"event": event, **fields}), flush=True)

    def connected(peer_id: str, told: Holdings) -> None:
        say("connected", peer=peer_id, name=told.name, slices=len(told.slices))

    def heard(offer: Offer) -> None:
        if offer.clone is not None:
            say("clone", peer=offer.peer_id, text=str(offer.clone))
        if offer.outcome is Outcome.LEFT:
            say("left", peer=offer.peer_id)
        elif offer.changed and offer.advert is not None:
            say(
                "heard" if offer.outcome is Outcome.NEW else "refreshed",
                peer=offer.peer_id,
                name=offer.advert.name,
                slices=len(offer.advert.slices),
                reach=offer.advert.reach,
            )

    def routed(peer_id: str, route: Route) -> None:
        say(
            "route",
            peer=peer_id,
            route=route.kind.value,
            transport=route.transport,
            via=route.via,
            reason=route.reason,
        )

    def reached(found: Reachability) -> None:
        say(
            "reachability",
            reach=found.reach.value,
            mapping=found.mapping.value,
            filtering=found.filtering.value,
            udp=found.udp,
            addresses=[f"{host}:{port}" for host, port in found.addresses],
            reason=found.reason,
            evidence=list(found.evidence),
        )

    return Watching(
        connected=connected,
        lost=lambda peer_id, reason: say("lost", peer=peer_id, reason=reason),
        routed=routed,
        heard=heard,
        gone=lambda peer_id: say("gone", peer=peer_id),
        reached=reached,
    )
