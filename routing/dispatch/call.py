"""A MoE call to be dispatched, how to ask for it, and what it cost. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.dispatch.plan import ServerCall
from routing.errors import LocalError, PeerError
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine

DEFAULT_TIMEOUT = 10.0
"""Seconds for one server's answer: far above any honest one (a 512-token ubatch takes a laptop about 2 s)."""


@dataclass(frozen=True, eq=False)
class MoeCall:
    """One MoE call of a layer, as the hook hands it over.

    Attributes:
        model_id: 32 bytes.
        layer: block number.
        call_index: which MoE call of the layer.
        x: f32 [n_tokens, n_in]; or [n_tokens, n_used, n_in] where each slot has its own row (llama4, whose
            router weights the input).
        ids: int32 [n_tokens, n_used].
        weights: f32 [n_tokens, n_used], or None if the recipe does not weight after the experts.
        n_out: width of the result.
        run_length: experts of a run, as the manifest declares it; combine stable needs it.
    """

    model_id: bytes
    layer: int
    call_index: int
    x: Float32Array
    ids: npt.NDArray[np.int32]
    weights: Float32Array | None
    n_out: int
    run_length: int = 0

    @property
    def row_per_pair(self) -> bool:
        """True if each (token, slot) has its own row of x."""
        return self.x.ndim == 3

    def part(self, call: ServerCall) -> tuple[Float32Array, Float32Array | None]:
        """The rows of x [rows, n_in] and the weights [pairs] of one server's part."""
        x = self.x.reshape(-1, self.x.shape[-1])[call.rows]
        return x, None if self.weights is None else self.weights.reshape(-1)[call.pairs]


@dataclass(frozen=True)
class WireSettings:
    """How to ask.

    Attributes:
        codec: for x.
        codec_back: for the answers.
        combine: rows, sum or stable; see `combine_for`.
        timeout: seconds for each server's answer, sent along as its deadline: the hard one. How soon a peer
            counts as late, so that others are asked too, is measured (routing.estimates).
    """

    codec: Codec = Codec.F32
    codec_back: Codec = Codec.F32
    combine: Combine = Combine.ROWS
    timeout: float = DEFAULT_TIMEOUT


def combine_for(wanted: Combine, *, row_per_pair: bool) -> Combine:
    """How a call is combined: where each slot has its own row always as rows, as sums would save nothing."""
    return Combine.ROWS if row_per_pair else wanted


@dataclass(frozen=True)
class Failure:
    """A peer that did not do its part.

    Attributes:
        peer_id: which.
        reason: one line.
        error: the error itself.
    """

    peer_id: str
    reason: str
    error: PeerError


@dataclass(frozen=True)
class ServerStats:
    """One answered request.

    Attributes:
        peer_id: who answered.
        wait: seconds from sending to the checked answer.
        compute: seconds it says it computed.
        load: its load hint, milliseconds.
        pairs: (token, slot) pairs it computed.
        price: micro-credits that this node owes for it; 0 where nothing is priced.
    """

    peer_id: str
    wait: float
    compute: float
    load: int
    pairs: int
    price: int = 0


@dataclass
class CallStats:
    """What a call cost.

    Attributes:
        bytes_out: requests with their length prefixes, as streams carried them; failed ones too.
        bytes_back: answers and refusals, likewise.
        servers: answered requests, in order of arrival.
        failures: peers that failed.
        late: peers whose answer was not there when it should have been; it may have come after all.
        moved: parts of failed peers that were given to others.
        hedges, hedges_won: requests sent because another's answer was late; those whose answers were taken.
        home_pairs: pairs computed at home.
        waves: 0 if no peer was sent anything, 1 if all answered at once, 2 and more after failures and
            hedges.
    """

    bytes_out: int = 0
    bytes_back: int = 0
    servers: list[ServerStats] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    moved: int = 0
    hedges: int = 0
    hedges_won: int = 0
    home_pairs: int = 0
    waves: int = 0

    @property
    def trips(self) -> int:
        """1 if any peer was asked: the call's requests travel together."""
        return min(self.waves, 1)

    @property
    def price(self) -> int:
        """Micro-credits that all its answers cost, also those that were of no use."""
        return sum(server.price for server in self.servers)

    @property
    def slowest(self) -> ServerStats | None:
        """The answer that was waited for longest; None if no peer answered."""
        return max(self.servers, key=lambda server: server.wait, default=None)


def check_shapes(call: MoeCall) -> None:
    """See that x, ids and weights fit together.

    Raises:
        LocalError: naming the one that does not.
    """

    def wrong(what: str, found: npt.NDArray[Any], expected: str) -> LocalError:
        return LocalError(f"layer {call.layer}: {what} is {found.dtype} {list(found.shape)}, not {expected}")

    if call.ids.ndim != 2 or call.ids.size == 0:
        raise wrong("ids", call.ids, "[n_tokens, n_used]")
    if call.x.dtype != np.float32 or call.x.ndim not in (2, 3):
        raise wrong("x", call.x, "float32 [n_tokens, n_in]")
    if call.x.shape[:-1] != call.ids.shape[: call.x.ndim - 1]:
        raise wrong("x", call.x, f"a row for each of ids {list(call.ids.shape)}")
    if call.weights is not None and (
        call.weights.shape != call.ids.shape or call.weights.dtype != np.float32
    ):
        raise wrong("weights", call.weights, f"float32 {list(call.ids.shape)}")
