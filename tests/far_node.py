"""A `panal` process that is far away: `python -m tests.far_node SECONDS COMMAND ...`.

Each datagram that it sends leaves so many seconds later, whoever it is for. So the round trips of its peers
are that much longer by every way, also where both ends are on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import trio

from node.cli.main import main
from routing.quic.core import Datagram
from routing.quic.endpoint import Endpoint


def be_far(seconds: float) -> None:
    """From now on this process's endpoints send late."""
    send_now = Endpoint.transmit

    def send_late(self: Endpoint, datagrams: Sequence[Datagram]) -> int:
        nursery = self._nursery
        if nursery is None:
            return send_now(self, datagrams)
        kept = list(datagrams)

        async def later() -> None:
            await trio.sleep(seconds)
            send_now(self, kept)

        nursery.start_soon(later)
        return sum(len(each[0]) for each in kept)

    Endpoint.transmit = send_late  # type: ignore[method-assign]


if __name__ == "__main__":
    be_far(float(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
