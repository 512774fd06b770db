"""`/panal/slices/1`: saying what this node serves, to whoever asks."""

from __future__ import annotations

from collections.abc import Callable

from node.software import software
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.wire import holdings
from routing.wire.holdings import Holdings
from routing.wire.messages import VERSION


async def tell_holdings(stream: Stream, told: Callable[[], bytes]) -> None:
    """Answer until the stream ends.

    Args:
        told: the answer now.

    Raises:
        PeerError: what came is no request.
    """
    while True:
        try:
            message = await stream.receive_message(holdings.MAX_REQUEST_BYTES)
        except StreamClosed:
            return
        holdings.decode_request(message, peer=stream.peer_id)
        await stream.send_message(told())


async def tell_nothing(stream: Stream, name: str) -> None:
    """The same of a node that only asks."""
    nothing = Holdings(
        versions=[VERSION], name=name, slices=[], codecs=[], combines=[], max_rows=1, software=software()
    )
    told = holdings.encode_holdings(nothing)
    await tell_holdings(stream, lambda: told)
