"""What the market does for one answer, in one process and without anything else: microseconds."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from market.books import Books
from market.credit_line import Terms
from market.ledger import LedgerState
from market.price_book import PriceBook
from market.quotes import OwnQuotes
from node.market.priced import PricedCalls
from node.market.quoted import Quoted
from node.market.quotes_port import OwnPrices
from routing.identity import Identity
from routing.wire.advert import Advert
from routing.wire.codecs import Codec
from routing.wire.experts import Combine, ExpertsRequest

MODEL = bytes(range(32))
LINE = 10**15  # nobody is refused
CALLS, ROUNDS = 2_000, 5
ROOM = 4_000  # bytes of a quote


def answer_microseconds(layers: int, n_experts: int, experts: npt.NDArray[np.uint16]) -> tuple[float, float]:
    """(for who asks, for who serves); the least of a few rounds.

    Args:
        layers, n_experts: of the model, all of which is quoted.
        experts: u16 [pairs] that an answer is for.
    """
    now = time.time()
    payee_id, payer_id = Identity.generate(), Identity.generate()
    prices = OwnPrices()
    prices.quotes = OwnQuotes()
    base = np.arange(1_000, 1_000 + n_experts)
    prices.quotes.issue(
        MODEL.hex(), {layer: (np.arange(n_experts), base + layer) for layer in range(layers)}, now, ROOM
    )
    advert = Advert(
        swarm_id=bytes(32), peer_id=payee_id.peer_id, instance=1, seq=1, issued_at=int(now),
        quotes=prices.quotes.current,
    )  # fmt: skip
    quoted = Quoted(lambda peer_id: advert)
    payer = Books(payer_id, Terms(LINE, LINE), OwnPrices(), LedgerState()).payer
    server = Books(payee_id, Terms(LINE, LINE), prices, LedgerState())
    accounts = PricedCalls(server.payee, prices, time.time)
    rows = 1
    requests = [
        ExpertsRequest(
            MODEL, layer, 0, 1, np.zeros((rows, 4), np.float32), np.full(rows, experts.size, np.uint16),
            experts, None, 4, Codec.F32, Codec.F32, Combine.ROWS, 1_000,
        )
        for layer in range(layers)
    ]  # fmt: skip

    def pay() -> None:
        for number in range(CALLS):
            request = requests[number % layers]
            book = quoted.book(payee_id.peer_id, request.model_id)
            assert isinstance(book, PriceBook)
            payer.answered(
                payee_id.peer_id, request.model_id, request.layer, request.experts, book, time.time()
            )
            payer.urgent(payee_id.peer_id)

    def serve() -> None:
        for number in range(CALLS):
            request = requests[number % layers]
            assert not accounts.refusal(payer_id.peer_id, request)
            accounts.served(payer_id.peer_id, request)

    return _least(pay), _least(serve)


def _least(work: object) -> float:
    assert callable(work)
    found = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found) / CALLS * 1e6
