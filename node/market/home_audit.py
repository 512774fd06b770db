"""This node's own cells, to compute calls again that others have answered: those at home, and those in files
here.

A backbone whose model file lies on its disk can check any call, however little of it has room in memory: the
file is mapped, and read where an audit needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import trio

from node.config import ModelRef
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.model.gguf.map import MappedModel
from node.model.held import hold
from node.model.store import Store, StoredModel
from node.serve.cells import Cells, HeldCall
from node.serve.opening import open_whole
from routing.dispatch.combine import sum_pairs, sum_runs
from routing.errors import LocalError
from routing.wire.codecs import Codec, Float32Array, decode, encode
from routing.wire.experts import Combine, ExpertsRequest

THREADS = 1
"""Of an audit's computing: it must not be in the way of anything."""


class HomeAudit:
    """A context manager; `compute` on the event loop.

    Args:
        home: what is at home now.
        stored: the model; if its file is here unchanged, all of its cells can be computed.
    """

    def __init__(self, library: Library, stored: StoredModel, home: Callable[[], Cells]) -> None:
        self._home = home
        self._ends = ExitStack()
        self._files = Cells()
        self._kernels = Kernels(library, threads=THREADS)
        self._ends.callback(self._kernels.close)
        self._thread = trio.CapacityLimiter(1)
        self.build = library.build_id()
        try:
            whole = _whole_file(library, stored)
            if whole is not None:
                self._ends.enter_context(whole)
                self._files.add(
                    stored.model_id,
                    stored.manifest,
                    {
                        (call.layer, call.group): hold(whole, call, range(call.n_experts))
                        for call in stored.manifest.calls
                    },
                )
        except BaseException:
            self._ends.close()
            raise

    def __enter__(self) -> HomeAudit:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def held(self, request: ExpertsRequest) -> int:
        """The experts of the call's layer that can be computed here, as bits."""
        call = self._find(request)
        if call is None:
            return 0
        if call.is_whole:
            return (1 << call.call.n_experts) - 1
        return sum(1 << expert for expert in call.experts())

    async def compute(self, request: ExpertsRequest) -> Float32Array:
        """The answer, as it would come off the wire. All its experts must be held.

        Raises:
            LocalError: they are not any more, or the kernels failed.
        """
        return await trio.to_thread.run_sync(self._compute, request, limiter=self._thread)

    def _find(self, request: ExpertsRequest) -> HeldCall | None:
        key = (request.model_id, request.layer, request.call_index)
        return self._files.find(*key) or self._home().find(*key)

    def _compute(self, request: ExpertsRequest) -> Float32Array:
        call = self._find(request)
        if call is None or call.missing(request.experts):
            raise LocalError(f"layer {request.layer}: experts to be checked are not here any more")
        x = _as_sent(request.codec, request.x)
        y = call.compute(self._kernels, x, request.counts, request.experts, request.weights)
        if request.combine is Combine.SUM:
            y = sum_pairs(y, request.counts)
        elif request.combine is Combine.STABLE:
            y = sum_runs(y, request.counts, request.experts, request.run_length)
        return _as_sent(request.codec_back, y)


def _as_sent(codec: Codec, values: Float32Array) -> Float32Array:
    """What arrives of these values."""
    return decode(codec, encode(codec, values), *values.shape)


def _whole_file(library: Library, stored: StoredModel) -> MappedModel | None:
    """The model's own file, if it is here and unchanged."""
    try:
        store = Store(stored.folder.parent.parent)
        found, model = open_whole(library, store, ModelRef(model_id=stored.model_id))
        return MappedModel(model) if found.model_id == stored.model_id else None
    except LocalError:
        return None
