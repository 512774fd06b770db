"""Who guesses for a session: from the config's word to a guesser and its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node.decode.backbone import Backbone
from node.decode.drafting.acceptance import Acceptance
from node.decode.drafting.agreed import AgreedDrafter
from node.decode.drafting.draft import Drafter
from node.decode.drafting.draft_model import DraftModel
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.ngram import NgramDrafter
from node.decode.drafting.pass_costs import PassCosts
from node.decode.drafting.self_draft import SelfDraft
from node.decode.drafting.stop_rule import StopRule
from node.decode.exactness import LEAST_ROWS, MOST_ROWS


@dataclass
class Guessers:
    """Makes the guesser of each session of a backbone; what they learn is common.

    Args:
        draft: "auto", "off", "self", "ngram" or "model". auto: look-up together with the small model where
            there is one, else with the experts at home; alone where there is neither.
        draft_model: the small model's file.
        has_home: whether anything is at home now.
        left_out: see `SelfDraft`.
    """

    draft: str
    draft_model: Path | None
    exact: bool
    backbone: Backbone
    has_home: Callable[[], bool]
    left_out: Callable[[], list[float]]
    acceptance: Acceptance = field(default_factory=Acceptance)

    def __post_init__(self) -> None:
        backbone = self.backbone
        self._most_rows = backbone.most_rows if self.exact else min(MOST_ROWS, backbone.context.n_ubatch)
        self._least_rows = LEAST_ROWS if self.exact else 1

    def make(self, sequence: int | Callable[[], int] = 0) -> Guessing | None:
        """For a sequence, or the one that a function names at each pass; None where nobody guesses.

        Raises:
            LocalError: the small model does not fit.
        """
        if self.draft == "off" or not self.backbone.can_rewind or self._most_rows < 2:
            return None
        costs = PassCosts(self._least_rows)
        return Guessing(self._drafter(sequence), StopRule(self._most_rows, self.acceptance, costs))

    def _drafter(self, sequence: int | Callable[[], int]) -> Drafter:
        backbone = self.backbone
        if self.draft == "model" or (self.draft == "auto" and self.draft_model is not None):
            assert self.draft_model is not None  # the config sees to it
            small = DraftModel(
                backbone.model.library,
                self.draft_model,
                backbone.model,
                n_ctx=backbone.n_ctx,
                threads=backbone.threads,
            )
            return small if self.draft == "model" else AgreedDrafter(small, NgramDrafter())
        if self.draft == "ngram" or (self.draft == "auto" and not self.has_home()):
            return NgramDrafter()
        at_home = SelfDraft(backbone, self.left_out, sequence)
        return at_home if self.draft == "self" else AgreedDrafter(at_home, NgramDrafter())
