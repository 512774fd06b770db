"""combine = stable over real servers: the same bytes over 1, 2, 3 and 5 of them, whole runs placed at will,
and with one killed in the middle of a pass."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from node.config.shape import ServeTable
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.not_covered import NotCovered
from node.engine.expert_holes import ExpertInputs, ExpertPort
from node.engine.gate import LocalExperts
from node.inspection import runs as as_text
from node.local_swarm import LocalSwarm
from node.model.held import HeldExperts, hold
from node.model.slice_file import chunk_run
from node.serve.cells import Cells
from node.serve.server import ExpertServer
from node.swarm.place import Place
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine, RefusalCode, Refused
from tests.model_parts import ModelParts, rows
from tests.served import address_of, connected, request, run, serving
from tests.zoo import make_zoo

Parts = Callable[..., ModelParts]

EXPERTS, USED = 22, 6
RUNS = 8
"""Of three experts each, the last of one: what an import declares for 22."""

PROMPT, TOKENS = 9, 6

STABLE = BackboneSettings(threads=1, combine=Combine.STABLE, context=64, deadline=10.0)

Decoded = tuple[list[int], list[bytes]]
"""Greedy tokens after a prompt, and the logits of every row of every pass."""

Servers = Sequence[Iterable[int]]
"""The numbers of the runs that each server holds."""


def widened(name: str, path: Path, experts: int = EXPERTS, used: int = USED) -> Path:
    """A model of the zoo with more experts: enough for runs, and for the order of additions to show."""
    entry = make_zoo.zoo()[name]
    tensors = {}
    for tensor, shape in entry["tensors"].items():
        wide = "_exps." in tensor or "ffn_gate_inp." in tensor
        chunks = "_chexps." in tensor
        tensors[tensor] = [*shape[:-1], experts] if wide else [*shape[:-1], experts // 2] if chunks else shape
    kv = {**entry["kv"], "expert_count": experts, "expert_used_count": used}
    variant = f"{name}@wide"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(make_zoo.zoo(), variant, {**entry, "kv": kv, "tensors": tensors})
        make_zoo.make(variant, path)
    return path


@pytest.fixture(scope="module")
def wide(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> ModelParts:
    model = parts(widened("qwen3moe", tmp_path_factory.mktemp("wide") / "wide.gguf"))
    assert {call.run_length for call in model.manifest.calls} == {3}
    return model


def experts_of(numbers: Iterable[int], length: int, count: int) -> list[range]:
    return [range(number * length, min((number + 1) * length, count)) for number in numbers]


def cells_of_runs(model: ModelParts, numbers: Iterable[int]) -> Cells:
    """Cells of these whole runs, in all layers."""
    first = model.manifest.calls[0]
    cells = Cells()
    for experts in experts_of(numbers, first.run_length, first.n_experts):
        held: dict[tuple[int, str], HeldExperts] = {}
        for call in model.manifest.calls:
            mine = experts if call.index == 0 else chunk_run(experts, first.n_experts, call.n_experts)
            held[call.layer, call.group] = hold(model.mapped, call, mine)
        cells.add(model.stored.model_id, model.manifest, held)
    return cells


@asynccontextmanager
async def swarm(
    model: ModelParts,
    servers: Sequence[Cells],
    *,
    home: Cells | None = None,
    settings: BackboneSettings = STABLE,
) -> AsyncIterator[tuple[LiveBackbone, list[tuple[ExpertServer, Endpoint]]]]:
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(serving(model, cells)) for cells in servers]
        addresses = [address_of(endpoint) for _, endpoint in running]
        live = await stack.enter_async_context(
            live_backbone(
                model.library,
                model.stored,
                place=Place.among(addresses, identity=Identity.generate()),
                settings=settings,
                home=home,
            )
        )
        await live.covered(1.0)
        with trio.fail_after(30):  # all of them, that each takes its part
            while len(live.table.peers()) < len(servers):
                await trio.sleep(0.01)
        yield live, running


def decode(model: ModelParts, compute: Callable[[Any], Float32Array]) -> Decoded:
    known = model.tokens(PROMPT)
    logits = compute(rows(known))
    told = [logits.tobytes()]
    for _ in range(TOKENS):
        known.append(int(logits[-1].argmax()))
        logits = compute(rows(known[-1:], len(known) - 1))
        told.append(logits.tobytes())
    return known, told


class ByDefinition(ExpertPort):
    """Computes every pair here and adds as docs/protocol.md says, one vector after the other."""

    def __init__(self, model: ModelParts) -> None:
        self._model = model

    def leave(self, inputs: ExpertInputs) -> Float32Array:
        call, used = inputs.call, inputs.ids.shape[1]
        held = self._model.held[call.layer, call.group]
        counts = np.full(len(inputs.x), used, np.uint16)
        weights = None if inputs.weights is None else inputs.weights.reshape(-1)
        y = self._model.kernels.run(held, inputs.x, counts, inputs.ids.reshape(-1), weights)
        result = np.empty((len(inputs.ids), call.n_out), np.float32)
        for token, experts in enumerate(inputs.ids.tolist()):
            vectors: dict[int, Float32Array] = {}
            for slot, expert in enumerate(experts):
                number, row = expert // call.run_length, y[token * used + slot]
                vectors[number] = vectors[number] + row if number in vectors else row
            first, *others = sorted(vectors)
            total = vectors[first]
            for number in others:
                total = total + vectors[number]
            result[token] = total
        return result

    def enter(self, ticket: Float32Array) -> Float32Array:
        return ticket


def expected(model: ModelParts) -> Decoded:
    with model.backbone(ByDefinition(model), n_ctx=64) as backbone:
        return decode(model, backbone.run)


def found_over(
    model: ModelParts,
    servers: Servers,
    at_home: Iterable[int] = (),
    settings: BackboneSettings = STABLE,
    check: Callable[[LiveBackbone, list[tuple[ExpertServer, Endpoint]]], None] = lambda live, running: None,
) -> Decoded:
    found: list[Decoded] = []

    async def test() -> None:
        numbers = list(at_home)
        home = cells_of_runs(model, numbers) if numbers else None
        held = [cells_of_runs(model, numbers) for numbers in servers]
        async with swarm(model, held, home=home, settings=settings) as (live, running):
            found.append(await live.in_thread(decode, model, live.backbone.run))
            check(live, running)

    run(test)
    return found[0]


EVERY = range(RUNS)
PLACEMENTS: Mapping[str, tuple[Servers, Iterable[int]]] = {
    "1": ([EVERY], ()),
    "2, contiguous": ([range(4), range(4, 8)], ()),
    "2, scattered": ([EVERY[1::2], EVERY[::2]], ()),
    "3, contiguous": ([range(3), range(3, 5), range(5, 8)], ()),
    "3, scattered": ([EVERY[2::3], EVERY[::3], EVERY[1::3]], ()),
    "3, each run twice": ([[0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7], [3, 4, 5, 6, 7]], ()),
    "5, contiguous": ([[0], [1, 2], [3, 4], [5], [6, 7]], ()),
    "5, scattered": ([[0, 7], [3, 5], [1], [2, 6], [4]], ()),
    "2, some at home": ([range(2, 5), range(5, 8)], [0, 1]),
    "3, scattered, some at home": ([[0, 7], [5, 6], [2]], [1, 3, 4]),
    "1, all at home": ([EVERY], EVERY),
}


@pytest.fixture(scope="module")
def right(wide: ModelParts) -> Decoded:
    return expected(wide)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_same_bytes_over_any_servers(wide: ModelParts, right: Decoded, placement: str) -> None:
    servers, at_home = PLACEMENTS[placement]

    def check(live: LiveBackbone, running: list[tuple[ExpertServer, Endpoint]]) -> None:
        asked = [server.counts.pairs for server, _ in running]
        passes = PROMPT + TOKENS
        everything = 3 * passes * USED if len(list(at_home)) < RUNS else 0
        twice = live.port.ledger.hedges * PROMPT * USED  # on a busy machine answers are late now and then
        assert sum(asked) <= everything + twice
        if not list(at_home):
            assert everything <= sum(asked)
        if "twice" not in placement and everything:
            assert all(asked)
        assert all(server.counts.refused == 0 for server, _ in running)

    assert found_over(wide, servers, at_home, check=check) == right


def test_other_modes_can_tell_these_placements_apart(wide: ModelParts, right: Decoded) -> None:
    summed = dataclasses.replace(STABLE, combine=Combine.SUM)
    over = [
        found_over(wide, PLACEMENTS[name][0], settings=summed)[1] for name in ("2, scattered", "3, scattered")
    ]
    assert over[0] != over[1] and right[1] not in over


def test_stable_is_near_plain_llama(wide: ModelParts, right: Decoded) -> None:
    known, told = right
    with wide.plain(n_ctx=64) as plain:
        passes = [rows(known[:PROMPT])] + [rows([known[n]], n) for n in range(PROMPT, PROMPT + TOKENS)]
        for each, stable in zip(passes, told, strict=True):
            logits = plain.run(each)
            assert logits.tobytes() != stable
            a, b = logits.astype(float).ravel(), np.frombuffer(stable, np.float32).astype(float)
            assert 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 1e-9


@pytest.mark.parametrize("wire", [Codec.F16, Codec.INT8])
def test_lossy_wires_give_the_same_bytes_over_any_peers(
    wide: ModelParts, right: Decoded, wire: Codec
) -> None:
    settings = dataclasses.replace(STABLE, wire=wire)
    over = [
        found_over(wide, PLACEMENTS[name][0], settings=settings)[1]
        for name in ("1", "2, scattered", "5, contiguous")
    ]
    assert over[0] == over[1] == over[2] != right[1]


def test_a_second_call_and_chunk_experts(parts: Parts, tmp_path: Path) -> None:
    grove = parts(widened("grovemoe", tmp_path / "grove.gguf", 16, 5))
    assert {(call.group, call.run_length) for call in grove.manifest.calls} == {("exps", 2), ("chexps", 1)}
    right = expected(grove)
    assert found_over(grove, [EVERY]) == right
    assert found_over(grove, [EVERY[::2], EVERY[1::2]]) == right
    assert found_over(grove, [[0, 3], [6, 7], [2, 5]], at_home=[1, 4]) == right


def test_where_each_slot_has_its_row_it_is_rows(parts: Parts) -> None:
    llama4 = parts("llama4")
    with llama4.backbone(LocalExperts(llama4.kernels, llama4.held), n_ctx=64) as backbone:
        plain = decode(llama4, backbone.run)
    assert found_over(llama4, [EVERY[::2], EVERY[1::2]]) == plain
    assert found_over(llama4, [EVERY[3:]], at_home=[0, 1, 2]) == plain


def test_a_trained_model(parts: Parts, shared_dir: Path) -> None:
    trained = parts(shared_dir / "models" / "tiny-qwen3moe-32e4.Q8_0.gguf")
    assert {call.run_length for call in trained.manifest.calls} == {4}
    settings = dataclasses.replace(STABLE, context=128)
    right = expected(trained)
    assert found_over(trained, PLACEMENTS["3, scattered"][0], settings=settings) == right
    assert found_over(trained, [[0, 7], [5, 6], [2]], at_home=[1, 3, 4], settings=settings) == right


# --- what is refused -----------------------------------------------------------------------------


def test_runs_in_parts_are_told_before_anything_is_asked(wide: ModelParts) -> None:
    async def test() -> None:
        halves = []
        for experts in (range(10), range(10, 22)):  # the run of 9 to 11 is whole with nobody
            cells = Cells()
            held = {(c.layer, c.group): hold(wide.mapped, c, experts) for c in wide.manifest.calls}
            cells.add(wide.stored.model_id, wide.manifest, held)
            halves.append(cells)
        with pytest.RaisesGroup(NotCovered, flatten_subgroups=True, allow_unwrapped=True) as caught:
            async with swarm(wide, halves):
                pass
        told = repr(caught.value)
        assert "layers 0-2: experts 9-11 in whole runs of 3 (combine = stable)" in told
        assert "serve them whole, or use combine = rows or sum" in told
        rows_settings = dataclasses.replace(STABLE, combine=Combine.ROWS)
        async with swarm(wide, halves, settings=rows_settings) as (live, _):
            await live.in_thread(live.backbone.run, rows(wide.tokens(2)))

    run(test)


@pytest.mark.parametrize("length", [1, 2, 4, 65_535])
def test_a_server_knows_its_runs(wide: ModelParts, length: int) -> None:
    async def test() -> None:
        async with (
            serving(wide, cells_of_runs(wide, EVERY)) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            peer = QuicExpertPeer(connection)
            asked = request(wide, experts=(7, 0, 21, 6, 1), combine=Combine.STABLE, run_length=length)
            with pytest.raises(Refused, match=f"layer 0 has runs of 3 experts, not of {length}") as caught:
                await peer.call(asked)
            assert caught.value.refusal.code is RefusalCode.MALFORMED
            right = await peer.call(dataclasses.replace(asked, run_length=3))
            y = (await peer.call(dataclasses.replace(asked, combine=Combine.ROWS, run_length=0))).y
            by_pair = y.reshape(3, 5, -1)
            vectors = [[each[1] + each[4], each[0] + each[3], each[2]] for each in by_pair]
            assert right.y.tobytes() == np.array(vectors).tobytes()
            assert (server.counts.calls, server.counts.refused) == (2, 1)
            assert "stable" in server.holdings.combines

    run(test)


# --- who dies ------------------------------------------------------------------------------------


class Strike(ExpertPort):
    """Kills who will be asked for a layer's first run, between two layers of a pass."""

    def __init__(self, port: ExpertPort) -> None:
        self.port = port
        self.live: LiveBackbone | None = None
        self.kill: Callable[[str], None] | None = None

    def leave(self, inputs: ExpertInputs) -> Any:
        if self.kill is not None and inputs.call.layer == 1:
            assert self.live is not None
            kill, self.kill = self.kill, None
            kill(self.live.table.holders(1, 0).holders[0].peer_id)
        return self.port.leave(inputs)

    def enter(self, ticket: Any) -> Any:
        return self.port.enter(ticket)


@pytest.mark.slow
@pytest.mark.parametrize("struck", [1, 4], ids=["in the prompt", "in a token"])
def test_a_server_killed_in_the_middle_of_a_pass(
    wide: ModelParts, right: Decoded, tmp_path: Path, struck: int
) -> None:
    def table(numbers: Iterable[int]) -> list[ServeTable]:
        held = [expert for run in experts_of(numbers, 3, EXPERTS) for expert in run]
        return [ServeTable(model=str(wide.path), experts=as_text(held))]

    with LocalSwarm(tmp_path, wide.store.root, threads=1) as servers:
        # Each run with two of them, and no two of them with the same.
        servers.start_with([table(each) for each in (range(4), range(4, 8), EVERY[::2], EVERY[1::2])])
        numbers = {str(address.peer_id): number for number, address in enumerate(servers.addresses)}
        killed: list[str] = []

        def kill(peer_id: str) -> None:
            servers.kill(numbers[peer_id])
            killed.append(peer_id)

        async def test() -> None:
            strikes: list[Strike] = []

            def watch(port: ExpertPort) -> ExpertPort:
                strikes.append(Strike(port))
                return strikes[0]

            async with live_backbone(
                wide.library,
                wide.stored,
                place=Place.among(servers.addresses, identity=Identity.generate()),
                settings=STABLE,
                watch=watch,
            ) as live:
                strikes[0].live = live
                await live.covered()
                with trio.fail_after(30):
                    while len(live.table.peers()) < 4:
                        await trio.sleep(0.02)

                passes = 0

                def compute(each: Any) -> Float32Array:
                    nonlocal passes
                    passes += 1
                    if passes == struck:
                        strikes[0].kill = kill
                    return live.backbone.run(each)

                assert await live.in_thread(decode, wide, compute) == right
                faults = live.port.ledger.late + live.port.ledger.failures
                assert len(killed) == 1 and faults[killed[0]] >= 1

        run(test, seconds=60)
