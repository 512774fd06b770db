"""Who asks, inside the lab of bench_star: MoE calls of one token, one after the other, through the star.

    star_client.py STORE MODEL ADDRESS...

It connects to all servers and says what the connections' round trips are. Each line on stdin is a JSON object
that tells how many calls to make and how (`Task`), and is answered with what they took. It ends with its
stdin.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from node.model.gguf.split import open_model
from node.model.manifest import ExpertCall
from node.model.store import Store, StoredModel
from routing.dispatch.call import MoeCall, WireSettings
from routing.dispatch.plan import LayerHolders, plan
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.dispatch.star import Star
from routing.estimates import Estimates
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.table import CallShape, HolderTable
from routing.weighing import Weighing
from routing.wire import holdings

SETTLE_SECONDS = 3.0
"""What the plane takes to fill its windows after a dial, see routing.quic.warmup."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure.

    Attributes:
        calls: that count; warm_up: before them, by which the estimates get to know the peers.
        follow: the table follows the estimates, as in a backbone; else servers are chosen by distance alone.
        hedge: late answers are hedged.
        used, experts: how many experts each token has, and out of which: first to last.
        seed: of hidden states and experts.
    """

    calls: int
    warm_up: int
    follow: bool
    hedge: bool
    used: int
    experts: tuple[int, int]
    seed: int


class NoHedges:
    """A budget of none."""

    def earn(self) -> None: ...

    def spend(self, count: int, *, urgent: bool = False) -> bool:
        return False

    def give_back(self, count: int) -> None: ...


class Client:
    """Connected to all servers."""

    def __init__(self, stored: StoredModel, peers: dict[str, QuicExpertPeer]) -> None:
        self._stored = stored
        self._peers = peers
        self._told: dict[str, holdings.Holdings] = {}

    async def learn(self) -> None:
        """Ask all what they serve."""
        for peer_id, peer in self._peers.items():
            stream = peer.connection.open_stream(holdings.PROTOCOL_ID)
            await stream.send_message(holdings.encode_request(holdings.HoldingsRequest(versions=[1])))
            self._told[peer_id] = holdings.decode_holdings(
                await stream.receive_message(holdings.MAX_ANSWER_BYTES)
            )
            await stream.aclose()

    async def measure(self, task: Task) -> dict[str, Any]:
        """Make the calls, with estimates that know nothing yet."""
        shapes = {
            (call.layer, call.index): CallShape(call.n_experts, call.n_experts)
            for call in self._stored.manifest.calls
        }
        table = HolderTable(self._stored.model_id, shapes)
        for peer_id, told in self._told.items():
            table.connected(peer_id, told)
        estimates = Estimates()
        if not task.hedge:
            estimates.hedges = NoHedges()  # type: ignore[assignment]
        star = Star(self._peers.get, None, estimates)
        weighing = Weighing(table, estimates, self._peers.get)
        weighing.look(trio.current_time())
        rng = np.random.default_rng(task.seed)
        found: dict[str, Any] = {
            "seconds": [],
            "chosen": [],
            "requests": 0,
            "hedges": 0,
            "won": 0,
            "late": [],
        }
        for number in range(task.warm_up + task.calls):
            expert_call = self._stored.manifest.calls[number % len(self._stored.manifest.calls)]
            call = self._call(expert_call, task, rng)
            if task.follow:
                weighing.look(trio.current_time())
            layer = table.holders(call.layer, call.call_index)
            begun = time.perf_counter()
            _, stats = await star.dispatch(call, layer, WireSettings())
            if number >= task.warm_up:
                found["seconds"].append(time.perf_counter() - begun)
                found["chosen"].append(self._chosen(call, layer))
                found["requests"] += len(found["chosen"][-1]) + stats.hedges + stats.moved
                found["hedges"] += stats.hedges
                found["won"] += stats.hedges_won
                found["late"] += stats.late
        return found

    def _call(self, expert_call: ExpertCall, task: Task, rng: np.random.Generator) -> MoeCall:
        first, last = task.experts
        ids = (first + rng.permutation(last + 1 - first))[None, : task.used].astype(np.int32)
        x = rng.standard_normal((1, expert_call.n_in), dtype=np.float32)
        weights = rng.random(ids.shape, dtype=np.float32)
        model_id = bytes.fromhex(self._stored.model_id)
        return MoeCall(model_id, expert_call.layer, expert_call.index, x, ids, weights, expert_call.n_out)

    def _chosen(self, call: MoeCall, layer: LayerHolders) -> list[str]:
        return [part.peer_id for part in plan(call.ids, layer)]


async def main(store: Path, model: Path, addresses: list[str]) -> None:
    stored = Store(store).find(open_model(model))
    assert stored is not None  # the bench has imported it
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(Identity.generate(), accept=False)
        await nursery.start(endpoint.run)
        connections: list[Connection] = [
            await endpoint.connect(PeerAddress.parse(address)) for address in addresses
        ]
        peers = {each.peer_id: QuicExpertPeer(each) for each in connections}
        client = Client(stored, peers)
        await client.learn()
        await trio.sleep(SETTLE_SECONDS)
        say({"rtts": {peer_id: peer.rtt for peer_id, peer in peers.items()}})
        async for line in trio.wrap_file(sys.stdin):
            say(await client.measure(msgspec.json.decode(line, type=Task)))
        nursery.cancel_scope.cancel()


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
