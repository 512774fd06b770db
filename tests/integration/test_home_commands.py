"""`panal home plan`, and what a config's home_memory does with it, as people use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.test_commands import LOOPBACK, panal, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planned(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A store with a plan of the demo model, and what the command said of it."""
    store = tmp_path_factory.mktemp("planned") / "store"
    done = panal("home", "plan", demo_model, "--memory", "51%", "--seconds", 10, "--store", store, "--json")
    assert done.stderr == ""
    report: dict[str, object] = json.loads(done.stdout)
    return store, report


def test_the_plan_as_json(planned: tuple[Path, dict[str, object]]) -> None:
    _, report = planned
    assert Path(str(report["plan"])).is_file()
    rows = report["budgets"]
    assert isinstance(rows, list)
    assert [row["share"] for row in rows] == [0.51, 0.25, 0.5, 0.75, 0.9]
    asked = rows[0]
    assert len(asked["layers"]) == 2 and asked["bytes"] <= asked["budget"]
    assert asked["trips_per_layer_token"] < 0.3 < asked["trips_without_guesses"]
    by_share = sorted(rows, key=lambda row: row["share"])
    trips = [row["trips_per_layer_token"] for row in by_share]
    assert trips == sorted(trips, reverse=True)


def test_the_plan_as_text(demo_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("def f(x):\n    return x + 1\n\n" * 100, encoding="utf-8")
    done = panal("home", "plan", demo_model, "--seconds", 8, "--store", tmp_path / "s", "--text", text)
    assert "layers at home" in done.stdout and "mine.txt" in done.stdout
    assert 'home_memory = "50%"' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--memory", "lots"), "'lots' is no amount of memory"),
        (("--text", "/no/such/file"), "/no/such/file: cannot be read"),
        (("--seconds", "0"), "not a number from 1"),
    ],
)
def test_mistakes_are_one_line(demo_model: Path, arguments: tuple[str, str], said: str) -> None:
    done = panal("home", "plan", demo_model, *arguments, code=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_a_config_with_home_memory_makes_fewer_trips(
    demo_model: Path, tmp_path: Path, planned: tuple[Path, dict[str, object]]
) -> None:
    server, asking = tmp_path / "server", tmp_path / "asking"
    panal("init", "--dir", server, "--serve", demo_model, "--listen", LOOPBACK)
    with serving(server / "node.toml") as (_, address):
        reports = []
        for more in ((), ("--home-memory", "51%")):
            panal("init", "--dir", asking, "--force", "--model", demo_model, "--peer", address, *more)
            config = asking / "node.toml"
            text = config.read_text(encoding="utf-8").replace('store = "store"', f'store = "{planned[0]}"')
            config.write_text(text, encoding="utf-8")
            done = panal("generate", "-c", config, "-p", "def main():", "-n", 24, "--json")
            reports.append(json.loads(done.stdout.splitlines()[-1]))
    plain, with_home = reports
    assert plain["tokens"] == with_home["tokens"]
    trips = [report["panal"]["trips_per_layer_token"] for report in (plain, with_home)]
    assert trips[1] <= 0.51 and trips[1] < trips[0]
    assert with_home["home"]["by"] == "plan" and len(with_home["home"]["layers"]) == 2
    assert with_home["home"]["at_home_bytes"] == with_home["home"]["bytes"] > 0


def test_init_writes_it_and_refuses_it_without_a_model(demo_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    panal("init", "--dir", folder, "--model", demo_model, "--home-memory", "4GiB")
    assert '\nhome_memory = "4GiB"' in (folder / "node.toml").read_text(encoding="utf-8")
    done = panal("init", "--dir", tmp_path / "other", "--relay", "--home-memory", "4GiB", code=2)
    assert "--home-memory is for the model" in done.stderr
