"""What `panal run` shows when it is up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from node.cli.run_screen import MAX_RUNS, Screen, describe_runs, listening_event, screen_text
from routing.wire.holdings import Slice

ID = "0a" * 32
BARE = Screen(
    name="",
    peer_id="12D3KooWx",
    address="/ip4/192.0.2.7/udp/4190/quic-v1/p2p/12D3KooWx",
    swarm="panal",
    private=False,
    slices=[],
    cells=0,
    version="0.2.0",
    url="http://127.0.0.1:4190",
)


def test_a_node_that_does_everything() -> None:
    screen = replace(
        BARE,
        name="kitchen",
        swarm="casa",
        private=True,
        slices=[Slice("experts", ID, "qwen3moe", experts=[(0, 3, [(0, 7)]), (4, 4, [(0, 3), (8, 8)])])],
        cells=37,
        chooses=["6 GiB of m.gguf"],
        relay=["/ip4/192.0.2.7/tcp/4190/p2p/12D3KooWx"],
        reach="directly",
        model="Qwen3",
        paused="by hand; panal resume ends it",
        config=Path("/etc/node.toml"),
    )
    assert screen_text(screen).splitlines() == [
        "panal    0.2.0  kitchen",
        "peer id  12D3KooWx",
        "address  /ip4/192.0.2.7/udp/4190/quic-v1/p2p/12D3KooWx",
        "swarm    casa (private)",
        "serving  qwen3moe 0a0a0a0a0a0a: layers 0-3: experts 0-7; layer 4: experts 0-3, 8",
        "cells    37",
        "memory   6 GiB of m.gguf: what to serve within it this node chooses, and says in its log",
        "relay    /ip4/192.0.2.7/tcp/4190/p2p/12D3KooWx",
        "model    Qwen3",
        "page     http://127.0.0.1:4190",
        "API      http://127.0.0.1:4190/v1",
        "reached  directly",
        "paused   by hand; panal resume ends it",
        "config   /etc/node.toml",
        "",
        "On this network others find it by themselves; elsewhere the address goes into their [swarm] peers.",
        "Ctrl-C ends it.",
    ]


def test_a_bare_node_says_what_to_do() -> None:
    text = screen_text(BARE)
    assert "config   none" in text and "panal init" in text and "API" not in text
    assert "It has no config: it serves nothing and asks nothing" in text
    named = screen_text(replace(BARE, config=Path("/etc/node.toml")))
    assert "Its config names nothing to do" in named


def test_it_says_how_others_come() -> None:
    assert "by themselves" in screen_text(BARE) and "not known yet" in screen_text(BARE)
    silent = screen_text(replace(BARE, on_lan=False))
    assert "Others do not find it by themselves: the address goes into their [swarm] peers." in silent
    here = screen_text(replace(BARE, only_here=True))
    assert "by this machine alone" in here and "Only nodes on this machine reach it" in here
    assert "by themselves" not in here and "not known yet" not in here


def test_one_line_for_programs() -> None:
    said = json.loads(json.dumps(listening_event(BARE)))
    assert said["event"] == "listening" and said["address"] == BARE.address and said["slices"] == []
    assert said["name"] is None and said["config"] is None and said["url"] == BARE.url


def test_a_slice_of_many_runs_stays_a_line() -> None:
    runs = [(2 * i, 2 * i, [(0, 3)]) for i in range(40)]
    assert describe_runs(runs).endswith(
        f"layer {2 * (MAX_RUNS - 1)}: experts 0-3; and {40 - MAX_RUNS} runs of layers more"
    )
