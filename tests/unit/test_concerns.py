"""Warnings: what is said, when, and since when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from node.status import facts
from node.status.concerns import ALONE_SECONDS, MAX_OF_A_KIND, Concerns, Observed
from node.status.facts.runs import runs_in_words
from routing.advert_rows import Clone
from tests.status_facts import AT, audits, model, node

CALM = node(state="serving", pause=None)
WHOLE = model(missing=[], missing_cells=0)


ELSEWHERE = "dialing /ip4/1.2.3.4/udp/1/quic-v1: it belongs to another swarm (0123...)"


def told(
    *, node: facts.Node = CALM, models: tuple[facts.Model, ...] = (WHOLE,), **seen: Any
) -> list[facts.Warning]:
    return Concerns().told(node, models, Observed(**({"now": AT} | seen)))


def codes(warnings: list[facts.Warning]) -> list[str]:
    return [each.code for each in warnings]


def test_a_healthy_node_has_none() -> None:
    assert told() == []


@pytest.mark.parametrize(
    ("code", "level", "words", "seen"),
    [
        ("clone", "error", "own identity", {"clones": [Clone("12D3KooWx", True, ("here:1", "there:2"))]}),
        ("clone", "warning", "two machines", {"clones": [Clone("12D3KooWx", False, ("a:1", "b:2"))]}),
        ("clock", "warning", "400 s ahead of", {"clock_offsets": {"12D3KooWx": 400.0, "12D3KooWy": 1.0}}),
        ("clock", "error", "400 s behind", {"clock_offsets": {"a": 400.0, "b": 400.0, "c": 2.0}}),
        ("disk-full", "warning", "500 MiB", {"free_bytes": 500 << 20, "store": "/home/x/.panal"}),
        ("disk-full", "error", "1 MiB", {"free_bytes": 1 << 20, "store": "/home/x/.panal"}),
        ("membership", "warning", "in 3 days", {"member_until": AT + 3 * 86400 + 60}),
        ("membership", "error", "has ended", {"member_until": AT - 60}),
        ("alone", "warning", "no peer", {"alone_since": AT - ALONE_SECONDS - 1}),
        (
            "peer",
            "warning",
            "no answer",
            {"failures": {"/ip4/1.2.3.4/udp/1/quic-v1": "no answer within 5 s"}},
        ),
        ("peer", "warning", "belongs to", {"failures": {"/ip4/1.2.3.4/udp/1/quic-v1": ELSEWHERE}}),
    ],
)
def test_each_is_said_with_what_to_do(code: str, level: str, words: str, seen: dict[str, Any]) -> None:
    (warning,) = told(**seen)
    assert (warning.code, warning.level) == (code, level)
    assert words in warning.what and warning.advice and "\n" not in warning.what + warning.advice


def test_the_advice_about_a_peer_follows_from_what_it_said() -> None:
    (off,) = told(failures={"peer": "no answer within 5 s"})
    assert off.advice == "is it on, and is its address right?"
    (elsewhere,) = told(failures={"peer": ELSEWHERE})
    assert "`panal swarm join`" in elsewhere.advice


@pytest.mark.parametrize(
    "seen",
    [
        {"clock_offsets": {"12D3KooWx": 299.0}},
        {"free_bytes": 2_000_000_000},
        {"member_until": AT + 90 * 86400},
        {"alone_since": AT - 1},
        {"alone_since": AT - 1000, "listens_to_others": False},
    ],
)
def test_what_is_as_it_should_be_is_not(seen: dict[str, Any]) -> None:
    assert told(**seen) == []


def test_of_the_node_itself() -> None:
    blocked = node(state="serving", pause=None, reach=facts.Reach(udp=False))
    assert codes(told(node=blocked)) == ["udp-blocked"]
    hidden = node(
        state="serving", pause=None, reach=facts.Reach(verdict="private", reason="none arrived"),
        relay=facts.Relay(),
    )  # fmt: skip
    (warning,) = told(node=hidden)
    assert warning.code == "unreachable" and "none arrived" in warning.what
    full = facts.RelayServing([], 128, 128, 1, 128, 1, 1, {})
    (warning,) = told(node=node(state="serving", pause=None, relay=facts.Relay(full)))
    assert warning.code == "relay-full" and "128 reservations" in warning.what
    (warning,) = told(node=node())
    assert (warning.code, warning.level) == ("paused", "info")


def test_missing_cells_of_a_model_that_is_only_heard_of_are_nobodys_concern() -> None:
    assert codes(told(models=(model(),))) == ["missing-cells"]
    assert told(models=(model(here=["serves"]),)) == []


def test_missing_cells_name_the_peers_that_are_paused_and_have_them() -> None:
    peers = {f"peer {number}": 5 - number for number in range(5)}
    (warning,) = told(
        models=(model(),),
        paused=lambda model_id, missing: peers if missing == model().missing else {},
    )
    assert warning.what.endswith(
        "; paused: peer 0, which has 5 of them; peer 1, which has 4 of them; "
        "peer 2, which has 3 of them; 2 more"
    )


def test_the_gravest_come_first_and_floods_are_counted() -> None:
    warnings = told(
        models=(model(),), failures={f"peer {number:02}": "no answer" for number in range(20)}, node=node()
    )
    assert codes(warnings) == ["missing-cells", *["peer"] * (MAX_OF_A_KIND + 1), "paused"]
    assert any(each.what == "12 more peers do not answer" for each in warnings)


def test_since_is_when_it_began_whatever_its_words() -> None:
    concerns = Concerns()
    first = concerns.told(CALM, [model()], Observed(now=AT))
    later = concerns.told(CALM, [model(missing_cells=3)], Observed(now=AT + 60))
    assert first[0].what != later[0].what and first[0].since == later[0].since == AT
    assert concerns.told(CALM, [WHOLE], Observed(now=AT + 70)) == []
    again = concerns.told(CALM, [model()], Observed(now=AT + 80))
    assert again[0].since == AT + 80


def test_a_peers_words_stay_on_one_line() -> None:
    (warning,) = told(failures={"peer": "bad\x1b[31m\nnews \u202e" + "x" * 9000})
    assert warning.what.isprintable() and len(warning.what.encode()) <= 400


def test_runs_in_words() -> None:
    assert runs_in_words([(0, 3, [(4, 7)]), (5, 5, [(0, 0), (2, 2)])]) == (
        "layers 0-3: experts 4-7; layer 5: experts 0, 2"
    )
    many = [(layer, layer, [(expert, expert) for expert in range(0, 40, 2)]) for layer in range(0, 40, 2)]
    assert len(runs_in_words(many)) < 300 and runs_in_words(many).endswith("; ...")


def test_credit_that_is_lacking_is_a_concern_on_both_sides() -> None:
    market = facts.Market("fixed", "fast", 0, 0, 5_000_000, 4_000_000, None, [], [], 0)
    told = Concerns().told(
        node(pause=None, state="serving"),
        [],
        Observed(
            now=AT,
            refusing={"kitchen": "you owe 3 credits"},
            refused_here={"attic": "you owe 5 credits"},
            asking=["cellar"],
            market=market,
        ),
    )
    said = [each for each in told if each.code == "credit"]
    assert len(said) == 4
    whats = "\n".join(f"{each.level}: {each.what} ({each.advice})" for each in said)
    assert "warning: kitchen computes nothing for this node before it is paid: you owe 3 credits" in whats
    assert "info: this node computes nothing for attic before it is paid" in whats
    assert "panal market settle" in whats
    assert "warning: cellar wants to be paid, and this node signs no receipts" in whats
    assert "today's budget of 4 credits is used up" in whats


def test_who_was_found_out_is_named_as_long_as_it_is_out() -> None:
    base = audits()
    liar, honest = base.peers
    market = facts.Market("fixed", "fast", 0, 0, 0, None, None, [], [], 0, base)
    (warning,) = told(market=market, label=lambda peer_id: f"peer {peer_id[-4:]}")
    assert (warning.code, warning.level) == ("convicted", "warning")
    assert warning.what == (
        f"peer {liar.peer[-4:]} gave false answers: it is not asked until 2027-01-15 08:09 UTC"
    )
    assert warning.advice.endswith(f"panal market pardon {liar.peer[-8:]} lets it in")
    many = [structs.replace(liar, peer=f"peer {number:02}") for number in range(MAX_OF_A_KIND + 2)]
    flood = structs.replace(market, audits=structs.replace(base, peers=[*many, honest]))
    said = told(market=flood)
    assert len(said) == MAX_OF_A_KIND + 1
    assert any(each.what.startswith("2 more peers gave false answers") for each in said)
    calm = structs.replace(market, audits=structs.replace(base, peers=[structs.replace(liar, until=None)]))
    assert told(market=calm) == [] == told(market=structs.replace(market, audits=None))


def test_a_double_signer_is_named_with_what_its_owner_may_have_done() -> None:
    credit = facts.Credit("12D3KooWdouble", 5, 0, 0, 9, "", "", "", "two receipts number 2 of epoch 7")
    market = facts.Market("fixed", "fast", 5, 0, 0, None, None, [], [credit], 0)
    (warning,) = told(market=market)
    assert warning.code == "convicted" and "12D3KooWdouble has signed double" in warning.what
    assert "two receipts number 2" in warning.what and "panal market pardon oWdouble" in warning.advice
    assert told(market=structs.replace(market, credits=[structs.replace(credit, fault="")])) == []
