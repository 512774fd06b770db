"""What a node shows to others of its membership: read from its file, checked before it is shown."""

from __future__ import annotations

import time

from node.swarm.place import Place
from node.swarm_files import read_member
from routing.errors import LocalError
from routing.membership import Membership, check_member


def load_membership(place: Place) -> Membership:
    """What this node shows to others.

    Raises:
        LocalError: the member certificate cannot be read, has expired, or is not this node's.
    """
    swarm, path = place.swarm.swarm, place.swarm.member
    if path is None:
        return Membership(swarm, b"")
    certificate = read_member(path)
    reason = check_member(swarm, certificate, place.identity.peer_id, time.time())
    if reason:
        raise LocalError(
            f"{path}: this node ({place.identity.peer_id}) {reason}; panal swarm join INVITATION mends it"
        )
    return Membership(swarm, certificate)
