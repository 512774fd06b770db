"""A decode whose experts never answer, run as `panal generate` runs one; a test sends it a signal.

    python -m tests.integration.interrupted_decode FOLDER

Prints `waiting` once the decoding thread waits for the answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from node.decode.live_backbone import BackboneSettings, live_backbone
from node.decode.session import Session
from node.engine import library as llama
from node.engine.sampler import Sampler, SamplingSettings
from node.importing import import_model
from node.interrupt import run_interruptible
from node.model.store import Store
from node.swarm.place import Place
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.wire import holdings, messages
from routing.wire.experts import MODEL_ID_BYTES
from routing.wire.holdings import Holdings, Slice
from tests.conftest import DEMO_MODEL


async def main(folder: Path) -> None:
    library = llama.load()
    stored = import_model(library, Store(folder), DEMO_MODEL)
    assert len(stored.model_id) == 2 * MODEL_ID_BYTES
    held = [
        Slice(kind="experts", model_id=stored.model_id, architecture="qwen2moe", experts=[(0, 3, [(0, 11)])])
    ]
    told = holdings.encode_holdings(Holdings([1], "mute", held, ["f32"], ["rows"], 4096))

    async def tell(stream: Stream) -> None:
        await stream.receive_message(holdings.MAX_REQUEST_BYTES)
        await stream.send_message(told)

    async def never_answer(stream: Stream) -> None:
        await stream.receive_message(1 << 20)
        print("waiting", flush=True)
        await trio.sleep_forever()

    server = Endpoint(
        Identity.generate(),
        listen=("127.0.0.1", 0),
        handlers={holdings.PROTOCOL_ID: tell, messages.PROTOCOL_ID: never_answer},
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        address = PeerAddress(*server.local_address, server.identity.peer_id)
        settings = BackboneSettings(threads=1, context=256, deadline=600.0)
        async with live_backbone(
            library, stored, place=Place.among([address], identity=Identity.generate()), settings=settings
        ) as live:
            await live.covered()
            session = Session(live.backbone)
            session.append([1, 2, 3])
            sampler = Sampler(library, SamplingSettings())
            await live.in_thread(session.next_token, sampler)


if __name__ == "__main__":
    try:
        run_interruptible(lambda: main(Path(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(130)
    print("it answered")
