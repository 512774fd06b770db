"""The status page, shown what real nodes rarely come to: a thousand peers, hostile words, empty nodes.

Facts are staged, behind the real door and in the real page; test_page_swarm has the real nodes.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from node.status import facts
from node.status.coverage import runs_of
from tests.browser.conftest import OpenTab
from tests.browser.staged import StagedBoard, staged
from tests.browser.tab import Tab
from tests.status_facts import AT, MODEL, model, node, offline, peer, status

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}

LEAST_CONTRAST = 4.5
"""WCAG 2 AA, of text of any size."""

HOSTILE = "<img src=x onerror=window.hacked=1>"
LONG = "W" * 64

OPEN_ALL = "() => document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StagedBoard, str]]:
    """The node; each test shows what it needs."""
    with staged(tmp_path_factory.mktemp("staged")) as (board, url):
        yield board, url


def held(cells: facts.Runs) -> list[facts.Held]:
    count = sum((last - first + 1) * (b - a + 1) for first, last, runs in cells for a, b in runs)
    return [facts.Held(MODEL, count, cells)]


def matrix(layers: int, experts: int, rng: random.Random) -> facts.Model:
    """A model of that size, served unevenly."""
    counts = np.array(
        [[rng.choice((0, 1, 1, 2, 3, 5)) for _ in range(experts)] for _ in range(layers)], np.uint8
    )
    missing = counts == 0
    return model(
        layers=list(range(layers)),
        experts=experts,
        replicas=base64.b64encode(counts.tobytes()).decode(),
        missing=runs_of(missing, range(layers)),
        missing_cells=int(missing.sum()),
    )


def full() -> facts.Status:
    """Something in every part of the page, in every state, with long and hostile words."""
    other = model(id="b" * 64, short_id="b" * 12, name=LONG, here=[], missing=[], missing_cells=0)
    trips = status().answers[0].trips
    failed = facts.Answer(
        42, AT, MODEL, 5, 0, 0, "failed", 0.0, 0.1, 0.0, 0.0, trips, f"layer 3: {HOSTILE} is gone"
    )
    return status(
        peers=[
            peer("attic"),
            peer("relayed", name=LONG, route=facts.Route("relayed", LONG, "12D3KooW" + "x" * 44, "tcp")),
            peer("hostile", name=HOSTILE, address=HOSTILE, version=HOSTILE, unusable=HOSTILE),
            peer("", state="heard", connected=False, route=None, rtt_ms=None, loss=None, since=None),
            offline("old laptop", reason=HOSTILE),
        ],
        models=[model(home=[(3, 3, [(0, 1)])]), other],
        answers=[status().answers[0], failed],
        warnings=[
            facts.Warning("missing-cells", "error", f"{HOSTILE} is missing", "start it", AT),
            facts.Warning("peer", "warning", f"{LONG} does not answer", LONG, AT),
            facts.Warning("relay-full", "info", "a word", HOSTILE, AT),
            facts.Warning("paused", "info", "this node serves nothing now: by hand", "resume", AT),
        ],
    )


def rows(tab: Tab) -> int:
    return int(tab.page.locator("#peers tbody tr").count())


def test_a_thousand_peers_and_six_thousand_cells(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    rng = random.Random(7)
    cells: facts.Runs = [(0, 47, [(0, 15)])]
    peers = [peer(f"peer {number:04}", holds=held(cells)) for number in range(1000)]
    big = matrix(48, 128, rng)
    board.show(status(peers=peers, models=[big]))
    page = tab(url).live()
    page.shows("#peers-count", "1,000 online of 1,000")
    page.count("#peers tbody tr", 100)
    first = page.page.locator("#peers tbody tr button.name").first
    assert first.inner_text() == "peer 0000"

    def change(number: int) -> None:
        for index in rng.sample(range(1000), 200):
            peers[index] = msgspec.structs.replace(peers[index], rtt_ms=round(rng.uniform(1, 99), 1))
        board.show(
            status(peers=peers, models=[matrix(48, 128, rng)], node=node(uptime_seconds=3600 + number))
        )

    page.shows("#more", "Show all 1,000")
    page.page.click("#more")
    page.count("#peers tbody tr", 1000)
    assert page.hidden("#more")
    page.asks("() => { window.frames_seen = looking.frames(3); }")
    for number in range(1, 4):
        change(number)
        page.page.wait_for_timeout(700)
    seen = page.asks("() => window.frames_seen")
    print(
        f"with 1,000 peers, 200 of them and 6,144 cells changing each second: {seen['perSecond']:.0f} frames "
        f"a second, the longest {seen['longest']:.0f} ms"
    )
    told = {row.id: f"{row.rtt_ms:.1f} ms" for row in rng.sample(peers, 20)}
    for peer_id, rtt in told.items():
        page.has(page.peer(peer_id), rtt)

    # found by words in them, and back
    page.page.fill("#find", "0999")
    page.count("#peers tbody tr", 1)
    page.page.fill("#find", "nobody is called that")
    page.count("#peers tbody tr", 0)
    assert not page.hidden("#none-found")
    page.page.fill("#find", "")
    page.count("#peers tbody tr", 100)

    # a peer that goes and comes keeps its row, wherever it moves, with the focus and what was opened in it
    first.focus()
    page.page.keyboard.press("Enter")
    peers[0] = offline("peer 0000", reason="no sign of life for 4 PINGs")
    board.show(status(peers=peers[:50], models=[big]))
    page.count("#peers tbody tr", 51)
    last = page.page.locator("#peers tbody tr").nth(49)
    assert "peer 0000" in last.inner_text() and "no sign of life" in last.inner_text()
    assert page.asks("() => document.activeElement.textContent") == "peer 0000"
    page.count("#peers tbody tr:last-child.detail", 1)
    page.shows("#peers-count", "49 online of 50")
    peers[0] = msgspec.structs.replace(peers[1], id=peers[0].id, name="peer 0000")
    board.show(status(peers=peers[:50], models=[big]))
    page.has("#peers tbody tr:first-child button", "peer 0000")
    assert page.asks("() => document.activeElement.textContent") == "peer 0000"
    page.count("#peers tbody tr:nth-child(2).detail", 1)


def test_the_honeycomb_by_keyboard_and_by_pointer(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    shown = matrix(48, 512, random.Random(3))
    counts = np.frombuffer(base64.b64decode(shown.replicas), np.uint8).reshape(48, 512)
    board.show(
        status(
            models=[msgspec.structs.replace(shown, home=[(5, 5, [(2, 3)])])],
            peers=[peer("attic", holds=held([(0, 3, [(0, 3)])]))],
            node=node(state="serving", pause=None),
        )
    )
    page = tab(url).live()
    canvas = page.page.locator("canvas")
    present = f"{48 * 512 - shown.missing_cells:,} of 24,576 cells have a holder"
    assert present in canvas.get_attribute("aria-label")
    told = ".told"
    canvas.focus()

    def said(row: int, column: int, rest: str = "") -> str:
        live = int(counts[row, column])
        names = " (this node, attic)" if row < 4 and column < 4 else ""
        words = "no live replica" if not live else f"{live} live replica{'' if live == 1 else 's'}"
        scarce = round(max(0.0, 1 - live / 3) * 100)
        return f"layer {row}, expert {column}: {rest}{words}{names}, scarcity {scarce} %"

    for key, at in [
        ("ArrowRight", (0, 0)), ("ArrowRight", (0, 1)), ("ArrowDown", (1, 1)), ("ArrowLeft", (1, 0)),
        ("ArrowLeft", (1, 0)), ("ArrowUp", (0, 0)), ("ArrowUp", (0, 0)), ("End", (0, 511)), ("Home", (0, 0)),
    ]:  # fmt: skip
        page.page.keyboard.press(key)
        page.shows(told, said(*at))
    # the comb scrolls with the cursor: 512 cells are wider than the window
    page.page.keyboard.press("End")
    assert page.asks("() => document.querySelector('.comb').scrollLeft") > 0
    page.page.keyboard.press("Home")
    for _ in range(5):
        page.page.keyboard.press("ArrowDown")
    for _ in range(2):
        page.page.keyboard.press("ArrowRight")
    page.shows(told, said(5, 2, "computed here; "))
    # what changes under the cursor is told
    counts = counts.copy()
    counts[5, 2] = 9
    again = msgspec.structs.replace(shown, replicas=base64.b64encode(counts.tobytes()).decode(), home=[])
    board.show(status(models=[again], node=node(state="serving", pause=None), peers=[]))
    page.shows(told, said(5, 2))
    page.page.keyboard.press("Tab")
    page.shows(told, "")

    box = canvas.bounding_box()
    width = box["width"] / 512.5
    page.page.mouse.move(box["x"] + 10.5 * width, box["y"] + width / 2)
    page.has(told, "layer 0, expert 10:")
    page.page.mouse.move(box["x"] + 10.5 * width, box["y"] + box["height"] + 60)
    page.shows(told, "")


def test_layers_may_have_fewer_experts(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    """What nobody serves and nobody misses is no cell: the second layer has four of eight."""
    board, url = stage
    counts = np.ones((2, 8), np.uint8)
    counts[1, 4:] = 0
    counts[0, 7] = 0
    replicas = base64.b64encode(counts.tobytes()).decode()
    shown = model(layers=[0, 1], replicas=replicas, missing=[(0, 0, [(7, 7)])], missing_cells=1)
    board.show(status(models=[shown]))
    page = tab(url).live()
    assert "11 of 12 cells" in page.page.locator("canvas").get_attribute("aria-label")
    page.page.focus("canvas")
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.page.keyboard.press(key)
    page.has(".told", "layer 1, expert 3:")
    page.has(".model .badge", "1 cell missing")
    page.has(".lacking", "layer 0: experts 7")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_stands_out(stage: tuple[StagedBoard, str], tab: OpenTab, dark: bool) -> None:
    board, url = stage
    board.show(full())
    page = tab(url, dark=dark).live()
    page.count("#peers tbody tr", 5)
    page.asks(OPEN_ALL)
    for name in page.page.locator("#peers button.name").all():
        name.click()
    page.count("#peers tr.detail", 5)
    seen = page.asks(f"() => looking.faint({LEAST_CONTRAST})")
    assert seen["seen"] > 150 and not seen["found"], seen
    dim = page.asks("() => looking.faint(21)")  # the measure itself finds what is less than black on white
    assert len(dim["found"]) > 100
    page.keep(f"everything-{'dark' if dark else 'light'}")


def test_on_a_phone_nothing_is_wider_than_the_screen(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    board.show(full())
    page = tab(url, **PHONE).live()
    page.count("#peers tbody tr", 5)
    page.asks(OPEN_ALL)
    for name in page.page.locator("#peers button.name").all():
        name.click()
    wide = page.asks("() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide == [390, 390]
    past = page.asks(
        "() => [...document.querySelectorAll('main *')].filter((each) => each.checkVisibility() && "
        "!each.closest('.comb, .scroll') && each.getBoundingClientRect().right > 391)"
        ".map((each) => each.outerHTML.slice(0, 99))"
    )
    assert not past, past
    # rows are blocks of their own there, and empty cells are not shown
    assert page.asks("() => getComputedStyle(document.querySelector('#peers tr')).display") == "grid"
    page.keep("phone")


def test_by_keyboard_alone(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    board.show(full())
    page = tab(url).live()
    page.count("#peers tbody tr", 5)
    wanted = page.asks("() => looking.reachable().length")
    reached = []
    for _ in range(wanted):
        page.page.keyboard.press("Tab")
        at = page.asks("() => looking.focused()")
        assert at["seen"], f"no outline: {page.asks('() => document.activeElement.outerHTML')}"
        reached.append(at["index"])
    assert reached == list(range(wanted)) and wanted > 15
    page.page.focus("#peers button.name")
    page.page.keyboard.press("Enter")
    page.count("#peers tr.detail", 1)
    assert page.page.get_attribute("#peers button.name", "aria-expanded") == "true"
    page.has("#peers tr.detail", "12D3KooW")
    page.page.keyboard.press("Space")
    page.count("#peers tr.detail", 0)
    assert page.page.get_attribute("#peers button.name", "aria-expanded") == "false"
    page.page.focus("#reach summary")
    page.page.keyboard.press("Enter")
    assert not page.hidden("#evidence")
    page.page.focus(".skip")
    page.page.keyboard.press("Enter")
    assert page.asks("() => document.activeElement.id") == "main"


def test_it_can_be_read_out(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    """One h1, no level left out, everything labelled, and no chatter while only figures change."""
    board, url = stage
    board.show(full())
    page = tab(url).live()
    page.count("#peers tbody tr", 5)
    headings = page.asks(
        "() => [...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))"
    )
    assert headings.count(1) == 1 and headings[0] == 1 and set(headings) == {1, 2, 3}
    assert page.asks("() => document.documentElement.lang") == "en"
    assert page.page.title() == "kitchen - panal"
    names = page.asks("() => looking.names()")
    assert len(names) > 15 and not [what for what, name in names if not name.strip()], names
    for table in ("#answers", "#peers"):
        scopes = page.asks(
            f"() => [...document.querySelectorAll('{table} th')].map((each) => each.scope + each.textContent)"
        )
        assert all(each.startswith("col") and len(each) > 4 for each in scopes) and len(scopes) > 10
        assert page.asks(f"() => document.querySelector('{table} tbody tr').cells.length") == len(scopes)
    assert page.asks("() => [...document.querySelectorAll('img')].every((each) => each.hasAttribute('alt'))")

    page.asks("() => looking.listen()")
    before = full()
    for number in range(1, 4):
        quicker = [msgspec.structs.replace(each, rtt_ms=40.0 + number) for each in before.peers[:3]]
        board.show(
            msgspec.structs.replace(
                before,
                node=node(uptime_seconds=3600 + 60 * number, traffic=facts.Traffic(up=number * 1024.0)),
                peers=quicker + before.peers[3:],
            )
        )
        page.has(page.peer(before.peers[0].id), f"{40 + number}.0 ms")
        page.has("#node", f"1 h {number} min")
    assert page.asks("() => looking.said") == []


def test_what_others_call_themselves_does_nothing(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    board.show(full())
    page = tab(url).live()
    page.has(page.peer(full().peers[2].id), HOSTILE)
    for name in page.page.locator("#peers button.name").all():
        name.click()
    page.page.focus("canvas")
    page.page.keyboard.press("Home")
    page.page.wait_for_timeout(300)
    assert page.asks("() => window.hacked") is None
    assert page.page.locator("main img").count() == 0
    assert page.page.locator("script").count() == 1


def test_nodes_with_little_to_tell(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    """A node that has just begun, a relay, one that only asks: each page says what it is and what to do."""
    board, url = stage
    bare: dict[str, Any] = {
        "state": "nothing", "pause": None, "serves": [], "relay": facts.Relay(), "reach": facts.Reach(),
        "name": "", "memory": facts.Memory(), "load": facts.Load(), "work": facts.Work(),
    }  # fmt: skip
    nothing: dict[str, Any] = {"peers": [], "models": [], "answers": [], "gateway": None, "warnings": []}
    board.show(status(**nothing | {"node": node(**bare)}))
    page = tab(url).live()
    page.shows("#title", "panal node")
    page.shows("#state", "serves nothing")
    for hidden in (
        "#warnings",
        "#pausing",
        "#answers-section",
        "#legend",
        "#slices",
        "#peers",
        "#find",
        "#more",
    ):
        assert page.hidden(hidden), hidden
    page.has("#no-peers", "[swarm] peers")
    page.has("#no-models", "No model")
    page.has("#node", "no experts ([[serve]] in its config says which)")
    assert "unknown" in page.text("#reach-verdict")
    page.keep("bare")

    relay = node(**bare | {"relay": node().relay})
    board.show(status(**nothing | {"node": relay}))
    page.shows("#state", "relay")
    page.has("#node", "3 of 128 peers")

    asks = status().gateway
    assert asks is not None
    waits = msgspec.structs.replace(asks, ready=False, reason="opening the model, 40 %", answered=0)
    board.show(status(**nothing | {"node": node(**bare), "gateway": waits}))
    page.shows("#state", "asks, serves nothing")
    page.has("#gateway", "opening the model, 40 %")
    page.shows("#api", f"{url}/v1")
    assert page.hidden("#answers") and page.hidden("#answers-words")

    only = model(here=[], name="", architecture="", expert_bytes=None, missing=[], missing_cells=0)
    board.show(status(**nothing | {"node": node(**bare), "models": [only]}))
    page.has(".model summary", f"model {MODEL[:12]}")
    page.has(".model summary", "complete")
    assert not page.hidden("canvas"), "a single model is open"
    many = [
        msgspec.structs.replace(only, id=f"{number:064x}", short_id=f"{number:012x}") for number in range(8)
    ]
    board.show(status(**nothing | {"node": node(**bare), "models": [*many, model()]}))
    page.count(".model", 9)
    page.count(".model[open]", 1)


def test_pauses_that_are_not_by_hand(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    text = "outside its schedule until 22:00"
    scheduled = facts.Pause(["schedule"], text, AT - 60, AT + 3600, False)
    board.show(status(node=node(pause=scheduled)))
    page = tab(url).live()
    page.shows("#state", "paused")
    page.has("#pause-note", f"Paused {text}")
    page.has("#pause-note", "by itself")
    assert page.hidden("#pause"), "nothing that the button could change"
    both = facts.Pause(["hand", "schedule"], f"by hand; {text}", AT - 60, None, True)
    board.show(status(node=node(pause=both)))
    page.shows("#pause", "Resume")
    assert page.hidden("#pause-seconds")
    board.show(status(node=node(pause=None, state="serving")))
    page.shows("#pause", "Pause")
    page.shows("#pause-note", "")
    # this board has nothing that pauses: what the node says is shown, and the button stays of use
    page.page.click("#pause")
    page.has("#pause-note", "That did not work: this node has nothing to pause")
    assert page.asks("() => document.activeElement.id") == "pause"
    page.forgive("409")


def test_a_node_that_is_still_starting(tmp_path: Path, tab: OpenTab) -> None:
    """The door opens before the models do: the page waits and tries again by itself."""
    with staged(tmp_path) as (board, url):
        page = tab(url)
        page.has("#feed", "trying again")
        page.forgive("503")
        board.show(full())
        page.live()
        page.count("#peers tbody tr", 5)
        page.close()
