"""Who is paused, as far as adverts tell, and what of a model it would serve."""

from __future__ import annotations

from typing import Any

import pytest

from node.status import paused_holders
from node.status.paused_holders import PausedHolders
from routing.wire.advert import Advert
from routing.wire.holdings import Slice
from tests.adverts import MODEL, advert

MISSING = [(0, 3, [(4, 7)]), (5, 5, [(0, 0), (2, 2)])]


def held(first: int, last: int, layers: tuple[int, int] = (0, 3), model: str = MODEL) -> Slice:
    return Slice("experts", model, "qwen3moe", experts=[(*layers, [(first, last)])])


def of(name: str, *slices: Slice, **fields: Any) -> Advert:
    return advert(name, **({"slices": list(slices)} | fields))


def peer(name: str) -> str:
    return advert(name).peer_id


def test_who_served_cells_and_names_none_any_more_is_paused() -> None:
    paused = PausedHolders()
    serving = [of("ana", held(6, 9)), of("ben", held(4, 7), held(0, 9, (4, 5))), of("carla", held(8, 9))]
    paused.observe(serving)
    assert paused.holders(MODEL, MISSING) == {}
    for _ in range(2):
        paused.observe([of("ana"), of("ben"), of("carla")])
        assert paused.holders(MODEL, MISSING) == {peer("ben"): 16 + 2, peer("ana"): 8}
        assert paused.holders("ff" * 32, MISSING) == {}
    paused.observe([of("ana"), of("ben", held(4, 7)), of("carla")])
    assert paused.holders(MODEL, MISSING) == {peer("ana"): 8}


def test_who_is_gone_or_was_started_anew_is_not() -> None:
    paused = PausedHolders()
    paused.observe([of("ana", held(4, 7)), of("ben", held(4, 7))])
    paused.observe([of("ana", instance=advert("ana").instance + 1)])
    assert paused.holders(MODEL, MISSING) == {}
    paused.observe([of("ben")])
    assert paused.holders(MODEL, MISSING) == {}, "it was away, and nobody knows what it has now"


def test_what_peers_claim_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    paused = PausedHolders()
    wide = Slice("experts", MODEL, "x", experts=[(0, 65_535, [(0, 65_535)])])
    paused.observe([of("ana", wide), of("ben", wide)])
    paused.observe([of("ana"), of("ben")])
    assert paused.holders(MODEL, MISSING) == {peer("ana"): 18, peer("ben"): 18}
    monkeypatch.setattr(paused_holders, "MAX_LOOKED_AT", 1)
    assert len(paused.holders(MODEL, MISSING)) == 1
