"""A process that remembers peers as fast as it can and says what it has been acknowledged; to be killed.

Usage: remembering.py FILE
"""

from __future__ import annotations

import sys

from routing.remembered import RememberedPeers
from routing.wire.advert import decode_advert
from tests.adverts import NOW, identity, signed


def main(path: str) -> None:
    remembered = RememberedPeers(path)
    adverts = [decode_advert(signed(number)).prove() for number in range(20)]
    round_number = 0
    while True:
        round_number += 1
        for number, advert in enumerate(adverts):
            remembered.remember(advert, NOW + round_number)
            remembered.route_worked(
                str(identity(number).peer_id), f"round {round_number}", NOW + round_number
            )
            seq = remembered.next_seq(NOW)
            # one write a line: what has been said is complete or absent
            sys.stdout.write(f"{number} {round_number} {seq}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
