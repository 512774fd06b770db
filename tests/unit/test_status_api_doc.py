"""docs/status-api.md says what there is: every field of every object, every metric, and a true example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from node.status import facts
from node.status.metrics import exposition
from tests.metrics_text import read_metrics
from tests.status_facts import status

DOC = (Path(__file__).parents[2] / "docs" / "status-api.md").read_text(encoding="utf-8")

STRUCTS = [
    each for each in vars(facts).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)
]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: str(struct.__name__))
def test_fields_are_those_of_the_table(struct: type[msgspec.Struct]) -> None:
    section = DOC.split(f"\n### {struct.__name__}\n")[1].split("\n#")[0]
    told = re.findall(r"^\| ([a-z_]+) \|", section, re.MULTILINE)
    assert told == ["field", *(field.name for field in msgspec.structs.fields(struct))]


def test_the_example_is_a_status_with_something_in_every_field() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    told = msgspec.json.decode(block, type=facts.Status)
    assert told == status()
    assert set(msgspec.json.decode(block)) == {field.name for field in msgspec.structs.fields(facts.Status)}


def test_warning_codes_are_those_of_the_table() -> None:
    section = DOC.split("\n### Warning\n")[1]
    line = next(line for line in section.splitlines() if line.startswith("| code |"))
    assert re.findall(r"`([a-z-]+)`", line) == list(get_args(facts.WarningCode))


def test_metrics_are_those_of_the_table() -> None:
    section = DOC.split("\n## `GET /metrics`\n")[1]
    told = re.findall(r"^\| (panal_[a-z_]+) \| ([a-z_, ]*) ?\| (.+) \|$", section, re.MULTILINE)
    metrics = read_metrics(exposition(status(), connections=1))
    wanted = [
        (name, ", ".join(sorted({key for labels in metric.samples for key, _ in labels})), metric.text)
        for name, metric in metrics.items()
    ]
    assert [(name, labels.strip(), text) for name, labels, text in told] == wanted
