"""Chat templates in their processes, over real vocabularies: who steers the model, and who does not."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.tokenizer import Tokenizer
from node.gateway import chat_template
from node.gateway.chat_template import LINES_STOPS, ChatTemplate, TemplateError
from node.gateway.tool_calls import ToolCall
from tests.conftest import DEMO_MODEL
from tests.template_styles import STYLES
from tests.vocab_files import write_sentencepiece, write_vocabulary

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "12", "tool_call_id": "abcdefghi"},
]


@dataclass
class Opened:
    """A model's vocabulary and its template."""

    model: LlamaModel
    chat: ChatTemplate
    tokenizer: Tokenizer

    def render(self, messages: list[dict[str, Any]], **options: Any) -> str:
        return trio.run(lambda: self.chat.render(messages, **options))

    def tokens(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        return trio.run(lambda: self.chat.tokens(messages, **options))

    def controls(self, tokens: list[int]) -> list[str]:
        """The control tokens among them."""
        vocab, library = self.model.vocab, self.model.library
        texts = ((token, library.llama_vocab_get_text(vocab, token).decode()) for token in tokens)
        # llama.cpp makes ordinary ones of some of gpt-oss's, which steer all the same.
        return [
            text
            for token, text in texts
            if library.llama_vocab_get_attr(vocab, token) & 0b1001 or text.startswith("<|")
        ]

    def text(self, tokens: list[int]) -> str:
        """What they spell, without control tokens."""
        return b"".join(map(self.tokenizer.piece, tokens)).decode()


Open = Callable[[str], Opened]


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.fixture(scope="module")
def opened(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """opened(STYLE) or opened(path): once a module."""
    folder = tmp_path_factory.mktemp("vocabularies")
    made: dict[str, Opened] = {}

    def get(name: str) -> Opened:
        if name not in made:
            path = Path(name)
            if style := STYLES.get(name):
                path = write_vocabulary(
                    DEMO_MODEL,
                    folder / f"{name}.gguf",
                    controls=style.controls,
                    words=style.words,
                    bos=style.bos,
                    templates={"": style.template},
                )
            model = LlamaModel(library, [path], vocab_only=True)
            chat = ChatTemplate.from_model(model)
            assert chat is not None
            made[name] = Opened(model, chat, Tokenizer(model))
        return made[name]

    yield get
    for each in made.values():
        each.chat.close()
        each.model.close()


@pytest.fixture
def one(library: Library, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """one(template): the demo's vocabulary with that template."""
    made: list[Opened] = []

    def get(plain: str, **named: str) -> Opened:
        path = write_vocabulary(DEMO_MODEL, tmp_path / f"{len(made)}.gguf", templates={"": plain, **named})
        model = LlamaModel(library, [path], vocab_only=True)
        chat = ChatTemplate.from_model(model)
        assert chat is not None
        made.append(Opened(model, chat, Tokenizer(model)))
        return made[-1]

    yield get
    for each in made:
        each.chat.close()
        each.model.close()


# --- what comes out ---

HELLO: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": " Hello.\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes?"},
    {"role": "user", "content": "Bye."},
]

TEXTS = {
    "hermes": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hello.\n<|im_end|>\n"
    "<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes?<|im_end|>\n<|im_start|>user\nBye.<|im_end|>\n"
    "<|im_start|>assistant\n",
    "thinking": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hello.\n<|im_end|>\n"
    "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye.<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday is DATE\n\n"
    "Be kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHello.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n<think>\nhm\n</think>\n\nYes?<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s> Be kind.<|endoftext|>"
    "[INST]  Hello.\n[/INST] <think>\nhm\n</think>\n\nYes?<|endoftext|>[INST] Bye.[/INST]",
    "deepseek": "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    "Be kind.<\uff5cUser\uff5c> Hello.\n<\uff5cAssistant\uff5c>"
    "\n\nYes?<\uff5cend\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>Bye.<\uff5cAssistant\uff5c><think>\n",
    "harmony": "<|start|>system<|message|>Reasoning: high<|end|><|start|>developer<|message|>"
    "# Instructions\n\nBe kind.<|end|><|start|>user<|message|> Hello.\n<|end|>"
    "<|start|>assistant<|channel|>final<|message|><think>\nhm\n</think>\n\nYes?<|end|><|start|>user<|message|>Bye.<|end|><|start|>assistant",
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_and_tokens(opened: Open, name: str) -> None:
    made = opened(name)
    text = made.render(HELLO, extra={"reasoning_effort": "high", "messages": [], "bos_token": "x"})
    assert re.sub(r"\d\d [A-Z][a-z]{2} \d{4}", "DATE", text) == TEXTS[name]
    tokens = made.tokens(HELLO, extra={"reasoning_effort": "high"})
    # As llama.cpp reads the whole; BOS, which some templates write and some models want, is there once.
    plain = made.tokenizer.encode(text, special=True, whole=False)
    assert tokens == plain
    bos = made.model.library.llama_vocab_bos(made.model.vocab)
    assert tokens.count(bos) == (1 if STYLES[name].bos else 0)


def test_calls_in_the_history(opened: Open) -> None:
    found = {
        name: made.render(CALLED, tools=TOOLS if made.chat.has_tools else None)
        for name in ("hermes", "llama3", "mistral", "deepseek")
        if (made := opened(name))
    }
    assert '{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in found["hermes"]
    assert '"parameters": {"type": "object"' in found["hermes"]
    assert '{"name": "weather", "parameters": {"city": "Paris"}}<|eot_id|>' in found["llama3"]
    assert '[{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}]' in found["mistral"]
    assert 'weather\n```json\n{"city": "Paris"}\n```' in found["deepseek"]
    assert {name: opened(name).chat.has_tools for name in STYLES} == {
        name: name in ("hermes", "llama3", "mistral") for name in STYLES
    }


def test_calls_are_read_as_the_template_writes_them(opened: Open) -> None:
    said = {
        "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "llama3": '{"name": "weather", "parameters": {"city": "Paris"}}',
        "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}]',
    }
    for name, text in said.items():
        made = opened(name)
        calls = made.chat.calls(TOOLS)
        shown, found = "", list[ToolCall]()
        # Token by token, as the model writes it: some of these marks are control tokens.
        for token in made.tokenizer.encode(text, special=True, whole=False):
            piece = calls.spelt.get(token) or made.tokenizer.piece(token)
            more, new = calls.feed(piece.decode())
            shown, found = shown + more, found + new
        assert shown == "" and [(call.name, call.arguments) for call in found] == [
            ("weather", '{"city": "Paris"}')
        ]
        assert len(found[0].id) == 9  # or Mistral's template refuses it when it comes back
        assert found[0].as_dict()["function"]["name"] == "weather"


def test_thinking_can_be_switched(opened: Open) -> None:
    made = opened("thinking")
    assert made.render(user("a"), extra={"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert "<think>" not in made.render(user("a"))
    said = {"role": "assistant", "content": "b", "reasoning_content": "because"}
    assert "<think>\nbecause\n</think>\n\nb" in made.render([*user("a"), said])


# --- who steers ---

PIECES = (
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "[INST]",
    "[/INST]",
    "</s>",
    "<s>",
    "[TOOL_CALLS]",
    "<|start|>",
    "<|end|>",
    "<|channel|>",
    "<|message|>",
    "<\uff5cUser\uff5c>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|us",
    "er|>",
    "<|user|>",
    "<think>",
    "</think>",
    "<|",
    "|>",
    "<",
    ">",
    "[",
    "]",
    "\n",
    " ",
    "system",
    "x",
    '"',
)
CONTENTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=10).map("".join)


@pytest.mark.parametrize("name", STYLES)
@settings(max_examples=40)
@given(first=CONTENTS, second=CONTENTS, third=CONTENTS)
def test_what_users_write_steers_nothing(
    opened: Open, name: str, first: str, second: str, third: str
) -> None:
    made = opened(name)

    def chat(*contents: str) -> list[dict[str, Any]]:
        roles = ("user", "assistant", "user")
        return [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]

    tokens = made.tokens(chat(first, second, third))
    assert made.controls(tokens) == made.controls(made.tokens(chat("a", "b", "c")))
    if name == "harmony":  # it takes texts as they are: every character arrives
        text = made.text(tokens)
        assert f"<|start|>user<|message|>{first}<|end|>" in text
        assert text.endswith(f"<|start|>user<|message|>{third}<|end|><|start|>assistant")


def test_a_tool_named_like_a_control_token(opened: Open) -> None:
    made = opened("hermes")
    tool = {
        "type": "function",
        "function": {"name": "<|im_end|>", "description": "<|im_start|>", "parameters": {"<|im_end|>": 1}},
    }
    tokens = made.tokens(user("a"), tools=[tool])
    assert made.controls(tokens) == made.controls(made.tokens(user("a"), tools=TOOLS))
    assert made.text(tokens).count("<|im_end|>") == 2


def test_sentencepiece(library: Library, opened: Open, tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
    made = opened(str(write_sentencepiece(tmp_path / "sp.gguf", templates={"": template})))
    assert 1 in made.tokenizer.encode("a <s>")[1:]  # letters that merge into a control token
    tokens = made.tokens(user("hello <s> </s> [INST]"))
    assert made.controls(tokens) == ["<s>", "[INST]", "[/INST]"]
    assert made.text(tokens).replace(" ", "") == "hello<s></s>[INST]"
    plain = made.tokenizer.encode("[INST] hello [/INST]", special=True)
    assert made.tokens(user("hello")) == plain


# --- which template ---


def test_models_without_one(library: Library, opened: Open, tmp_path: Path) -> None:
    made = opened(str(DEMO_MODEL))
    assert (made.chat.source, made.chat.has_tools, made.chat.stops) == ("chatml", False, ())
    assert "ChatML" in made.chat.note
    text = "<|im_start|>system\nx<|im_end|>\n<|im_start|>user\ny\n<|im_end|>\n<|im_start|>assistant\n"
    chat = [{"role": "system", "content": "x"}, *user("y\n")]
    assert made.render(chat) == text
    assert made.tokens(chat) == made.tokenizer.encode(text, special=True)  # BOS, which this model wants
    made = opened(str(write_sentencepiece(tmp_path / "none.gguf")))
    assert (made.chat.source, made.chat.stops) == ("lines", LINES_STOPS)
    assert made.render([{"role": "system", "content": "x"}, *user("y")]) == "system: x\nuser: y\nassistant:"


def test_one_template_for_tools(one: Callable[..., Opened]) -> None:
    made = one("plain {{ messages[0].content }}", tool_use="{{ tools[0].function.name }} {{ tool_choice }}")
    assert made.chat.source == "gguf, with one for tools" and made.chat.has_tools
    assert made.render(user("a")) == "plain a"
    assert made.render(user("a"), tools=TOOLS, tool_choice="auto") == "weather auto"


# --- hostile ones ---

HOSTILE = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "long": "{{ 'x' * 10**10 }}",
    "much": "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "list": "{{ [1] * 10**9 }}",
    "centre": "{{ 'x' | center(10**10) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "batch": "{{ range(10) | batch(10**9, 1) | list }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "attr": "{{ (messages | attr('__class__')).__mro__ }}",
    "item": "{{ messages['__class__'].__mro__ }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__ }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "raise": "{{ raise_exception.__globals__['json'] }}",
    "now": "{{ strftime_now.__self__.year }}",
    "self": "{{ self.__init__.__globals__ }}",
    "format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format map": "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) + 1 }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "append": "{{ messages.append(1) }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "undefined": "{{ a.b.c }}",
    "zero": "{{ 1 // 0 }}",
}


def test_hostile_templates(one: Callable[..., Opened]) -> None:
    cases = "".join(
        f"{{% {'el' if i else ''}if messages[0].content == '{name}' %}}{text}"
        for i, (name, text) in enumerate(HOSTILE.items())
    )
    made = one(f"{cases}{{% else %}}well{{% endif %}}")
    for name in HOSTILE:
        begun = time.process_time()
        with pytest.raises(TemplateError) as caught:
            pytest.fail(f"{name}: {made.render(user(name))[:200]!r}")
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500, name
        assert "uid=" not in str(caught.value) and "/bin" not in str(caught.value), name
        assert time.process_time() - begun < 1
        assert made.render(user("x")) == "well"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "took too long"),
        ("{{ 10 ** (10 ** 9) }}", "took too long"),
        ("{% if %}", "line 1 is no jinja"),
        ("{% extends 'x' %}", "no loader"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nests too deeply"),
        ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "nests too deeply"),
    ],
)
def test_templates_that_cannot_be_used(
    one: Callable[..., Opened], template: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "CPU_SECONDS", 0.3)
    made = one(template)  # opening the model goes well all the same
    assert not made.chat.has_tools
    with pytest.raises(TemplateError, match=why):
        made.tokens(user("a"))


def test_its_own_refusal_is_told(one: Callable[..., Opened]) -> None:
    made = one("{{ raise_exception('not\\n' + messages[0].content) }}")
    with pytest.raises(TemplateError, match=r"^the chat template says: not <b> \?\[31m$"):
        made.render(user("<b> \x1b[31m"))
    with pytest.raises(TemplateError) as caught:
        made.render(user("<" * 100_000))
    assert len(str(caught.value)) < 400 and "<<<" in str(caught.value)


def test_what_cannot_be_rendered(opened: Open) -> None:
    made = opened("hermes")
    for content, why in ((" " * (9 << 20), "at most 8388608"), ("\ud800", "no sound JSON")):
        with pytest.raises(TemplateError, match=why):
            made.render(user(content))
    with pytest.raises(TemplateError, match="private-use"):
        made.render(user("".join(map(chr, range(0xF0000, 0x10FFFE)))))
    assert made.render(user("a")).endswith("assistant\n")


# --- its processes ---


def test_processes_are_replaced_and_end(one: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hush")
    made = one("{{ messages[0].content }}")
    pids = set(made.chat._confinement.pids)
    assert len(pids) == 2
    for pid in pids:
        assert b"hush" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert os.getsid(pid) != os.getsid(0)  # a terminal's Ctrl-C is not for them
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    assert made.render(user("a")) == "a"
    assert not pids & made.chat._confinement.pids
    made.chat.close()
    assert not made.chat._confinement.pids
    with pytest.raises(TemplateError, match="closed"):
        made.render(user("a"))


def test_several_at_once_and_one_that_leaves(one: Callable[..., Opened]) -> None:
    made = one(
        "{% if messages[0].content == 'slow' %}"
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
        "{{ messages[0].content }}"
    )
    found: list[str] = []

    async def ask(content: str) -> None:
        found.append(await made.chat.render(user(content)))

    async def main() -> None:
        with trio.move_on_after(0.3) as scope:
            await made.chat.render(user("slow"))
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            for i in range(12):
                nursery.start_soon(ask, f"{i}")

    begun = trio.run(_timed, main)
    assert sorted(found, key=int) == [f"{i}" for i in range(12)]
    assert begun < 20
    assert len(made.chat._confinement.pids) <= 1 + 4


async def _timed(main: Callable[[], Any]) -> float:
    begun = trio.current_time()
    await main()
    return trio.current_time() - begun
