"""`panal verify` on a configured swarm: opens both sides, compares, judges."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec
import trio

from node.config import NodeConfig
from node.decode.live_backbone import BackboneSettings, live_backbone
from node.decode.wire_choice import cells_at_home, wire_for
from node.engine import library as llama
from node.engine.expert_holes import ExpertPort
from node.engine.kernels import Kernels
from node.importing import Progress
from node.model.gguf.map import MappedModel
from node.model.store import Store
from node.serve.opening import open_cells, open_whole
from node.swarm.place import Place
from node.verify.comparison import Bounds, ErrorPort, Verdict, held_whole, judge, plan_batches, verify
from node.verify.gate_record import keep_verdict
from routing.wire.experts import Combine

MIN_CONTEXT = 256  # tokens; llama.cpp pads smaller caches anyway


async def check_swarm(
    config: NodeConfig,
    *,
    combine: str | None,
    wire: str | None,
    batches: tuple[int, ...],
    bounds: Bounds,
    progress: Progress | None = None,
) -> Verdict:
    """Compare the config's peers with plain llama.cpp on the whole file, which must be here.

    Args:
        combine, wire: instead of the config's; a wire of auto is what `panal generate` would use.

    Cells that the config serves are computed at home, as `panal generate` would. What is found of a lossy
    wire is kept in the store.
    """
    say = progress or (lambda what, done, total: None)
    wanted = config.require_backbone()
    mode = Combine[(combine or wanted.combine).upper()]
    place = Place.of(config)
    library = llama.load(config.engine.library)
    stored, model = await trio.to_thread.run_sync(
        open_whole, library, Store(config.store), wanted.model, progress
    )
    rows = max(sum(sizes) for sizes in plan_batches(batches))
    whole = tuple(part.path for part in model.parts)
    with ExitStack() as opened:
        mapped = opened.enter_context(MappedModel(model))
        kernels = Kernels(library, threads=config.engine.threads)
        opened.callback(kernels.close)
        watch: list[ErrorPort] = []

        home = None
        if config.serve:
            home = opened.enter_context(
                await trio.to_thread.run_sync(
                    open_cells, library, Store(config.store), config.serve, progress
                )
            ).cells
        choice = wire_for(wire or wanted.wire, mode.name.lower(), stored, library, home)
        settings = BackboneSettings(
            threads=config.engine.threads,
            combine=mode,
            wire=choice.codec,
            context=max(rows, MIN_CONTEXT),
            ubatch=max(batches),
            deadline=wanted.deadline,
        )

        def wrap(port: ExpertPort) -> ExpertPort:
            watch.append(ErrorPort(port, kernels, held_whole(mapped, stored.manifest)))
            return watch[0]

        async with live_backbone(
            library,
            stored,
            place=place,
            settings=settings,
            home=home,
            watch=wrap,
        ) as live:
            await live.covered()
            comparison, report = await live.in_thread(
                lambda: verify(
                    live,
                    library,
                    whole,
                    watch[0],
                    batches=batches,
                    threads=settings.threads,
                    progress=lambda what: say(what, 0, 0),
                )
            )
            routes = live.routes()
    verdict = judge(
        comparison,
        report,
        stored.manifest,
        servers=len(routes),
        combine=mode,
        wire=choice.codec,
        worst_layer=watch[0].worst_layer(),
        bounds=bounds,
    )
    verdict = msgspec.structs.replace(verdict, routes=routes)
    gate = keep_verdict(verdict, stored, library, home=cells_at_home(stored, home))
    return msgspec.structs.replace(verdict, gate=gate)
