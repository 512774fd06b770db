"""What the market does for one answer, and for one receipt, in one process and without the network."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from market.books import Books
from market.credit_line import Terms
from market.ledger import LedgerState
from market.ledger_sqlite import SqliteLedger
from market.price_book import PriceBook
from market.quotes import OwnQuotes
from market.step import Step
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
EXCHANGES = 50


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


def exchange_milliseconds(folder: Path) -> tuple[float, float]:
    """Processor time of one receipt: (for who pays, for who is paid), with its writes to the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    payee_id, payer_id = Identity.generate(), Identity.generate()
    prices = OwnPrices()
    prices.quotes = OwnQuotes()
    prices.quotes.issue(MODEL.hex(), {0: (np.arange(8), np.full(8, 1_000))}, now, ROOM)
    book = PriceBook.of(prices.quotes.current[0])
    experts = np.arange(4, dtype=np.uint16)
    spent = {payer_id.peer_id: 0.0, payee_id.peer_id: 0.0}
    with (
        closing(SqliteLedger(folder / "payer.db")) as payer_file,
        closing(SqliteLedger(folder / "payee.db")) as payee_file,
    ):
        payer = Books(payer_id, Terms(LINE, LINE), OwnPrices(), payer_file.load(now))
        payee = Books(payee_id, Terms(LINE, LINE), prices, payee_file.load(now))

        def take(books: Books, file: SqliteLedger, own: Identity, make: Callable[[], Step | None]) -> bytes:
            begun = time.process_time()
            step = make()
            assert step is not None and not step.refused, step
            if step.write:
                file.write(step.write)
            books.written(step)
            spent[own.peer_id] += time.process_time() - begun
            return step.message

        hello = payer.hello(payee_id.peer_id)
        back = take(payee, payee_file, payee_id, lambda: payee.received(payer_id.peer_id, hello, now))
        take(payer, payer_file, payer_id, lambda: payer.replied(payee_id.peer_id, back, now))
        spent = dict.fromkeys(spent, 0.0)
        for _ in range(EXCHANGES):
            payee.payee.served(payer_id.peer_id, MODEL, 0, experts, now)
            payer.payer.answered(payee_id.peer_id, MODEL, 0, experts, book, now)
            offer = take(payer, payer_file, payer_id, lambda: payer.offer(payee_id.peer_id, now))
            reply = take(payee, payee_file, payee_id, lambda: payee.received(payer_id.peer_id, offer, now))  # noqa: B023
            take(payer, payer_file, payer_id, lambda: payer.replied(payee_id.peer_id, reply, now))  # noqa: B023
    return tuple(1000 * seconds / EXCHANGES for seconds in spent.values())  # type: ignore[return-value]


def _least(work: object) -> float:
    assert callable(work)
    found = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found) / CALLS * 1e6
