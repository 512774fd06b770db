"""From config, plan and files to what is at home."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from node.config import NodeConfig, parse_config
from node.home.heat import Heat, HeatNumbers
from node.home.home_set import HomeSet, shapes_of, total_bytes
from node.home.opening import OpenHome, open_home
from node.home.plan_file import (
    HEAT_NAME,
    PLAN_NAME,
    BudgetChoice,
    HomePlan,
    MeasuredSet,
    PlanLayer,
    carried_plan,
    carry_plan,
    planned_model,
    read_heat,
    read_plan,
    write_heat,
    write_plan,
)
from node.importing import import_model
from node.model.slice_file import cut_slice
from node.model.store import Store, StoredModel, StoreError
from routing.errors import LocalError
from tests.model_parts import ModelParts

Parts = Callable[..., ModelParts]


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@pytest.fixture
def store(model: ModelParts, tmp_path: Path) -> Store:
    """A store of this test's own, with the model in it."""
    store = Store(tmp_path / "store")
    import_model(model.library, store, model.path)
    return store


def stored_in(store: Store, model: ModelParts) -> StoredModel:
    return store.get(model.stored.model_id)


def config(model: Path | str, more: str, folder: Path) -> NodeConfig:
    head = "" if "[backbone]" in more else f'[backbone]\nmodel = "{model}"\n'
    return parse_config(head + more, folder / "node.toml", folder / "store")


@contextmanager
def opened(model: ModelParts, store: Store, more: str, name: Path | str | None = None) -> Iterator[OpenHome]:
    made = config(name or model.path, more, store.root.parent)
    with open_home(model.library, store, stored_in(store, model), made) as home:
        yield home


def experts_of(home: OpenHome) -> dict[int, list[int]]:
    held = home.cells.experts(bytes.fromhex(home.stored.model_id))
    return {layer: experts for (layer, index), experts in held.items() if index == 0}


def plan_for(model: ModelParts) -> HomePlan:
    """A plan that says: layers 1 and 2 are worth most."""
    shapes = shapes_of(model.manifest)
    sets = [HomeSet.whole(layers, shapes) for layers in ([1, 2], [0, 3], [0, 1, 2])]
    return HomePlan(
        version=1,
        model_id=model.stored.model_id,
        made_at=1.0,
        seconds=6.0,
        seed=0,
        text="made up",
        text_tokens=1000,
        drafts=6,
        n_used=2,
        base=0.01,
        layers=tuple(
            PlanLayer(layer, 0.6 if layer in (1, 2) else 0.1, tuple(float(12 - e) for e in range(12)))
            for layer in shapes
        ),
        measured=tuple(
            MeasuredSet(home.as_ranges(), home.n_bytes(shapes), trips, plain, tokens, 1000)
            for home, trips, plain, tokens in zip(
                sets, (0.12, 0.3, 0.05), (0.5, 0.5, 0.25), (4.2, 1.7, 5.0), strict=True
            )
        ),
        budgets=(BudgetChoice(total_bytes(shapes) // 2, 0.5, 0),),
    )


HOT = tuple(float(5 - e if e < 5 else 1) ** 2 for e in range(12))
"""Choices of a layer whose first experts are hot."""


def hot_plan(model: ModelParts) -> HomePlan:
    """A plan that says: all layers are worth the same, their first experts are hot. Nothing was measured."""
    layers = tuple(PlanLayer(layer, 0.6, HOT) for layer in shapes_of(model.manifest))
    return msgspec.structs.replace(plan_for(model), layers=layers, measured=(), budgets=())


# --- what is chosen ---


def test_without_a_word_only_what_is_served_is_at_home(model: ModelParts, store: Store) -> None:
    with opened(model, store, "") as home:
        assert experts_of(home) == {} and home.choice.line() == "" and home.choice.by == "serve"
    serve = f'[[serve]]\nmodel = "{model.path}"\nlayers = "1"\nexperts = "0-3"\n'
    with opened(model, store, serve) as home:
        assert experts_of(home) == {1: [0, 1, 2, 3]} and home.choice.line() == ""


def test_without_a_plan_first_and_last_layers(model: ModelParts, store: Store) -> None:
    with opened(model, store, 'home_memory = "50%"\n') as home:
        found = experts_of(home)
        assert found[0] == found[3] == list(range(12))
        assert home.choice.wanted.n_bytes(home.shapes) <= total_bytes(home.shapes) // 2
        assert "layers 0,3" in home.choice.line()
        assert f"`panal home plan {model.stored.model_id[:12]} --store {store.root}`" in home.choice.line()
        path = store.root.parent / "node.toml"
        path.touch()
    with opened(model, store, 'home_memory = "50%"\n') as home:
        assert f"`panal home plan -c {path}`" in home.choice.line()
        assert home.choice.as_dict()["predicted_trips_per_layer_token"] is None
        assert json.dumps(home.choice.as_dict())


def test_the_plan_says_which_layers(model: ModelParts, store: Store) -> None:
    write_plan(stored_in(store, model), plan_for(model))
    with opened(model, store, 'home_memory = "51%"\n') as home:
        assert home.choice.wanted.whole_layers(home.shapes) == [1, 2]
        assert home.choice.by == "plan" and home.choice.predicted == pytest.approx(0.12, abs=0.03)
        assert "trips per layer and token on the plan's text" in home.choice.line()
        everything = home.choice.as_dict()
        assert everything["layers"] == [1, 2] and everything["bytes"] <= everything["budget"]


def test_other_budgets_than_the_plans(model: ModelParts, store: Store) -> None:
    write_plan(stored_in(store, model), plan_for(model))
    with opened(model, store, 'home_memory = "62%"\n') as home:
        # A layer and a half do not fit beside them; the hottest experts of the others do.
        assert {1, 2} <= set(home.choice.wanted.whole_layers(home.shapes))
        rest = {layer: e for layer, e in experts_of(home).items() if layer in (0, 3)}
        assert rest and all(experts == list(range(len(experts))) for experts in rest.values())
    with opened(model, store, 'home_memory = "100%"\n') as home:
        assert home.cells.count() == 48 and home.choice.predicted == pytest.approx(0, abs=0.01)
    with opened(model, store, 'home_memory = "1 KB"\n') as home:
        assert home.cells.count() == 0 and home.choice.line().startswith("at home: nothing (0 B)")
        assert home.choice.predicted == 1.0  # nothing at home, nothing guessed by it


def test_what_is_served_costs_nothing_more(model: ModelParts, store: Store) -> None:
    write_plan(stored_in(store, model), plan_for(model))
    serve = f'home_memory = "27%"\n[[serve]]\nmodel = "{model.path}"\nlayers = "1"\n'
    with opened(model, store, serve) as home:
        assert {1, 2} <= set(home.choice.wanted.whole_layers(home.shapes))


def test_heat_counted_in_use_moves_the_hot_cells(model: ModelParts, store: Store) -> None:
    stored = stored_in(store, model)
    write_plan(stored, hot_plan(model))
    shapes = shapes_of(stored.manifest)
    with opened(model, store, 'home_memory = "20%"\n') as home:  # less than a layer
        before = home.choice
        assert len(experts_of(home)) == 4
        assert all(experts == list(range(len(experts))) for experts in experts_of(home).values())
    # As widely spread as the plan's, but the other way round.
    write_heat(stored, Heat(shapes, HeatNumbers(25_000.0, dict.fromkeys(shapes, HOT[::-1]))))
    with opened(model, store, 'home_memory = "20%"\n') as home:
        for layer, experts in before.wanted.experts().items():
            assert 11 in experts_of(home)[layer] and len(experts_of(home)[layer]) == len(experts)
        assert home.choice.predicted == before.predicted  # nobody has measured these
    # One token, again and again, says nothing of what comes.
    last = Heat(shapes)
    last.add([(layer, np.full((20_000, 2), 11, np.int32)) for layer in shapes])
    write_heat(stored, last)
    with opened(model, store, 'home_memory = "20%"\n') as home:
        assert home.choice.wanted == before.wanted


def test_heat_counted_in_use_takes_no_layer_away(model: ModelParts, store: Store) -> None:
    stored = stored_in(store, model)
    write_plan(stored, plan_for(model))
    shapes = shapes_of(stored.manifest)
    with opened(model, store, 'home_memory = "50%"\n') as home:
        before = home.choice
    assert before.predicted == pytest.approx(0.12)  # as measured
    for choices in ((1.0,) * 6 + (0.0,) * 6, tuple(float(1 + e) ** 2 for e in range(12))):
        write_heat(stored, Heat(shapes, HeatNumbers(28_000.0, dict.fromkeys(shapes, choices))))
        with opened(model, store, 'home_memory = "50%"\n') as home:
            assert home.choice == before


def test_the_choice_is_the_same_for_all_guessers(model: ModelParts, store: Store) -> None:
    write_plan(stored_in(store, model), plan_for(model))
    chosen, told = set(), {}
    for draft in ("auto", "self", "ngram", "off"):
        with opened(model, store, f'home_memory = "50%"\ndraft = "{draft}"\n') as home:
            chosen.add(home.choice.wanted)
            told[draft] = home.choice.predicted
    assert len(chosen) == 1
    assert told["auto"] == pytest.approx(0.12) and told["off"] == pytest.approx(0.5)


def test_other_cells_of_the_same_files(model: ModelParts, store: Store) -> None:
    serve = f'home_memory = "50%"\n[[serve]]\nmodel = "{model.path}"\nlayers = "1"\nexperts = "2-3"\n'
    with opened(model, store, serve) as home:
        before = experts_of(home)
        other = home.cells_for(HomeSet.of({1: [3, 7], 2: [0, 11]}))
        held = other.experts(bytes.fromhex(home.stored.model_id))
        assert held == {(1, 0): [2, 3, 7], (2, 0): [0, 11]}
        assert experts_of(home) == before
        key = bytes.fromhex(home.stored.model_id)
        found = other.find(key, 1, 0)
        assert found is not None and not found.is_whole
        # Scattered experts of a layer are one run beside what is served, and compute what a whole one does.
        assert len(found.runs) == 2
        x = np.random.default_rng(0).standard_normal((4, found.call.n_in)).astype(np.float32)
        experts, ones = np.array([7, 2, 3, 7]), np.ones(4, np.uint16)
        weights = np.linspace(0.2, 0.9, 4, dtype=np.float32)
        whole = model.held[1, "exps"]
        mine = found.compute(model.kernels, x, ones, experts, weights)
        assert mine.tobytes() == model.kernels.run(whole, x, ones, experts, weights).tobytes()


# --- cells by name ---


def test_cells_by_name(model: ModelParts, store: Store) -> None:
    named = '[[backbone.home]]\nlayers = "0,2"\nexperts = "3-5"\n[[backbone.home]]\nlayers = "3"\n'
    with opened(model, store, named) as home:
        assert experts_of(home) == {0: [3, 4, 5], 2: [3, 4, 5], 3: list(range(12))}
        assert home.choice.by == "config" and "layer 3 and 6 experts" in home.choice.line()


@pytest.mark.parametrize(
    ("named", "said"),
    [('layers = "4"', r"backbone.home\[0\]: layer 4 has no routed experts; choose among 0-3"),
     ('layers = "1"\nexperts = "0-12"', r"backbone.home\[0\]: .*goes past the last")],
)  # fmt: skip
def test_cells_that_the_model_lacks_are_refused(
    model: ModelParts, store: Store, named: str, said: str
) -> None:
    with pytest.raises(LocalError, match=said), opened(model, store, f"[[backbone.home]]\n{named}\n"):
        pass


# --- files ---


def test_without_the_models_file_only_what_lies_here_comes_home(
    model: ModelParts, store: Store, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.path.read_bytes())
    own = Store(tmp_path / "other" / "store")
    import_model(model.library, own, copy)
    copy.unlink()
    piece = tmp_path / "slice.gguf"
    cut_slice(model.file, model.manifest.encoded(), model.stored.model_id, range(1), range(6), piece)
    text = f'home_memory = "50%"\n[[serve]]\nmodel = "{piece}"\n'
    with opened(model, own, text, name=model.stored.model_id[:12]) as home:
        assert experts_of(home) == {0: list(range(6))}
        assert home.can_fetch and home.fetched is not None
        lacking = home.choice.lacking
        assert lacking == home.choice.wanted - HomeSet.of({0: range(6)}) and lacking.count() >= 18
        assert "in no file here" in home.choice.line()
        # Another process may use the same store; only one adds to it.
        with opened(model, own, text, name=model.stored.model_id[:12]) as second:
            assert not second.can_fetch and experts_of(second) == experts_of(home)


def test_a_damaged_plan_is_one_line(model: ModelParts, store: Store) -> None:
    stored = stored_in(store, model)
    path = write_plan(stored, plan_for(model))
    good = path.read_bytes()
    plan = json.loads(good)
    other = stored.model_id[:-1] + ("0" if stored.model_id[-1] != "0" else "1")
    for damaged in (
        b"", b"[]", good[:-20], b"\xff" + good, good.replace(b'"version":1', b'"version":2'), b"[" * 100_000,
        *(
            json.dumps(plan | change).encode()
            for change in (
                {"model_id": other}, {"extra": 1}, {"drafts": -1}, {"layers": plan["layers"][:3]},
                {"layers": [{**each, "choices": each["choices"][1:]} for each in plan["layers"]]},
                {"layers": [{**each, "worth": float("nan")} for each in plan["layers"]]},
                {"measured": [{**each, "experts": {"9": "0"}} for each in plan["measured"]]},
                {"measured": [{**each, "experts": {"0": "0-99"}} for each in plan["measured"]]},
                {"measured": [{**each, "n_bytes": 7} for each in plan["measured"]]},
                {"budgets": [{"n_bytes": 1, "share": 0.1, "chosen": 3}]},
            )
        ),
    ):  # fmt: skip
        path.write_bytes(damaged)
        with pytest.raises(StoreError) as caught:
            read_plan(stored)
        line = str(caught.value)
        assert str(path) in line and "panal home plan" in line and "\n" not in line
        with pytest.raises(StoreError), opened(model, store, 'home_memory = "50%"\n'):
            pass
        with opened(model, store, "") as home:  # who does not want it is not stopped by it
            assert home.choice.by == "serve"
    path.write_bytes(good)
    assert msgspec.json.encode(read_plan(stored)) == good


def test_a_plan_is_carried_to_another_store(model: ModelParts, store: Store, tmp_path: Path) -> None:
    stored, path = stored_in(store, model), tmp_path / "carried.json"
    plan = plan_for(model)
    carry_plan(path, plan)
    assert planned_model(path) == stored.model_id and carried_plan(path, stored) == plan
    other = stored.model_id[:-1] + ("0" if stored.model_id[-1] != "0" else "1")
    good = json.loads(path.read_bytes())
    for damaged in (
        b"", b"GGUF", b"[" * 100_000, json.dumps(good | {"model_id": other}).encode(),
        json.dumps(good | {"layers": good["layers"][:3]}).encode(),
    ):  # fmt: skip
        path.write_bytes(damaged)
        with pytest.raises(LocalError, match=r"carried\.json: is no home plan") as caught:
            carried_plan(path, stored)
        assert "\n" not in str(caught.value)
    with pytest.raises(LocalError, match="no such file"):
        carried_plan(tmp_path / "none.json", stored)


def test_damaged_heat_is_counted_anew(model: ModelParts, store: Store) -> None:
    stored = stored_in(store, model)
    shapes = shapes_of(stored.manifest)
    for damaged in (b"", b"{}", b"\xff\xfe", b'{"tokens": -1, "layers": {}}', b"[" * 100_000):
        (stored.folder / HEAT_NAME).write_bytes(damaged)
        assert read_heat(stored, shapes).tokens == 0
    assert not (stored.folder / PLAN_NAME).exists()
