"""`wire = "auto"`: what `panal verify` finds of a wire is what `panal generate` goes by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.decode.wire_choice import cells_at_home, wire_for
from node.model.gates import Gate, record_gate
from routing.wire.codecs import Codec
from tests.integration.test_commands import LOOPBACK, panal, serving
from tests.model_parts import ModelParts
from tests.served import cells_of


@pytest.mark.slow
def test_verify_records_and_generate_goes_by_it(tmp_path: Path, demo_model: Path) -> None:
    panal("init", "--dir", tmp_path / "s", "--listen", LOOPBACK, "--serve", demo_model)
    with serving(tmp_path / "s" / "node.toml") as (_, address):
        panal("init", "--dir", tmp_path / "q", "--model", demo_model, "--peer", address)
        config = tmp_path / "q" / "node.toml"
        text = re.sub('^# wire = "f32"', 'wire = "auto"', config.read_text("utf-8"), flags=re.MULTILINE)
        text = re.sub('^# combine = "rows"', 'combine = "sum"', text, flags=re.MULTILINE)
        config.write_text(text, "utf-8")

        def generate() -> tuple[dict[str, Any], str]:
            done = panal("generate", "-c", config, "-p", "import os\n", "-n", "6", "--json")
            return json.loads(done.stdout), done.stderr

        plain, told = generate()
        assert plain["wire"] == "f32"
        assert told == (
            "panal: wire auto: f32; whether this model works with int8 and sum has not been verified here: "
            f"panal verify -c {config} --wire int8 --combine sum\n"
        )
        # Local servers of its own, the same store.
        store = ("--store", tmp_path / "q" / "store", "--servers", "1", "--batch", "64", "--json")
        verdict = json.loads(panal("verify", demo_model, "--wire", "int8", "--combine", "sum", *store).stdout)
        assert verdict["gate"] == 'recorded: wire = "auto" may use int8 with sum' and verdict["rows"] == 512
        small, told = generate()
        assert small["wire"] == "int8" and told == ""
        # One f32 row of 256 each way becomes 256 int8 with 8 f16 scales.
        per_token = [each["panal"]["bytes_per_token_layer"] for each in (plain, small)]
        assert per_token[0] - per_token[1] == pytest.approx(2 * (4 * 256 - (256 + 2 * 8)), abs=8)
        # What the config resolves to is what verify checks. By a bound nothing lossy meets it fails, and is
        # taken back.
        failed = panal("verify", "-c", config, "--batch", "64", "--min-cosine", "1", code=1).stdout
        assert re.search(r"^mode +sum, int8$", failed, re.MULTILINE)
        assert 'recorded: wire = "auto" does not use int8 with sum' in failed
        again, told = generate()
        assert again["wire"] == "f32" and again["tokens"] == plain["tokens"]
        assert "--wire f16 --combine sum" in told


def test_what_stays_at_home_is_counted(parts: Callable[..., ModelParts]) -> None:
    model = parts("demo")
    home = cells_of(model, [range(5)])
    assert cells_at_home(model.stored, home) == 5 * 4 and cells_at_home(model.stored, None) == 0
    record_gate(
        model.stored.folder,
        Gate(
            build=model.library.build_id(),
            trunk=model.stored.trunk.name,
            combine="rows",
            wire="int8",
            home=20,
            passed=True,
            rows=608,
            servers=1,
            cosine_mean=0.9999,
            argmax_agreement=0.99,
        ),
    )

    def chosen(wire: str, combine: str, experts: int) -> Codec:
        cells = cells_of(model, [range(experts)]) if experts else None
        return wire_for(wire, combine, model.stored, model.library, cells).codec

    assert chosen("auto", "rows", 5) is chosen("auto", "rows", 6) is Codec.INT8
    assert chosen("auto", "rows", 4) is chosen("auto", "rows", 0) is chosen("auto", "sum", 5) is Codec.F32
    assert chosen("f16", "rows", 5) is Codec.F16
