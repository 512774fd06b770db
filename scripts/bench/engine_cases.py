"""Tokens per second of one model run three ways, in turns on one thread.

    plain   stock llama.cpp on the whole file, use_extra_bufts off
    home    panal, all experts computed by the backbone's own process
    swarm   panal, all experts computed by expert servers: processes of their own, QUIC over loopback

All have the same number of threads (each server too), the same tokens at the same positions and therefore
the same experts to compute. A round is a run of single-token passes by each way; the order is
reversed from round to round, so that what another process does to the machine falls on all alike.
A ratio is the median of the rounds' ratios: only what ran side by side is compared.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from node.decode.ledger import PassDone, TripsReport
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.engine.context import Context, Row
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.local_swarm import LocalSwarm
from node.model.gguf.map import MappedModel
from node.model.store import StoredModel
from node.serve.cells import Cells
from node.swarm.place import Place
from node.verify.comparison import held_whole
from routing.identity import Identity
from routing.wire.codecs import Float32Array
from scripts.bench.engine_memory import Resident, ServerMemory, resident

PROMPT = 8  # tokens before the first timed pass: attention reads a cache that is not empty
PREFILLS = (64, 512)  # tokens
PREFILL_ROUNDS = 2
TOKENS_SEED = 4190

Compute = Callable[[Sequence[Row]], Float32Array]


@dataclass
class Way:
    """One way to run the model, and what its rounds took."""

    name: str
    run: Compute
    clear: Callable[[], None]
    decode: list[float]  # seconds a token, one figure a round
    cpu: list[float]  # the same of this process's CPU time
    prefill: dict[int, list[float]]  # tokens -> seconds

    @classmethod
    def of(cls, name: str, run: Compute, clear: Callable[[], None]) -> Way:
        return cls(name, run, clear, [], [], {size: [] for size in PREFILLS})


@dataclass(frozen=True)
class Speeds:
    """What `measure` found at one thread count.

    Attributes:
        decode: way -> tokens a second, median of the rounds.
        decode_rounds: way -> tokens a second of each round.
        ratio: way -> its speed over plain's, median of the rounds' ratios.
        cpu_ratio: plain's CPU time over home's, both in this process: other processes disturb it less.
        prefill: tokens -> way -> tokens a second, the best round.
        identical: way -> its logits are byte-identical with plain's in every compared pass.
        trips: the swarm's ledger over its decode passes.
    """

    threads: int
    decode: dict[str, float]
    decode_rounds: dict[str, list[float]]
    ratio: dict[str, float]
    cpu_ratio: float
    prefill: dict[int, dict[str, float]]
    identical: dict[str, bool]
    trips: TripsReport
    memory: list[ServerMemory]


def measure(
    library: Library,
    stored: StoredModel,
    mapped: MappedModel,
    folder: Path,
    *,
    store: Path,
    threads: int,
    servers: int,
    rounds: int,
    tokens: int,
) -> Speeds:
    """Run all ways at one thread count.

    Args:
        folder: empty; the servers' configs and logs go there.
        rounds, tokens: rounds of decoding, and tokens of each way in a round.
    """
    path = mapped.model.path
    with LocalSwarm(folder, store, threads=threads) as swarm, LlamaModel(library, [path]) as model:
        swarm.start(path, stored.manifest, servers)
        processes = [process.pid for process in swarm.processes()]
        snapshots: list[list[Resident]] = []

        def look() -> None:
            snapshots.append([resident(pid) for pid in processes])

        look()
        context = max(PROMPT + rounds * tokens, max(PREFILLS)) + PROMPT
        settings = BackboneSettings(threads=threads, context=context, ubatch=max(PREFILLS))
        cells = Cells()
        cells.add(stored.model_id, stored.manifest, held_whole(mapped, stored.manifest))

        async def run() -> Speeds:
            async with (
                _open(library, stored, settings, folder / "home.key", cells, []) as home,
                _open(library, stored, settings, folder / "asks.key", None, swarm.addresses) as asks,
            ):
                await asks.covered()
                with Context(model, n_ctx=context, n_ubatch=max(PREFILLS), threads=threads) as plain:
                    ways = [
                        Way.of("plain", plain.run, plain.clear),
                        Way.of("home", home.backbone.run, home.backbone.context.clear),
                        Way.of("swarm", _counted(asks), asks.backbone.context.clear),
                    ]
                    # One thread for all: OpenMP keeps a team of spinning helpers for each thread that asks.
                    identical = await trio.to_thread.run_sync(_rounds, ways, model.n_vocab, rounds, tokens)
                    look()
                    trips = asks.port.ledger.report()
                    await trio.to_thread.run_sync(_prefills, ways, model.n_vocab)
                    look()
            share = sum(call.bytes_per_cell * call.n_experts for call in stored.manifest.calls) // servers
            memory = [ServerMemory(share, *moments) for moments in zip(*snapshots, strict=True)]
            return _speeds(threads, ways, identical, trips, memory)

        return trio.run(run)


@asynccontextmanager
async def _open(
    library: Library,
    stored: StoredModel,
    settings: BackboneSettings,
    key: Path,
    home: Cells | None,
    peers: Sequence[Any],
) -> AsyncIterator[LiveBackbone]:
    async with live_backbone(
        library,
        stored,
        place=Place.among(peers, identity=Identity.load_or_create(key)),
        settings=settings,
        home=home,
    ) as live:
        yield live


def _counted(live: LiveBackbone) -> Compute:
    def run(rows: Sequence[Row]) -> Float32Array:
        result = live.backbone.run(rows)
        live.port.ledger.count_pass(PassDone(len(rows)))
        return result

    return run


def _rounds(ways: Sequence[Way], n_vocab: int, rounds: int, tokens: int) -> dict[str, bool]:
    ids = random_tokens(n_vocab, PROMPT + rounds * tokens)
    identical = {way.name: True for way in ways}
    for way in ways:
        way.run([Row(token, i, wanted=i == PROMPT - 1) for i, token in enumerate(ids[:PROMPT])])
    for number in range(rounds):
        start = PROMPT + number * tokens
        found: dict[str, Float32Array] = {}
        for way in ways if number % 2 == 0 else ways[::-1]:
            begun, cpu = time.perf_counter(), time.process_time()
            for position in range(start, start + tokens):
                logits = way.run([Row(ids[position], position)])
            way.decode.append((time.perf_counter() - begun) / tokens)
            way.cpu.append((time.process_time() - cpu) / tokens)
            found[way.name] = logits
        for name, logits in found.items():
            identical[name] &= (
                bool(np.isfinite(logits).all()) and logits.tobytes() == found["plain"].tobytes()
            )
    return identical


def _prefills(ways: Sequence[Way], n_vocab: int) -> None:
    for number in range(PREFILL_ROUNDS):
        for size in PREFILLS:
            rows = [
                Row(token, i, wanted=i == size - 1) for i, token in enumerate(random_tokens(n_vocab, size))
            ]
            for way in ways if number % 2 == 0 else ways[::-1]:
                way.clear()
                begun = time.perf_counter()
                way.run(rows)
                way.prefill[size].append(time.perf_counter() - begun)


def random_tokens(n_vocab: int, count: int) -> list[int]:
    ids: npt.NDArray[np.int64] = np.random.default_rng(TOKENS_SEED).integers(0, n_vocab, count)
    return [int(token) for token in ids]


def _speeds(
    threads: int,
    ways: Sequence[Way],
    identical: dict[str, bool],
    trips: TripsReport,
    memory: list[ServerMemory],
) -> Speeds:
    plain = ways[0].decode
    return Speeds(
        threads=threads,
        decode={way.name: 1 / median(way.decode) for way in ways},
        decode_rounds={way.name: [1 / seconds for seconds in way.decode] for way in ways},
        ratio={way.name: median(p / s for p, s in zip(plain, way.decode, strict=True)) for way in ways},
        cpu_ratio=median(p / s for p, s in zip(ways[0].cpu, ways[1].cpu, strict=True)),
        prefill={size: {way.name: size / min(way.prefill[size]) for way in ways} for size in PREFILLS},
        identical=identical,
        trips=trips,
        memory=memory,
    )
