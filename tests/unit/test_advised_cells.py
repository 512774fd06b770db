"""From a model's cells and peers' adverts to what the market's advice takes, and back."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from market.advice import Means, Reason, advise
from market.answering import NOBODY, Answers
from market.ground import Floats
from market.own_order import own_draws
from market.quote_runs import quote_of
from market.scarcity import REPLICA_FLOOR
from market.view import MOST_CLAIMED, STRANGER, View
from node.device.cell_sources import servable_layers
from node.device.serving_choice import Servable, ServableLayer
from node.home.home_set import HomeSet, shapes_of
from node.market.advice_report import AdviceReport
from node.market.bonds import Bonds, read_bonds, router_weights
from node.market.seen import Known, view_of
from node.market.served_rate import DAY, HALF_LIFE, ServedRate
from node.market.units import Units
from routing.advert_rows import Row
from routing.wire.advert import Advert
from routing.wire.holdings import Slice
from tests.adverts import MODEL, NOW, advert
from tests.model_parts import ModelParts

Parts = Callable[..., ModelParts]

EIGHT = (1 << 8) - 1


def servable(*, run: int = 1, layers: tuple[int, ...] = (2, 5)) -> Servable:
    grains = tuple(((1 << run) - 1) << first for first in range(0, 8, run))
    return Servable(
        {layer: ServableLayer(layer, grains, (100 * run,) * len(grains)) for layer in layers}, "me"
    )


def units_of(servable: Servable, bonds: Bonds | None = None) -> Units:
    made = Units.of(servable, bonds or Bonds())
    assert made is not None
    return made


def row(who: str, experts: list[tuple[int, int, list[tuple[int, int]]]], price: int | None = None) -> Row:
    slices = [Slice("experts", MODEL, "qwen3moe", experts=experts)]
    quotes = []
    if price is not None:
        cells = {2: (np.arange(8), np.full(8, price, np.int64))}
        quotes = [quote_of(MODEL, 1, int(NOW) + 3000, cells, 1000)]
    return Row(advert(who, slices=slices, quotes=quotes), b"", NOW, NOW + 600, "", False)


def known(**fields: object) -> Known:
    base: dict[str, object] = {
        "answers": NOBODY,
        "bases": {2: 100, 5: 200},
        "floor": 25,
        "cap": 1600,
        "served": {},
        "shares": None,
    }
    return Known(**(base | fields))  # type: ignore[arg-type]


def seen(units: Units, *holders: Row, held: HomeSet | None = None, **fields: object) -> View:
    """All have answered, unless a test says otherwise."""
    cells = units.held(held or HomeSet())
    fields = {"answers": Answers.of(dict.fromkeys([row.advert.peer_id for row in holders], ""))} | fields
    return view_of(units, MODEL, holders, cells, known(**fields), "me", NOW)


def test_cells_become_units_and_units_cells() -> None:
    units = units_of(servable(run=2))
    assert len(units.ground) == 8 and units.ground.n_layers == 2
    assert units.ground.layer_size.tolist() == [800, 800]
    some = HomeSet.of_bits({2: 0b00001111, 5: 0b11000001})
    assert units.held(some).tolist() == [True, True, False, False, False, False, False, True]
    assert units.cells(units.held(some)) == HomeSet.of_bits({2: 0b1111, 5: 0b11000000}), "whole units"
    assert units.cells(np.ones(8, np.bool_)) == HomeSet.of_bits({2: EIGHT, 5: EIGHT})
    table = units.table({2: np.arange(8), 5: np.arange(3)})
    assert units.total(table).tolist() == [1, 5, 9, 13, 1, 2, 0, 0]
    assert units.least(table).tolist() == [0, 2, 4, 6, 0, 0, 0, 0]


def test_where_nothing_may_be_served_there_are_no_units() -> None:
    assert Units.of(Servable({}, "me"), Bonds()) is None


def test_experts_used_together_come_into_one_group_of_units() -> None:
    mixed = [0, 4, 1, 5, 2, 6, 3, 7]
    together: Floats = (np.kron(np.eye(2), np.ones((4, 4))) + 0.01).astype(np.float64)[mixed][:, mixed]
    units = units_of(servable(), Bonds(2, {2: together}))
    group = units.ground.group[:8]
    assert len(set(group[::2])) == len(set(group[1::2])) == 1 and group[0] != group[1]
    assert len(set(units.ground.group[8:])) == 8, "of the other layer nothing is known"


def test_replicas_are_counted_by_weight_and_least_within_a_unit() -> None:
    units = units_of(servable(run=2))
    holders = [row("ana", [(2, 5, [(0, 2)])]), row("ben", [(0, 2, [(0, 7)]), (7, 9, [(0, 900)])])]
    view = seen(units, *holders)
    assert view.replicas.tolist() == [2, 1, 1, 1, 1, 0, 0, 0] and view.servers == 2
    ana = holders[0].advert.peer_id
    view = seen(units, *holders, answers=Answers.of({ana: ""}))
    weights = [1 + STRANGER, *[STRANGER] * 3, 1, 0, 0, 0]
    assert view.replicas.tolist() == weights and view.servers == 1 + STRANGER


def test_of_one_network_each_cell_counts_once_and_then_as_strangers_do() -> None:
    units = units_of(servable(run=2))
    holders = [
        row("ana", [(2, 5, [(0, 3)])]),
        row("ben", [(2, 5, [(2, 5)])]),
        row("carla", [(2, 2, [(0, 7)])]),
    ]
    ids = [each.advert.peer_id for each in holders]
    near = dict(zip(ids, ("192.0.2.0/24", "192.0.2.0/24", ""), strict=True))
    view = seen(units, *holders, answers=Answers.of(near))
    again = STRANGER  # whoever else of the network holds a cell
    assert view.replicas.tolist() == [2, 2 + again, 2, 1, 1, 1 + again, 1, 0]
    assert view.servers == 2 + STRANGER, "and they have one word"
    silent = seen(units, *holders, answers=Answers.of({ids[2]: ""}, silent=ids[:2]))
    assert silent.replicas.tolist() == [1, 1, 1, 1, 0, 0, 0, 0] and silent.servers == 1


def test_many_names_of_one_network_do_not_make_up_the_floor() -> None:
    units = units_of(servable(run=2))
    holders = [row(f"name {number}", [(2, 5, [(0, 7)])]) for number in range(40)]
    near = dict.fromkeys([each.advert.peer_id for each in holders], "192.0.2.0/24")
    view = seen(units, *holders, answers=Answers.of(near))
    assert (view.replicas == 1 + MOST_CLAIMED).all() and 1 + MOST_CLAIMED < REPLICA_FLOOR


def test_other_models_are_not_counted() -> None:
    other = advert("ana", slices=[Slice("experts", "ab" * 32, "qwen3moe", experts=[(0, 9, [(0, 7)])])])
    view = seen(units_of(servable()), Row(other, b"", NOW, NOW + 600, "", False))
    assert not view.replicas.any()


def test_prices_are_the_quotes_of_those_who_hold() -> None:
    units = units_of(servable())
    everything: list[tuple[int, int, list[tuple[int, int]]]] = [(2, 5, [(0, 7)])]
    view = seen(units, *[row(f"peer {i}", everything, 400) for i in range(3)])
    assert view.price[:8] == pytest.approx(np.full(8, 400.0))
    assert view.price[8:] == pytest.approx(np.full(8, 200.0)), "what no quote names costs its base price"
    alone = seen(units, row("ana", everything, 10**8))
    assert (alone.price[:8] <= 100 + 0.25 * 1500).all()


@pytest.mark.parametrize("layers", [(2, 5), (5,)], ids=["of the same", "who may serve less"])
def test_of_the_last_two_holders_one_comes_before_the_other(layers: tuple[int, ...]) -> None:
    units, mine = units_of(servable()), HomeSet.of_bits({2: EIGHT, 5: EIGHT})
    other = row("ana", [(2, 5, [(0, 7)])])
    before = seen(units, other, held=mine).before
    assert before is not None and set(before.tolist()) == {0.0, 1.0}
    others = units_of(servable(layers=layers))
    theirs = view_of(
        others,
        MODEL,
        [Row(_renamed(other.advert, "me"), b"", NOW, NOW + 600, "", False)],
        others.held(mine),
        known(answers=Answers.of({"me": ""})),
        other.advert.peer_id,
        NOW,
    ).before
    assert theirs is not None and (theirs == 1 - before[-len(theirs) :]).all(), "and they see it alike"


def _renamed(told: Advert, peer_id: str) -> Advert:
    fields = {name: getattr(told, name) for name in told.__struct_fields__}
    return Advert(**(fields | {"peer_id": peer_id}))


def test_bonds_are_read_from_the_trunk(parts: Parts) -> None:
    stored = parts("demo").stored
    shapes = shapes_of(stored.manifest)
    assert {layer: each.shape for layer, each in router_weights(stored.trunk).items()} == dict.fromkeys(
        shapes, (12, 256)
    )
    bonds = read_bonds(stored.trunk, shapes)
    assert bonds.n_used == 2 and set(bonds.together) == set(shapes)
    assert all((abs(each) <= 1 + 1e-9).all() for each in bonds.together.values())
    assert read_bonds(stored.folder / "nothing.gguf", shapes) == Bonds()


def test_a_report_says_what_and_why(parts: Parts) -> None:
    stored = parts("demo").stored
    shapes = shapes_of(stored.manifest)
    whole = HomeSet.whole(shapes, shapes)
    layers = servable_layers(stored.manifest, whole, 10**9)
    units = units_of(Servable(layers, "me"), read_bonds(stored.trunk, shapes))
    memory = shapes[0].n_bytes * 2
    n = len(units.ground)
    view = View(np.full(n, 5.0), np.full(n, 100.0), np.full(n, 1e6), 9.0)
    view.replicas[units.ground.layer == 3] = 1.0
    held = units.held(HomeSet.whole([1, 2], shapes))
    advice = advise(units.ground, view, Means(memory, math.inf), held, own_draws("me", 0.0, units.ground))
    report = AdviceReport.of(
        units,
        view,
        advice,
        held,
        model_id=stored.model_id,
        memory=memory,
        uplink=None,
        servers=9,
        answered=7,
        tokens_a_day=1e6,
        is_measured=True,
    )
    kept = units.cells(advice.cells)
    assert HomeSet.from_ranges(report.hold, shapes) == kept
    assert HomeSet.from_ranges(report.take, shapes) | HomeSet.whole([1, 2], shapes) == kept | HomeSet.whole(
        [1, 2], shapes
    )
    assert (report.servers, report.answered, report.heard) == (9, 7, 2)
    assert report.lacking == 12 and report.uncovered == 0 and report.scarce == {"3": "0-11"}
    assert report.n_bytes <= memory and report.layers[3].fewest == 1.0
    assert report.income_now == round(float(advice.income[held].sum()))
    assert sum(each.cells for each in report.layers) == kept.count()
    assert set(report.layers[3].reasons) <= {"too few others hold it"}
    assert Reason.NEED in advice.reason[units.ground.layer == 3]


def test_what_is_served_fades() -> None:
    rate = ServedRate()
    assert rate.a_day() == {}
    rate.add(100.0, {4: np.array([7, 7])})
    assert rate.a_day() == {}, "nobody knows in which time"
    rate.add(160.0, {4: np.array([67, 7])})
    assert rate.a_day()[4] == pytest.approx(np.array([DAY, 0.0]))
    rate.add(160.0 + HALF_LIFE, {4: np.array([67, 7, 0])})
    faded = rate.a_day()[4]
    assert len(faded) == 3 and faded[0] == pytest.approx(30 / (30 + HALF_LIFE) * DAY)
    rate.add(200.0 + HALF_LIFE, {})
    assert rate.a_day()[4][0] < faded[0]
