"""A model's guesses and look-up's, as one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import cast

from node.decode.drafting.agreed import ASK_AGAIN, AgreedDrafter
from node.decode.drafting.draft import Draft
from node.decode.drafting.ngram import NgramDrafter
from node.engine.sampler import Sampler

NO_SAMPLER = cast(Sampler, None)
TEXT = [1, 2, 3, 4, 5, 6, 1, 2]  # look-up goes on with 3, 4, 5, 6, 1, 2, ...


class Told:
    """Guesses what it is told; notes how far it was asked and that it was closed in time."""

    name = "self"

    def __init__(self, tokens: Sequence[int], missing: float = 0.5) -> None:
        self.tokens = tokens
        self.missing = missing
        self.asked = self.made = 0
        self.open = False

    def drafts(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Generator[Draft, None, None]:
        self.asked += 1
        self.open = True
        try:
            for token in self.tokens[:limit]:
                self.made += 1
                yield Draft(token, 0.5, self.missing, self.missing, self.name, 0.01)
        finally:
            self.open = False

    def close(self) -> None:
        self.tokens = []


def guess(drafter: AgreedDrafter, limit: int = 5, text: Sequence[int] = TEXT) -> list[tuple[int, str]]:
    return [(draft.token, draft.source) for draft in drafter.drafts(text, NO_SAMPLER, limit)]


def test_where_both_agree_the_copy_is_taken_for_the_rest() -> None:
    model = Told([3, 9, 9, 9, 9])
    found = guess(AgreedDrafter(model, NgramDrafter()))
    assert found == [(3, "self"), (4, "ngram"), (5, "ngram"), (6, "ngram"), (1, "ngram")]
    assert model.made == 1


def test_the_model_has_left_its_cache_before_the_copy_is_read() -> None:
    model = Told([3, 9])
    drafts = AgreedDrafter(model, NgramDrafter()).drafts(TEXT, NO_SAMPLER, 5)
    next(drafts)
    assert model.open
    next(drafts)
    assert not model.open
    drafts.close()


def test_where_they_differ_the_model_goes_on_alone() -> None:
    assert guess(AgreedDrafter(Told([8, 9, 7]), NgramDrafter())) == [(8, "self"), (9, "self"), (7, "self")]


def test_each_alone_where_the_other_has_nothing() -> None:
    assert guess(AgreedDrafter(Told([8, 9]), NgramDrafter()), text=[1, 2, 3]) == [(8, "self"), (9, "self")]
    assert guess(AgreedDrafter(Told([]), NgramDrafter()), 2) == [(3, "ngram"), (4, "ngram")]
    assert guess(AgreedDrafter(Told([]), NgramDrafter()), text=[1, 2, 3]) == []


def test_giving_up_closes_the_model() -> None:
    model = Told([8, 9, 7])
    drafts = AgreedDrafter(model, NgramDrafter()).drafts(TEXT, NO_SAMPLER, 5)
    next(drafts)
    drafts.close()
    assert not model.open


def test_with_little_at_home_the_model_is_hardly_asked() -> None:
    model = Told([8, 9, 7], missing=1.0)
    drafter = AgreedDrafter(model, NgramDrafter())
    for _ in range(2 * ASK_AGAIN + 1):
        guess(drafter)
    assert model.asked == 3
    assert guess(drafter, 2) == [(3, "ngram"), (4, "ngram")]
    model.missing = 0.3  # more has come home
    for _ in range(ASK_AGAIN):
        guess(drafter)
    before = model.asked
    guess(drafter)
    assert model.asked == before + 1


def test_a_copy_that_is_sure_asks_nobody() -> None:
    model = Told([9, 9, 9, 9])
    drafter = AgreedDrafter(model, NgramDrafter())
    text = list(TEXT)
    for _ in range(60):  # the text repeats itself and goes on as look-up says
        text.append(text[-6])
        guess(drafter, 4, text)
    asked = model.asked
    assert {source for _, source in guess(drafter, 4, text)} == {"ngram"}
    assert model.asked == asked < 30


def test_the_limit_is_kept_and_the_name_tells_both() -> None:
    drafter = AgreedDrafter(Told([3, 9]), NgramDrafter())
    assert drafter.name == "self+ngram"
    assert [len(guess(drafter, limit)) for limit in (0, 1, 2, 15)] == [0, 1, 2, 15]
    drafter.close()
