"""A strict reader of Prometheus' text exposition format 0.0.4: whatever breaks a rule is an error.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (.+)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
_ESCAPE = re.compile(r'\\(["\\n])')

Labels = tuple[tuple[str, str], ...]


@dataclass
class Metric:
    """A family as it was read."""

    kind: str
    text: str
    samples: dict[Labels, float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        """The sample with exactly these labels."""
        return self.samples[tuple(sorted(labels.items()))]


def read_metrics(text: str) -> dict[str, Metric]:
    """By name.

    Raises:
        ValueError: at the first line that is not as the format has it.
    """
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    found: dict[str, Metric] = {}
    pending: tuple[str, str] | None = None
    current = ""
    for line in text[:-1].split("\n"):
        if told := _HELP.fullmatch(line):
            if told[1] in found:
                raise ValueError(f"{told[1]} comes twice")
            pending = (told[1], told[2])
        elif told := _TYPE.fullmatch(line):
            if pending is None or pending[0] != told[1]:
                raise ValueError(f"TYPE of {told[1]} without its HELP before it")
            if (told[2] == "counter") != told[1].endswith("_total"):
                raise ValueError(f"{told[1]} is a {told[2]}")
            found[told[1]] = Metric(told[2], pending[1])
            pending, current = None, told[1]
        elif told := _SAMPLE.fullmatch(line):
            if told[1] != current or pending is not None:
                raise ValueError(f"a sample of {told[1]} outside its family")
            labels = _labels(told[2])
            samples = found[current].samples
            if labels in samples:
                raise ValueError(f"{line} comes twice")
            samples[labels] = float(told[3])
        else:
            raise ValueError(f"no line of this format: {line!r}")
    if pending is not None or any(not metric.samples for metric in found.values()):
        raise ValueError("a family without samples")
    return found


def _labels(text: str | None) -> Labels:
    found: dict[str, str] = {}
    rest = text or ""
    while rest:
        told = _LABEL.match(rest)
        if told is None or told[1] in found:
            raise ValueError(f"labels {text!r}")
        found[told[1]] = _ESCAPE.sub(lambda mark: "\n" if mark[1] == "n" else mark[1], told[2])
        rest = rest[told.end() :]
        if told[3] == "," and not rest:
            raise ValueError(f"labels {text!r} end with a comma")
    return tuple(sorted(found.items()))
