"""Between the market's rules and a node: prices looked up in adverts, demand summed, one bookkeeper."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trio

from market.advice import REPLICA_FLOOR
from market.answering import one_a_network
from market.price_book import PriceBook
from market.quotes import OwnQuotes
from market.view import STRANGER
from node.device.folder import NodeFolder
from node.market.books_lock import BooksInUse, books_lock
from node.market.neighbourhood import neighbourhood_of
from node.market.quoted import MAX_PEERS, UNHEARD, Quoted
from node.market.quotes_port import Demand, OwnPrices
from routing.advert_rows import Offer, Outcome
from routing.errors import LocalError
from routing.quic.endpoint import Endpoint
from routing.wire.advert import Advert
from routing.wire.quote import Quote
from tests.served import connected, listening

MODEL, OTHER = bytes(range(32)), bytes(32)
NOW = 1_800_000_000.0


def quotes(price: int, now: float = NOW, model_id: bytes = MODEL) -> list[Quote]:
    own = OwnQuotes()
    own.issue(model_id.hex(), {0: (np.arange(4), np.full(4, price))}, now, 1_000)
    return own.current


def advert(peer_id: str, asked: list[Quote], seq: int = 1) -> Advert:
    return Advert(swarm_id=bytes(32), peer_id=peer_id, instance=1, seq=seq, issued_at=int(NOW), quotes=asked)


class Table:
    """Adverts, and who looks them up."""

    def __init__(self) -> None:
        self.adverts: dict[str, Advert] = {}
        self.quoted = Quoted(self.adverts.get)

    def hear(self, one: Advert) -> bool:
        self.adverts[one.peer_id] = one
        return self.quoted.heard(Offer(Outcome.NEW, one.peer_id, advert=one))

    def price(self, peer_id: str) -> int:
        book = self.quoted.book(peer_id, MODEL)
        assert isinstance(book, PriceBook)
        return book.total(0, np.zeros(1, np.uint16))


# --- prices of peers ---


def test_prices_follow_adverts() -> None:
    table = Table()
    assert table.quoted.book("a", MODEL) is UNHEARD
    assert table.hear(advert("a", quotes(7)))
    assert table.price("a") == 7
    assert table.quoted.book("a", OTHER) is None  # free, as far as it says
    assert table.hear(advert("a", quotes(9, NOW + 60), seq=2))
    assert table.price("a") == 9
    assert not table.hear(advert("a", quotes(9, NOW + 60), seq=3))
    assert table.hear(advert("a", [], seq=4))
    assert table.quoted.book("a", MODEL) is None and table.quoted.mean("a", MODEL, 0) == 0.0


def test_of_who_has_left_the_last_price_holds() -> None:
    table = Table()
    table.hear(advert("a", quotes(7)))
    assert table.price("a") == 7
    del table.adverts["a"]
    table.quoted.heard(Offer(Outcome.LEFT, "a"))
    assert table.price("a") == 7


def test_who_has_not_said_what_it_asks_is_not_taken_for_the_cheapest() -> None:
    table = Table()
    assert table.quoted.mean("new", MODEL, 0) == 0.0
    table.hear(advert("a", quotes(7)))
    table.hear(advert("b", quotes(30)))
    assert (table.quoted.mean("a", MODEL, 0), table.quoted.mean("b", MODEL, 0)) == (7.0, 30.0)
    assert table.quoted.mean("new", MODEL, 0) == 30.0
    table.hear(advert("new", quotes(2)))
    assert table.quoted.mean("new", MODEL, 0) == 2.0


def test_prices_of_many_peers_take_bounded_room() -> None:
    table = Table()
    one = quotes(7)
    for number in range(MAX_PEERS + 100):
        table.hear(advert(f"peer{number}", one))
        assert table.price(f"peer{number}") == 7
    assert len(table.quoted._books) <= MAX_PEERS


def test_whose_prices_are_used_is_not_forgotten_for_others() -> None:
    table = Table()
    table.hear(advert("a", quotes(7)))
    for number in range(MAX_PEERS + 100):
        assert table.price("a") == 7  # also of who has left meanwhile
        table.adverts.pop("a", None)
        table.hear(advert(f"peer{number}", quotes(9)))
        assert table.price(f"peer{number}") == 9


# --- own prices and demand ---


def test_own_prices() -> None:
    own, experts = OwnPrices(), np.array([1, 1, 3], np.uint16)
    assert own.total_lowest(MODEL, 0, experts, NOW) == 0 and not own.valid(1, NOW)
    own.quotes = OwnQuotes()
    own.quotes.issue(MODEL.hex(), {0: (np.arange(4), np.array([1, 10, 100, 1000]))}, NOW, 1_000)
    assert own.total_lowest(MODEL, 0, experts, NOW) == 1020
    assert own.total_lowest(MODEL, 0, experts, NOW) == 1020  # the same array: as when it came
    assert own.total_lowest(MODEL, 0, np.array([0, 2], np.uint16), NOW) == 101
    assert own.total_lowest(MODEL, 1, np.array([0, 2], np.uint16), NOW) == 200  # not named: the middle one
    assert own.valid(own.quotes.current[0].number, NOW)


def test_demand_is_summed_whatever_the_length() -> None:
    taken = [
        {(MODEL, 0): np.array([1, 2])},
        {},
        {(MODEL, 0): np.array([0, 0, 5]), (MODEL, 1): np.array([4])},
        {(MODEL, 0): np.array([1])},
    ]
    demand = Demand(lambda: taken.pop(0))
    found = [{key: pairs.tolist() for key, pairs in demand.demand().items()} for _ in range(4)]
    assert found[1] == {(MODEL.hex(), 0): [1, 2]}
    assert found[3] == {(MODEL.hex(), 0): [2, 2, 5], (MODEL.hex(), 1): [4]}


# --- where peers are ---


def test_neighbours_on_this_machine_share_no_pool() -> None:
    async def test() -> None:
        async with listening({}) as endpoint, connected(endpoint) as connection:
            while not endpoint.connections:
                await trio.sleep(0.01)
            assert neighbourhood_of(endpoint, next(iter(endpoint.connections))) == ""
            assert neighbourhood_of(endpoint, None) == ""
            assert connection.is_open

    trio.run(test)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("203.0.112.7", "203.0.112.0/24"),
        ("::ffff:203.0.112.7", "203.0.112.0/24"),
        ("2a00:1450:4001:80f::200e", "2a00:1450:4001::/48"),
        ("192.168.1.9", ""),
        ("relay 12D3KooW", "relay 12D3KooW"),
    ],
)
def test_neighbourhoods(host: str, network: str) -> None:
    class Far:
        first_address = (host, 4190)

    class Plane:
        def path_of(self, connection: object) -> None:
            return None

    plane: Endpoint = Plane()  # type: ignore[assignment]
    assert neighbourhood_of(plane, Far()) == network  # type: ignore[arg-type]
    if host.startswith("relay "):  # one machine can be many relays
        known = neighbourhood_of(plane, Far(), lambda relay: "203.0.112.9")  # type: ignore[arg-type]
        assert known == "203.0.112.0/24"


def test_ten_identities_of_one_machine_that_all_answer_are_one_replica() -> None:
    """As many as are needed for a replica floor of three: from three networks."""
    crowd = [(f"sybil {number}", "203.0.113.0/24") for number in range(10)]
    others = [("ana", "198.51.100.0/24"), ("ben", ""), ("carla", "")]
    assert one_a_network([*crowd, *others]) == {"sybil 0", "ana", "ben", "carla"}
    assert one_a_network([*others, *reversed(crowd)]) == {"sybil 0", "ana", "ben", "carla"}
    assert 1 + (len(crowd) - 1) * STRANGER < REPLICA_FLOOR


# --- one bookkeeper ---


def test_one_process_keeps_the_books(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / "node")
    with books_lock(folder):
        code = (
            "import sys; from pathlib import Path; from node.device.folder import NodeFolder\n"
            "from node.market.books_lock import books_lock\n"
            "with books_lock(NodeFolder(Path(sys.argv[1]))): print('mine')"
        )
        command = [sys.executable, "-c", code, str(folder.root)]
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert other.returncode == 1 and "BooksInUse" in other.stderr and "panal chat" in other.stderr
        with pytest.raises(BooksInUse), books_lock(folder):
            pass
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "mine\n"
    assert folder.market_lock.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot be written"), books_lock(NodeFolder(tmp_path / "file")):
        pass
