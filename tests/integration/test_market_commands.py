"""`panal market balance | receipts | export | settle | quotes | audits | pardon`: on the files, and on a node
that runs."""

from __future__ import annotations

import csv
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from market.credit_line import Terms
from market.evidence_sqlite import AuditBook
from market.ledger import Evidence as Proof
from market.ledger_sqlite import SqliteLedger
from market.quarantine import Strikes
from market.receipt import CREDIT, Kind, SignedReceipt
from market.reputation import Dealings
from market.tally import Tally
from node.cli.main import main
from routing.errors import LocalError
from routing.identity import Identity
from tests.attackers import fake
from tests.market_books import NOW, PRICE, Side, identity, settle
from tests.swarm_process import Home, NodeProcess, running, start_all
from tests.unit.test_quarantine import EVIDENCE

PAIRS = 1_000
OWED = PAIRS * PRICE


class Owner:
    """A folder with a node's config, key and books: a peer owes it OWED, and it owes another twice that."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "node.toml"
        self.config.write_text(
            f'store = "{folder}/store"\nidentity = "identity.key"\n[market]\nmode = "fixed"\n'
        )
        self.debtor, self.creditor = Side("debtor", folder), Side("creditor", folder)
        side = Side("market", folder)
        side.identity = Identity.load_or_create(folder / "identity.key")
        side.peer = side.identity.peer_id
        side.books = side._opened()
        assert not side.serve(self.debtor, PAIRS, NOW)
        assert not settle(self.debtor, side, NOW)
        assert not self.creditor.serve(side, 2 * PAIRS, NOW)
        assert not settle(side, self.creditor, NOW)
        for each in (side, self.debtor, self.creditor):
            each.ledger.close()


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path / "owner")


def panal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """A command that must work; what it prints."""
    capsys.readouterr()
    assert main([str(each) for each in arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """A command that must not; its one line."""
    capsys.readouterr()
    assert main([str(each) for each in arguments]) != 0
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1
    return err


def test_balance_says_who_owes_whom(owner: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    text = panal(capsys, "market", "balance", "-c", owner.config)
    assert owner.debtor.peer[-8:] in text and "2.6 credits" in text
    assert "owed to this node: 2.6 credits; this node owes 5.2 credits" in text
    told = json.loads(panal(capsys, "market", "balance", "-c", owner.config, "--json"))
    assert (told["owed"], told["owes"]) == (OWED, 2 * OWED)
    assert {each["peer"]: each["owes"] for each in told["peers"]} == {
        owner.debtor.peer: OWED,
        owner.creditor.peer: -2 * OWED,
    }


def test_receipts_are_shown_and_exported_with_their_signatures(
    owner: Owner, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = panal(capsys, "market", "receipts", "-c", owner.config)
    assert "it does" in text and "we do" in text and "both" in text
    (only,) = json.loads(
        panal(capsys, "market", "receipts", "-c", owner.config, "--peer", owner.debtor.peer[-8:], "--json")
    )
    assert (only["pairs"], only["micro_credits"], only["we_pay"]) == (PAIRS, OWED, False)
    assert (
        len(json.loads(panal(capsys, "market", "receipts", "-c", owner.config, "--days", "36000", "--json")))
        == 2
    )
    rows = list(csv.DictReader(io.StringIO(panal(capsys, "market", "export", "-c", owner.config))))
    assert len(rows) == 2
    for row in rows:
        signed = SignedReceipt.decode(bytes.fromhex(row["receipt"]))
        assert signed.full and not signed.fault()
        assert signed.receipt.credits == int(row["micro_credits"])
    file = tmp_path / "receipts.csv"
    assert str(file) in panal(capsys, "market", "export", "-c", owner.config, "-o", file)
    assert list(csv.DictReader(file.open(encoding="utf-8"))) == rows
    assert json.loads(panal(capsys, "market", "export", "-c", owner.config, "--json"))[0]["full"] is True


def test_a_debt_is_settled_while_no_node_runs(owner: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    debtor = owner.debtor.peer
    told = json.loads(
        panal(capsys, "market", "settle", debtor[-8:], "0.6", "--forgive", "-c", owner.config, "--json")
    )
    assert told == {"peer": debtor, "credits": 600_000, "forgiven": True}
    receipts = json.loads(panal(capsys, "market", "receipts", "-c", owner.config, "--peer", debtor, "--json"))
    waits = [each for each in receipts if not each["full"]]
    assert [(each["kind"], each["micro_credits"]) for each in waits] == [("forgiven", 600_000)]
    # Until the debtor has signed, the debt stands; but no more than is left of it can be settled.
    err = refused(capsys, "market", "settle", debtor, "2.5", "-c", owner.config)
    assert "2 credits" in err and "2.5 credits cannot be settled" in err
    told = json.loads(panal(capsys, "market", "balance", "-c", owner.config, "--json"))
    assert {each["peer"]: each["waiting"] for each in told["peers"]}[debtor] == 600_000
    text = panal(capsys, "market", "balance", "-c", owner.config)
    assert "0.6 credits signed off, it has not taken it yet" in text
    told = json.loads(panal(capsys, "market", "settle", debtor, "all", "-c", owner.config, "--json"))
    assert told["credits"] == OWED - 600_000, "all is what is left"
    err = refused(capsys, "market", "settle", debtor, "all", "-c", owner.config)
    assert f"nothing left to settle with {debtor}: what waits for its signature is 2.6 credits" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("settle", "nobody", "1"), "no account with a peer 'nobody'"),
        (("settle", "{debtor}", "much"), "'much' is no amount"),
        (("settle", "{debtor}", "-1"), "'-1' is no amount"),
        (("settle", "{debtor}", "nan"), "'nan' is no amount"),
        (("settle", "{debtor}", "100"), "100 credits cannot be settled"),
        (("settle", "{creditor}", "all"), "owes nothing"),
        (("receipts", "--limit", "0"), "--limit 0"),
        (("receipts", "--days", "0"), "--days 0"),
        (("export", "-o", "/nowhere/file"), "/nowhere/file cannot be written"),
        (("quotes",), "no node runs"),
        (("pardon", "nobody"), "no peer 'nobody' is known here: panal market audits shows"),
        (("pardon", "{debtor}"), "nothing stands against {debtor}: there is nothing to be pardoned"),
        (("audits", "--limit", "0"), "--limit 0"),
    ],
)
def test_mistakes_are_one_line(
    owner: Owner, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    words = [each.format(debtor=owner.debtor.peer, creditor=owner.creditor.peer) for each in arguments]
    arguments = ("--", *words[1:3]) if words[0] == "settle" else tuple(words[1:])
    says = says.format(debtor=owner.debtor.peer)
    assert says in refused(capsys, "market", words[0], "-c", owner.config, *arguments)


def test_without_books_it_says_who_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'store = "{tmp_path}/store"\nidentity = "identity.key"\n')
    Identity.load_or_create(tmp_path / "identity.key")
    assert "there are no accounts yet" in refused(capsys, "market", "balance", "-c", config)
    assert "no call was run again yet" in panal(capsys, "market", "audits", "-c", config)
    told = json.loads(panal(capsys, "market", "audits", "-c", config, "--json"))
    assert (told["peers"], told["evidence"], told["double"]) == ([], [], [])
    assert "no peer 'x' is known here" in refused(capsys, "market", "pardon", "x", "-c", config)
    assert not (tmp_path / "audit.db").exists() and not (tmp_path / "market.db").exists()


# --- who answered falsely, and who has signed double ---


def find_out(folder: Path, debtor: str) -> str:
    """Earlier audits of a node have found a liar, whose id it is; and a peer of its books signs double."""
    liar, now = identity("liar").peer_id, time.time()
    with closing(AuditBook(folder / "audit.db")) as book:
        strikes = Strikes(2, now + 1_200.0, now)
        book.strike(liar, strikes, replace(EVIDENCE, peer_id=liar, at=now, cosine=1.98, reason="differs"))
        book.keep_tallies([(debtor, Tally(30, 30, "90af")), (liar, Tally(40, 38, "17cd"))])
        book.keep_dealings([(debtor, Dealings(0, 30.0, 0.0))])
    with closing(SqliteLedger(folder / "market.db")) as ledger:
        one, other = fake("debtor", "market", 5), fake("debtor", "market", 6)
        ledger.write([Proof(debtor, "two receipts number 1 say different things", one, other, int(now))])
    return liar


def test_audits_are_shown_and_forgiven_while_no_node_runs(
    owner: Owner, capsys: pytest.CaptureFixture[str]
) -> None:
    debtor, config = owner.debtor.peer, owner.config
    liar = find_out(config.parent, debtor)
    told = json.loads(panal(capsys, "market", "audits", "-c", config, "--json"))
    out, other = told["peers"]
    assert (out["peer"], out["strikes"], out["checked"], out["agreed"]) == (liar, 2, 40, 38)
    assert out["until"] > time.time() and other["until"] is None
    assert (other["peer"], other["build"], other["standing"]) == (debtor, "90af", 18.0)
    (found,) = told["evidence"]
    assert (found["peer"], found["cosine"], found["pardoned"]) == (liar, 1.98, None)
    assert found["answer"] == EVIDENCE.answer.hex() != found["other_answer"]
    (double,) = told["double"]
    assert (double["peer"], double["pardoned"], len(double["receipts"])) == (debtor, None, 2)
    text = panal(capsys, "market", "audits", "-c", config)
    assert "17cd" in text and "2.0e+00" in text and "differs" in text
    assert f"{debtor} has signed double: two receipts number 1 say different things" in text

    told = json.loads(panal(capsys, "market", "pardon", liar[-8:], "-c", config, "--json"))
    assert (told["peer"], told["strikes"], told["fault"]) == (liar, 2, "")
    assert "nothing stands against" in refused(capsys, "market", "pardon", liar, "-c", config)
    text = panal(capsys, "market", "pardon", debtor[-8:], "-c", config)
    assert text.startswith(f"{debtor}: that it has signed double forgiven")
    assert "nothing stands against" in refused(capsys, "market", "pardon", debtor, "-c", config)
    told = json.loads(panal(capsys, "market", "audits", "-c", config, "--json"))
    assert all(each["strikes"] == 0 and each["until"] is None for each in told["peers"])
    assert told["evidence"][0]["pardoned"] and told["double"][0]["pardoned"], "it is kept, and marked"
    assert "(pardoned " in panal(capsys, "market", "audits", "-c", config)
    told = json.loads(panal(capsys, "market", "balance", "-c", config, "--json"))
    assert not any(each["fault"] for each in told["peers"])


# --- on a node that runs ---


@pytest.fixture(scope="module")
def seller(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[tuple[Owner, NodeProcess]]:
    """A node that sells, with the owner's books."""
    folder = tmp_path_factory.mktemp("seller")
    owner = Owner(folder / "owner")
    find_out(folder / "owner", owner.creditor.peer)
    rest = '[market]\nmode = "fixed"\nprice = 200\n[http]\nlisten = "127.0.0.1:0"\n'
    home = Home(
        folder / "owner", folder / "store", demo_model, experts="0-11", swarm="lan = false", rest=rest
    )
    node = NodeProcess(home)
    with running([node]):
        start_all([node])
        yield owner, node


@pytest.mark.slow
def test_a_running_node_tells_quotes_and_settles(
    seller: tuple[Owner, NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    owner, node = seller
    config = node.home.config
    (quote,) = json.loads(panal(capsys, "market", "quotes", "-c", config, "--json"))
    assert quote["peer"] == node.peer_id and quote["lowest"] > 0 and quote["cells"] > 0
    assert f"{quote['cells']:,}" in panal(capsys, "market", "quotes", quote["model"][:6], "-c", config)
    assert "layer 0: 0-11:" in panal(capsys, "market", "quotes", "--peer", node.peer_id, "-c", config)
    assert panal(capsys, "market", "quotes", "ffff", "-c", config) == "nobody asks anything for ffff\n"
    status = json.loads(panal(capsys, "status", "-c", config, "--json"))
    market = status["market"]
    assert (market["mode"], market["owed"], market["owes"]) == ("fixed", OWED, 2 * OWED)
    assert market["asks"][0]["lowest"] == quote["lowest"]
    assert market["credits"][0]["limit"] > 0
    assert "owed to this node" in panal(capsys, "status", "-c", config)
    model = next(each for each in status["models"] if each["id"] == quote["model"])
    assert model["scarcity"], "one replica where three are wanted, and a price"
    panal(capsys, "market", "settle", owner.debtor.peer, "all", "-c", config)
    receipts = json.loads(panal(capsys, "market", "receipts", "-c", config, "--json"))
    assert (Kind.PAID.name.lower(), OWED, False) in [
        (each["kind"], each["micro_credits"], each["full"]) for each in receipts
    ]
    assert "cannot be settled" in refused(capsys, "market", "settle", owner.debtor.peer, "1", "-c", config)
    told = json.loads(panal(capsys, "market", "balance", "-c", config, "--json"))
    assert {each["peer"]: each["waiting"] for each in told["peers"]}[owner.debtor.peer] == OWED
    err = refused(capsys, "market", "settle", owner.debtor.peer, "all", "-c", config)
    assert "nothing left to settle" in err and "2.6 credits" in err
    assert OWED == 2.6 * CREDIT


@pytest.mark.slow
def test_a_running_node_tells_audits_and_pardons(
    seller: tuple[Owner, NodeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    """One without a backbone, by what earlier runs found; it serves the pardoned again."""
    owner, node = seller
    config, creditor = node.home.config, owner.creditor.peer
    liar = identity("liar").peer_id
    told = json.loads(panal(capsys, "market", "audits", "-c", config, "--json"))
    assert [each["peer"] for each in told["peers"] if each["until"]] == [liar]
    status = json.loads(panal(capsys, "status", "-c", config, "--json"))
    (warning,) = [each for each in status["warnings"] if each["code"] == "convicted"]
    assert f"{creditor} has signed double, and gets no work here" in warning["what"]
    assert f"panal market pardon {creditor[-8:]}" in warning["advice"]
    told = json.loads(panal(capsys, "market", "pardon", creditor[-8:], "-c", config, "--json"))
    assert told["fault"].startswith("two receipts") and told["strikes"] == 0
    assert panal(capsys, "market", "pardon", liar, "-c", config) == f"{liar}: 2 strikes forgiven\n"
    for peer in (creditor, liar):
        assert f"nothing stands against {peer}" in refused(capsys, "market", "pardon", peer, "-c", config)
    status = json.loads(panal(capsys, "status", "-c", config, "--json"))
    assert not [each for each in status["warnings"] if each["code"] == "convicted"]
    assert not any(each["fault"] for each in status["market"]["credits"])
    told = json.loads(panal(capsys, "market", "audits", "-c", config, "--json"))
    assert told["evidence"][0]["pardoned"] and told["double"][0]["pardoned"]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["settle", "pardon"])
def test_what_changes_something_takes_the_token(seller: tuple[Owner, NodeProcess], what: str) -> None:
    _, node = seller
    folder = node.home.folder
    address = json.loads((folder / "http.json").read_text())["address"]
    token = (folder / "http-token").read_text().strip()

    def post(body: bytes, **headers: str) -> int:
        request = urllib.request.Request(
            f"{address}/api/market/{what}", body, {"Content-Type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            told: dict[str, Any] = json.loads(error.read())
            assert "Traceback" not in str(told)
            return error.code

    amount = {"credits": 1} if what == "settle" else {}
    good = json.dumps({"peer": "12D3KooWnobody"} | amount).encode()
    assert post(good) == 403
    assert post(good, Origin="http://example.com") == 403
    assert post(good, Host="example.com", **{"X-Panal-Token": token}) == 421
    assert post(good, **{"X-Panal-Token": "wrong"}) == 403
    right = {"X-Panal-Token": token}
    assert post(good, **right) == 409
    for bad in (
        b"",
        b"{}",
        b"[]",
        b'{"peer": "x", "credits": 0}',
        b'{"peer": "x", "credits": 1.5}',
        b'{"peer": ""}',
    ):
        assert post(bad, **right) == 400
    assert post(b" " * 2_000, **right) == 413


def test_what_is_not_signed_can_be_forgiven(tmp_path: Path) -> None:
    side, free = Side("server", tmp_path), Side("free", tmp_path)
    assert not side.serve(free, PAIRS, NOW, arrives=False)
    account = side.account(free)
    assert account.unsigned == OWED
    with pytest.raises(LocalError, match=r"has not signed for 2\.6 credits yet"):
        side.books.settle(free.peer, OWED, Kind.PAID, NOW)
    with pytest.raises(LocalError, match="cannot be settled"):
        side.books.settle(free.peer, OWED + 1, Kind.FORGIVEN, NOW)
    side.do(side.books.settle(free.peer, OWED, Kind.FORGIVEN, NOW))
    assert account.unsigned == 0 and account.owes == 0


def test_a_debt_is_forgiven_with_what_is_not_signed(tmp_path: Path) -> None:
    side, debtor = Side("server", tmp_path), Side("debtor", tmp_path)
    assert not side.serve(debtor, PAIRS, NOW)
    assert not settle(debtor, side, NOW)
    assert not side.serve(debtor, PAIRS, NOW, arrives=False)
    side.do(side.books.settle(debtor.peer, 2 * OWED, Kind.FORGIVEN, NOW))
    assert side.account(debtor).unsigned == 0
    assert not settle(side, debtor, NOW)
    assert side.owed_by(debtor) == 0


def test_who_signs_nothing_is_told_what_helps(tmp_path: Path) -> None:
    terms = Terms(credit_line=100 * CREDIT, newcomers=OWED)
    side = Side("server", tmp_path, terms)
    free, late = Side("free", tmp_path), Side("late", tmp_path)
    assert not side.serve(free, PAIRS, NOW, arrives=False)
    assert 'signed nothing yet: [market] mode = "fixed" does' in side.serve(free, 1, NOW)
    assert "today's credit for newcomers is used up" in side.serve(late, 1, NOW)
