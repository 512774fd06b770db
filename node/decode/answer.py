"""One answer from a configured backbone: text as it comes, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from market.budget import Reached
from node.decode.ledger import PassDone, TripsReport, cost_rows
from node.decode.live_backbone import LiveBackbone
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import TextStream, Tokenizer
from node.importing import Progress


@dataclass(frozen=True)
class Answer:
    """A finished answer.

    Attributes:
        prompt_seconds: from the first pass to the first token.
        seconds: from the first pass to the last token.
        routes: how each holder was reached at the end.
        wire: how hidden states travelled; what `auto` came to.
        home: what was computed here and why; empty where nobody chose.
        stopped: "end" (the model ended it), "length" (as many tokens as asked), "context" (it is full) or
            "budget" (it, or the day, has cost as much as it may; `budget` says which, in a line).
    """

    text: str
    model_id: str
    prompt_tokens: int
    tokens: list[int]
    prompt_seconds: float
    seconds: float
    stopped: str
    trips: TripsReport
    routes: list[dict[str, object]]
    wire: str
    home: dict[str, Any]
    budget: str = ""
    used: Mapping[str, float] = field(default_factory=dict)
    """When each peer that it rests on has answered last, by `time.perf_counter`."""

    @property
    def tokens_per_second(self) -> float:
        """Of generation, the prompt not counted."""
        spent = self.seconds - self.prompt_seconds
        return (len(self.tokens) - 1) / spent if len(self.tokens) > 1 and spent > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "text": self.text,
            "model_id": self.model_id,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            "stopped": self.stopped,
            "prompt_seconds": round(self.prompt_seconds, 4),
            "seconds": round(self.seconds, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "wire": self.wire,
            "panal": msgspec.to_builtins(self.trips),
            "home": self.home,
            "routes": self.routes,
        }


def answer(
    live: LiveBackbone,
    prompt: str,
    limit: int,
    sampling: SamplingSettings,
    on_text: Callable[[str], None],
    progress: Progress = lambda what, done, total: None,
) -> Answer:
    """Generate, on the calling thread (not the event loop's).

    Args:
        limit: tokens at most.
        on_text: called with each piece of text as it comes.
        progress: told of a prompt that takes several passes.

    Raises:
        UsedUp: the day has cost as much as it may.
        Spoiled: a peer was found out that has computed some of it.
        PanalError: a pass failed.
    """
    backbone = live.backbone
    started = time.perf_counter()
    backbone.context.remove(0, 0)  # what was asked before may rest on false answers
    purse, ledger = live.port.purse, live.port.ledger
    purse.check(time.time())
    before = ledger.cost
    tokenizer = Tokenizer(backbone.model)
    prompt_tokens = tokenizer.encode(prompt)
    done = 0

    def used() -> dict[str, float]:
        return {peer_id: at for peer_id, at in ledger.used.items() if at >= started}

    def on_pass(passed: PassDone) -> None:
        nonlocal done
        spoiling = live.port.convictions.against(used())
        if spoiling is not None:
            raise spoiling.error()
        done += passed.rows
        live.port.ledger.count_pass(passed)
        if done < len(prompt_tokens):
            progress(f"reading the prompt: {done} of {len(prompt_tokens)} tokens", 0, 0)

    def reached() -> Reached:
        return purse.reached(ledger.cost - before, time.time())

    session = live.session(on_pass=on_pass, is_over=lambda: bool(reached()))
    session.append(prompt_tokens)
    sampler = Sampler(backbone.model.library, sampling)
    stream = TextStream(tokenizer)
    begun = time.perf_counter()
    first = begun
    parts: list[str] = []
    tokens: list[int] = []

    def emit(text: str) -> None:
        if text:
            parts.append(text)
            on_text(text)

    try:
        for token in session.generate(sampler, limit, tokenizer.is_end):
            if not tokens:
                first = time.perf_counter()
            tokens.append(token)
            emit(stream.feed([token]))
        emit(stream.finish())
    finally:
        sampler.close()
        session.close()
    full = len(session.tokens) >= backbone.n_ctx
    stopped, budget = "length" if len(tokens) == limit else "context" if full else "end", ""
    if stopped == "end" and session.is_over:
        stopped, budget = "budget", purse.why(reached())
    return Answer(
        text="".join(parts),
        model_id=backbone.stored.model_id,
        prompt_tokens=len(prompt_tokens),
        tokens=tokens,
        prompt_seconds=first - begun,
        seconds=time.perf_counter() - begun,
        stopped=stopped,
        trips=live.port.ledger.report(),
        routes=live.routes(),
        wire=live.port.settings.codec.name.lower(),
        home=live.home_report(),
        budget=budget,
        used=used(),
    )


def summary_rows(done: Answer) -> list[tuple[str, str]]:
    """The short table: names and values."""
    trips = done.trips
    return [
        ("prompt tokens", str(done.prompt_tokens)),
        ("tokens", str(len(done.tokens))),
        ("layers", str(trips.calls_per_pass)),
        ("passes", str(trips.passes)),
        ("trips", str(trips.trips)),
        ("trips per layer and token", f"{trips.trips_per_layer_token:.3f}" if trips.decoded else "-"),
        ("guessed, right", f"{trips.drafted}, {trips.accepted}"),
        ("tokens/s", f"{done.tokens_per_second:.1f}" if len(done.tokens) > 1 else "-"),
        ("seconds to the first token", f"{done.prompt_seconds:.2f}"),
        *cost_rows(trips, done.wire, done.routes),
    ]
