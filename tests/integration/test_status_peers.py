"""Peers and models as a node's table of adverts has them: a thousand of them, and hostile ones."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import trio

from node.status import facts
from node.status.board import Sources, StatusBoard
from node.status.peer_facts import MAX_PEERS
from node.swarm.node import Role, SwarmNode
from routing.identity import Identity
from routing.wire.advert import Advert, sign_advert
from routing.wire.holdings import Slice, compact_cells
from tests.adverts import identity
from tests.integration.test_swarm_node import place

MODEL = "0f" * 32


@contextmanager
def board_of_a_node() -> Iterator[tuple[StatusBoard, SwarmNode]]:
    """A node that is bound and not run: what it hears is put into its table by the test."""
    node = SwarmNode(place(control=False), Role(serves=True))
    try:
        yield StatusBoard(Sources(node=node, name="here")), node
    finally:
        node.close()


def hear(node: SwarmNode, who: Identity, number: int = 0, **fields: Any) -> None:
    now = time.time()
    base: dict[str, Any] = {
        "swarm_id": node.membership.swarm.id,
        "peer_id": who.peer_id,
        "instance": 7,
        "seq": 1,
        "issued_at": int(now),
        "addresses": [f"/ip4/{11 + number % 200}.{number // 200}.0.7/udp/4190/quic-v1"],
        "reach": "public",
    }
    data = sign_advert(Advert(**(base | fields)), who)
    offer = node.table.offer(data, now, from_peer=f"source {number % 7}", age=0.0)
    assert offer.reason == ""


def in_trio(test: Callable[[], None]) -> None:
    async def main() -> None:
        test()

    trio.run(main)


def matrix(model: facts.Model) -> np.ndarray[Any, np.dtype[np.uint8]]:
    counts = np.frombuffer(base64.b64decode(model.replicas), np.uint8)
    return counts.reshape(len(model.layers), model.experts)


def test_a_thousand_peers_and_their_cells() -> None:
    def test() -> None:
        with board_of_a_node() as (board, node):
            wanted = np.zeros((48, 128), np.int64)
            for number in range(1_000):
                first = number % 113
                cells = {layer: range(first, first + 16) for layer in range(48)}
                held = Slice("experts", MODEL, "qwen3moe", experts=compact_cells(cells))
                hear(node, Identity.generate(), number, name=f"peer {number:04}", slices=[held])
                wanted[:, first : first + 16] += 1
            status = board.status()
            assert len(status.peers) == 1_000 and status.peers_left_out == 0
            assert [peer.name for peer in status.peers] == [f"peer {number:04}" for number in range(1_000)]
            assert {peer.state for peer in status.peers} == {"heard"}
            assert all(peer.holds[0].cells == 48 * 16 for peer in status.peers)
            (model,) = status.models
            assert (model.nodes, model.architecture, model.here) == (1_000, "qwen3moe", [])
            assert (matrix(model) == np.minimum(wanted, 255)).all()
            assert msgspec.json.decode(board.body(), type=facts.Status) == status
            # what has not changed is not made anew
            again = board._made()
            assert again is not None
            later = again.status(time.time(), trio.current_time())
            assert later.models[0] is model and later.peers[7].holds is status.peers[7].holds

    in_trio(test)


def test_more_peers_than_are_told_are_counted() -> None:
    def test() -> None:
        with board_of_a_node() as (board, node):
            for number in range(MAX_PEERS + 20):
                hear(node, Identity.generate(), number)
            status = board.status()
            assert len(status.peers) == MAX_PEERS and status.peers_left_out == 20

    in_trio(test)


def test_what_hostile_peers_call_themselves_is_printable_and_short() -> None:
    def test() -> None:
        with board_of_a_node() as (board, node):
            names = [
                "<script>alert(1)</script>",
                "\x1b]0;owned\x07\x1b[2J",
                "line\nline\r\0nul",
                "\u202egnp.exe \u2066x",
                "[bold red]x[/]",
                "e\u0301" * 60,
                "   ",
            ]
            for number, name in enumerate(names):
                hear(node, identity(number), number, name=name)
            status = board.status()
            assert len(status.peers) == len(names)
            for peer in status.peers:
                assert peer.name == "" or peer.name.isprintable()
                assert len(peer.name.encode()) <= 64 and "\u202e" not in peer.name
            told = {peer.name for peer in status.peers}
            assert "<script>alert(1)</script>" in told  # text, which the page shows as text
            assert "" in told
            assert b"\x1b" not in board.body() and b"\\u001b" not in board.body()

    in_trio(test)


def test_cells_that_no_model_has_cost_nothing() -> None:
    def test() -> None:
        with board_of_a_node() as (board, node):
            wild = [
                Slice("experts", f"{number:064x}", "x", experts=[(0, 65_535, [(0, 65_535)])])
                for number in range(30)
            ]
            hear(node, identity("liar"), slices=wild)
            status = board.status()
            assert len(status.models) == 8 and len(status.peers[0].holds) == 30
            assert len(board.body()) < 8 * 2**20

    in_trio(test)


def test_a_peer_that_leaves_takes_its_cells_with_it() -> None:
    def test() -> None:
        with board_of_a_node() as (board, node):
            held = Slice("experts", MODEL, "x", experts=[(0, 1, [(0, 3)])])
            hear(node, identity("a"), slices=[held])
            hear(node, identity("b"), 1, slices=[held])
            gatherer = board._made()
            assert gatherer is not None
            status = gatherer.status(time.time(), 0.0)
            assert status.models[0].nodes == 2 and matrix(status.models[0]).max() == 2
            hear(node, identity("b"), 1, seq=2, slices=[])
            status = gatherer.status(time.time(), 1.0)
            assert status.models[0].nodes == 1 and matrix(status.models[0]).max() == 1
            hear(node, identity("a"), seq=2, addresses=[], leaving=True)
            status = gatherer.status(time.time(), 2.0)
            assert status.models == [] and [peer.id for peer in status.peers] == [identity("b").peer_id]

    in_trio(test)
