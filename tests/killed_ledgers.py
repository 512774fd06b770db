"""Two nodes' books in one process that is killed at any moment, again and again: run by test_ledger_killed.

`python -m tests.killed_ledgers FOLDER SEED KILLS`. Each round a child, forked, opens both ledgers and lets
the two work for each other and exchange receipts. It says what it does on a pipe: what it is about to owe,
and what both have signed and written down. The parent kills it (-9), opens the files and compares. One line
of JSON at the end; an AssertionError if anything does not hold.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from market.receipt import Kind
from tests.market_books import NOW, Side, greet, say, settle

ROUND_SECONDS = 1_700
"""Of the books' clock between kills: an epoch ends every second round or so, sometimes within its grace."""

MOST_SIGNED = 3
"""Exchanges that a child gets through, at most, before it is killed."""

MOST_DELAY = 0.004
"""Seconds from there to the kill, at most: an exchange takes about as long, so it is hit anywhere."""


def play(folder: Path, now: float, seed: int, tell: int) -> None:
    """What a child does until it is killed."""
    rng = random.Random(seed)
    sides = [Side("ann", folder), Side("bob", folder)]
    greet(sides[0], sides[1], now)
    while True:
        payer, payee = rng.sample(sides, 2)
        pairs = rng.randrange(1, 3_000)
        os.write(tell, f"owe {payer.path.stem} {pairs * payee.prices.price}\n".encode())
        payee.serve(payer, pairs, now)
        if rng.random() < 0.1 and payee.owed_by(payer) > 0:
            credits = rng.randrange(1, payee.owed_by(payer) + 1)
            os.write(tell, f"forgive {payer.path.stem} {credits}\n".encode())
            payee.do(payee.books.settle(payer.peer, credits, Kind.FORGIVEN, now))
            exchange(payee, payer, now)
        exchange(payer, payee, now)
        signed = payer.pays(payee).total_credits
        os.write(tell, f"signed {payer.path.stem} {signed}\n".encode())


def exchange(one: Side, other: Side, now: float) -> None:
    """Offer what is due."""
    step = one.books.offer(other.peer, now)
    if step is not None:
        say(one, other, one.do(step), now)


def killed(folder: Path, now: float, seed: int, rng: random.Random) -> list[str]:
    """Let a child play, and kill it; what it said."""
    listen, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            play(folder, now, seed, tell)
        finally:
            os._exit(1)
    os.close(tell)
    said = b""
    wanted = rng.randrange(MOST_SIGNED + 1)
    while said.count(b"signed") < wanted and (part := os.read(listen, 4_096)):
        said += part
    time.sleep(rng.random() * MOST_DELAY)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while part := os.read(listen, 65_536):
        said += part
    os.close(listen)
    assert os.WIFSIGNALED(status), f"the child ended by itself: {said.decode()[-200:]}"
    return said.decode().splitlines()


def main(folder: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    owed: Counter[str] = Counter()
    signed: Counter[str] = Counter()
    forgiven: Counter[str] = Counter()
    lost = 0
    for number in range(kills):
        now = NOW + number * ROUND_SECONDS
        for line in killed(folder, now, seed + number, rng):
            what, who, credits = line.split()
            match what:
                case "owe":
                    owed[who] += int(credits)
                case "forgive":
                    forgiven[who] += int(credits)
                case "signed":
                    signed[who] = max(signed[who], int(credits))
        ann, bob = Side("ann", folder), Side("bob", folder)
        for payer, payee in ((ann, bob), (bob, ann)):
            known, counted = payer.pays(payee).total_credits, payee.is_paid_by(payer).total_credits
            name = payer.path.stem
            assert signed[name] <= known <= counted <= owed[name], f"kill {number}: {name}"
            lost += counted != known
        for one, other in ((ann, bob), (bob, ann), (ann, bob)):
            assert settle(one, other, now) == "", f"kill {number}"
        for payer, payee in ((ann, bob), (bob, ann)):
            assert (
                payer.pays(payee).total_credits
                == payee.is_paid_by(payer).total_credits
                <= owed[payer.path.stem]
            )
            assert payee.account(payer).standing.forgiven_by_us <= forgiven[payer.path.stem]
            assert not payee.account(payer).fault
            signed[payer.path.stem] = payer.pays(payee).total_credits
        assert ann.owed_by(bob) + bob.owed_by(ann) == 0, f"kill {number}"
        for side in (ann, bob):
            side.ledger.close()
    print(json.dumps({"kills": kills, "signed": sum(signed.values()), "half_done": lost}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
