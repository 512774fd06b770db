"""Cells as runs."""

from __future__ import annotations

Runs = list[tuple[int, int, list[tuple[int, int]]]]
"""Cells, compactly: [first layer, last layer, [[first expert, last expert], ...]] each, both included; as in
`/panal/slices/1`."""

MAX_RUNS_NAMED = 6
"""Runs of missing cells that a line names."""


def runs_in_words(runs: Runs) -> str:
    """Cells for people: "layers 0-3: experts 4-7; layer 5: experts 0, 2"."""

    def span(first: int, last: int) -> str:
        return str(first) if first == last else f"{first}-{last}"

    parts = [
        f"layer{'' if first == last else 's'} {span(first, last)}: "
        f"experts {', '.join(span(*run) for run in experts[:MAX_RUNS_NAMED])}"
        + (", ..." if len(experts) > MAX_RUNS_NAMED else "")
        for first, last, experts in runs[:MAX_RUNS_NAMED]
    ]
    return "; ".join(parts) + ("; ..." if len(runs) > MAX_RUNS_NAMED else "")
