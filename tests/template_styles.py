"""Chat templates in the styles of well-known model families, each with its control tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Style:
    """A template (`templates/NAME.jinja`) and the vocabulary it is for.

    Attributes:
        words: user-defined tokens: read in every text.
        bos: begins every text.
    """

    name: str
    controls: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    bos: str = ""

    @property
    def template(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text(encoding="utf-8")


def _deepseek(*names: str) -> tuple[str, ...]:
    return tuple(f"<\uff5c{name}\uff5c>".replace(" ", "\u2581") for name in names)


STYLES = {
    each.name: each
    for each in (
        Style("hermes", words=("<tool_call>", "</tool_call>")),
        Style("thinking", words=("<think>", "</think>")),
        Style(
            "llama3",
            controls=(
                "<|begin_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eot_id|>",
                "<|python_tag|>",
            ),
            bos="<|begin_of_text|>",
        ),
        Style(
            "mistral",
            controls=(
                "<s>",
                "</s>",
                "[INST]",
                "[/INST]",
                "[TOOL_CALLS]",
                "[AVAILABLE_TOOLS]",
                "[/AVAILABLE_TOOLS]",
                "[TOOL_RESULTS]",
                "[/TOOL_RESULTS]",
            ),
            bos="<s>",
        ),
        Style(
            "deepseek",
            _deepseek(
                "begin of sentence",
                "end of sentence",
                "User",
                "Assistant",
                "tool calls begin",
                "tool call begin",
                "tool sep",
                "tool call end",
                "tool calls end",
            ),
            ("<think>", "</think>"),
            *_deepseek("begin of sentence"),
        ),
        Style(
            "harmony",
            controls=("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
        ),
        Style("composed", controls=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")),
    )
}
