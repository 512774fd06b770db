"""Expert servers in memory that compute real experts and speak the real wire format: for tests of the
star."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import trio
import trio.testing

from routing.dispatch.call import CallStats, MoeCall, WireSettings
from routing.dispatch.combine import add_slots, sum_pairs, sum_runs
from routing.dispatch.plan import HOME, Holder, LayerHolders, ServerCall
from routing.dispatch.star import ExpertPeer, Star
from routing.errors import PeerError
from routing.wire.codecs import Float32Array
from routing.wire.messages import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    RefusalCode,
    Refused,
    decode_message,
    encode_message,
    refusal_to,
)

N_EXPERTS, N_IN, N_OUT = 16, 40, 24
RUN = 4
LAYER = 11
MODEL_ID = bytes(range(32))

_rng = np.random.default_rng(42)
EXPERTS = _rng.standard_normal((N_EXPERTS, N_OUT, N_IN)).astype(np.float32)


def expert(number: int, row: Float32Array) -> Float32Array:
    """One expert on one row; the same bits whatever stands beside it."""
    result: Float32Array = np.maximum((EXPERTS[number] * row).sum(axis=1, dtype=np.float32), np.float32(-0.5))
    return result


def compute(x: Float32Array, counts: Iterable[int], experts: Iterable[int]) -> Float32Array:
    """Every pair's unweighted output, in pair order."""
    rows = np.repeat(np.arange(len(x)), list(counts))
    return np.stack([expert(number, x[row]) for row, number in zip(rows, experts, strict=True)])


def make_call(
    n_tokens: int = 5, n_used: int = 4, *, weighted: bool = True, seed: int = 0, run_length: int = 1
) -> MoeCall:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(N_EXPERTS)[:n_used] for _ in range(n_tokens)]).astype(np.int32)
    x = rng.standard_normal((n_tokens, N_IN)).astype(np.float32)
    weights = rng.random((n_tokens, n_used)).astype(np.float32) if weighted else None
    return MoeCall(MODEL_ID, LAYER, 0, x, ids, weights, N_OUT, run_length)


def pair_rows(call: MoeCall) -> Float32Array:
    """Every pair's row, weighted, [n_tokens, n_used, N_OUT]."""
    n_tokens, n_used = call.ids.shape
    laid = np.empty((n_tokens, n_used, N_OUT), np.float32)
    for token in range(n_tokens):
        for slot in range(n_used):
            row = call.x[token, slot] if call.row_per_pair else call.x[token]
            laid[token, slot] = expert(int(call.ids[token, slot]), row)
    if call.weights is not None:
        laid *= call.weights[:, :, None]
    return laid


def direct(call: MoeCall) -> Float32Array:
    """The call's result on one machine."""
    return add_slots(pair_rows(call))


def by_runs(call: MoeCall) -> Float32Array:
    """The call's result where combine is stable, by its definition."""
    totals = []
    for experts, rows in zip(call.ids.tolist(), pair_rows(call), strict=True):
        vectors: dict[int, Float32Array] = {}
        for expert, row in zip(experts, rows, strict=True):
            run = expert // call.run_length
            vectors[run] = vectors[run] + row if run in vectors else row
        first, *others = sorted(vectors)
        total = vectors[first]
        for run in others:
            total = total + vectors[run]
        totals.append(total)
    return np.stack(totals)


def promised(call: MoeCall, combine: Combine) -> Float32Array:
    """What rows and stable promise the bytes of, and what sum is near."""
    return by_runs(call) if combine is Combine.STABLE and not call.row_per_pair else direct(call)


def holders_for(call: MoeCall, combine: Combine, held: Mapping[str, Iterable[int]]) -> LayerHolders:
    """As the table has them."""
    holders = LayerHolders(LAYER, tuple(Holder.of(peer_id, experts) for peer_id, experts in held.items()))
    return holders.by_runs(call.run_length, N_EXPERTS) if combine is Combine.STABLE else holders


Trouble = Callable[[ExpertsRequest, ExpertsAnswer], ExpertsAnswer]


@dataclass
class Server:
    """An expert server in memory: what goes in and out passes through bytes.

    Attributes:
        delay: seconds before it answers.
        trouble: what happens to its answer instead: may raise.
        asked: the requests it saw.
        bytes_in, bytes_out: what its stream carried, length prefixes included.
        cancelled: requests that were given up while it worked on them.
    """

    peer_id: str
    delay: float = 0.0
    trouble: Trouble | None = None
    asked: list[ExpertsRequest] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0
    cancelled: int = 0
    path: str = "direct"
    rtt: float = 0.0

    async def call(self, request: ExpertsRequest) -> ExpertsAnswer:
        arrived = encode_message(request)
        self.bytes_in += 4 + len(arrived)
        seen = decode_message(arrived)
        assert isinstance(seen, ExpertsRequest)
        self.asked.append(seen)
        try:
            await trio.sleep(self.delay)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        y = compute(seen.x, seen.counts.tolist(), seen.experts.tolist())
        if seen.weights is not None:
            y *= seen.weights[:, None]
        if seen.combine is Combine.SUM:
            y = sum_pairs(y, seen.counts)
        elif seen.combine is Combine.STABLE:
            y = sum_runs(y, seen.counts, seen.experts, seen.run_length)
        answer = ExpertsAnswer(
            seen.call_id, seen.layer, seen.call_index, y, seen.codec_back, seen.combine, 1500, 3
        )
        if self.trouble is not None:
            try:
                return self.trouble(seen, answer)
            except Refused as refused:
                self.bytes_out += 4 + len(encode_message(refused.refusal))
                raise
        sent = encode_message(answer)
        self.bytes_out += 4 + len(sent)
        back = decode_message(sent)
        assert isinstance(back, ExpertsAnswer)
        return back


async def home(call: MoeCall, part: ServerCall) -> Float32Array:
    x, weights = call.part(part)
    y = compute(x, part.counts.tolist(), part.experts.tolist())
    return y if weights is None else y * weights[:, None]


def dispatch(
    call: MoeCall,
    servers: list[Server],
    held: Mapping[str, Iterable[int]],
    settings: WireSettings | None = None,
) -> tuple[Float32Array, CallStats]:
    """Run one dispatch to its end on the autojump clock."""
    peers: dict[str, ExpertPeer] = {server.peer_id: server for server in servers}
    how = settings or WireSettings()

    async def run() -> tuple[Float32Array, CallStats]:
        star = Star(peers.get, home if HOME in held else None)
        return await star.dispatch(call, holders_for(call, how.combine, held), how)

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


THIRDS = {"a": range(0, 16, 3), "b": range(1, 16, 3), "c": range(2, 16, 3)}


def gone(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    raise PeerError("connection lost", peer="b")


def overloaded(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    raise Refused(refusal_to(request, RefusalCode.OVERLOADED, "9 calls wait"), peer="b")


def nan(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    y = answer.y.copy()
    y[-1, -1] = np.nan
    return replace(answer, y=y)


def other_call(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    return replace(answer, call_id=answer.call_id + 1)


def short(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    return replace(answer, y=answer.y[:-1])


class Swarm:
    """Servers, and a star that keeps what it has learnt of them from call to call."""

    def __init__(self, *servers: Server) -> None:
        self.servers = {server.peer_id: server for server in servers}
        self.star = Star(self.servers.get)

    async def ask(
        self, held: Mapping[str, Iterable[int]], settings: WireSettings | None = None, seed: int = 0
    ) -> tuple[float, CallStats]:
        """One call: seconds it took, and what it cost. Its result must be what the mode promises."""
        call = make_call(seed=seed, run_length=RUN)
        begin = trio.current_time()
        settings = settings or WireSettings()
        holders = holders_for(call, settings.combine, held)
        result, stats = await self.star.dispatch(call, holders, settings)
        expected = promised(call, settings.combine)
        if settings.combine is Combine.SUM:
            assert np.allclose(result, expected, rtol=1e-5, atol=1e-5)
        else:
            assert result.tobytes() == expected.tobytes()
        return trio.current_time() - begin, stats


def on_a_mock_clock(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))
