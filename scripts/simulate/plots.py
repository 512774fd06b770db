"""The pictures of a simulation, as PNG files. Needs matplotlib (extra `dev`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")  # before pyplot: no window is wanted
from matplotlib import pyplot

from scripts.simulate.timeline import Run
from scripts.simulate.world import Scenario

COLOURS = {"random": "tab:gray", "uniform": "tab:orange", "market": "tab:blue", "central": "tab:green"}


def draw(scenario: Scenario, runs: Sequence[Run], base: float, folder: Path) -> list[Path]:
    """Write coverage.png, load.png, touched.png, replicas.png, prices.png and moves.png; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _lines(scenario, runs, "coverage", "cells that a live server holds, %", 100, folder / "coverage.png"),
        _lines(
            scenario,
            runs,
            "split",
            "largest load over mean load, split as well as can be",
            1,
            folder / "load.png",
        ),
        _lines(
            scenario,
            runs,
            "most",
            "largest load over mean load, as backbones choose",
            1,
            folder / "routed.png",
        ),
        _lines(scenario, runs, "touched", "servers asked, a token and layer", 1, folder / "touched.png"),
        _lines(scenario, runs, "moved", "MB taken up by a server in a period", 1e-6, folder / "moves.png"),
        _replicas(runs, folder / "replicas.png"),
        _prices(scenario, runs, base, folder / "prices.png"),
    ]


def _lines(scenario: Scenario, runs: Sequence[Run], name: str, label: str, scale: float, path: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for run in runs:
        values = np.array(getattr(run, name)) * scale
        known = np.flatnonzero(~np.isnan(values))
        axes.plot(known, values[known], label=run.name, color=COLOURS.get(run.name), linewidth=1.4)
    _mark(axes, scenario)
    axes.set_ylabel(label)
    axes.legend()
    return _save(figure, path)


def _replicas(runs: Sequence[Run], path: Path) -> Path:
    figure, panels = pyplot.subplots(1, len(runs), figsize=(4 * len(runs), 4), sharey=True, squeeze=False)
    for axes, run in zip(panels[0], runs, strict=True):
        axes.loglog(run.demand, np.maximum(run.replicas, 0.5), ".", markersize=2, color=COLOURS.get(run.name))
        axes.set_title(run.name)
        axes.set_xlabel("pairs a second asked of the cell")
    panels[0][0].set_ylabel("live replicas at the end of the calm")
    return _save(figure, path)


def _prices(scenario: Scenario, runs: Sequence[Run], base: float, path: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for run in runs:
        if not any(run.paid):
            continue
        prices = np.array(run.prices) / base * 100
        for low, high, shade in ((5, 95, 0.15), (25, 75, 0.3)):
            bounds = np.nanpercentile(prices, [low, high], axis=1)
            axes.fill_between(
                range(len(prices)), bounds[0], bounds[1], color=COLOURS.get(run.name), alpha=shade, lw=0
            )
        axes.plot(
            np.nanmedian(prices, axis=1),
            color=COLOURS.get(run.name),
            label="median cell (bands: 50 and 90 % of cells)",
        )
    axes.set_yscale("log")
    axes.set_ylabel("price, % of the base price")
    _mark(axes, scenario)
    axes.legend()
    return _save(figure, path)


def _mark(axes: Any, scenario: Scenario) -> None:
    axes.set_xlabel("advert periods")
    marks = [(scenario.calm, "drift, coming and going")] + [(scenario.vanish, "30 % vanish")] * bool(
        scenario.vanish
    )
    for period, text in marks:
        axes.axvline(period, color="black", linewidth=0.6, linestyle=":")
        axes.annotate(
            text, (period, 1), xycoords=("data", "axes fraction"), fontsize=7, va="top", rotation=90
        )


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path
