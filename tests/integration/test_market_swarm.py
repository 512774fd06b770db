"""A priced swarm of processes: who gets the work, who owes whom, what a crash and a line do, who lies."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from market.books import Books
from market.credit_line import Terms
from market.evidence_sqlite import AuditBook
from market.ledger_sqlite import SqliteLedger
from market.receipt import Kind
from node.cli.main import main
from node.market import advising
from node.market.quotes_port import OwnPrices
from routing.identity import Identity
from tests.ready_panal import run_panal
from tests.swarm_process import Home, NodeProcess, generate, running, start_all, wait_until

pytestmark = pytest.mark.slow

SOON = 90.0
"""Seconds for what takes one or two, on a machine that may be busy."""

DISTANCE = 0.04
"""Seconds that the far server's datagrams take longer."""

MICRO = 1_000_000

PROMPT = "import os\n"  # what `generate` of tests.swarm_process asks

LINES = 'lan = false\ncontrol = "off"\nadvert_seconds = 60'


def far(command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
    """Start a node far away."""
    assert command[1:4] == ["-P", "-m", "node.cli.main"]
    return subprocess.Popen(
        [command[0], "-m", "tests.far_node", str(DISTANCE), *command[4:]], cwd=ROOT, **how
    )


def lying(file: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a node that lies while the file is there."""

    def launch(command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        assert command[1:4] == ["-P", "-m", "node.cli.main"]
        return subprocess.Popen(
            [command[0], "-m", "tests.lying_node", str(file), *command[4:]], cwd=ROOT, **how
        )

    return launch


ROOT = Path(__file__).resolve().parents[2]


class Village:
    """Servers that are kept for all tests of this file, and who asks them."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model

    def server(
        self,
        name: str,
        market: str,
        launch: Callable[..., Any] = subprocess.Popen,
        http: str = "off",
    ) -> NodeProcess:
        rest = f'[market]\nmode = "fixed"\n{market}\n[http]\nlisten = "{http}"\n'
        home = Home(self.folder / name, self.folder / "store", self.model, "0-11", swarm=LINES, rest=rest)
        return NodeProcess(home, launch)

    def backbone(self, name: str, market: str, servers: Sequence[NodeProcess], http: str = "off") -> Home:
        rest = (
            f'[backbone]\nmodel = "{self.model}"\ncontext = 256\n[http]\nlisten = "{http}"\n'
            f'[market]\nmode = "fixed"\n{market}\n'
        )
        peers = [server.home.address for server in servers]
        return Home(
            self.folder / name, self.folder / "store", self.model, peers=peers, swarm=LINES, rest=rest
        )


@pytest.fixture(scope="module")
def village(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Village:
    return Village(tmp_path_factory.mktemp("market"), demo_model)


@pytest.fixture(scope="module")
def servers(village: Village) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """A dear one that is near, and a cheap one that is far."""
    near = village.server("near", "price = 400\naudit = 0.0")
    away = village.server("away", "price = 100\naudit = 0.0", far)
    with running([near, away]):
        start_all([near, away])
        yield near, away


def ask(home: Home, tokens: int) -> dict[str, Any]:
    """`panal generate`, as soon as it works: on a busy machine a peer may not be there in time."""
    end = time.monotonic() + SOON
    while (done := generate(home.config, tokens=tokens)).returncode != 0:
        assert time.monotonic() < end, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def owed(home: Home, peer_id: str) -> int:
    """What a peer owes a node by the node's own books; negative: the other way round."""
    path = home.folder / "market.db"
    if not path.exists():
        return 0
    ledger = SqliteLedger.reading(path)
    try:
        return {row.peer: row.owes_us for row in ledger.balances()}.get(peer_id, 0)
    finally:
        ledger.close()


def agree(payer: Home, payee: Home) -> bool:
    """Whether both have the same in their books."""
    return -owed(payer, payee.peer_id) == owed(payee, payer.peer_id)


def say(home: Home, prompt: str = PROMPT, tokens: int = 16) -> dict[str, Any]:
    """Ask a running node's API, as soon as it answers."""
    note = home.folder / "http.json"
    body = json.dumps(
        {"model": home.model.stem, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    ).encode()
    end = time.monotonic() + SOON
    while True:
        try:
            url = json.loads(note.read_text(encoding="utf-8"))["address"]
            request = urllib.request.Request(
                f"{url}/v1/completions", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=SOON) as response:
                answer: dict[str, Any] = json.loads(response.read())
                return answer
        except (OSError, ValueError) as error:  # not up yet, or still opening its model
            assert time.monotonic() < end, error
            time.sleep(0.2)


def share(answer: dict[str, Any], of: NodeProcess, prices: Mapping[str, int]) -> float:
    """The part of the pairs of an answer that one server computed.

    Args:
        prices: what each asks, by peer.
    """
    costs = answer["usage"]["panal"]["cost_by_peer"]
    done = {peer_id: cost / prices[peer_id] for peer_id, cost in costs.items()}
    return float(done.get(of.peer_id, 0.0) / sum(done.values()))


def test_the_cheap_one_gets_the_work_under_cheap_and_the_near_one_under_fast(
    village: Village, servers: tuple[NodeProcess, NodeProcess]
) -> None:
    """And what the answers cost, and what was asked in vain, is what the two sides' books say."""
    near, away = servers
    prices = {near.peer_id: 400, away.peer_id: 100}
    said = []
    payers = []
    for prefer in ("cheap", "fast"):
        market = f'prefer = "{prefer}"\naudit = 0.0'
        payers.append(NodeProcess(village.backbone(prefer, market, servers, http="127.0.0.1:0")))
    with running(payers):
        start_all(payers)
        for payer, preferred in zip(payers, (away, near), strict=True):
            for server in servers:
                payer.wait_said("connected", SOON, peer=server.peer_id)
                payer.wait(lambda s=server, p=payer: s.peer_id in p.table, SOON, "its advert")  # type: ignore[misc]
            answers = [say(payer.home)]
            said.append(answers[0]["choices"][0]["text"])
            end = time.monotonic() + SOON
            while share(answers[-1], preferred, prices) < 0.7:  # where both are late by turns, neither is it
                assert time.monotonic() < end, [each["usage"]["panal"]["cost_by_peer"] for each in answers]
                answers.append(say(payer.home, f"def test_{len(answers)}("))
            costs = [each["usage"]["panal"] for each in answers]
            assert all(cost["cost"] == sum(cost["cost_by_peer"].values()) > 0 for cost in costs)
            total = sum(cost["cost"] for cost in costs)
            wait_until(lambda p=payer, t=total: is_settled(p.home, servers, t), SOON, "equal books")  # type: ignore[misc]
    assert said[0] == said[1]


def is_settled(payer: Home, servers: Sequence[NodeProcess], total: int) -> bool:
    """Whether both sides' books say that this is what was paid, and none of it is missing: what answers cost,
    and what was spent on those that were asked of two."""
    owes = sum(-owed(payer, server.peer_id) for server in servers)
    spent = told_of_itself(payer, "/api/status")["market"]["spent_today"]
    return owes >= max(total, spent) and all(agree(payer, server.home) for server in servers)


def told_of_itself(home: Home, what: str) -> Any:
    """What a running node tells by HTTP."""
    url = json.loads((home.folder / "http.json").read_text(encoding="utf-8"))["address"]
    with urllib.request.urlopen(f"{url}{what}", timeout=SOON) as response:
        return json.loads(response.read())


def work_of(home: Home) -> dict[str, list[float]]:
    """Pairs a day that a running node has been signed for, by layer."""
    (quote,) = (each for each in told_of_itself(home, "/api/market/quotes") if each["peer"] == home.peer_id)
    told: dict[str, list[float]] = told_of_itself(home, f"/api/market/served?model={quote['model']}")
    return told


def advised(home: Home, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `panal market advise` says to a node."""
    capsys.readouterr()
    assert main(["market", "advise", "-c", str(home.config), "--memory", "100%", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_who_is_killed_goes_on_and_nothing_that_both_signed_is_lost(
    village: Village, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who serves all layers, chosen by its owner, knows what it was paid for; after a restart too."""
    payee = village.server(
        "alone", "price = 100\naudit = 0.0", http="127.0.0.1:0"
    )  # only this payer knows it
    home = village.backbone("keeper", 'prefer = "fast"\naudit = 0.0', [payee], http="127.0.0.1:0")
    payer = NodeProcess(home)

    def settled(more_than: int) -> Callable[[], bool]:
        return lambda: owed(payee.home, home.peer_id) > more_than and agree(home, payee.home)

    with running([payee, payer]):
        payee.start().ready()
        payer.start().ready()
        say(home)
        wait_until(settled(0), SOON, "the first receipt")
        first = owed(payee.home, home.peer_id)
        payer.kill()
        assert owed(payee.home, home.peer_id) >= first and -owed(home, payee.peer_id) >= first
        payer.start().ready()
        say(home)
        wait_until(settled(first), SOON, "a receipt after the payer was killed")
        second = owed(payee.home, home.peer_id)
        payee.kill()
        assert owed(payee.home, home.peer_id) >= second
        payee.start().ready()
        say(home)
        wait_until(settled(second), SOON, "a receipt after the payee was killed")
        third = owed(payee.home, home.peer_id)
        say(home, "class")
        assert payee._process is not None
        payee._process.send_signal(signal.SIGSTOP)  # it takes no receipt now
        payer.interrupt()  # who settles ends as quickly as any
        payee._process.send_signal(signal.SIGCONT)
        signed = -owed(home, payee.peer_id)
        payer.start().ready()  # and has what it signed countersigned when the two meet again
        say(home, "while")
        wait_until(settled(max(third, signed)), SOON, "the receipt of before")
        payer.interrupt()  # from now on nobody asks for anything
        work = work_of(payee.home)
        assert len(work) == 4 and all(sum(pairs) > 0 for pairs in work.values())
        monkeypatch.setattr(advising, "LISTEN_SECONDS", 0.5)
        payee.interrupt()
        assert (payee.home.folder / "served.bin").stat().st_mode & 0o777 == 0o600
        told = advised(payee.home, capsys)  # by what it has written down
        assert told["income_now"] > 0 and told["is_measured"]
        payee.start().ready()
        again = work_of(payee.home)
        assert {layer: [pairs > 0 for pairs in row] for layer, row in again.items()} == {
            layer: [pairs > 0 for pairs in row] for layer, row in work.items()
        }
        told = advised(payee.home, capsys)
        assert told["income_now"] > 0 and told["is_measured"]


def test_a_payer_over_its_line_is_told_why_and_works_again_after_settling(village: Village) -> None:
    strict = village.server("strict", "price = 100\nnewcomers = 0.01\naudit = 0.0")
    home = village.backbone("poor", "audit = 0.0", [strict])
    with running([strict]):
        strict.start().ready()
        end = time.monotonic() + SOON
        while "it is owed too much" not in (done := generate(home.config, tokens=24)).stderr:
            assert time.monotonic() < end, done
        assert done.returncode == 1 and "its owner" in done.stderr, done
        assert done.stderr.count("\n") == 1  # one line that says all
        wait_until(lambda: agree(home, strict.home), SOON, "the books to agree")
        debt = owed(strict.home, home.peer_id)
        assert debt > 0
        strict.interrupt()
        settle(strict.home, home.peer_id, debt)
        strict.start().ready()
        end = time.monotonic() + SOON
        while (done := generate(home.config, tokens=2)).returncode != 0:
            assert time.monotonic() < end, done.stderr
        wait_until(lambda: agree(home, strict.home), SOON, "the books to agree again")
        assert owed(strict.home, home.peer_id) < debt


def test_a_server_that_turns_liar_is_found_and_the_answer_is_right(
    village: Village, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the cheapest, so it has all the work; others compute that again and find it out. Its owner sees
    that; it stays out over a restart, without audits too, until it is pardoned."""
    flag = village.folder / "lie"
    liar = village.server("liar", "price = 50\naudit = 0.0", lying(flag))
    others = [village.server(f"honest{number}", "price = 400\naudit = 0.0") for number in range(2)]
    servers = [liar, *others]
    prices = {liar.peer_id: 50} | {other.peer_id: 400 for other in others}
    trusting = village.backbone("trusting", 'prefer = "cheap"\naudit = 0.0', [liar])
    home = village.backbone("careful", 'prefer = "cheap"\naudit = 1.0', servers, http="127.0.0.1:0")
    payer = NodeProcess(home)
    with running([*servers, payer]):
        liar.start().ready()
        flag.touch()
        deceived = ask(trusting, tokens=16)  # by the liar alone: nobody has heard of the others yet
        flag.unlink()
        start_all([*others, payer])
        for server in servers:
            payer.wait_said("connected", SOON, peer=server.peer_id)
            payer.wait(lambda s=server: s.peer_id in payer.table, SOON, "its advert")  # type: ignore[misc]
        honest = say(home, PROMPT)
        end = time.monotonic() + SOON
        while not share(honest, liar, prices):  # nobody can be caught who has nothing to do
            assert time.monotonic() < end
            honest = say(home, PROMPT)
        assert quarantined(home) == set()
        flag.touch()
        assert deceived["text"] != honest["choices"][0]["text"]  # it makes a difference
        assert say(home, PROMPT)["choices"][0]["text"] == honest["choices"][0]["text"]
        end = time.monotonic() + SOON
        while liar.peer_id not in quarantined(home):
            assert time.monotonic() < end, "the liar was not found"
            say(home, f"def main_{int(end)}(", tokens=4)
        after = say(home, "class")
        assert set(after["usage"]["panal"]["cost_by_peer"]) <= {other.peer_id for other in others}
        assert quarantined(home) == {liar.peer_id}
        prompts = ("import os", "class A:", "def f(x):")
        right = [say(home, prompt)["choices"][0]["text"] for prompt in prompts]
        rightly_batched(village, servers, dict(zip(prompts, right, strict=True)))

        found = found_out(home, liar.peer_id, capsys)
        assert found["share"] == 1.0 and found["agreed"] > 0 and found["convicted"] >= 1
        assert f"{liar.peer_id} gave a false answer for layer" in payer.log
        assert "(panal market audits)" in payer.log

        payer.interrupt()  # nothing is run again from now on, and it is not asked all the same
        home.rest = home.rest.replace("audit = 1.0", "audit = 0.0")
        home.write()
        flag.unlink()
        payer.start().ready()
        for server in servers:
            payer.wait_said("connected", SOON, peer=server.peer_id)
            payer.wait(lambda s=server: s.peer_id in payer.table, SOON, "its advert")  # type: ignore[misc]
        for number in range(3):
            without = say(home, f"import {number}")
            assert set(without["usage"]["panal"]["cost_by_peer"]) <= {other.peer_id for other in others}
        assert found_out(home, liar.peer_id, capsys)["share"] == 0.0
        told = command(capsys, "pardon", liar.peer_id[-8:], "-c", str(home.config), "--json")
        assert told["strikes"] == 1 and quarantined(home) == set()
        end = time.monotonic() + SOON
        while not share(say(home, f"def pardoned_{int(end)}("), liar, prices):
            assert time.monotonic() < end, "it is not asked again"
        warnings = told_of_itself(home, "/api/status")["warnings"]
        assert "convicted" not in [each["code"] for each in warnings]


def rightly_batched(village: Village, servers: Sequence[NodeProcess], right: Mapping[str, str]) -> None:
    """`panal generate --prompts` of a newcomer finds a liar out and gives what is right all the same.

    Args:
        right: text by prompt.
    """
    file = village.folder / "prompts"
    file.write_text("\n".join(right), encoding="utf-8")
    home = village.backbone("batch", 'prefer = "cheap"\naudit = 1.0', servers)
    end = time.monotonic() + SOON
    while True:  # where nobody else is connected in time, nobody finds it out
        done = run_panal("generate", "-c", home.config, "--prompts", file, "-n", 16, "--json")
        if quarantined(home):
            break
        assert time.monotonic() < end, done
    *told, whole = map(json.loads, done.stdout.splitlines())
    failed = whole["failed"]  # none, unless the machine is so busy that audits come late
    assert done.returncode == bool(failed) and len(failed) < len(right), done
    texts = {each["prompt"]: each["text"] for each in told if "text" in each}
    for number, text in enumerate(right.values(), 1):
        assert number in failed or texts[number] == text


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """`panal market ... --json`, which works."""
    capsys.readouterr()
    assert main(["market", *arguments]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def found_out(home: Home, liar: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a node that runs tells of a liar, by its API and by the command: the same."""
    status = told_of_itself(home, "/api/status")
    audits: dict[str, Any] = status["market"]["audits"]
    (out,) = [each for each in audits["peers"] if each["until"] is not None]
    assert out["peer"] == liar and out["strikes"] == 1 and out["checked"] > out["agreed"]
    assert audits["evidence"][0]["peer"] == liar and audits["evidence"][0]["cosine"] > 1
    (warning,) = [each for each in status["warnings"] if each["code"] == "convicted"]
    assert liar in warning["what"] and "it is not asked until" in warning["what"]
    assert f"panal market pardon {liar[-8:]}" in warning["advice"]
    told = command(capsys, "audits", "-c", str(home.config), "--json")
    assert [each["peer"] for each in told["peers"] if each["until"]] == [liar]
    assert told["evidence"][0]["peer"] == liar and len(told["evidence"][0]["answer"]) == 64
    return audits


def quarantined(home: Home) -> set[str]:
    """Whom a node asks no more, by its own book."""
    path = home.folder / "audit.db"
    if not path.exists():
        return set()
    with closing(AuditBook(path)) as book:
        return {peer_id for peer_id, strikes in book.strikes() if strikes.until > time.time()}


def settle(payee: Home, payer_id: str, credits: int) -> None:
    """Have a node that is not running take note that it was paid."""
    ledger = SqliteLedger(payee.folder / "market.db")
    try:
        books = Books(
            Identity.load_or_create(payee.folder / "identity.key"),
            Terms(1000 * MICRO, 200 * MICRO),
            OwnPrices(),
            ledger.load(time.time()),
        )
        step = books.settle(payer_id, credits, Kind.PAID, time.time())
        ledger.write(step.write)
        books.written(step)
    finally:
        ledger.close()
