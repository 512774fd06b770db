"""A device with only the trunk: a plan carried to it, its experts fetched by `panal home fetch`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.cli.home_fetch import Rate
from tests.integration.test_commands import END_SECONDS, LOOPBACK, panal, serving

pytestmark = pytest.mark.slow

SLOW_RATE = 512 << 10  # bytes a second: the demo's half takes 5 s


def stored_id(config: Path) -> str:
    """The only model in a node's store."""
    (found,) = (config.parent / "store" / "models").iterdir()
    return found.name


def trunk_only(folder: Path, model: Path, address: str) -> Path:
    """A node's config whose model's file is gone."""
    copy = folder / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    store = folder / "store"
    panal("init", "--dir", folder, "--model", copy, "--home-memory", "50%", "--peer", address)
    panal("model", "import", copy, "--store", store)
    copy.unlink()
    config = folder / "node.toml"
    model_id = stored_id(config)
    lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
    config.write_text(
        "".join(f'model = "{model_id}"\n' if line.startswith("model =") else line for line in lines),
        encoding="utf-8",
    )
    return config


def test_a_plan_is_carried_and_its_experts_are_fetched(demo_model: Path, tmp_path: Path) -> None:
    server, asking, carried = tmp_path / "server", tmp_path / "asking", tmp_path / "plan.json"
    asking.mkdir()
    panal("init", "--dir", server, "--serve", demo_model, "--listen", LOOPBACK)
    text = (server / "node.toml").read_text(encoding="utf-8")
    (server / "node.toml").write_text(
        text.replace("[swarm]", f"[swarm]\nshare_rate = {SLOW_RATE}", 1), encoding="utf-8"
    )
    with serving(server / "node.toml") as (_, address):
        config = trunk_only(asking, demo_model, address)
        refused = panal("home", "plan", "-c", config, code=2).stderr
        assert "its file is gone" in refused and "panal home use FILE" in refused and refused.count("\n") == 1
        made = panal(
            "home", "plan", demo_model, "--seconds", 8, "--store", tmp_path / "s", "-o", carried
        ).stdout
        assert f"copy {carried}" in made and "panal home use plan.json -c node.toml" in made
        used = panal("home", "use", carried, "-c", config, "--json")
        assert Path(json.loads(used.stdout)["plan"]).read_bytes() == carried.read_bytes()

        answer = panal("generate", "-c", config, "-p", "import os", "-n", 2, "--json")
        lacking = json.loads(answer.stdout)["home"]["lacking_bytes"]
        assert lacking > 0 and f"panal home fetch -c {config} gets it" in answer.stderr

        # Ended in the middle, it keeps what has come.
        command = [sys.executable, "-m", "node.cli.main", "home", "fetch", "-c", str(config), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        cells = config.parent / "store" / "models" / stored_id(config) / "cells"
        deadline = time.monotonic() + 60
        while not any(path.stat().st_blocks for path in cells.glob("*.cells")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - begun < END_SECONDS
        assert process.returncode == 130 and "Traceback" not in err and not out

        report = json.loads(panal("home", "fetch", "-c", config, "--json").stdout)
        assert report["complete"] and report["lacking_bytes"] == 0
        assert 0 < report["bytes"] < lacking and list(report["by_peer"]) == [address.rpartition("/")[2]]
    again = panal("home", "fetch", "-c", config).stdout
    assert again.startswith("the home set is complete (") and "fetched" not in again


def test_nobody_to_fetch_from(demo_model: Path, tmp_path: Path) -> None:
    server, asking = tmp_path / "server", tmp_path / "asking"
    asking.mkdir()
    panal("init", "--dir", server, "--serve", demo_model, "--listen", LOOPBACK)
    text = (server / "node.toml").read_text(encoding="utf-8")
    (server / "node.toml").write_text(
        text.replace("[swarm]", "[swarm]\nshare_cells = false", 1), encoding="utf-8"
    )
    with serving(server / "node.toml") as (_, address):
        config = trunk_only(asking, demo_model, address)
        failed = panal("home", "fetch", "-c", config, code=1)
    assert failed.stdout == "" and failed.stderr.count("\n") == 1
    assert "of the home set (24 experts) came from nobody: " in failed.stderr
    panal("init", "--dir", server, "--force", "--model", demo_model)
    assert "wants nothing at home" in panal("home", "fetch", "-c", server / "node.toml", code=2).stderr


def test_a_plan_of_another_model_is_refused(demo_model: Path, tmp_path: Path) -> None:
    plan, store = tmp_path / "plan.json", tmp_path / "s"
    panal("home", "plan", demo_model, "--seconds", 8, "--store", store, "-o", plan)
    text = plan.read_text(encoding="utf-8")
    model_id = json.loads(text)["model_id"]
    other = model_id[:-1] + ("0" if model_id[-1] != "0" else "1")
    kept = (store / "models" / model_id / "home-plan.json").read_bytes()
    plan.write_text(text.replace(model_id, other), encoding="utf-8")
    said = panal("home", "use", plan, "--store", store, code=2).stderr
    assert "no such model" in said and said.count("\n") == 1
    panal("init", "--dir", tmp_path, "--model", demo_model)
    said = panal("home", "use", plan, "-c", tmp_path / "node.toml", code=2).stderr
    assert f"it is model {other[:12]}'s" in said and said.count("\n") == 1
    assert (store / "models" / model_id / "home-plan.json").read_bytes() == kept
    said = panal("home", "plan", demo_model, "-o", demo_model, code=2).stderr
    assert "exists and is no home plan" in said


def test_the_rate_follows_the_line() -> None:
    rate = Rate()
    assert rate.told(0.0, 0, 50_000_000) == ""
    assert rate.told(0.5, 1_000_000, 49_000_000) == ""
    assert rate.told(2.0, 4_000_000, 46_000_000) == ", 1.9 MiB/s, 0:23 left"
    assert rate.told(20.0, 4_000_000, 46_000_000) == ""  # nothing comes any more
    assert rate.told(40.0, 5_000_000, 800_000_000).endswith(", 48.8 KiB/s, 4:26:40 left")
