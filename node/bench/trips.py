"""How many trips a token takes, by what is at home and who guesses: all cases side by side over the same
prompts.

Each prompt is continued by every case before the next prompt's turn, so that whatever else the machine and
the network do meets all of them. Cases differ in their home set and their guesser, nothing else; the first
one is what the others are compared with, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from node.decode.drafting.guessing import Guessing
from node.decode.ledger import PassDone, TripsLedger
from node.decode.live_backbone import LiveBackbone
from node.decode.session import Session
from node.engine.sampler import Sampler, SamplingSettings
from node.serve.cells import Cells


@dataclass(frozen=True)
class Case:
    """One way to decode.

    Attributes:
        home, draft: what the table says of it.
        cells: what is computed at home.
        guessing: makes the guesser of a sequence; None for one token a pass.
    """

    home: str
    draft: str
    cells: Cells
    guessing: Callable[[LiveBackbone], Guessing | None]


class TripsRow(msgspec.Struct, frozen=True):
    """What a case cost, over all prompts; the prompts' own passes are not counted.

    Attributes:
        share: of the experts' bytes that is at home.
        trips_per_layer_token: 1 is a trip for every layer of every token.
        tokens_per_second: of decoding; speedup: over the first case's.
        differ: tokens that are not the first case's.
        waited, drafting: seconds spent waiting for experts elsewhere, and guessing.
    """

    home: str
    share: float
    draft: str
    tokens: int
    passes: int
    trips: int
    trips_per_layer_token: float
    tokens_per_pass: float
    drafted: int
    accepted: int
    tokens_per_second: float
    speedup: float
    bytes_per_token: float
    waited: float
    drafting: float
    differ: int


@dataclass
class _Tally:
    ledger: TripsLedger = field(default_factory=TripsLedger)
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0


def run_cases(
    live: LiveBackbone,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: SamplingSettings,
    cases: Sequence[Case],
    progress: Callable[[str], None] = lambda what: None,
) -> list[TripsRow]:
    """Continue every prompt in every way; on the calling thread.

    Args:
        count: tokens after each prompt, the first one (the prompt's own) included.
    """
    tallies = [_Tally() for _ in cases]
    guessings = [case.guessing(live) for case in cases]
    try:
        for number, prompt in enumerate(prompts):
            for case, tally, guessing in zip(cases, tallies, guessings, strict=True):
                progress(f"prompt {number + 1} of {len(prompts)}: {case.home} at home, draft {case.draft}")
                live.port.set_home(case.cells)
                _continue(live, prompt, count, sampling, guessing, tally)
    finally:
        for guessing in guessings:
            if guessing is not None:
                guessing.close()
    return [_row(live, case, tally, tallies[0]) for case, tally in zip(cases, tallies, strict=True)]


def _continue(
    live: LiveBackbone,
    prompt: Sequence[int],
    count: int,
    sampling: SamplingSettings,
    guessing: Guessing | None,
    tally: _Tally,
) -> None:
    decoding = 0.0

    def on_pass(done: PassDone) -> None:
        nonlocal decoding
        tally.ledger.count_pass(done)
        if done.decoding:
            decoding += done.drafting + done.seconds

    live.backbone.context.clear()
    live.port.ledger = tally.ledger
    session = Session(
        live.backbone,
        guessing=guessing,
        exact=live.settings.exact,
        on_pass=on_pass,
        spent=tally.ledger.spent,
    )
    session.append(list(prompt))
    sampler = Sampler(live.backbone.model.library, sampling)
    try:
        tally.tokens += session.generate(sampler, count, lambda token: False)
    finally:
        sampler.close()
    tally.seconds += decoding


def _row(live: LiveBackbone, case: Case, tally: _Tally, first: _Tally) -> TripsRow:
    report = tally.ledger.report()
    manifest = live.backbone.stored.manifest
    key = bytes.fromhex(live.backbone.stored.model_id)
    held = sum(
        len(each.experts()) * call.bytes_per_cell
        for call in manifest.calls
        if (each := case.cells.find(key, call.layer, call.index)) is not None
    )
    speed, plain = (each.ledger.decoded / max(each.seconds, 1e-9) for each in (tally, first))
    return TripsRow(
        home=case.home,
        share=round(held / manifest.expert_bytes, 4),
        draft=case.draft,
        tokens=report.decoded,
        passes=report.decode_passes,
        trips=report.decode_trips,
        trips_per_layer_token=report.trips_per_layer_token,
        tokens_per_pass=round(report.decoded / max(report.decode_passes, 1), 2),
        drafted=report.drafted,
        accepted=report.accepted,
        tokens_per_second=round(speed, 2),
        speedup=round(speed / plain, 3),
        bytes_per_token=report.bytes_per_token,
        waited=report.waited,
        drafting=report.drafting,
        differ=sum(a != b for a, b in zip(tally.tokens, first.tokens, strict=True)),
    )


def prompts_from(tokens: Sequence[int], number: int, length: int) -> list[list[int]]:
    """Prompts cut from a text's tokens at even distances."""
    step = max(1, (len(tokens) - length) // max(number, 1))
    return [list(tokens[i * step : i * step + length]) for i in range(number)]
