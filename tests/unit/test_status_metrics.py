"""/metrics, read back by a strict reader."""

from __future__ import annotations

import pytest

from node.status import facts
from node.status.metrics import MAX_PEERS, exposition
from tests.metrics_text import read_metrics
from tests.status_facts import AT, MODEL, node, offline, peer, status


def test_all_that_is_known_is_told_in_base_units() -> None:
    told = read_metrics(exposition(status(), connections=7))
    assert told["panal_node_info"].value(peer_id=node().peer_id, version="0.1.0") == 1
    assert told["panal_start_time_seconds"].value() == AT - 3600
    assert told["panal_call_wait_seconds"].value() == 0.012
    assert told["panal_memory_bytes"].value(kind="mapped") == 3_780_000_000
    assert told["panal_sent_bytes_total"].value() == 9_812_334_112
    assert told["panal_peers"].value(state="offline") == 1
    assert told["panal_connected_peers"].value(route="punched") == 1
    assert told["panal_peer_rtt_seconds"].value(peer_id=peer().id) == pytest.approx(0.0413)
    assert told["panal_peer_calls_total"].value(peer_id=peer().id, outcome="late") == 7
    assert told["panal_model_missing_cells"].value(model=MODEL) == 4
    assert told["panal_relay_refused_total"].value(status="X") == 2
    assert told["panal_gateway_tokens_total"].value() == 5_230
    assert told["panal_warnings"].value(level="info") == 1
    assert told["panal_http_connections"].value() == 7


def test_names_follow_the_conventions() -> None:
    for name, metric in read_metrics(exposition(status())).items():
        assert name.startswith("panal_") and name == name.lower()
        assert not name.endswith(("_ms", "_mb", "_count", "_percent"))
        assert (metric.kind == "counter") == name.endswith("_total")
        assert metric.text.endswith(".")


def test_what_is_not_known_is_left_out() -> None:
    bare = node(memory=facts.Memory(), load=facts.Load(), relay=facts.Relay(), serves=[])
    told = read_metrics(exposition(status(node=bare, peers=[], models=[], gateway=None, answers=[])))
    for absent in ("memory_bytes", "resident_memory_bytes", "cpu_usage_ratio", "call_wait_seconds"):
        assert f"panal_{absent}" not in told
    assert not any("gateway" in name or "peer_" in name or "served_bytes" in name for name in told)


def test_peers_without_number_make_no_series_without_number() -> None:
    peers = [peer(f"p{number}") for number in range(MAX_PEERS + 50)]
    peers += [offline(f"gone {number}") for number in range(50)]
    told = read_metrics(exposition(status(peers=peers)))
    assert len(told["panal_peer_rtt_seconds"].samples) == MAX_PEERS
    assert told["panal_peers"].value(state="online") == MAX_PEERS + 50


def test_names_of_peers_are_not_in_it_and_labels_are_escaped() -> None:
    hostile = 'x"} 1\npanal_evil 1'
    told = status(
        peers=[peer(name=hostile)], node=node(name=hostile, serves=[facts.Served(hostile, "", "", 1, 2, [])])
    )
    text = exposition(told)
    assert read_metrics(text)["panal_served_cells"].value(model=hostile) == 1
    assert "\npanal_evil" not in text


@pytest.mark.parametrize(
    "text",
    [
        "panal_x 1\n",
        "# HELP panal_x A.\n# TYPE panal_x gauge\n",
        "# HELP panal_x A.\n# TYPE panal_x counter\npanal_x 1\n",
        "# HELP panal_x A.\n# TYPE panal_x gauge\npanal_x 1\npanal_x 2\n",
        '# HELP panal_x A.\n# TYPE panal_x gauge\npanal_x{a="b"c} 1\n',
        "# HELP panal_x A.\n# TYPE panal_x gauge\npanal_x 1",
    ],
)
def test_the_reader_is_strict(text: str) -> None:
    with pytest.raises(ValueError):
        read_metrics(text)
