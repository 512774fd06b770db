"""combine = stable: whoever serves and whoever fails, no run is split and no bit changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.dispatch.combine import Part, add_runs, combine_stable, sum_runs
from routing.dispatch.plan import HOME, Holder, IntArray, LayerHolders, ServerCall, plan
from routing.wire.codecs import Float32Array

WIDTH = 5
PEERS = ("a", "b", "c", "d", "e")


@st.composite
def placements(draw: st.DrawFn) -> tuple[IntArray, int, LayerHolders]:
    """A router's choice, a run length, and holders: each run whole with one or two, parts with others.

    Costs of all kinds: calls that are slow to compute are spread over replicas.
    """
    n_experts, run_length = draw(st.integers(1, 20)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ids = rng.integers(0, n_experts, (draw(st.integers(1, 6)), draw(st.integers(1, 6))))
    names = (HOME, *PEERS)[draw(st.integers(0, 1)) :]
    held: dict[str, set[int]] = {name: set() for name in names}
    for start in range(0, n_experts, run_length):
        run = range(start, min(start + run_length, n_experts))
        for name in rng.choice(names, draw(st.integers(1, 3)), replace=False):
            held[str(name)].update(run)
        held[str(rng.choice(names))].add(int(rng.choice(run)))
    per_pair = draw(st.sampled_from([0.0, 0.001, 0.1]))
    made = []
    for name, experts in held.items():
        cost = 0.0 if name == HOME else float(rng.uniform(0, 0.05))
        if experts:
            made.append(replace(Holder.of(name, experts), cost=cost, per_pair=per_pair * bool(cost)))
    every = LayerHolders(0, tuple(sorted(made, key=lambda holder: holder.least)))
    return ids, run_length, every.by_runs(run_length, n_experts)


def rows_of(ids: IntArray, seed: int = 0) -> Float32Array:
    """A row for each pair, of many magnitudes: another order of additions shows."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-4, 5, (ids.size, WIDTH))
    return (rng.standard_normal((ids.size, WIDTH)) * scale).astype(np.float32)


def answered(calls: list[ServerCall], rows: Float32Array, run_length: int, wave: int) -> list[Part]:
    return [
        Part(call, sum_runs(rows[call.pairs], call.counts, call.experts, run_length), wave) for call in calls
    ]


def in_python(ids: IntArray, rows: Float32Array, run_length: int) -> bytes:
    """The definition, number by number."""
    result = np.empty((len(ids), WIDTH), np.float32)
    laid = rows.reshape(*ids.shape, WIDTH)
    for token in range(len(ids)):
        for column in range(WIDTH):
            runs: dict[int, np.float32] = {}
            for slot, expert in enumerate(ids[token].tolist()):
                run, value = expert // run_length, laid[token, slot, column]
                runs[run] = np.float32(runs[run] + value) if run in runs else value
            first, *rest = sorted(runs)
            total = runs[first]
            for run in rest:
                total = np.float32(total + runs[run])
            result[token, column] = total
    return result.tobytes()


@settings(max_examples=200)
@given(placements(), st.data())
def test_any_placement_and_any_failures_give_the_same_bytes(
    placed: tuple[IntArray, int, LayerHolders], data: st.DataObject
) -> None:
    ids, run_length, holders = placed
    rows = rows_of(ids)
    n_tokens, n_used = ids.shape
    expected = in_python(ids, rows, run_length)
    assert add_runs(rows, ids, run_length).tobytes() == expected

    calls = plan(ids, holders)
    parts: list[Part] = []
    for wave in range(3):
        owners: dict[int, str] = {}
        for call in calls:
            for run in set((call.experts // run_length).tolist()):
                assert owners.setdefault(run, call.peer_id) == call.peer_id
        failed = data.draw(st.sampled_from([None, *calls])) if wave < 2 else None
        parts += answered([call for call in calls if call is not failed], rows, run_length, wave)
        if failed is None:
            break
        # Whoever serves what: the rest of the swarm, as if it had come back with everything.
        lost = sum(1 << expert for expert in set(failed.experts.tolist()))
        left = holders.without(failed.peer_id, lost, "gone")
        spare = LayerHolders(0, (*left.holders, Holder.of("spare", range(20))), run_length=run_length)
        calls = plan(ids, spare, pairs=failed.pairs)
        holders = spare
    shuffled = data.draw(st.permutations(parts))
    assert combine_stable(shuffled, n_tokens, n_used, WIDTH, run_length).tobytes() == expected
