"""The processes that render chat templates: jinja2's sandbox, as Hugging Face sets it up.

A template comes with a model's file, so a stranger wrote it. The sandbox keeps it from Python's insides, the
process from files, the network and this node's memory, and its limits from taking long.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from node.confined.frames import Refused
from node.confined.serving import Answerer
from node.gateway.template_marks import Marker, TooManyCharacters, unmark
from node.gateway.template_messages import prepared
from node.gateway.template_questions import Inspect, Inspected, Question, Render, Rendered, Setup

MEMORY = 512 << 20
"""A chat of 8 MiB takes some 150 MB, four bytes a character in several copies."""
MAY_OPEN = False
MOST_CHARACTERS = 16 << 20
"""Of a rendered chat: past every context."""
MOST_REASON = 300
"""Characters of what a template says for itself."""

NEEDLE = "needle_7d1f"
NEEDLE_TOOL = {
    "type": "function",
    "function": {
        "name": NEEDLE,
        "description": "Looks for it.",
        "parameters": {"type": "object", "properties": {"hay": {"type": "string"}}, "required": ["hay"]},
    },
}
MANGLED = ("{'hay'", '\\"hay')  # as Python writes a dictionary; a text within a text
NEEDLE_ID = "a1b2c3d4e"  # Mistral's templates want nine letters and digits


class _Raised(Exception):
    """The template's own raise_exception."""


class _TooLong(Exception):
    """What it writes is."""


def prepare(setup: bytes) -> Answerer:
    work = _Work(msgspec.msgpack.decode(setup, type=Setup))
    work.warm()
    return work.answer


class _Template:
    """One template, compiled when it is first rendered: what is wrong with it is that answer's failure."""

    def __init__(self, environment: jinja2.Environment, source: str, setup: Setup) -> None:
        self._environment = environment
        self._source = source
        self._setup = setup
        self._compiled: tuple[jinja2.Template, Marker] | None = None

    def render(self, question: Render) -> Rendered:
        template, marker = self._compile()
        users: dict[str, Any] = {
            "messages": question.messages,
            "tools": question.tools,
            "extra": question.extra,
        }
        marked, marks = marker.mark(users, (self._source, *self._setup.names.values()))
        try:
            return Rendered(self._generate(template, question, marked), marks)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise any
            raise Refused(_reason(error, marks)) from None

    def _generate(self, template: jinja2.Template, question: Render, marked: dict[str, Any]) -> str:
        now = datetime.fromtimestamp(question.now, UTC).astimezone()
        variables = {
            **marked["extra"],
            **self._setup.names,
            "messages": marked["messages"],
            "tools": marked["tools"],
            "documents": None,
            "add_generation_prompt": True,
            "strftime_now": now.strftime,
        }
        parts, size = [], 0
        for part in template.generate(variables):
            parts.append(part)
            size += len(part)
            if size > MOST_CHARACTERS:
                raise _TooLong(f"more than {MOST_CHARACTERS} characters come out")
        return "".join(parts)

    def _compile(self) -> tuple[jinja2.Template, Marker]:
        if self._compiled is None:
            tree = self._environment.parse(self._source)
            looked_for = {each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)}
            template = self._environment.from_string(tree)
            self._compiled = template, Marker(self._setup.controls, looked_for)
        return self._compiled


class _Work:
    def __init__(self, setup: Setup) -> None:
        self._environment = environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        del environment.globals["lipsum"]  # nobody needs filler text
        self._plain = _Template(environment, setup.plain, setup)
        self._tools = _Template(environment, setup.tools, setup) if setup.tools else self._plain
        self._decoder = msgspec.json.Decoder(Question)

    def warm(self) -> None:
        """Have everything imported that is ever needed: later, no file can be opened."""
        source = (
            "{% macro m(x) %}{{ x|tojson }}{{ x|trim|upper|default('')|string|length }}{% endmacro %}"
            "{% for each in range(3) %}{% if loop.first %}{% continue %}{% endif %}{{ m('a') }}{% endfor %}"
            "{% set n = namespace(a=1) %}{{ [n.a, 2]|map('string')|join|indent }}{{ '%s' % 'a' }}"
            "{{ '{}'.format(1) }}{{ {'a': 1}|items|list }}{{ strftime_now('%d %b %Y') }}{{ [1]|random }}"
        )
        for each in (source, "{{ raise_exception('a') }}", "{{ ''.__class__.x }}", "{% include 'a' %}", "{{"):
            try:
                _Template(self._environment, each, Setup("", "", ["<a>"], {})).render(
                    Render([], None, 0.0, {})
                )
            except Exception as error:  # noqa: BLE001 - as `answer` will meet them
                _reason(error)

    def answer(self, raw: bytes) -> bytes:
        question = self._decoder.decode(raw)
        if isinstance(question, Inspect):
            return msgspec.msgpack.encode(self._inspect())
        try:
            template = self._plain if question.tools is None else self._tools
            rendered = template.render(question)
            return msgspec.msgpack.encode(msgspec.structs.replace(rendered, text=_sound(rendered.text)))
        except (Refused, MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise any
            raise Refused(_reason(error)) from None

    def _inspect(self) -> Inspected:
        user = {"role": "user", "content": "Hello."}
        call = {
            "id": NEEDLE_ID,
            "type": "function",
            "function": {"name": NEEDLE, "arguments": '{"hay": "stack"}'},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "content": "found", "tool_call_id": NEEDLE_ID}
        shown = self._try([user], [NEEDLE_TOOL]).count(NEEDLE)
        tools = [NEEDLE_TOOL] if shown else None
        for as_text, empty in itertools.product((False, True), (False, True)):
            how = Inspected(shown > 0, as_text, empty)
            text = self._try(prepared([user, message, result], how), tools)
            if text.count(NEEDLE) > shown and "stack" in text and not any(each in text for each in MANGLED):
                return how
        return Inspected(shown > 0)

    def _try(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        template = self._plain if tools is None else self._tools
        try:
            rendered = template.render(Render(messages, tools, 0.0, {}))
        except Exception:  # noqa: BLE001 - a template can raise any
            return ""
        return unmark(rendered.text, rendered.marks)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: nothing escaped for HTML. Non-ASCII stays, or the stand-ins would be lost."""
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> NoReturn:
    raise _Raised(str(message))


def _reason(error: Exception, marks: Mapping[str, str] | None = None) -> str:
    """Why, in a line; stand-ins in it are put back."""
    if isinstance(error, TooManyCharacters | _Raised | _TooLong):
        words = unmark(str(error), marks or {})
    elif isinstance(error, jinja2.TemplateSyntaxError):
        words = f"line {error.lineno} is no jinja: {error.message}"
    else:
        words = unmark(f"{type(error).__name__}: {error}", marks or {})
    line = " ".join(_printable(words[: 4 * MOST_REASON]))
    kind = "says: " if isinstance(error, _Raised) else "fails: "
    return kind + (line if len(line) <= MOST_REASON else line[: MOST_REASON - 3] + "...")


def _printable(text: str) -> Iterator[str]:
    for word in text.split():
        yield "".join(char if char.isprintable() else "?" for char in word)


def _sound(text: str) -> str:
    """Without half characters, which JSON can name and no encoding has."""
    return text.encode(errors="replace").decode()
