"""The status page of a large swarm: a thousand peers, models of thousands of cells."""

from __future__ import annotations

import base64
import random

import msgspec
import numpy as np
import pytest

from node.status import facts
from tests.browser.conftest import OpenTab
from tests.browser.scenes import held, matrix
from tests.browser.staged import StagedBoard
from tests.status_facts import model, node, offline, peer, status

pytestmark = pytest.mark.slow


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

    canvas.scroll_into_view_if_needed()  # the pointer moves in the window
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
