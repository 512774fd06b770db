"""A small model that guesses for another: its cache, its draws, and which models it may guess for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from node.decode.backbone import Backbone
from node.decode.drafting.draft import Draft
from node.decode.drafting.draft_model import DraftModel
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.rule import AlwaysRule, PassOutcome
from node.decode.session import Session
from node.engine.context import Row
from node.engine.library import EngineError, Library
from node.engine.llama_model import LlamaModel
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import Tokenizer
from tests.model_parts import ModelParts

Parts = Callable[..., ModelParts]

PROMPT = "import os\nimport sys\n\ndef main(argv):\n    for name in sorted(os.listdir(argv[1])):\n"
GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.8, seed=11)


class Counting(AlwaysRule):
    """Always so many guesses; counts what came of them."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.kept = self.accepted = 0

    def learn(self, outcome: PassOutcome) -> None:
        self.kept += outcome.kept
        self.accepted += outcome.accepted


def generate(
    backbone: Backbone, settings: SamplingSettings, count: int, guessing: Guessing | None = None
) -> list[int]:
    backbone.context.clear()
    session = Session(backbone, guessing=guessing)
    session.append(Tokenizer(backbone.model).encode(PROMPT))
    with closing(Sampler(backbone.model.library, settings)) as sampler:
        return list(session.generate(sampler, count, lambda token: False))


@contextmanager
def drafting(backbone: Backbone, path: Path, n_ctx: int = 256) -> Iterator[DraftModel]:
    with closing(DraftModel(backbone.model.library, path, backbone.model, n_ctx=n_ctx)) as drafter:
        yield drafter


def guesses(
    drafter: DraftModel, tokens: list[int], limit: int, library: Library, settings: SamplingSettings = GREEDY
) -> list[Draft]:
    with closing(Sampler(library, settings)) as sampler:
        return list(drafter.drafts(tokens, sampler, limit))


@contextmanager
def computed(drafter: DraftModel) -> Iterator[list[int]]:
    """Rows of each pass of its own."""
    counted: list[int] = []
    compute = drafter._context.compute

    def count(rows: list[Row]) -> None:
        counted.append(len(rows))
        compute(rows)

    drafter._context.compute = count  # type: ignore[method-assign, assignment]
    yield counted


# --- what it guesses ---


@pytest.mark.parametrize("settings", [GREEDY, WARM], ids=["greedy", "drawn"])
def test_a_model_guesses_itself_and_changes_nothing(parts: Parts, settings: SamplingSettings) -> None:
    """Drawn with the same noise, too. All but near ties come true."""
    model = parts("demo")
    with model.backbone() as backbone, drafting(backbone, model.path) as drafter:
        plain = generate(backbone, settings, 60)
        rule = Counting(4)
        assert generate(backbone, settings, 60, Guessing(drafter, rule)) == plain
        assert rule.accepted >= 0.95 * rule.kept > 0


@pytest.mark.parametrize("settings", [GREEDY, WARM], ids=["greedy", "drawn"])
def test_another_architecture_with_the_same_words_guesses_well(
    parts: Parts, shared_dir: Path, settings: SamplingSettings
) -> None:
    model = parts(shared_dir / "models" / "tiny-qwen3moe-32e4.Q8_0.gguf")
    small = shared_dir / "models" / "tiny-qwen2moe-12e2-shared.Q4_K_M.gguf"
    with model.backbone() as backbone, drafting(backbone, small) as drafter:
        plain = generate(backbone, settings, 100)
        rule = Counting(4)
        assert generate(backbone, settings, 100, Guessing(drafter, rule)) == plain
        assert rule.accepted > (0.25 if settings is GREEDY else 0.1) * rule.kept


def test_the_chance_it_gives_is_that_of_its_logits(parts: Parts, library: Library) -> None:
    model = parts("demo")
    with model.backbone() as backbone, drafting(backbone, model.path) as drafter:
        tokens = Tokenizer(backbone.model).encode(PROMPT)
        found = guesses(drafter, tokens, 8, library)
        assert all(0 < draft.probability <= 1 and draft.source == "model" for draft in found)
        assert all(draft.seconds > 0 and draft.missing_max == 0 for draft in found)
        assert len({draft.probability for draft in found}) > 4


# --- its cache ---


def test_what_came_true_is_not_computed_again(parts: Parts, library: Library) -> None:
    model = parts("demo")
    with model.backbone() as backbone, drafting(backbone, model.path) as drafter:
        tokens = Tokenizer(backbone.model).encode(PROMPT)
        with computed(drafter) as counted:
            first = guesses(drafter, tokens, 4, library)
            assert sum(counted) == len(tokens) + 3
            counted.clear()
            # three came true, then another token
            tokens += [draft.token for draft in first[:3]] + [99]
            guesses(drafter, tokens, 4, library)
            assert sum(counted) == 1 + 3
            counted.clear()
            guesses(drafter, tokens, 4, library)  # nothing new: only the last token, for its output
            assert sum(counted) == 1 + 3


def test_a_text_that_was_replaced_is_read_anew(parts: Parts, library: Library) -> None:
    model = parts("demo")
    other = model.tokens(40, seed=5)
    with model.backbone() as backbone:
        tokens = Tokenizer(backbone.model).encode(PROMPT)
        with drafting(backbone, model.path) as drafter:
            guesses(drafter, other, 6, library)
            after = [
                [draft.token for draft in guesses(drafter, text, 6, library)]
                for text in (tokens, other[:20], tokens[:30], other)
            ]
        fresh = []
        for text in (tokens, other[:20], tokens[:30], other):
            with drafting(backbone, model.path) as drafter:
                fresh.append([draft.token for draft in guesses(drafter, text, 6, library)])
    assert after == fresh


def test_of_a_text_longer_than_its_context_it_reads_the_end(parts: Parts, library: Library) -> None:
    model = parts("demo")
    with model.backbone() as backbone, drafting(backbone, model.path, n_ctx=64) as drafter:
        tokens = Tokenizer(backbone.model).encode(PROMPT)
        text = (tokens * 10)[:230]
        with computed(drafter) as counted:
            for end in range(20, len(text)):
                assert len(guesses(drafter, text[:end], 4, library)) == 4
                assert len(drafter._cached) <= 64
            # each position: a token read, three guessed; half a context again for each half of one
            assert sum(counted) < 210 * (1 + 3) + 20 + 210 * 1.2


def test_a_guess_given_up_halfway_leaves_a_cache_that_fits(parts: Parts, library: Library) -> None:
    model = parts("demo")
    with model.backbone() as backbone, drafting(backbone, model.path) as drafter:
        tokens = Tokenizer(backbone.model).encode(PROMPT)
        whole = [draft.token for draft in guesses(drafter, tokens, 6, library)]
        with closing(Sampler(library, GREEDY)) as sampler:
            half = drafter.drafts(tokens, sampler, 6)
            next(half), next(half)
            half.close()
        assert [draft.token for draft in guesses(drafter, tokens, 6, library)] == whole


# --- which models may guess ---


def refusal(backbone: Backbone, path: Path) -> str:
    with pytest.raises(EngineError) as caught:
        DraftModel(backbone.model.library, path, backbone.model, n_ctx=64)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def patched(source: Path, target: Path, old: bytes, new: bytes) -> Path:
    raw = source.read_bytes()
    assert raw.count(old) == 1 and len(old) == len(new)
    target.write_bytes(raw.replace(old, new))
    return target


def word(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


def test_other_words_or_special_tokens_are_refused_by_name(parts: Parts, tmp_path: Path) -> None:
    model = parts("demo")
    with model.backbone() as backbone:
        path = patched(model.path, tmp_path / "words.gguf", word("import"), word("imqort"))
        message = refusal(backbone, path)
        assert "'imqort'" in message and "'import'" in message and "same tokenizer" in message
        key = b"tokenizer.ggml.eos_token_id\x04\x00\x00\x00"
        path = patched(model.path, tmp_path / "eos.gguf", key + b"\x00\x00", key + b"\x01\x00")
        assert "EOS token is 1, the other's 0" in refusal(backbone, path)


def test_a_model_without_words_is_refused(parts: Parts, zoo_file: Callable[..., Path]) -> None:
    with parts("demo").backbone() as backbone:
        assert "no tokenizer" in refusal(backbone, zoo_file("granitemoe"))


def test_a_model_that_cannot_go_back_is_refused(parts: Parts, zoo_file: Callable[..., Path]) -> None:
    with parts("demo").backbone() as backbone:
        assert "does not take tokens back" in refusal(backbone, zoo_file("granitehybrid"))


def test_what_is_no_model_is_refused(parts: Parts, tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    path.write_bytes(b"GGUF")
    with parts("demo").backbone() as backbone:
        assert "cannot load" in refusal(backbone, path)
        assert str(tmp_path / "missing.gguf") in refusal(backbone, tmp_path / "missing.gguf")


def test_a_vocabulary_is_that_of_the_trunk(parts: Parts, library: Library) -> None:
    """The backbone has only a trunk; the small model is compared with that."""
    model = parts("demo")
    with LlamaModel(library, [model.stored.trunk]) as trunk:
        DraftModel(library, model.path, trunk, n_ctx=64).close()
