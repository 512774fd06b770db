"""The status page, shown what real nodes rarely come to: everything at once, hostile words, empty nodes.

Facts are staged, behind the real door and in the real page; test_page_swarm has the real nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.status import facts
from tests.browser.conftest import OpenTab
from tests.browser.scenes import HOSTILE, full
from tests.browser.staged import StagedBoard, staged
from tests.status_facts import AT, MODEL, model, node, status

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}

LEAST_CONTRAST = 4.5
"""WCAG 2 AA, of text of any size."""

OPEN_ALL = "() => document.querySelectorAll('details').forEach((each) => { each.open = true; })"


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


def test_what_answers_cost_is_there_when_something_does(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    dear = status().answers[0]
    attic, stranger = status().peers[0].id, "12D3KooW" + "x" * 44
    trips = msgspec.structs.replace(
        dear.trips, cost=1_234_567, cost_by_peer={stranger: 234_567, attic: 1_000_000}
    )
    free = msgspec.structs.replace(
        dear, number=40, trips=msgspec.structs.replace(trips, cost=0, cost_by_peer={})
    )
    board.show(status(answers=[free]))
    page = tab(url).live()
    page.count("#answers tbody tr", 1)
    column = "#answers th:nth-child(13), #answers td:nth-child(13), #cost-words"
    shown = f"() => [...document.querySelectorAll('{column}')].map((each) => each.checkVisibility())"
    assert page.asks(shown) == [False, False, False]
    board.show(status(answers=[msgspec.structs.replace(dear, trips=trips), free]))
    page.has("#answers tbody tr:first-child td:nth-child(13)", "1.23attic 1, xxxxxxxx 0.235")
    page.has("#answers tbody tr:last-child td:nth-child(13)", "0")
    page.page.locator("#answers-words summary").click()
    assert page.asks(shown) == [True] * 4
    page.has("#cost-words", "credits that others' work costs")


def test_who_owes_whom_and_who_answered_falsely(stage: tuple[StagedBoard, str], tab: OpenTab) -> None:
    board, url = stage
    told = status()
    board.show(status(market=None))
    page = tab(url).live()
    assert page.hidden("#market-section")
    assert told.market is not None and told.market.audits is not None
    (credit,) = told.market.credits
    board.show(status(market=msgspec.structs.replace(told.market, audits=None)))
    page.has("#credits tbody", "2.50.0312")
    page.has("#credits tbody", "0.5 signed off, it has not taken it yet")
    page.has("#credits tbody tr td:first-child", f"attic{credit.peer[-8:]}")
    assert page.hidden("#audits-part")
    board.show(told)
    page.count("#audits tbody tr", 2)
    liar, doubted = told.market.audits.peers
    page.has("#audits tbody tr:first-child", "old laptop")
    page.has("#audits tbody tr:first-child td:last-child", "not until")
    page.shows("#audits tbody tr:last-child td:last-child", "asked, in dispute")
    page.has("#audits tbody tr:last-child", "96.20.4 by hearsay90af3e51c27b6d08")
    page.has("#audited", "5 % of the answers that come here")
    page.has("#audited", "412, 409 agreed, of them 371 byte for byte")
    page.page.locator("#found-part summary").click()
    page.has("#found tbody", "differs from what was computed here")
    page.has("#found tbody", "2.0e+0")
    page.keep("market")
    pardoned = [msgspec.structs.replace(liar, until=None, strikes=0), doubted]
    found = [msgspec.structs.replace(each, pardoned=AT) for each in told.market.audits.evidence]
    audits = msgspec.structs.replace(told.market.audits, peers=pardoned, evidence=found)
    board.show(status(market=msgspec.structs.replace(told.market, audits=audits)))
    page.shows("#audits tbody tr:first-child td:last-child", "asked")
    page.has("#found tbody", "pardoned")
    none = msgspec.structs.replace(audits, share=0.0, checked=0, peers=[], evidence=[])
    board.show(status(market=msgspec.structs.replace(told.market, credits=[], audits=none)))
    page.has("#audited", "nothing; who was found out before is not asked all the same")
    assert page.hidden("#found-part") and page.hidden("#audits") and not page.hidden("#no-credits")


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
